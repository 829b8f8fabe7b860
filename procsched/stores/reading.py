"""What is read from a store: all tasks at the start, records when somebody asks. Imports SQLAlchemy."""

from __future__ import annotations

import json
import sys

from sqlalchemy import func, select

from procsched._core.entries import Entry
from procsched._core.frozen import twin
from procsched._core.models import Outcome, ScheduledTask, Task, TaskStatus
from procsched._core.planning import kind_of
from procsched._core.positions import Underway
from procsched.stores import codec
from procsched.stores.payloads import StoredCall
from procsched.stores.schema import payloads, runs, tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import Connection, Select

NO_SCHEDULE = "its schedule: "  # begins the reason where that is what cannot be loaded
_CHUNK = 500  # tasks that are read at a time, or whose records are
_UNREAD = ("seq", "created_at", "epoch")  # columns that nobody asks for at the start
_ALL_TASKS = select(*(column for column in tasks.c if column.name not in _UNREAD)).order_by(tasks.c.seq)
_STATUSES = {status.value: status for status in TaskStatus}
_TERMINAL = frozenset(status for status in TaskStatus if status.is_terminal)
_SHARED_FIELDS = tuple(name for name in vars(Task)["__slots__"] if name not in ("id", "name", "key"))
_OpenTask = twin(Task)


def load_tasks(
    connection: Connection, with_records: bool = False
) -> tuple[list[Entry], dict[str, Underway], list[str]]:
    """Return all tasks and what is underway, as `Loaded` has them, and the ids of the terminal ones by their ends.

    A task has its last record in its history where something waits to follow from that, or where it is terminal.

    Args:
        with_records: wherever there is one.
    """
    reader = _TaskReader(_load_calls(connection))
    entries: list[Entry] = []
    underway: dict[str, Underway] = {}
    ended: list[tuple[float, str]] = []
    wanted: dict[str, ScheduledTask] = {}
    # For this statement alone: as an option of the connection it would hold for all that follow.
    result = connection.execute(_ALL_TASKS, execution_options={"stream_results": True})
    # A few rows at a time, and nothing beside the entries themselves is kept of them: what is freed between objects
    # that stay is memory which the process does not get rid of.
    while rows := result.fetchmany(_CHUNK):
        for row in rows:
            entry, more, updated_at = reader.read(row)
            entries.append(entry)
            handle, terminal = entry.handle, entry.status in _TERMINAL
            if terminal:
                ended.append((updated_at, handle.task.id))
            if more is not None:
                underway[handle.task.id] = more
            if with_records or (more is not None and more.after) or (terminal and entry.run):
                wanted[handle.task.id] = handle
    _add_records(connection, wanted)
    ended.sort()
    return entries, underway, [name for _at, name in ended]


def _load_calls(connection: Connection) -> dict[str, StoredCall]:
    calls = {}
    for row in connection.execute(select(payloads)).mappings():
        call = StoredCall(
            row["kind"], row["name"], row["form"], bytes(row["data"]), row["python"], row["pickler"]
        )
        calls[row["id"]] = call
    return calls


class _TaskReader:
    """Makes entries of rows. Equal texts are read once, and the tasks share what they say.

    Args:
        calls: by the id of the payload.
    """

    def __init__(self, calls: dict[str, StoredCall]) -> None:
        self._calls = calls
        self._names: dict[str, str] = {}
        self._schedules: dict[str, tuple[Any, int, bool, bool]] = {}
        self._alike: dict[tuple[str, str | None, str], tuple[StoredCall | None, dict[str, Any]]] = {}

    def read(self, row: Any) -> tuple[Entry, Underway | None, float]:
        """Return a task as an entry whose slots are wall time, what is underway of it, and when it was written."""
        # In the order of `_ALL_TASKS`. To ask a row for its columns by name costs more than all that is made of it.
        task_id, name, key, status_name, unloadable, next_run_at, action, payload_id = row[:8]
        schedule_text, settings_text, attempt, generation, run, slot, dealt, anchor, backlog = row[8:17]
        due_at, stands_for, owed, held, after, ended_at, retry_at, live = row[17:25]
        started_at, pid, process_started, updated_at = row[25:]
        schedule, kind, steady, unreadable = self._schedule_of(schedule_text)
        call, fields = self._settings_of(payload_id, settings_text, action)
        task = _task_like(fields, task_id, self._names.setdefault(name, name), key)
        status = _STATUSES[status_name]
        handle = ScheduledTask(task, schedule, status, next_run_at, attempt, generation)
        if unloadable is not None and not unloadable.startswith(NO_SCHEDULE):
            handle.unloadable = unloadable
        entry = Entry(handle, call, kind, steady, slot)
        entry.status = status
        entry.generation = generation
        entry.attempt = attempt
        # One number for what is mostly the same: there may be a hundred thousand of them.
        if dealt != slot:
            entry.dealt = dealt
        if anchor != slot:
            entry.anchor = anchor
        if backlog:
            entry.backlog = tuple(json.loads(backlog))
        entry.due_wall = slot if due_at == slot else due_at
        entry.run = run
        entry.stands_for = stands_for
        entry.owed = bool(owed)
        entry.held = bool(held)
        if unreadable and status not in _TERMINAL:
            # Nothing can be planned without it. It goes on as soon as a start finds it again.
            entry.status = handle.status = TaskStatus.PAUSED
            handle.next_run_at = None
            handle.unloadable = NO_SCHEDULE + schedule.reason
            entry.held = True
        more = None
        if live or after:
            more = Underway(bool(live), started_at, after, ended_at, retry_at, pid, process_started)
        return entry, more, updated_at

    def _schedule_of(self, text: str) -> tuple[Any, int, bool, bool]:
        found = self._schedules.get(text)
        if found is None:
            schedule = codec.read_schedule(text)
            steady = bool(getattr(schedule, "steady", False))
            unreadable = isinstance(schedule, codec.UnreadableSchedule)
            found = self._schedules[text] = schedule, kind_of(schedule), steady, unreadable
        return found

    def _settings_of(
        self, payload_id: str | None, settings: str, action: str
    ) -> tuple[StoredCall | None, dict[str, Any]]:
        """Return the call, and the fields that tasks with the same call and settings have in common."""
        call = self._calls.get(payload_id) if payload_id is not None else None
        key = (settings, payload_id, "" if call is not None else action)
        found = self._alike.get(key)
        if found is None:
            args, kwargs = ((), {}) if call is None else call.arguments()
            described = sys.intern(action if call is None else call.describe())
            task = Task("", "", described, args=args, kwargs=kwargs or None, **codec.read_settings(settings))
            found = self._alike[key] = call, {name: getattr(task, name) for name in _SHARED_FIELDS}
        return found


def _task_like(fields: dict[str, Any], task_id: str, name: str, key: str | None) -> Task:
    """Return a task with these fields, which have been checked."""
    task: Any = _OpenTask()
    task.id = task_id
    task.name = name
    task.key = key
    for field, value in fields.items():
        setattr(task, field, value)
    task.__class__ = Task
    made: Task = task
    return made


def _add_records(connection: Connection, wanted: dict[str, ScheduledTask]) -> None:
    names = list(wanted)
    for start in range(0, len(names), _CHUNK):
        some = names[start : start + _CHUNK]
        newest = select(func.max(runs.c.id)).where(runs.c.task_id.in_(some)).group_by(runs.c.task_id)
        for row in connection.execute(select(runs).where(runs.c.id.in_(newest))).mappings():
            wanted[row["task_id"]]._history = (codec.read_record(dict(row)),)


def select_history(
    task_id: str | None, outcome: Outcome | None, since: float | None, limit: int
) -> Select[Any]:
    """Return the statement for `SqlTaskStore.history`."""
    statement = select(runs).order_by(runs.c.id.desc()).limit(limit)
    if task_id is not None:
        statement = statement.where(runs.c.task_id == task_id)
    if outcome is not None:
        statement = statement.where(runs.c.outcome == Outcome(outcome).value)
    if since is not None:
        statement = statement.where(runs.c.finished_at >= since)
    return statement


def select_overview(task_id: str | None) -> Select[Any]:
    """Return the statement for `StoreClient.rows`."""
    every = runs.alias()
    newest = (
        select(func.max(every.c.id)).where(every.c.task_id == tasks.c.id).correlate(tasks).scalar_subquery()
    )
    statement = (
        select(tasks, runs.c.outcome, runs.c.error, runs.c.finished_at)
        .select_from(tasks)
        .outerjoin(runs, runs.c.id == newest)
        .order_by(tasks.c.seq)
    )
    return statement if task_id is None else statement.where(tasks.c.id == task_id)
