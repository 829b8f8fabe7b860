"""The timer thread: it makes a pass, and waits on the clock until the next thing is due."""

from __future__ import annotations

import logging
import threading
import time

from procsched._core.failures import describe
from procsched._core.planning import wait_seconds
from procsched._logs import say
from procsched.clock import real_seconds
from procsched.scheduler.staging import StagingDriver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FIRST_BACKOFF, LAST_BACKOFF = 0.05, 5.0  # seconds, after the timer's own failures
LEAD = 0.0001  # seconds by which the timer wakes too early: so long a thread may take to be running again
LONGEST_STALL = 3600.0  # seconds, between looks at a clock that stands still and cannot tell of moves


class TimedDriver(StagingDriver):
    """The driver with its timer thread."""

    _timer: threading.Thread | None = None
    _timer_inside: Mapping[str, int] = {}  # the timer's own part of `_inside`
    # For `health`, which reads these without a lock.
    _timer_failing: str | None = None
    _timer_failing_since = 0.0  # steady time

    def _start_timer(self) -> None:
        timer = threading.Thread(target=self._run_timer, name="procsched-timer", daemon=True)
        timer.start()
        self._timer = timer  # only one that runs: the shutdown joins it

    def timer_in_user_code(self) -> bool:
        """Return whether the timer waits for what it has called: a schedule, a log handler."""
        return self._timer_inside.get("depth", 0) > 0

    def _run_timer(self) -> None:
        from procsched import _system  # here, so that the import of a scheduler stays quick

        _system.sharpen_timers()
        self._timer_inside = vars(self._inside)
        failures = 0
        stall = 0.0
        while True:
            self._timer_since = real_seconds()
            try:
                if not self._pass():
                    stall = self._wait_for_work(stall)
                    if stall < 0.0:
                        return
                failures = 0
                self._timer_failing = None
            except BaseException as error:
                # Whatever it is, a SystemExit of a user's schedule too, the timer goes on: else everything
                # would stand still in silence.
                failures += 1
                text = f"the timer failed {failures} times: {describe(error)}"
                if failures == 1:
                    self._timer_failing_since = real_seconds()
                self._timer_failing = text
                say(logging.ERROR, "%s", text, error=error)
                self._note(text)
                with self._lock:
                    if self._timer_stop:
                        return
                    self._timer_since = 0.0
                    self._changed.wait(min(FIRST_BACKOFF * 2 ** min(failures, 10), LAST_BACKOFF))

    def _wait_for_work(self, stall: float) -> float:
        """Wait until something is due or changed. Return the new `stall`, negative at the end.

        Args:
            stall: seconds waited in vain because the clock did not move meanwhile.
        """
        deadline = None if self._real else self.pool.next_deadline()
        with self._lock:
            if self._timer_stop:
                # The last run may have left a question since the last pass: the shutdown waits for the answer.
                return stall if self.engine.questions else -1.0
            wall, line = self._look_locked()
            self._hand_over_locked()
            if self._stale:
                self._stale = False
                return stall
            before = self.clock.monotonic()
            seconds = self._seconds_to_wait(wall, line, deadline)
            if seconds is not None:
                seconds = max(seconds - LEAD, 0.0) if self._real else max(seconds, stall)
            if seconds != 0.0 or not self._real:
                self._timer_waits = True
                # Of an injected clock nobody knows when it should have come back.
                self._timer_since = real_seconds() + seconds if self._real and seconds is not None else 0.0
                try:
                    self.clock.wait(self._changed, seconds)
                finally:
                    self._timer_waits = False
                    self._timer_since = real_seconds()
                if seconds is None or self._stale or self._real or self.clock.watches_steps:
                    return 0.0
                # A clock that cannot tell of its moves and stands still: looking again and again is useless.
                stopped = self.clock.monotonic() == before
                return min(max(2.0 * seconds, FIRST_BACKOFF), LONGEST_STALL) if stopped else 0.0
        time.sleep(0)  # it is due at any moment: let others run, and look again
        return 0.0

    def _seconds_to_wait(self, wall: float, line: float, deadline: float | None) -> float | None:
        due = self.engine.due
        if self.engine.closing:
            seconds = None
        else:
            steady, at_wall = due.next_due(True), due.next_due(False)
            seconds = wait_seconds(
                None if steady is None else steady - line, None if at_wall is None else at_wall - wall
            )
        if deadline is not None:
            left = max(0.0, deadline - self.clock.awake())
            seconds = left if seconds is None else min(seconds, left)
        trouble = self._seconds_to_trouble()
        if trouble is not None:
            seconds = trouble if seconds is None else min(seconds, trouble)
        return seconds
