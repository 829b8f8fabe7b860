"""The life of a task, pair by pair: pause, resume, cancel, kill, revive in every state."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    CronSchedule,
    FakeClock,
    FixedDelay,
    FixedRate,
    InlinePool,
    InMemoryTaskStore,
    MisfirePolicy,
    OneTime,
    Outcome,
    OverrunPolicy,
    RetryPolicy,
    Scheduler,
    TaskKilledError,
    TaskStatus,
    ThreadPool,
)
from procsched._core.models import ExecutionRecord
from procsched.errors import SchedulerStateError, TaskNotFoundError
from procsched.scheduler.gate import Gate
from tests.support import TIMEOUT, eventually
from tests.unit.scheduling import START, Fails, Foreign, Held, offsets, simulated, threaded

S = TaskStatus
ONE_RETRY = RetryPolicy(2, 10.0)


def _nothing() -> None:
    pass


def _fail() -> None:
    raise ValueError("bad row")


# --- pause and resume ----------------------------------------------------------------------------------


def test_paused_task_does_not_start() -> None:
    """A slot that comes while the task is paused starts nothing; resumed, it runs once, late."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, OneTime(START + 5))
        assert scheduler.pause(task)
        assert (task.status, task.is_active) == (S.PAUSED, False)
        clock.advance(10)
        assert scheduler.wait_idle(5)
        assert task.history == []
        assert scheduler.resume(task)
        assert scheduler.wait_idle(5)
        assert task.status is S.SUCCEEDED
        assert offsets(task.history) == [5.0]
        assert task.history[0].started_at == START + 10
        assert task.history[0].missed == 0


def test_resume_before_the_slot_changes_nothing_of_it() -> None:
    """A pause that ends before the slot leaves the slot where it was."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, FixedRate(60, start_delay=60))
        assert scheduler.pause(task)
        clock.advance(30)
        assert scheduler.resume(task)
        assert (task.status, task.next_run_at) == (S.SCHEDULED, START + 60)
        clock.advance(30)
        assert offsets(task.history) == [60.0]


@pytest.mark.parametrize(
    ("policy", "slots", "missed", "counted"),
    [
        (MisfirePolicy.RUN_ONCE, [0.0, 240.0, 300.0], [0, 3, 0], 3),
        (MisfirePolicy.SKIP, [0.0, 300.0], [0, 0], 4),
        (MisfirePolicy.CATCH_UP, [0.0, 60.0, 120.0, 180.0, 240.0, 300.0], [0] * 6, 0),
    ],
)
def test_resume_follows_the_misfire_policy(
    policy: MisfirePolicy, slots: list[float], missed: list[int], counted: int
) -> None:
    """Slots that passed while paused become one run, none, or each its own; later ones keep the grid."""
    with simulated() as (scheduler, clock, log):
        task = scheduler.schedule("t", _nothing, FixedRate(60), misfire=policy)
        assert scheduler.wait_idle(5)
        scheduler.pause(task)
        clock.advance(250)
        assert scheduler.resume(task)
        assert scheduler.wait_idle(5)
        clock.advance(50)
        assert scheduler.wait_idle(5)
        assert offsets(task.history) == slots
        assert [record.missed for record in task.history] == missed
        assert scheduler.stats().counters["missed"] == counted
        assert len([event for event in log.events if event.kind == "missed"]) == (1 if counted else 0)


def test_pause_while_waiting_for_a_worker_is_no_misfire() -> None:
    """What was due and waited for a worker when it was paused runs at resume, whatever the policy."""
    held = Held()
    with threaded() as (scheduler, clock, _):
        scheduler.schedule("long", held, OneTime(START))
        assert held.started.wait(5)
        task = scheduler.schedule("t", _nothing, OneTime(START), misfire=MisfirePolicy.SKIP)
        clock.advance(1)
        assert scheduler.pause(task)
        clock.advance(100)
        assert scheduler.resume(task)
        held.release.set()
        assert scheduler.wait_idle(5)
        assert task.status is S.SUCCEEDED
        assert offsets(task.history) == [0.0]


def test_what_a_run_stands_for_survives_another_pause() -> None:
    """A run that waits and stands for missed slots still says so when it is paused once more."""
    held = Held()
    with threaded() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, FixedRate(60))
        assert scheduler.wait_idle(5)
        scheduler.schedule("long", held, OneTime(START))
        assert held.started.wait(5)
        scheduler.pause(task)
        clock.advance(190)
        for _n in range(2):
            scheduler.resume(task)
            scheduler.pause(task)
        scheduler.resume(task)
        held.release.set()
        assert scheduler.wait_idle(5)
        assert [(r.due_at - START, r.missed) for r in task.history] == [(0.0, 0), (180.0, 2)]  # type: ignore[operator]
        assert scheduler.stats().counters["missed"] == 2


def test_a_pause_in_which_no_slot_passes_takes_none_away() -> None:
    """What a rate has to catch up with passed during its own run, and not in the pause: none is missed."""
    with simulated() as (scheduler, clock, _):

        def long_once() -> None:
            if not task.history:
                clock.advance(25)
                assert scheduler.pause(task)

        rate = FixedRate(10, OverrunPolicy.CATCH_UP, start_delay=10)
        task = scheduler.schedule("t", long_once, rate)
        clock.advance(10)
        assert scheduler.wait_idle(5)
        assert scheduler.resume(task)
        assert scheduler.wait_idle(5)
        assert offsets(task.history) == [10, 20, 30]
        assert scheduler.stats().counters["missed"] == 0


@pytest.mark.parametrize("policy", MisfirePolicy)
@pytest.mark.parametrize(
    ("overrun", "slots", "skipped"),
    [(OverrunPolicy.SKIP, [0], 2), (OverrunPolicy.CATCH_UP, [0, 10, 20], 0)],
)
def test_what_passed_before_a_pause_while_waiting_for_a_worker_is_no_misfire(
    policy: MisfirePolicy, overrun: OverrunPolicy, slots: list[float], skipped: int
) -> None:
    """It is the overrun policy that decides about it, whether the task is paused meanwhile or not."""
    held = Held()
    with threaded() as (scheduler, clock, _):
        scheduler.schedule("long", held, OneTime(START))
        assert held.started.wait(5)
        task = scheduler.schedule("t", _nothing, FixedRate(10, overrun), misfire=policy)
        clock.advance(25)
        assert scheduler.pause(task)
        assert scheduler.resume(task)
        held.release.set()
        assert scheduler.wait_idle(5)
        assert offsets(task.history) == slots
        counters = scheduler.stats().counters
        assert (counters["skipped"], counters["missed"]) == (skipped, 0)


def test_resumed_before_the_start_waits_for_it() -> None:
    """What is due and resumed before the start runs at the start, not before."""
    clock = FakeClock(START)
    scheduler = Scheduler(clock=clock, pool=InlinePool())
    task = scheduler.schedule("t", _nothing, OneTime(START - 1), misfire=MisfirePolicy.SKIP)
    scheduler.pause(task)
    clock.advance(5)
    scheduler.resume(task)
    clock.suspend(5)
    assert not scheduler.wait_idle(0)
    assert (task.status, task.history) == (S.SCHEDULED, [])
    with scheduler:
        assert scheduler.wait_idle(5)
        assert task.status is S.SUCCEEDED


def test_what_waited_runs_also_when_the_clock_was_set_back_meanwhile() -> None:
    """A slot that was due before a pause is no misfire when the wall clock comes to it once more."""
    clock = FakeClock(START)
    scheduler = Scheduler(clock=clock, pool=InlinePool())
    task = scheduler.schedule("t", _nothing, OneTime(START - 2), misfire=MisfirePolicy.SKIP)
    scheduler.pause(task)
    clock.step_wall(-3)
    with scheduler:
        scheduler.resume(task)
        assert scheduler.wait_idle(5)
        assert (task.status, task.next_run_at) == (S.SCHEDULED, START - 2)
        clock.step_wall(2)
        assert scheduler.wait_idle(5)
        assert task.status is S.SUCCEEDED
        assert offsets(task.history) == [-2.0]


def test_a_pause_before_the_start_is_no_reason_to_run_what_is_missed() -> None:
    """What passed before the start is a misfire, paused or not."""
    for paused in (False, True):
        clock = FakeClock(START)
        scheduler = Scheduler(clock=clock, pool=InlinePool())
        task = scheduler.schedule("t", _nothing, OneTime(START + 5), misfire=MisfirePolicy.SKIP)
        clock.advance(10)
        if paused:
            scheduler.pause(task)
        with scheduler:
            assert scheduler.wait_idle(5)
            if paused:
                scheduler.resume(task)
            assert (task.status, task.history) == (S.CANCELLED, [])
            assert scheduler.stats().counters["missed"] == 1


@pytest.mark.parametrize("back", [0, 1, 400])
def test_slots_that_passed_in_a_pause_survive_a_clock_that_is_set_back(back: int) -> None:
    """They follow the misfire policy at the resume, save where the clock is before them again."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, CronSchedule("* * * * *"))
        scheduler.pause(task)
        clock.advance(330)
        if back:
            clock.step_wall(-back)
        assert scheduler.resume(task)
        assert scheduler.wait_idle(5)
        assert [record.missed for record in task.history] == ([] if back == 400 else [4])


def test_what_waited_for_a_worker_follows_a_clock_that_is_set_back_in_a_pause() -> None:
    """A cron task goes on by the new time, and does not wait for the old one to come again."""
    held = Held()
    with threaded() as (scheduler, clock, _):
        scheduler.schedule("long", held, OneTime(START))
        assert held.started.wait(5)
        task = scheduler.schedule("t", _nothing, CronSchedule("* * * * *"))
        clock.advance(60)
        eventually(lambda: len(scheduler.engine.ready) == 1)
        assert scheduler.pause(task)
        clock.step_wall(-86_400)
        assert scheduler.resume(task)
        assert task.next_run_at is not None
        assert clock.now() < task.next_run_at <= clock.now() + 60
        held.release.set()


def test_what_follows_a_run_in_a_pause_goes_by_a_clock_that_is_set_back() -> None:
    """As without the pause: a correction of more than three hours has the cron task begin with the new time."""
    with simulated() as (scheduler, clock, _):

        def pausing() -> None:
            assert scheduler.pause(task)

        task = scheduler.schedule("t", pausing, CronSchedule("* * * * *"))
        clock.advance(60)
        assert scheduler.wait_idle(5)
        clock.step_wall(-86_400)
        assert scheduler.resume(task)
        assert task.next_run_at is not None
        assert clock.now() < task.next_run_at <= clock.now() + 60


def test_what_took_the_place_of_a_task_runs_no_slot_again_by_a_clock_that_is_set_back() -> None:
    """The slot that the old one has run comes a second time, as for a task that was not replaced."""
    schedule = CronSchedule("* * * * *")
    with simulated() as (scheduler, clock, log):
        scheduler.schedule("t", _nothing, schedule, key="k")
        clock.advance(60)
        assert scheduler.wait_idle(5)
        for _ in range(2):
            scheduler.schedule("t", _nothing, schedule, key="k", replace=True)
        for seconds in (-50, 50):
            clock.step_wall(seconds)
            assert scheduler.wait_idle(5)
        assert len(log.runs("t")) == 1


def test_slots_stay_missed_when_their_task_is_replaced_while_its_schedule_is_asked() -> None:
    """The policy decides about them all the same, and not about others."""
    given: dict[str, Any] = {"misfire": MisfirePolicy.SKIP, "key": "k"}
    requests: list[Callable[[], Any]] = []

    def following(record: ExecutionRecord, now: float) -> float:
        if requests:
            requests.pop()()
        assert record.due_at is not None
        return record.due_at + 10

    schedule = Foreign(START + 10, following)
    with simulated() as (scheduler, clock, log):
        scheduler.schedule("t", _nothing, schedule, **given)
        requests.append(lambda: scheduler.schedule("t", _nothing, schedule, replace=True, **given))
        clock.suspend(35)
        assert scheduler.wait_idle(5)
        assert [task.next_run_at for task in scheduler.tasks()] == [None, START + 40]
        assert not log.runs()
        assert scheduler.stats().counters["missed"] == 3


def test_a_one_time_task_is_revived_at_once_also_by_a_clock_that_was_set_back() -> None:
    """Its slot is in the future then."""
    calls = iter([False, True])

    def once_bad() -> None:
        if not next(calls):
            raise ValueError("bad row")

    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", once_bad, OneTime(START), retry=NO_RETRY)
        assert scheduler.wait_idle(5)
        clock.step_wall(-3600)
        assert scheduler.revive(task)
        assert scheduler.wait_idle(5)
        assert task.status is S.SUCCEEDED


def test_a_task_that_was_dropped_while_its_schedule_was_asked_is_not_revived() -> None:
    """It fell off `keep_finished` meanwhile: nobody could stop it any more."""
    other: list[Callable[[], object]] = []

    class Slow:
        steady = False

        def first_run(self, now: float) -> float:
            while other:
                other.pop()()
            return now

        def next_run(self, _record: object, now: float) -> float:
            return now + 60

    clock = FakeClock(START)
    with Scheduler(clock=clock, pool=InlinePool(), keep_finished=1) as scheduler:
        task = scheduler.schedule("t", _fail, Slow(), retry=NO_RETRY)
        assert scheduler.wait_idle(5)
        assert task.status is S.FAILED

        def finish_another() -> None:
            assert scheduler.wait(scheduler.schedule("other", _nothing, OneTime(START)), 5).ok

        def meanwhile() -> None:
            thread = threading.Thread(target=finish_another)
            thread.start()
            thread.join(5)

        other.append(meanwhile)
        with pytest.raises(TaskNotFoundError):
            scheduler.revive(task)
        scheduler.engine.check()


def test_a_retry_is_counted_also_where_the_task_is_paused_meanwhile() -> None:
    """As often as there are further attempts."""
    held = Held()

    def fail() -> None:
        held()
        raise ValueError("bad row")

    with threaded() as (scheduler, clock, log):
        task = scheduler.schedule("t", fail, OneTime(START), retry=RetryPolicy(2, 10.0))
        assert held.started.wait(5)
        scheduler.pause(task)
        held.release.set()
        assert log.wait_for(lambda _events: bool(log.runs("t")), 5)
        scheduler.resume(task)
        clock.advance(20)
        assert scheduler.wait_idle(5)
        assert len(task.history) == 2
        assert scheduler.stats().counters["retried"] == 1


def test_wait_brings_the_answer_of_a_schedule_to_the_end_of_a_run() -> None:
    """Where the waiting thread runs the call itself, it asks the schedule what follows: cron is asked apart."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, CronSchedule("* * * * *"))
        scheduler.pause(task)
        clock.advance(90)
        assert scheduler.resume(task)
        assert scheduler.wait(task, 5).outcome is Outcome.SUCCEEDED
        assert task.status is S.SCHEDULED


def test_wait_runs_a_retry_that_is_due_at_once() -> None:
    """Likewise what is due by the end of an attempt that the waiting thread has run."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", Fails(2), OneTime(START + 5), retry=RetryPolicy(3, 0.0))
        scheduler.pause(task)
        clock.advance(90)
        assert scheduler.resume(task)
        assert scheduler.wait(task, 5).attempt == 3


def test_one_time_slot_missed_with_skip_is_the_end_without_a_run() -> None:
    """A single slot that passed while paused and is skipped leaves the task CANCELLED, counted and told."""
    with simulated() as (scheduler, clock, log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 5), misfire=MisfirePolicy.SKIP)
        scheduler.pause(task)
        clock.advance(10)
        assert scheduler.resume(task)
        assert task.status is S.CANCELLED
        assert scheduler.stats().counters["missed"] == 1
        with pytest.raises(TaskKilledError):
            scheduler.wait(task, 5)
        assert scheduler.wait_idle(5)
        assert [event.kind for event in log.events][-2:] == ["missed", "status"]


def test_resume_while_the_run_is_alive_makes_no_second_run() -> None:
    """A task paused and resumed during its run is RUNNING again, and its end follows as if never paused."""
    held = Held()
    with threaded(4) as (scheduler, _, _log):
        task = scheduler.schedule("t", held, FixedRate(60))
        assert held.started.wait(5)
        assert scheduler.pause(task)
        assert task.status is S.PAUSED
        assert scheduler.resume(task)
        assert task.status is S.RUNNING
        held.release.set()
        assert scheduler.wait_idle(5)
        assert (task.status, task.next_run_at) == (S.SCHEDULED, START + 60)
        assert len(task.history) == 1


@pytest.mark.parametrize(
    ("schedule", "fails", "retry", "status", "after"),
    [
        (OneTime(START), False, NO_RETRY, S.SUCCEEDED, None),
        (OneTime(START), True, NO_RETRY, S.FAILED, None),
        (OneTime(START), True, ONE_RETRY, S.RETRYING, 10.0),
        (FixedRate(60), False, NO_RETRY, S.SCHEDULED, 60.0),
        (FixedDelay(7), False, NO_RETRY, S.SCHEDULED, 7.0),
        (FixedRate(60), True, ONE_RETRY, S.RETRYING, 10.0),
        (FixedRate(60), True, NO_RETRY, S.FAILED, None),
        (Foreign(START, lambda record, now: record.due_at + 30), False, NO_RETRY, S.SCHEDULED, 30.0),
    ],
)
def test_result_while_paused_is_decided_at_resume(
    schedule: object, fails: bool, retry: RetryPolicy, status: TaskStatus, after: float | None
) -> None:
    """A run that ends while paused is recorded; resume then gives exactly what would have followed."""
    with threaded(2) as (scheduler, _, log):
        held = Held()

        def action() -> None:
            held()
            if fails:
                raise ValueError("bad row")

        task = scheduler.schedule("t", action, schedule, retry=retry)  # type: ignore[arg-type]
        assert held.started.wait(5)
        scheduler.pause(task)
        held.release.set()
        assert scheduler.wait_idle(5)
        assert task.status is S.PAUSED
        assert len(task.history) == 1
        assert len(log.runs("t")) == 1
        assert scheduler.dead_letter() == []
        assert scheduler.resume(task)
        assert scheduler.wait_idle(5)
        assert task.status is status
        assert task.attempt == 1
        assert task.next_run_at == (None if after is None else START + after)
        assert scheduler.dead_letter() == ([task.id] if status is S.FAILED else [])
        assert len(log.runs("t")) == 1


def test_retry_that_is_paused_is_told_by_the_new_time() -> None:
    """It waits for a steady time, whatever the schedule: a step of the wall clock moves what is shown."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", Fails(1), OneTime(START), retry=RetryPolicy(2, 60.0))
        assert scheduler.wait_idle(5)
        assert scheduler.pause(task)
        clock.step_wall(1000)
        assert task.next_run_at == START + 1060
        assert scheduler.resume(task)
        assert task.next_run_at == START + 1060


def test_retry_that_passed_while_paused_runs_at_resume() -> None:
    """A backoff that ended while paused is no misfire: the next attempt is due at the resume."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", Fails(1), OneTime(START), retry=ONE_RETRY)
        assert scheduler.wait_idle(5)
        assert task.status is S.RETRYING
        assert scheduler.pause(task)
        clock.advance(100)
        assert scheduler.resume(task)
        assert task.status is S.RETRYING
        assert scheduler.wait_idle(5)
        assert task.status is S.SUCCEEDED
        assert [record.attempt for record in task.history] == [1, 2]
        assert {record.due_at for record in task.history} == {START}


def test_slots_during_the_run_are_skipped_and_those_after_it_missed() -> None:
    """With a run that ends in the midst of a pause, both rules apply, each to its part."""
    held = Held()
    with threaded(2) as (scheduler, clock, _):
        task = scheduler.schedule("t", held, FixedRate(10), misfire=MisfirePolicy.SKIP)
        assert held.started.wait(5)
        scheduler.pause(task)
        clock.advance(35)  # 10, 20, 30 pass during the run
        held.release.set()
        assert scheduler.wait_idle(5)
        clock.advance(30)  # 40, 50, 60 pass after it
        assert scheduler.resume(task)
        counters = scheduler.stats().counters
        assert (counters["skipped"], counters["missed"]) == (3, 3)
        assert task.next_run_at == START + 70


def test_pausing_what_is_paused_or_over_says_false() -> None:
    """Pause and resume answer False where they change nothing."""
    with simulated() as (scheduler, _, log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 5))
        assert not scheduler.resume(task)
        assert scheduler.pause(task)
        assert not scheduler.pause(task)
        assert scheduler.cancel(task)
        events = len(log.events)
        assert not scheduler.pause(task)
        assert not scheduler.resume(task)
        assert scheduler.wait_idle(5)
        assert len(log.events) in (events, 3)
        assert task.status is S.CANCELLED


# --- cancel --------------------------------------------------------------------------------------------


def test_cancel_a_waiting_task() -> None:
    """A cancelled task never starts, whether it waited for its slot, a worker or a retry."""
    held = Held()
    with threaded() as (scheduler, clock, _):
        scheduler.schedule("long", held, OneTime(START))
        assert held.started.wait(5)
        ready = scheduler.schedule("ready", _nothing, OneTime(START))
        later = scheduler.schedule("later", _nothing, OneTime(START + 50))
        clock.advance(1)
        assert scheduler.cancel(ready)
        assert scheduler.cancel(later.id)
        assert not scheduler.cancel(ready)
        held.release.set()
        clock.advance(100)
        assert scheduler.wait_idle(5)
        assert ready.status is later.status is S.CANCELLED
        assert ready.history == later.history == []
        assert scheduler.pending() == 0


def test_cancel_withdraws_a_retry_and_its_run_is_over() -> None:
    """Who waits for the run of a task whose retry is withdrawn gets the record of the failed attempt."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", Fails(5), OneTime(START), retry=ONE_RETRY)
        assert scheduler.wait_idle(5)
        assert scheduler.cancel(task)
        clock.advance(100)
        assert task.status is S.CANCELLED
        assert scheduler.wait(task, 5).outcome is Outcome.FAILED
        assert len(task.history) == 1


def test_cancelled_run_finishes_and_schedules_nothing() -> None:
    """A run in flight goes on after cancel, is recorded with one event, and nothing follows."""
    held = Held()
    with threaded() as (scheduler, clock, log):
        task = scheduler.schedule("t", held, FixedRate(10))
        assert held.started.wait(5)
        assert scheduler.cancel(task)
        assert task.status is S.CANCELLED
        held.release.set()
        assert scheduler.wait_idle(5)
        clock.advance(100)
        assert scheduler.wait_idle(5)
        assert [record.outcome for record in task.history] == [Outcome.SUCCEEDED]
        assert task.status is S.CANCELLED
        runs = log.runs("t")
        assert [event.status for event in runs] == [S.CANCELLED]


def test_cancel_of_what_is_over_changes_nothing() -> None:
    """A finished or failed task keeps its status, and no event is sent."""
    with simulated() as (scheduler, _, log):
        good = scheduler.schedule("good", _nothing, OneTime(START))
        bad = scheduler.schedule("bad", Fails(1), OneTime(START), retry=NO_RETRY)
        assert scheduler.wait_idle(5)
        events = len(log.events)
        for task, status in ((good, S.SUCCEEDED), (bad, S.FAILED)):
            assert not scheduler.cancel(task)
            assert not scheduler.cancel(task, kill=True)
            assert not scheduler.pause(task)
            assert not scheduler.kill(task)
            assert task.status is status
        assert scheduler.wait_idle(5)
        assert len(log.events) == events


def test_kill_is_false_without_a_live_run() -> None:
    """A task that waits has nothing to kill, and keeps its slot."""
    with simulated() as (scheduler, _, _log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 5))
        assert not scheduler.kill(task)
        assert task.status is S.SCHEDULED


# --- failure, dead letter, revive ----------------------------------------------------------------------


def test_attempts_are_retried_until_one_succeeds() -> None:
    """Failed attempts follow each other by the backoff; all belong to one run with one slot."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", Fails(2), OneTime(START), retry=RetryPolicy(3, 1.0, 2.0))
        assert scheduler.wait_idle(5)
        assert (task.status, task.next_run_at) == (S.RETRYING, START + 1)
        clock.advance(1)
        assert (task.status, task.next_run_at) == (S.RETRYING, START + 3)
        clock.advance(2)
        assert task.status is S.SUCCEEDED
        assert [(r.attempt, r.run, r.ok) for r in task.history] == [
            (1, 1, False),
            (2, 1, False),
            (3, 1, True),
        ]
        assert [r.started_at - START for r in task.history] == [0.0, 1.0, 3.0]
        assert task.history[0].error == "ValueError: bad row"


def test_exhausted_recurring_task_goes_to_the_dead_letter_and_revives() -> None:
    """A recurring task whose retries are exhausted is FAILED; revive starts it anew on its own grid."""
    with simulated() as (scheduler, clock, _):
        action = Fails(2)
        task = scheduler.schedule("t", action, FixedRate(60), retry=ONE_RETRY)
        assert scheduler.wait_idle(5)
        clock.advance(10)
        assert task.status is S.FAILED
        assert scheduler.dead_letter() == [task.id]
        clock.advance(200)
        assert len(task.history) == 2
        assert scheduler.revive(task)
        assert (task.status, task.attempt, task.next_run_at) == (S.SCHEDULED, 0, START + 240)
        assert scheduler.dead_letter() == []
        clock.advance(30)
        assert task.history[-1].ok
        assert (task.history[-1].run, offsets(task.history)[-1]) == (2, 240.0)


def test_revived_one_time_task_runs_at_once() -> None:
    """A OneTime is revived for now; any task that has not failed is not revived."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", Fails(1), OneTime(START + 1), retry=NO_RETRY)
        assert not scheduler.revive(task)
        clock.advance(100)
        assert scheduler.revive(task.id)
        assert scheduler.wait_idle(5)
        assert task.status is S.SUCCEEDED
        assert task.history[-1].started_at == START + 100
        assert not scheduler.revive(task)


def test_on_exhausted_continue_keeps_the_schedule() -> None:
    """With on_exhausted="continue" a recurring task goes on; one without a further slot still fails."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", Fails(1), FixedRate(60), retry=NO_RETRY, on_exhausted="continue")
        once = scheduler.schedule("o", Fails(1), OneTime(START), retry=NO_RETRY, on_exhausted="continue")
        assert scheduler.wait_idle(5)
        assert task.status is S.SCHEDULED
        assert once.status is S.FAILED
        assert scheduler.dead_letter() == [once.id]
        clock.advance(60)
        assert [record.ok for record in task.history] == [False, True]


def test_dead_letter_drops_the_oldest() -> None:
    """The dead letter is bounded, and what it drops is counted."""
    with simulated(dead_letter_limit=2) as (scheduler, _, _log):
        tasks = [scheduler.schedule(f"t{n}", Fails(1), OneTime(START), retry=NO_RETRY) for n in range(4)]
        assert scheduler.wait_idle(5)
        assert scheduler.dead_letter() == [tasks[2].id, tasks[3].id]
        assert scheduler.stats().counters["dead_letter_dropped"] == 2


def test_what_is_forgotten_leaves_the_dead_letter_counted() -> None:
    """Of the failed tasks beyond `keep_finished` alone, each once."""
    with simulated(keep_finished=2) as (scheduler, _, _log):
        for times in (1, 0, 1, 1, 0, 0):
            scheduler.schedule("t", Fails(times), OneTime(START), retry=NO_RETRY)
        assert scheduler.dead_letter() == []
        assert scheduler.stats().counters["dead_letter_dropped"] == 3


def test_finished_tasks_are_forgotten_oldest_first() -> None:
    """Terminal tasks beyond the limit are unknown afterwards; live ones are never forgotten."""
    with simulated(keep_finished=2) as (scheduler, _, _log):
        live = scheduler.schedule("live", _nothing, OneTime(START + 1000))
        tasks = [scheduler.schedule(f"t{n}", _nothing, OneTime(START)) for n in range(4)]
        assert scheduler.wait_idle(5)
        assert scheduler.tasks() == [live, *tasks[2:]]
        with pytest.raises(TaskNotFoundError, match="task-2"):
            scheduler.task(tasks[0].id)


def test_history_is_limited() -> None:
    """A task keeps its newest records only."""
    with simulated(history_limit=3) as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, FixedRate(1))
        for _ in range(6):
            clock.advance(1)
        assert offsets(task.history) == [4.0, 5.0, 6.0]
        assert [record.run for record in task.history] == [5, 6, 7]


def test_a_handle_answers_for_a_task_that_is_forgotten() -> None:
    """It has its end and its records, and is as terminal as before; by its id the task is unknown."""
    with simulated(keep_finished=0) as (scheduler, _, _log), simulated(keep_finished=0) as (other, *_):
        done = scheduler.schedule("t", _nothing, OneTime(START))
        failed = scheduler.schedule("t", Fails(1), OneTime(START), retry=NO_RETRY)
        withdrawn = scheduler.schedule("t", _nothing, OneTime(START + 5))
        assert scheduler.cancel(withdrawn)
        told = scheduler.engine.sequence
        for task in (done, failed, withdrawn):
            status = task.status
            for method in (scheduler.cancel, scheduler.kill, scheduler.pause, scheduler.resume):
                assert not method(task)
                with pytest.raises(TaskNotFoundError):
                    method(task.id)
                with pytest.raises(TaskNotFoundError):
                    getattr(other, method.__name__)(task)
            with pytest.raises(TaskNotFoundError):
                scheduler.revive(task)
            assert task.status is status
        assert scheduler.wait(done) is done.last_run()
        assert scheduler.wait(failed).error == "ValueError: bad row"
        with pytest.raises(TaskKilledError, match="cancelled"):
            scheduler.wait(withdrawn)
        done.status = S.SCHEDULED  # changes nothing in the scheduler
        assert not scheduler.cancel(done)
        assert scheduler.engine.sequence == told
        assert scheduler.tasks() == []


def test_nothing_is_kept_of_a_forgotten_task_that_nobody_holds() -> None:
    """Its end is with its handle; and who holds that does not hold the scheduler."""
    with simulated(keep_finished=0) as (scheduler, _, _log):
        handle = weakref.ref(scheduler.schedule("t", _nothing, OneTime(START)))
        held = scheduler.schedule("t", _nothing, OneTime(START))
        engine = weakref.ref(scheduler.engine)
    assert handle() is None
    del scheduler
    gc.collect()
    assert engine() is None
    assert held.last_run() is not None


def test_a_snapshot_stands_for_its_task() -> None:
    """One of the store or of the handle is as good as the handle; one of another scheduler with that id is not."""
    store = InMemoryTaskStore()
    with simulated(store=store) as (scheduler, _, _log), simulated() as (other, _, _other_log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 60))
        theirs = other.schedule("t", _nothing, OneTime(START + 60))
        assert theirs.id == task.id
        for snapshot in (store.get(task.id), store.load_all()[0], task.snapshot()):
            assert snapshot is not None
            assert snapshot is not task
            assert scheduler.pause(snapshot)
            assert scheduler.resume(snapshot)
        for stranger in (theirs, theirs.snapshot()):
            with pytest.raises(TaskNotFoundError):
                scheduler.pause(stranger)
        assert task.status is S.SCHEDULED


# --- waiting -------------------------------------------------------------------------------------------


def test_wait_gives_the_end_of_the_run_not_of_an_attempt() -> None:
    """An attempt that is retried is not the end; the waiter gets the last one."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", Fails(1), OneTime(START), retry=RetryPolicy(2, 0.0))
        record = scheduler.wait(task, 5)
        assert (record.attempt, record.ok) == (2, True)
        assert scheduler.wait(task.id) is record
        clock.advance(1)


def test_wait_on_a_task_that_ended_without_a_run() -> None:
    """There is no record to give: the error says why."""
    with simulated() as (scheduler, _, _log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 5))
        scheduler.cancel(task)
        with pytest.raises(TaskKilledError, match="cancelled"):
            scheduler.wait(task)


@pytest.mark.parametrize("ended", [False, True])
def test_wait_idle_where_no_schedule_is_asked(ended: bool) -> None:
    """Before the start, and behind the end, a clock that was set back has nothing asked that somebody would answer."""
    clock = FakeClock(START)
    scheduler = Scheduler(clock=clock, pool=InlinePool())
    try:
        if ended:
            scheduler.start()
        task = scheduler.schedule("t", _nothing, CronSchedule("* * * * *"))
        if ended:
            scheduler.shutdown()
        clock.step_wall(-120)
        assert scheduler.wait_idle(1)
        if not ended:
            scheduler.start()
            assert scheduler.wait_idle(5)
            assert task.next_run_at is not None
            assert task.next_run_at <= START - 60  # the new time is followed then
    finally:
        scheduler.shutdown()


@pytest.mark.parametrize("pool", [InlinePool, lambda: ThreadPool(1)])
def test_wait_idle_before_the_start(pool: Callable[[], Any]) -> None:
    """What is due stays due until the scheduler is started, so there is no quiet; what is not due does not matter."""
    clock = FakeClock(START)
    scheduler = Scheduler(clock=clock, pool=pool())
    assert scheduler.wait_idle()
    due = scheduler.schedule("t", _nothing, OneTime(START + 5))
    assert scheduler.wait_idle()
    clock.advance(5)
    assert not scheduler.wait_idle(0.001)
    with pytest.raises(SchedulerStateError, match=r"has not been started.*call start\(\) before"):
        scheduler.wait_idle()
    waiting = threading.Thread(target=lambda: waited.append(scheduler.wait_idle(TIMEOUT)))
    waited: list[bool] = []
    waiting.start()
    eventually(lambda: scheduler._idle_gates)
    with scheduler:
        waiting.join(TIMEOUT)
        assert waited == [True]
        assert due.status is S.SUCCEEDED


def test_wait_times_out_in_real_seconds() -> None:
    """A wait ends at its timeout though the clock stands still, and leaves nothing behind."""
    with simulated() as (scheduler, _, _log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 5))
        with pytest.raises(TimeoutError, match=task.id):
            scheduler.wait(task, 0.01)
        assert scheduler.engine.waiting == {}


def test_who_waits_in_vain_is_told_why() -> None:
    """A scheduler that was not started, and a task that is paused, are named with what to do."""
    with Scheduler(clock=FakeClock(START), pool=InlinePool()) as scheduler:
        task = scheduler.schedule("t", _nothing, OneTime(START + 5))
        scheduler.pause(task)
        with pytest.raises(TimeoutError, match=r"the task is paused, and runs again after resume\(\)"):
            scheduler.wait(task, timeout=0)
    scheduler = Scheduler(clock=FakeClock(START), pool=InlinePool())
    task = scheduler.schedule("t", _nothing, OneTime(START + 5))
    with pytest.raises(TimeoutError, match=r"has not been started, call start\(\) before"):
        scheduler.wait(task, timeout=0)


def test_waiter_is_told_when_its_task_is_cancelled() -> None:
    """Who waits for a run that never comes hears of the cancel."""
    with threaded() as (scheduler, _, _log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 5))
        found: list[object] = []

        def wait() -> None:
            try:
                found.append(scheduler.wait(task, 10))
            except TaskKilledError as error:
                found.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: scheduler.engine.waiting)
        scheduler.cancel(task)
        thread.join(5)
        assert isinstance(found[0], TaskKilledError)


@pytest.mark.parametrize("idle", [False, True])
def test_interrupt_between_two_who_are_woken(idle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyboardInterrupt behind the first comes out as it is, and the next step wakes the others."""
    open_gate = Gate.open
    opened: list[Gate] = []

    def interrupted(gate: Gate, *answer: object) -> None:
        open_gate(gate, *answer)  # type: ignore[arg-type]
        opened.append(gate)
        if len(opened) == 1:
            raise KeyboardInterrupt

    held = Held()
    with threaded() as (scheduler, _, _log):
        task = scheduler.schedule("t", held, OneTime(START) if idle else OneTime(START + 100))
        if idle:
            assert held.started.wait(5)
        answers: list[object] = []

        def wait() -> None:
            try:
                answers.append(scheduler.wait_idle(5) if idle else scheduler.wait(task, 5))
            except TaskKilledError:
                answers.append("told")

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(scheduler._idle_gates if idle else task_waiters(scheduler)) == 2)
        monkeypatch.setattr(Gate, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            if idle:
                with scheduler._lock:
                    scheduler._open_idle_gates_locked()
            else:
                scheduler.cancel(task)
        if idle:
            held.release.set()
        for thread in threads:
            thread.join(5)
        assert answers == [True if idle else "told"] * 2
        assert len(set(opened)) >= 2


def task_waiters(scheduler: Scheduler) -> list[object]:
    """Return who waits for the end of a run."""
    return [each for entry in scheduler.engine.waiting.values() for each in entry.waiters or ()]


def test_wait_from_a_listener_is_refused() -> None:
    """A listener that waits would wait for itself; it is told so."""

    class Waits:
        error: BaseException | None = None

        def on_task_event(self, event: object) -> None:
            for call in (lambda: self.scheduler.wait("task-1"), lambda: self.scheduler.wait_idle(1)):
                try:
                    call()
                except SchedulerStateError as error:
                    self.error = error

        scheduler: Scheduler

    listener = Waits()
    with simulated(listeners=[listener]) as (scheduler, _, _log):
        listener.scheduler = scheduler
        scheduler.schedule("t", _nothing, OneTime(START))
        assert scheduler.wait_idle(5)
        assert "listener" in str(listener.error)


def test_wait_idle_from_an_action_is_refused() -> None:
    """An action in this process that waits for quiet would wait for itself."""
    with simulated() as (scheduler, _, _log):
        task = scheduler.schedule("t", lambda: scheduler.wait_idle(1), OneTime(START), retry=NO_RETRY)
        assert scheduler.wait_idle(5)
        assert "SchedulerStateError" in (task.history[0].error or "")


def test_handles_of_another_scheduler_are_unknown() -> None:
    """The same id elsewhere is another task."""
    with simulated() as (scheduler, _, _log), simulated() as (other, _clock, _log2):
        mine = scheduler.schedule("t", _nothing, OneTime(START + 5))
        other.schedule("t", _nothing, OneTime(START + 5))
        with pytest.raises(TaskNotFoundError, match="task-1"):
            other.cancel(mine)
        assert isinstance(mine.history, list)


def test_assigning_to_a_handle_changes_nothing() -> None:
    """A handle shows the task; the scheduler reads nothing back from it."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", _nothing, FixedRate(60))
        task.status, task.generation, task.attempt, task.next_run_at = S.CANCELLED, 99, 7, None
        assert scheduler.wait_idle(5)
        clock.advance(60)
        assert (task.status, task.attempt) == (S.SCHEDULED, 1)
        record: ExecutionRecord = task.history[-1]
        assert (record.run, record.attempt) == (2, 1)
