"""A restart from a store: what was scheduled goes on, what ran is lost and said so, nothing runs twice in silence."""

from __future__ import annotations

import gc
import logging
import pickle
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    After,
    CronSchedule,
    EventLog,
    FakeClock,
    FixedDelay,
    FixedRate,
    InlinePool,
    Limits,
    MisfirePolicy,
    OneTime,
    Outcome,
    OverrunPolicy,
    ProcessPool,
    RetryPolicy,
    ScheduledTask,
    Scheduler,
    SchedulerStateError,
    SqlTaskStore,
    TaskStatus,
    ThreadPool,
    ValidationError,
)
from procsched.scheduler import earlier
from tests import stored, support
from tests.stored import FileStore, simulated
from tests.unit.scheduling import SCHEDULES, START, offsets

S = TaskStatus
HOUR = 3600.0
DAY = 24 * HOUR


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


@pytest.fixture
def after(tmp_path: Path) -> str:
    """The file as a crash leaves it."""
    return str(tmp_path / "after.db")


def slots(scheduler: Scheduler, task: ScheduledTask) -> list[float]:
    """Return the slots of a task's records in the store, oldest first, in seconds since the start."""
    return offsets(scheduler.history(task)[::-1])


def test_a_retry_keeps_its_time_when_the_clock_was_set_during_a_pause(path: str) -> None:
    """It waits for a steady time, so what is stored of it follows the wall clock."""
    with simulated(path) as (scheduler, clock, _log):
        task = scheduler.schedule(
            "t", stored.fail, OneTime(START), retry=RetryPolicy(3, 600.0, max_backoff=600.0)
        )
        assert scheduler.wait_idle(5)
        scheduler.pause(task)
        clock.step_wall(DAY)
        assert scheduler.wait_idle(5)
    with simulated(path, FakeClock(START + DAY + 10)) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert scheduler.resume(task)
        assert task.next_run_at == pytest.approx(START + DAY + 600)


def test_a_task_that_every_start_adds_anew_is_told(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """A recurring one without a key, beside one of its name from an earlier start: once, with the remedy."""

    def told() -> list[str]:
        found = [each.getMessage() for each in caplog.records if "give it a key=" in each.getMessage()]
        caplog.clear()
        return found

    for start in range(2):
        with simulated(path) as (scheduler, _clock, _log):
            scheduler.schedule("once", stored.nothing, After(DAY))
            scheduler.schedule("keyed", stored.nothing, FixedRate(DAY), key="k")
            tasks = [scheduler.schedule("nightly", stored.nothing, FixedRate(DAY)) for _ in range(2)]
        said = told()
        assert len(said) == start
        assert not said or f"task {tasks[0].id} (nightly)" in said[0]


# --- tasks and their schedules -------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_task_comes_back_as_it_was(path: str, schedule: object) -> None:
    """Name, schedule, settings, slot and order; what it runs is described by a text."""
    with simulated(path) as (scheduler, _clock, _log):
        task = scheduler.schedule(
            "nightly",
            stored.note,
            schedule,  # type: ignore[arg-type]
            2,
            RetryPolicy(5, 0.5, 3.0, 7.0, jitter=0.25),
            60.0,
            args=("file", 1, None, [1.5, {"a": True}]),
            soft_timeout=50,
            grace=2,
            misfire=MisfirePolicy.CATCH_UP,
            max_catch_up=7,
            on_exhausted="continue",
            capture_output=True,
            key="k",
        )
        scheduler.schedule("second", stored.nothing, OneTime(START + 1e6))
        first = task.snapshot()
    with simulated(path, FakeClock(START + 10)) as (scheduler, _clock, _log):
        again, second = scheduler.tasks()
        assert second.name == "second"
        assert again.schedule == schedule
        assert again.task.action == "tests.stored:note"
        for name in (*(set(type(first.task).__slots__) - {"action", "kwargs"}),):
            assert getattr(again.task, name) == getattr(first.task, name), name
        assert (again.status, again.next_run_at, again.attempt) == (S.SCHEDULED, first.next_run_at, 0)


@pytest.mark.parametrize(
    ("action", "args"), [(stored.nothing, (1, "x")), (stored.nothing, ((1, 2),)), (lambda x: x, (1,))]
)
def test_arguments_are_shown_or_said_to_be_stored(path: str, action: Any, args: tuple[Any, ...]) -> None:
    """Plain data is what it was; what is pickled is not opened, and what stands for it is no empty tuple."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", action, After(DAY), args=args, kwargs={})
        scheduler.schedule("named", action, After(DAY), args=args, kwargs={"a": {1}})
    with simulated(path, clock) as (scheduler, _clock, _log):
        first, named = (each.task for each in scheduler.tasks())
        shown = [named.args, named.kwargs]
        if args == (1, "x"):
            assert (first.args, first.kwargs) == (args, None)
        else:
            shown += [first.args, first.kwargs]
        for each in shown:
            assert repr(each) == "<arguments in the store, which are opened in a worker only>"
            assert repr(pickle.loads(pickle.dumps(each))) == repr(each)
            for name in ("args", "kwargs"):
                with pytest.raises(ValidationError, match=f"^{name} are those of a task from the store"):
                    scheduler.schedule("again", stored.nothing, After(DAY), **{name: each})


def test_it_runs_after_the_restart(path: str, tmp_path: Path) -> None:
    """With the arguments that were stored, and the next slot is kept in turn."""
    notes = str(tmp_path / "notes")
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.note, FixedRate(60, start_delay=60), args=(notes, "ran"), kwargs={})
    with simulated(path, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        clock.advance(60)
        assert [record.outcome for record in task.history] == [Outcome.SUCCEEDED]
    with simulated(path, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert task.next_run_at == START + 120
        assert slots(scheduler, task) == [60.0]
    assert Path(notes).read_text() == "ran\n"


@pytest.mark.slow
@pytest.mark.parametrize("plain", [False, True])
def test_what_has_limits_does_not_run_where_nothing_holds_them(tmp_path: Path, plain: bool) -> None:
    """It is kept, with the reason, and runs with a pool that does."""

    def store() -> Any:
        return FileStore(tmp_path) if plain else SqlTaskStore(f"sqlite:///{tmp_path}/jobs.db")

    notes, pool = tmp_path / "notes", ProcessPool(1)
    with_limits = Scheduler(store=store(), pool=pool)
    due = with_limits.schedule(
        "t", stored.note, OneTime(0), args=(str(notes), "ran"), limits=Limits(output=9), retry=NO_RETRY
    )
    with_limits.shutdown(drain=False)
    with Scheduler(store=store(), pool=ThreadPool(1)) as scheduler:
        assert scheduler.wait_idle(support.TIMEOUT)
        (record,) = scheduler.history(due.id)
        assert "limits cannot be held by a ThreadPool" in (record.error or "")
        assert "limits cannot be held by a ThreadPool" in (scheduler.task(due.id).unloadable or "")
        assert scheduler.task(due.id).status is S.PAUSED
        assert not notes.exists()
    with Scheduler(store=store(), pool=ProcessPool(1, preload=("tests.stored",))) as scheduler:
        scheduler.resume(due.id)  # a plain store does not say who has paused it
        assert scheduler.wait_idle(support.TIMEOUT)
        assert notes.exists()


def test_a_period_longer_than_a_life_has_its_runs(path: str) -> None:
    """Each 10 h, of a program that is started anew each 9 h for nearly five days (taskiq 328)."""
    clock = FakeClock(START)
    for life in range(13):
        with simulated(path, clock) as (scheduler, clock, _log):
            if life == 0:
                task = scheduler.schedule("t", stored.nothing, FixedRate(10 * HOUR)).id
            for _ in range(9):
                clock.advance(HOUR)
            records = scheduler.history()[::-1]
    assert {record.task_id for record in records} == {task}
    assert offsets(records) == [10 * HOUR * run for run in range(12)]
    assert [record.started_at for record in records] == [record.due_at for record in records]
    assert sum(record.missed for record in records) == 0


def test_nothing_runs_for_what_is_skipped(path: str) -> None:
    """A cron each 15 s, down for a minute: with SKIP no run before the next slot (quartz 239)."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, CronSchedule("*/15 * * * * *"), misfire=MisfirePolicy.SKIP)
    clock.advance(60)
    with simulated(path, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        clock.advance(9)
        assert (scheduler.history(), task.next_run_at) == ([], START + 70)
        clock.advance(1)
        assert slots(scheduler, task) == [70.0]
        assert scheduler.stats().counters["missed"] == 4


@pytest.mark.parametrize(
    ("policy", "expected", "missed"),
    [
        (MisfirePolicy.RUN_ONCE, [240.0, 300.0], [3, 0]),
        (MisfirePolicy.SKIP, [300.0], [0]),
        (MisfirePolicy.CATCH_UP, [60.0, 120.0, 180.0, 240.0, 300.0], [0, 0, 0, 0, 0]),
    ],
)
def test_slots_while_down_follow_the_misfire_policy(
    path: str, policy: MisfirePolicy, expected: list[float], missed: list[int]
) -> None:
    """And those after them lie on the same grid."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, FixedRate(60, start_delay=60), misfire=policy)
    clock.advance(250)
    with simulated(path, clock) as (scheduler, clock, _log):
        clock.advance(50)
        (task,) = scheduler.tasks()
        assert offsets(task.history) == expected
        assert [record.missed for record in task.history] == missed


def test_a_bounded_catch_up_keeps_the_newest(path: str) -> None:
    """The rest is counted."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule(
            "t",
            stored.nothing,
            FixedRate(60, start_delay=60),
            misfire=MisfirePolicy.CATCH_UP,
            max_catch_up=2,
        )
    clock.advance(605)
    with simulated(path, clock) as (scheduler, clock, _log):
        assert scheduler.wait_idle(support.TIMEOUT)
        (task,) = scheduler.tasks()
        assert offsets(task.history) == [540.0, 600.0]
        assert scheduler.stats().counters["missed"] == 8


def test_a_fraction_of_a_grid_never_drifts(path: str) -> None:
    """The anchor is kept to the last bit: after restarts the slots are those of one life."""
    period = 0.1
    clock = FakeClock(START)
    with simulated(path, clock) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, FixedRate(period))
    found: list[float] = []
    for _ in range(5):
        with simulated(path, clock) as (scheduler, clock, _log):
            (task,) = scheduler.tasks()
            clock.advance(1.05)
            found += [record.due_at or 0.0 for record in task.history]
    one = FixedRate(period)
    assert found
    assert all(due == one.aligned(START, due) for due in found)


def test_cancelled_and_finished_tasks_stay_so(path: str) -> None:
    """Terminal tasks are kept, in the dead letter where they failed, and revive with their code."""
    with simulated(path) as (scheduler, clock, _log):
        done = scheduler.schedule("done", stored.nothing, OneTime(START))
        cancelled = scheduler.schedule("cancelled", stored.nothing, OneTime(START + 1e6), key="c")
        failed = scheduler.schedule("failed", stored.fail, OneTime(START), retry=NO_RETRY)
        paused = scheduler.schedule("paused", stored.nothing, OneTime(START + 5))
        assert scheduler.wait_idle(support.TIMEOUT)
        scheduler.cancel(cancelled)
        scheduler.pause(paused)
        ids = [task.id for task in (done, cancelled, failed, paused)]
    with simulated(path, clock) as (scheduler, clock, _log):
        tasks = scheduler.tasks()
        assert [task.id for task in tasks] == ids
        assert [task.status for task in tasks] == [S.SUCCEEDED, S.CANCELLED, S.FAILED, S.PAUSED]
        assert scheduler.dead_letter() == [ids[2]]
        assert scheduler.wait(ids[0], 1).ok
        clock.advance(10)
        assert tasks[3].history == []
        assert scheduler.resume(ids[3])
        assert scheduler.wait(ids[3], 1).due_at == START + 5
        assert scheduler.revive(ids[2])
        assert scheduler.wait(ids[2], 1).error == "ValueError: bad row"
        assert scheduler.schedule("another", stored.nothing, OneTime(START + 1e6), key="c").id not in ids


# --- what was going on ---------------------------------------------------------------------------------


def test_a_run_that_was_going_on_is_lost(path: str, after: str) -> None:
    """It has one record, LOST; the policy for retries decides, and the number of the attempt goes on."""
    with simulated(path) as (scheduler, clock, _log):
        retry = RetryPolicy(2, 5.0)
        scheduler.schedule("t", stored.copy, OneTime(START + 1), args=(path, after), retry=retry)
        clock.advance(1)
    clock = FakeClock(START + 2)
    with simulated(after, clock) as (scheduler, clock, log):
        (task,) = scheduler.tasks()
        (record,) = scheduler.history()
        assert (record.outcome, record.run, record.attempt, record.due_at) == (Outcome.LOST, 1, 1, START + 1)
        assert "ended while this ran" in (record.error or "")
        assert task.status is S.RETRYING
        assert task.next_run_at == START + 6
        clock.advance(10)
        assert [record.attempt for record in task.history] == [1, 2]
        assert task.status is S.SUCCEEDED
        assert scheduler.wait_idle(support.TIMEOUT)
        assert len(log.runs("t")) == 2
    with simulated(after, clock) as (scheduler, clock, _log):
        assert [record.outcome for record in scheduler.history()] == [Outcome.SUCCEEDED, Outcome.LOST]


@pytest.mark.parametrize(
    ("schedule", "options", "dead"),
    [
        (OneTime(START), {"retry": RetryPolicy(2, 5.0)}, False),
        (FixedRate(60), {"retry": NO_RETRY, "on_exhausted": "continue"}, False),
        (FixedRate(60), {"retry": NO_RETRY}, True),
    ],
)
def test_a_lost_run_is_logged(
    path: str,
    after: str,
    schedule: Any,
    options: dict[str, Any],
    dead: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As the end of any attempt: a warning where the task does not run any more."""
    with simulated(path) as (scheduler, _clock, _log):
        scheduler.schedule("t", stored.copy, schedule, args=(path, after), **options)
        assert scheduler.wait_idle(support.TIMEOUT)
    caplog.set_level(logging.INFO, "procsched")
    caplog.clear()
    with simulated(after, FakeClock(START + 1)):
        said = [each for each in caplog.records if "ended as lost" in each.getMessage()]
    assert [each.levelno for each in said] == [logging.WARNING if dead else logging.INFO]
    assert "task task-1 (t) attempt 1 ended as lost: " in said[0].getMessage()
    assert ("no attempt is left" in said[0].getMessage()) == dead


def test_a_lost_run_without_retries_is_in_the_dead_letter(path: str, after: str) -> None:
    """A OneTime that may have run is not run again."""
    with simulated(path) as (scheduler, _clock, _log):
        scheduler.schedule("t", stored.copy, OneTime(START), args=(path, after), retry=NO_RETRY)
        assert scheduler.wait_idle(support.TIMEOUT)
    with simulated(after) as (scheduler, _, _log):
        (task,) = scheduler.tasks()
        assert task.status is S.FAILED
        assert scheduler.dead_letter() == [task.id]
        assert [record.outcome for record in task.history] == [Outcome.LOST]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (MisfirePolicy.RUN_ONCE, [60.0, 240.0, 300.0]),
        (MisfirePolicy.SKIP, [60.0, 300.0]),
        (MisfirePolicy.CATCH_UP, [60.0, 120.0, 180.0, 240.0, 300.0]),
    ],
)
@pytest.mark.parametrize("kind", ["rate", "cron"])
def test_slots_behind_a_lost_run_are_misfires(
    path: str, after: str, policy: MisfirePolicy, expected: list[float], kind: str
) -> None:
    """They passed while nothing could run them, and not during the run."""
    schedule = FixedRate(60, start_delay=60) if kind == "rate" else CronSchedule("* * * * *")
    shift = 0.0 if kind == "rate" else START // 60 * 60 - START
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule(
            "t",
            stored.copy,
            schedule,
            args=(path, after),
            retry=NO_RETRY,
            misfire=policy,
            on_exhausted="continue",
        )
        clock.advance(60)
    # What the copy does now, into yet another file, is of no interest.
    with simulated(after, FakeClock(START + 250)) as (scheduler, clock, _log):
        clock.advance(50)
        assert scheduler.wait_idle(support.TIMEOUT)
        (task,) = scheduler.tasks()
        found = slots(scheduler, task)
        assert found == [each + shift for each in expected]
        assert scheduler.history(task)[-1].outcome is Outcome.LOST


def test_a_paused_task_with_a_lost_run_stays_paused(path: str, after: str, tmp_path: Path) -> None:
    """What follows is decided at the resume; a cancelled one has its record and is over."""
    with simulated(path) as (scheduler, clock, _log):
        paused = scheduler.schedule("paused", _pause_and_copy, OneTime(START + 1), args=(path, after, True))
        _schedulers.append(scheduler)
        clock.advance(1)
        _schedulers.clear()
        assert paused.status is S.PAUSED
    with simulated(after, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert task.status is S.PAUSED
        assert [record.outcome for record in task.history] == [Outcome.LOST]
        assert scheduler.resume(task)
        assert task.status is S.RETRYING
    with simulated(after, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert task.status is S.RETRYING
        assert task.next_run_at == START + 2


def test_a_cancelled_task_with_a_lost_run_is_over(path: str, after: str) -> None:
    """Its run has a record, and nothing follows."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", _pause_and_copy, OneTime(START + 1), args=(path, after, False))
        _schedulers.append(scheduler)
        clock.advance(1)
        _schedulers.clear()
    with simulated(after) as (scheduler, _clock, _log):
        (task,) = scheduler.tasks()
        assert task.status is S.CANCELLED
        assert [record.outcome for record in scheduler.history()] == [Outcome.LOST]
        assert scheduler.stats().running == 0


_schedulers: list[Scheduler] = []


def _pause_and_copy(source: str, target: str, pause: bool) -> None:
    (scheduler,) = _schedulers
    (task,) = scheduler.tasks()
    assert scheduler.pause(task) if pause else scheduler.cancel(task)
    stored.copy(source, target)


def test_a_backoff_goes_on(path: str) -> None:
    """The next attempt comes when it would have come, with its number."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.fail, OneTime(START), retry=RetryPolicy(3, 50.0, max_backoff=1000.0))
        assert scheduler.wait_idle(support.TIMEOUT)
        clock.advance(30)
    with simulated(path, clock) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert (task.status, task.next_run_at, task.attempt) == (S.RETRYING, START + 50, 1)
        clock.advance(19)
        assert len(scheduler.history()) == 1
        clock.advance(1)
        assert [record.attempt for record in scheduler.history()] == [2, 1]
        assert task.next_run_at == START + 150


def test_a_backoff_that_is_over_is_due_at_once(path: str) -> None:
    """It is no misfire: the attempt is owed."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule(
            "t", stored.fail, OneTime(START), retry=RetryPolicy(2, 100.0), misfire=MisfirePolicy.SKIP
        )
        assert scheduler.wait_idle(support.TIMEOUT)
    clock.advance(1000)
    with simulated(path, clock) as (scheduler, clock, _log):
        assert scheduler.wait_idle(support.TIMEOUT)
        assert [record.attempt for record in scheduler.history()] == [2, 1]


def test_what_waited_for_a_worker_at_a_crash_is_no_misfire(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where misfires are skipped: somebody could have run it, had there been a worker."""
    begun, release, crashed = threading.Event(), threading.Event(), tmp_path / "crashed.db"

    def wait() -> None:
        begun.set()
        release.wait(support.TIMEOUT)

    monkeypatch.setattr(stored, "held", [wait])
    clock, skip = FakeClock(START), MisfirePolicy.SKIP
    with Scheduler(clock=clock, store=SqlTaskStore(f"sqlite:///{path}"), pool=ThreadPool(1)) as scheduler:
        scheduler.schedule("busy", stored.hold, OneTime(START), retry=NO_RETRY)
        assert begun.wait(support.TIMEOUT)
        scheduler.schedule("waits", stored.nothing, OneTime(START + 5), misfire=skip)
        scheduler.schedule("later", stored.nothing, OneTime(START + 15), misfire=skip)
        assert scheduler.writer is not None
        assert scheduler.writer.flush(support.TIMEOUT)
        clock.advance(10)
        support.eventually(lambda: scheduler.stats().ready, what="one waits for the worker")
        assert scheduler.writer.flush(support.TIMEOUT)
        stored.copy(path, crashed)
        release.set()
    crashed.chmod(0o600)
    with simulated(crashed, FakeClock(START + 20)) as (scheduler, _clock, _log):
        assert [task.status for task in scheduler.tasks()] == [S.FAILED, S.SUCCEEDED, S.CANCELLED]


# --- with a clock that was set back meanwhile ----------------------------------------------------------


@pytest.mark.parametrize("back", [HOUR, 400 * DAY])
@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (FixedRate(100), [200.0]),
        (FixedRate(100, OverrunPolicy.CATCH_UP), [200.0]),
        (FixedDelay(100), [250.0]),  # the run before that came when the clock had jumped to 150
        (After(100), []),
        (After(170), [170.0]),
    ],
)
def test_what_is_counted_in_seconds_goes_on(
    path: str, schedule: Any, expected: list[float], back: float
) -> None:
    """It would not have run for an hour, or a year, for its slot was written down by the old time."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, schedule)
        clock.advance(150)
    clock = FakeClock(START + 150 - back)
    with simulated(path, clock) as (scheduler, clock, log):
        assert any(event.kind == "clock" and "set back" in str(event.progress) for event in log.events)
        clock.advance(100)
        found = [record.due_at for record in scheduler.history()[::-1] if record.due_at is not None]
        assert [due for due in found if due < START] == [START - back + at for at in expected]


def test_a_retry_goes_on_as_well(path: str) -> None:
    """The rest of its backoff, also after a second restart, and after somebody who only looked in."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.fail, OneTime(START), retry=RetryPolicy(3, 100.0, max_backoff=1000.0))
        assert scheduler.wait_idle(support.TIMEOUT)
        clock.advance(40)
    new = START + 40 - HOUR
    clock = FakeClock(new)
    visit = SqlTaskStore(f"sqlite:///{path}")
    visit.visit()
    visitor = Scheduler(clock=clock, pool=InlinePool(), store=visit)
    assert [task.next_run_at for task in visitor.tasks()] == [new + 60]
    visitor.shutdown(drain=False)
    for _ in range(2):
        with simulated(path, clock) as (scheduler, _clock, _log):
            assert [task.next_run_at for task in scheduler.tasks()] == [new + 60]
    with simulated(path, clock) as (scheduler, clock, _log):
        clock.advance(60)
        assert [record.attempt for record in scheduler.history()] == [2, 1]


@pytest.mark.parametrize("paused", [False, True])
def test_what_follows_the_wall_follows_the_new_time(path: str, paused: bool) -> None:
    """A slot that has run is not run again, for up to three hours (cron(8)); a time in the calendar stays."""
    with simulated(path) as (scheduler, clock, _log):
        cron = scheduler.schedule("cron", stored.nothing, CronSchedule("*/30 * * * *"))
        once = scheduler.schedule("once", stored.nothing, OneTime(START + 3 * HOUR))
        for _ in range(4):
            clock.advance(1800)
        last = scheduler.history(cron)[0].due_at
        if paused:
            scheduler.pause(cron)
    assert last is not None
    for back, following in ((HOUR, last + 1800), (4 * HOUR, None)):
        clock = FakeClock(START + 2 * HOUR - back)
        with simulated(path, clock) as (scheduler, _clock, _log):
            if paused:
                assert scheduler.resume(cron.id)
            found, same = scheduler.tasks()
            first = CronSchedule("*/30 * * * *").next_after(clock.now()) if following is None else following
            assert found.next_run_at == first
            assert same.next_run_at == once.next_run_at
            if paused:
                scheduler.pause(cron.id)


def test_what_waits_for_a_resume_or_a_retry_is_told_by_the_new_time(path: str) -> None:
    """The slot of a paused task, and the one that a run stands for; a schedule that cannot be read is not asked."""
    with simulated(path) as (scheduler, clock, _log):
        paused = scheduler.schedule("paused", stored.nothing, FixedRate(100, start_delay=100))
        scheduler.pause(paused)
        retrying = scheduler.schedule(
            "retrying", stored.fail, FixedRate(1000), retry=RetryPolicy(3, 50.0, max_backoff=100.0)
        )
        scheduler.schedule("unreadable", stored.nothing, CronSchedule("0 0 * * *"))
        assert scheduler.wait_idle(support.TIMEOUT)
        before = paused.next_run_at
    assert before is not None
    stored.execute(path, "UPDATE tasks SET schedule = '{' WHERE name = 'unreadable'")
    with simulated(path, FakeClock(START - HOUR)) as (scheduler, clock, _log):
        assert scheduler.task(paused.id).next_run_at == before - HOUR
        clock.advance(50)
        assert scheduler.history(retrying)[0].due_at == START - HOUR
        assert scheduler.stats().counters["schedule_errors"] == 0


@pytest.mark.parametrize("within", [True, False])
def test_a_failed_rate_is_revived_on_its_grid_after_a_clock_was_set_back(path: str, within: bool) -> None:
    """It does not wait for the old time to come again, whether it was set back in its life or between two others."""
    with simulated(path) as (scheduler, clock, _log):
        task = scheduler.schedule("t", stored.fail, FixedRate(60), retry=NO_RETRY)
        assert scheduler.wait_idle(support.TIMEOUT)
        if within:
            clock.step_wall(-HOUR)
    clock = FakeClock(START - HOUR)
    for _ in range(2):  # the first one is told by its store, and tells the second
        with simulated(path, clock) as (scheduler, clock, _log):
            clock.advance(10)
    with simulated(path, clock) as (scheduler, clock, _log):
        assert scheduler.revive(task.id)
        assert scheduler.task(task.id).next_run_at == START - HOUR + 60


@pytest.mark.parametrize("schedule", ["cron", "once"])
def test_what_was_due_runs_whatever_the_new_time_says(path: str, schedule: str) -> None:
    """It waited for a worker when its scheduler ended."""
    made = OneTime(START + 100) if schedule == "once" else CronSchedule("*/30 * * * *")
    with simulated(path) as (scheduler, _clock, _log):
        scheduler.schedule("t", stored.nothing, made, misfire=MisfirePolicy.SKIP)
    due = START + 100 if schedule == "once" else made.next_after(START)  # type: ignore[union-attr]
    stored.execute(path, f"UPDATE owner SET seen_at = {due}, closed_at = {due}")
    with simulated(path, FakeClock(START - HOUR)) as (scheduler, _clock, _log):
        assert [record.due_at for record in scheduler.history()] == [START - HOUR]


def test_a_lost_run_is_of_the_time_that_the_clock_has_now(path: str, after: str) -> None:
    """Its record is not of a time that is yet to come, and what follows counts from now."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.copy, FixedDelay(100, 100), args=(path, after), retry=NO_RETRY,
                           on_exhausted="continue")  # fmt: skip
        clock.advance(100)
    new = START + 100 - HOUR
    stored.execute(after, f"UPDATE tasks SET started_at = {START + 90}")
    with simulated(after, FakeClock(new)) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        (lost,) = scheduler.history()
        assert (lost.outcome, lost.started_at, lost.finished_at) == (Outcome.LOST, new - 10, new)
        assert task.next_run_at == new + 100


def test_a_time_that_nobody_can_have_seen_moves_nothing(path: str) -> None:
    """As it comes of a row that somebody has changed."""
    with simulated(path) as (scheduler, _clock, _log):
        scheduler.schedule("t", stored.nothing, FixedRate(100))
    stored.execute(path, "UPDATE owner SET seen_at = 9e999, closed_at = NULL")
    with simulated(path) as (scheduler, _clock, _log):
        assert [record.due_at for record in scheduler.history()] == [START]


# --- before and at the start ---------------------------------------------------------------------------


def test_a_key_does_not_double_a_task(path: str) -> None:
    """Neither before the start nor after it; `replace` takes the place of the stored one."""
    with simulated(path) as (scheduler, clock, _log):
        first = scheduler.schedule("t", stored.nothing, FixedRate(60), key="k").id
    store = SqlTaskStore(f"sqlite:///{path}")
    scheduler = Scheduler(store=store, clock=clock, workers=1)
    task = scheduler.schedule("t", stored.nothing, FixedRate(60), key="k")
    assert task.id == first
    other = scheduler.schedule("t", stored.nothing, FixedRate(30), key="k", replace=True)
    assert other.id != first
    assert task.status is S.CANCELLED
    scheduler.shutdown()
    with simulated(path, clock) as (scheduler, clock, _log):
        assert [each.status for each in scheduler.tasks()] == [S.CANCELLED, S.SCHEDULED]
        assert scheduler.schedule("t", stored.nothing, FixedRate(30), key="k").id == other.id


def test_a_task_that_was_replaced_stays_so(path: str) -> None:
    """A failed one is neither revived beside the one that has its place, nor has its key when that is cancelled."""
    with simulated(path) as (scheduler, clock, _log):
        old = scheduler.schedule("t", stored.fail, FixedRate(60), retry=NO_RETRY, key="k").id
        new = scheduler.schedule("t", stored.nothing, FixedRate(60), key="k", replace=True).id
    with simulated(path, clock) as (scheduler, clock, _log):
        assert scheduler.dead_letter() == []
        with pytest.raises(SchedulerStateError, match="taken its place"):
            scheduler.revive(old)
        assert scheduler.cancel(new)
    with simulated(path, clock) as (scheduler, _clock, _log):
        assert scheduler.schedule("t", stored.nothing, FixedRate(60), key="k").id not in (old, new)
        assert scheduler.dead_letter() == []


GIVEN: dict[str, Any] = {"name": "t", "action": stored.nothing, "schedule": FixedRate(60), "args": (1,)}


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({}, None),
        ({"args": [1], "kwargs": {}, "priority": 1, "timeout": None}, None),
        ({"schedule": FixedRate(30)}, "schedule"),
        ({"schedule": CronSchedule("* * * * *"), "timeout": 5}, "timeout, schedule"),
        ({"action": stored.fail}, "action"),
        ({"action": lambda *_: None}, "action"),
        ({"args": (2,)}, "args or kwargs"),
        ({"kwargs": {"a": 1}}, "args or kwargs"),
        ({"name": "u", "retry": NO_RETRY, "misfire": MisfirePolicy.SKIP}, "name, retry, misfire"),
        ({"schedule": FixedRate(30), "replace": True}, None),
    ],
)
def test_a_key_whose_task_is_given_otherwise_is_told(
    path: str, other: dict[str, Any], named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in the life of a program: with what differs, and the remedy."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule(**GIVEN, key="k")
    with simulated(path, clock) as (scheduler, _clock, _log):
        for _ in range(2):
            scheduler.schedule(**{**GIVEN, **other}, key="k")
    said = [each for each in caplog.messages if "stays as it is, for" in each]
    assert len(said) == (named is not None)
    if named is not None:
        assert "task task-1 (t) stays as it is, for its key 'k'" in said[0]
        assert f"has another {named}. Give replace=True" in said[0]


class Made:
    """For an argument that is pickled."""

    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.parametrize(
    ("action", "args", "named"),
    [
        (stored.nothing, ({2, 1},), None),
        (stored.nothing, ({2, 3},), "args or kwargs"),
        (stored.nothing, (Made(1),), "args or kwargs"),
        (stored.nothing, (1, 2), "args or kwargs"),  # in JSON, where they were pickled
        (lambda: {1, 2}, (), "action"),
    ],
)
def test_a_pickled_call_that_is_given_otherwise_is_told(
    path: str, action: Any, args: tuple[Any, ...], named: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not opened for that. The order of a set is none of its contents."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, FixedRate(60), args=({1, 2},), key="k")
    with simulated(path, clock) as (scheduler, _clock, _log):
        scheduler.schedule("t", action, FixedRate(60), args=args, key="k")
    said = [each for each in caplog.messages if "stays as it is, for" in each]
    assert [f"has another {named}. " in each for each in said] == ([] if named is None else [True])


def test_a_key_in_the_dead_letter_is_told(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """Once in the life of a program: the task that it gives does not run any more, and what to do."""
    given: dict[str, Any] = {"name": "t", "action": stored.fail, "schedule": OneTime(START), "key": "k"}
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule(**given, retry=NO_RETRY)
        assert scheduler.wait_idle(support.TIMEOUT)
    caplog.clear()
    with simulated(path, clock) as (scheduler, _clock, _log):
        for _ in range(2):
            assert scheduler.schedule(**given, retry=NO_RETRY).status is S.FAILED
    (said,) = caplog.messages
    assert "task task-1 (t) with the key 'k' has failed, and is in the dead letter" in said
    assert "replace=True" in said


def test_what_is_over_is_not_compared(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """A program may give an instant of its own start for what is to be done once."""
    for start in range(2):
        with simulated(path, FakeClock(START + start)) as (scheduler, clock, _log):
            scheduler.schedule("t", stored.nothing, OneTime(clock.now()), key="k")
            assert scheduler.wait_idle(support.TIMEOUT)
    assert caplog.messages == []


def before_start(path: str, clock: FakeClock) -> Scheduler:
    """Return a scheduler as a program has it that schedules by key before it starts."""
    return Scheduler(clock=clock, pool=InlinePool(), store=SqlTaskStore(f"sqlite:///{path}"))


@pytest.mark.parametrize(
    ("policy", "expected", "missed"),
    [
        (MisfirePolicy.RUN_ONCE, [240.0, 300.0], [3, 0]),
        (MisfirePolicy.SKIP, [300.0], [0]),
        (MisfirePolicy.CATCH_UP, [60.0, 120.0, 180.0, 240.0, 300.0], [0, 0, 0, 0, 0]),
    ],
)
def test_what_takes_the_place_of_a_task_has_its_missed_slots(
    path: str, policy: MisfirePolicy, expected: list[float], missed: list[int]
) -> None:
    """With the same schedule, as without `replace`; the policy is the new one's, and the grid the old one's."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, FixedRate(60, start_delay=60), key="k")
    clock.advance(250)
    scheduler = before_start(path, clock)
    rate = FixedRate(60, start_delay=60)
    task = scheduler.schedule("t", stored.nothing, rate, misfire=policy, key="k", replace=True)
    with scheduler:
        assert scheduler.wait_idle(support.TIMEOUT)
        clock.advance(50)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert offsets(task.history) == expected
        assert [record.missed for record in task.history] == missed
        scheduler.engine.check()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_takes_the_place_of_a_task_waits_for_its_slot(path: str, schedule: Any) -> None:
    """A schedule of each kind; and what is not the same begins anew."""
    with simulated(path) as (scheduler, clock, _log):
        due = scheduler.schedule("t", stored.nothing, schedule, key="k").next_run_at
    clock.advance(50)
    with simulated(path, clock) as (scheduler, clock, _log):
        for _ in range(2):
            task = scheduler.schedule("t", stored.nothing, schedule, key="k", replace=True)
            assert task.next_run_at == due
        task = scheduler.schedule("t", stored.nothing, After(7), key="k", replace=True)
        assert task.next_run_at == START + 57
    with simulated(path, clock) as (scheduler, clock, _log):
        assert scheduler.task(task.id).next_run_at == START + 57


def test_a_one_time_task_that_was_missed_runs_in_its_new_form(path: str, tmp_path: Path) -> None:
    """Its only slot passed while nothing ran."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.fail, OneTime(START + 60), key="k")
    clock.advance(250)
    scheduler = before_start(path, clock)
    skipped = scheduler.schedule(
        "t", stored.nothing, OneTime(START + 60), misfire=MisfirePolicy.SKIP, key="k", replace=True
    )
    scheduler.schedule(
        "t", stored.note, OneTime(START + 60), args=(str(tmp_path / "n"),), key="k", replace=True
    )
    with scheduler:
        assert scheduler.wait_idle(support.TIMEOUT)
        assert (tmp_path / "n").exists()
        assert skipped.status is S.CANCELLED


@pytest.mark.parametrize("schedule", [FixedRate(60, start_delay=60), CronSchedule("0 0 * * *")])
def test_what_takes_the_place_of_a_paused_task_is_paused(path: str, schedule: Any) -> None:
    """Also over a further start, and with another schedule; when it is resumed it goes on."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.pause(scheduler.schedule("t", stored.nothing, FixedRate(60, start_delay=60), key="k"))
    clock.advance(250)
    scheduler, log = before_start(path, clock), EventLog()
    scheduler.add_listener(log)
    task_id = scheduler.schedule("t", stored.nothing, schedule, key="k", replace=True).id
    scheduler.shutdown()
    assert [event.status for event in log.events if event.task_id == task_id] == [S.SCHEDULED, S.PAUSED]
    with simulated(path, clock) as (scheduler, clock, _log):
        task = scheduler.task(task_id)
        assert task.status is S.PAUSED
        assert task.next_run_at == (START + 60 if isinstance(schedule, FixedRate) else START + 6400)
        assert scheduler.resume(task)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert [record.missed for record in task.history] == ([3] if isinstance(schedule, FixedRate) else [])


def test_what_takes_the_place_of_a_retry_begins_with_its_first_slot(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The attempts are the new one's; that one of the old is not made is said."""
    with simulated(path) as (scheduler, clock, _log):
        rate = FixedRate(60)
        old = scheduler.schedule(
            "t", stored.fail, rate, retry=RetryPolicy(3, 600.0, max_backoff=600.0), key="k"
        )
        assert scheduler.wait_idle(support.TIMEOUT)
        assert old.status is S.RETRYING
        clock.advance(10)
        new = scheduler.schedule("t", stored.nothing, rate, key="k", replace=True)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert (old.status, offsets(new.history)) == (S.CANCELLED, [10.0])
        scheduler.schedule("t", stored.nothing, rate, key="k", replace=True)
    said = [message for message in caplog.messages if "takes the place of" in message]
    assert len(said) == 1
    assert f"task {new.id} (t) takes the place of {old.id}, " in said[0]


def test_a_task_whose_code_was_missing_goes_on_in_its_new_form(path: str) -> None:
    """It was paused by nobody, and owed its only slot."""
    with simulated(path) as (scheduler, clock, _log):
        old = scheduler.schedule("t", stored.refuse_to_load, OneTime(START + 1), key="k")
        clock.advance(1)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert old.status is S.PAUSED
        new = scheduler.schedule("t", stored.nothing, OneTime(START + 1), key="k", replace=True)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert new.status is S.SUCCEEDED


def test_ids_go_on(path: str) -> None:
    """Also behind one whose task is forgotten, and one of a generator that knows nothing of stores."""

    class Again:
        def __init__(self) -> None:
            self.number = 0

        def next_id(self) -> str:
            self.number += 1
            return f"job-{self.number}"

    with simulated(path, keep_finished=0) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, OneTime(START))
        scheduler.schedule("t", stored.nothing, OneTime(START))
        assert scheduler.wait_idle(support.TIMEOUT)
        assert scheduler.tasks() == []
    with simulated(path, clock) as (scheduler, clock, _log):
        assert scheduler.schedule("t", stored.nothing, OneTime(START)).id == "task-3"
    for expected in ("job-1", "job-2"):
        with simulated(path, clock, ids=Again(), keep_finished=0) as (scheduler, clock, _log):
            assert scheduler.schedule("t", stored.nothing, OneTime(START)).id == expected


def test_what_a_shutdown_gave_back_is_found(path: str) -> None:
    """It was due, and has not begun: it runs at the next start whatever its misfire policy."""
    clock = FakeClock(START)
    scheduler = Scheduler(store=SqlTaskStore(f"sqlite:///{path}"), clock=clock, workers=1)
    task = scheduler.schedule("t", stored.nothing, OneTime(START), misfire=MisfirePolicy.SKIP)
    assert scheduler.shutdown(drain=False).returned == (task.id,)
    clock.advance(100)
    with simulated(path, clock) as (scheduler, clock, _log):
        assert scheduler.wait_idle(support.TIMEOUT)
        assert scheduler.task(task.id).status is S.SUCCEEDED


def test_all_that_is_ready_runs_when_the_clock_moves(path: str) -> None:
    """Also where several wait for the store, one after another."""
    with simulated(path) as (scheduler, clock, _log):
        tasks = [scheduler.schedule("t", stored.nothing, OneTime(START + 1)) for _ in range(5)]
        for task in tasks[1:3]:
            scheduler.pause(task)
        clock.advance(1)
        assert [task.status for task in tasks].count(S.SUCCEEDED) == 3
        for task in tasks[1:3]:
            scheduler.resume(task)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert {task.status for task in tasks} == {S.SUCCEEDED}


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_a_shutdown_while_the_store_is_opened(path: str, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is opened, or served, behind the shutdown is let go of again: the next scheduler gets the store."""
    store = SqlTaskStore(f"sqlite:///{path}")
    scheduler = Scheduler(store=store, pool=InlinePool(), clock=FakeClock(START))
    step = "serve" if late else "open"
    inside, go = threading.Event(), threading.Event()
    original = getattr(store, step)

    def slow(*args: Any) -> Any:
        inside.set()
        assert go.wait(support.TIMEOUT)
        return original(*args)

    monkeypatch.setattr(store, step, slow)
    raised: list[BaseException | None] = []

    def start() -> None:
        try:
            scheduler.start()
        except SchedulerStateError as error:
            raised.append(error)
        else:
            raised.append(None)

    thread = threading.Thread(target=start)
    thread.start()
    assert inside.wait(support.TIMEOUT)
    scheduler.shutdown()
    go.set()
    thread.join(support.TIMEOUT)
    with Scheduler(store=SqlTaskStore(f"sqlite:///{path}"), pool=InlinePool(), clock=FakeClock(START)):
        pass
    assert [each is None for each in raised] == [late]


# --- records of an earlier life -------------------------------------------------------------------------


class Asked(SqlTaskStore):
    """A store that counts who asks for records, and may hang or fail then."""

    def __init__(self, path: str) -> None:
        super().__init__(f"sqlite:///{path}")
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def history(self, *question: Any, **more: Any) -> Any:
        self.asked += 1
        assert self.gate.wait(support.TIMEOUT)
        if self.error is not None:
            raise self.error
        return super().history(*question, **more)


def run_thrice(path: str) -> None:
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, FixedRate(60))
        for _ in range(2):
            clock.advance(60)


def test_a_task_has_the_records_of_its_earlier_life(path: str) -> None:
    """They are read once, at the first use; what runs now comes behind them, and the limit holds."""
    run_thrice(path)
    store = Asked(path)
    with simulated(path, FakeClock(START + 130), store=store, history_limit=4) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert "succeeded" not in repr(task)
        clock.advance(50)
        assert store.asked == 0
        assert offsets(task.history) == [0.0, 60.0, 120.0, 180.0]
        assert [record.run for record in task.history] == [1, 2, 3, 4]
        clock.advance(60)
        assert [record.run for record in task.history] == [2, 3, 4, 5]
        assert store.asked == 1
        assert pickle.loads(pickle.dumps(task)).history == task.history
    assert [record.run for record in task.history] == [2, 3, 4, 5]


def test_the_last_run_may_be_one_of_the_earlier_life(path: str) -> None:
    """Until there is a newer one; the summary tells of it."""
    run_thrice(path)
    with simulated(path, FakeClock(START + 130)) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert task.last_run().run == 3  # type: ignore[union-attr]
        assert "last succeeded" in task.summary()
        clock.advance(50)
        assert task.last_run().run == 4  # type: ignore[union-attr]


def test_a_task_that_never_ran_asks_for_no_records(path: str) -> None:
    """There are none. Nor does a step of the clock, which looks at the last one, with a lock held."""
    with simulated(path) as (scheduler, clock, _log):
        scheduler.schedule("new", stored.nothing, OneTime(START + DAY))
        scheduler.schedule("t", stored.nothing, CronSchedule("* * * * *"))
        clock.advance(60)
    store = Asked(path)
    with simulated(path, FakeClock(START + 70), store=store) as (scheduler, clock, _log):
        new, _task = scheduler.tasks()
        assert (new.history, new.last_run()) == ([], None)
        clock.step_wall(-30)
        assert store.asked == 0


def test_a_store_that_does_not_give_its_records_is_not_waited_for(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in memory is shown; while the one reading hangs nobody else begins another."""
    run_thrice(path)
    store = Asked(path)
    monkeypatch.setattr(earlier, "SECONDS", 0.01)
    with simulated(path, FakeClock(START + 130), store=store) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        clock.advance(50)
        store.gate.clear()
        for _ in range(3):
            assert [record.run for record in task.history] == [4]
        assert store.asked == 1
        store.error = OSError("gone")
        store.gate.set()
        monkeypatch.setattr(earlier, "SECONDS", support.TIMEOUT)
        support.eventually(lambda: task.history and store.asked == 2)
        assert [record.run for record in task.history] == [4]
        store.error = None
        assert [record.run for record in task.history] == [1, 2, 3, 4]


def test_who_holds_a_task_holds_no_scheduler(path: str) -> None:
    """One that was shut down goes when nobody refers to it, whoever has its tasks; they still have their records."""
    run_thrice(path)
    scheduler = Scheduler(store=SqlTaskStore(f"sqlite:///{path}"), pool=InlinePool(), clock=FakeClock(START))
    (task,) = scheduler.tasks()
    scheduler.shutdown()
    gone = weakref.ref(scheduler)
    del scheduler
    gc.collect()
    assert gone() is None
    assert len(task.history) == 3


def test_tasks_move_to_another_store_with_their_calls(path: str, tmp_path: Path) -> None:
    """Read out of one store and saved into another they have their arguments, of which this process opens none."""
    other = str(tmp_path / "other.db")
    with simulated(path) as (scheduler, clock, _log):
        for args, kwargs in (([3, 1],), None), (({3, 1},), {"reverse": True}):
            scheduler.schedule("t", sorted, OneTime(START + 60), args=args, kwargs=kwargs, retry=NO_RETRY)
        scheduler.schedule("t", lambda: "by value", OneTime(START + 60), retry=NO_RETRY)
    source, target = SqlTaskStore(f"sqlite:///{path}"), SqlTaskStore(f"sqlite:///{other}")
    for task in source.load_all():
        target.save(task)
    source.close()
    target.close()
    with simulated(other, clock) as (scheduler, clock, _log):
        tasks = scheduler.tasks()
        clock.advance(100)
        assert [scheduler.wait(task, support.TIMEOUT).result for task in tasks] == [
            [1, 3],
            [3, 1],
            "by value",
        ]
