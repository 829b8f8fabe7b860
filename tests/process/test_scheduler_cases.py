"""Faults that users met in other schedulers: one test for each report of cases/scheduling.md that needs real children.

The number in a docstring is the row there. What another file tests in full is named at the end, and in a race of many
threads the promises that all of these have in common are checked together.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    FixedDelay,
    FixedRate,
    InMemoryTaskStore,
    OneTime,
    Outcome,
    Priority,
    RetryPolicy,
    ScheduledTask,
    SchedulerStateError,
    TaskKilledError,
    TaskStatus,
)
from tests import faults, support
from tests.pools import Parent, assert_reaped, helper_pid, open_gate, told_pids
from tests.schedulers import Rig, hang_once, hold

HANG = 8.0  # seconds that only a hang takes


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as it:
        yield it


@pytest.mark.slow
@pytest.mark.parametrize("deaf", [faults.ignore_signals, faults.swallow])
def test_a_hung_run_is_ended_and_the_next_slot_runs(rig: Rig, deaf: Callable[[str], object]) -> None:
    """Row 15, apscheduler#342: a run that ignores SIGTERM is dead after timeout and grace; its task goes on."""
    told = rig.path()
    task = rig.scheduler.schedule(
        "t",
        deaf,
        FixedDelay(0.01),
        args=(told,),
        retry=NO_RETRY,
        timeout=0.3,
        grace=0.2,
        on_exhausted="continue",
    )
    pids = told_pids(told, lines=2)
    record = task.history[0]
    assert_reaped(pids[0])
    assert (record.outcome, record.pid) == (Outcome.TIMED_OUT, pids[0])
    assert 0.3 <= record.duration < HANG
    assert rig.scheduler.cancel(task, kill=True)
    rig.settle()


def test_what_a_run_started_ends_with_its_time_limit(rig: Rig) -> None:
    """Row 20, celery#2353: a program in a shell, a daemon and a session of its own are gone with TIMED_OUT."""
    told = rig.path()
    task = rig.at_once(faults.leave_and_hang, told, timeout=1.0)
    assert rig.wait(task).outcome is Outcome.TIMED_OUT
    pids = told_pids(told)
    assert len(pids) == 1 + len(faults.LEAVERS)
    support.assert_gone(*pids)


def test_one_dead_worker_breaks_nobody_else(rig: Rig) -> None:
    """Row 23, apscheduler#362: `os._exit(9)` is CRASHED, the run beside it finishes, the pool is as wide as before."""
    gate, told = rig.gate(), rig.path()
    beside = rig.at_once(faults.wait_at_gate, gate, told, "unharmed")
    support.wait_for_file(told)
    record = rig.wait(rig.at_once(faults.exit_hard, 9))
    assert (record.outcome, record.exit_code) == (Outcome.CRASHED, 9)
    open_gate(gate)
    assert rig.wait(beside).result == "unharmed"
    gates, both = [rig.gate(), rig.gate()], rig.path()
    tasks = [rig.at_once(faults.wait_at_gate, gate, both) for gate in gates]
    support.wait_for_file(both, lines=2)
    for gate in gates:
        open_gate(gate)
    assert all(rig.wait(task).ok for task in tasks)


@pytest.mark.parametrize("kind", ["needs two", "keyword only", "reduce raises", "load raises"])
def test_an_exception_that_does_not_travel_fails_its_run(rig: Rig, kind: str) -> None:
    """Row 24, cpython#103061: FAILED with its text and traceback, and the same worker takes the next run."""
    record = rig.wait(rig.at_once(faults.raise_awkward, kind))
    assert record.outcome is Outcome.FAILED
    assert (record.error or "").startswith(faults.AWKWARD[kind][2])
    assert "raise_awkward" in (record.traceback or "")
    assert rig.wait(rig.at_once(os.getpid)).ok
    assert rig.scheduler.stats().counters["killed_workers"] == 0


@pytest.mark.parametrize("kind", ["lock", "load raises"])
def test_a_result_that_does_not_travel_fails_its_run(rig: Rig, kind: str) -> None:
    """Row 24, pebble#146: a result that cannot be pickled, or not loaded again, is FAILED and says so."""
    record = rig.wait(rig.at_once(faults.result_of, kind))
    assert record.outcome is Outcome.FAILED
    assert "result" in (record.error or "")
    assert rig.wait(rig.at_once(faults.add, 1, 2)).result == 3


@pytest.mark.slow
def test_a_huge_result_is_not_kept(rig: Rig) -> None:
    """Row 24: 200 MB come back, the run has succeeded, and the record holds a note of the size instead."""
    record = rig.wait(rig.at_once(faults.answer_with, rig.path(), 200 << 20))
    assert record.ok
    assert "not kept" in repr(record.result)


KILLED = """
import sys, time
from procsched import *
from tests import faults

told = sys.argv[1]
scheduler = Scheduler(2, store=InMemoryTaskStore())
scheduler.start()
scheduler.schedule("hung", faults.leave_and_hang, OneTime(0), args=(told,))
scheduler.schedule("deaf", faults.ignore_signals, OneTime(0), args=(told,), grace=60, timeout=3600)
for _ in range(20):
    scheduler.schedule("due", faults.sleep, OneTime(0), args=(told,))
scheduler.wait_idle()
"""


def test_nothing_runs_on_when_the_scheduler_is_killed(tmp_path: Path) -> None:
    """Row 26, celery/billiard#259: `kill -9` of the program ends every worker and all that runs have started."""
    told = tmp_path / "told"
    with Parent(tmp_path, KILLED, arguments=(str(told),)) as parent:
        pids = told_pids(told, lines=2)
        below = support.children()
        parent.kill()
        support.assert_gone(*pids, *below)
        support.eventually(lambda: not support.orphans(), what="nothing of the program is left")
        assert len(told.read_text().splitlines()) == 2, "a further run was started by somebody"


class Failing(InMemoryTaskStore):
    """Raises at its first saves."""

    def __init__(self, times: float) -> None:
        super().__init__()
        self.left = times

    def save(self, task: Any) -> None:
        if self.left > 0:
            self.left -= 1
            raise OSError("disk full")
        super().save(task)


def test_a_store_that_raises_once_stops_nothing(tmp_path: Path) -> None:
    """Row 31, apscheduler#1132: the next slot runs, and what could not be saved is saved later."""
    store = Failing(1)
    with Rig(tmp_path, store=store) as rig:
        task = rig.scheduler.schedule("t", faults.add, FixedDelay(0.01), args=(1, 1))
        assert rig.log.wait_for(lambda _: len(rig.log.runs("t")) >= 3)
        rig.scheduler.cancel(task)
        rig.settle()
        saved = store.get(task.id)
        assert saved is not None
        assert saved.status is TaskStatus.CANCELLED


def test_a_store_that_always_raises_is_told_and_stops_nothing(tmp_path: Path) -> None:
    """Row 31, celery#9622: runs go on, a listener and `stats` hear of the store, and it is not tried in a spin."""
    store = Failing(float("inf"))
    with Rig(tmp_path, store=store) as rig:
        task = rig.scheduler.schedule("t", faults.add, FixedDelay(0.01), args=(1, 1))
        assert rig.log.wait_for(lambda _: len(rig.log.runs("t")) >= 3)
        assert rig.log.wait_for(lambda events: any(event.kind == "store" for event in events))
        assert any("disk full" in problem for problem in rig.scheduler.stats().problems)
        rig.scheduler.cancel(task)
        assert rig.scheduler.writer is not None
        assert rig.scheduler.writer.failures < 50


def test_a_store_that_hangs_holds_up_no_run_and_no_kill(tmp_path: Path) -> None:
    """Promise 3: with the store's thread stuck in a save, slots run and deadlines are kept."""
    release = threading.Event()

    class Stuck(InMemoryTaskStore):
        def save(self, task: Any) -> None:
            release.wait(support.TIMEOUT)

    with Rig(tmp_path, store=Stuck()) as rig:
        hung = rig.at_once(faults.spin, rig.path(), timeout=0.3)
        assert rig.wait(hung).outcome is Outcome.TIMED_OUT
        assert rig.wait(rig.at_once(faults.add, 1, 2)).result == 3
        release.set()
        rig.settle()


def test_a_listener_that_hangs_holds_up_no_run_and_no_kill(tmp_path: Path) -> None:
    """Promise 3: with a listener stuck, runs are ended at their deadline and others are told in time."""
    release = threading.Event()

    class Stuck:
        def on_task_event(self, event: object) -> None:
            release.wait(support.TIMEOUT)

    with Rig(tmp_path, listeners=[Stuck()]) as rig:
        hung = rig.at_once(faults.hang_in_c, rig.path(), timeout=0.3)
        assert rig.wait(hung).outcome is Outcome.TIMED_OUT
        assert rig.log.wait_for(lambda _: rig.log.runs("t"))
        release.set()
        rig.settle()


def test_shutdown_is_bounded_with_a_hung_body(rig: Rig) -> None:
    """Row 35, apscheduler#157: `shutdown(drain=True, timeout=...)` ends in time and reports the run as killed."""
    told = rig.path()
    hung = rig.at_once(faults.block_signals, told, grace=0.2)
    pid = told_pids(told)[0]
    began = time.monotonic()
    report = rig.scheduler.shutdown(drain=True, timeout=0.3)
    assert 0.3 <= time.monotonic() - began < HANG
    assert report.killed == (hung.id,)
    assert_reaped(pid)


@pytest.mark.slow
def test_thousands_of_tasks_hold_up_no_run_and_no_kill(tmp_path: Path) -> None:
    """Row 39, django-celery-beat#574: with 30,000 registered, and cancelled, deadlines of children are still kept."""
    with Rig(tmp_path, keep_finished=100_000) as rig:
        scheduler, told = rig.scheduler, rig.path()
        later = time.time() + 86_400
        tasks = [
            scheduler.schedule("later", faults.add, OneTime(later + n), args=(1, 1)) for n in range(30_000)
        ]
        hung = rig.at_once(faults.sleep, told, timeout=0.5)
        for task in tasks:
            assert scheduler.cancel(task)
        record = rig.wait(hung)
        assert record.outcome is Outcome.TIMED_OUT
        assert record.duration < HANG
        rig.settle()
        stats = scheduler.stats()
        assert stats.tombstones == 0
        assert (scheduler.pending(), stats.counters["started"]) == (0, 1)


def test_the_high_one_is_the_next_start(tmp_path: Path) -> None:
    """Row 40, dramatiq#508: with the pool busy and fifty LOW ready, a HIGH one that comes last starts first."""
    with Rig(tmp_path, 1) as rig:
        gate, told = rig.gate(), rig.path()
        rig.at_once(faults.wait_at_gate, gate, told, name="busy")
        support.wait_for_file(told)
        for number in range(50):
            rig.at_once(faults.add, number, 0, name="low", priority=Priority.LOW)
        rig.at_once(faults.add, 1, 1, name="normal")
        rig.at_once(faults.add, 1, 1, name="high", priority=Priority.HIGH)
        support.eventually(lambda: rig.scheduler.stats().ready == 52)
        open_gate(gate)
        rig.settle()
        started = [event.name for event in rig.log.events if event.status is TaskStatus.RUNNING]
        assert started == ["busy", "high", "normal"] + ["low"] * 50
        results = [event.record.result for event in rig.log.runs("low") if event.record is not None]
        assert results == list(range(50)), "equal priorities start in the order of their arrival"


def test_pause_and_cancel_hold_until_the_last_moment(tmp_path: Path) -> None:
    """Row 40, the same kind: what waits for a busy worker is in no pipe, so it can be paused and withdrawn."""
    with Rig(tmp_path, 1) as rig:
        gate, told, ran = rig.gate(), rig.path(), rig.path()
        rig.at_once(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        waiting = [rig.at_once(faults.tell_pid, ran) for _ in range(6)]
        support.eventually(lambda: rig.scheduler.stats().ready == 6)
        for task in waiting[:2]:
            assert rig.scheduler.cancel(task)
        for task in waiting[2:4]:
            assert rig.scheduler.pause(task)
        open_gate(gate)
        rig.settle()
        assert len(told_pids(ran, lines=2)) == 2
        for task in waiting[2:4]:
            assert rig.scheduler.resume(task)
        rig.settle()
        assert [len(task.history) for task in waiting] == [0, 0, 1, 1, 1, 1]


# Row 33, apscheduler#338: test_scheduler_shutdown.py::test_from_a_listener and ::test_from_the_path_of_a_record
# Row 35 at interpreter exit: test_scheduler_shutdown.py::test_interpreter_exit
# Row 39, cost: unit/test_scheduler.py::test_many_tasks_cost_logarithmic_time_and_leave_no_tombstones
# Rows 9 and 10: test_scheduler_clock.py::test_ten_years_forward_make_no_storm and ::test_an_hour_asleep


# --- all at once --------------------------------------------------------------------------------------------


class Race:
    """Threads that do at random whatever a scheduler offers, on the same few tasks."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.overlaps = rig.path("overlaps")
        self.failures: list[BaseException] = []
        self.lock = threading.Lock()
        self.tasks: list[ScheduledTask] = []  # guarded by lock
        self.count = 0  # guarded by lock

    def schedule(self, generator: random.Random) -> None:
        with self.lock:
            self.count += 1
            number = self.count
        schedule: Any = generator.choice(
            [OneTime(0.0), FixedDelay(0.0), FixedDelay(0.002), FixedRate(0.003), FixedRate(0.05)]
        )
        how = generator.choices(range(5), [10, 4, 1, 2, 1])[0]
        task = self.rig.scheduler.schedule(
            f"race-{number}",
            hold,
            schedule,
            generator.choice(list(Priority)),
            RetryPolicy(2, 0.001),
            args=(self.rig.path(f"lock-{number}"), self.overlaps, how),
            timeout=generator.choice([0.01, 0.05]) if how == 4 or not generator.randrange(6) else None,
            grace=generator.choice([0.0, 0.0, 0.01]),
            on_exhausted=generator.choice(["continue", "dead_letter"]),
        )
        with self.lock:
            self.tasks.append(task)

    def one(self, generator: random.Random) -> None:
        """Do one thing."""
        with self.lock:
            active = [task for task in self.tasks if not task.status.is_terminal]
            some = generator.choice(self.tasks) if self.tasks else None
        if len(active) < 6 or some is None:
            self.schedule(generator)
            return
        scheduler, task = self.rig.scheduler, generator.choice(active)
        what = generator.randrange(12)
        if what < 1:
            scheduler.cancel(task, kill=generator.random() < 0.5)
        elif what == 1:
            scheduler.cancel(some, kill=True)
        elif what < 4:
            scheduler.kill(task)
        elif what == 4:
            scheduler.pause(task)
        elif what < 7:
            scheduler.resume(task)
        elif what == 7:
            scheduler.revive(some)
        else:
            try:
                scheduler.wait(task, 0.01)
            except (TimeoutError, TaskKilledError):
                pass

    def run(self, seed: int, count: int) -> None:
        generator = random.Random(seed)
        try:
            for _ in range(count):
                self.one(generator)
        except BaseException as error:
            self.failures.append(error)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_threads_that_do_everything_at_once(tmp_path: Path, seed: int) -> None:
    """Whatever is done at the same moment: one record for each attempt, no overlap, and the books are right."""
    with Rig(tmp_path, 2, history_limit=5) as rig:
        race = Race(rig)
        rig.wait(rig.at_once(faults.add, 1, 1))  # or else all is over before the first worker is ready
        threads = [threading.Thread(target=race.run, args=(seed * 100 + n, 500)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert race.failures == []
        for task in race.tasks:
            rig.scheduler.resume(task)
            rig.scheduler.cancel(task)
        rig.settle()
        assert not os.path.exists(race.overlaps), Path(race.overlaps).read_text()
        counters = rig.scheduler.stats().counters
        assert counters["started"] == sum(counters[outcome.value] for outcome in Outcome)
        assert counters["started"] == len(rig.log.runs())
        assert counters["late_results"] == 0 or counters["killed"] > 0
        assert rig.scheduler.engine.running == {}
        assert counters["succeeded"] > 0
        assert counters["killed"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 5])
def test_a_shutdown_in_the_midst_of_everything(tmp_path: Path, seed: int) -> None:
    """The end comes while threads schedule and kill: they are refused, and every attempt has its record."""
    with Rig(tmp_path, 2) as rig:
        race = Race(rig)
        rig.wait(rig.at_once(faults.add, 1, 1))  # or else all is over before the first worker is ready
        threads = [threading.Thread(target=race.run, args=(seed * 100 + n, 10_000)) for n in range(4)]
        for thread in threads:
            thread.start()
        assert rig.log.wait_for(lambda _: len(rig.log.runs()) >= 30)
        began = time.monotonic()
        rig.scheduler.shutdown(drain=bool(seed % 2), timeout=0.2)
        assert time.monotonic() - began < HANG
        for thread in threads:
            thread.join(support.TIMEOUT)
        assert {type(error) for error in race.failures} == {SchedulerStateError}
        assert not os.path.exists(race.overlaps), Path(race.overlaps).read_text()


@pytest.mark.slow
def test_workers_that_are_shot_at_random(tmp_path: Path) -> None:
    """SIGKILL from outside for busy workers and for the helper: each attempt begins once and has one record."""
    generator = random.Random(7)
    with Rig(tmp_path, 2) as rig:
        overlaps, begun = rig.path("overlaps"), rig.path("begun")
        tasks = [
            rig.scheduler.schedule(
                f"shot-{n}",
                hold,
                FixedDelay(0.001),
                args=(rig.path(), overlaps, 3, begun),
                retry=RetryPolicy(2, 0.001),
                on_exhausted="continue",
            )
            for n in range(4)
        ]
        for shot in range(25):
            if shot % 2:  # else mostly one is hit that has been given its call, and has not begun it
                lines = Path(begun).read_text().count("\n") if os.path.exists(begun) else 0
                support.wait_for_file(begun, lines=lines + 1)
            victim = generator.choice(support.eventually(lambda: rig.workers("busy")))
            if shot % 8 == 7:
                victim = helper_pid()
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            support.assert_gone(victim)
        seen = len(rig.log.runs())
        assert rig.log.wait_for(lambda _: len(rig.log.runs()) >= seen + 20, 30)
        for task in tasks:
            assert rig.scheduler.cancel(task)
        rig.settle()
        assert not os.path.exists(overlaps)
        records = [event.record for event in rig.log.runs() if event.record is not None]
        assert {record.outcome for record in records} <= {Outcome.SUCCEEDED, Outcome.CRASHED, Outcome.LOST}
        lines = Path(begun).read_text().splitlines()
        assert len(lines) == len(set(lines)), "an attempt began twice"
        known = {f"{record.task_id} {record.run} {record.attempt}" for record in records}
        assert set(lines) <= known
        done = {f"{record.task_id} {record.run} {record.attempt}" for record in records if record.ok}
        assert done <= set(lines)


def test_a_kill_that_meets_the_end_of_a_run(rig: Rig) -> None:
    """A kill and the end of the run come at the same moment: one record, KILLED exactly if `kill` said True."""
    generator = random.Random(11)
    rig.wait(rig.at_once(faults.add, 1, 1))
    for _ in range(100):
        task = rig.at_once(faults.add, 1, 1)
        support.eventually(lambda task=task: task.status is not TaskStatus.SCHEDULED)  # type: ignore[misc]
        for _ in range(generator.choice([0, 50, 200, 500, 1000])):
            pass
        killed = rig.scheduler.kill(task)
        record = rig.wait(task)
        assert record.outcome is (Outcome.KILLED if killed else Outcome.SUCCEEDED)
        assert task.status is (TaskStatus.CANCELLED if killed else TaskStatus.SUCCEEDED)
        assert len(task.history) == 1


def test_a_timeout_that_meets_the_end_of_a_run(rig: Rig) -> None:
    """Runs that take as long as they may: SUCCEEDED or TIMED_OUT, one record each, and never another's."""
    tasks = [rig.at_once(faults.nap, 0.018 + 0.0005 * (n % 8), timeout=0.02) for n in range(60)]
    for task in tasks:
        record = rig.wait(task)
        assert record.outcome in (Outcome.SUCCEEDED, Outcome.TIMED_OUT)
        assert record.task_id == task.id
        assert len(task.history) == 1


def test_a_cancel_that_meets_a_retry(rig: Rig) -> None:
    """A cancel at any moment of a quick row of crashes and retries is the end of them."""
    generator = random.Random(13)
    for _ in range(15):
        task = rig.at_once(faults.exit_hard, 3, retry=RetryPolicy(50, 0.0))
        assert rig.log.wait_for(lambda _, task=task: bool(task.history))  # type: ignore[misc]
        for _ in range(generator.choice([0, 100, 1000, 5000])):
            pass
        rig.scheduler.cancel(task)
        rig.settle()
        assert task.status is TaskStatus.CANCELLED
        assert rig.scheduler.pending() == 0


def test_pause_and_resume_in_a_quick_row_start_no_second_run(rig: Rig) -> None:
    """While a run is alive its task is paused and resumed a hundred times: it runs once."""
    told = rig.path()
    task = rig.at_once(hang_once, told, rig.path())
    support.wait_for_file(told)
    for _ in range(100):
        assert rig.scheduler.pause(task)
        assert rig.scheduler.resume(task)
    assert rig.scheduler.kill(task)
    assert rig.wait(task).outcome is Outcome.KILLED
    rig.settle()
    assert len(task.history) == 1
