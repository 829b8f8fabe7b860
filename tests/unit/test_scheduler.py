"""Slots, overruns, clock steps, suspends, priorities, events: the scheduler on a fake clock."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    After,
    CronSchedule,
    EventLog,
    ExecutionRecord,
    FakeClock,
    FixedDelay,
    FixedRate,
    InlinePool,
    InMemoryTaskStore,
    MisfirePolicy,
    OneTime,
    Outcome,
    OverrunPolicy,
    Priority,
    RetryPolicy,
    ScheduledTask,
    ScheduleError,
    Scheduler,
    SchedulerStateError,
    TaskStatus,
    ThreadPool,
)
from procsched._core.models import Dropped, Sealed
from procsched.scheduler.attempts import causes_of
from procsched.workers.base import Ending
from tests import stored, support
from tests.unit.counting import steps
from tests.unit.scheduling import START, Fails, Foreign, Held, offsets, simulated, threaded

S = TaskStatus
CATCH_UP = OverrunPolicy.CATCH_UP


def _nothing() -> None:
    pass


# --- the grid ------------------------------------------------------------------------------------------


def test_grid_does_not_drift_with_late_dispatch() -> None:
    """1,000 slots, each dispatched 300 ms late: every slot is start + k * 60 exactly (rq-scheduler 269)."""
    clock = FakeClock(START)
    with Scheduler(clock=clock, pool=InlinePool(), history_limit=1000) as scheduler:
        task = scheduler.schedule("t", lambda: clock.advance(0.05), FixedRate(60))
        assert scheduler.wait_idle(5)
        for k in range(1, 1000):
            clock.advance(START + k * 60 + 0.3 - clock.now())
        assert offsets(task.history) == [k * 60.0 for k in range(1000)]
        assert scheduler.stats().counters["skipped"] == 0


def test_grid_of_a_tenth_of_a_second_is_exact() -> None:
    """Slots are anchor + k * period with one rounding, also for a period that a float cannot hold."""
    with simulated(history_limit=500) as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, FixedRate(0.1))
        for _ in range(400):
            clock.advance(0.1)
        assert [record.due_at for record in task.history] == [START + k * 0.1 for k in range(401)]


def test_schedule_every_begins_one_interval_from_now() -> None:
    """The first run of schedule_every comes after one interval, and the others keep its grid."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule_every(_nothing, 30)
        assert (task.name, task.task.retry, task.next_run_at) == ("_nothing", NO_RETRY, START + 30)
        for _ in range(3):
            clock.advance(30)
        assert offsets(task.history) == [30.0, 60.0, 90.0]


def test_fixed_delay_counts_from_the_end_retries_included() -> None:
    """The pause begins when the run is over, whatever its outcome, after its last attempt."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule(
            "t",
            Fails(2, clock, lasts=3),
            FixedDelay(10),
            retry=RetryPolicy(2, 5.0),
            on_exhausted="continue",
        )
        assert scheduler.wait_idle(5)
        clock.advance(5)
        assert [r.started_at - START for r in task.history] == [0.0, 8.0]
        assert task.next_run_at == START + 8 + 3 + 10


def test_fixed_delay_zero_goes_on_and_lets_others_run() -> None:
    """A FixedDelay(0) is due again as soon as it ended, and keeps no worker to itself."""
    with Scheduler(pool=ThreadPool(1)) as scheduler:
        busy = scheduler.schedule("busy", _nothing, FixedDelay(0), priority=Priority.LOW)
        other = scheduler.schedule("other", _nothing, OneTime(0))
        assert scheduler.wait(other, 5).ok
        support.eventually(lambda: len(busy.history) > 10)
        assert scheduler.cancel(busy)


def test_one_time_in_the_past_runs_at_once() -> None:
    """An instant that has passed is due now, also with misfire=SKIP and before the start."""
    clock = FakeClock(START)
    scheduler = Scheduler(clock=clock, pool=InlinePool())
    early = scheduler.schedule("early", _nothing, OneTime(START - 100), misfire=MisfirePolicy.SKIP)
    clock.advance(50)
    with scheduler:
        late = scheduler.schedule_at(_nothing, START - 100)
        assert scheduler.wait_idle(5)
        assert early.status is late.status is S.SUCCEEDED
        assert early.history[0].due_at == START - 100


# --- overrun -------------------------------------------------------------------------------------------


def _overrun(schedule: Any, lasts: float, seconds: float, **options: Any) -> tuple[list[float], int]:
    """Let a first run last `lasts` seconds, the others none; return the slots that ran and the skipped."""
    held = Held()
    with threaded(2) as (scheduler, clock, _):
        task = scheduler.schedule("t", held, schedule, **options)
        assert held.started.wait(5)
        clock.advance(lasts)
        held.release.set()
        assert scheduler.wait_idle(5)
        clock.advance(seconds)
        assert scheduler.wait_idle(5)
        return offsets(task.history), scheduler.stats().counters["skipped"]


def test_overrun_skip_goes_to_the_next_slot_in_the_future() -> None:
    """Slots that passed during the run are skipped and counted, the one at this instant included."""
    assert _overrun(FixedRate(10), 35, 5) == ([0.0, 40.0], 3)
    assert _overrun(FixedRate(10), 40, 9) == ([0.0], 4)


def test_overrun_catch_up_runs_each_passed_slot() -> None:
    """Each passed slot becomes a run of its own, one after another."""
    assert _overrun(FixedRate(10, CATCH_UP), 35, 5) == ([0.0, 10.0, 20.0, 30.0, 40.0], 0)


def test_overrun_catch_up_is_bounded_newest_kept() -> None:
    """At most max_catch_up slots are caught up, the newest; the rest is counted as skipped."""
    assert _overrun(FixedRate(10, CATCH_UP), 75, 5, max_catch_up=2) == ([0.0, 60.0, 70.0, 80.0], 5)


def test_cron_slots_during_the_run_are_skipped() -> None:
    """A cron slot that comes during the task's own run is skipped, and counted."""
    start = START - START % 60 + 60
    held = Held()
    with threaded(2) as (scheduler, clock, _):
        clock.advance(start - START - 1)
        task = scheduler.schedule("t", held, CronSchedule("* * * * *"))
        clock.advance(1)
        assert held.started.wait(5)
        clock.advance(150)
        held.release.set()
        assert scheduler.wait_idle(5)
        assert task.next_run_at == start + 180
        assert scheduler.stats().counters["skipped"] == 2


def test_runs_do_not_pile_up() -> None:
    """A 10 s body each second for five minutes: one run at a time, every other slot counted (gocron 439)."""
    with simulated(history_limit=1000) as (scheduler, clock, _):
        lasting = [True]
        task = scheduler.schedule("t", lambda: clock.advance(10) if lasting[0] else None, FixedRate(1))
        while clock.now() < START + 300:
            assert len(scheduler.engine.ready) <= 1
            clock.advance(1)
        lasting[0] = False
        clock.advance(1)  # what the last long one has skipped is known, and there is a short one
        runs = task.history
        for one, next_one in itertools.pairwise(runs):
            assert next_one.started_at >= one.finished_at
        assert offsets(runs) == [11.0 * run for run in range(29)]
        counters = scheduler.stats().counters
        assert (counters["skipped"], counters["missed"]) == (308 + 1 - 29, 0)


# --- the timer is late, or the system slept -----------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "slots", "skipped"),
    [
        (FixedRate(5), [0.0, 5.0], 719),
        (FixedRate(5, CATCH_UP), [0.0, 3590.0, 3595.0, 3600.0], 717),
    ],
)
def test_late_timer_follows_the_overrun_policy(schedule: FixedRate, slots: list[float], skipped: int) -> None:
    """A clock that jumps an hour in one step runs a 5 s job once, or at most max_catch_up times."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, schedule, max_catch_up=3)
        assert scheduler.wait_idle(5)
        clock.advance(3600)
        assert scheduler.wait_idle(5)
        assert offsets(task.history) == slots
        counters = scheduler.stats().counters
        assert (counters["skipped"], counters["missed"]) == (skipped, 0)


@pytest.mark.parametrize(
    ("policy", "slots", "missed"),
    [
        (MisfirePolicy.SKIP, [0.0, 3605.0], 720),
        (MisfirePolicy.RUN_ONCE, [0.0, 3600.0, 3605.0], 719),
        (MisfirePolicy.CATCH_UP, [0.0, 3590.0, 3595.0, 3600.0, 3605.0], 717),
    ],
)
def test_an_hour_asleep_follows_the_misfire_policy(
    policy: MisfirePolicy, slots: list[float], missed: int
) -> None:
    """A laptop that slept an hour does not run a 5 s job 720 times (robfig/cron 26)."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, FixedRate(5), misfire=policy, max_catch_up=3)
        assert scheduler.wait_idle(5)
        clock.suspend(3602)
        assert scheduler.wait_idle(5)
        clock.advance(3)
        assert scheduler.wait_idle(5)
        assert offsets(task.history) == slots
        assert scheduler.stats().counters["missed"] == missed
        assert sum(record.missed for record in task.history) == (missed if len(slots) == 3 else 0)


@pytest.mark.parametrize("policy", list(MisfirePolicy))
def test_ten_years_forward_are_planned_at_once(policy: MisfirePolicy) -> None:
    """Ten years pass asleep under a 1 s task: planned without a step for each slot, at most max_catch_up runs."""
    years = 10 * 365 * 86_400
    with simulated(history_limit=1000) as (scheduler, clock, _):
        for schedule in (FixedRate(1), CronSchedule("* * * * * *"), FixedRate(1, CATCH_UP)):
            scheduler.schedule("t", _nothing, schedule, misfire=policy)
        assert scheduler.wait_idle(5)
        before = {task.id: len(task.history) for task in scheduler.tasks()}
        _none, count = steps(clock.suspend, years)
        assert count < years / 100
        assert scheduler.wait_idle(5)
        for task in scheduler.tasks():
            assert len(task.history) - before[task.id] <= 100


# --- steps of the wall clock ---------------------------------------------------------------------------


@pytest.mark.parametrize("step", [-7200, 7200])
def test_step_of_the_wall_clock_does_not_move_rates(step: float) -> None:
    """The cadence of rates and delays goes on whatever the wall clock is set to (apscheduler 351)."""
    with simulated() as (scheduler, clock, log):
        rate = scheduler.schedule("rate", _nothing, FixedRate(60))
        after = scheduler.schedule_after(_nothing, 90)
        assert scheduler.wait_idle(5)
        clock.advance(30)
        clock.step_wall(step)
        assert rate.next_run_at == START + 60 + step
        assert after.next_run_at == START + 90 + step
        assert len(rate.history) == 1
        clock.advance(29)
        assert len(rate.history) == 1
        clock.advance(1)
        clock.advance(30)
        assert [record.due_at for record in rate.history] == [START, START + 60 + step]
        assert after.history[0].due_at == START + 90 + step
        assert scheduler.wait_idle(5)
        assert [event.kind for event in log.events].count("clock") == 1
        assert scheduler.stats().counters["missed"] == 0


def test_duration_survives_a_step() -> None:
    """A step during a run changes nothing of its duration."""
    with simulated() as (scheduler, clock, _):

        def action() -> None:
            clock.advance(3)
            clock.step_wall(-500)

        record = scheduler.wait(scheduler.schedule("t", action, OneTime(START)), 5)
        assert (record.started_at, record.duration) == (START, 3.0)


def test_one_time_follows_the_new_wall_time() -> None:
    """Set forward past it, a one-time task runs at once; set back, it waits for its instant."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, OneTime(START + 100))
        clock.step_wall(-50)
        clock.advance(100)
        assert task.status is S.SCHEDULED
        clock.step_wall(60)
        assert scheduler.wait_idle(5)
        assert task.status is S.SUCCEEDED


def test_cron_follows_a_clock_set_back_and_runs_no_slot_twice() -> None:
    """Slots that have not run are looked for from the new time; one that has run is not run again."""
    hour = START - START % 3600 + 3600
    clock = FakeClock(hour - 10)
    with Scheduler(clock=clock, pool=InlinePool()) as scheduler:
        hourly = scheduler.schedule("t", _nothing, CronSchedule("0 * * * *"))
        clock.advance(10)
        assert [record.due_at for record in hourly.history] == [hour]
        fresh = scheduler.schedule("f", _nothing, CronSchedule("0 * * * *"))
        clock.step_wall(-7200)
        assert hourly.next_run_at == hour + 3600
        assert fresh.next_run_at == hour - 3600
        for _ in range(3):
            clock.advance(3600)
        assert [record.due_at for record in hourly.history] == [hour, hour + 3600]
        assert [record.due_at for record in fresh.history] == [hour - 3600, hour, hour + 3600]


def test_cron_slots_in_a_step_forward_are_misfires() -> None:
    """Slots that a step forward passed over follow the misfire policy; rates are not touched."""
    hour = START - START % 3600 + 3600
    clock = FakeClock(hour - 10)
    with Scheduler(clock=clock, pool=InlinePool()) as scheduler:
        once = scheduler.schedule("once", _nothing, CronSchedule("0 * * * *"))
        skip = scheduler.schedule("skip", _nothing, CronSchedule("0 * * * *"), misfire=MisfirePolicy.SKIP)
        clock.step_wall(7200 + 20)
        assert scheduler.wait_idle(5)
        assert [(record.due_at, record.missed) for record in once.history] == [(hour + 7200, 2)]
        assert (skip.history, skip.next_run_at) == ([], hour + 10800)


# --- before the start, store, problems ----------------------------------------------------------------


def test_slots_before_the_start_are_misfires() -> None:
    """What passed before start follows the policy; later slots keep the grid of the first."""
    clock = FakeClock(START)
    scheduler = Scheduler(clock=clock, pool=InlinePool())
    task = scheduler.schedule("t", _nothing, FixedRate(10))
    clock.advance(35)
    with scheduler:
        assert scheduler.wait_idle(5)
        clock.advance(5)
        assert [(record.due_at - START, record.missed) for record in task.history] == [(30.0, 3), (40.0, 0)]


def test_failing_store_stops_nothing() -> None:
    """A store that raises once or always: the next slot still runs, and everybody hears of it (PR 1132)."""

    class Broken(InMemoryTaskStore):
        failures = 10**9

        def save(self, task: object) -> None:
            if self.failures:
                self.failures -= 1
                raise OSError("disk full")
            super().save(task)  # type: ignore[arg-type]

    store = Broken()
    with simulated(store=store) as (scheduler, clock, log):
        task = scheduler.schedule("t", _nothing, FixedRate(60))
        for _ in range(3):
            clock.advance(60)
        support.eventually(lambda: len(task.history) == 4)
        assert log.wait_for(lambda events: any(event.kind == "store" for event in events), 5)
        assert any("disk full" in problem for problem in scheduler.stats().problems)
        store.failures = 0
        assert scheduler.wait_idle(10)
        saved = store.get(task.id)
        assert saved is not None
        assert len(saved.history) == 4


def _raises(*_args: object) -> None:
    raise ValueError("no idea")


@pytest.mark.parametrize(
    ("following", "text"),
    [
        (_raises, "ValueError: no idea"),
        (lambda record, now: float("nan"), "nan"),
        (lambda record, now: "soon", "soon"),
    ],
)
def test_schedule_that_fails_takes_its_task_only(
    following: Callable[..., Any], text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception or a senseless answer fails that task, with its record; the timer goes on."""
    with simulated() as (scheduler, clock, log):
        task = scheduler.schedule("t", _nothing, Foreign(START, following))
        other = scheduler.schedule("o", _nothing, FixedRate(60))
        assert scheduler.wait_idle(5)
        clock.advance(60)
        assert task.status is S.FAILED
        assert scheduler.dead_letter() == [task.id]
        assert [record.ok for record in task.history] == [True]
        assert len(other.history) == 2
        stats = scheduler.stats()
        assert stats.counters["schedule_errors"] == 1
        assert any(text in problem and task.id in problem for problem in stats.problems)
        assert scheduler.wait_idle(5)
        assert [event.kind for event in log.events].count("health") == 1
        assert len(log.runs("t")) == 1
        assert text in caplog.text
        assert {record.task_id for record in caplog.records if "no idea" in record.message} <= {task.id}
        if following is _raises:
            assert "schedule failed: Foreign.next_run raised ValueError: no idea" in caplog.text
            assert 'raise ValueError("no idea")' in caplog.text, "the log has the traceback"
        assert not scheduler._raised


def test_what_pool_and_scheduler_count_under_one_name_is_added_up() -> None:
    """An answer that came too late may be found out by either."""

    class Counting(InlinePool):
        def stats(self) -> Any:
            return super().stats()[0], {"late_results": 3, "spawned": 1}

    with Scheduler(pool=Counting()) as scheduler:
        scheduler.engine.counters["late_results"] = 2
        counters = scheduler.stats().counters
        assert (counters["late_results"], counters["spawned"], counters["started"]) == (5, 1, 0)


def test_foreign_schedule_never_runs_on_a_thread_of_the_pool() -> None:
    """A schedule of the user's is asked by the caller of schedule, or by the timer."""
    with Scheduler(pool=ThreadPool(1)) as scheduler:
        answers = iter([0.0, None])
        schedule = Foreign(0.0, lambda record, now: next(answers))
        task = scheduler.schedule("t", _nothing, schedule)
        support.eventually(lambda: task.status is S.SUCCEEDED)
        assert schedule.threads == ["MainThread", "procsched-timer", "procsched-timer"]


def test_foreign_steady_schedule_lives_on_the_steady_line() -> None:
    """A schedule with steady = True is given times that a step of the wall clock did not bend."""
    seen: list[tuple[float | None, float, float]] = []

    def following(record: Any, now: float) -> float | None:
        seen.append((record.due_at, record.started_at, now))
        return record.due_at + 10 if len(seen) < 3 else None

    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, Foreign(lambda now: now + 10, following, steady=True))
        clock.advance(10)
        clock.step_wall(1000)
        clock.advance(10)
        clock.advance(10)
        assert seen == [(START + t, START + t, START + t) for t in (10.0, 20.0, 30.0)]
        assert offsets(task.history) == [10.0, 1020.0, 1030.0]


def test_foreign_schedule_without_passed_is_stepped_through() -> None:
    """Misfires of a schedule that only knows the next slot are found one by one, within a bound."""
    with simulated() as (scheduler, clock, _):
        every = Foreign(START, lambda record, now: record.due_at + 10)
        task = scheduler.schedule("t", _nothing, every)
        assert scheduler.wait_idle(5)
        scheduler.pause(task)
        clock.advance(45)
        scheduler.resume(task)
        assert scheduler.wait_idle(5)
        assert [(r.due_at - START, r.missed) for r in task.history] == [(0.0, 0), (40.0, 3)]  # type: ignore[operator]


@pytest.mark.parametrize("first", [None, _raises, lambda now: float("inf")])
def test_schedule_without_a_first_run_is_refused(first: Any) -> None:
    """Nothing is registered when a schedule never yields, raises or answers nonsense at the start."""
    with simulated() as (scheduler, _, _log):
        with pytest.raises(ScheduleError):
            scheduler.schedule("t", _nothing, Foreign(first))
        assert scheduler.tasks() == []
        assert scheduler.schedule("t", _nothing, OneTime(START)).id == "task-1"


def test_timer_survives_its_own_failure(caplog: pytest.LogCaptureFixture) -> None:
    """An error in the timer's own pass is logged and shown; the next slot still runs."""

    class Shaky(FakeClock):
        broken = 0

        def awake(self) -> float:
            if self.broken and threading.current_thread().name == "procsched-timer":
                self.broken -= 1
                raise RuntimeError("shaky")
            return super().awake()

    clock = Shaky(START)
    with Scheduler(clock=clock, pool=ThreadPool(1)) as scheduler:
        task = scheduler.schedule("t", _nothing, FixedRate(60))
        assert scheduler.wait_idle(5)
        clock.broken = 2
        clock.advance(60)
        support.eventually(lambda: clock.broken == 0)
        assert scheduler.wait_idle(5)
        clock.advance(60)
        assert scheduler.wait_idle(5)
        assert len(task.history) == 3
        support.eventually(lambda: any("shaky" in text for text in scheduler.stats().problems))
    assert "the timer failed" in caplog.text


# --- order ---------------------------------------------------------------------------------------------


def test_high_priority_is_the_next_start() -> None:
    """Pool busy, 50 LOW ready, then one HIGH: the HIGH one starts next (dramatiq 508)."""
    held = Held()
    with threaded() as (scheduler, clock, log):
        scheduler.schedule("long", held, OneTime(START))
        assert held.started.wait(5)
        for n in range(50):
            scheduler.schedule(f"low-{n}", _nothing, OneTime(START), priority=Priority.LOW)
        clock.advance(1)
        scheduler.schedule("high", _nothing, OneTime(START + 1), priority=Priority.HIGH)
        scheduler.wake()
        held.release.set()
        assert scheduler.wait_idle(5)
        order = [event.name for event in log.events if event.status is S.RUNNING]
        assert order == ["long", "high", *(f"low-{n}" for n in range(50))]


def test_earlier_due_time_starts_first_then_arrival() -> None:
    """Within a priority the earlier slot goes first, and what came first among equals."""
    held = Held()
    with threaded() as (scheduler, clock, log):
        scheduler.schedule("long", held, OneTime(START))
        assert held.started.wait(5)
        for name, at in (("c", 3), ("a", 1), ("b1", 2), ("b2", 2)):
            scheduler.schedule(name, _nothing, OneTime(START + at))
        scheduler.schedule("b3", _nothing, After(2))
        clock.advance(5)
        held.release.set()
        assert scheduler.wait_idle(5)
        order = [event.name for event in log.events if event.status is S.RUNNING]
        assert order[1:] in (["a", "b1", "b2", "b3", "c"], ["a", "b3", "b1", "b2", "c"])


def test_earlier_entry_wakes_the_timer() -> None:
    """A task that is due sooner than what the timer waits for is not late."""
    with Scheduler(pool=ThreadPool(1)) as scheduler:
        scheduler.schedule("far", _nothing, OneTime(time.time() + 3600))
        support.eventually(lambda: scheduler._timer_waits)
        near = scheduler.schedule("near", _nothing, After(0.01))
        assert scheduler.wait(near, 5).ok
        assert scheduler.pending() == 1


@pytest.mark.slow
def test_many_tasks_cost_logarithmic_time_and_leave_no_tombstones() -> None:
    """20,000 tasks are added and cancelled: the heap is pruned a few times, and keeps few that are stale."""
    with Scheduler(pool=InlinePool(), clock=FakeClock(START), keep_finished=10) as scheduler:
        tasks = [scheduler.schedule("t", _nothing, OneTime(START + 1000 + n)) for n in range(20_000)]
        assert scheduler.pending() == 20_000
        pruned, heap = 0, len(scheduler.engine.due)
        for task in tasks[:-10]:
            scheduler.cancel(task)
            pruned += len(scheduler.engine.due) < heap
            heap = len(scheduler.engine.due)
        assert 0 < pruned <= len(tasks).bit_length()  # each time it was half of it at least that went
        stats = scheduler.stats()
        assert scheduler.pending() == 10
        assert stats.heap - stats.tombstones == 10
        assert stats.tombstones <= 10
        assert stats.tasks == 20


# --- keys, names, results, events ----------------------------------------------------------------------


def test_key_keeps_one_task() -> None:
    """The same key gives the same handle; replace=True takes its place; a cancelled one gives it up."""
    with simulated() as (scheduler, _, _log):
        first = scheduler.schedule("t", _nothing, FixedRate(60, start_delay=60), key="nightly")
        assert scheduler.schedule("other", _nothing, OneTime(START + 1), key="nightly") is first
        assert first.name == "t"
        second = scheduler.schedule("t2", _nothing, OneTime(START + 9), key="nightly", replace=True)
        assert first.status is S.CANCELLED
        assert (second.status, second.task.key) == (S.SCHEDULED, "nightly")
        scheduler.cancel(second)
        third = scheduler.schedule("t3", _nothing, OneTime(START + 9), key="nightly")
        assert third is not second


def test_replaced_task_finishes_its_run() -> None:
    """A live run of a replaced task goes on and is recorded; the new task starts beside it."""
    held = Held()
    with threaded(2) as (scheduler, _, _log):
        old = scheduler.schedule("old", held, FixedRate(60), key="k")
        assert held.started.wait(5)
        new = scheduler.schedule("new", _nothing, OneTime(START), key="k", replace=True)
        assert scheduler.wait(new, 5).ok
        held.release.set()
        assert scheduler.wait_idle(5)
        assert (old.status, len(old.history)) == (S.CANCELLED, 1)


def test_what_takes_the_place_of_a_task_catches_up_with_no_more_than_it_may() -> None:
    """The newest of the slots for which the old one waits; the others are skipped, and counted."""
    rate, held = FixedRate(10), Held()
    with threaded(1) as (scheduler, clock, _log):
        old = scheduler.schedule("old", _nothing, rate, misfire=MisfirePolicy.CATCH_UP, key="k")
        assert scheduler.wait(old, 5).ok
        assert scheduler.pause(old)
        scheduler.schedule("held", held, OneTime(START))
        assert held.started.wait(5)
        clock.advance(65)
        assert scheduler.resume(old)
        new = scheduler.schedule(
            "new", _nothing, rate, misfire=MisfirePolicy.CATCH_UP, max_catch_up=2, key="k", replace=True
        )
        held.release.set()
        assert scheduler.wait_idle(5)
        assert [record.due_at - START for record in new.history] == [50.0, 60.0]
        assert scheduler.stats().counters["skipped"] == 4


@pytest.mark.parametrize("own", [False, True], ids=["given", "own"])
def test_a_failed_task_that_was_replaced_is_not_revived(own: bool) -> None:
    """It leaves the dead letter: else the old one would run beside the new one."""
    schedule: Any = Foreign(lambda now: now) if own else FixedRate(60)
    with simulated() as (scheduler, _, _log):
        old = scheduler.schedule("old", Fails(9), schedule, retry=NO_RETRY, key="k")
        assert scheduler.wait_idle(5)
        assert scheduler.dead_letter() == [old.id]
        new = scheduler.schedule("new", _nothing, FixedRate(60, start_delay=60), key="k", replace=True)
        assert scheduler.dead_letter() == []
        with pytest.raises(SchedulerStateError, match="taken its place under the key 'k'"):
            scheduler.revive(old)
        assert (old.status, new.status) == (S.FAILED, S.SCHEDULED)


def test_retries_of_the_convenience_calls() -> None:
    """retries=n means n more tries, one second apart."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule_at(Fails(2), START, retries=2, name="mine")
        clock.advance(1)
        clock.advance(1)
        assert [record.started_at - START for record in task.history] == [0.0, 1.0, 2.0]
        assert (task.status, task.name) == (S.SUCCEEDED, "mine")
        assert scheduler.schedule_after(Fails(0), 5).name == "Fails"


def test_events_are_numbered_and_one_carries_the_record() -> None:
    """Numbers grow by one with each change, and each attempt's record is in exactly one event."""
    with simulated() as (scheduler, clock, log):
        task = scheduler.schedule("t", Fails(1), OneTime(START), retry=RetryPolicy(2, 1.0))
        clock.advance(1)
        assert scheduler.wait_idle(5)
        events = log.events
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert [event.status for event in events] == [
            S.SCHEDULED,
            S.RUNNING,
            S.RETRYING,
            S.RUNNING,
            S.SUCCEEDED,
        ]
        assert [event.record for event in log.runs("t")] == task.history


def test_listener_added_later_hears_from_then_on() -> None:
    """add_listener works on a running scheduler that had none."""
    with Scheduler(clock=FakeClock(START), pool=InlinePool()) as scheduler:
        scheduler.schedule("a", _nothing, OneTime(START))
        log = EventLog()
        scheduler.add_listener(log)
        scheduler.schedule("b", _nothing, OneTime(START))
        assert scheduler.wait_idle(5)
        assert {event.name for event in log.events} == {"b"}


def test_large_result_is_dropped_and_said_so() -> None:
    """A pickled result beyond the limit is not kept; the record says how large it was."""
    with simulated(result_limit=10) as (scheduler, _, _log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 1))
        with scheduler._lock:
            scheduler.engine.promote(START + 1, START + 1, 1)
        call: Any = scheduler.next_call()
        call.ended(Ending(Outcome.SUCCEEDED, result=Sealed(b"x" * 11)))
        assert task.history[0].result == Dropped(11)


@pytest.mark.parametrize("pool", [lambda: ThreadPool(1), InlinePool])
def test_of_results_in_this_process_bytes_and_texts_are_measured(pool: Callable[[], Any]) -> None:
    """By their length; anything else is kept as it is."""
    with Scheduler(pool=pool(), result_limit=10) as scheduler:

        def result_of(value: object) -> Any:
            return scheduler.wait(scheduler.schedule("t", lambda: value, OneTime(0)), 5).result

        for fits in (b"x" * 10, bytearray(10), "x" * 10, ["x" * 11], None):
            assert result_of(fits) is fits
        for large in (b"x" * 11, bytearray(11), "x" * 11):
            assert result_of(large) == Dropped(11)


class Recording(InMemoryTaskStore):
    """Notes the status of each snapshot that it is to save."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, TaskStatus]] = []

    def save(self, task: ScheduledTask) -> None:
        self.seen.append((task.id, task.status))


class Committing(Recording):
    """Likewise, of several at once."""

    def save(self, task: ScheduledTask) -> None:
        raise AssertionError("it has commit")

    def commit(self, changes: Sequence[tuple[ScheduledTask, ExecutionRecord | None]]) -> None:
        self.seen += [(task.id, task.status) for task, _record in changes]


def _every_status(scheduler: Scheduler, clock: FakeClock) -> None:
    """Lead tasks through each status there is, with all that a user may ask."""

    def settle() -> None:
        # A database may be given two states of a task together: then nobody ever sees the first of them.
        assert scheduler.wait_idle(5)
        assert scheduler.writer is not None
        assert scheduler.writer.flush(5)

    # None is due when it is scheduled or revived, for the same reason.
    task = scheduler.schedule(
        "t", stored.fail, FixedRate(10.0, start_delay=1.0), retry=RetryPolicy(3, 1.0, 1.0)
    )
    scheduler.schedule("rate", stored.nothing, FixedRate(1.0, start_delay=1.0))
    for passes in (0, 1):
        clock.advance(passes)
        settle()
        assert scheduler.pause(task)
        assert scheduler.resume(task)
    for _ in range(2):
        clock.advance(1)
        settle()
    assert task.status is S.FAILED
    assert scheduler.revive(task)
    clock.advance(8)
    settle()
    assert scheduler.cancel(task)
    scheduler.schedule("once", stored.nothing, OneTime(START + 20))
    clock.advance(9)
    settle()


EVERY_STATUS = {
    "t": [
        S.SCHEDULED, S.PAUSED, S.SCHEDULED, S.RUNNING, S.RETRYING, S.PAUSED, S.RETRYING, S.RUNNING, S.RETRYING,
        S.RUNNING, S.FAILED, S.SCHEDULED, S.RUNNING, S.RETRYING, S.CANCELLED,
    ],
    "rate": [S.SCHEDULED, *[S.RUNNING, S.SCHEDULED] * 5],
    "once": [S.SCHEDULED, S.RUNNING, S.SUCCEEDED],
}  # fmt: skip


@pytest.mark.parametrize("kind", [InMemoryTaskStore, Recording, Committing])
def test_a_store_is_written_at_every_change_of_status(
    kind: type[InMemoryTaskStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given the very states, in the very order, that the events tell; none is left out, and none comes twice."""
    store = kind()
    seen: list[tuple[str, TaskStatus]] = getattr(store, "seen", [])
    monkeypatch.setattr(store, "keep", lambda task: seen.append((task.id, task.status)))
    with simulated(store=store) as (scheduler, clock, log):
        _every_status(scheduler, clock)
        told = [(event.task_id, event.status) for event in log.events if event.kind == "status"]
        names = {task.id: task.name for task in scheduler.tasks()}
    assert seen == told
    for task_id, name in names.items():
        assert [status for each, status in seen if each == task_id] == EVERY_STATUS[name]


def test_a_database_is_written_at_every_change_of_status(tmp_path: Path) -> None:
    """Each row goes through the very states that the events tell, as a trigger in the database sees it."""
    path = tmp_path / "jobs.db"
    with stored.simulated(path):
        pass
    stored.execute(path, "CREATE TABLE seen (name TEXT, status TEXT)")
    for when in ("INSERT", "UPDATE OF status"):
        stored.execute(
            path,
            f"CREATE TRIGGER on_{when.split()[0]} AFTER {when} ON tasks BEGIN "
            "INSERT INTO seen VALUES (new.name, new.status); END",
        )
    with stored.simulated(path) as (scheduler, clock, _log):
        _every_status(scheduler, clock)
    for name, expected in EVERY_STATUS.items():
        found = stored.rows(path, f"SELECT status FROM seen WHERE name = '{name}' ORDER BY rowid")
        # What says that an attempt is to start, and that it has, may be two writes.
        assert [status for status, _again in itertools.groupby(each for (each,) in found)] == expected


def test_store_has_the_newest_state() -> None:
    """With its record, and it forgets what the scheduler forgets."""
    store = InMemoryTaskStore()
    with simulated(store=store, keep_finished=1) as (scheduler, _, _log):
        first = scheduler.schedule("a", _nothing, OneTime(START))
        saved = store.get(first.id)
        assert saved is not None
        assert (saved.status, len(saved.history)) == (S.SUCCEEDED, 1)
        second = scheduler.schedule("b", _nothing, OneTime(START))
        assert store.get(first.id) is None
        assert store.get(second.id) is not None


def test_clock_with_only_now_needs_wake() -> None:
    """A plain callable is a clock; who moves it calls wake()."""
    now = [START]
    with Scheduler(clock=lambda: now[0], pool=ThreadPool(1)) as scheduler:
        task = scheduler.schedule("t", _nothing, OneTime(START + 60))
        now[0] += 60
        scheduler.wake()
        assert scheduler.wait(task, 5).started_at == START + 60


def test_inline_pool_on_the_real_clock_runs_in_the_timer_thread() -> None:
    """Without a fake clock the InlinePool belongs to the timer."""
    names: list[str] = []
    with Scheduler(pool=InlinePool()) as scheduler:
        task = scheduler.schedule("t", lambda: names.append(threading.current_thread().name), OneTime(0))
        assert scheduler.wait(task, 5).ok
    assert names == ["procsched-timer"]


def test_action_may_use_the_scheduler_inline() -> None:
    """An action of the InlinePool may schedule, cancel and advance; what becomes due runs after it."""
    order: list[str] = []
    with simulated() as (scheduler, clock, _):

        def outer() -> None:
            order.append("outer begins")
            scheduler.schedule("inner", lambda: order.append("inner"), OneTime(START))
            clock.advance(10)
            scheduler.cancel(victim)
            order.append("outer ends")

        victim = scheduler.schedule("victim", _nothing, OneTime(START + 50))
        later = scheduler.schedule("later", lambda: order.append("later"), OneTime(START + 5))
        scheduler.schedule("outer", outer, OneTime(START))
        assert order == ["outer begins", "outer ends", "inner", "later"]
        assert victim.status is S.CANCELLED
        assert later.status is S.SUCCEEDED


def test_log_records_carry_fields(caplog: pytest.LogCaptureFixture) -> None:
    """Log records name the task, its attempt and the pid as fields."""
    with caplog.at_level(logging.DEBUG, "procsched"), simulated() as (scheduler, _, _log):
        task = scheduler.schedule("t", Fails(1), OneTime(START), retry=NO_RETRY)
        assert scheduler.wait_idle(5)
    found = [record for record in caplog.records if getattr(record, "task_id", None) == task.id]
    assert [(r.task_name, r.attempt, r.levelname) for r in found] == [("t", 1, "WARNING")]  # type: ignore[attr-defined]
    assert "ValueError: bad row" in found[0].getMessage()


def test_the_log_tells_why_a_run_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    """Below the line about the last attempt is its traceback; about those before it only where all is to be told."""
    retry = RetryPolicy(max_attempts=2, initial_backoff=0)
    for level, told in ((logging.INFO, [False, True]), (logging.DEBUG, [True, True])):
        caplog.clear()
        with caplog.at_level(level, "procsched"), simulated() as (scheduler, _, _log):
            scheduler.schedule("t", Fails(2), OneTime(START), retry=retry)
            assert scheduler.wait_idle(5)
        messages = [record.getMessage() for record in caplog.records if "ended as" in record.getMessage()]
        assert ["\n  Traceback (most recent call last):\n" in text for text in messages] == told
        assert messages[-1].endswith("ValueError: bad row")


def test_the_log_tells_where_a_run_hung() -> None:
    """The stack of a run that was ended stands below the line as well, behind what it raised."""
    record = ExecutionRecord(
        1, 0.0, 1.0, ok=False, timed_out=True, traceback="of it\n", stack="  File x, line 1\n"
    )
    assert causes_of(record) == "\nof it\nwhere it was:\n  File x, line 1"
    assert causes_of(ExecutionRecord(1, 0.0, 1.0, ok=True)) == ""


class _Leaves:
    """A schedule that raises what is no Exception."""

    def first_run(self, now: float) -> float:
        """Run at once."""
        return now

    def next_run(self, record: object, now: float) -> float:
        """Leave."""
        raise SystemExit(3)


def test_a_schedule_that_leaves_does_not_end_the_timer() -> None:
    """SystemExit out of a schedule fails its own task; the timer goes on."""
    with Scheduler(pool=ThreadPool(1)) as scheduler:
        bad = scheduler.schedule("leaves", abs, _Leaves(), args=(1,))
        good = scheduler.schedule_after(abs, 0.05, args=(-2,))
        assert scheduler.wait(good, 20).result == 2
        assert scheduler.wait_idle(20)
        assert bad.status is TaskStatus.FAILED
