"""Schedules on the steady clock: a pause between runs, or a grid of slots that never drifts."""

from __future__ import annotations

import math

from procsched._core.checks import finite_seconds, member_of
from procsched._core.frozen import frozen
from procsched._core.models import OverrunPolicy
from procsched.errors import ValidationError
from procsched.schedules.base import OneByOne, slot_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta
    from typing import ClassVar, Final

    from procsched._core.models import ExecutionRecord

# Seconds. A float of today's UNIX time has steps of a quarter of a microsecond, so slots that are closer
# together than this could not be told apart.
SHORTEST_PERIOD: Final = 1e-6


@frozen
class FixedDelay(OneByOne):
    """The next run comes `delay` steady seconds after the end of the last one, retries included.

    Args:
        delay: seconds or a timedelta, at least 0; with 0 the next run is due as soon as the last one ended.
        start_delay: seconds or a timedelta before the first run.
    Raises:
        ValidationError: a value is negative, not finite or of another type; the message names it.
    """

    delay: float
    start_delay: float = 0.0
    __checks__: ClassVar = {"delay": finite_seconds, "start_delay": finite_seconds}
    # Not a field: tells the scheduler to give `now` and record times on the steady line.
    steady = True
    if TYPE_CHECKING:

        def __init__(self, delay: float | timedelta, start_delay: float | timedelta = 0.0) -> None: ...

    def first_run(self, now: float) -> float:
        """Return `now` + `start_delay`, in seconds on the steady line."""
        return now + self.start_delay

    def next_run(self, record: ExecutionRecord, now: float) -> float:
        """Return the end of the run + `delay`, whatever its outcome, in seconds on the steady line."""
        return record.finished_at + self.delay


@frozen
class FixedRate:
    """A run at each slot of a grid anchor + k * `period`, whatever latency, retries and run times do.

    The anchor is the first slot. The schedule is a value and does not remember it: `next_run` and `passed`
    count from the slot they are given, with one multiplication and no accumulated sum. Where `period` is a
    whole number of seconds that is exact for ever; for others (0.1) each slot is rounded to the float nearest
    to it, and `aligned` takes that rounding away for whoever knows the anchor.

    Args:
        period: seconds or a timedelta, at least a microsecond.
        on_overrun: SKIP goes on with the next slot in the future, CATCH_UP with the next slot even if it
            has passed; a member of `OverrunPolicy` or its value.
        start_delay: seconds or a timedelta before the first slot.
    Raises:
        ValidationError: a value is out of range or of a wrong type; the message names the parameter.
    """

    period: float
    on_overrun: OverrunPolicy = OverrunPolicy.SKIP
    start_delay: float = 0.0
    __checks__: ClassVar = {"start_delay": finite_seconds}
    # Not a field: tells the scheduler to give `now` and record times on the steady line.
    steady = True
    if TYPE_CHECKING:

        def __init__(
            self,
            period: float | timedelta,
            on_overrun: OverrunPolicy | str = OverrunPolicy.SKIP,
            start_delay: float | timedelta = 0.0,
        ) -> None: ...

    def __post_init__(self) -> None:
        put = object.__setattr__
        period = finite_seconds("period", self.period, above=True)
        if period < SHORTEST_PERIOD:
            raise ValidationError(f"period must be at least a microsecond, not {self.period!r} seconds")
        put(self, "period", period)
        put(self, "on_overrun", member_of(OverrunPolicy, "on_overrun", self.on_overrun))

    def first_run(self, now: float) -> float:
        """Return `now` + `start_delay`, in seconds on the steady line: the anchor of the grid."""
        return now + self.start_delay

    def next_run(self, record: ExecutionRecord, now: float) -> float:
        """Return the slot that follows the run of `record`, in seconds on the steady line.

        It counts from `record.due_at`, or from `started_at` where that is None. CATCH_UP: the very next slot,
        which may have passed (see `passed` for all of them). SKIP: the first slot strictly later than `now`,
        and later than the run's own slot.
        """
        slot = slot_of(record)
        if self.on_overrun is OverrunPolicy.CATCH_UP or now < slot + self.period:
            return slot + self.period
        later = slot + (self._steps(slot, now) + 1) * self.period
        # So far from the slot a float cannot hold a period any more; "later than now" still holds.
        return later if later > now else math.nextafter(now, math.inf)

    def passed(self, after: float, until: float, newest: int) -> tuple[list[float], int]:
        """Return the slots d with `after` < d <= `until`: the newest ones, and how many in all.

        Args:
            after: a slot, in seconds on the steady line. The grid is laid through it, so the first slot that
                can have passed is `after` + period, the k-th `after` + k * period.
            until: seconds on the steady line, inclusive; nothing passed where it is not later than `after`.
            newest: at most so many slots are listed; 0 only counts.
        Returns:
            The newest slots, oldest first, and the number of all, listed or not.
        Thread safety: pure, call from anywhere. By arithmetic: the cost does not depend on the time passed.
        """
        total = self._steps(after, until) if until > after else 0
        oldest = total - min(total, max(newest, 0))
        return [after + k * self.period for k in range(oldest + 1, total + 1)], total

    def aligned(self, anchor: float, at: float) -> float:
        """Return the point of the grid through `anchor` that is nearest to `at`, all in seconds.

        It is anchor + k * period with a single rounding. Applied to what `next_run` and `passed` give, it
        keeps the millionth slot of a period such as 0.1 as exact as the first.
        """
        return anchor + round((at - anchor) / self.period) * self.period

    def _steps(self, slot: float, until: float) -> int:
        """Return the largest k with `slot` + k * period <= `until`; `until` is not earlier than `slot`."""
        steps = int((until - slot) // self.period)
        # The quotient is rounded and may be one off; what counts is the sum that the caller will see.
        if slot + steps * self.period > until:
            return steps - 1
        if slot + (steps + 1) * self.period <= until:
            return steps + 1
        return steps
