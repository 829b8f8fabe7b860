"""Whatever a run started ends with the run, however the run ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import Outcome, _system
from tests import faults, support
from tests.pools import Bench, assert_reaped, only_record, told_pids

KINDS = [function.__name__ for function in faults.LEAVERS]
# Where there is no subreaper: what a walk over the process table finds below a worker, and what is in its group.
WALKED = ["grandchild", "session_grandchild", "shell"]
GROUPED = ["grandchild", "shell"]
ALL = pytest.param(
    KINDS,
    marks=pytest.mark.needs(
        "subreaper", "a daemon that a run has left, in a session of its own, dies with it"
    ),
    id="all",
)
ENDS = {
    "return": Outcome.SUCCEEDED,
    "raise": Outcome.FAILED,
    "hang": Outcome.TIMED_OUT,
    "segfault": Outcome.CRASHED,
    "exit": Outcome.CRASHED,
    "sigkill": Outcome.CRASHED,
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 2) as it:
        yield it


def found(kind: str, end: str) -> Any:
    """Return the case, with the promise that is gone where it needs a subreaper."""
    crashes = ENDS[end] is Outcome.CRASHED
    marks = []
    if kind not in (GROUPED if crashes else WALKED):
        promise = "what a run has left in a session of its own dies with it, "
        promise += "also where it has crashed" if kind in WALKED else "also a daemon"
        marks.append(pytest.mark.needs("subreaper", promise))
    return pytest.param(kind, end, marks=marks)


@pytest.mark.parametrize(("kind", "end"), [found(kind, end) for kind in KINDS for end in ENDS])
def test_the_tree_dies_with_the_run(bench: Bench, kind: str, end: str) -> None:
    """A grandchild of any kind is gone when the run has ended, in whatever way; nobody else is harmed."""
    told = bench.path()
    with bench.innocent():
        future = bench.submit(faults.leave, [kind], told, end, timeout=0.5 if end == "hang" else None)
        record = only_record(future, ENDS[end])
        worker, left = told_pids(told)
        assert record.pid == worker
        support.assert_gone(left)
        assert_reaped(worker)
        if end == "return":
            assert future.result() == "left"
        if end == "raise":
            assert record.error == "ValueError: left something"
    bench.assert_usable()


@pytest.mark.parametrize("kinds", [ALL, pytest.param(WALKED, id="walked")])
def test_the_tree_dies_with_a_cancelled_run(bench: Bench, kinds: list[str]) -> None:
    """A cancel ends all kinds of grandchildren at once."""
    told = bench.path()
    future = bench.submit(faults.leave, kinds, told, "hang")
    pids = told_pids(told)
    assert future.cancel()
    only_record(future, Outcome.KILLED)
    support.assert_gone(*pids)
    bench.assert_usable()


@pytest.mark.parametrize("kinds", [ALL, pytest.param(GROUPED, id="grouped")])
def test_the_tree_dies_with_a_worker_that_is_killed_from_outside(bench: Bench, kinds: list[str]) -> None:
    """SIGKILL for the worker alone ends all kinds of grandchildren too."""
    told = bench.path()
    future = bench.submit(faults.leave, kinds, told, "hang")
    pids = told_pids(told)
    os.kill(pids[0], 9)
    only_record(future, Outcome.CRASHED)
    support.assert_gone(*pids)


@pytest.mark.parametrize("kinds", [ALL, pytest.param(WALKED, id="walked")])
def test_the_tree_dies_with_the_executor(tmp_path: Path, kinds: list[str]) -> None:
    """kill_workers() and shutdown() end all kinds of grandchildren."""
    with Bench(tmp_path, 1) as bench:
        told = bench.path()
        bench.submit(faults.leave, kinds, told, "hang")
        pids = told_pids(told)
        bench.executor.kill_workers()
        bench.executor.shutdown()
        support.assert_gone(*pids)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [ALL, pytest.param(WALKED, id="walked")])
def test_when_the_record_is_there_the_tree_has_been_killed(bench: Bench, kinds: list[str]) -> None:
    """By the time of the record every process of the run has been sent SIGKILL: a stopped one too."""
    limit, ended = 0.4, 0
    while ended < 5:
        told = bench.path()
        future = bench.submit(faults.leave, kinds, told, "hang", timeout=limit)
        record = only_record(future, Outcome.TIMED_OUT)
        assert record.error == f"exceeded its {limit} s budget"  # nothing that could not be ended
        if not os.path.exists(told) or not os.path.getsize(told):  # on a machine this busy that was too short
            limit *= 2
            assert limit < support.TIMEOUT
            continue
        support.assert_gone(*told_pids(told))
        ended += 1


def test_a_child_that_the_run_waited_for_costs_no_worker(bench: Bench) -> None:
    """A run that starts a program and waits for it leaves a worker that is used again."""
    record = only_record(bench.submit(faults.run_program), Outcome.SUCCEEDED)
    assert record.pid in bench.pids()
    assert bench.counters()["recycled"] == 0


def test_a_zombie_that_the_run_left_costs_no_worker(bench: Bench) -> None:
    """A child that has ended and was not waited for is reaped, and its worker used again."""
    future = bench.submit(faults.leave_zombie)
    pid = future.result(support.TIMEOUT)
    record = only_record(future, Outcome.SUCCEEDED)
    assert record.pid in bench.pids()
    assert_reaped(pid)


@pytest.mark.parametrize("kinds", [ALL, pytest.param(GROUPED, id="grouped")])
def test_other_runs_keep_their_trees(bench: Bench, kinds: list[str]) -> None:
    """The end of one run touches no process of another."""
    told, gate = bench.path(), bench.gate()
    other = bench.submit(faults.leave_and_wait, kinds, told, gate)
    pids = told_pids(told)
    first = bench.submit(faults.leave, kinds, bench.path(), "segfault")
    only_record(first, Outcome.CRASHED)
    for pid in pids:
        os.kill(pid, 0)
        assert not support.process_gone(pid, 0)
    with open(gate, "wb"):
        pass
    only_record(other, Outcome.SUCCEEDED)
    support.assert_gone(*pids)


def test_a_worker_holds_its_own_ends_alone(tmp_path: Path) -> None:
    """No worker has a descriptor of another worker's connection, also where several start at once."""
    with Bench(tmp_path, 4) as bench:
        for _ in range(3):
            gates = [bench.gate() for _ in range(4)]
            told = bench.path()
            futures = [bench.submit(faults.wait_at_gate, gate, told) for gate in gates]
            pids = told_pids(told, lines=4)
            held = [set(faults.pipe_ends(pid)) for pid in pids]
            for index, ends in enumerate(held):
                assert ends
                for other in held[index + 1 :]:
                    assert not ends & other
            for pid in pids:
                os.kill(pid, 9)  # together, so that the new ones are asked for together
            for future in futures:
                only_record(future, Outcome.CRASHED)
        bench.assert_usable()


@pytest.mark.needs("proc", "what a tree of processes uses is known")
@pytest.mark.skipif(
    sys.platform != "linux", reason="the CPU clock of another process has a number of Linux's"
)
def test_what_is_used_below_a_process_is_exact() -> None:
    """No tick of it is lost, however brief; and of those that only start others nothing counts."""
    burn = "import time\nwhile time.process_time() < 0.0999: pass\nprint(time.process_time(), flush=True)\ninput()"
    command = ["sh", "-c", 'exec 3<&0; "$@" <&3 & wait', "sh", sys.executable, "-I", "-S", "-c", burn]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = float(process.stdout.readline())
        seconds, peak = _system.usage_below(process.pid, 0)
        assert told <= seconds <= told + 0.1
        assert peak > 1 << 20
        seconds, more = _system.usage_below(process.pid, 1)
        assert seconds == 0.0
        assert more >= peak
        process.stdin.write(b"\n")
        process.stdin.close()


def test_a_child_has_nothing_of_the_parent(bench: Bench) -> None:
    """A worker has an empty stdin, its own session, default signal dispositions and no descriptor of ours."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    ours = os.readlink(f"/proc/self/fd/{writer}")
    try:
        found = bench.submit(faults.what_i_have).result(support.TIMEOUT)
    finally:
        os.close(reader)
        os.close(writer)
    assert found["stdin"] == b""
    assert found["session"] == found["pid"]
    assert found["ignored"] == []
    assert found["blocked"] == []
    ends = [target for target in found["descriptors"].values() if target.startswith(("socket:", "pipe:"))]
    assert ours not in ends
    standard = sum(found["descriptors"][fd].startswith(("socket:", "pipe:")) for fd in (1, 2))
    assert len(ends) - standard == 4  # answers, large data, output, tokens
