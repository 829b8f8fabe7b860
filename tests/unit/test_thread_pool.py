"""The pools of this process: threads, and the thread that pumps."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    FakeClock,
    InlinePool,
    OneTime,
    Outcome,
    Scheduler,
    SchedulerStateError,
    ThreadPool,
    ValidationError,
    current_run,
)
from procsched._core.failures import describe, traceback_text
from procsched.workers import local
from procsched.workers.base import Call, Ending
from tests import support
from tests.unit.scheduling import START, Held, simulated, threaded


def test_actions_share_the_memory_of_the_caller() -> None:
    """A thread runs the very object that was scheduled, with the very arguments."""
    found: list[object] = []
    with Scheduler(pool=ThreadPool(1)) as scheduler:
        task = scheduler.schedule("t", found.append, OneTime(0), args=(found,))
        assert scheduler.wait(task, 5).ok
    assert found[0] is found


def test_no_more_threads_than_workers_and_only_when_needed() -> None:
    """Threads start with the calls, are reused, and end with the scheduler."""
    held = Held()
    with Scheduler(pool=ThreadPool(2)) as scheduler:
        assert scheduler.stats().workers == ()
        for _ in range(5):
            scheduler.schedule("t", held, OneTime(0))
        support.eventually(lambda: len(scheduler.stats().workers) == 2)
        stats = scheduler.stats()
        assert {worker.state for worker in stats.workers} == {"busy"}
        assert {worker.task_id for worker in stats.workers} == {"task-1", "task-2"}
        assert (stats.running, stats.ready) == (2, 3)
        held.release.set()
        assert scheduler.wait_idle(5)
        workers = scheduler.stats().workers
        assert sum(worker.runs for worker in workers) == 5
        names = {thread.name for thread in threading.enumerate()}
        assert {"procsched-worker-1", "procsched-worker-2"} <= names
        assert "procsched-worker-3" not in names


@pytest.mark.parametrize("inline", [True, False])
def test_too_long_is_reported_after_the_fact(inline: bool) -> None:
    """A run that exceeds its timeout by the injected clock is TIMED_OUT when it is over."""
    clock = FakeClock(START)
    with Scheduler(clock=clock, pool=InlinePool() if inline else ThreadPool(1)) as scheduler:
        task = scheduler.schedule("t", clock.advance, OneTime(START), args=(6,), timeout=5, retry=NO_RETRY)
        fits = scheduler.schedule("f", clock.advance, OneTime(START), args=(5,), timeout=5)
        record = scheduler.wait(task, 5)
        assert (record.outcome, record.timed_out, record.ok) == (Outcome.TIMED_OUT, True, False)
        assert record.error == "exceeded its 5.0 s budget"
        assert record.duration == 6.0
        assert record.result is None
        assert scheduler.wait(fits, 5).ok


def test_time_asleep_does_not_count_towards_the_timeout() -> None:
    """A system that slept during a run does not make it late."""
    with simulated() as (scheduler, clock, _):
        task = scheduler.schedule("t", clock.suspend, OneTime(START), args=(3600,), timeout=5)
        assert scheduler.wait(task, 5).ok


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (ValueError("bad row"), "ValueError: bad row"),
    ],
)
@pytest.mark.parametrize("pool", [lambda: ThreadPool(1), InlinePool])
def test_whatever_is_raised_is_an_outcome(raised: BaseException, error: str, pool: Any) -> None:
    """No exception of an action ends a thread of the pool or reaches the caller."""

    def action() -> None:
        raise raised

    with Scheduler(pool=pool()) as scheduler:
        task = scheduler.schedule("t", action, OneTime(0), retry=NO_RETRY)
        record = scheduler.wait(task, 5)
        assert (record.outcome, record.error) == (Outcome.FAILED, error)
        assert record.traceback is not None
        assert "in action" in record.traceback
        assert scheduler.wait(scheduler.schedule("u", int, OneTime(0)), 5).ok


def test_coroutine_functions_are_run() -> None:
    """An `async def` action is run to its end."""

    async def action(x: int) -> int:
        return x + 1

    with Scheduler(pool=ThreadPool(1)) as scheduler:
        assert scheduler.wait(scheduler.schedule("t", action, OneTime(0), args=(1,)), 5).result == 2


def test_kill_says_false_and_changes_nothing() -> None:
    """A thread cannot be ended: kill says so, cancel withdraws the task all the same."""
    held = Held()
    with threaded() as (scheduler, _, _log):
        task = scheduler.schedule("t", held, OneTime(START))
        assert held.started.wait(5)
        assert not scheduler.kill(task)
        assert scheduler.cancel(task, kill=True)
        assert not scheduler.cancel(task, kill=True)
        held.release.set()
        assert scheduler.wait(task, 5).outcome is Outcome.SUCCEEDED


def test_wait_for_its_own_task_is_refused_and_for_another_is_not() -> None:
    """An action in a thread may wait for another task, never for itself."""
    with Scheduler(pool=ThreadPool(2)) as scheduler:

        def action() -> object:
            other = scheduler.wait(scheduler.schedule("other", int, OneTime(0)), 5)
            assert other.ok
            return scheduler.wait("task-1", 5)

        task = scheduler.schedule("t", action, OneTime(0), retry=NO_RETRY)
        assert "SchedulerStateError" in (scheduler.wait(task, 5).error or "")


def test_there_is_no_current_run_in_the_parent() -> None:
    """current_run says None outside a worker process."""
    with simulated() as (scheduler, _, _log):
        assert scheduler.wait(scheduler.schedule("t", current_run, OneTime(START)), 5).result is None


def test_a_pool_serves_one_scheduler() -> None:
    """A pool that is in use cannot be given to another scheduler."""
    pool = ThreadPool(1)
    with Scheduler(pool=pool):
        other = Scheduler(pool=pool)
        with pytest.raises(SchedulerStateError, match="already serves"):
            other.start()


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_number_of_threads_is_checked(workers: Any) -> None:
    """Only a whole number of at least one is a size."""
    with pytest.raises(ValidationError, match="workers"):
        ThreadPool(workers)


UNKEPT = {"soft_timeout": 1.0, "grace": 0.5, "capture_output": True}


@pytest.mark.parametrize("option", UNKEPT)
def test_what_no_thread_can_do_is_refused(option: str) -> None:
    """By name, with the way out, and nothing is registered; the same by default changes nothing."""
    with Scheduler(pool=ThreadPool(1)) as scheduler:
        with pytest.raises(
            ValidationError, match=rf"^{option} cannot be kept by a ThreadPool: .*ProcessPool"
        ):
            scheduler.schedule("t", int, OneTime(0), **{option: UNKEPT[option]})
        with pytest.raises(ValidationError, match=rf"^{option} cannot be kept by a ThreadPool"):
            scheduler.schedule_after(int, 0, **{option: UNKEPT[option]})
        assert scheduler.tasks() == []
        task = scheduler.schedule(
            "t", int, OneTime(0), timeout=60.0, soft_timeout=None, grace=0, capture_output=False
        )
        assert scheduler.wait(task, 5).ok


def test_a_program_under_test_keeps_its_options() -> None:
    """An inline pool takes what it has no use for, so that a test schedules as the program does."""
    with Scheduler(clock=FakeClock(START), pool=InlinePool()) as scheduler:
        task = scheduler.schedule("t", int, OneTime(START), timeout=60.0, **UNKEPT)
        assert scheduler.wait(task, 5).ok


def test_no_thread_left_is_a_crash_of_that_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system gives no thread, the attempt has a record that says so."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("procsched-worker"):
            raise RuntimeError("can't start new thread")
        start(thread)

    with threaded() as (scheduler, _, _log):
        monkeypatch.setattr(threading.Thread, "start", refuse)
        task = scheduler.schedule("t", int, OneTime(START), retry=NO_RETRY)
        record = scheduler.wait(task, 5)
        monkeypatch.undo()
        assert record.outcome is Outcome.CRASHED
        assert "can't start new thread" in (record.error or "")
        assert scheduler.wait(scheduler.schedule("u", int, OneTime(START)), 5).ok


def test_failures_are_described_whatever_their_methods_do() -> None:
    """An exception whose __str__ raises is described as such; long and many-line texts are tamed."""

    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert describe(Rude()) == "Rude: <its text cannot be had: __str__ raised RuntimeError>"
    assert describe(ValueError("a\nb")) == "ValueError: a / b"
    assert describe(ValueError()) == "ValueError"
    assert len(describe(ValueError("x" * 50_000))) < 11_000
    try:
        raise Rude
    except Rude as error:
        text = traceback_text(error)
    assert "test_failures_are_described" in text
    assert sys.exc_info() == (None, None, None)


def test_a_thread_that_cannot_be_started_is_a_crash_of_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no thread left: the run is told, and the next one has its own chance."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Scheduler(pool=ThreadPool(1)) as scheduler:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            task = scheduler.schedule("t", len, OneTime(0), args=("",), retry=NO_RETRY)
            record = scheduler.wait(task, support.TIMEOUT)
        assert record.outcome is Outcome.CRASHED
        assert record.error == "no thread could be started: can't start new thread"
        task = scheduler.schedule("t", len, OneTime(0), args=("",), retry=NO_RETRY)
        assert scheduler.wait(task, support.TIMEOUT).ok


def test_threads_are_a_few_more_than_processors() -> None:
    """They mostly wait; and there are never more than the most."""
    assert ThreadPool().size == min(local.MOST_THREADS, (os.cpu_count() or 1) + local.EXTRA_THREADS)


def test_what_the_owner_of_a_call_raises_ends_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    """That its end could not be booked is logged, and that a clock fails: then a timeout is not looked at."""

    def refuse(*_: object) -> Any:
        raise RuntimeError("of the user's")

    call: Any = SimpleNamespace(ended=refuse, task_id="task-1")
    local._tell(call, Ending(Outcome.SUCCEEDED, None))
    assert local._read(refuse) is None
    assert [record.message for record in caplog.records] == [
        "the end of task task-1 could not be booked",
        "the clock failed, so a timeout is not looked at",
    ]


class Queued(Call):
    """A call that tells when it has ended."""

    def __init__(self, action: Callable[..., object] = len, *args: object) -> None:
        super().__init__((action, args or ("",), {}))
        self.over = threading.Event()

    def ended(self, ending: Ending) -> None:
        self.over.set()


class Failing:
    """A source of calls that raises where it has an error in the place of one, as over a clock of the user's."""

    def __init__(self, *items: Call | BaseException) -> None:
        self.items = list(items)

    def next_call(self) -> Call | None:
        found = self.items.pop(0) if self.items else None
        if isinstance(found, BaseException):
            raise found
        return found


def test_who_pumps_hears_what_the_source_raises() -> None:
    """And whoever pumps next is not taken for one who is told of new calls by a thread that still runs some."""
    pool, call = InlinePool(), Queued()
    pool.start(Failing(RuntimeError("of the user's"), call), FakeClock(START))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="of the user's"):
        pool.pump()
    assert not call.over.is_set()
    pool.pump()
    assert call.over.is_set()


def test_a_thread_asks_a_source_that_has_raised_again(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody else may: it is logged, each time, and what waits there runs."""
    go_on = threading.Event()
    pool, first, second = ThreadPool(1), Queued(go_on.wait, support.TIMEOUT), Queued()
    errors = [RuntimeError("once"), RuntimeError("twice")]
    pool.start(Failing(first, *errors, second), FakeClock(START))  # type: ignore[arg-type]
    pool.pump()
    go_on.set()  # only now: else it may be this thread that asks next
    assert first.over.wait(support.TIMEOUT)
    assert second.over.wait(support.TIMEOUT)
    pool.shutdown(support.TIMEOUT)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["once", "twice"]
