"""What is withdrawn, or is to end, while somebody else is in the midst of it: everybody who waits hears of the end."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from procsched import Outcome, ProcessExecutor, RetryPolicy, SchedulerStateError, TaskTimeoutError
from procsched.future import ProcessFuture
from procsched.workers.sending import WorkerState
from tests import faults, support
from tests.pools import Bench, only_record, open_gate, told_pids


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


def ends(bench: Bench, function: Callable[[], object]) -> bool:
    """Return whether `function` returns, in a thread of its own."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(support.TIMEOUT)
    if not thread.is_alive():
        return True
    bench.core.drained.set()  # so that a test that fails does not hang
    thread.join(support.TIMEOUT)
    return False


@pytest.mark.parametrize("how", ["cancel", "shutdown"])
def test_a_handler_shuts_down_before_it_is_told_who_was_withdrawn(
    bench: Bench, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who withdrew the calls, and is to tell, goes on only when the handler's shutdown has returned."""
    told = bench.path()
    held = bench.submit(faults.wait_at_gate, gate := bench.gate(), told)
    support.wait_for_file(told)
    waiting = [bench.submit(faults.identity, n) for n in range(3)]
    tell = bench.core._tell_withdrawn
    seen: list[ProcessFuture[Any]] = []
    interrupted = threading.local()

    def handler() -> None:
        open_gate(gate)
        bench.executor.shutdown(cancel_futures=True)
        seen.extend(future for future in waiting if future.done())

    def strike(item: Any) -> None:
        if getattr(interrupted, "next", False):
            interrupted.next = False
            handler()
        tell(item)

    monkeypatch.setattr(bench.core, "_tell_withdrawn", strike)

    def act() -> None:
        interrupted.next = True
        if how == "cancel":
            waiting[1].cancel()
        else:
            bench.executor.shutdown(cancel_futures=True)

    assert ends(bench, act)
    assert seen == waiting
    # The others may have begun when the gate was open.
    assert all(future.cancelled() for future in (waiting if how == "shutdown" else waiting[1:2]))
    assert held.result(support.TIMEOUT) == "through"


def test_a_handler_waits_for_a_call_that_is_just_withdrawn(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of the end, though who withdrew the call, and is to tell, goes on only behind it."""
    bench.submit(faults.wait_at_gate, gate := bench.gate())
    future = bench.submit(faults.identity, 1)
    tell = bench.core._tell_withdrawn
    heard: list[BaseException] = []

    def strike(item: Any) -> None:
        if threading.current_thread() is interrupted:
            try:
                future.result(support.TIMEOUT)
            except BaseException as error:
                heard.append(error)
        tell(item)

    monkeypatch.setattr(bench.core, "_tell_withdrawn", strike)
    interrupted = threading.Thread(target=future.cancel)
    interrupted.start()
    interrupted.join(support.TIMEOUT * 2)
    assert [type(error) for error in heard] == [CancelledError]
    open_gate(gate)


def test_a_handler_shuts_down_in_the_midst_of_a_booking(bench: Bench) -> None:
    """The I/O thread, which would have to end the calls, waits for who books: the handler must not wait for it."""
    bench.submit(faults.identity, 0).result(support.TIMEOUT)
    future = bench.submit(faults.wait_at_gate, gate := bench.gate())

    def act() -> None:
        with bench.core.pool.reading:
            open_gate(gate)
            bench.executor.shutdown()

    assert ends(bench, act)
    bench.executor.shutdown()
    assert future.result(0) == "through"


@pytest.mark.slow
def test_a_cancel_in_the_grace_of_an_attempt_is_the_end_of_the_call(bench: Bench) -> None:
    """The attempt has timed out, whatever comes now, but there is no other."""
    told = bench.path()
    retry = RetryPolicy(3, initial_backoff=0.0)
    future = bench.submit(faults.ignore_signals, told, timeout=0.3, grace=20.0, retry=retry)
    (pid,) = told_pids(told)
    item = future._item
    support.eventually(lambda: item.worker.state is not WorkerState.BUSY, what="it is asked to end")
    assert not future.cancel()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(TaskTimeoutError):
        future.result(support.TIMEOUT)
    assert only_record(future, Outcome.TIMED_OUT).attempt == 1
    bench.assert_usable()


def test_a_shutdown_comes_in_the_midst_of_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who shuts down may be so slow that the I/O thread has ended before it asks for that."""
    executor = ProcessExecutor(1)
    core = executor._core
    starting = threading.Event()
    start, finish_soon = core.pool.start, core.finish_soon

    def slow_start(*args: Any) -> None:
        start(*args)
        starting.set()
        support.eventually(lambda: core.refused)

    def late() -> None:
        core.pool.loop.thread.join(support.TIMEOUT)
        finish_soon()

    monkeypatch.setattr(core.pool, "start", slow_start)
    monkeypatch.setattr(core, "finish_soon", late)
    refused: list[BaseException] = []

    def submit() -> None:
        try:
            executor.submit(abs, 1)
        except SchedulerStateError as error:
            refused.append(error)

    first = threading.Thread(target=submit)
    first.start()
    assert starting.wait(support.TIMEOUT)
    second = threading.Thread(target=executor.shutdown)
    second.start()
    second.join(support.TIMEOUT)
    hung = second.is_alive()
    core.drained.set()  # so that a test that fails does not hang
    for thread in (first, second):
        thread.join(support.TIMEOUT)
    assert not hung
    assert refused
