"""What `ProcessExecutor` promises beside the standard library's own tests: contract, section 7."""

from __future__ import annotations

import array
import asyncio
import concurrent.futures
import contextlib
import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    Limits,
    Outcome,
    Priority,
    ProcessExecutor,
    RetryPolicy,
    SchedulerStateError,
    TaskKilledError,
    TaskTimeoutError,
    ValidationError,
    WorkerCrashedError,
)
from procsched.future import ProcessFuture
from tests import faults, support
from tests.pools import ROOT, Bench, Parent, assert_reaped, helper_pid, only_record, open_gate, told_pids

QUICK = RetryPolicy(3, initial_backoff=0.01)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 2) as it:
        yield it


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


class Held:
    """A call that keeps the only worker of a `Bench` busy until it is let go."""

    def __init__(self, bench: Bench) -> None:
        self.gate, self.told = bench.gate(), bench.path("held")
        self.future = bench.submit(faults.wait_at_gate, self.gate, self.told)
        support.wait_for_file(self.told)

    def let_go(self) -> None:
        open_gate(self.gate)
        assert self.future.result(support.TIMEOUT) == "through"


# --- submit -----------------------------------------------------------------------------------------------------


def test_it_is_an_executor_of_the_standard_library(bench: Bench) -> None:
    """wait, as_completed and isinstance work as with any executor."""
    assert isinstance(bench.executor, concurrent.futures.Executor)
    futures = [bench.submit(faults.add, n, n) for n in range(10)]
    assert all(isinstance(future, concurrent.futures.Future) for future in futures)
    assert concurrent.futures.wait(futures, support.TIMEOUT).not_done == set()
    assert sorted(f.result() for f in concurrent.futures.as_completed(futures)) == list(range(0, 20, 2))


def test_positional_only_names_reach_the_function(bench: Bench) -> None:
    """Keywords named `fn` or `self` are the function's."""
    assert bench.executor.submit(dict, fn=1, self=2).result(support.TIMEOUT) == {"fn": 1, "self": 2}


def test_what_is_not_callable_is_refused(bench: Bench) -> None:
    """submit() of what cannot be called names it."""
    with pytest.raises(ValidationError, match="callable, not int 3"):
        bench.executor.submit(3)  # type: ignore[arg-type]


def test_each_call_starts_from_its_own_bytes(bench: Bench) -> None:
    """What changes after submit() does not change the call, and a closure is pickled anew each time."""
    cell = [1]

    def read() -> int:
        return cell[0]

    first = bench.executor.submit(read)
    cell[0] = 2
    second = bench.executor.submit(read)
    assert (first.result(support.TIMEOUT), second.result(support.TIMEOUT)) == (1, 2)


def test_each_call_has_globals_of_its_own(single: Bench) -> None:
    """No run of a function of the main script sees what another did to its globals; the caller's changes count."""
    scope: dict[str, Any] = {"__name__": "__main__"}
    source = "count = 0\ndef add(seen=[]):\n    global count\n    count += 1\n    seen.append(count)\n    return seen"
    exec(source, scope)
    for _ in range(3):
        assert single.submit(scope["add"]).result(support.TIMEOUT) == [1]
    scope["count"] = 5
    assert single.submit(scope["add"]).result(support.TIMEOUT) == [6]
    assert scope["count"] == 5


def test_the_traceback_of_a_closure_names_its_line(bench: Bench) -> None:
    """An error of a closure leads to the file and the line where it is written."""
    text = "no"

    def fail() -> None:
        raise ValueError(text)

    with pytest.raises(ValueError, match="no") as caught:
        bench.submit(fail).result(support.TIMEOUT)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.name, last.line) == (__file__, "fail", "raise ValueError(text)")


def test_records_tell_of_the_call(bench: Bench) -> None:
    """A record has name, process, times, CPU and memory of its attempt, and the result."""
    future = bench.submit(faults.nap, 0.05, name="short nap")
    assert future.result(support.TIMEOUT) == "napped"
    record = only_record(future, Outcome.SUCCEEDED)
    assert record.name == "short nap"
    assert record.result == "napped"
    assert record.pid in bench.pids()
    assert 0.05 <= record.duration < support.TIMEOUT
    assert abs(record.finished_at - time.time()) < 60
    assert record.cpu_seconds is not None
    assert 0 <= record.cpu_seconds < 0.05
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2


def test_memory_and_cpu_are_those_of_the_attempt(single: Bench) -> None:
    """A run that takes much does not show in the record of the next."""
    large = single.submit(faults.use, 200 << 20, 0.1)
    large.result(support.TIMEOUT)
    before = only_record(large, Outcome.SUCCEEDED)
    for _ in support.looks(support.TIMEOUT):  # a spare may get in between
        small = single.submit(faults.use, 0, 0.005)
        small.result(support.TIMEOUT)
        after = only_record(small, Outcome.SUCCEEDED)
        if after.pid == before.pid:
            break
    assert after.pid == before.pid
    assert before.peak_rss is not None
    assert before.peak_rss > 200 << 20
    assert before.cpu_seconds is not None
    assert before.cpu_seconds >= 0.1
    assert after.cpu_seconds is not None
    assert 0 < after.cpu_seconds < 0.1
    assert after.peak_rss is None or after.peak_rss < 200 << 20


def test_what_a_child_used_counts_for_the_run_that_started_it(single: Bench) -> None:
    """A child that is found dead and not reaped is the run's that left it, and not of the next."""
    leaving = single.submit(faults.use_in_zombie, 0.2)
    leaving.result(support.TIMEOUT)
    first = only_record(leaving, Outcome.SUCCEEDED)
    for _ in support.looks(support.TIMEOUT):  # a spare may get in between
        following = single.submit(faults.use, 0, 0.005)
        following.result(support.TIMEOUT)
        record = only_record(following, Outcome.SUCCEEDED)
        assert record.cpu_seconds is not None
        assert record.cpu_seconds < 0.1
        if record.pid == first.pid:
            break
    assert record.pid == first.pid
    assert first.cpu_seconds is not None
    assert first.cpu_seconds >= 0.2


def test_memory_of_an_earlier_child_is_not_that_of_a_run_that_is_killed(single: Bench) -> None:
    """The kernel remembers the largest child of a process: where that was another run's, the peak is unknown."""
    for _ in support.looks(support.TIMEOUT):  # a spare may get in between
        using = single.submit(faults.use_in_child, 200 << 20)
        using.result(support.TIMEOUT)
        hanging = single.submit(faults.nap, faults.FOREVER, timeout=0.1)
        record = only_record(hanging, Outcome.TIMED_OUT)
        assert record.peak_rss is None or record.peak_rss < 200 << 20
        if record.pid == only_record(using, Outcome.SUCCEEDED).pid:
            break
    assert record.pid == only_record(using, Outcome.SUCCEEDED).pid


def test_a_coroutine_whose_loop_is_closed_can_be_asked(single: Bench) -> None:
    """There is nothing to cancel any more: what is raised is why it was asked."""
    future = single.submit(faults.hang_in_closed_loop, soft_timeout=0.5)
    with pytest.raises(TaskTimeoutError):
        future.result(support.TIMEOUT)
    only_record(future, Outcome.TIMED_OUT)


def test_progress_reaches_the_future(bench: Bench) -> None:
    """current_run() tells of the run, and what it says of its progress is on the future."""
    future = bench.submit(faults.report_progress, name="counting", timeout=support.TIMEOUT)
    name, attempt, remaining = future.result(support.TIMEOUT)
    assert (name, attempt) == ("counting", 1)
    assert 0 < remaining <= support.TIMEOUT
    assert future.progress == (3.0, 3.0, "step 3")


def test_progress_is_of_exact_numbers_and_text(bench: Bench) -> None:
    """What else a run gives is made so in the worker, and its class never comes to the parent."""
    future = bench.submit(faults.report_slyly)
    assert future.result(support.TIMEOUT) is None
    assert future.progress == (3, 7, "half way")
    assert [type(value) for value in future.progress] == [int, int, str]


@pytest.mark.parametrize(
    "function", [faults.own_name, functools.partial(faults.own_name), lambda: faults.own_name()]
)
def test_a_call_without_a_name_has_that_of_its_function(bench: Bench, function: Callable[[], str]) -> None:
    """Inside the action, and in its record."""
    future = bench.submit(function)
    assert future.result(support.TIMEOUT) == only_record(future, Outcome.SUCCEEDED).name
    assert bench.submit(function, name="a name").result(support.TIMEOUT) == "a name"


@pytest.mark.slow
def test_a_large_argument_and_result_travel(bench: Bench) -> None:
    """A hundred megabytes go there and back, while others are served."""
    data = os.urandom(1 << 20) * 100
    future = bench.submit(faults.identity, data)
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    assert future.result(support.TIMEOUT * 3) == data


# --- options ----------------------------------------------------------------------------------------------------


def test_options_make_a_view_and_change_nothing(single: Bench) -> None:
    """options() applies to the view alone, and None means no limit."""
    executor = ProcessExecutor(1, timeout=0.3)
    try:
        view = executor.options(timeout=None, name="first").options(name="second")
        assert view.submit(faults.nap, 0.5).result(support.TIMEOUT) == "napped"
        record = view.options(grace=0.1).submit(faults.add, 1, 2).wait_record(support.TIMEOUT)
        assert (record.name, record.result) == ("second", 3)
        with pytest.raises(TaskTimeoutError):
            executor.submit(faults.sleep, single.path()).result(support.TIMEOUT)
        assert executor.options(timeout=None).submit(faults.nap, 0.5).result(support.TIMEOUT) == "napped"
        with pytest.raises(TaskTimeoutError):
            executor.submit(faults.sleep, single.path()).result(support.TIMEOUT)
    finally:
        executor.kill_workers()
        executor.shutdown()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("timeout", 0),
        ("timeout", -1.0),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("timeout", True),
        ("soft_timeout", 0),
        ("grace", -0.1),
        ("priority", 7),
        ("priority", "HIGH"),
        ("retry", 3),
        ("name", 3),
        ("limits", {"memory": 1}),
    ],
)
def test_a_bad_option_is_refused_by_name(single: Bench, name: str, value: object) -> None:
    """Wrong types and values are refused at the call, with the option named."""
    with pytest.raises((ValidationError, TypeError), match=name):
        single.executor.options(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_workers", 0),
        ("max_workers", 1.5),
        ("max_workers", True),
        ("max_tasks_per_child", 0),
        ("initializer", 3),
        ("preload", "one_name"),
        ("nice", 40),
        ("start_timeout", 0),
        ("no_such_option", 1),
    ],
)
def test_a_bad_option_of_the_executor_is_refused_by_name(name: str, value: object) -> None:
    """Wrong types and values are refused by the constructor, with the option named."""
    with pytest.raises((ValidationError, TypeError), match=name):
        ProcessExecutor(**{name: value})  # type: ignore[arg-type]


def test_priority_holds_until_the_last_moment(single: Bench) -> None:
    """A call of higher priority that comes later is started first."""
    held = Held(single)
    told = single.path()
    futures = [
        single.submit(support.tell, told, name, priority=priority)
        for name, priority in [
            ("low", Priority.LOW),
            ("normal", Priority.NORMAL),
            ("high", Priority.HIGH),
            ("normal2", Priority.NORMAL),
        ]
    ]
    held.let_go()
    for future in futures:
        future.result(support.TIMEOUT)
    assert Path(told).read_text().split() == ["high", "normal", "normal2", "low"]


def test_a_retry_runs_again_and_keeps_all_records(bench: Bench) -> None:
    """A call with retries is tried again after any failure; each attempt has its record."""
    path = bench.path()
    future = bench.submit(faults.fail_until, path, 3, "raise", retry=QUICK)
    assert future.result(support.TIMEOUT) == 3
    assert [record.outcome for record in future.records] == [
        Outcome.FAILED,
        Outcome.FAILED,
        Outcome.SUCCEEDED,
    ]
    assert [record.attempt for record in future.records] == [1, 2, 3]


def test_a_retry_runs_again_after_crash_and_timeout(bench: Bench) -> None:
    """Crashes and timeouts are retried like failures; the last one is told."""
    crash = bench.submit(faults.fail_until, bench.path(), 2, "crash", retry=QUICK)
    assert crash.result(support.TIMEOUT) == 2
    assert [record.outcome for record in crash.records] == [Outcome.CRASHED, Outcome.SUCCEEDED]
    late = bench.submit(faults.sleep, bench.path(), retry=QUICK, timeout=0.2)
    with pytest.raises(TaskTimeoutError):
        late.result(support.TIMEOUT)
    assert [record.outcome for record in late.records] == [Outcome.TIMED_OUT] * 3


def test_a_retry_that_waits_is_withdrawn_by_cancel(bench: Bench) -> None:
    """cancel() between two attempts: the next is never made, shutdown does not wait for it."""
    path = bench.path()
    policy = RetryPolicy(5, initial_backoff=1000.0, max_backoff=1000.0)
    future = bench.submit(faults.fail_until, path, 9, "raise", retry=policy)
    support.eventually(lambda: future.records)
    assert not future.done()
    assert future.cancel()
    assert [record.outcome for record in future.records] == [Outcome.FAILED]
    bench.executor.shutdown()
    assert len(Path(path).read_text().splitlines()) == 1


def test_no_retry_is_the_default(bench: Bench) -> None:
    """A call is made once unless asked otherwise."""
    path = bench.path()
    assert isinstance(
        bench.submit(faults.fail_until, path, 2, "raise").exception(support.TIMEOUT), ValueError
    )
    assert bench.executor._options.retry is NO_RETRY


# --- map --------------------------------------------------------------------------------------------------------


def test_map_yields_in_order(bench: Bench) -> None:
    """map() yields results in the order of the items, for any chunk size."""
    for chunksize in (1, 3, 1000):
        assert list(bench.executor.map(faults.add, range(50), range(50), chunksize=chunksize)) == list(
            range(0, 100, 2)
        )
    assert list(bench.executor.map(faults.identity, [])) == []


def test_map_is_lazy(bench: Bench) -> None:
    """map() over an endless input takes no more than its window ahead of its consumer."""
    taken = itertools.count()
    last = [0]

    def items() -> Iterator[int]:
        for n in taken:
            last[0] = n
            yield n

    results = bench.executor.map(faults.identity, items(), buffersize=4)
    assert [next(results) for _ in range(10)] == list(range(10))
    assert last[0] <= 14
    results.close()  # type: ignore[attr-defined]


def test_map_keeps_nothing_that_was_taken() -> None:
    """However many results were taken, there are no more arguments, futures and results than the window is wide."""
    arguments: list[weakref.ref[array.array[int]]] = []
    taken: list[weakref.ref[array.array[int]]] = []

    def items() -> Iterator[array.array[int]]:
        while True:
            item = array.array("b", bytes(1000))
            arguments.append(weakref.ref(item))
            yield item
            del item

    with ProcessExecutor(2) as executor:  # not a `Bench`, which keeps what has ended

        def kept() -> list[int]:
            futures = [one for one in gc.get_objects() if type(one) is ProcessFuture]
            living = [[ref for ref in refs if ref() is not None] for refs in (arguments, taken)]
            return [*map(len, living), len([one for one in futures if one._owner is executor._core])]

        results = executor.map(faults.identity, items(), buffersize=4)
        taken.extend(map(weakref.ref, itertools.islice(results, 300)))
        # Those that wait, one that the generator was stopped at, and one that the caller of `next` is given.
        support.eventually(lambda: all(count <= 6 for count in kept()), what="the past is forgotten")
        results.close()  # type: ignore[attr-defined]


def test_map_tells_which_item_was_late(bench: Bench) -> None:
    """With a limit each item is an attempt, also inside a chunk: nine results and one timeout at its place."""
    found = list(
        bench.executor.options(timeout=0.5).map(
            faults.hang_at, range(10), [6] * 10, [bench.path()] * 10, chunksize=10, return_exceptions=True
        )
    )
    assert found[:6] + found[7:] == [n for n in range(10) if n != 6]
    assert isinstance(found[6], TaskTimeoutError)


def test_map_returns_exceptions_in_their_place(bench: Bench) -> None:
    """return_exceptions=True yields a crash in its place, and the finished items of its chunk survive."""
    found = list(bench.executor.map(faults.crash_at, range(8), [3] * 8, chunksize=4, return_exceptions=True))
    assert found[:3] + found[4:] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(found[3], WorkerCrashedError)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": sys.maxsize},
        {"timeout": 1e300, "soft_timeout": 1e299, "grace": 1e300},
        {"limits": Limits(cpu_seconds=1e300, file_size=1 << 70)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_limit_that_nobody_reaches_may_be_any_number(options: dict[str, Any]) -> None:
    """Also one that no timer and no limit of the kernel takes; and so may the time for which somebody waits."""
    with ProcessExecutor(1) as executor:
        assert executor.options(**options).submit(abs, -1).wait_record(sys.maxsize).ok
        found = executor.map(
            abs, [-1, 2], chunksize=1 << 70, timeout=sys.maxsize, progress=lambda *_told: None
        )
        assert list(found) == [1, 2]
        assert executor.stats().problems == ()


def test_map_gives_up_at_its_own_timeout(bench: Bench) -> None:
    """The timeout of map() itself ends the waiting, and what is left is withdrawn."""
    told = bench.path()
    results = bench.executor.map(faults.sleep, [told] * 6, timeout=0.3)
    with pytest.raises(TimeoutError):
        next(results)
    bench.assert_usable()


def test_a_map_that_is_left_early_is_withdrawn(bench: Bench) -> None:
    """Closing the iterator cancels what it had sent."""
    results = bench.executor.map(faults.hang_at, range(50), [1] * 50, [bench.path()] * 50)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    bench.assert_usable()


@pytest.mark.parametrize(("name", "value"), [("chunksize", 0), ("buffersize", 0), ("timeout", "x")])
def test_map_refuses_bad_values(bench: Bench, name: str, value: object) -> None:
    """Bad values are refused by map() itself, not at the first result."""
    with pytest.raises(ValidationError, match=name):
        bench.executor.map(faults.identity, [1], **{name: value})  # type: ignore[arg-type]


# --- cancel -----------------------------------------------------------------------------------------------------


def test_a_call_that_is_cancelled_while_it_waits_never_starts(single: Bench) -> None:
    """A waiting call that is cancelled leaves no trace; there is no record to wait for."""
    held = Held(single)
    path = single.path()
    future = single.submit(support.tell, path, "ran")
    assert future.cancel()
    assert future.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        future.wait_record(support.TIMEOUT)
    held.let_go()
    assert single.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    assert not os.path.exists(path)
    assert future.records == []


def test_a_cancelled_future_is_notified_at_once(bench: Bench) -> None:
    """wait() and as_completed() return for a running call that is cancelled, before its worker is dead."""
    future = bench.submit(faults.clean_up, path := bench.path(), grace=5.0)
    support.wait_for_file(path)
    threading.Timer(0, future.cancel).run()
    done = concurrent.futures.wait([future], support.TIMEOUT).done
    assert done == {future}
    assert list(concurrent.futures.as_completed([future], support.TIMEOUT)) == [future]
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    assert future.wait_record(support.TIMEOUT).outcome is Outcome.KILLED


def test_cancel_after_the_end_says_no(bench: Bench) -> None:
    """cancel() of a call that has ended returns False and changes nothing; of a cancelled one True."""
    future = bench.submit(faults.add, 1, 1)
    assert future.result(support.TIMEOUT) == 2
    assert not future.cancel()
    assert future.result() == 2
    waiting = bench.submit(faults.sleep, bench.path())
    assert waiting.cancel()
    assert waiting.cancel()


def test_asyncio_really_ends_the_run(bench: Bench) -> None:
    """asyncio.wait_for around run_in_executor ends the process of the run."""
    path = bench.path()

    async def main() -> None:
        run = asyncio.get_running_loop().run_in_executor(bench.executor, faults.ignore_signals, path)
        await asyncio.to_thread(support.wait_for_file, path)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run, timeout=0.01)

    asyncio.run(main())
    support.assert_gone(told_pids(path)[0])
    bench.assert_usable()


# --- callbacks --------------------------------------------------------------------------------------------------


def test_callbacks_run_on_a_thread_of_their_own(bench: Bench) -> None:
    """Done-callbacks run on one thread that is neither the caller's nor the one that watches deadlines."""
    threads = set()
    ran = threading.Semaphore(0)

    def note(_future: object) -> None:
        threads.add(threading.current_thread().name)
        ran.release()

    for n in range(20):
        bench.submit(faults.add, n, 1).add_done_callback(note)
    for _ in range(20):
        assert ran.acquire(timeout=support.TIMEOUT)
    assert threads <= {"procsched-callbacks", threading.current_thread().name}
    assert "procsched-io" not in threads


def test_a_callback_that_hangs_stops_no_deadline(bench: Bench) -> None:
    """While a callback blocks, runs are still ended and results still come."""
    with bench.hung_callback():
        only_record(bench.submit(faults.sleep, bench.path(), timeout=0.2), Outcome.TIMED_OUT)
        assert bench.submit(faults.add, 2, 2).result(support.TIMEOUT) == 4


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, KeyboardInterrupt])
def test_a_callback_that_raises_stops_nothing(
    bench: Bench, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """An error in a callback is logged; later callbacks and results still come."""
    ran = threading.Event()

    def fail(_future: object) -> None:
        raise error("in a callback")

    held = bench.gate()
    future = bench.submit(faults.wait_at_gate, held)
    future.add_done_callback(fail)
    open_gate(held)
    assert future.result(support.TIMEOUT) == "through"
    later = bench.submit(faults.wait_at_gate, held)
    later.add_done_callback(lambda _future: ran.set())
    open_gate(held)
    assert ran.wait(support.TIMEOUT)
    assert "in a callback" in caplog.text


# --- shutdown ---------------------------------------------------------------------------------------------------


def test_shutdown_finishes_what_was_submitted(bench: Bench) -> None:
    """shutdown() runs everything that waits, and by then no process is left."""
    futures = [bench.submit(faults.pid_and, n) for n in range(50)]
    bench.executor.shutdown()
    assert [future.result()[1] for future in futures] == list(range(50))
    for pid in {future.result()[0] for future in futures}:
        assert_reaped(pid)
    with pytest.raises(SchedulerStateError, match="after shutdown"):
        bench.executor.submit(faults.add, 1, 1)
    bench.executor.shutdown()


def test_shutdown_without_waiting_finishes_behind_the_caller(single: Bench) -> None:
    """shutdown(wait=False) returns at once; the calls still run."""
    held = Held(single)
    waiting = single.submit(faults.add, 1, 1)
    single.executor.shutdown(wait=False)
    assert not held.future.done()
    held.let_go()
    assert waiting.result(support.TIMEOUT) == 2


def test_shutdown_may_cancel_what_waits(single: Bench) -> None:
    """shutdown(cancel_futures=True) lets the running call finish and cancels the rest."""
    held = Held(single)
    waiting = [single.submit(faults.add, 1, 1) for _ in range(5)]
    single.executor.shutdown(wait=False, cancel_futures=True)
    assert all(future.cancelled() for future in waiting)
    held.let_go()


def test_shutdown_before_the_first_call(tmp_path: Path) -> None:
    """An executor that was never used starts and ends nothing."""
    before = set(support.children())
    with ProcessExecutor(2):
        assert set(support.children()) == before


def test_shutdown_from_two_threads_and_a_callback(bench: Bench) -> None:
    """shutdown() at the same time from several threads and from a callback returns everywhere."""
    gate = bench.gate()
    future = bench.submit(faults.wait_at_gate, gate)
    returned = threading.Semaphore(0)

    def end(_future: object = None) -> None:
        bench.executor.shutdown()
        returned.release()

    future.add_done_callback(end)
    threads = [threading.Thread(target=end) for _ in range(3)]
    for thread in threads:
        thread.start()
    open_gate(gate)
    for _ in range(4):
        assert returned.acquire(timeout=support.TIMEOUT)
    for thread in threads:
        thread.join()
    assert future.result() == "through"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_leaving_by_what_stops_a_program_ends_what_runs(tmp_path: Path, error: type[BaseException]) -> None:
    """Leaving the with-block by KeyboardInterrupt and its like withdraws what waits and ends what runs."""
    with Bench(tmp_path, 1) as bench:
        path = bench.path()
        with pytest.raises(error):
            with bench.executor:
                running = bench.submit(faults.ignore_signals, path)
                waiting = bench.submit(faults.add, 1, 1)
                pid = told_pids(path)[0]
                raise error
        assert_reaped(pid)
        assert waiting.cancelled()
        assert isinstance(running.exception(support.TIMEOUT), TaskKilledError)


def test_leaving_by_an_exception_waits(single: Bench) -> None:
    """Leaving the with-block by an ordinary exception finishes what was submitted."""
    with pytest.raises(ValueError, match="ordinary"):
        with single.executor:
            future = single.submit(faults.nap, 0.05)
            raise ValueError("ordinary")
    assert future.done()
    assert future.result() == "napped"


def test_an_executor_that_nobody_refers_to_finishes_and_ends(tmp_path: Path) -> None:
    """A collected executor runs its calls to their end, and its processes go."""
    before = set(support.children())
    executor = ProcessExecutor(1)
    gate, told = str(tmp_path / "gate"), str(tmp_path / "told")
    os.mkfifo(gate)
    future = executor.submit(faults.wait_at_gate, gate, told)
    waiting = executor.submit(faults.add, 1, 1)
    support.wait_for_file(told)
    gone = weakref.ref(executor)
    del executor
    gc.collect()
    assert gone() is None
    open_gate(gate)
    assert future.result(support.TIMEOUT) == "through"
    assert waiting.result(support.TIMEOUT) == 2
    support.eventually(lambda: set(support.children()) <= before)


def test_no_descriptors_left_is_an_error_and_no_hang(tmp_path: Path) -> None:
    """Where the process has no descriptors left, submit fails or its future does, and shutdown returns."""
    script = """
import resource
from procsched import ProcessExecutor
executor = ProcessExecutor(2)
taken = []
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
try:
    while True:
        taken.append(open("/dev/null"))
except OSError:
    pass
for room in range(0, 12):
    for _ in range(room and 1):
        taken.pop().close()
    try:
        error = executor.submit(abs, -1).exception(20)
    except OSError as failure:
        error = failure
    if error is None:
        break
    assert "descriptor" in str(error) or "open files" in str(error) or isinstance(error, OSError), error
del taken
print(executor.submit(abs, -2).result(20))
executor.shutdown()
print("over")
"""
    with Parent(tmp_path, script) as parent:
        out, err = parent.process.communicate(timeout=60)
        assert out == "2\nover\n", err


# --- the end of the interpreter -----------------------------------------------------------------------------------

AT_EXIT = {
    "idle": "executor.submit(abs, -1).result(30)",
    "never used": "pass",
    "running": "executor.submit(faults.nap_and_tell, 0.3, told)",
    "waiting": "[executor.submit(faults.nap_and_tell, 0.05, told) for _ in range(5)]",
    "just submitted": "executor.submit(faults.nap_and_tell, 0.0, told)",
    "cancelled": "executor.submit(faults.ignore_signals, told + 'x').cancel()",
    "killed": "executor.submit(faults.ignore_signals, told + 'x'); executor.kill_workers()",
    "shut down": "executor.submit(faults.nap_and_tell, 0.1, told); executor.shutdown(wait=False)",
    "collected": "executor.submit(faults.nap_and_tell, 0.1, told); del executor; gc.collect()",
    "timing out": "executor.options(timeout=0.3).submit(faults.ignore_signals, told + 'x')",
    "with a callback": "executor.submit(abs, -1).add_done_callback(lambda f: support.tell(told, f.result()))",
    "in a thread": (
        "threading.Thread(target=lambda: support.tell(told, executor.submit(faults.nap, 0.1).result(30))).start()"
    ),
    "after sys.exit": "executor.submit(faults.nap_and_tell, 0.1, told); sys.exit(0)",
}
TELL = {
    "running": 1,
    "waiting": 5,
    "just submitted": 1,
    "shut down": 1,
    "collected": 1,
    "with a callback": 1,
    "in a thread": 1,
    "after sys.exit": 1,
}


@pytest.mark.parametrize("state", AT_EXIT)
def test_the_end_of_the_interpreter(tmp_path: Path, state: str) -> None:
    """A program that ends without shutdown finishes its calls, prints nothing, and leaves nothing."""
    script = (
        "import gc, sys, threading\nfrom procsched import ProcessExecutor\nfrom tests import faults, support\n"
        f"told = {str(tmp_path / 'told')!r}\nexecutor = ProcessExecutor(2)\n{AT_EXIT[state]}\n"
    )
    with Parent(tmp_path, script) as parent:
        assert parent.output() == ""
    support.eventually(lambda: not support.orphans())
    told = tmp_path / "told"
    assert (told.read_text().count("\n") if told.exists() else 0) == TELL.get(state, 0)


def test_os_exit_of_the_parent_leaves_nothing(tmp_path: Path) -> None:
    """A program that leaves by os._exit takes its workers along."""
    told = tmp_path / "told"
    script = (
        "import os\nfrom procsched import ProcessExecutor\nfrom tests import faults, support\n"
        f"told = {str(told)!r}\nexecutor = ProcessExecutor(2)\n"
        "executor.submit(faults.ignore_signals, told)\nsupport.wait_for_file(told)\nos._exit(0)\n"
    )
    with Parent(tmp_path, script) as parent:
        assert parent.output() == ""
    support.assert_gone(told_pids(told)[0])


# --- forks and signals of the parent --------------------------------------------------------------------------------


def test_a_fork_of_the_parent_is_refused_and_harms_nothing(bench: Bench) -> None:
    """In a fork an executor refuses with a clear error; its end there touches none of the parent's workers."""
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    pids = bench.pids()
    path = bench.path()
    child = os.fork()
    if child == 0:
        try:
            try:
                bench.executor.submit(faults.add, 1, 1)
            except SchedulerStateError as error:
                support.tell(path, error)
            bench.executor.shutdown()
            bench.executor.kill_workers()
            with ProcessExecutor(1) as mine:
                support.tell(path, mine.submit(faults.add, 2, 2).result(support.TIMEOUT))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    first, second = Path(path).read_text().splitlines()
    assert "fork" in first
    assert second == "4"
    assert set(pids) <= set(bench.pids())
    bench.assert_usable()


@pytest.mark.parametrize("where", ["start", "lock"])
def test_a_fork_in_the_midst_of_another_thread_is_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A lock that another thread held at the fork, and that nobody lets go there, keeps nobody waiting."""
    held, let_go = threading.Event(), threading.Event()
    if where == "start":
        started = bench.core.pool.start

        def hold(*args: Any) -> None:
            held.set()
            let_go.wait(support.TIMEOUT)
            started(*args)

        monkeypatch.setattr(bench.core.pool, "start", hold)
        thread = threading.Thread(target=bench.submit, args=(faults.add, 1, 1))
    else:
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2

        def hold_lock() -> None:
            with bench.core.pool.lock:
                held.set()
                let_go.wait(support.TIMEOUT)

        thread = threading.Thread(target=hold_lock)
    thread.start()
    assert held.wait(support.TIMEOUT)
    path = bench.path()
    child = os.fork()
    if child == 0:
        try:
            try:
                bench.executor.submit(faults.add, 1, 1)
            except SchedulerStateError as error:
                support.tell(path, error)
            bench.core.pool.stats()
            bench.executor.kill_workers()
            bench.executor.shutdown()
            support.tell(path, "not held up")
        finally:
            os._exit(0)
    try:
        gone = support.process_gone(child)
    finally:
        let_go.set()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        thread.join(support.TIMEOUT)
    assert gone
    refused, ended = Path(path).read_text().splitlines()
    assert f"belongs to process {os.getpid()}" in refused
    assert ended == "not held up"
    bench.assert_usable()


def test_a_shutdown_waits_for_the_start_that_it_comes_upon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first call starts the pool, a shutdown that waits returns when that has ended again."""
    started = bench.core.pool.start

    def start(*args: Any) -> None:
        support.eventually(lambda: bench.core.refused)  # the shutdown has begun
        started(*args)

    monkeypatch.setattr(bench.core.pool, "start", start)
    refused: list[SchedulerStateError] = []

    def submit() -> None:
        try:
            bench.submit(faults.add, 1, 1)
        except SchedulerStateError as error:
            refused.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    support.eventually(lambda: not _is_free(bench.core.start_lock))
    bench.executor.shutdown()
    assert not bench.core.pool.loop.thread.is_alive()
    assert not support.children()
    thread.join(support.TIMEOUT)
    assert refused


def _is_free(lock: Any) -> bool:
    if not lock.acquire(blocking=False):
        return False
    lock.release()
    return True


def test_shutdown_does_not_wait_for_a_fork(bench: Bench) -> None:
    """A fork of the parent that lives on holds up neither shutdown nor the end of the helper."""
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    helper = helper_pid()
    child = os.fork()
    if child == 0:
        while True:
            signal.pause()
    try:
        bench.executor.shutdown()
        assert_reaped(helper)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_signals_of_the_parent_stay_in_the_parent(tmp_path: Path) -> None:
    """A SIGTERM for a worker runs no handler of the parent, whatever wake-up descriptor it has."""
    script = """
import asyncio, os, signal
from procsched import ProcessExecutor
from tests import faults, support

async def main():
    heard = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: heard.append("parent"))
    with ProcessExecutor(1) as executor:
        pid = await asyncio.wrap_future(executor.submit(os.getpid))
        future = executor.submit(faults.kill_itself, signal.SIGTERM)
        record = await asyncio.to_thread(future.wait_record, 10)
        print(record.error)
        await asyncio.sleep(0)
    print(heard)

asyncio.run(main())
"""
    with Parent(tmp_path, script) as parent:
        assert parent.output() == "worker died: SIGTERM\n[]\n"


def test_ctrl_c_reaches_the_parent_alone(tmp_path: Path) -> None:
    """SIGINT for the whole foreground group with many calls queued: the parent ends at once, nothing more starts."""
    told = tmp_path / "told"
    script = f"""
from procsched import ProcessExecutor
from tests import faults
try:
    with ProcessExecutor(2) as executor:
        for future in [executor.submit(faults.sleep, {str(told)!r}) for _ in range(100)]:
            future.result()
except KeyboardInterrupt:
    print("interrupted")
"""
    with Parent(tmp_path, script, start_new_session=True) as parent:
        pids = told_pids(told, lines=2)
        os.killpg(parent.process.pid, signal.SIGINT)
        assert parent.output() == "interrupted\n"
    support.assert_gone(*pids)
    assert len(told.read_text().splitlines()) == 2


def test_the_host_is_left_as_found(tmp_path: Path) -> None:
    """Signal handlers, wake-up descriptor, switch interval, priority, affinity and limits of the parent stay."""
    script = """
import gc, os, resource, signal, sys

def state():
    fd = signal.set_wakeup_fd(-1)
    return (
        [signal.getsignal(n) for n in signal.valid_signals()], fd, sys.getswitchinterval(), gc.get_threshold(),
        gc.get_freeze_count(), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), os.getcwd(),
        [resource.getrlimit(n) for n in range(16)], signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        open("/proc/self/status").read().partition("Umask:")[2].split()[0], dict(os.environ), sys.path[:],
    )

before = state()
from procsched import ProcessExecutor
from tests import faults
with ProcessExecutor(2) as executor:
    executor.submit(faults.exit_hard, 1).exception(30)
    executor.options(timeout=0.1).submit(faults.nap, 100).exception(30)
    during = state()
assert before == during, (before, during)
assert before == state()
import ctypes
value = ctypes.c_int()
ctypes.CDLL(None).prctl(37, ctypes.byref(value), 0, 0, 0)  # PR_GET_CHILD_SUBREAPER
print(value.value)
"""
    with Parent(tmp_path, script) as parent:
        assert parent.output() == "0\n"


@pytest.mark.slow
def test_many_pools_leave_nothing(tmp_path: Path) -> None:
    """A dozen pools, opened and closed, leave no descriptor, no thread and no process."""
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(12):
        with ProcessExecutor(1) as executor:
            assert executor.submit(abs, -1).result(support.TIMEOUT) == 1
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert threading.active_count() == threads


USES = {
    "executor": "from procsched import ProcessExecutor\n"
    "with ProcessExecutor(1) as executor: executor.submit(abs, -1).result(30)",
    "scheduler": "from procsched import InMemoryTaskStore, OneTime, Scheduler\n"
    "with Scheduler(1, store=InMemoryTaskStore()) as scheduler:\n"
    "    scheduler.wait(scheduler.schedule('t', abs, OneTime(0), args=(-1,), retry=NO_RETRY), 30).result",
}


@pytest.mark.parametrize("face", USES)
def test_the_parent_loads_no_heavy_module(tmp_path: Path, face: str) -> None:
    """Neither asyncio nor multiprocessing nor logging handlers, nor what only a database needs."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; from procsched import NO_RETRY\n{USES[face]}\n"
            "heavy = ('asyncio', 'multiprocessing', 'logging.handlers', 'psutil', "
            "'sqlalchemy', 'alembic', 'sqlite3', 'psycopg')\n"
            "print([name for name in heavy if name in sys.modules])",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[]\n", done.stderr


# --- memory ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _allocated() -> Iterator[Callable[[], int]]:
    """Give a function that returns how many bytes Python has now beyond those at the begin."""
    gc.collect()
    tracemalloc.start()

    def grown() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    try:
        before = tracemalloc.get_traced_memory()[0]
        yield grown
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_call_that_waits_takes_a_kilobyte_at_most(tmp_path: Path) -> None:
    """Of memory that Python allocates, with its future: so a million of them are a gigabyte."""
    count = 5_000
    with Bench(tmp_path, 1) as bench:
        told = bench.path()
        bench.submit(faults.wait_at_gate, bench.gate(), told)
        support.wait_for_file(told)
        arguments = list(range(1_000_000, 1_000_000 + count))
        with _allocated() as grown:
            futures = [bench.executor.submit(faults.identity, argument) for argument in arguments]
            assert grown() < 1024 * count
        assert not any(future.done() for future in futures)


@pytest.mark.slow
def test_calls_that_have_ended_keep_no_arguments(tmp_path: Path) -> None:
    """The memory of two thousand futures is not that of what was sent."""
    count, size = 2_000, 50_000
    gate, told = str(tmp_path / "gate"), str(tmp_path / "told")
    os.mkfifo(gate)
    with ProcessExecutor(1) as executor, _allocated() as grown:
        executor.submit(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        futures = [executor.submit(faults.length, bytes(size)) for _ in range(count)]
        assert grown() > count * size
        open_gate(gate)
        assert {future.result(support.TIMEOUT) for future in futures} == {size}
        assert grown() < size // 10 * count


def test_a_call_that_has_ended_keeps_its_result_alone(tmp_path: Path) -> None:
    """And that as long as there is its future: neither what it was given nor who was told."""
    with ProcessExecutor(1) as executor:
        argument, told = {1, 2}, threading.Event()

        def tell(_future: object) -> None:
            told.set()

        future = executor.submit(faults.identity, argument)
        future.add_done_callback(tell)
        given, callback = weakref.ref(argument), weakref.ref(tell)
        del argument, tell
        assert told.wait(support.TIMEOUT)
        result = weakref.ref(future.result(support.TIMEOUT))
        support.eventually(lambda: gc.collect() >= 0 and callback() is None, what="the callback is let go of")
        assert given() is None
        assert result() == {1, 2}
        del future
        support.eventually(lambda: gc.collect() >= 0 and result() is None, what="the result is let go of")


class _Interrupts:
    """A result whose loading is interrupted the first time."""

    armed = True

    def __reduce__(self) -> tuple[object, ...]:
        return _load_or_interrupt, ()


def _load_or_interrupt() -> str:
    if os.environ.get("PROCSCHED_TEST_PARENT") == str(os.getpid()) and _Interrupts.armed:
        _Interrupts.armed = False
        raise KeyboardInterrupt
    return "loaded"


def test_loading_that_is_interrupted_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A KeyboardInterrupt while a result is being loaded does not turn the result into None."""
    monkeypatch.setenv("PROCSCHED_TEST_PARENT", str(os.getpid()))
    _Interrupts.armed = True
    with Bench(tmp_path, 1) as bench:
        future = bench.submit(_Interrupts)
        with pytest.raises(KeyboardInterrupt):
            future.result(support.TIMEOUT)
        assert future.result(support.TIMEOUT) == "loaded"
        assert future.exception(support.TIMEOUT) is None


def test_what_a_killed_run_has_printed_is_kept(tmp_path: Path) -> None:
    """Output of a run that is killed is in its record line by line, although nobody flushed it."""
    with Bench(tmp_path, 1) as bench:
        future = bench.executor.options(timeout=0.3, capture_output=True).submit(faults.print_and_hang)
        with pytest.raises(TaskTimeoutError):
            future.result(support.TIMEOUT)
        assert future.wait_record(support.TIMEOUT).output == "one\ntwo\n"
