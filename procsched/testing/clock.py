"""A clock that moves only when it is told to, so that a test of twelve hours takes milliseconds."""

from __future__ import annotations

import math
import threading

from procsched import _forks
from procsched._core.checks import finite_seconds, unix_seconds, waiting_seconds
from procsched.clock import real_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime, timedelta

ROUNDING = 1e-6  # seconds: a waiter whose time is this close looks for itself whether it has come


class _Elapsed:
    """A sum of seconds that is rounded once, not at each addition: ten times 0.1 is 1.0."""

    __slots__ = ("rest", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.rest = 0.0  # what `value` is short of the true sum

    def add(self, seconds: float) -> None:
        total = math.fsum((self.value, self.rest, seconds))
        self.rest = math.fsum((self.value, self.rest, seconds, -total))
        self.value = total


class _Waiter:
    """A thread parked in `FakeClock.wait`."""

    __slots__ = ("condition", "until")

    def __init__(self, condition: threading.Condition, until: float) -> None:
        self.condition = condition
        self.until = until  # steady seconds; infinite for no limit


class FakeClock:
    """A clock for tests. Time stands still until `advance`, `step_wall` or `suspend` moves it.

    What is awaited on it never sleeps for real. The methods that move it return when those who wait have
    been notified and the watchers have been called; they take the conditions of the waiters one after
    another, so call them with no lock held that a waiter or a watcher needs.

    Args:
        start: wall time at the beginning, UNIX seconds or an aware datetime. Steady time begins at 0.0.
    Raises:
        ValidationError: `start` is neither, or a naive datetime.
    Thread safety: call from anywhere.
    """

    watches_steps = True

    def __init__(self, start: float | datetime = 0.0) -> None:
        # `_lock` guards the times, the waiters and the watchers. A waiter takes it with its own condition
        # held, so whoever holds it must never take a condition, nor call user code.
        self._renew_lock()
        self._start = unix_seconds("start", start)  # guarded by _lock
        self._steady = _Elapsed()  # guarded by _lock
        self._asleep = _Elapsed()  # guarded by _lock
        self._steps = 0  # calls of step_wall; guarded by _lock
        self._parked: dict[_Waiter, None] = {}  # guarded by _lock
        self._watchers: dict[object, Callable[[], None]] = {}  # guarded by _lock
        self._last_look = threading.local()
        _forks.note(self)

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()  # reentrant for a finalizer that interrupts a holder
        self._parked_changed = threading.Condition(self._lock)

    def after_fork(self) -> None:
        """In a fork of the process: a thread that is not there may have held the lock, and nobody is parked."""
        self._renew_lock()
        self._parked.clear()

    def now(self) -> float:
        """Return wall time in UNIX seconds."""
        with self._lock:
            self._look_locked()
            return self._start + self._steady.value

    def monotonic(self) -> float:
        """Return steady seconds since the clock was made; time asleep counts."""
        with self._lock:
            self._look_locked()
            return self._steady.value

    def awake(self) -> float:
        """Return steady seconds since the clock was made, without time asleep."""
        with self._lock:
            self._look_locked()
            return self._steady.value - self._asleep.value

    def advance(self, seconds: float | timedelta) -> None:
        """Let `seconds` pass for all three times.

        Raises:
            ValidationError: negative, or not finite.
        """
        self._let_pass(finite_seconds("seconds", seconds), asleep=0.0)

    def suspend(self, seconds: float | timedelta) -> None:
        """Let the system sleep for `seconds`: wall and steady time move, `awake` does not.

        Raises:
            ValidationError: negative, or not finite.
        """
        amount = finite_seconds("seconds", seconds)
        self._let_pass(amount, asleep=amount)

    def _let_pass(self, seconds: float, *, asleep: float) -> None:
        with self._lock:
            self._steady.add(seconds)
            self._asleep.add(asleep)
            self._look_locked()
            due = self._take_due_locked()
        self._tell(due)

    def step_wall(self, seconds: float | timedelta) -> None:
        """Set the wall clock forward by `seconds`, or back where negative; nothing else moves.

        Everybody who waits on the clock wakes up, and may look again for a wall time.

        Raises:
            ValidationError: not finite.
        """
        amount = finite_seconds("seconds", seconds, minimum=-math.inf)
        with self._lock:
            self._start += amount
            self._steps += 1
            self._look_locked()
            due = list(self._parked)
            self._parked.clear()
        self._tell(due)

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait, with `condition` held, until it is notified or the clock has passed `seconds`.

        The seconds count from the calling thread's last look at this clock: where the clock was moved
        between that look and this call, the move is not missed. As with any condition a wait may end early;
        who waits looks again.

        Args:
            condition: held by the caller; whatever its lock is.
            seconds: of this clock; None for no limit.
        Raises:
            RuntimeError: the caller does not hold `condition`.
        """
        with self._lock:
            steady = self._steady.value
            seen, steps = getattr(self._last_look, "at", (steady, self._steps))
            until = math.inf if seconds is None else seen + seconds
            waiter = None
            # `seen == steady`: a rounding that is left over must not end each wait at once, for ever.
            margin = 0.0 if seen == steady else ROUNDING
            if until > steady + margin and (steps == self._steps or seconds is None):
                waiter = _Waiter(condition, until)
                self._parked[waiter] = None
                self._parked_changed.notify_all()
        if waiter is None:
            condition.wait(0)  # lets others have the lock for a moment, as a real wait would
            return
        try:
            condition.wait()
        finally:
            with self._lock:
                self._parked.pop(waiter, None)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after each move of the clock, until the function that is returned is called.

        It is called in the thread that moved the clock, when the waiters have been woken, with no lock of
        the clock held. What it raises reaches that thread.
        """
        token = object()
        with self._lock:
            self._watchers[token] = callback

        def close() -> None:
            with self._lock:
                self._watchers.pop(token, None)

        return close

    @property
    def waiters(self) -> int:
        """How many threads are parked in `wait` now. One that was notified counts until it runs again."""
        with self._lock:
            return len(self._parked)

    def wait_for_waiters(self, n: int = 1, timeout: float | timedelta | None = 10.0) -> bool:
        """Wait until at least `n` threads are parked in `wait`.

        Args:
            n: how many.
            timeout: real seconds; None for no limit.
        Returns:
            False when the time was up first.
        """
        end = None if timeout is None else real_seconds() + waiting_seconds("timeout", timeout)
        with self._lock:
            while len(self._parked) < n:
                left = None if end is None else end - real_seconds()
                if left is not None and left <= 0.0:
                    return False
                self._parked_changed.wait(left)
            return True

    def _look_locked(self) -> None:
        self._last_look.at = (self._steady.value, self._steps)

    def _take_due_locked(self) -> list[_Waiter]:
        limit = self._steady.value + ROUNDING
        due = [waiter for waiter in self._parked if waiter.until <= limit]
        for waiter in due:
            del self._parked[waiter]
        return due

    def _tell(self, due: list[_Waiter]) -> None:
        # A waiter holds its condition from before it was parked until it waits, so this cannot come between.
        for condition in {waiter.condition: None for waiter in due}:
            with condition:
                condition.notify_all()
        with self._lock:
            watchers = list(self._watchers.values())
        for callback in watchers:
            callback()

    def __repr__(self) -> str:
        return f"<FakeClock now={self._start + self._steady.value!r} monotonic={self._steady.value!r}>"
