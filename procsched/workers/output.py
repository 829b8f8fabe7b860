"""What a worker writes beside its answers: captured output and stacks, through a pipe of its own."""

from __future__ import annotations

import os

from procsched.workers import verdict as verdicts

OUTPUT_KEPT = 64 << 10  # bytes of captured output that a record keeps, the newest
_READS = 16  # so that one worker that floods cannot starve the others


class Output:
    """The parent's end of that pipe, and the newest of what came through it. On the I/O thread, or with the lock."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.kept = bytearray()
        self.truncated = False
        # Where in `kept` a stack was asked for, after which the run could go on; -1 for nowhere.
        self.asked_at = -1
        self.ended = False
        self.written = 0  # bytes that the run has written, its stack not counted
        self._split: tuple[int, bytes, str | None] | None = None  # of how many bytes, and into what

    def read(self) -> None:
        """Read what is there, without blocking."""
        try:
            for _ in range(_READS):
                data = os.read(self.fd, 1 << 16)
                if not data:
                    self.ended = True
                    return
                self.kept += data
                if self.asked_at < 0:
                    self.written += len(data)
                if len(self.kept) > 2 * OUTPUT_KEPT:
                    self.asked_at = max(-1, self.asked_at - (len(self.kept) - OUTPUT_KEPT))
                    del self.kept[:-OUTPUT_KEPT]
                    self.truncated = True
        except BlockingIOError:
            return

    def mark(self) -> None:
        """A stack is asked for now: what comes next is that."""
        self.read()
        self.asked_at = len(self.kept)

    @property
    def stack_is_complete(self) -> bool:
        """Whether a stack has come to its end."""
        return verdicts.stack_is_complete(self.kept, self.asked_at)

    def prepare(self) -> None:
        """Do the work of `take` for what has come so far, while there is time."""
        self.read()
        self._split = (len(self.kept), *verdicts.split_stack(bytes(self.kept), self.asked_at))

    def take(self) -> tuple[bytes, str | None, bool]:
        """Return output, stack and whether output was lost, of the run that ended, and begin anew."""
        self.read()
        if self._split is None or self._split[0] != len(self.kept) or self.truncated:
            self.prepare()
        assert self._split is not None
        _size, output, stack = self._split
        self._split = None
        truncated = self.truncated or len(output) > OUTPUT_KEPT
        self.kept.clear()
        self.truncated = False
        self.asked_at = -1
        return output[-OUTPUT_KEPT:], stack, truncated
