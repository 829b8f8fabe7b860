"""Timer descriptors of Linux (timerfd_create(2)): a time that one can wait for with poll(2).

Python has them from 3.13 on; before, they are called through ctypes, which is loaded at the first call.
"""

from __future__ import annotations

import os
import struct
import sys
import time

from procsched._libc import libc
from procsched._system import lift, offers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TIMER_ABSTIME = 1  # linux/timerfd.h
TIMER_CANCEL_ON_SET = 2
# TFD_CLOEXEC and TFD_NONBLOCK have these values.
FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)

FARTHEST = 9e9  # seconds: what counts nanoseconds in 63 bits takes no more

_SPEC = struct.Struct("@llll")  # struct itimerspec: interval and value, seconds and nanoseconds each
_DISARMED = _SPEC.pack(0, 0, 0, 0)

_works: bool | None = None  # what the first probe found


def available() -> bool:
    """Return whether this system has timer descriptors; tried once, by making one."""
    global _works
    if not offers("timerfd"):
        return False
    if _works is None:
        try:
            os.close(timerfd_create(time.CLOCK_MONOTONIC))
            _works = True
        except (OSError, AttributeError):  # an old kernel, a filter on system calls, another C library
            _works = False
    return _works


def timerfd_create(clock: int) -> int:
    """Return a new timer descriptor on `clock` (such as `time.CLOCK_REALTIME`), disarmed.

    It is not inherited by an exec, and reading it never blocks.

    Raises:
        OSError: the kernel refuses.
        AttributeError: the C library has no such call.
    """
    if hasattr(os, "timerfd_create"):
        fd = int(os.timerfd_create(clock, flags=FLAGS))
    else:
        fd = int(_checked(libc().timerfd_create(clock, FLAGS), "timerfd_create"))
    return lift(fd)


def timerfd_arm(fd: int, at: float, *, absolute: bool = True, cancel_on_set: bool = False) -> None:
    """Let `fd` become readable at `at`, instead of what it was armed for before.

    Args:
        fd: from `timerfd_create`.
        at: seconds of the descriptor's clock, or from now without `absolute`; one that has passed
            makes it readable at once, and one that is centuries away as late as the kernel can say.
        absolute: whether `at` is an instant.
        cancel_on_set: on CLOCK_REALTIME with `absolute`: become readable also when the clock is set.
    Raises:
        OSError: with ECANCELED the clock was set since the last time; it is armed all the same.
    Thread safety: call from anywhere.
    """
    flags = (TIMER_ABSTIME if absolute else 0) | (TIMER_CANCEL_ON_SET if cancel_on_set else 0)
    at = min(at, FARTHEST)
    seconds = int(at)
    nanoseconds = int((at - seconds) * 1e9)
    if at <= 0.0 or (seconds == 0 and nanoseconds == 0):
        seconds, nanoseconds = 0, 1  # zero would disarm it
    _settime(fd, flags, seconds, nanoseconds)


def timerfd_disarm(fd: int) -> None:
    """Let `fd` stay unreadable until it is armed again."""
    _settime(fd, 0, 0, 0)


def timerfd_read(fd: int) -> int:
    """Return how often `fd` has expired since the last look; 0 when it has not.

    Raises:
        OSError: with ECANCELED the clock was set; the next `timerfd_arm` makes it ready for another time.
    """
    try:
        return int.from_bytes(os.read(fd, 8), sys.byteorder)
    except BlockingIOError:
        return 0


def _settime(fd: int, flags: int, seconds: int, nanoseconds: int) -> None:
    if hasattr(os, "timerfd_settime_ns"):
        os.timerfd_settime_ns(fd, flags=flags, initial=seconds * 1_000_000_000 + nanoseconds)
        return
    spec = _SPEC.pack(0, 0, seconds, nanoseconds) if seconds or nanoseconds else _DISARMED
    _checked(libc().timerfd_settime(fd, flags, spec, None), "timerfd_settime")


def _checked(answer: Any, call: str) -> Any:
    if answer < 0:
        import _ctypes  # loaded, so that no descriptor is needed to say that none is left

        number = _ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)
    return answer
