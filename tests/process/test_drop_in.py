"""Where the executor has to be like the standard library's beyond what that tests itself."""

from __future__ import annotations

import concurrent.futures
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsched import SchedulerStateError, TaskKilledError
from tests import faults, support
from tests.pools import Bench, Parent, assert_reaped, open_gate, told_pids


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 2) as it:
        yield it


def test_tqdm_shows_map_and_as_completed(bench: Bench) -> None:
    """A bar of tqdm around either counts to the end."""
    from tqdm import tqdm

    shown = [io.StringIO(), io.StringIO()]
    try:
        results = bench.executor.map(faults.identity, range(10))
        assert list(tqdm(results, total=10, file=shown[0])) == list(range(10))
        futures = [bench.executor.submit(faults.identity, n) for n in range(10)]
        done = tqdm(concurrent.futures.as_completed(futures), total=10, file=shown[1])
        assert sorted(future.result() for future in done) == list(range(10))
    finally:
        tqdm.monitor.exit()
    assert all("10/10" in text.getvalue() for text in shown)


@pytest.mark.parametrize("name", ["terminate_workers", "kill_workers"])
def test_the_methods_of_python_3_14(tmp_path: Path, name: str) -> None:
    """They end what runs, cancel what waits, and no submit or map is taken after them."""
    with Bench(tmp_path, 1) as bench:
        told = bench.path()
        running = bench.submit(faults.ignore_signals, told)
        waiting = bench.submit(faults.add, 1, 1)
        pid = told_pids(told)[0]
        getattr(bench.executor, name)()
        assert waiting.cancelled()
        assert isinstance(running.exception(support.TIMEOUT), TaskKilledError)
        with pytest.raises(SchedulerStateError):
            bench.executor.submit(faults.add, 1, 1)
        with pytest.raises(RuntimeError):
            bench.executor.map(faults.identity, [1])
        bench.executor.shutdown()
        assert_reaped(pid)
        getattr(bench.executor, name)()


def test_a_call_with_a_free_worker_is_not_cancelled_by_shutdown(bench: Bench) -> None:
    """shutdown(cancel_futures=True) right after submit: as many calls run as there are workers for."""
    futures = [bench.submit(faults.identity, n) for n in range(10)]
    bench.executor.shutdown(cancel_futures=True)
    ran = [n for n, future in enumerate(futures) if not future.cancelled()]
    assert len(ran) >= 2
    assert ran == list(range(len(ran)))
    assert [futures[n].result(0) for n in ran] == ran


def test_none_is_spared_where_all_workers_are_busy(bench: Bench) -> None:
    """Where no worker is free, shutdown(cancel_futures=True) cancels every call that waits."""
    gates = [bench.gate() for _ in range(2)]
    told = bench.path()
    held = [bench.submit(faults.wait_at_gate, gate, told) for gate in gates]
    support.wait_for_file(told, lines=2)
    waiting = [bench.submit(faults.identity, n) for n in range(10)]
    bench.executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting)
    for gate in gates:
        open_gate(gate)
    assert [future.result(support.TIMEOUT) for future in held] == ["through"] * 2


def test_a_worker_that_has_run_something_is_taken_before_the_spare(bench: Bench) -> None:
    """A call at a time goes to the same worker, also once there is a spare."""
    pid = bench.idle_pair()
    assert [bench.submit(os.getpid).result(support.TIMEOUT) for _ in range(5)] == [pid] * 5


# --- objects of a manager -------------------------------------------------------------------------------------

MANAGER = """
import multiprocessing
from procsched import ProcessExecutor, Scheduler
from tests import faults

def keep(queue):
    faults.kept = queue

def put(queue, value):
    queue.put(value)

def put_all(values):
    for n in values["numbers"]:
        queue.put(n)

with ProcessExecutor(1) as executor:
    executor.submit(abs, 1).result(30)
    with multiprocessing.get_context("fork").Manager() as manager:  # younger than the worker
        queue, numbers = manager.Queue(), manager.list([2, 3])
        executor.submit(put, queue, 1).result(30)
        executor.submit(put_all, {"numbers": numbers}).result(30)  # `queue` is one of its globals
        executor.submit(queue.put, 4).result(30)
        assert executor.submit(faults.identity, numbers).result(30)[1] == 3
        assert executor.submit(faults.length, b"x" * (1 << 20)).result(30) == 1 << 20
        error = executor.submit(faults.identity, {"lock": multiprocessing.Lock()}).exception(30)
        assert "args[0]['lock']" in str(error), error
        with ProcessExecutor(1, initializer=keep, initargs=(queue,)) as other:
            other.submit(lambda: faults.kept.put(5)).result(30)
        with Scheduler(workers=1) as scheduler:
            record = scheduler.wait(scheduler.schedule_after(put, 0, args=(queue, 6)), 30)
            assert record.ok, record.error
        print([queue.get(timeout=30) for _ in range(6)])
"""


def test_a_managers_objects_can_be_passed(tmp_path: Path) -> None:
    """A manager's queue works in a worker: as argument, nested, in a closure, by initargs, in a scheduler's task."""
    with Parent(tmp_path, MANAGER) as parent:
        assert parent.output() == "[1, 2, 3, 4, 5, 6]\n"
