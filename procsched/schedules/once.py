"""Schedules with a single slot: at an instant of the wall clock, or after a delay on the steady clock."""

from __future__ import annotations

from procsched._core.checks import finite_seconds, instant
from procsched._core.frozen import frozen
from procsched.schedules.base import OneByOne

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from typing import ClassVar

    from procsched._core.models import ExecutionRecord


@frozen
class OneTime(OneByOne):
    """One run at an instant of the wall clock; when the clock is stepped, the run follows it.

    Args:
        at: UNIX seconds or an aware datetime. An instant in the past is due at once.
    Raises:
        ValidationError: `at` is a naive datetime, not finite, of another type, or after the year 5138: then it is in
            milliseconds or smaller.
    """

    at: float
    __checks__: ClassVar = {"at": instant}
    if TYPE_CHECKING:

        def __init__(self, at: float | datetime) -> None: ...

    def first_run(self, now: float) -> float:
        """Return `at` in UNIX seconds, also where it is earlier than `now`."""
        return self.at

    def next_run(self, record: ExecutionRecord, now: float) -> None:
        """Return None: there is no second slot."""
        return


@frozen
class After(OneByOne):
    """One run a number of steady seconds from now; a step of the wall clock does not move it.

    Args:
        delay: seconds or a timedelta, at least 0.
    Raises:
        ValidationError: `delay` is negative, not finite or of another type.
    """

    delay: float
    __checks__: ClassVar = {"delay": finite_seconds}
    # Not a field: tells the scheduler to give `now` and record times on the steady line.
    steady = True
    if TYPE_CHECKING:

        def __init__(self, delay: float | timedelta) -> None: ...

    def first_run(self, now: float) -> float:
        """Return `now` + `delay`, in seconds on the steady line."""
        return now + self.delay

    def next_run(self, record: ExecutionRecord, now: float) -> None:
        """Return None: there is no second slot."""
        return
