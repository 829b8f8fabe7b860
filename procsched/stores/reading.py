"""What is read from a store: all tasks at the start, records when somebody asks. Imports SQLAlchemy."""

from __future__ import annotations

import sys

from sqlalchemy import func, select

from procsched._core.models import Outcome, ScheduledTask, Task, TaskStatus
from procsched.stores import codec
from procsched.stores.changes import KeptTask
from procsched.stores.payloads import StoredCall
from procsched.stores.schema import payloads, runs, tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import Connection, Select

    from procsched._core.positions import Position
    from procsched.stores.statements import Statements

NO_SCHEDULE = "its schedule: "  # begins the reason where that is what cannot be loaded
_CHUNK = 500  # tasks whose records are asked for at a time


def load_tasks(
    connection: Connection, statements: Statements, with_records: bool = False
) -> tuple[list[KeptTask], list[str]]:
    """Return all tasks in order of registration, and the ids of the terminal ones in the order in which they ended.

    A task has its last record in its history where something waits to follow from that, or where it is terminal.

    Args:
        with_records: wherever there is one.
    """
    calls = _load_calls(connection)
    schedules: dict[str, Any] = {}
    settings: dict[str, dict[str, Any]] = {}
    kept: list[KeptTask] = []
    ended: list[tuple[float, str]] = []
    wanted: dict[str, KeptTask] = {}
    # For this statement alone: as an option of the connection it would hold for all that follow.
    statement = select(tasks).order_by(tasks.c.seq)
    result = connection.execute(statement, execution_options={"stream_results": True})
    for row in result.mappings():
        # Equal texts are read once, and share what they say.
        schedule = schedules.get(row["schedule"])
        if schedule is None:
            schedule = schedules[row["schedule"]] = codec.read_schedule(row["schedule"])
        setting = settings.get(row["settings"])
        if setting is None:
            setting = settings[row["settings"]] = codec.read_settings(row["settings"])
        each = _read_task(row, schedule, setting, calls.get(row["payload_id"]))
        kept.append(each)
        if each.handle.status.is_terminal:
            ended.append((row["updated_at"], row["id"]))
        if with_records or each.position.after or (each.handle.status.is_terminal and row["run"]):
            wanted[row["id"]] = each
    _add_records(connection, wanted)
    ended.sort()
    return kept, [name for _at, name in ended]


def _load_calls(connection: Connection) -> dict[str, StoredCall]:
    calls = {}
    for row in connection.execute(select(payloads)).mappings():
        call = StoredCall(
            row["kind"], row["name"], row["form"], bytes(row["data"]), row["python"], row["pickler"]
        )
        calls[row["id"]] = call
    return calls


def _read_task(row: Any, schedule: Any, setting: dict[str, Any], call: StoredCall | None) -> KeptTask:
    args, kwargs = ((), {}) if call is None else call.arguments()
    task = Task(
        row["id"],
        row["name"],
        sys.intern(row["action"] if call is None else call.describe()),
        args=args,
        kwargs=kwargs or None,
        key=row["key"],
        **setting,
    )
    status = TaskStatus(row["status"])
    handle = ScheduledTask(task, schedule, status, row["next_run_at"], row["attempt"], row["generation"])
    reason: str | None = row["unloadable"]
    handle.unloadable = None if reason is not None and reason.startswith(NO_SCHEDULE) else reason
    position: Position = codec.read_position(row)
    if isinstance(schedule, codec.UnreadableSchedule) and not status.is_terminal:
        # Nothing can be planned without it. It goes on as soon as a start finds it again.
        handle.status = TaskStatus.PAUSED
        handle.next_run_at = None
        handle.unloadable = NO_SCHEDULE + schedule.reason
        position.held = True
    return KeptTask(handle, position, call, row["pid"], row["process_started"])


def _add_records(connection: Connection, wanted: dict[str, KeptTask]) -> None:
    names = list(wanted)
    for start in range(0, len(names), _CHUNK):
        some = names[start : start + _CHUNK]
        newest = select(func.max(runs.c.id)).where(runs.c.task_id.in_(some)).group_by(runs.c.task_id)
        for row in connection.execute(select(runs).where(runs.c.id.in_(newest))).mappings():
            wanted[row["task_id"]].handle._history = (codec.read_record(dict(row)),)


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
