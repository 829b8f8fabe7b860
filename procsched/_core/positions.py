"""Where a task stands: what a store keeps beside its snapshot, so that a restart goes on from there. Pure.

A snapshot is for people. It does not say which slot a run stands for, where the grid of a rate is anchored, what
follows a run that ended while its task was paused, or whether a cancelled task still has a live run.
"""

from __future__ import annotations

from procsched._core.entries import AGAIN, BAD, ENDED, GOOD, UNLOADABLE, Ended, Entry
from procsched._core.models import ExecutionRecord

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final


AFTER: Final = {
    "": None,
    "good": (GOOD, False),
    "retry": (AGAIN, False),
    "ended": (ENDED, False),
    "failed": (BAD, False),
    "failed, goes on": (BAD, True),
    "unloadable": (UNLOADABLE, False),
}
"""The words for what an attempt that has ended is followed by, as (verdict, goes_on) of an `Ended`."""

NO_RECORD: Final = "the record of this attempt is not in the store"

WORDS: Final = {value: word for word, value in AFTER.items()}


class Position:
    """A copy of what an `Entry` knows beyond its handle. Every time is wall time in UNIX seconds.

    Attributes:
        slot, dealt, anchor, backlog: see `planning.Slots`.
        due_at: the slot of the current or last run.
        run, stands_for, owed, held: as in `Entry`.
        after: a word of `AFTER`: what the last attempt is followed by, where that is not decided yet.
        ended_at: when that attempt ended.
        retry_at: when the next attempt of the run is due.
        live: an attempt runs, or is about to.
        started_at: when it started; None while it is only about to.
        call: the attempt, for who wants to know its process; not kept.
    Thread safety: never changed once it is made.
    """

    __slots__ = (
        "after",
        "anchor",
        "backlog",
        "call",
        "dealt",
        "due_at",
        "ended_at",
        "held",
        "live",
        "owed",
        "retry_at",
        "run",
        "slot",
        "stands_for",
        "started_at",
    )

    def __init__(
        self,
        slot: float,
        dealt: float,
        anchor: float,
        backlog: tuple[float, ...] = (),
        *,
        due_at: float | None = None,
        run: int = 0,
        stands_for: int = 0,
        owed: bool = False,
        held: bool = False,
        after: str = "",
        ended_at: float | None = None,
        retry_at: float | None = None,
        live: bool = False,
        started_at: float | None = None,
        call: Any = None,
    ) -> None:
        self.slot = slot
        self.dealt = dealt
        self.anchor = anchor
        self.backlog = backlog
        self.due_at = due_at
        self.run = run
        self.stands_for = stands_for
        self.owed = owed
        self.held = held
        self.after = after
        self.ended_at = ended_at
        self.retry_at = retry_at
        self.live = live
        self.started_at = started_at
        self.call = call


def position_of(entry: Entry, offset: float) -> Position:
    """Return where `entry` stands.

    Args:
        offset: wall time minus the steady line.
    """
    shift = offset if entry.steady else 0.0
    call: Any = entry.live
    position = Position(
        entry.slot + shift,
        entry.dealt + shift,
        entry.anchor + shift,
        tuple(slot + shift for slot in entry.backlog) if entry.backlog else (),
        due_at=entry.due_wall,
        run=entry.run,
        stands_for=entry.stands_for,
        owed=entry.owed,
        held=entry.held,
        live=call is not None,
        started_at=None if call is None else getattr(call, "started_at", None),
        call=call,
    )
    ended = entry.ended
    if ended is not None:
        position.after = WORDS[ended.verdict, ended.goes_on]
        position.ended_at = ended.at + offset
        position.retry_at = None if ended.retry_at is None else ended.retry_at + offset
    return position


class Underway:
    """Of a stored task whose last attempt runs, or waits for what follows it: what an `Entry` has no place for.

    Attributes:
        live, started_at, after, ended_at, retry_at: as in `Position`. With `after` the history of the task's handle
            ends with that attempt's record.
        pid, process_started: of the process that a live attempt ran in, as far as that was written.
    """

    __slots__ = ("after", "ended_at", "live", "pid", "process_started", "retry_at", "started_at")

    def __init__(
        self,
        live: bool,
        started_at: float | None,
        after: str = "",
        ended_at: float | None = None,
        retry_at: float | None = None,
        pid: int | None = None,
        process_started: int | None = None,
    ) -> None:
        self.live = live
        self.started_at = started_at
        self.after = after
        self.ended_at = ended_at
        self.retry_at = retry_at
        self.pid = pid
        self.process_started = process_started


class LostAttempt:
    """An attempt whose scheduler is gone: what the engine sees in the place of its call."""

    __slots__ = ("entry", "over", "started_at")

    def __init__(self, entry: Entry, started_at: float | None) -> None:
        self.entry = entry
        self.over = False
        self.started_at = started_at


def ended_of(underway: Underway, record: ExecutionRecord, offset: float) -> Ended | None:
    """Return the attempt whose follow-up waits, or None where none does."""
    found = AFTER[underway.after]
    if found is None:
        return None
    assert underway.ended_at is not None
    verdict, goes_on = found
    retry_at = None if underway.retry_at is None else underway.retry_at - offset
    return Ended(record, verdict, underway.ended_at - offset, retry_at, goes_on)


def require_record(entry: Entry, underway: Underway) -> None:
    """Have the history end with the record of the attempt that something follows from, or with what stands for it.

    A record that is not there was deleted by hand, or given up while the store failed for long (`waiting.py`).
    """
    handle = entry.handle
    last = handle.last_run()
    if last is not None and (last.run, last.attempt) == (entry.run, entry.attempt):
        return
    assert underway.ended_at is not None
    at = underway.ended_at if underway.started_at is None else underway.started_at
    good = underway.after == "good"
    handle._history = (
        ExecutionRecord(
            entry.attempt,
            at,
            underway.ended_at,
            good,
            None if good else NO_RECORD,
            task_id=handle.task.id,
            name=handle.task.name,
            run=entry.run,
            due_at=entry.due_wall,
            missed=entry.stands_for,
        ),
    )
