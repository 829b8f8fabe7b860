"""What is read from a store: all tasks at the start, records when somebody asks. Imports SQLAlchemy."""

from __future__ import annotations

import json
import sys

from sqlalchemy import func, select

from procsched._core.entries import Entry
from procsched._core.frozen import twin
from procsched._core.models import Outcome, ScheduledTask, Task, TaskStatus
from procsched._core.options import StoredArguments
from procsched._core.planning import kind_of
from procsched._core.positions import AFTER, Underway, require_record
from procsched.errors import StoreError
from procsched.stores import codec
from procsched.stores.payloads import StoredCall
from procsched.stores.schema import payloads, runs, tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import Connection, Select

# Begin the reason where that is what cannot be loaded, or read.
NO_SCHEDULE, NO_ROW = "its schedule: ", "its row in the store: "
_CHUNK = 500  # tasks that are read at a time, or whose records are
_UNREAD = ("seq", "created_at", "epoch")  # columns that nobody asks for at the start
_ALL_TASKS = select(*(column for column in tasks.c if column.name not in _UNREAD)).order_by(tasks.c.seq)
_STATUSES = {status.value: status for status in TaskStatus}
_TERMINAL = frozenset(status for status in TaskStatus if status.is_terminal)
_MAY_BE_LIVE = frozenset({TaskStatus.RUNNING, TaskStatus.PAUSED, TaskStatus.CANCELLED})
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
    for entry in entries:
        more = underway.get(entry.handle.task.id)
        if more is not None and more.after:
            require_record(entry, more)
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
        """Return a task as an entry whose slots are wall time, what is underway of it, and when it was written.

        Whoever has changed a row so that it cannot be read shall not keep all other tasks from going on: then it stays
        as it is, and its task is paused and says so.

        Raises:
            StoreError: its id cannot be read.
        """
        try:
            return self._read(row)
        except Exception as error:
            return self._read_nothing(row, f"{type(error).__name__}: {error}")

    def _read(self, row: Any) -> tuple[Entry, Underway | None, float]:
        # In the order of `_ALL_TASKS`. To ask a row for its columns by name costs more than all that is made of it.
        task_id, name, key, status_name, unloadable, next_run_at, action, payload_id = row[:8]
        schedule_text, settings_text, attempt, generation, run, slot, dealt, anchor, backlog = row[8:17]
        due_at, stands_for, owed, held, after, ended_at, retry_at, live = row[17:25]
        started_at, pid, process_started, updated_at = row[25:]
        _check_types(
            (task_id, name, action, schedule_text, settings_text),
            (attempt, generation, run, stands_for),
            (slot, dealt, anchor, updated_at),
            (next_run_at, due_at, ended_at, retry_at, started_at),
        )
        schedule, kind, steady, unreadable = self._schedule_of(schedule_text)
        call, fields = self._settings_of(payload_id, settings_text, action)
        task = _task_like(fields, task_id, self._names.setdefault(name, name), key)
        status = _STATUSES[status_name]
        _check_state(status, bool(live), after, ended_at, retry_at)
        handle = ScheduledTask(task, schedule, status, next_run_at, attempt, generation)
        if unloadable is not None and not unloadable.startswith((NO_SCHEDULE, NO_ROW)):
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
            entry.backlog = tuple(map(float, json.loads(backlog)))
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

    def _read_nothing(self, row: Any, reason: str) -> tuple[Entry, Underway | None, float]:
        """Return what stands for a task whose row cannot be read. Nothing can be planned for it."""
        task_id, name, _key, status_name, _unloadable, _next, action, payload_id = row[:8]
        if type(task_id) is not str or not task_id:
            raise StoreError(
                f"the store has a task whose id is no text but {task_id!r}: correct or delete that row"
            )
        call = self._calls.get(payload_id) if isinstance(payload_id, str) else None
        schedule = codec.UnreadableSchedule(str(row[8]), reason)
        handle = ScheduledTask(Task(task_id, str(name) or "?", str(action)), schedule, TaskStatus.PAUSED)
        handle.unloadable = NO_ROW + reason
        entry = Entry(handle, call, kind_of(schedule), False, 0.0)
        entry.status = handle.status = _STATUSES.get(status_name, TaskStatus.PAUSED)
        if entry.status not in _TERMINAL:
            entry.status = handle.status = TaskStatus.PAUSED
            entry.held = True
        return entry, None, 0.0

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
            args, kwargs = _arguments_of(call)
            described = sys.intern(action) if call is None else call.action()
            task = Task("", "", described, args=args, kwargs=kwargs or None, **codec.read_settings(settings))
            found = self._alike[key] = call, {name: getattr(task, name) for name in _SHARED_FIELDS}
        return found


def _arguments_of(call: StoredCall | None) -> tuple[Any, Any]:
    """Return the arguments as far as they can be shown. Where a call runs it is said what is wrong with them."""
    try:
        args, kwargs = ((), {}) if call is None else call.arguments()
    except Exception:
        return (), {}
    return (args, kwargs) if isinstance(kwargs, (dict, StoredArguments)) else ((), {})


_TEXTS, _COUNTS, _TIMES = frozenset({str}), frozenset({int}), frozenset({float})
_TIMES_OR_NONE = frozenset({float, type(None)})


def _check_types(
    texts: tuple[Any, ...], counts: tuple[Any, ...], times: tuple[Any, ...], others: tuple[Any, ...]
) -> None:
    """Refuse values of a kind that nobody of ours writes: SQLite takes any of them in any column.

    Raises:
        ValueError: naming the first.
    """
    for values, kinds in ((texts, _TEXTS), (counts, _COUNTS), (times, _TIMES), (others, _TIMES_OR_NONE)):
        if not kinds.issuperset(map(type, values)):
            wrong = next(value for value in values if type(value) not in kinds)
            raise ValueError(f"{wrong!r} is none of the values that belong there")


def _check_state(
    status: TaskStatus, live: bool, after: str, ended_at: float | None, retry_at: float | None
) -> None:
    """Refuse what cannot be true together.

    Raises:
        ValueError: saying what.
    """
    if live and status not in _MAY_BE_LIVE:
        raise ValueError(f"an attempt of a task that is {status.value} cannot be alive")
    if status is TaskStatus.RUNNING and not live:
        raise ValueError("a task that is running has an attempt that is alive")
    if after not in AFTER:
        raise ValueError(f"nothing is known to follow after {after!r}")
    if status is TaskStatus.RETRYING and after != "retry":
        raise ValueError("a task that is retrying waits for a retry")
    if after and (ended_at is None or (after == "retry" and retry_at is None)):
        raise ValueError("it is not said when the last attempt ended, or the next one is due")


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
            try:
                wanted[row["task_id"]]._history = (codec.read_record(dict(row)),)
            except ValueError:  # as if it were not there
                continue


def select_history(
    task_id: str | None, outcome: Outcome | None, since: float | None, limit: int
) -> Select[Any]:
    """Return the statement for `SqlTaskStore.history`: an index finds its records, in their order."""
    # By their number, the few of a short time would be looked for among all others. Where the clock was set back the
    # newest are then those that ended at the latest time, as in memory, and not those that were written last.
    by_end = since is not None and task_id is None and outcome is None
    order = (runs.c.finished_at.desc(), runs.c.id.desc()) if by_end else (runs.c.id.desc(),)
    statement = select(runs).order_by(*order).limit(limit)
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
