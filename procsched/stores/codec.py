"""Tasks, schedules and records as values that a database keeps and a person can read. Pure.

A JSON text says its version as "v". What is read may come from an earlier version, never from a later one: the store
refuses a schema that it does not know.
"""

from __future__ import annotations

import json
import sys

from procsched._core.limits import Limits, as_data
from procsched._core.models import (
    ExecutionRecord,
    MisfirePolicy,
    Outcome,
    OverrunPolicy,
    Priority,
    RetryPolicy,
    ScheduledTask,
    Sealed,
    Task,
    TaskStatus,
)
from procsched._core.positions import Position
from procsched.errors import ScheduleError, ValidationError
from procsched.schedules import After, CronSchedule, FixedDelay, FixedRate, OneTime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Final

    from procsched.protocols import Schedule

VERSION: Final = 1
# Characters of a task's id: PostgreSQL has limits for what is in an index, and `meta` for its prefix.
LONGEST_ID: Final = 180
MOST_BYTES: Final = (
    500_000_000  # of a call: SQLite takes 10**9 bytes in a row, PostgreSQL some more in a message
)
LONGEST_TEXT: Final = 65_536  # characters of an error, a traceback, a stack or an output that are kept

_GIVEN: Final[dict[str, Any]] = {
    "one_time": OneTime,
    "after": After,
    "fixed_delay": FixedDelay,
    "fixed_rate": FixedRate,
    "cron": CronSchedule,
}
_NAMES: Final = {each: name for name, each in _GIVEN.items()}


class UnreadableSchedule:
    """Stands for a schedule whose class cannot be loaded here. It is stored again as it was.

    Attributes:
        text: as it is stored.
        reason: why it cannot be loaded.
    """

    unreadable = True

    def __init__(self, text: str, reason: str) -> None:
        self.text = text
        self.reason = reason

    def first_run(self, now: float) -> float | None:
        """Refuse."""
        raise ScheduleError(f"the schedule cannot be loaded: {self.reason}")

    def next_run(self, record: ExecutionRecord, now: float) -> float | None:
        """Refuse."""
        raise ScheduleError(f"the schedule cannot be loaded: {self.reason}")

    def __repr__(self) -> str:
        return f"<a schedule that cannot be loaded: {self.reason}>"


def _dumps(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if writable(text) != text:  # then JSON says it by escapes, and gives it back as it was
        text = json.dumps(value, separators=(",", ":"))
    return text


def schedule_text(schedule: Schedule | UnreadableSchedule) -> str:
    """Return a schedule as JSON.

    One of the user's own has a method `to_stored()` that gives plain data, and its class one `from_stored(data)` that
    makes it anew; the class must be importable.

    Raises:
        ValidationError: it has no such methods, or gives what JSON cannot say.
    """
    if isinstance(schedule, UnreadableSchedule):
        return schedule.text
    kind = type(schedule)
    name = _NAMES.get(kind)
    value: dict[str, Any] = {"v": VERSION, "type": name}
    if isinstance(schedule, OneTime):
        value["at"] = schedule.at
    elif isinstance(schedule, After):
        value["delay"] = schedule.delay
    elif isinstance(schedule, FixedDelay):
        value |= {"delay": schedule.delay, "start_delay": schedule.start_delay}
    elif isinstance(schedule, FixedRate):
        value |= {
            "period": schedule.period,
            "on_overrun": schedule.on_overrun.value,
            "start_delay": schedule.start_delay,
        }
    elif isinstance(schedule, CronSchedule):
        value |= {"expression": schedule.expression, "tz": schedule.tz}
    if name is not None:
        return _dumps(value)
    return _own_schedule_text(schedule)


def _own_schedule_text(schedule: Any) -> str:
    kind = type(schedule)
    path = f"{kind.__module__}:{kind.__qualname__}"
    if not callable(getattr(schedule, "to_stored", None)) or not callable(getattr(kind, "from_stored", None)):
        raise ValidationError(
            f"schedule {schedule!r} cannot be stored: {path} needs a method to_stored() that returns plain data, and "
            "a class method from_stored(data) that makes it anew; or use one of the given schedules"
        )
    if "_main__" in path or "<" in path:
        raise ValidationError(
            f"schedule {schedule!r} cannot be stored: its class {path} is not importable; put it into a module"
        )
    try:
        return _dumps({"v": VERSION, "type": path, "data": schedule.to_stored()})
    except (TypeError, ValueError) as error:
        raise ValidationError(
            f"schedule {schedule!r} cannot be stored: to_stored() must return what JSON can say: {error}"
        ) from error


def check_storable(schedule: Schedule, texts: Iterable[str]) -> str:
    """Refuse what no database would take, before it is queued: there it would be in the way of all that follows.

    Returns:
        The schedule as JSON. Its class is not asked again: the next time it might raise.
    Raises:
        ValidationError: naming it.
    """
    text_of_schedule = schedule_text(schedule)
    for text in texts:
        check_writable("name and key", text)
    return text_of_schedule


def check_writable(what: str, text: str) -> None:
    """Refuse a text that not every database takes.

    Raises:
        ValidationError: it begins with `what`.
    """
    if writable(text) != text:
        raise ValidationError(
            f"{what} must be texts that can be stored, in UTF-8 and without zero characters, not {text!r}"
        )


def check_size(size: int) -> None:
    """Refuse a call that is too large for a database: it would be tried again for ever, before all that follows.

    Raises:
        ValidationError: saying why.
    """
    if size > MOST_BYTES:
        raise ValidationError(
            f"action and arguments must take at most {MOST_BYTES} bytes to be stored, not {size}: "
            "write the data to a file, and give its path"
        )


def check_id(task_id: str) -> None:
    """Refuse an id that not every database takes.

    Raises:
        ValidationError: saying why.
    """
    what = "the ids that ids.next_id() gives"
    check_writable(what, task_id)
    if len(task_id) > LONGEST_ID:
        raise ValidationError(
            f"{what} must have at most {LONGEST_ID} characters, not {len(task_id)}: {task_id[:60]!r}..."
        )


def read_schedule(text: str) -> Schedule | UnreadableSchedule:
    """Return the schedule that `schedule_text` wrote; what stands for it where that cannot be."""
    try:
        value: dict[str, Any] = json.loads(text)
        if value.pop("v") != VERSION:
            raise ValueError("it was written by another version of procsched")
        name = value.pop("type")
        given = _GIVEN.get(name)
        if given is CronSchedule:
            return CronSchedule(value["expression"], tz=value["tz"])
        if given is FixedRate:
            return FixedRate(value["period"], OverrunPolicy(value["on_overrun"]), value["start_delay"])
        if given is not None:
            made: Schedule = given(**value)
            return made
        module_name, _colon, path = name.partition(":")
        __import__(module_name)
        found: Any = sys.modules[module_name]
        for part in path.split("."):
            found = getattr(found, part)
        schedule: Schedule = found.from_stored(value["data"])
        return schedule
    except (Exception, SystemExit) as error:  # a module that exits when it is imported
        return UnreadableSchedule(text, f"{type(error).__name__}: {error}")


def settings_text(task: Task) -> str:
    """Return what is set for a task, beside id, name and key, as JSON."""
    retry = task.retry
    return _dumps(
        {
            "v": VERSION,
            "priority": task.priority.name.lower(),
            "retry": {
                "max_attempts": retry.max_attempts,
                "initial_backoff": retry.initial_backoff,
                "multiplier": retry.multiplier,
                "max_backoff": retry.max_backoff,
                "jitter": retry.jitter,
            },
            "timeout": task.timeout,
            "soft_timeout": task.soft_timeout,
            "grace": task.grace,
            "misfire": task.misfire.value,
            "max_catch_up": task.max_catch_up,
            "on_exhausted": task.on_exhausted,
            "capture_output": task.capture_output,
            "limits": as_data(task.limits),
        }
    )


def read_settings(text: str) -> dict[str, Any]:
    """Return the settings that `settings_text` wrote, as arguments of `Task`."""
    value: dict[str, Any] = json.loads(text)
    del value["v"]
    value["priority"] = Priority[value["priority"].upper()]
    value["misfire"] = MisfirePolicy(value["misfire"])
    value["retry"] = RetryPolicy(**value["retry"])
    limits = value.pop("limits", None)  # not in what was written before there were any
    if limits is not None:
        value["limits"] = Limits(**limits)
    return value


def task_row(task: ScheduledTask, position: Position) -> dict[str, Any]:
    """Return what changes of a task, by the names of columns."""
    return {
        "status": task.status.value,
        "unloadable": None if task.unloadable is None else writable(task.unloadable[:LONGEST_TEXT]),
        "next_run_at": task.next_run_at,
        "attempt": task.attempt,
        "generation": task.generation,
        "run": position.run,
        "slot": position.slot,
        "dealt": position.dealt,
        "anchor": position.anchor,
        "backlog": _dumps(position.backlog) if position.backlog else None,
        "due_at": position.due_at,
        "stands_for": position.stands_for,
        "owed": position.owed,
        "held": position.held,
        "after": position.after,
        "ended_at": position.ended_at,
        "retry_at": position.retry_at,
        "live": position.live,
        "started_at": position.started_at,
    }


def default_position(task: ScheduledTask) -> Position:
    """Return a position for a task that comes without one: from somebody who calls `save`."""
    slot = task.next_run_at if task.next_run_at is not None else 0.0
    last = task.last_run()
    run = 0 if last is None else last.run
    position = Position(slot, slot, slot, run=run, live=task.status is TaskStatus.RUNNING)
    if task.status is TaskStatus.RETRYING:
        position.after, position.retry_at = "retry", slot
        position.ended_at = slot if last is None else last.finished_at
        position.due_at = None if last is None else last.due_at
    return position


def record_row(record: ExecutionRecord, result: bytes | None = None) -> dict[str, Any]:
    """Return a record by the names of columns. Texts are cut to `LONGEST_TEXT`, tracebacks and output at their head."""
    return {
        "task_id": record.task_id,
        "name": record.name,
        "run": record.run,
        "attempt": record.attempt,
        "outcome": record.outcome.value,
        "due_at": record.due_at,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "missed": record.missed,
        "error": None if record.error is None else writable(record.error[:LONGEST_TEXT]),
        "traceback": _tail(record.traceback),
        "stack": _tail(record.stack),
        "pid": record.pid,
        "exit_code": record.exit_code,
        "signal": record.signal,
        "limit_exceeded": record.limit,
        "cpu_seconds": record.cpu_seconds,
        "peak_rss": record.peak_rss,
        "output": _tail(record.output),
        "output_truncated": record.output_truncated or len(record.output or "") > LONGEST_TEXT,
        "result": result,
    }


def _tail(text: str | None) -> str | None:
    return None if text is None else writable(text[-LONGEST_TEXT:])


def writable(text: str) -> str:
    """Return a text that every database takes: no lone surrogates, and no zero character (PostgreSQL)."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


_RECORD_KINDS: Final = (
    ("task_id", str),
    ("name", str),
    ("run", int),
    ("attempt", int),
    ("started_at", float),
    ("finished_at", float),
    ("missed", int),
)


def read_record(row: Mapping[str, Any]) -> ExecutionRecord:
    """Return the record in a row of `runs`; its result, where that was kept, is opened by who asks for it.

    Raises:
        ValueError: it is none.
    """
    for name, kind in _RECORD_KINDS:
        if type(row[name]) is not kind:
            raise ValueError(f"{name} of a record cannot be {row[name]!r}")
    outcome = Outcome(row["outcome"])
    result = row["result"]
    return ExecutionRecord(
        row["attempt"],
        row["started_at"],
        row["finished_at"],
        outcome is Outcome.SUCCEEDED,
        row["error"],
        outcome is Outcome.TIMED_OUT,
        outcome=outcome,
        task_id=row["task_id"],
        name=row["name"],
        run=row["run"],
        due_at=row["due_at"],
        missed=row["missed"],
        result=None if result is None else Sealed(result),
        traceback=row["traceback"],
        stack=row["stack"],
        pid=row["pid"],
        exit_code=row["exit_code"],
        signal=row["signal"],
        limit=row["limit_exceeded"],
        cpu_seconds=row["cpu_seconds"],
        peak_rss=row["peak_rss"],
        output=row["output"],
        output_truncated=bool(row["output_truncated"]),
    )
