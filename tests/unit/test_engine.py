"""Interleavings, step by step: what is late, stale, killed or asked at the same moment as something else.

The pool of these tests hands nothing to anybody: the test decides when a call ends, and how.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    CronSchedule,
    EventLog,
    FakeClock,
    FixedDelay,
    FixedRate,
    MisfirePolicy,
    OneTime,
    Outcome,
    RetryPolicy,
    Scheduler,
    ShutdownReport,
    TaskStatus,
)
from procsched._core.entries import BY_SHUTDOWN
from procsched.scheduler.attempts import Attempt
from procsched.workers.base import Ending
from tests import support
from tests.unit.scheduling import START, Foreign, offsets

S = TaskStatus


class ManualPool:
    """A pool of one thread's making: calls start when pumped and end when the test says so."""

    inline = True

    def __init__(self, size: int = 1, can_kill: bool = True) -> None:
        self.size = size
        self.can_kill = can_kill
        self.calls: list[Attempt] = []
        self.killed: list[tuple[str, str]] = []
        self.ends_when_killed = True
        self.deadline: float | None = None
        self.pokes = 0
        self.source: Any = None

    def pack(self, action: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return action

    def start(self, source: Any, clock: Any) -> None:
        self.source = source

    def pump(self) -> None:
        while len(self.calls) < self.size:
            call = self.source.next_call()
            if call is None:
                return
            self.calls.append(call)

    def end(
        self, outcome: Outcome = Outcome.SUCCEEDED, call: Attempt | None = None, error: str = "because"
    ) -> None:
        """End a call, the oldest by default."""
        call = call or self.calls[0]
        if call in self.calls:
            self.calls.remove(call)
        call.ended(Ending(outcome, None if outcome is Outcome.SUCCEEDED else error))
        self.pump()

    def kill(self, call: Attempt, reason: str) -> bool:
        if call not in self.calls or not self.can_kill:
            return False
        self.killed.append((call.task_id, reason))
        if self.ends_when_killed:
            self.end(Outcome.KILLED, call, reason)
        return True

    def poke(self) -> None:
        self.pokes += 1

    def next_deadline(self) -> float | None:
        return self.deadline

    def stats(self) -> tuple[tuple[Any, ...], dict[str, int]]:
        return (), {"spawned": 3}

    def shutdown(self, timeout: float) -> None:
        for call in list(self.calls):
            self.end(Outcome.KILLED, call)


@contextmanager
def manual(size: int = 1, **options: Any) -> Iterator[tuple[Scheduler, FakeClock, ManualPool]]:
    """Give a scheduler on a pool that the test drives."""
    clock, pool = FakeClock(START), ManualPool(size)
    scheduler = Scheduler(clock=clock, pool=pool, **options)  # type: ignore[arg-type]
    scheduler.start()
    try:
        yield scheduler, clock, pool
        scheduler.engine.check()
    finally:
        scheduler.shutdown(timeout=0)
        scheduler.engine.check()


def _nothing() -> None:
    pass


# --- kill ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "status", "after"),
    [
        (OneTime(START), S.CANCELLED, None),
        (FixedRate(60), S.SCHEDULED, 60.0),
        (FixedDelay(7), S.SCHEDULED, 12.0),
        (CronSchedule("* * * * * *"), S.SCHEDULED, 7.0),
    ],
)
def test_kill_ends_the_run_and_leaves_the_schedule(
    schedule: Any, status: TaskStatus, after: float | None
) -> None:
    """KILLED does not follow the retry policy: the next slot comes, or the task is CANCELLED."""
    with manual() as (scheduler, clock, pool):
        task = scheduler.schedule("t", _nothing, schedule, retry=RetryPolicy(5))
        clock.advance(1 if isinstance(schedule, CronSchedule) else 0)
        assert task.status is S.RUNNING
        clock.advance(5)
        assert scheduler.kill(task)
        scheduler.wake()
        assert pool.killed == [(task.id, "killed by request")]
        assert [record.outcome for record in task.history] == [Outcome.KILLED]
        assert task.status is status
        assert task.next_run_at == (None if after is None else START + after)
        assert not scheduler.kill(task)
        assert scheduler.dead_letter() == []


def test_kill_that_loses_the_race_changes_nothing() -> None:
    """A run that ended by itself first is what it was; the reason of the kill is not kept for the next run."""
    with manual() as (scheduler, clock, pool):
        task = scheduler.schedule("t", _nothing, FixedRate(60))
        pool.ends_when_killed = False
        assert scheduler.kill(task)
        pool.end(Outcome.SUCCEEDED)
        assert [record.outcome for record in task.history] == [Outcome.SUCCEEDED]
        clock.advance(60)
        pool.end(Outcome.FAILED)
        assert task.status is S.RETRYING


@pytest.mark.parametrize(("error", "status"), [("killed by request", S.CANCELLED), (BY_SHUTDOWN, S.RETRYING)])
def test_of_a_kill_and_a_shutdown_the_pool_knows_which_was_first(error: str, status: TaskStatus) -> None:
    """Whoever asked first by the scheduler's lock may come second to the pool: the record says what it was."""
    with manual() as (scheduler, _, pool):
        task = scheduler.schedule("t", _nothing, OneTime(START), retry=RetryPolicy(5))
        call = pool.calls[0]
        pool.ends_when_killed = False
        assert scheduler.kill(task)
        pool.end(Outcome.KILLED, call, error)
        assert [record.error for record in task.history] == [error]
        assert task.status is status


def test_kill_in_vain_is_forgotten() -> None:
    """Where the pool cannot end a run, a later shutdown counts as its own."""
    with manual() as (scheduler, _, pool):
        task = scheduler.schedule("t", _nothing, OneTime(START), retry=RetryPolicy(5))
        pool.can_kill = False
        assert not scheduler.kill(task)
        assert scheduler.shutdown(timeout=0).killed == (task.id,)
        assert task.status is S.RETRYING


def test_cancel_with_kill_also_when_cancelled_already() -> None:
    """cancel(kill=True) ends the run of a task that is CANCELLED, and says True; then there is nothing left."""
    with manual() as (scheduler, _, pool):
        task = scheduler.schedule("t", _nothing, FixedRate(60))
        assert scheduler.cancel(task)
        assert not scheduler.cancel(task)
        assert scheduler.cancel(task, kill=True)
        assert pool.killed == [(task.id, "killed: the task was cancelled")]
        assert [record.outcome for record in task.history] == [Outcome.KILLED]
        assert task.status is S.CANCELLED
        assert not scheduler.cancel(task, kill=True)


def test_wait_on_a_cancelled_task_gets_the_record_of_its_dying_run() -> None:
    """While the run of a cancelled task is alive there is a record to wait for."""
    with manual() as (scheduler, _, pool):
        task = scheduler.schedule("t", _nothing, OneTime(START))
        pool.ends_when_killed = False
        assert scheduler.cancel(task, kill=True)
        threading.Timer(0.02, lambda: pool.end(Outcome.KILLED)).start()
        assert scheduler.wait(task, 5).outcome is Outcome.KILLED


def test_kill_while_paused_is_decided_at_resume() -> None:
    """A paused task whose run is killed stays paused; at resume its schedule goes on."""
    with manual() as (scheduler, clock, _pool):
        rate = scheduler.schedule("t", _nothing, FixedRate(60))
        scheduler.pause(rate)
        assert scheduler.kill(rate)
        assert rate.status is S.PAUSED
        clock.advance(1)
        assert scheduler.resume(rate)
        assert (rate.status, rate.next_run_at) == (S.SCHEDULED, START + 60)
        once = scheduler.schedule("o", _nothing, OneTime(START))
        scheduler.pause(once)
        assert scheduler.kill(once)
        assert scheduler.resume(once)
        assert once.status is S.CANCELLED


# --- shutdown with a pool that kills -------------------------------------------------------------------


def test_shutdown_kills_what_runs_when_the_time_is_up() -> None:
    """Runs that can be ended are ended and recorded; what waited is given back."""
    with manual(2) as (scheduler, _, pool):
        one = scheduler.schedule("one", _nothing, OneTime(START), retry=NO_RETRY)
        two = scheduler.schedule("two", _nothing, FixedRate(60), retry=RetryPolicy(2, 5.0))
        three = scheduler.schedule("three", _nothing, OneTime(START))
        report = scheduler.shutdown(timeout=0)
        assert report == ShutdownReport(killed=(one.id, two.id), returned=(three.id,))
        assert [name for name, _ in pool.killed] == [one.id, two.id]
        assert (one.status, two.status, three.status) == (S.FAILED, S.RETRYING, S.SCHEDULED)


def test_one_record_when_the_pool_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that the kernel cannot end is recorded as KILLED, and its late ending counts for nothing."""
    monkeypatch.setattr("procsched.scheduler.closing.UNKILLABLE", 0.05)
    with manual() as (scheduler, _, pool):
        task = scheduler.schedule("t", _nothing, OneTime(START), retry=NO_RETRY)
        pool.ends_when_killed = False
        pool.shutdown = lambda timeout: None  # type: ignore[method-assign]
        call = pool.calls[0]
        assert scheduler.shutdown(timeout=0).killed == (task.id,)
        assert "may still go on" in (task.history[0].error or "")
        pool.end(Outcome.SUCCEEDED, call)
        assert len(task.history) == 1
        assert scheduler.stats().counters["late_results"] == 1


# --- late and stale ------------------------------------------------------------------------------------


def test_a_second_ending_of_a_call_is_refused() -> None:
    """A pool that reports twice does not make two records, nor end the next run."""
    with manual() as (scheduler, clock, pool):
        task = scheduler.schedule("t", _nothing, FixedRate(60))
        first = pool.calls[0]
        pool.end()
        first.ended(Ending(Outcome.CRASHED, "again"))
        clock.advance(60)
        assert task.status is S.RUNNING
        first.ended(Ending(Outcome.CRASHED, "again"))
        assert task.status is S.RUNNING
        pool.end()
        assert [record.outcome for record in task.history] == [Outcome.SUCCEEDED] * 2
        assert scheduler.stats().counters["late_results"] == 2


def test_a_task_never_overlaps_itself() -> None:
    """However long a run lasts and however often its task is paused and resumed, it is alone."""
    with manual(4) as (scheduler, clock, pool):
        task = scheduler.schedule("t", _nothing, FixedRate(1))
        for _ in range(5):
            clock.advance(10)
            scheduler.pause(task)
            clock.advance(10)
            scheduler.resume(task)
            scheduler.wake()
            assert len(pool.calls) == 1
        pool.end()
        clock.advance(1)
        assert len(pool.calls) == 1
        assert task.history[0].run == 1


def test_pause_holds_until_the_last_moment() -> None:
    """A task that is ready and paused is not given to the worker that becomes free."""
    with manual() as (scheduler, _, pool):
        scheduler.schedule("first", _nothing, OneTime(START))
        second = scheduler.schedule("second", _nothing, OneTime(START))
        third = scheduler.schedule("third", _nothing, OneTime(START))
        scheduler.pause(second)
        pool.end()
        assert [call.task_id for call in pool.calls] == [third.id]


def test_generation_grows_with_what_makes_entries_stale() -> None:
    """Pause, resume, cancel and revive each leave older queue entries behind."""
    with manual() as (scheduler, _, pool):
        task = scheduler.schedule("t", _nothing, OneTime(START + 5), retry=NO_RETRY)
        seen = [task.generation]
        for request in (scheduler.pause, scheduler.resume, scheduler.pause, scheduler.cancel):
            request(task)
            seen.append(task.generation)
        failed = scheduler.schedule("f", _nothing, OneTime(START), retry=NO_RETRY)
        pool.end(Outcome.FAILED)
        seen_failed = [failed.generation]
        scheduler.revive(failed)
        seen_failed.append(failed.generation)
        for numbers in (seen, seen_failed):
            assert numbers == sorted(set(numbers))


# --- slow schedules: between question and answer -----------------------------------------------------


@contextmanager
def asked_between(request: Any) -> Iterator[tuple[Scheduler, FakeClock, ManualPool, Any]]:
    """Give a running task whose schedule, when asked what follows, first has `request` made."""
    with manual() as (scheduler, clock, pool):

        def following(record: Any, now: float) -> float:
            request(scheduler, scheduler.tasks()[0])
            return float(record.due_at + 10)

        task = scheduler.schedule("t", _nothing, Foreign(START, following))
        pool.end()
        scheduler.wake()
        yield scheduler, clock, pool, task


def test_cancel_while_the_schedule_is_asked() -> None:
    """The record counts, the answer does not."""
    with asked_between(lambda scheduler, task: scheduler.cancel(task)) as (_s, clock, pool, task):
        assert task.status is S.CANCELLED
        assert len(task.history) == 1
        clock.advance(100)
        assert pool.calls == []


def test_pause_while_the_schedule_is_asked() -> None:
    """The record counts; at resume the schedule is asked again."""
    requests: list[bool] = []

    def once(scheduler: Scheduler, task: Any) -> None:
        if not requests:
            requests.append(scheduler.pause(task))

    with asked_between(once) as (scheduler, _clock, _pool, task):
        assert (task.status, len(task.history)) == (S.PAUSED, 1)
        assert scheduler.resume(task)
        assert (task.status, task.next_run_at) == (S.SCHEDULED, START + 10)


def test_pause_and_resume_while_the_schedule_is_asked() -> None:
    """A run that is over and not yet settled counts as alive: the answer then follows as usual."""

    def both(scheduler: Scheduler, task: Any) -> None:
        assert scheduler.pause(task)
        assert scheduler.resume(task)
        assert task.status is S.RUNNING

    with asked_between(both) as (_scheduler, _clock, _pool, task):
        assert (task.status, task.next_run_at) == (S.SCHEDULED, START + 10)
        assert len(task.history) == 1


def test_resume_is_repeated_when_its_answer_came_too_late() -> None:
    """A pause and resume by somebody else, while the first resume asks, leaves one consistent state."""
    with manual() as (scheduler, clock, _pool):
        calls: list[float] = []

        def following(record: Any, now: float) -> float:
            calls.append(now)
            if len(calls) == 1:
                scheduler.resume("task-1")
                scheduler.pause("task-1")
            return float(record.due_at + 10)

        task = scheduler.schedule("t", _nothing, Foreign(START + 5, following))
        scheduler.pause(task)
        clock.advance(30)
        assert scheduler.resume(task)
        scheduler.wake()
        assert task.status is S.RUNNING


def test_clock_set_back_while_a_cron_task_starts() -> None:
    """An answer that comes when the task runs already changes nothing of the run."""
    with manual() as (scheduler, clock, pool):
        task = scheduler.schedule("t", _nothing, CronSchedule("0 * * * *"))
        slot = task.next_run_at
        assert slot is not None
        engine = scheduler.engine
        with scheduler._lock:
            engine.look(START - 5000, clock.monotonic(), clock.awake())
            (question,) = engine.questions
            engine.questions.clear()
            assert engine.promote(slot, slot, 10)
        scheduler.pool.pump()
        assert task.status is S.RUNNING
        with scheduler._lock:
            engine.settle(question, question.answer(), None, START, START)
        assert task.status is S.RUNNING
        pool.end()
        scheduler.wake()
        assert task.history[0].due_at == slot


def test_revive_with_a_schedule_that_fails() -> None:
    """A revival whose schedule raises is refused, and the task stays where it was."""
    answers: list[Any] = [START, RuntimeError("no"), None, START + 50]

    def first(now: float) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with manual() as (scheduler, _, pool):
        task = scheduler.schedule("t", _nothing, Foreign(first), retry=NO_RETRY)
        pool.end(Outcome.FAILED)
        with pytest.raises(ValueError, match="RuntimeError: no"):
            scheduler.revive(task)
        assert not scheduler.revive(task)
        assert (task.status, scheduler.dead_letter()) == (S.FAILED, [task.id])
        assert scheduler.revive(task)
        assert (task.status, task.next_run_at) == (S.SCHEDULED, START + 50)


# --- misfire while waiting -----------------------------------------------------------------------------


def test_sleep_while_waiting_for_a_worker_is_no_misfire() -> None:
    """A slot that was ready when the system went to sleep still runs, whatever the policy."""
    with manual() as (scheduler, clock, pool):
        scheduler.schedule("long", _nothing, OneTime(START))
        task = scheduler.schedule("t", _nothing, FixedRate(10), misfire=MisfirePolicy.SKIP)
        clock.suspend(35)
        pool.end()
        assert [call.task_id for call in pool.calls] == [task.id]
        pool.end()
        assert offsets(task.history) == [0.0]
        assert task.next_run_at == START + 40
        counters = scheduler.stats().counters
        assert (counters["skipped"], counters["missed"]) == (3, 0)


def test_retry_due_while_asleep_is_no_misfire() -> None:
    """A backoff that ends asleep is followed by its attempt."""
    with manual() as (scheduler, clock, pool):
        task = scheduler.schedule(
            "t", _nothing, OneTime(START), retry=RetryPolicy(2, 5.0), misfire=MisfirePolicy.SKIP
        )
        pool.end(Outcome.CRASHED)
        clock.suspend(100)
        pool.end()
        assert task.status is S.SUCCEEDED
        assert [record.attempt for record in task.history] == [1, 2]


# --- the pool's deadlines, its problems, progress ------------------------------------------------------


def test_moves_of_a_fake_clock_reach_the_pool() -> None:
    """With an injected clock the pool is told to look at its deadlines after each move."""
    with manual() as (_scheduler, clock, pool):
        before = pool.pokes
        clock.advance(1)
        assert pool.pokes > before


def test_problems_of_the_pool_are_shown_and_told() -> None:
    """What the pool reports is in stats() and in an event."""
    log = EventLog()
    with manual(listeners=[log]) as (scheduler, _, _pool):
        scheduler.pool_problem("the helper died")
        assert scheduler.stats().problems == ("the helper died",)
        assert scheduler.stats().counters["spawned"] == 3
        assert log.wait_for(lambda events: [event.kind for event in events] == ["health"], 5)


def test_progress_is_an_event_while_the_run_is_alive() -> None:
    """Progress carries what the action said; after the end it is dropped."""
    log = EventLog()
    with manual(listeners=[log]) as (scheduler, _, pool):
        task = scheduler.schedule("t", _nothing, OneTime(START))
        call = pool.calls[0]
        call.progressed(3, 10, "rows")
        pool.end()
        call.progressed(4, 10, "too late")
        assert scheduler.wait_idle(5)
        events = [event for event in log.events if event.kind == "progress"]
        assert [(e.task_id, e.status, e.progress) for e in events] == [(task.id, S.RUNNING, (3, 10, "rows"))]


def test_timer_waits_for_deadlines_of_a_fake_clock() -> None:
    """The timer's wait ends at the pool's next deadline, so that a run is ended without another event."""
    clock, pool = FakeClock(START), ManualPool()
    pool.inline = False
    with Scheduler(clock=clock, pool=pool) as scheduler:  # type: ignore[arg-type]
        scheduler.schedule("t", _nothing, OneTime(START), timeout=5)
        support.eventually(lambda: pool.calls)
        pool.deadline = clock.awake() + 5
        scheduler.wake()
        assert clock.wait_for_waiters(1, 5)
        assert scheduler._seconds_to_wait(START, START, pool.deadline) == 5.0
        pool.end()


def test_start_that_fails_leaves_nothing() -> None:
    """A pool that cannot start raises from start(), and the scheduler is over."""

    class Broken(ManualPool):
        def start(self, source: Any, clock: Any) -> None:
            raise ValueError("no pool")

    scheduler = Scheduler(clock=FakeClock(START), pool=Broken())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no pool"):
        scheduler.start()
    with pytest.raises(RuntimeError, match="shut down"):
        scheduler.schedule("t", _nothing, OneTime(START))


def test_start_that_the_system_refuses_may_be_tried_again() -> None:
    """A pool that has no descriptors for now raises from start(), and the scheduler keeps its tasks."""

    class Short(ManualPool):
        refused = 0

        def start(self, source: Any, clock: Any) -> None:
            if not self.refused:
                self.refused += 1
                raise OSError("no descriptors left")
            super().start(source, clock)

    pool = Short()
    clock = FakeClock(START)
    scheduler = Scheduler(clock=clock, pool=pool)  # type: ignore[arg-type]
    task = scheduler.schedule("t", _nothing, OneTime(START + 1))
    with pytest.raises(OSError, match="descriptors"):
        scheduler.start()
    with scheduler:
        clock.advance(1)
        pool.end()
        assert task.status is TaskStatus.SUCCEEDED
