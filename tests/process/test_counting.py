"""What `stats()` counts, driven once each, and that the figures add up."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from procsched import (
    NO_RETRY,
    FakeClock,
    FixedRate,
    MisfirePolicy,
    Outcome,
    RetryPolicy,
    Stats,
    TaskKilledError,
    TaskLostError,
    TaskTimeoutError,
    WorkerCrashedError,
)
from procsched.child.protocol import ANSWERED
from procsched.workers.booking import ENDS
from tests import faults, support
from tests.pools import Bench, helper_pid, open_gate
from tests.schedulers import Rig

pytestmark = pytest.mark.slow
TWICE = RetryPolicy(2, initial_backoff=0.0)


def assert_adds_up(stats: Stats) -> None:
    """Fail unless every attempt and every worker is counted where it has gone to."""
    counters = stats.counters
    ended = sum(counters[outcome.value] for outcome in Outcome)
    assert counters["started"] == ended + stats.running
    gone = sum(counters[name] for name in ENDS)
    assert counters["spawned"] == gone + len(stats.workers)
    assert counters["respawned"] <= min(counters["spawned"], gone)
    dying = [worker for worker in stats.workers if worker.state == "dying"]
    assert counters["recycled"] <= counters["left_workers"] + counters["killed_workers"] + len(dying)


def assert_counted(stats: Stats, **expected: int) -> None:
    """Fail unless the figures add up, and are these."""
    assert_adds_up(stats)
    assert {name: stats.counters[name] for name in expected} == expected


def test_an_executor_counts_each_kind_of_end(tmp_path: Path) -> None:
    """One attempt of each kind, a retry, what was withdrawn, a late answer, and what became of the workers."""
    with Bench(tmp_path, 2) as bench:
        executor = bench.executor
        assert_counted(executor.stats(), started=0, spawned=0)
        assert [bench.submit(faults.add, n, 1).result() for n in range(3)] == [1, 2, 3]
        assert_counted(executor.stats(), started=3, succeeded=3, failed=0)
        with pytest.raises(ValueError):
            bench.submit(faults.raise_it, ValueError, retry=TWICE).result()
        assert_counted(executor.stats(), started=5, failed=2, retried=1)
        with pytest.raises(TaskTimeoutError):
            bench.submit(faults.sleep, bench.path(), timeout=0.05).result()
        assert_counted(executor.stats(), timed_out=1, killed_workers=1, crashed_workers=0)
        with pytest.raises(WorkerCrashedError):
            bench.submit(faults.exit_hard, 5).result()
        assert_counted(executor.stats(), crashed=1, killed_workers=1, crashed_workers=1)
        killed = bench.submit(faults.sleep, path := bench.path())
        support.wait_for_file(path)
        assert executor.stats().running == 1
        assert killed.cancel()
        assert killed.wait_record(support.TIMEOUT)
        assert_counted(executor.stats(), killed=1, killed_workers=2, cancelled=0)

        gates = [bench.gate() for _ in range(2)]
        blocked = [bench.submit(faults.wait_at_gate, gate, path := bench.path()) for gate in gates]
        support.wait_for_file(path)
        waiting = bench.submit(faults.add, 1, 1)
        stats = executor.stats()
        assert (stats.running, stats.ready, stats.tasks) == (2, 1, 3)
        assert waiting.cancel()
        assert_counted(executor.stats(), cancelled=1, returned=0, late_results=0)
        with bench.deaf():  # it has answered, and nobody has heard that when its end is decided
            open_gate(gates[0])
            worker = blocked[0]._item.worker
            support.eventually(lambda: worker.page[ANSWERED] >= blocked[0]._item.number)
            assert blocked[0].cancel()
        assert blocked[0].wait_record(support.TIMEOUT).outcome is Outcome.KILLED
        assert_counted(executor.stats(), killed=2, late_results=1)
        open_gate(gates[1])
        blocked[1].result(support.TIMEOUT)

        lost = bench.submit(faults.sleep, path := bench.path())
        support.wait_for_file(path)
        os.kill(helper_pid(), signal.SIGKILL)
        with pytest.raises(TaskLostError):
            lost.result(support.TIMEOUT)
        stats = executor.stats()
        assert_counted(stats, lost=1, helper_restarts=1)
        assert stats.counters["lost_workers"] >= 1
        assert stats.counters["respawned"] >= 2
        assert any("helper" in text for text in stats.problems)

        hung = [bench.submit(faults.sleep, path := bench.path()) for _ in range(2)]
        support.wait_for_file(path)
        withdrawn = [bench.submit(faults.add, 1, 1) for _ in range(3)]
        executor.shutdown(wait=False, cancel_futures=True)
        assert all(future.cancelled() for future in withdrawn)
        assert_counted(executor.stats(), returned=3, cancelled=1)
        executor.kill_workers()
        executor.shutdown()
        for future in hung:
            with pytest.raises(TaskKilledError):
                future.result()
        stats = executor.stats()
        assert_counted(stats, killed=4, succeeded=4, failed=2, timed_out=1, crashed=1, lost=1)
        assert (stats.running, stats.ready, stats.tasks, stats.workers) == (0, 0, 0, ())


def test_a_recycled_worker_and_its_successor_are_counted(tmp_path: Path) -> None:
    """Whoever was asked to leave has left, and whoever takes the place is a respawn."""
    with Bench(tmp_path, 1, max_tasks_per_child=1) as bench:
        for n in range(4):
            assert bench.submit(faults.add, n, 0).result() == n
            # Or else whoever comes may be there before the one before has gone, and takes nobody's place.
            support.eventually(lambda gone=n: bench.counters()["left_workers"] > gone)  # type: ignore[misc]
        stats = bench.executor.stats()
        assert_counted(stats, killed_workers=0, crashed_workers=0)
        assert stats.counters["recycled"] >= 3
        assert stats.counters["respawned"] >= 2


def test_a_scheduler_counts_each_kind_of_end(tmp_path: Path) -> None:
    """One attempt of each kind, and slots that were returned."""
    with Rig(tmp_path, 2) as rig:
        scheduler = rig.scheduler
        rig.wait(rig.at_once(faults.add, 1, 1))
        rig.wait(rig.at_once(faults.raise_it, ValueError, retry=TWICE))
        rig.wait(rig.at_once(faults.sleep, rig.path(), timeout=0.05))
        rig.wait(rig.at_once(faults.exit_hard, 5))
        task = rig.at_once(faults.sleep, path := rig.path())
        support.wait_for_file(path)
        assert scheduler.stats().running == 1
        assert scheduler.kill(task)
        rig.wait(task)
        task = rig.at_once(faults.sleep, path := rig.path())
        support.wait_for_file(path)
        os.kill(helper_pid(), signal.SIGKILL)
        rig.wait(task)
        assert_counted(
            scheduler.stats(),
            started=7,
            succeeded=1,
            failed=2,
            retried=1,
            timed_out=1,
            crashed=1,
            killed=1,
            lost=1,
            helper_restarts=1,
            killed_workers=2,
            crashed_workers=1,
        )
        assert (scheduler.stats().counters["missed"], scheduler.stats().counters["skipped"]) == (0, 0)

        hung = [rig.at_once(faults.sleep, path := rig.path()) for _ in range(2)]
        support.wait_for_file(path)
        due = [rig.at_once(faults.add, 1, 1) for _ in range(3)]
        support.eventually(lambda: scheduler.stats().ready == 3)
        report = scheduler.shutdown(drain=False, timeout=0)
        assert set(report.returned) == {task.id for task in due}
        assert set(report.killed) == {task.id for task in hung}
        stats = scheduler.stats()
        assert_counted(stats, returned=3, lost=1)
        assert (stats.running, stats.workers) == (0, ())


def test_a_scheduler_counts_slots_that_bring_no_run(tmp_path: Path) -> None:
    """Those that came while a run was alive, and those that came while the task was paused."""
    clock = FakeClock(1_000_000.0)
    with Rig(tmp_path, 1, clock=clock) as rig:
        scheduler = rig.scheduler
        slow = scheduler.schedule(
            "slow",
            faults.wait_at_gate,
            FixedRate(10.0),
            args=(gate := rig.gate(), path := rig.path()),
            retry=NO_RETRY,
        )
        support.wait_for_file(path)
        clock.advance(45.0)
        open_gate(gate)
        support.eventually(lambda: slow.history)
        assert_counted(scheduler.stats(), skipped=4, missed=0, started=1)
        scheduler.cancel(slow)
        paused = scheduler.schedule(
            "paused", faults.add, FixedRate(10.0, start_delay=10.0), args=(1, 1), misfire=MisfirePolicy.SKIP
        )
        scheduler.pause(paused)
        clock.advance(45.0)
        scheduler.resume(paused)
        scheduler.cancel(paused)
        assert_counted(scheduler.stats(), skipped=4, missed=4, started=1)


def test_what_its_own_timer_has_ended_was_killed(tmp_path: Path) -> None:
    """A parent that comes too late for a deadline finds the work done: that is our kill, and no crash."""
    with Bench(tmp_path, 1) as bench:
        bench.submit(faults.add, 1, 1).result(support.TIMEOUT)
        future = bench.submit(faults.sleep, path := bench.path(), timeout=0.3)
        pid = int(support.wait_for_file(path))
        with bench.deaf():
            support.assert_gone(pid)
        assert future.wait_record(support.TIMEOUT).outcome is Outcome.TIMED_OUT
        assert_counted(bench.executor.stats(), timed_out=1, killed_workers=1, crashed_workers=0)
