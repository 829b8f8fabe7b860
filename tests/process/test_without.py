"""What must hold whatever the system lacks: `python -m tests.without` runs this with each feature switched off."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from procsched import Outcome, ProcessExecutor, _system
from tests import faults, hosts, support
from tests.pools import Bench, Parent, assert_reaped, only_record, told_pids


@pytest.fixture
def bench(tmp_path: Path) -> Bench:  # type: ignore[misc]
    with Bench(tmp_path) as made:
        yield made  # type: ignore[misc]


@pytest.mark.parametrize("kind", sorted(hosts.USES))
def test_runs_end_in_every_way(kind: str) -> None:
    """A run returns, raises, is killed at its deadline, crashes; afterwards nothing is left."""
    assert hosts.use(kind) == hosts.USED


@pytest.mark.parametrize(
    "fault", [faults.spin, faults.ignore_signals, faults.block_signals, faults.stop_itself]
)
def test_a_deadline_holds(bench: Bench, fault: object) -> None:
    """Whatever it does about signals, it is dead when its record is there."""
    path = bench.path()
    future = bench.submit(fault, path, timeout=0.3)  # type: ignore[arg-type]
    only_record(future, Outcome.TIMED_OUT)
    assert_reaped(told_pids(path)[0])


def test_children_of_a_run_die_with_it(bench: Bench) -> None:
    """A child that stays in the worker's process group is never left."""
    path = bench.path()
    future = bench.submit(faults.leave, ["grandchild"], path, "hang")
    pids = told_pids(path)
    assert future.cancel()
    only_record(future, Outcome.KILLED)
    support.assert_gone(*pids)


def test_large_values_travel(bench: Bench) -> None:
    """Many megabytes go both ways."""
    data = os.urandom(1 << 20) * 5
    assert bench.submit(faults.identity, data).result(support.TIMEOUT) == data


def test_what_was_cancelled_is_dead(bench: Bench) -> None:
    """A running call that is cancelled is ended, and others go on."""
    path = bench.path()
    with bench.innocent():
        future = bench.submit(faults.ignore_signals, path)
        (pid,) = told_pids(path)
        assert future.cancel()
        only_record(future, Outcome.KILLED)
        assert_reaped(pid)


def test_preloads_and_initializers_are_there(tmp_path: Path) -> None:
    """What a pool prepares its workers with is there, however they are started."""
    with Bench(
        tmp_path, preload=("fractions",), initializer=faults.remember, initargs=("prepared",)
    ) as bench:
        assert bench.submit(faults.recall).result(support.TIMEOUT) == "prepared"
        loaded = bench.submit(eval, "'fractions' in __import__('sys').modules")
        assert loaded.result(support.TIMEOUT)


def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    """The workers of a program that is killed are gone."""
    told = tmp_path / "told"
    script = (
        "from procsched import ProcessExecutor\nfrom tests import faults\n"
        f"executor = ProcessExecutor(1)\nexecutor.submit(faults.ignore_signals, {str(told)!r}).result()\n"
    )
    with Parent(tmp_path, script) as parent:
        (pid,) = told_pids(told)
        parent.kill()
        support.assert_gone(pid)


# --- which way was gone ---------------------------------------------------------------------------------------------

WAYS = {
    "fork": ("start.fork", "start.exec"),
    "pidfd": ("kill.pidfd", "kill.helper"),
    "subreaper": ("tree.subreaper", "tree.walk"),
    "memfd": ("large.memfd", ""),
    "timerfd": ("timer.timerfd", "timer.timeout"),
    "eventfd": ("wake.eventfd", "wake.pipe"),
}


def test_the_figures_say_whether_a_kill_was_hastened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent takes part in freeing the memory of a run that it kills at its deadline, if it is not much."""
    release = [*map(int, re.findall(r"\d+", os.uname().release)[:2])]
    offered = all(map(_system.offers, ("memory_release", "pidfd", "subreaper")))
    if not offered or _system._is_filtered() or release < [5, 15]:
        pytest.skip("this system has no process_mrelease(2), filters system calls, or kills by the helper")
    with Bench(tmp_path) as bench:
        # On a busy machine one or the other is left to the kernel's timer, or is dead before.
        for _ in range(50):
            only_record(bench.submit(faults.spin, bench.path(), timeout=0.05), Outcome.TIMED_OUT)
            if bench.executor.stats().paths.get("kill.hastened"):
                break
        else:
            pytest.fail("not one of 50 kills was hastened")
        without = os.environ.get("PROCSCHED_WITHOUT", "")
        monkeypatch.setenv("PROCSCHED_WITHOUT", f"{without},memory_release")
        before = bench.executor.stats().paths["kill.hastened"]
        only_record(bench.submit(faults.spin, bench.path(), timeout=0.05), Outcome.TIMED_OUT)
        assert bench.executor.stats().paths["kill.hastened"] == before


@pytest.mark.parametrize("without", [None, *WAYS])
def test_the_figures_say_which_way_was_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str | None
) -> None:
    """With a feature switched off the other way is the one that ran, and only that."""
    if without is not None:
        monkeypatch.setenv("PROCSCHED_WITHOUT", without)
    with ProcessExecutor(1) as executor:
        assert len(executor.submit(faults.identity, bytes(5 << 20)).result(support.TIMEOUT)) == 5 << 20
        # Not by a timeout: on a busy machine that may be left to the kernel's timer in the worker.
        running = executor.submit(faults.sleep, str(tmp_path / "told"))
        told_pids(tmp_path / "told")
        assert running.cancel()
        assert running.wait_record(support.TIMEOUT).outcome is Outcome.KILLED
        paths = executor.stats().paths
    for feature, (way, other) in WAYS.items():
        taken = way if _system.offers(feature) else other
        if feature == "pidfd" and not _system.offers("subreaper"):
            taken = other  # the tree is walked, which the helper does
        assert not taken or paths.get(taken, 0) > 0, paths
        assert (way if taken == other else other) not in paths, paths
