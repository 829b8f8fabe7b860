"""`map`: which items go together, what is sent ahead, what is kept, and progress."""

from __future__ import annotations

import gc
import importlib.util
import io
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    ProcessExecutor,
    RetryPolicy,
    SchedulerStateError,
    TaskTimeoutError,
    ValidationError,
    WorkerCrashedError,
)
from procsched.progress import REDRAW, bar
from tests import faults, mapped, support
from tests.pools import Bench, assert_reaped, open_gate, told_pids


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 2, preload=("tests.faults", "tests.mapped")) as it:
        yield it


# --- what is sent, and when -----------------------------------------------------------------------------------


def test_without_buffersize_all_is_sent_at_once(bench: Bench) -> None:
    """As in the library, results are there after a shutdown, and items run though nobody takes the results."""
    told = bench.path()
    with bench.executor as executor:
        results = executor.map(faults.identity, range(1000))
        executor.map(support.tell, [told] * 20, range(20))
    assert list(results) == list(range(1000))
    assert len(Path(told).read_text().splitlines()) == 20


@pytest.mark.parametrize("options", [{}, {"chunksize": 5}, {"chunksize": 5, "return_exceptions": True}])
def test_an_endless_generator_stays_flat(bench: Bench, options: dict[str, Any]) -> None:
    """With buffersize no more than so many chunks are ahead, however many have gone by."""
    taken = itertools.count()
    last = [0]

    def items() -> Iterator[int]:
        for n in taken:
            last[0] = n
            yield n

    ahead = 4 * options.get("chunksize", 1)
    results = bench.executor.map(faults.identity, items(), buffersize=4, **options)
    assert last[0] < ahead
    for n in range(1000):
        assert next(results) == n
        assert last[0] - n <= ahead + options.get("chunksize", 1)
    results.close()  # type: ignore[attr-defined]
    support.eventually(lambda: not bench.core.open)


@pytest.mark.parametrize(
    "items",
    [range(0), range(1), range(7), range(20, -3, -4), range(5, 5), range(10**30, 10**30 + 9)],
    ids=str,
)
def test_a_range_is_sent_as_ranges(bench: Bench, items: range, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of a range takes a few bytes, however long it is, and its items are what they are."""
    sent: list[Any] = []
    submit = bench.core.submit

    def noted(fn: Any, args: Any, *more: Any) -> Any:
        sent.extend(args)
        return submit(fn, args, *more)

    monkeypatch.setattr(bench.core, "submit", noted)
    told: list[tuple[int, int | None]] = []
    options: dict[str, Any] = {"chunksize": 3, "progress": lambda *counts: told.append(counts)}
    assert list(bench.executor.map(faults.identity, items, **options)) == list(items)
    assert sent == [items[start : start + 3] for start in range(0, len(items), 3)]
    assert told[-1:] == [(len(items), len(items))] * bool(items)


@pytest.mark.parametrize("chunksize", [1, 5])
def test_a_map_over_nothing_is_empty(bench: Bench, chunksize: int) -> None:
    """Without an iterable, or with an empty one, nothing is called, as in the library."""
    assert list(bench.executor.map(faults.identity, chunksize=chunksize)) == []
    assert list(bench.executor.map(faults.identity, (), chunksize=chunksize)) == []
    assert list(bench.executor.map(faults.add, (), range(3), chunksize=chunksize)) == []


def test_an_endless_range_is_read_as_results_are_taken(bench: Bench) -> None:
    """A range longer than any list is mapped with buffersize."""
    results = bench.executor.map(faults.identity, range(10**30), chunksize=100, buffersize=2)
    assert list(itertools.islice(results, 1000)) == list(range(1000))
    results.close()  # type: ignore[attr-defined]


def test_with_buffersize_a_shutdown_ends_the_map(bench: Bench) -> None:
    """Where there is more to send, the iterator says that the executor is shut down, and is not just shorter."""
    results = bench.executor.map(faults.identity, range(100), buffersize=2)
    assert next(results) == 0
    bench.executor.shutdown()
    with pytest.raises(SchedulerStateError, match="after shutdown"):
        list(results)


def test_the_iterator_keeps_the_executor_as_long_as_it_must() -> None:
    """A map that has sent everything lets the executor go; one with buffersize keeps it until then."""
    executor = ProcessExecutor(1)
    gone = weakref.ref(executor)
    results = executor.map(faults.identity, range(30))
    del executor
    gc.collect()
    assert gone() is None
    assert list(results) == list(range(30))

    executor = ProcessExecutor(1)
    gone = weakref.ref(executor)
    results = executor.map(faults.identity, range(30), buffersize=3)
    del executor
    gc.collect()
    assert gone() is not None
    assert list(itertools.islice(results, 28)) == list(range(28))
    gc.collect()
    assert gone() is None
    assert list(results) == [28, 29]


def test_an_error_of_the_items_is_the_callers(bench: Bench) -> None:
    """What the iterable raises comes out of map(), or with buffersize of the iterator, which cancels the rest."""

    def items() -> Iterator[int]:
        yield from range(5)
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        bench.executor.map(faults.identity, items())
    results = bench.executor.map(faults.identity, items(), buffersize=2)
    with pytest.raises(LookupError, match="no more"):
        list(results)
    bench.assert_usable()


@pytest.mark.parametrize("chunksize", [1, 4])
def test_a_result_that_was_taken_is_let_go(bench: Bench, chunksize: int) -> None:
    """The iterator keeps no reference to what it has yielded."""
    for made in bench.executor.map(mapped.make, range(8), chunksize=chunksize):
        reference = weakref.ref(made)
        del made
        assert reference() is None


# --- items with an outcome of their own -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "options", "error"),
    [
        ("hang", {"timeout": 0.5}, TaskTimeoutError),
        ("crash", {}, WorkerCrashedError),
        ("crash", {"retry": RetryPolicy(2, initial_backoff=0.01)}, WorkerCrashedError),
        ("raise", {}, ValueError),
    ],
)
def test_every_other_item_of_a_chunk_is_kept(
    bench: Bench, how: str, options: dict[str, Any], error: type[Exception]
) -> None:
    """Items of the same chunk that had finished or not begun come out, whatever ends the one between them."""
    view = bench.executor.options(**options)
    found = list(view.map(mapped.fall_at, range(8), [how] * 8, chunksize=8, return_exceptions=True))
    assert found[:3] + found[4:] == [0, 1, 2, 4, 5, 6, 7]
    assert isinstance(found[3], error)


def test_what_a_shutdown_withdraws_is_said_in_its_place(bench: Bench) -> None:
    """What has ended is not lost by that, nor what goes on."""
    gates = [bench.gate() for _ in range(2)]
    results = bench.executor.map(faults.wait_at_gate, [*gates, "", ""], return_exceptions=True)
    support.eventually(lambda: bench.executor.stats().running == 2)
    bench.executor.shutdown(wait=False, cancel_futures=True)
    for gate in gates:
        open_gate(gate)
    found = list(results)
    assert found[:2] == ["through", "through"]
    assert [type(each) for each in found[2:]] == [CancelledError, CancelledError]


def test_each_item_of_a_chunk_has_its_own_limit(bench: Bench) -> None:
    """A chunk that takes longer than the limit of an item is no reason to end it."""
    view = bench.executor.options(timeout=1.0)
    assert list(view.map(faults.nap, [0.15] * 16, chunksize=16)) == ["napped"] * 16


def test_in_a_plain_map_the_chunk_is_the_attempt(bench: Bench) -> None:
    """Without limit, retry or return_exceptions a crash takes its chunk along, and no other."""
    results = bench.executor.map(mapped.fall_at, range(8), ["crash"] * 8, chunksize=2)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(WorkerCrashedError):
        next(results)


def test_leaving_early_ends_what_runs_and_what_waits(bench: Bench) -> None:
    """An iterator that is closed kills the calls that run, and those that wait never start."""
    gate, told, ran = bench.gate(), bench.path(), bench.path()
    results = bench.executor.map(mapped.first_then_hang, range(20), [gate] * 20, [told] * 20, [ran] * 20)
    pid = told_pids(told)[0]
    open_gate(gate)
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    support.assert_gone(pid)
    bench.assert_usable()
    assert not os.path.exists(ran)


# --- progress -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chunksize", "expected"),
    [(1, [(n, 6) for n in range(1, 7)]), (4, [(2, 6), (6, 6)])],
)
def test_progress_counts_items(bench: Bench, chunksize: int, expected: list[tuple[int, int]]) -> None:
    """A callable hears of every item, or every chunk, before the iterator ends."""
    seen: list[tuple[int, int | None]] = []
    results = bench.executor.map(
        faults.identity, range(6), chunksize=chunksize, progress=lambda *given: seen.append(given)
    )
    assert list(results) == list(range(6))
    assert seen == expected or (chunksize == 4 and seen == [(4, 6), (6, 6)])


class Shy:
    """Knows its length when all of it was read."""

    def __len__(self) -> int:
        raise RuntimeError("not read yet")

    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_a_length_that_cannot_be_told_is_unknown(bench: Bench) -> None:
    """Whatever says so: the items are there all the same."""
    seen: list[tuple[int, int | None]] = []
    results = bench.executor.map(faults.identity, Shy(), progress=lambda *given: seen.append(given))
    assert list(results) == [0, 1, 2]
    assert [done for done, _total in seen] == [1, 2, 3]


def test_progress_is_told_while_the_first_item_is_waited_for(bench: Bench) -> None:
    """Items that end behind one that takes long are counted at once, in the thread that waits."""
    gate = bench.gate()
    threads = set()

    def report(done: int, total: int | None) -> None:
        threads.add(threading.current_thread())
        assert total == 8
        if done == 7:
            open_gate(gate)  # nothing else does

    gates = [gate] + [""] * 7
    assert list(bench.executor.map(mapped.at_gate, gates, range(8), progress=report)) == list(range(8))
    assert threads == {threading.current_thread()}


def test_the_item_that_is_waited_for_may_end_while_progress_is_told(bench: Bench) -> None:
    """It is counted with those before it, and not waited for once more."""
    gate = bench.gate()
    seen = []

    def report(done: int, _total: int | None) -> None:
        seen.append(done)
        if done == 1:
            support.eventually(lambda: len(bench.core.open) == 1, what="all but the first item have ended")
        if done == 3:
            open_gate(gate)
            support.eventually(lambda: not bench.core.open, what="the first item has ended too")

    gates = [gate] + [""] * 3
    assert list(bench.executor.map(mapped.at_gate, gates, range(4), progress=report)) == list(range(4))
    assert seen == [1, 2, 3, 4]


def test_progress_does_not_wait_for_the_callback_thread(bench: Bench) -> None:
    """A done-callback of somebody else's that hangs does not hold it up."""
    with bench.hung_callback():
        seen: list[int] = []
        list(bench.executor.map(faults.identity, range(5), progress=lambda done, _total: seen.append(done)))
        assert seen == [1, 2, 3, 4, 5]


def test_the_total_is_none_until_it_is_known(bench: Bench) -> None:
    """Items that cannot be counted have no total until the last has been sent."""
    seen: list[tuple[int, int | None]] = []
    results = bench.executor.map(
        faults.identity, iter(range(6)), buffersize=2, progress=lambda *given: seen.append(given)
    )
    assert list(results) == list(range(6))
    assert seen[0] == (1, None)
    assert seen[-1] == (6, 6)
    seen.clear()
    list(bench.executor.map(faults.identity, iter(range(3)), progress=lambda *given: seen.append(given)))
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_progress_counts_failures_too(bench: Bench) -> None:
    """An item that failed, or could not even be sent, has ended."""
    seen: list[int] = []
    items = [1, threading.Lock(), 3]
    found = list(
        bench.executor.map(
            faults.identity, items, return_exceptions=True, progress=lambda done, _total: seen.append(done)
        )
    )
    assert seen == [1, 2, 3]
    assert (found[0], found[2]) == (1, 3)
    assert isinstance(found[1], Exception)


def test_what_progress_raises_ends_the_map(bench: Bench) -> None:
    """An error of the callable comes out of the iterator, and what waits is withdrawn."""

    def report(done: int, _total: int | None) -> None:
        raise ZeroDivisionError(done)

    told = bench.path()
    gates = ["", *[bench.gate() for _ in range(20)]]
    with pytest.raises(ZeroDivisionError):
        list(bench.executor.map(mapped.at_gate, gates, range(21), progress=report))
    support.eventually(lambda: not bench.core.open)
    assert not os.path.exists(told)


def test_the_timeout_of_map_holds_with_progress(bench: Bench) -> None:
    """map(timeout=...) ends the waiting with a callable as without."""
    told = bench.path()
    results = bench.executor.map(faults.sleep, [told] * 2, timeout=0.2, progress=lambda *_given: None)
    with pytest.raises(TimeoutError):
        next(results)
    support.eventually(lambda: not bench.core.open)
    bench.assert_usable()


@pytest.mark.parametrize("value", [3, "yes"])
def test_progress_of_another_kind_is_refused(bench: Bench, value: Any) -> None:
    """What is neither a callable nor True is refused by map() itself."""
    with pytest.raises(ValidationError, match="progress must be a callable"):
        bench.executor.map(faults.identity, [1], progress=value)


@pytest.mark.parametrize("value", [None, False])
def test_no_progress(bench: Bench, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """None and False tell nothing."""
    assert list(bench.executor.map(faults.identity, [1], progress=value)) == [1]
    assert capsys.readouterr() == ("", "")


# --- the bar --------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and counts what is drawn."""

    def isatty(self) -> bool:
        return True

    def drawings(self) -> int:
        return self.getvalue().count("\r")


def test_a_bar_is_drawn_on_a_terminal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """progress=True draws a bar that ends full, and starts no thread."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    bench.executor.submit(abs, 1).result(support.TIMEOUT)
    threads = set(threading.enumerate())
    assert list(bench.executor.map(faults.identity, range(7), progress=True)) == list(range(7))
    assert set(threading.enumerate()) <= threads
    assert "100%" in terminal.getvalue()
    assert "7/7" in terminal.getvalue()


def test_a_bar_is_redrawn_ten_times_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is told, it draws at most ten times a second, and the last time at its end."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    drawn = bar()
    began = time.monotonic()
    done = 0
    while time.monotonic() - began < 5 * REDRAW:
        done += 1
        drawn(done, None)
    drawn.close()
    seconds = time.monotonic() - began
    assert done > 100
    # Beside those ten a second the first drawing, the last one, and the new line.
    assert terminal.drawings() <= seconds / REDRAW + 3, terminal.getvalue()


def test_no_bar_in_a_log_file(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where standard error is no terminal nothing is written, also where it is closed or missing."""
    log = tmp_path / "log"
    for stream in (log.open("w"), _closed(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        assert list(bench.executor.map(faults.identity, range(3), progress=True)) == [0, 1, 2]
        if stream is not None:
            stream.close()
    assert log.read_text() == ""


def _closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("make_stream", [Terminal, io.StringIO])
def test_without_tqdm_the_error_names_the_extra(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, make_stream: Callable[[], io.StringIO]
) -> None:
    """progress=True without tqdm is an error of map() that says what to install, under cron as at a terminal."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(sys, "stderr", make_stream())
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "tqdm" else find_spec(name, *more)
    )
    with pytest.raises(ValidationError, match=r"pip install 'procsched\[progress\]'"):
        bench.executor.map(faults.identity, [1], progress=True)
    assert not bench.core.open


def test_a_map_that_was_never_begun_draws_no_bar(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar comes with the first item that has ended; an iterator that is dropped leaves none."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    bench.executor.map(faults.identity, range(3), progress=True)
    bench.executor.shutdown()
    assert terminal.getvalue() == ""


def test_everything_is_gone_after_a_map(tmp_path: Path) -> None:
    """A map leaves no process behind its executor."""
    with ProcessExecutor(2) as executor:
        pids = {pid for pid, _value in executor.map(faults.pid_and, range(10))}
    for pid in pids:
        assert_reaped(pid)


def test_in_a_fork_progress_is_not_waited_for(bench: Bench) -> None:
    """Nobody ends the calls there: it is an error that says so, as without progress."""
    gate = bench.gate()
    results = bench.executor.map(faults.wait_at_gate, [gate], progress=lambda _done, _total: None)
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(support.TIMEOUT))
        code = 1
        try:
            next(results)
        except SchedulerStateError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    open_gate(gate)
    assert list(results) == ["through"]
