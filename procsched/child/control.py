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


class Control:
    """One end of the control socket. Each side is used by one thread at a time.

    A message is four bytes of length and a pickled value; descriptors travel with its first byte. Only ever
    between the parent and a helper that the parent started itself.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._pending = bytearray()
        self._fds: list[int] = []

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
        """In a fork: close the socket and what came with messages that are not whole yet."""
        self.sock.close()
        for fd in self._fds:
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
        data, ancillary, _flags, _address = self.sock.recvmsg(
            1 << 13, socket.CMSG_SPACE(_MOST_FDS * 4), getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        )
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                count = len(payload) // 4
                self._fds += map(_system.lift, unpack(f"{count}i", payload[: count * 4]))
        self._pending += data
        return bool(data)

    def _next(self) -> tuple[Any, list[int]] | None:
        pending = self._pending
        if len(pending) < _LENGTH:
            return None
        size = int.from_bytes(pending[:_LENGTH], "little")
        if len(pending) < _LENGTH + size:
            return None
        message, count = pickle.loads(memoryview(pending)[_LENGTH : _LENGTH + size].tobytes())
        del pending[: _LENGTH + size]
        fds, self._fds = self._fds[:count], self._fds[count:]
        return message, fds

    def receive(self) -> tuple[Any, list[int]]:
        """Wait for one message; ``(None, [])`` when the other side has gone."""
        while True:
            found = self._next()
            if found is not None:
                return found
            if not self._read():
                return None, []

    def receive_available(self) -> list[tuple[Any, list[int]]]:
        """Read once and return the messages that are complete; ``(None, [])`` stands for the end."""
        found: list[tuple[Any, list[int]]] = []
        open_ = True
        try:
            open_ = self._read()
        except BlockingIOError:
            pass
        except OSError:
            open_ = False
        while (message := self._next()) is not None:
            found.append(message)
        if not open_:
            found.append((None, []))
        return found
