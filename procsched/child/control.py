"""Messages with descriptors over a stream socket: what the parent and the helper say to each other."""

from __future__ import annotations

import _pickle as pickle
import _socket as socket
import os
from _struct import pack, unpack

from procsched import _system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LENGTH = 4
_MOST_FDS = 64
_CAP = 1 << 26  # bytes of a message: all that a process inherits is below that


def _received(fd: int) -> int:
    if not hasattr(socket, "MSG_CMSG_CLOEXEC"):
        os.set_inheritable(fd, False)  # pragma: no cover - macOS
    return _system.lift(fd)


class Control:
    """One end of the control socket. Each side is used by one thread at a time.

    A message is four bytes of length and a pickled value; descriptors travel with its first byte. Only ever
    between the parent and a helper that the parent started itself.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._pending = bytearray()
        # The descriptors that came with each message that brought some and is not whole yet. One read never returns
        # those of two messages (unix(7)); where none was left to put them into, there are fewer, or none.
        self._fds: list[list[int]] = []

    @classmethod
    def of(cls, fd: int) -> Control:
        """Take over the socket with descriptor `fd`."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self.sock.fileno()

    def close(self) -> None:
        """Hang up."""
        self.sock.close()

    def forget(self) -> None:
        """Close the socket, and what came with messages that are not whole yet: in a fork, or at the end."""
        self.sock.close()
        for fds in self._fds:
            for fd in fds:
                os.close(fd)
        self._fds.clear()

    def send(self, message: object, fds: list[int] | tuple[int, ...] = ()) -> None:
        """Send a message, waiting until the socket takes it.

        Raises:
            OSError: the other side is gone.
        """
        view = memoryview(self.encode(message, fds))
        sent = self.sock.sendmsg([view], self.ancillary(fds))
        while sent < len(view):
            view = view[sent:]
            sent = self.sock.send(view)

    @staticmethod
    def encode(message: object, fds: list[int] | tuple[int, ...] = ()) -> bytes:
        """Return the bytes of a message that travels with `fds`."""
        body = pickle.dumps((message, len(fds)), 5)
        return len(body).to_bytes(_LENGTH, "little") + body

    @staticmethod
    def ancillary(fds: list[int] | tuple[int, ...]) -> list[tuple[int, int, bytes]]:
        """Return what goes beside the first byte of a message that travels with `fds`."""
        return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, pack(f"{len(fds)}i", *fds))] if fds else []

    def _read(self) -> bool:
        """Read once; return False at the end of the stream."""
        data, ancillary, flags, _address = self.sock.recvmsg(
            1 << 13, socket.CMSG_SPACE(_MOST_FDS * 4), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        fds: list[int] = []
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                count = len(payload) // 4
                fds += map(_received, unpack(f"{count}i", payload[: count * 4]))
        if fds or flags & socket.MSG_CTRUNC:  # some are missing: this process had no room for them
            self._fds.append(fds)
        self._pending += data
        return bool(data)

    def _next(self) -> tuple[Any, list[int]] | None:
        """Return a message that is whole, with its descriptors, of which some may be missing.

        Raises:
            OSError: what came is no message, and nothing behind it can be found.
        """
        pending = self._pending
        if len(pending) < _LENGTH:
            return None
        size = int.from_bytes(pending[:_LENGTH], "little")
        if size > _CAP:
            raise OSError(f"a message of {size} bytes is none")
        if len(pending) < _LENGTH + size:
            return None
        try:
            message, count = pickle.loads(memoryview(pending)[_LENGTH : _LENGTH + size].tobytes())
        except Exception as error:
            raise OSError(f"what came is no message: {error}") from error
        del pending[: _LENGTH + size]
        return message, self._fds.pop(0) if count and self._fds else []

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for one message; ``(None, [])`` when the other side has gone."""
        while True:
            found = self._next()
            if found is not None:
                return found
            if not self._read():
                return None, []

    def receive_available(self) -> list[tuple[Any, list[int]]]:
        """Read once and return the messages that are complete; ``(None, [])`` stands for the end.

        What is no message is the end too: the other side, or whatever has its descriptor, is not to be understood.
        """
        found: list[tuple[Any, list[int]]] = []
        open_ = True
        try:
            open_ = self._read()
        except BlockingIOError:
            pass
        except OSError:
            open_ = False
        try:
            while (message := self._next()) is not None:
                found.append(message)
        except OSError:
            open_ = False
        if not open_:
            found.append((None, []))
        return found
