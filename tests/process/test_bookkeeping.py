"""Whatever raises around the end of an attempt, it has its record, its call is closed, and the next one runs."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import NO_RETRY, EventLog, OneTime, Outcome, Scheduler, ThreadPool
from procsched.workers.process import WorkerState
from tests import faults, support
from tests.pools import ROOT, Bench, Parent, open_gate


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


@pytest.fixture
def handler() -> Iterator[logging.Handler]:
    """Have every message of ours raise in the thread that logs it."""

    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ConnectionError(record.getMessage())

    made = Raising()
    logger = logging.getLogger("procsched")
    logger.addHandler(made)
    yield made
    logger.removeHandler(made)


class Clock:
    """A clock that cannot be read while it is broken."""

    broken = False

    def now(self) -> float:
        if self.broken:
            raise OSError("the clock is broken")
        return time.time()

    def monotonic(self) -> float:
        if self.broken:
            raise OSError("the clock is broken")
        return time.monotonic()


# --- the scheduler ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
def test_an_attempt_that_ends_while_the_clock_raises_is_recorded(tmp_path: Path, threads: bool) -> None:
    """It lasted until the clock was read last; what is ready is taken when the clock can be read again."""
    clock, log = Clock(), EventLog()
    pool = ThreadPool(1) if threads else None
    workers: dict[str, Any] = {} if threads else {"workers": 1}
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    told = str(tmp_path / "told")
    with Scheduler(clock=clock, pool=pool, listeners=[log], **workers) as scheduler:
        first = scheduler.schedule(
            "first", faults.wait_at_gate, OneTime(0), args=(gate, told), retry=NO_RETRY
        )
        support.wait_for_file(told)
        second = scheduler.schedule("second", faults.add, OneTime(0), args=(1, 1), retry=NO_RETRY)
        support.eventually(lambda: scheduler.stats().ready == 1)  # and no worker is free
        clock.broken = True
        open_gate(gate)
        assert log.wait_for(lambda _events: log.runs("first"), support.TIMEOUT)
        clock.broken = False
        assert scheduler.wait(second, support.TIMEOUT).result == 2
        assert [record.outcome for record in first.history] == [Outcome.SUCCEEDED]
        assert any("the clock is broken" in text for text in scheduler.stats().problems)


@pytest.mark.parametrize("threads", [False, True], ids=["processes", "threads"])
def test_a_log_handler_that_raises_costs_no_worker(handler: logging.Handler, threads: bool) -> None:
    """Attempts that fail and crash, which is logged, are recorded, and the next ones run."""
    fault: Callable[..., object] = faults.raise_runtime_error if threads else faults.exit_hard
    pool = ThreadPool(1) if threads else None
    with Scheduler(pool=pool) as scheduler:
        for number in range(3):
            task = scheduler.schedule("task", fault, OneTime(0), args=(number,), retry=NO_RETRY)
            record = scheduler.wait(task, support.TIMEOUT)
            assert record.outcome is (Outcome.FAILED if threads else Outcome.CRASHED)
        task = scheduler.schedule("task", faults.add, OneTime(0), args=(1, 1))
        assert scheduler.wait(task, support.TIMEOUT).result == 2


def test_what_jitter_needs_is_there_before_a_run_fails() -> None:
    """When it has failed, no descriptor may be left to import it with."""
    source = """
import sys
from procsched import ProcessExecutor, RetryPolicy, Scheduler, ThreadPool

def load(use):
    sys.modules.pop("random", None)
    use(RetryPolicy(2))
    assert "random" not in sys.modules
    use(RetryPolicy(2, jitter=0.5))
    assert "random" in sys.modules

with Scheduler(pool=ThreadPool(1)) as scheduler:
    load(lambda retry: scheduler.schedule_after(print, 1000, retry=retry))
executor = ProcessExecutor(1)
load(lambda retry: executor.options(retry=retry))
load(lambda retry: ProcessExecutor(1, retry=retry))
"""
    subprocess.run([sys.executable, "-c", source], cwd=ROOT, check=True, timeout=60)


# --- the executor -------------------------------------------------------------------------------------------------


def test_a_waiter_that_raises_does_not_keep_a_call_open(bench: Bench) -> None:
    """The result is there, callbacks are called, and the shutdown at the end of this test returns."""

    class Waiter:
        def add_result(self, future: object) -> None:
            raise ZeroDivisionError("on purpose")

    gate, told, called = bench.gate(), bench.path(), threading.Event()
    future = bench.submit(faults.wait_at_gate, gate, told)
    future._waiters.append(Waiter())
    future.add_done_callback(lambda _future: called.set())
    open_gate(gate)
    assert future.result(support.TIMEOUT) == "through"
    assert called.wait(support.TIMEOUT)
    assert future.wait_record(support.TIMEOUT).ok


def test_an_owner_that_raises_keeps_no_worker_in_the_books(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has crashed is let go of, whatever becomes of the news."""
    heard = bench.core.on_ended

    def raise_(item: Any, ending: Any) -> None:
        heard(item, ending)
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(bench.core, "on_ended", raise_)
    for _ in range(3):
        assert bench.submit(faults.exit_hard, 5).exception(support.TIMEOUT)
    workers = bench.core.pool.fleet.workers
    support.eventually(lambda: all(each.state is not WorkerState.GONE for each in tuple(workers.values())))
    monkeypatch.undo()
    bench.assert_usable()


def test_the_callback_thread_is_there_before_it_is_needed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a call has ended, no thread may be left to run what waits for it."""
    gate, called = bench.gate(), threading.Event()
    future = bench.submit(faults.wait_at_gate, gate)
    future.add_done_callback(lambda _future: called.set())
    monkeypatch.setattr(threading.Thread, "start", _cannot_start)
    open_gate(gate)
    assert called.wait(support.TIMEOUT)


def test_callbacks_without_a_thread_are_run_by_the_shutdown(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no thread could be started, whoever waits for the end of the executor runs them."""
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    monkeypatch.setattr(threading.Thread, "start", _cannot_start)
    called: list[int] = []
    gate = bench.gate()
    future = bench.submit(faults.wait_at_gate, gate)
    future.add_done_callback(lambda _future: called.append(threading.get_ident()))
    open_gate(gate)
    assert future.result(support.TIMEOUT) == "through"
    assert future.wait_record(support.TIMEOUT).ok
    bench.executor.shutdown()
    assert called == [threading.get_ident()]


def test_a_callback_is_run_at_the_end_of_the_script(tmp_path: Path) -> None:
    """Python 3.12 starts no thread from there on."""
    source = """
import time
from procsched import ProcessExecutor

executor = ProcessExecutor(1)
executor.submit(time.sleep, 0.2).add_done_callback(lambda future: print("called", future.done(), flush=True))
"""
    with Parent(tmp_path, source) as parent:
        assert parent.output() == "called True\n"


def _cannot_start(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_source_that_raises_costs_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose answer has just been booked is whole, whatever the source of calls does then."""
    with Bench(tmp_path, 1) as bench:
        pid = bench.submit(os.getpid).result(support.TIMEOUT)
        core, raised = bench.core, threading.Event()
        ask = core.next_call

        def next_call(*, ahead: bool = False) -> Any:
            if threading.current_thread() is core.io_thread() and not raised.is_set():
                raised.set()
                raise RuntimeError("not now")
            return ask(ahead=ahead)

        monkeypatch.setattr(core, "next_call", next_call)
        assert bench.submit(faults.identity, 1).result(support.TIMEOUT) == 1
        assert raised.wait(support.TIMEOUT)
        assert bench.submit(os.getpid).result(support.TIMEOUT) == pid
