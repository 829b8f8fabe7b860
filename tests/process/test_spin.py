"""`ProcessExecutor(spin=...)`: who waits for a result takes it from the worker itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsched import Outcome, ProcessExecutor, TaskTimeoutError, ValidationError, WorkerCrashedError
from procsched.child.protocol import ANSWERED
from procsched.workers.process import Worker
from tests import faults, support
from tests.pools import Bench, only_record, open_gate


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A caller that spins for as long as it takes."""
    with Bench(tmp_path, 2) as it:
        it.core.pool.spin = support.TIMEOUT
        it.submit(faults.identity, 0).result(support.TIMEOUT)
        yield it


def test_a_result_comes_without_the_io_thread(bench: Bench) -> None:
    """With that thread kept away, a result is there, with its record, and the worker is free for the next call."""
    with bench.deaf():
        for n in range(50):
            future = bench.submit(faults.identity, n)
            assert future.result(support.TIMEOUT) == n
            assert future.done()
            assert only_record(future, Outcome.SUCCEEDED).pid in bench.pids()
    assert bench.submit(faults.identity, 7).result(support.TIMEOUT) == 7


def test_the_io_thread_may_come_first_or_last(tmp_path: Path) -> None:
    """Whoever of the two is the first to look, every call ends once; several threads wait at a time."""
    with Bench(tmp_path, 3) as bench:
        bench.core.pool.spin = 0.0002
        wrong: list[object] = []

        def call(start: int) -> None:
            numbers = range(start, start + 500)
            results = [bench.submit(faults.identity, n).result(support.TIMEOUT) for n in numbers]
            wrong.extend(n for n, result in zip(numbers, results, strict=True) if n != result)

        threads = [threading.Thread(target=call, args=(1000 * n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(support.TIMEOUT * 3)
        assert not any(thread.is_alive() for thread in threads)
        assert not wrong
        assert bench.counters()["killed_workers"] == 0


@pytest.mark.parametrize("kind", ["raises", "large", "crashes", "slow", "prints", "limit"])
def test_what_is_no_plain_result_is_left_to_that_thread(tmp_path: Path, kind: str) -> None:
    """It comes all the same."""
    with Bench(tmp_path, 1) as bench:
        bench.core.pool.spin = 0.05
        if kind == "raises":
            with pytest.raises(ZeroDivisionError):
                bench.submit(divmod, 1, 0).result(support.TIMEOUT)
        elif kind == "large":
            assert len(bench.submit(bytes, 1 << 20).result(support.TIMEOUT)) == 1 << 20
        elif kind == "crashes":
            with pytest.raises(WorkerCrashedError):
                bench.submit(faults.exit_hard, 3).result(support.TIMEOUT)
        elif kind == "slow":
            gate = bench.gate()
            future = bench.submit(faults.wait_at_gate, gate)
            with pytest.raises(TimeoutError):
                future.result(0.01)
            open_gate(gate)
            assert future.result(support.TIMEOUT) == "through"
        elif kind == "prints":
            future = bench.submit(print, "words", capture_output=True)
            assert future.result(support.TIMEOUT) is None
            assert only_record(future, Outcome.SUCCEEDED).output == "words\n"
        else:
            with pytest.raises(TaskTimeoutError):
                bench.submit(faults.spin, bench.path(), timeout=0.2).result(support.TIMEOUT)
        assert bench.submit(faults.identity, 1).result(support.TIMEOUT) == 1


def test_a_cancelled_call_is_not_taken(bench: Bench) -> None:
    """A call that was cancelled before its answer was looked at stays so."""
    with bench.deaf():
        future = bench.submit(faults.identity, 1)
        worker = future._item.worker
        support.eventually(lambda: worker.page[ANSWERED] >= future._item.number, what="it has answered")
        assert future.cancel()
        worker.spin(future._item, support.TIMEOUT)
        assert future.cancelled()
    only_record(future, Outcome.KILLED)


def test_the_end_of_a_call_does_not_hit_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is booked between the I/O thread's look at what runs and the signal: the next one is let run."""
    with Bench(tmp_path, 1) as bench:
        first, second = bench.gate(), bench.gate()
        told = bench.path()
        killed = bench.submit(faults.wait_at_gate, first, told)
        support.wait_for_file(told)
        item, worker = killed._item, killed._item.worker
        settle, settled, go_on = Worker.settle, threading.Event(), threading.Event()

        def preempted(self: Worker) -> object:
            call = settle(self)
            if call is item:
                settled.set()
                go_on.wait(support.TIMEOUT)
            return call

        monkeypatch.setattr(Worker, "settle", preempted)
        try:
            assert bench.core.pool.kill(item, "enough of it")
            assert settled.wait(support.TIMEOUT)
            behind = bench.submit(faults.wait_at_gate, second)
            open_gate(first)
            worker.spin(item, support.TIMEOUT)
            assert worker.call is behind._item
        finally:
            go_on.set()
        with bench.deaf():  # it has done what it was about to
            pass
        open_gate(second)
        assert behind.result(support.TIMEOUT) == "through"
        only_record(killed, Outcome.KILLED)


@pytest.mark.parametrize("spin", [-1.0, float("nan"), 0.5, "1", True])
def test_what_is_no_time_to_spin_is_refused(spin: object) -> None:
    """A millisecond at most: nobody else runs meanwhile."""
    with pytest.raises(ValidationError, match="spin"):
        ProcessExecutor(1, spin=spin)  # type: ignore[arg-type]


def test_it_works_as_given(tmp_path: Path) -> None:
    """By the option, with the calls that keep hold of the interpreter."""
    with ProcessExecutor(2, spin=0.001, preload=("tests.faults",)) as executor:
        for n in range(200):
            assert executor.submit(faults.identity, n).result(support.TIMEOUT) == n
        assert executor.submit(faults.length, bytes(300_000)).result(support.TIMEOUT) == 300_000
