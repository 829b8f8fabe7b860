"""Where a task stands as far as its snapshot tells: for stores that keep nothing beside that. Pure.

A snapshot does not say which slot the run in flight stands for, nor when it began. Both are taken from the record
before it: another attempt of the same run has the same slot, and a new run the one that follows by the schedule, as
the scheduler that is gone has reckoned. Without such a record, or where a schedule of the user's would have to be
asked, the slot is not known, and the run counts as begun at the moment of loading.
"""

from __future__ import annotations

from procsched._core.entries import PAUSED, RETRYING, RUNNING, UNLOADABLE, Ended, Entry
from procsched._core.following import judge
from procsched._core.models import ScheduledTask, TaskStatus
from procsched._core.planning import Slots, is_computed, kind_of, plan_next
from procsched._core.positions import WORDS, Underway, require_record
from procsched.schedules import OneTime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._core.models import ExecutionRecord
    from procsched.protocols import Schedule

    Found = tuple[Entry, Underway | None]


def entry_of(snapshot: ScheduledTask, now: float) -> Found:
    """Return a task as an entry whose slots are wall time and whose payload is the `Task`, and what is underway of it.

    Args:
        snapshot: as a store has given it. It is copied: the store may keep it.
        now: UNIX seconds.
    Raises:
        AttributeError, TypeError, ValueError: it is no snapshot of a task.
    """
    status, planned = TaskStatus(snapshot.status), snapshot.next_run_at
    planned = None if planned is None else float(planned)
    numbers = int(snapshot.attempt), int(snapshot.generation)
    handle = ScheduledTask(snapshot.task, snapshot.schedule, status, planned, *numbers, snapshot.history)
    if status is RUNNING:
        return _running(handle, now)
    if status is RETRYING:
        return _retrying(handle, now if planned is None else planned, now)
    if status is PAUSED:
        return _paused(handle, snapshot.unloadable is not None, now)
    return _waiting(handle, now)


def _waiting(handle: ScheduledTask, now: float) -> Found:
    """Of a task that waits for a slot, or has none left."""
    planned, last = handle.next_run_at, handle.last_run()
    return _entry(handle, planned if planned is not None or last is None else last.due_at, now), None


def _retrying(handle: ScheduledTask, retry_at: float, now: float) -> Found:
    """Of one that waits for a further attempt of the run that its last record is of."""
    last = handle.last_run()
    entry = _entry(handle, None if last is None else last.due_at, now)
    entry.run = max(1, entry.run)
    entry.stands_for = 0 if last is None else last.missed
    underway = Underway(False, None, "retry", now if last is None else last.finished_at, retry_at)
    require_record(entry, underway)
    return entry, underway


def _running(handle: ScheduledTask, now: float) -> Found:
    """Of one whose attempt is lost."""
    last = handle.last_run()
    again = last is not None and handle.attempt > 1  # the last record is of the same run
    due = last.due_at if last is not None and again else _slot_after(handle.schedule, last)
    entry = _entry(handle, due, now)
    entry.due_wall = due
    if again:
        entry.stands_for = 0 if last is None else last.missed
    else:
        entry.run += 1
    begun = now if due is None else due
    return entry, Underway(True, min(now, begun if last is None else max(begun, last.finished_at)))


def _paused(handle: ScheduledTask, unloadable: bool, now: float) -> Found:
    """Of one that is paused: before a slot or an attempt, in the midst of one, or behind one of which nothing follows.

    A new run in the midst of which it was paused cannot be told from the end of the one before, where that had as many
    attempts. The end is far more frequent, and a record that nothing has left would be worse than one that is missing.
    """
    last, planned, attempt = handle.last_run(), handle.next_run_at, handle.attempt
    if last is None or last.attempt != attempt:
        return _running(handle, now) if planned is None and attempt else _waiting(handle, now)
    ended = judge(handle.task, attempt, last, last.finished_at, _no_jitter)
    if unloadable:
        ended = Ended(last, UNLOADABLE, last.finished_at, None, False)
    if ended.retry_at is not None:
        return _retrying(handle, ended.retry_at if planned is None else planned, now)
    if planned is not None:
        return _waiting(handle, now)
    return _entry(handle, last.due_at, now), Underway(
        False, None, WORDS[ended.verdict, ended.goes_on], ended.at
    )


def _entry(handle: ScheduledTask, slot: float | None, now: float) -> Entry:
    steady = bool(getattr(handle.schedule, "steady", False))
    entry = Entry(handle, handle.task, kind_of(handle.schedule), steady, now if slot is None else slot)
    entry.status = handle.status
    entry.attempt = handle.attempt
    entry.generation = handle.generation
    last = handle.last_run()
    if last is not None:
        entry.run = last.run
        entry.due_wall = last.due_at
    return entry


def _slot_after(schedule: Schedule, last: ExecutionRecord | None) -> float | None:
    """Return the slot that follows the run of `last`, None where that is not known."""
    if type(schedule) is OneTime:
        return schedule.at
    if last is None or last.due_at is None or not is_computed(schedule):
        return None
    return plan_next(Slots(schedule, last.due_at), last, last.finished_at, last.finished_at).due_at


def _no_jitter() -> float:
    return 0.5
