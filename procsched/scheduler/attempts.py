"""One attempt on its way through the pool, and the record that it leaves."""

from __future__ import annotations

from procsched._core.models import Dropped, Sealed
from procsched.workers.base import Call, pace_of, record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from procsched._core.entries import Entry
    from procsched._core.models import ExecutionRecord
    from procsched.workers.base import Ending

    class Owner(Protocol):
        """Who hears of the attempt."""

        def attempt_begun(self, attempt: Attempt, ago: float) -> None:
            """Hear that it began so many seconds ago."""

        def attempt_ended(self, attempt: Attempt, ending: Ending) -> None:
            """Hear how it ended."""

        def attempt_progressed(self, attempt: Attempt, done: float, total: float | None, note: str) -> None:
            """Hear of progress."""


# Results of a pool in this process whose size is known. Of any other object nobody knows it without pickling that.
_MEASURED = frozenset({bytes, bytearray, str})


class Attempt(Call):
    """A call made for an entry of the engine.

    Attributes:
        started_at: UNIX seconds, as in the record.
        started_mono: the same moment by the steady clock.
        over: the engine's, see `LiveAttempt`.
    """

    __slots__ = ("entry", "over", "owner", "started_at", "started_mono")

    def __init__(
        self, owner: Owner, entry: Entry, numbers: tuple[int, int], started_at: float, started_mono: float
    ) -> None:
        # Not by way of `Call.__init__`: this is made for each attempt, and keyword arguments cost as much
        # again as all the rest.
        task = entry.handle.task
        self.payload = entry.payload
        self.timeout = task.timeout
        self.soft_timeout = task.soft_timeout
        self.grace = task.grace
        self.limits = task.limits
        self.capture_output = task.capture_output
        self.task_id = task.id
        self.name = task.name
        self.attempt, self.run = numbers
        self.pace = None if task.capture_output or task.limits is not None else pace_of(task.action)
        self.worker = self.verdict = None
        self.handed = self.number = 0
        self.told = False
        self.owner = owner
        self.entry = entry
        self.started_at = started_at
        self.started_mono = started_mono
        self.over = False

    def begun(self, ago: float) -> None:
        """Hear that the attempt, which was sent ahead, began so many seconds ago."""
        self.owner.attempt_begun(self, ago)

    def ended(self, ending: Ending) -> None:
        """Hear how the attempt ended."""
        self.owner.attempt_ended(self, ending)

    def progressed(self, done: float, total: float | None, note: str) -> None:
        """Hear of progress."""
        self.owner.attempt_progressed(self, done, total, note)

    def record(self, ending: Ending, mono: float, result_limit: int) -> ExecutionRecord:
        """Return the record of this attempt, which ended at the steady time `mono`."""
        result = ending.result
        kind = type(result)
        if kind is Sealed or kind in _MEASURED:
            size = len(result.data if kind is Sealed else result)
            if size > result_limit:
                result = Dropped(size)
        seconds = max(0.0, mono - self.started_mono)
        if ending.seconds is not None:
            seconds = min(seconds, ending.seconds)  # its start may have been heard of late
        entry = self.entry
        return record_of(
            ending,
            result,
            self.started_at,
            seconds,
            self.attempt,
            self.name,
            self.task_id,
            self.run,
            entry.due_wall,
            entry.stands_for,
        )


def causes_of(record: ExecutionRecord) -> str:
    """Return what helps to find out why an attempt failed, to stand below the line that says so; mostly empty."""
    parts = []
    if record.traceback:
        parts.append(record.traceback.rstrip())
    if record.stack:
        parts.append(f"where it was:\n{record.stack.rstrip()}")
    return "".join(f"\n{part}" for part in parts)
