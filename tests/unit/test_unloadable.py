"""Code that cannot be loaded: the task is kept and says so, nothing of its retries is used up, and it comes back."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from procsched import FakeClock, FixedRate, OneTime, Outcome, RetryPolicy, ScheduleError, TaskStatus
from tests import stored, support
from tests.stored import simulated
from tests.unit.scheduling import START

S = TaskStatus
GOOD = "def job(path):\n    with open(path, 'a') as file:\n        file.write('ran\\n')\n"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


class Module:
    """A module of the user's, which comes and goes."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = f"user_module_{directory.name}"
        self.file = directory / f"{self.name}.py"
        monkeypatch.syspath_prepend(str(directory))

    def write(self, text: str) -> None:
        self.forget()
        self.file.write_text(text)

    def forget(self) -> None:
        """Let it be imported anew, as in a new process."""
        sys.modules.pop(self.name, None)
        importlib.invalidate_caches()
        for cached in self.file.parent.glob("__pycache__/*"):
            cached.unlink()

    def remove(self) -> None:
        self.forget()
        self.file.unlink()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    return Module(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No module named"),
        ("", "has no 'job' (any more)"),
        ("job = 5", "cannot be called"),
        ("1 / 0", "division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_a_recurring_task_keeps_its_schedule(
    path: str, module: Module, text: str | None, reason: str
) -> None:
    """Each slot is tried; when the name resolves again, it runs."""
    notes = path + ".notes"
    module.write(GOOD)
    with simulated(path) as (scheduler, clock, _log):
        job = importlib.import_module(module.name).job
        task = scheduler.schedule(
            "t", job, FixedRate(10, start_delay=10), args=(notes,), retry=RetryPolicy(3, 1.0)
        )
        assert task.unloadable is None
    if text is None:
        module.remove()
    else:
        module.write(text)
    with simulated(path, clock) as (scheduler, clock, log):
        (task,) = scheduler.tasks()
        clock.advance(10)
        assert task.status is S.SCHEDULED
        assert reason in (task.unloadable or "")
        assert reason in task.summary()
        assert task.next_run_at == START + 20
        (record,) = task.history
        assert (record.outcome, record.attempt) == (Outcome.FAILED, 1)
        assert reason in (record.error or "")
        assert scheduler.wait_idle(support.TIMEOUT)
        assert [event.kind for event in log.events].count("store") == 1
        assert reason in scheduler.stats().problems[0]
        module.write(GOOD)
        clock.advance(10)
        assert task.unloadable is None
        assert task.history[-1].ok
    assert Path(notes).read_text() == "ran\n"


def test_an_earlier_life_is_not_told_as_news(
    path: str, module: Module, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether it can be loaded is known when it is tried: then it is told, also where nothing has changed."""
    module.write(GOOD)
    with simulated(path) as (scheduler, clock, _log):
        job = importlib.import_module(module.name).job
        scheduler.schedule("t", job, FixedRate(10, start_delay=10), args=(path + ".notes",))
        module.remove()
        clock.advance(10)
    with simulated(path, clock) as (scheduler, clock, log):
        caplog.clear()
        clock.advance(10)
        assert "cannot be loaded" in scheduler.stats().problems[0]
        assert scheduler.wait_idle(support.TIMEOUT)
        texts = [str(event.progress) for event in log.events if event.kind == "store"]
        assert ["could not be loaded when that was last tried" in text for text in texts] == [True, False]
        clock.advance(10)
        assert len(scheduler.stats().problems) == 1
    module.write(GOOD)
    caplog.clear()
    with simulated(path, clock) as (scheduler, clock, log):
        (task,) = scheduler.tasks()
        assert "No module" in (task.unloadable or "")
        assert scheduler.stats().problems == ()
        assert ["could not be loaded when" in text for text in caplog.messages] == [True]
        clock.advance(10)
        assert task.unloadable is None
        assert scheduler.stats().problems == ()


def test_a_single_slot_waits_for_its_code(path: str, module: Module) -> None:
    """Paused, not failed; it is tried at each start, and by resume or revive."""
    notes = path + ".notes"
    module.write(GOOD)
    with simulated(path) as (scheduler, clock, _log):
        job = importlib.import_module(module.name).job
        scheduler.schedule("t", job, OneTime(START + 10), args=(notes,))
    module.remove()
    with simulated(path, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        clock.advance(10)
        assert task.status is S.PAUSED
        assert scheduler.dead_letter() == []
        assert scheduler.resume(task)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert task.status is S.PAUSED
        assert [record.run for record in task.history] == [1, 2]
        assert scheduler.revive(task)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert task.status is S.PAUSED
    clock.advance(1000)
    with simulated(path, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert task.status is S.PAUSED
        assert len(scheduler.history(task)) == 4
    module.write(GOOD)
    with simulated(path, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert task.status is S.SUCCEEDED
        assert task.unloadable is None
        assert task.history[-1].due_at == START + 10
    assert Path(notes).read_text() == "ran\n"


def test_a_task_that_the_user_paused_is_not_resumed(path: str, module: Module) -> None:
    """Only what was paused for its code goes on by itself."""
    module.write(GOOD)
    with simulated(path) as (scheduler, clock, _log):
        job = importlib.import_module(module.name).job
        task = scheduler.schedule("t", job, FixedRate(10, start_delay=10), args=("x",))
        module.remove()
        clock.advance(10)
        assert task.unloadable
        scheduler.pause(task)
    with simulated(path, clock) as (scheduler, clock, _log):
        clock.advance(100)
        (task,) = scheduler.tasks()
        assert task.status is S.PAUSED
        assert len(scheduler.history()) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("UPDATE payloads SET python = 'cpython 3.99'", "stored by value under cpython 3.99"),
        ("UPDATE payloads SET pickler = '1.2.3'", "stored with cloudpickle 1.2.3"),
        ("UPDATE payloads SET data = x'0102'", "UnpicklingError"),
        ("UPDATE payloads SET kind = 'parcel'", "knows no payload of the kind 'parcel'"),
        ("DELETE FROM payloads", "not in the store any more"),
    ],
)
def test_a_blob_is_checked_before_it_is_opened(path: str, change: str, reason: str) -> None:
    """What another Python has pickled by value can crash this one when it is called."""
    notes = path + ".notes"
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", lambda: stored.note(notes, "ran"), OneTime(START + 10))
    stored.execute(path, change)
    with simulated(path, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        clock.advance(10)
        assert task.status is S.PAUSED
        assert reason in (task.unloadable or "")
    assert not Path(notes).exists()


def test_code_by_value_survives(path: str) -> None:
    """A lambda, with what it closes over, in the same Python."""
    notes = path + ".notes"
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", lambda word: stored.note(notes, word, 5), OneTime(START + 10), args=("ran",))
    with simulated(path, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert str(task.task.action).startswith(
            "test_code_by_value_survives.<locals>.<lambda> (pickled with cpython"
        )
        clock.advance(10)
        assert task.history[-1].ok
    assert Path(notes).read_text() == "ran 5\n"


SCHEDULE = """
class Every:
    def __init__(self, seconds):
        self.seconds = seconds
    def first_run(self, now):
        return now + self.seconds
    def next_run(self, record, now):
        return record.due_at + self.seconds
    def to_stored(self):
        return {"seconds": self.seconds}
    @classmethod
    def from_stored(cls, data):
        return cls(**data)
"""


def test_a_schedule_of_the_users_own(path: str, module: Module) -> None:
    """It is stored as plain data; without its class the task waits, and goes on when that is there again."""
    module.write(SCHEDULE)
    with simulated(path) as (scheduler, clock, _log):
        schedule = importlib.import_module(module.name).Every(10)
        scheduler.schedule("t", stored.nothing, schedule)
        scheduler.schedule("u", stored.nothing, schedule, key="u")
    with simulated(path, clock) as (scheduler, clock, _log):
        clock.advance(10)
        assert [len(task.history) for task in scheduler.tasks()] == [1, 1]
    module.remove()
    with simulated(path, clock) as (scheduler, clock, _log):
        task, other = scheduler.tasks()
        clock.advance(10)
        assert task.status is other.status is S.PAUSED
        assert "its schedule: ModuleNotFoundError" in (task.unloadable or "")
        with pytest.raises(ScheduleError, match="cannot go on"):
            scheduler.resume(task)
        assert scheduler.schedule("u", stored.nothing, OneTime(START), key="u") is other
    module.write(SCHEDULE)
    with simulated(path, FakeClock(START + 45)) as (scheduler, clock, _log):
        task, _other = scheduler.tasks()
        assert task.unloadable is None
        assert task.status is S.SCHEDULED
        assert [record.due_at for record in scheduler.history(task)] == [START + 40, START + 10]


def test_a_schedule_that_cannot_be_stored_is_refused(path: str) -> None:
    """Where it is scheduled, saying what is missing."""
    from procsched import ValidationError
    from tests.unit.scheduling import Foreign

    with simulated(path) as (scheduler, _clock, _log):
        with pytest.raises(ValidationError, match="to_stored"):
            scheduler.schedule("t", stored.nothing, Foreign(START + 1))
        with pytest.raises(ValidationError, match="texts that can be stored"):
            scheduler.schedule("a\0b", stored.nothing, OneTime(START))
        assert scheduler.tasks() == []
