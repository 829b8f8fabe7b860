"""What the kernel holds of a run's limits in the worker: soft limits, set when it begins and put back when it is over.

Only soft ones, so that they can be put back; the worker is asked after each such run whether they were (see
`Surroundings.have_changed`), and is not used again otherwise. What they start inherits them.
"""

from __future__ import annotations

import _pickle as pickle
import errno
import math
import mmap
import resource
import sys

from procsched._core import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class LargeResultError(Exception):
    """The result of a run takes more bytes than it may."""


class Limiting:
    """The limits of one run, as the parent has sent them.

    Attributes:
        number: of the call.
        flags, third: what its answer has of that one of these limits was exceeded, see `wire.py`; else 0.
    """

    def __init__(self, frame: wire.Frame) -> None:
        self.number = frame.number
        self.flags = self.third = 0
        self._cpu_seconds, self._open_files, self._file_size, self._result, self._words = pickle.loads(
            frame.payload
        )
        self._before: list[tuple[int, tuple[int, int]]] = []

    def begin(self, used: resource.struct_rusage) -> None:
        """Set the soft limits of the kernel; `used` is what this process has used so far."""
        if self._cpu_seconds is not None:
            # Whole seconds, and of this process alone: should the parent, which counts the tree, be stuck.
            cpu = used.ru_utime + used.ru_stime
            self._lower(resource.RLIMIT_CPU, math.ceil(cpu + self._cpu_seconds) + 1)
        if self._open_files is not None:
            self._lower(resource.RLIMIT_NOFILE, self._open_files)
        if self._file_size is not None:
            self._lower(resource.RLIMIT_FSIZE, self._file_size)

    def _lower(self, which: int, value: int) -> None:
        soft, hard = resource.getrlimit(which)
        value = min(value, sys.maxsize)  # what is more no kernel takes, nor reaches
        lowest = min((each for each in (value, soft, hard) if each != resource.RLIM_INFINITY), default=value)
        if lowest != soft:
            resource.setrlimit(which, (lowest, hard))
            self._before.append((which, (soft, hard)))

    def lift(self) -> None:
        """Put them back. Where a run has lowered a hard one they cannot be: then its worker is not used again."""
        while self._before:
            which, pair = self._before.pop()
            try:
                resource.setrlimit(which, pair)
            except (OSError, ValueError):
                continue

    def check_result(self, size: int) -> None:
        """Refuse a result of so many bytes where that is too much.

        Raises:
            LargeResultError: it is not sent.
        """
        if self._result is not None and size > self._result:
            self.flags, self.third = wire.LARGE, size
            raise LargeResultError(f"the result takes {size} bytes")

    def note(self, error: BaseException) -> str:
        """Return what to add to the error of a run that was refused something, which its limit may be the reason for.

        The exception gets it as a note. Of descriptors and file sizes it is the reason: what the kernel says of those
        says nothing else.
        """
        name = ""
        if issubclass(type(error), MemoryError):
            name = "memory"
        elif issubclass(type(error), OSError):
            name = _OF_ERRNO.get(_errno(error) or 0, "")
        text: str = self._words.get(name, "")
        if not text:
            return ""
        if name in wire.REFUSED_LIMITS:
            self.flags, self.third = wire.REFUSED, wire.REFUSED_LIMITS.index(name)
        try:
            error.add_note(text)
        except BaseException:  # a user's exception may refuse anything
            return f" ({text})"
        return f" ({text})"


_errno: Any = vars(OSError)["errno"].__get__  # whatever a user's class has made of it
_OF_ERRNO = {errno.EMFILE: "open_files", errno.EFBIG: "file_size", errno.ENOMEM: "memory"}


def resident() -> int:
    """Return the bytes of memory that this process has now, 0 where nobody can say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0
