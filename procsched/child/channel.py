"""The worker's end of the socket that it shares with the parent."""

from __future__ import annotations

import _thread
import os
import select
from collections import deque
from time import monotonic  # by name: a run may have put something in the place of the module's

from procsched import _system
from procsched._core import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SMALL = 512  # bytes of a small frame
SURE = 32
LOOKED = 0.0002  # seconds, at most, for which a worker looks whether the next call has come before it sleeps


class Channel:
    """The worker's end of its socket. Reads belong to the main thread; writes may come from any."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.decoder = wire.Decoder()
        self.frames: deque[wire.Frame] = deque()
        # A socket counts as having room while three quarters of its buffer are free: more than a frame of one part
        # needs, or many small ones, each of which takes a kilobyte of it at most (unix(7), socket(7)).
        self.room = select.poll()
        self.room.register(fd, select.POLLOUT)
        self.coming = select.poll()
        self.coming.register(fd, select.POLLIN)
        self.may_look = _system.cpus() > 1  # on a single one nobody would get to send anything
        self.soon = False  # whether the last bytes came within the time for which it is worth looking
        self.sure = 0  # so many small frames have room for sure
        self.lock = _thread.allocate_lock()  # one frame at a time: any thread may tell progress

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
            # Without giving way, which would keep who calls on this processor where there is another for it.
            while not coming(0) and monotonic() < end:
                continue
        data = os.read(self.fd, 1 << 16)
        self.soon = monotonic() - began <= LOOKED and self.may_look
        return data

    def _take(self, frame: wire.Frame) -> None:
        if frame.kind == wire.CALLS:
            self.frames.extend(wire.open_packet(frame))
        else:
            self.frames.append(frame)

    def write(self, parts: list[bytes | bytearray], last: Callable[[], None] | None = None) -> None:
        """Write a frame whole; call `last` once the rest of the writing cannot be kept waiting any more."""
        with self.lock:
            if last is None:
                self.sure = 0  # it is not counted
            elif not self._has_room(parts):
                # All but the last byte: the parent has no answer before `last` was called, and cannot be handing
                # out the next call meanwhile.
                self._write_all([*parts[:-1], memoryview(parts[-1])[:-1]])
                parts = [parts[-1][-1:]]
                self.room.poll()
            if last is not None:
                last()
            self._write_all(parts)

    def _has_room(self, parts: list[bytes | bytearray]) -> bool:
        """Return whether writing these will not wait."""
        if len(parts) > 1:
            return False
        self.sure -= 1
        if self.sure >= 0 and len(parts[0]) < SMALL:
            return True
        self.sure = 0
        if not self.room.poll(0):
            return False
        if len(parts[0]) < SMALL:
            self.sure = SURE
        return True

    def _write_all(self, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        for part in parts:
            sent = os.write(self.fd, part)
            if sent < len(part):
                view = memoryview(part)[sent:]
                while view:
                    view = view[os.write(self.fd, view) :]
