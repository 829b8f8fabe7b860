"""The worker's end of the socket that it shares with the parent."""

from __future__ import annotations

import _thread
import os
import select
from collections import deque

from procsched._core import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SMALL = 512  # bytes of a small frame
SURE = 32


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
            data = os.read(self.fd, 1 << 16)
            if not data:
                return None
            for frame in decoder.feed(data):
                self._take(frame)
        return self.frames.popleft()

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
