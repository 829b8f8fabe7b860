"""The lock of a whole file, as the system has it: it dies with the process that has it, or with its last descriptor."""

from __future__ import annotations

import os

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# On Windows nobody else can read a part of a file that somebody has locked. So it is a byte far behind the text in the
# file; LockFileEx allows that.
LOCKED_BYTE = 1 << 30


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file. Return whether it was free."""
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            _change_on_windows(descriptor, "LK_NBLCK")
    except (BlockingIOError, PermissionError):  # the latter on Windows
        return False
    return True


def unlock(descriptor: int) -> None:
    """Give the lock back."""
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    else:
        _change_on_windows(descriptor, "LK_UNLCK")


def _change_on_windows(descriptor: int, how: str) -> None:
    msvcrt: Any = __import__("msvcrt")
    os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
    msvcrt.locking(descriptor, getattr(msvcrt, how), 1)
