"""What runs in the workers of the soak: each attempt marks its beginning and its end."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from procsched import TaskKilledError, TaskTimeoutError, current_run
from tests import faults, support

NOWHERE = os.devnull  # where the faults tell their pids

CRASHES: tuple[Callable[[], object], ...] = (faults.segfault, faults.abort, faults.kill_itself)
"""Beside those that exit."""

HANGS = faults.HANGS
GARBLERS = (*faults.BREAKS, *faults.HALVES)
CRUMBS = ("shell", "grandchild", "session_grandchild", "daemon")


@contextmanager
def marked(marks: str, part: str = "") -> Iterator[str]:
    """Write down that this attempt begins, and that it has come to its end without an exception."""
    run = current_run()
    assert run is not None
    tag = f"{run.id or run.name}{part} {run.run} {run.attempt}"
    support.tell(marks, "B", tag)
    yield tag
    support.tell(marks, "E", tag)


def act(marks: str, kind: str, until: int = 1, lock: str = "") -> str:
    """Do something of the kind.

    Args:
        until: the attempt from which on it is good.
        lock: a file that is held meanwhile; that another process holds it is marked as an overlap.
    """
    with marked(marks) as tag:
        held = _hold(marks, lock, tag) if lock else -1
        try:
            _do(kind, until, random.Random(tag))
        finally:
            if held >= 0:
                os.close(held)
    return tag


def _do(kind: str, until: int, dice: random.Random) -> None:
    run = current_run()
    assert run is not None
    if run.attempt < until or kind in ("hang", "soft", "leave", "dirty", "garble"):
        _misbehave(kind, dice)
    elif kind == "nap":
        time.sleep(dice.uniform(0.005, 0.1))
    elif kind == "print":
        print("x" * dice.randrange(10_000), flush=True)
    elif kind == "progress":
        for step in range(50):
            run.progress(step, 50, "on the way")
    elif kind == "file":
        _fill_file()
    elif kind == "any":
        _any(dice)


def _misbehave(kind: str, dice: random.Random) -> None:
    if kind == "fail":
        raise ValueError("as it was told")
    if kind == "crash":
        if dice.random() < 0.5:
            os._exit(dice.choice((0, 1, 5)))
        dice.choice(CRASHES)()
    if kind in ("hang", "soft"):
        dice.choice((faults.sleep, faults.spin) if kind == "soft" else HANGS)(NOWHERE)
    if kind == "garble":
        dice.choice(GARBLERS)(NOWHERE)
    if kind == "leave":
        left = dice.sample(CRUMBS, dice.randrange(1, len(CRUMBS)))
        faults.leave(left, NOWHERE, dice.choice(("return", "return", "raise", "exit", "hang")))
    if kind == "dirty":
        dice.choice((faults.leave_thread, faults.leave_mask, faults.leave_umask, _chdir))()


def _any(dice: random.Random) -> None:
    """What a recurring task does: mostly nothing."""
    lot = dice.random()
    if lot < 0.04:
        raise ValueError("now and then")
    if lot < 0.06:
        os._exit(3)
    if lot < 0.09:
        faults.sleep(NOWHERE)
    if lot < 0.3:
        time.sleep(dice.uniform(0.0, 0.05))


def _chdir() -> None:
    os.chdir("/")


def _hold(marks: str, lock: str, tag: str) -> int:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        support.tell(marks, "O", tag)
    return descriptor


def _fill_file() -> None:
    """Write to files without a name. A file system that is full is no failure of this."""
    for place in (tempfile.gettempdir(), "/dev/shm"):
        try:
            with tempfile.TemporaryFile(dir=place) as file:
                file.write(bytes(256 << 10))
        except OSError:
            continue


def echo(marks: str, data: bytes) -> tuple[int, bytes]:
    """Return a checksum, and the data the other way round."""
    with marked(marks):
        return zlib.crc32(data), data[::-1]


def item(marks: str, number: int) -> int:
    """Return the square of an item of a map; some fail, some hang, some die."""
    with marked(marks, f".{number}"):
        if number % 23 == 7:
            raise ValueError(number)
        if number % 41 == 8:
            time.sleep(faults.FOREVER)
        if number % 43 == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return number * number


def clean_up(marks: str) -> None:
    """Hang, and clean up when asked to stop."""
    with marked(marks):
        try:
            while True:
                time.sleep(faults.FOREVER)
        except (TaskTimeoutError, TaskKilledError):
            time.sleep(0.01)
            raise


def leave_by(marks: str, how: str) -> Any:
    """Leave in a way that is no return."""
    with marked(marks):
        if how == "exit":
            sys.exit(3)
        if how == "interrupt":
            raise KeyboardInterrupt
        if how == "thread":
            threading.Thread(target=os._exit, args=(4,)).start()
            time.sleep(faults.FOREVER)
        return how
