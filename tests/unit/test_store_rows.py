"""Rows that somebody else has changed, and texts that not every database takes: no task is in the way of another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    FixedRate,
    InlinePool,
    OneTime,
    RetryPolicy,
    ScheduleError,
    Scheduler,
    SqlTaskStore,
    StoreError,
    TaskStatus,
    ValidationError,
    connect,
)
from procsched.cli.__main__ import main
from procsched.stores import codec
from procsched.stores.payloads import store_call
from tests import stored, support
from tests.stored import simulated
from tests.unit.scheduling import START

S = TaskStatus


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a task that waits for a retry, and one that waits for its slot."""
    name = str(tmp_path_factory.mktemp("made") / "jobs.db")
    with simulated(name) as (scheduler, _clock, _log):
        scheduler.schedule(
            "retrying", stored.fail, OneTime(START), retry=RetryPolicy(5, 100.0, max_backoff=1e6)
        )
        assert scheduler.wait_idle(support.TIMEOUT)
        scheduler.schedule("sound", stored.nothing, FixedRate(50.0))
    return name


@pytest.fixture
def path(made: str, tmp_path: Path) -> str:
    """A copy of it."""
    name = str(tmp_path / "jobs.db")
    shutil.copy(made, name)
    return name


BROKEN = [
    "status = 'bogus'",
    "status = 'running'",
    "status = 'scheduled', live = 1",
    "settings = '{'",
    "settings = '[]'",
    "settings = replace(settings, 'normal', 'urgent')",
    "backlog = '{'",
    "backlog = '[\"x\"]'",
    "after = 'bogus'",
    "after = ''",
    "retry_at = NULL",
    "ended_at = NULL",
    "slot = 'soon'",
    "next_run_at = 'soon'",
    "attempt = 'first'",
    "name = x'ff'",
]


@pytest.mark.parametrize("change", BROKEN)
def test_a_row_that_cannot_be_read_keeps_no_other_from_going_on(path: str, change: str) -> None:
    """Its task is paused and says why; the row stays as it is, and is read when somebody has corrected it."""
    (before,) = stored.rows(path, "SELECT * FROM tasks WHERE id = 'task-1'")
    stored.execute(path, f"UPDATE tasks SET {change} WHERE id = 'task-1'")
    (broken,) = stored.rows(path, "SELECT * FROM tasks WHERE id = 'task-1'")
    assert [task.task.id for task in connect(f"sqlite:///{path}").tasks()] == ["task-1", "task-2"]
    with simulated(path) as (scheduler, clock, _log):
        bad, good = scheduler.tasks()
        assert bad.status is S.PAUSED
        assert "its row in the store" in str(bad.unloadable)
        assert any("task-1" in text and "its row" in text for text in scheduler.stats().problems)
        with pytest.raises(ScheduleError, match="its row in the store"):
            scheduler.resume(bad)
        clock.advance(50)
        assert [record.run for record in scheduler.history(good)] == [2, 1]
    assert stored.rows(path, "SELECT * FROM tasks WHERE id = 'task-1'") == [broken]
    columns = [row[1] for row in stored.rows(path, "PRAGMA table_info(tasks)")]
    stored.execute(path, "DELETE FROM tasks WHERE id = 'task-1'")
    with stored._opened(path) as connection, connection:
        marks = ", ".join("?" * len(columns))
        connection.execute(f"INSERT INTO tasks ({', '.join(columns)}) VALUES ({marks})", before)
    stored.execute(path, "UPDATE tasks SET unloadable = 'its row in the store: what it was'")
    with simulated(path) as (scheduler, _clock, _log):
        assert scheduler.task("task-1").status is S.RETRYING
        assert scheduler.task("task-1").unloadable is None


@pytest.mark.parametrize("change", BROKEN)
def test_the_commands_show_what_cannot_be_read(
    path: str, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who looks for what is wrong needs them most."""
    stored.execute(path, f"UPDATE tasks SET {change} WHERE id = 'task-1'")
    for command in (
        ["ps", "--all"],
        ["ps", "--all", "--json"],
        ["show", "task-1"],
        ["show", "task-1", "--json"],
    ):
        assert main([*command, "--store", f"sqlite:///{path}"]) == 0
        assert "task-1" in capsys.readouterr().out


def test_a_row_without_an_id_is_said(path: str) -> None:
    """Nobody could be told of it in any other way."""
    stored.execute(path, "UPDATE tasks SET id = x'ff', settings = '{' WHERE id = 'task-1'")
    with pytest.raises(StoreError, match="id is no text"), simulated(path):
        pass


@pytest.mark.parametrize(
    "statement", ["UPDATE owner SET epoch = 'x'", "UPDATE meta SET value = 'x' WHERE key LIKE 'highest id:%'"]
)
def test_what_no_task_can_stand_for_is_a_store_error(path: str, statement: str) -> None:
    """The store cannot be used, and it is said why; nothing was taken."""
    stored.execute(path, statement)
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot read"), simulated(path):
            pass


@pytest.mark.parametrize("change", ["outcome = 'bogus'", "finished_at = 'late'", "run = 'x'"])
def test_a_record_that_cannot_be_read_is_said(
    path: str, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tasks go on."""
    stored.execute(path, f"UPDATE runs SET {change}")
    with simulated(path) as (scheduler, _clock, _log):
        assert [task.status for task in scheduler.tasks()] == [S.RETRYING, S.SCHEDULED]
        with pytest.raises(StoreError, match="cannot read"):
            scheduler.history()
    assert main(["history", "--store", f"sqlite:///{path}"]) == 3
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("paused", [False, True])
def test_a_retry_needs_no_record(path: str, paused: bool) -> None:
    """Records may be deleted by hand, or given up while a store failed for long: what follows from them goes on."""
    if paused:
        with simulated(path) as (scheduler, _clock, _log):
            scheduler.pause("task-1")
    stored.execute(path, "DELETE FROM runs")
    with simulated(path) as (scheduler, clock, _log):
        if paused:
            assert scheduler.resume("task-1")
        task = scheduler.task("task-1")
        assert (task.status, task.attempt) == (S.RETRYING, 1)
        last = task.last_run()
        assert last is not None
        assert (last.run, last.attempt, last.error) == (
            1,
            1,
            "the record of this attempt is not in the store",
        )
        clock.advance(100)
        assert [(record.run, record.attempt) for record in scheduler.history(task)] == [(1, 2)]


def test_a_task_that_was_saved_while_it_retried_goes_on(tmp_path: Path) -> None:
    """Also where it was saved by somebody who knows nothing beyond the task itself."""
    with simulated(tmp_path / "one.db") as (scheduler, clock, _log):
        scheduler.schedule("t", stored.fail, OneTime(START), retry=RetryPolicy(3, 50.0, max_backoff=1e6))
        assert scheduler.wait_idle(support.TIMEOUT)
        (task,) = scheduler.tasks()
        SqlTaskStore(f"sqlite:///{tmp_path}/two.db").save(task)
    with simulated(tmp_path / "two.db", clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert (task.status, task.next_run_at, task.attempt) == (S.RETRYING, START + 50, 1)


# --- texts ------------------------------------------------------------------------------------------------------


class Odd:
    """A schedule that stores a text which is no UTF-8, and can be asked for that once."""

    def __init__(self, text: str = "\udc80\0") -> None:
        self.text = text
        self.asked = 0

    def first_run(self, now: float) -> float:
        """Late."""
        return now + 1000.0

    def next_run(self, _record: object, _now: float) -> None:
        """Never."""
        return

    def to_stored(self) -> str:
        """The text."""
        self.asked += 1
        if self.asked > 1:
            raise RuntimeError("asked again")
        return self.text

    @classmethod
    def from_stored(cls, data: str) -> Odd:
        """The same."""
        return cls(data)


def odd_name() -> Any:
    """An action whose name is no UTF-8."""
    action = lambda: None  # noqa: E731 - it goes by value
    action.__qualname__ = "\udc80\0"
    return action


def test_texts_that_no_database_takes_are_in_nobodys_way(tmp_path: Path) -> None:
    """Names of functions, what schedules store, and why code cannot be loaded: such a text would be tried for ever."""
    path = tmp_path / "jobs.db"
    with simulated(path) as (scheduler, _clock, _log):
        scheduler.schedule("schedule", stored.nothing, Odd())
        scheduler.schedule("action", odd_name(), OneTime(START))
        task = scheduler.schedule("reason", stored.refuse_to_load, FixedRate(100.0))
        assert scheduler.wait_idle(support.TIMEOUT)
        assert "\udc80" in str(task.unloadable)
        scheduler.schedule("behind", stored.nothing, OneTime(START))
        assert scheduler.wait_idle(support.TIMEOUT)
        assert scheduler.writer is not None
        assert scheduler.writer.failures == 0
    with simulated(path) as (scheduler, _clock, _log):
        found = {task.name: task for task in scheduler.tasks()}
        assert sorted(found) == ["action", "behind", "reason", "schedule"]
        assert found["schedule"].schedule.text == "\udc80\0"  # type: ignore[attr-defined]
        assert found["reason"].unloadable == r"no \udc80 and no \0"


@pytest.mark.parametrize("task_id", ["task \udc80", "x" * 300 + "-1"], ids=["surrogate", "long"])
def test_an_id_that_cannot_be_stored_is_refused(tmp_path: Path, task_id: str) -> None:
    """By name, and nothing is registered."""

    class Ids:
        def next_id(self) -> str:
            return task_id

    with (
        Scheduler(
            pool=InlinePool(), store=SqlTaskStore(f"sqlite:///{tmp_path}/jobs.db"), ids=Ids()
        ) as scheduler,
        pytest.raises(ValidationError, match="next_id"),
    ):
        scheduler.schedule("t", stored.nothing, OneTime(0))
    assert scheduler.tasks() == []


def test_a_function_under_a_name_that_cannot_be_stored_goes_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference to it could not be written."""
    action = odd_name()
    action.__module__ = stored.__name__
    monkeypatch.setattr(stored, action.__qualname__, action, raising=False)
    assert store_call(action, (), {}).kind == "cloudpickle"


def test_what_is_the_same_list_twice_is_not_two_lists() -> None:
    """JSON would make two of it, and an action that changes one would not see that in the other."""
    rows = [1, {"a": 2}]
    assert store_call(stored.nothing, (rows, [1, {"a": 2}], "x", "x"), {}).form == "json"
    for args, kwargs in (
        ((rows, rows), {}),
        ((rows,), {"again": rows}),
        (([rows, rows],), {}),
        ((rows, rows[1]), {}),
    ):
        call = store_call(stored.nothing, args, kwargs)
        assert (call.kind, call.form) == ("reference", "pickle")


def test_a_module_that_exits_is_no_exit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The schedule is one that cannot be loaded, and the program goes on."""
    (tmp_path / "leaves_at_once.py").write_text("raise SystemExit(7)")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = json.dumps({"v": 1, "type": "leaves_at_once:Schedule", "data": 1})
    found = codec.read_schedule(text)
    assert isinstance(found, codec.UnreadableSchedule)
    assert "SystemExit: 7" in found.reason


def test_history_takes_any_number_and_any_name(path: str) -> None:
    """What no database can hold is not there."""
    store = SqlTaskStore(f"sqlite:///{path}")
    assert len(store.history(limit=1 << 80)) == 2
    assert store.history("\udc80") == []


@pytest.mark.parametrize("hours", ["nan", "inf", "1e300"])
def test_hours_that_are_no_time_are_refused(
    path: str, hours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """As what they are."""
    assert main(["history", "--hours", hours, "--store", f"sqlite:///{path}"]) == 2
    assert "--hours" in capsys.readouterr().err
