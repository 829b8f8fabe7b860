"""Clocks: the system's, and what makes one of anything that can tell the time.

Wall time is for schedules that name an instant, steady time for delays and durations, and steady time
without time asleep for the timeouts of runs. This module is the only one that reads the system's clocks.
"""

from __future__ import annotations

import functools
import math
import sys
import threading
import time

from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from procsched.protocols import Clock

    class FullClock(Clock, Protocol):
        """What the scheduler works with: a `Clock` with everything that is optional there."""

        @property
        def watches_steps(self) -> bool:
            """Whether `watch` tells of steps of the wall clock."""

        def awake(self) -> float:
            """Return steady seconds that leave out time asleep, where the clock can say so."""

        def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
            """Call `callback` after the clock was set or moved; return what ends that."""


real_seconds = time.monotonic
"""Steady seconds of the real world: for the limits of waits that no injected clock rules."""


def _steady_clock() -> Callable[[], float]:
    """Return a reader of steady seconds that count time asleep, where the system has one."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        number = time.CLOCK_BOOTTIME
    elif sys.platform == "darwin":
        number = time.CLOCK_MONOTONIC  # goes on while asleep, unlike time.monotonic there (clock_gettime(3))
    else:
        return time.monotonic
    try:
        time.clock_gettime(number)
    except OSError:  # a kernel older than the headers
        return time.monotonic
    return functools.partial(time.clock_gettime, number)


_steady = _steady_clock()


class SystemClock:
    """The clocks of this system. The scheduler's default.

    Thread safety: call from anywhere.
    """

    def now(self) -> float:
        """Return wall time in UNIX seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return steady seconds. Time asleep counts on Linux, macOS and Windows; elsewhere it may not."""
        return _steady()

    def awake(self) -> float:
        """Return steady seconds that leave out time asleep, on Linux and macOS; on Windows it counts."""
        return time.monotonic()

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait, with `condition` held, until it is notified or `seconds` have passed; None: for ever.

        Time asleep does not count towards `seconds`: a watcher is called when the system wakes up.
        """
        # Longer waits overflow in the C library; who waits looks at the clock again anyway.
        condition.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))

    @property
    def watches_steps(self) -> bool:
        """Whether `watch` works here: on Linux, with timer descriptors."""
        from procsched import _timerfd  # at the first question: this module is loaded with `Scheduler`

        return _timerfd.available()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` whenever the wall clock was set or the system woke up, without polling.

        It is called from the thread "procsched-clock", which all watchers of this process share, with no
        lock held. An exception is logged and goes no further. What happened before this call is not told.
        In a fork of this process nobody watches.

        Returns:
            A function that ends the watch, and may be called twice. Once it has returned no call begins
            any more, and with the last watcher the thread has ended; where a callback itself called it, the
            thread ends after that callback. It may wait for a callback that is going on, so call it with no
            lock held that a callback takes.
        """
        if not self.watches_steps:
            return _nothing
        from procsched._clock_watch import watch_clock

        return watch_clock(callback)

    def __repr__(self) -> str:
        return "SystemClock()"


def _nothing() -> None:
    pass


_REQUIRED = ("now", "monotonic", "wait")  # the protocol `Clock`
_OPTIONAL = ("awake", "watch", "watches_steps")


class AdaptedClock:
    """Makes a whole clock of an object that lacks some methods, or of a callable.

    `monotonic` is the object's `now` where it has none, and `awake` its `monotonic`. `wait` without one of
    the object's own waits at most that many real seconds: who moves the clock calls `Scheduler.wake()`.

    Thread safety: as the object's own.
    """

    def __init__(self, source: Any) -> None:
        self.source = source
        self.now: Callable[[], float] = getattr(source, "now", source)
        self.monotonic: Callable[[], float] = getattr(source, "monotonic", self.now)
        self.awake: Callable[[], float] = getattr(source, "awake", self.monotonic)
        self.wait: Callable[[threading.Condition, float | None], None] = getattr(
            source, "wait", SystemClock().wait
        )
        self.watch: Callable[[Callable[[], None]], Callable[[], None]] = getattr(
            source, "watch", lambda _callback: _nothing
        )
        self.watches_steps = bool(getattr(source, "watches_steps", hasattr(source, "watch")))

    def __repr__(self) -> str:
        return f"AdaptedClock({self.source!r})"


def adapt_clock(clock: Any) -> FullClock:
    """Return a clock with every method the scheduler uses, made of what the user gave.

    Args:
        clock: None for the system's; an object with the methods of `Clock`; one with only `now()`, or a
            plain callable such as `time.time`, that gives UNIX seconds.
    Returns:
        `clock` itself where it lacks nothing, else an `AdaptedClock`.
    Raises:
        ValidationError: none of these, or its time is no finite number.
    """
    if clock is None:
        return SystemClock()
    if isinstance(clock, type):
        raise ValidationError(f"clock must be an object, not the class {clock.__name__}: call it first")
    if not callable(getattr(clock, "now", clock)):
        raise ValidationError(
            f"clock must have now(), monotonic() and wait(), or only now(), or be a callable that returns "
            f"UNIX seconds; {type(clock).__name__} {clock!r} is none of these"
        )
    whole = all(hasattr(clock, name) for name in _REQUIRED + _OPTIONAL)
    adapted: FullClock = clock if whole else AdaptedClock(clock)
    for name in ("now", "monotonic", "awake"):
        _check_reading(clock, name, getattr(adapted, name))
    return adapted


def _check_reading(clock: object, name: str, read: Callable[[], object]) -> None:
    try:
        value = read()
    except Exception as error:
        raise ValidationError(
            f"clock {clock!r} cannot be read: {name}() raised {type(error).__name__}: {error}"
        ) from error
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValidationError(
            f"clock must give finite numbers of seconds, but {name}() of {clock!r} gave {value!r}"
        )
