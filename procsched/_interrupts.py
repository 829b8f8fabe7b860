"""What signal handlers need of us. They run in the main thread, between any two steps of ours, and may raise there.

A `with` statement over a lock of C is safe from that; a context manager written in Python is not, nor is anything that
takes two steps. So the main thread leaves what must be whole to a thread of its own (`apart`), waits on what has no
lock (`Latch`), or mends what was torn before it lets go of the lock (`ProcessPool.whole`). What comes in the midst of a
holder of a lock, and must not wait for it, is told by `owner_check`; the locks are reentrant for that.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Bell(Protocol):
        """What wakes a thread that waits for more than a latch."""

        def ring(self) -> None:
            """Wake it."""


class Latch:
    """An event that has no lock, so that a handler may use one that the thread it interrupts is using."""

    __slots__ = ("_gates", "bell", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self.bell: Bell | None = None  # of one who waits for something else as well
        self._gates: deque[_thread.LockType] = deque()  # of those who wait; appends and pops are atomic

    def set(self) -> None:
        """Let everybody through, for good. Where it was interrupted, the next one goes on."""
        self.is_set = True
        bell = self.bell
        if bell is not None:
            bell.ring()
        # A tuple is made behind the iterator, which may start a collection; a finalizer that runs in it lets others
        # append meanwhile, and that is an error then. A list is made before it.
        for gate in list(self._gates):
            with contextlib.suppress(RuntimeError):  # it was open already
                gate.release()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most so many seconds. False when the time was up."""
        gate = _thread.allocate_lock()
        gate.acquire()
        self._gates.append(gate)
        if not self.is_set:  # looked at after the gate is there for `set` to open
            gate.acquire(timeout=-1 if seconds is None else min(max(0.0, seconds), threading.TIMEOUT_MAX))
        return self.is_set


def owner_check(lock: threading.RLock) -> Callable[[], bool]:
    """Return what says whether the calling thread holds `lock`: who asks then comes in the midst of ourselves.

    A signal handler comes anywhere in the main thread, a finalizer wherever the garbage collector runs.
    Source: CPython, Lib/threading.py, `Condition`, which relies on the same method of locks.
    """
    check: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]
    return check


def apart(function: Callable[[], object]) -> None:
    """Call `function` where no signal handler interrupts it, and return when it is done. What it raises is raised here.

    In the main thread that is a thread for this one call. A handler that raises meanwhile is heard when the call is
    done.
    """
    if threading.current_thread() is not threading.main_thread():
        function()
        return
    done = Latch()
    turn = [None]  # whoever takes it out makes the call, or sees to it that it is not made; a pop is atomic
    raised: list[BaseException] = []

    def call() -> None:
        try:
            turn.pop()
            function()
        except BaseException as error:
            raised.append(error)
        finally:
            done.set()

    try:
        # Not by `threading.Thread`, whose `start` waits for the thread and takes locks.
        _thread.start_new_thread(call, ())
    except BaseException as error:
        try:
            turn.pop()
        except IndexError:  # a handler, behind the start: the call is on its way
            raised.append(error)
        else:
            if not isinstance(error, RuntimeError):
                raise
            function()  # the system has no thread left: let the call itself say so
            return
    while not done.is_set:
        try:
            done.wait()
        except BaseException as error:
            raised.append(error)
    try:
        if raised:
            raise raised[0]
    finally:
        raised.clear()  # no cycle through the traceback
