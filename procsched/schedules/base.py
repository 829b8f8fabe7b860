"""What the given schedules share: which slot a run stood for, and how slots that passed are told in bulk."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from procsched._core.models import ExecutionRecord
    from procsched.protocols import Schedule

    class BulkSchedule(Schedule, Protocol):
        """A schedule that can also tell at once which of its due times passed. Exists for type checkers.

        The scheduler looks for the method `passed` and steps through `next_run` where there is none.
        """

        def passed(self, after: float, until: float, newest: int) -> tuple[list[float], int]:
            """Return the due times d with `after` < d <= `until`: the newest ones, and how many in all.

            Args:
                after: UNIX seconds (steady line for a steady schedule): the last slot that was dealt with.
                until: UNIX seconds, inclusive; nothing passed where it is not later than `after`.
                newest: at most so many due times are listed; 0 only counts.
            Returns:
                The newest due times, oldest first, and the number of all, listed or not.
            Thread safety: pure, call from anywhere. Costs the same for a minute and for ten years.
            """


class OneByOne:
    """Base of the schedules whose next slot is known only once its run has ended, or that have but one."""

    __slots__ = ()

    def passed(self, after: float, until: float, newest: int) -> tuple[list[float], int]:
        """Return ``([], 0)``: behind the one slot that is planned there is no other that could pass."""
        return [], 0


def slot_of(record: ExecutionRecord) -> float:
    """Return the slot of the run that left `record`, in seconds: `due_at`, or `started_at` where None."""
    return record.started_at if record.due_at is None else record.due_at
