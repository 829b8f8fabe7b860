"""A run may use executors, processes, threads and asyncio of its own; all of it ends with the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsched import FakeClock, Outcome, ProcessExecutor, Scheduler
from tests import nesting, support
from tests.pools import Bench, only_record, told_pids

LONG = support.TIMEOUT * 3  # spawn starts an interpreter for each of its processes


pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


@pytest.mark.parametrize("kind", nesting.KINDS)
def test_it_works_and_leaves_nothing(bench: Bench, kind: str) -> None:
    """What is ended in good order gives the right value, and no process of it is left."""
    path = bench.path()
    future = bench.submit(nesting.use, kind, path, "return")
    assert future.result(LONG) == 3
    worker, *below = told_pids(path)
    assert only_record(future, Outcome.SUCCEEDED).pid == worker
    support.assert_gone(*below)
    bench.assert_usable()


@pytest.mark.parametrize("kind", nesting.KINDS)
def test_what_is_left_open_ends_at_the_return(bench: Bench, kind: str) -> None:
    """What the action leaves behind, hanging too, ends when it returns, and its result is not lost."""
    path = bench.path()
    future = bench.submit(nesting.use, kind, path, "leave")
    assert future.result(LONG) == 3
    worker, *below = told_pids(path)
    record = only_record(future, Outcome.SUCCEEDED)
    assert record.pid == worker
    support.assert_gone(worker, *below)  # the worker cannot be used again
    bench.assert_usable()


@pytest.mark.parametrize("kind", nesting.KINDS)
def test_all_of_it_dies_with_a_call_that_is_cancelled(bench: Bench, kind: str) -> None:
    """Cancelled while it hangs, a call takes everything below it along."""
    path = bench.path()
    future = bench.submit(nesting.use, kind, path, "hang")
    support.wait_for_file(path, LONG)
    assert future.cancel()
    only_record(future, Outcome.KILLED)
    support.assert_gone(*told_pids(path))
    bench.assert_usable()


@pytest.mark.parametrize("kind", nesting.KINDS)
def test_all_of_it_dies_at_the_deadline(tmp_path: Path, kind: str) -> None:
    """At its deadline a run takes everything below it along: the clock is moved once all of it is up."""
    path, clock = str(tmp_path / "told"), FakeClock(0.0)
    with Scheduler(1, clock=clock) as scheduler:
        task = scheduler.schedule_after(nesting.use, 0, args=(kind, path, "hang"), timeout=60.0)
        support.wait_for_file(path, LONG)
        clock.advance(61.0)
        assert scheduler.wait(task, support.TIMEOUT).outcome is Outcome.TIMED_OUT
        support.assert_gone(*told_pids(path))


def test_a_coroutine_may_await_all_of_it(bench: Bench) -> None:
    """An `async def` action awaits programs, threads and an executor of ours; all that ends with it."""
    path = bench.path()
    assert bench.submit(nesting.use_in_coroutine, path, "return").result(LONG) == 21
    support.assert_gone(*told_pids(path)[1:])
    path = bench.path()
    future = bench.submit(nesting.use_in_coroutine, path, "hang")
    support.wait_for_file(path, LONG)
    assert future.cancel()
    only_record(future, Outcome.KILLED)
    support.assert_gone(*told_pids(path))
    bench.assert_usable()


def test_three_levels(bench: Bench) -> None:
    """An executor in a run of an executor in a run: the innermost dies with the outermost."""
    path = bench.path()
    assert bench.submit(nesting_deeper, 2, "").result(LONG) == 3
    future = bench.submit(nesting_deeper, 2, path)
    support.wait_for_file(path, LONG)
    assert future.cancel()
    only_record(future, Outcome.KILLED)
    support.assert_gone(*told_pids(path))


def nesting_deeper(levels: int, path: str) -> int:
    if not levels:
        if path:
            support.tell(path, os.getpid(), os.getppid())
            nesting.hang()
        return nesting.add(1, 2)
    with ProcessExecutor(1) as executor:
        return executor.submit(nesting_deeper, levels - 1, path).result()


def test_a_task_of_a_scheduler_may_nest_as_well(tmp_path: Path) -> None:
    """The same for the runs of a scheduler, whose kill takes everything along."""
    path = str(tmp_path / "told")
    with Scheduler(1) as scheduler:
        task = scheduler.schedule_after(nesting.use, 0, args=("procsched.ProcessExecutor", path, "hang"))
        support.wait_for_file(path, LONG)
        assert scheduler.kill(task)
        assert scheduler.wait(task, support.TIMEOUT).outcome is Outcome.KILLED
        support.assert_gone(*told_pids(path))


def test_a_fork_that_is_ended_at_once_dies(bench: Bench) -> None:
    """SIGTERM is not lost on the way into a fork, though our handler is there when it begins."""
    assert bench.submit(nesting.end_at_once, 200).result(LONG) == 200


@pytest.mark.parametrize("own", [False, True])
def test_a_fork_has_no_handler_of_the_worker(bench: Bench, own: bool) -> None:
    """Nothing in Python keeps its SIGTERM from it, but what the run has installed itself."""
    assert bench.submit(nesting.handlers_of_a_fork, own).result(LONG) == [not own] * 2
