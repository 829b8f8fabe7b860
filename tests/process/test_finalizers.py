"""A finalizer runs in whichever thread the garbage collector does, also in one that holds a lock of ours.

So these tests drop an object while they hold the lock themselves. What would wait for its own thread is a hang.
"""

from __future__ import annotations

import asyncio
import gc
import io
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import procsched
from procsched import (
    EventLog,
    InMemoryTaskStore,
    Outcome,
    ProcessExecutor,
    Scheduler,
    SchedulerStateError,
    SequentialIdGenerator,
    ThreadPool,
    _clock_watch,
    run,
    shared,
    shutdown_shared,
)
from tests import faults, support
from tests.pools import Bench, only_record, open_gate


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


class Finalized:
    """Calls a function when it is dropped, and keeps what that raised."""

    def __init__(self, function: Callable[[], object]) -> None:
        self.function = function

    def __del__(self) -> None:
        try:
            answers.append(self.function())
        except Exception as error:
            answers.append(error)


answers: list[Any] = []


@pytest.fixture(autouse=True)
def no_answers() -> None:
    answers.clear()


def drop(function: Callable[[], object]) -> Any:
    """Return what `function` answers in a finalizer that runs now."""
    Finalized(function)
    return answers.pop()


# --- the executor -------------------------------------------------------------------------------------------------


def test_an_executor_is_dropped_under_its_lock(tmp_path: Path) -> None:
    """It finishes its calls and ends, as always."""
    with Bench(tmp_path, 1) as bench:
        gate = bench.gate()
        other = ProcessExecutor(1)
        core = other._core
        future = other.submit(faults.wait_at_gate, gate)
        with core.lock:
            del other
            gc.collect()
            assert core.refused
        open_gate(gate)
        assert future.result(support.TIMEOUT) == "through"
        core.pool.loop.thread.join(support.TIMEOUT)
        assert not core.pool.loop.thread.is_alive()


def test_an_iterator_of_results_ends_its_calls_from_under_the_lock(bench: Bench) -> None:
    """Running and waiting calls are cancelled, once the lock is let go."""
    told = bench.path()
    results: Any = bench.executor.map(faults.sleep_if_told, ["", told, told, told])
    assert next(results) is None
    support.wait_for_file(told)
    items = list(bench.core.open)
    with bench.core.lock:
        del results
        gc.collect()
        assert all(item.future.cancelled() for item in items)
    support.eventually(lambda: not bench.core.open)
    bench.assert_usable()


def test_a_coroutine_of_a_call_is_dropped_under_the_lock(bench: Bench) -> None:
    """The call that it awaited is ended."""
    told = bench.path()

    async def main() -> None:
        coroutine = bench.executor.run(faults.sleep, told)
        coroutine.send(None)
        support.wait_for_file(told)
        with bench.core.lock:
            del coroutine
            gc.collect()

    asyncio.run(main())
    support.eventually(lambda: not bench.core.open)
    bench.assert_usable()


def test_what_a_finalizer_may_ask_of_an_executor_under_its_lock(bench: Bench) -> None:
    """It may cancel and submit, which is done a moment later; waiting is refused."""
    told = bench.path()
    future = bench.submit(faults.sleep, told)
    support.wait_for_file(told)
    assert bench.core.pool.loop.lock is bench.core.lock  # the timer's is no other
    with bench.core.lock:
        assert isinstance(drop(lambda: future.result(1)), SchedulerStateError)
        assert drop(future.cancel) is True
        second = drop(lambda: bench.submit(faults.add, 1, 1))
    only_record(future, Outcome.KILLED)
    assert second.result(support.TIMEOUT) == 2


def test_an_executor_is_asked_in_the_midst_of_its_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submit is refused there, a shutdown does not wait."""
    started = bench.core.pool.start

    def start(*args: Any) -> None:
        answers.append(drop(lambda: bench.submit(faults.add, 1, 1)))
        answers.append(drop(bench.executor.shutdown))
        started(*args)

    monkeypatch.setattr(bench.core.pool, "start", start)
    # In a thread: the main one leaves the start to a thread that `threading` does not know.
    thread = threading.Thread(target=drop, args=(lambda: bench.submit(faults.add, 1, 1),))
    thread.start()
    thread.join(support.TIMEOUT)
    refused, shut = answers
    assert isinstance(refused, SchedulerStateError)
    assert shut is None


def test_run_is_called_in_the_midst_of_run() -> None:
    """The pool behind it may be just being made."""
    try:
        with shared._lock:
            assert drop(lambda: run(faults.add, 1, 1)) == 2
    finally:
        shutdown_shared()


# --- the scheduler ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", ["engine", "pool", "listeners", "store"])
def test_a_scheduler_is_asked_under_one_of_its_locks(held: str) -> None:
    """It refuses what would come in between, and a shutdown begins behind the caller."""

    class Store(InMemoryTaskStore):
        """One that is written to by a thread, as any but the default."""

    scheduler = Scheduler(pool=ThreadPool(1), store=Store())
    with scheduler:
        task = scheduler.schedule_after(print, 1000)
        locks = {
            "engine": scheduler._lock,
            "pool": scheduler.pool._lock,
            "listeners": scheduler.delivery.lock,
            "store": scheduler.writer._lock,  # type: ignore[union-attr]
        }
        with locks[held]:
            questions: list[Callable[[], object]] = [
                lambda: scheduler.cancel(task),
                lambda: scheduler.kill(task),
                lambda: scheduler.pause(task),
                lambda: scheduler.resume(task),
                lambda: scheduler.revive(task),
                lambda: scheduler.schedule_after(print, 0),
                lambda: scheduler.wait(task, 0),
                lambda: scheduler.wait_idle(0),
                lambda: scheduler.add_listener(EventLog()),
                scheduler.history,
                scheduler.stats,
                scheduler.tasks,
                scheduler.pending,
                scheduler.dead_letter,
                scheduler.wake,
                lambda: scheduler.task(task.id),
            ]
            for question in questions:
                refusal = drop(question)
                assert isinstance(refusal, SchedulerStateError), refusal
                assert "finalizer (__del__), has interrupted the scheduler" in str(refusal)
                assert "call it from a thread" in str(refusal)  # what to do instead
            # These are for when a lock is held for too long.
            assert drop(scheduler.health).parts
            text = io.StringIO()
            drop(lambda: procsched.dump(text))
            assert task.id in text.getvalue()
            scheduler.engine.check()
            assert drop(scheduler.shutdown).killed == ()
    assert scheduler.shutdown().killed == ()
    with pytest.raises(SchedulerStateError):
        scheduler.schedule_after(print, 0)


def test_what_others_lend_a_scheduler_can_be_asked_under_its_lock() -> None:
    """Ids, a store, a watch on the clock: none waits for its own thread, and no id is given twice."""
    ids = SequentialIdGenerator()
    with ids._lock:
        assert drop(ids.next_id) == "task-1"
    assert ids.next_id() == "task-2"
    ids.continue_after(["task-7"])
    assert [ids.next_id(), ids.next_id()] == ["task-8", "task-9"]
    store = InMemoryTaskStore()
    with store._lock:
        assert drop(store.load_all) == []
    close = _clock_watch.watch_clock(print)
    with _clock_watch._watch_lock:
        assert drop(close) is None
