"""The worker's end of the socket that it shares with the parent."""

from __future__ import annotations

import _socket as socket
import _thread
import os
import select
from collections import deque
from time import monotonic  # by name: a run may have put something in the place of the module's

from procsched import _system
from procsched._core import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Backstop(Protocol):
        """What ends this process should the parent be stuck."""

        def disarm(self) -> float:
            """Take it back; return for when it was armed."""

        def arm(self, due: float) -> None:
            """Arm it for steady time `due`."""


LOOKED = 0.0002  # seconds, at most, for which a worker looks whether the next call has come before it sleeps
_give_way = getattr(os, "sched_yield", bool)


class Channel:
    """The worker's end of its socket. Reads belong to the main thread; writes may come from any."""

    def __init__(self, fd: int) -> None:
        self.sock = socket.socket(fileno=fd)
        self.fd = fd
        self.decoder = wire.Decoder()
        self.frames: deque[wire.Frame] = deque()
        # A socket counts as having room while three quarters of its buffer are free (unix(7), socket(7)).
        self.room = select.poll()
        self.room.register(fd, select.POLLOUT)
        self.coming = select.poll()
        self.coming.register(fd, select.POLLIN)
        self.may_look = _system.cpus() > 1  # on a single one nobody would get to send anything
        self.soon = False  # whether the last bytes came within the time for which it is worth looking
        self.lock = _thread.allocate_lock()  # one frame at a time: any thread may tell progress

    def close(self) -> None:
        """Close this end, in a process that is not the worker."""
        try:
            self.sock.close()
        except OSError:  # a run may have closed it
            pass
        self.fd = -1

    def read(self) -> wire.Frame | None:
        """Wait for the next frame; None when the parent has gone.

        Raises:
            WireError: what came is no frame.
        """
        decoder = self.decoder
        while not self.frames:
            if decoder.error is not None:
                raise decoder.error
            target = decoder.target
            if target is not None:
                count = os.readv(self.fd, [target])
                if not count:
                    return None
                frame = decoder.filled(count)
                if frame is not None:
                    self._take(frame)
                continue
            data = self._receive()
            if not data:
                return None
            for frame in decoder.feed(data):
                self._take(frame)
        return self.frames.popleft()

    def _receive(self) -> bytes:
        """Wait for bytes; b"" when there will be none.

        Who calls us one call at a time sends the next as soon as it has the answer. To be woken for that takes longer
        than such a call does, and the one who wakes us pays as well. So where the last ones came that soon we first
        look for a moment. Of an idle worker nothing is left of this.
        """
        began = monotonic()
        if self.soon:
            end, coming = began + LOOKED, self.coming.poll
            while not coming(0) and monotonic() < end:
                _give_way()  # or the call comes late when it comes: others have the processor first, who waited for it
        data = os.read(self.fd, 1 << 16)
        self.soon = monotonic() - began <= LOOKED and self.may_look
        return data

    def _take(self, frame: wire.Frame) -> None:
        if frame.kind == wire.CALLS:
            self.frames.extend(wire.open_packet(frame))
        else:
            self.frames.append(frame)

    def write(self, parts: list[bytes | bytearray], backstop: Backstop | None = None) -> None:
        """Write a frame whole, and take back `backstop` once the rest of the writing cannot be kept waiting any more.

        The parent has no whole frame before that, and cannot be handing out the next call meanwhile.
        """
        with self.lock:
            if backstop is not None and (len(parts) > 1 or not self._write_now(parts, backstop)):
                self._write_all([*parts[:-1], memoryview(parts[-1])[:-1]])
                self.room.poll()
                backstop.disarm()
                parts = [parts[-1][-1:]]
            self._write_all(parts)

    def _write_now(self, parts: list[bytes | bytearray], backstop: Backstop) -> bool:
        """Write a frame of one part without the backstop, as far as that need not wait; return whether it is done.

        What is left is in `parts` then.
        """
        due = backstop.disarm()
        try:
            sent = self.sock.send(parts[0], socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        rest = parts.pop()[sent:]
        if not rest:
            return True
        parts.append(rest)
        backstop.arm(due)
        return False

    def _write_all(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        for part in parts:
            sent = os.write(self.fd, part)
            if sent < len(part):
                view = memoryview(part)[sent:]
                while view:
                    view = view[os.write(self.fd, view) :]
