"""What the measured pools run: importable by every child, however it was started. Imports as little as it can."""

import functools
import os
import signal
import time

SLOT_BYTES = 64  # of a `Board`: one line of text for each job


def noop(*_args):
    """Do nothing."""


def number(value):
    """Return the argument."""
    return value


def now():
    """Return the wall time at which the action began."""
    return time.time()


def pid_after(seconds):
    """Return the pid of the process, after a while: so that every worker of a pool gets one."""
    time.sleep(seconds)
    return os.getpid()


def nap(seconds):
    """Take so long, and no CPU."""
    time.sleep(seconds)


def note(path, slot):
    """Write pid and steady time into a slot of a `Board`."""
    fd = os.open(path, os.O_WRONLY)
    os.pwrite(fd, f"{os.getpid()} {time.monotonic()!r}\n".encode().ljust(SLOT_BYTES), slot * SLOT_BYTES)
    os.close(fd)


def hang(path, slot, how):
    """Tell the board that it has begun, then never return.

    Args:
        how: "loop" in Python; "sleep"; a loop that "ignore"s or "block"s every signal that can be.
    """
    if how == "ignore":
        for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try:
                signal.signal(signum, signal.SIG_IGN)
            except (OSError, ValueError):  # the C library keeps two for itself
                continue
    elif how == "block":
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    note(path, slot)
    while how == "sleep":
        time.sleep(1000)
    while True:
        pass


def die_or(value, dies):
    """Return `value`, or end by SIGKILL."""
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def square(value):
    """Return the square of a small number."""
    return value * value


@functools.lru_cache(maxsize=1)
def made(kind, size):
    """Return so many bytes as an "array" or as "bytes", the same each time."""
    import numpy

    array = numpy.arange(size, dtype=numpy.uint8)
    return array if kind == "array" else array.tobytes()


def look(data):
    """Look at every page of the data."""
    return sum(map(int, data[::4096])) if isinstance(data, bytes) else int(data[::4096].sum())
