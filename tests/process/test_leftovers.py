"""What a run leaves in its worker never reaches the next run."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procsched import Outcome
from procsched.child.surroundings import HIGH_FD
from tests import faults, support
from tests.pools import Bench, assert_reaped, only_record


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


def states(bench: Bench) -> list[dict[str, object]]:
    """Return what runs find in every worker that there is now."""
    found = {}
    for _ in range(6):  # the worker that was used last is used next, but a spare may get in between
        future = bench.submit(faults.state)
        state = future.result(support.TIMEOUT)
        found[only_record(future, Outcome.SUCCEEDED).pid] = state
    return list(found.values())


LEAVINGS: list[tuple[Callable[..., object], bool]] = [
    (faults.leave_thread, True),
    (faults.leave_threading_timer, True),
    (faults.leave_timer, False),
    (faults.leave_mask, True),
    (faults.leave_umask, False),
    (faults.grandchild, True),
    (faults.daemon, True),
]


@pytest.mark.parametrize(("leave", "recycled"), LEAVINGS, ids=lambda value: getattr(value, "__name__", None))
def test_what_a_run_leaves_is_put_back_or_goes_with_its_worker(
    bench: Bench, leave: Callable[..., object], recycled: bool
) -> None:
    """Threads, timers, mask, umask and children of one run are not there for the next; its result stands."""
    before = states(bench)[0]
    future = bench.submit(leave)
    future.result(support.TIMEOUT)
    record = only_record(future, Outcome.SUCCEEDED)
    for state in states(bench):
        assert state == before
    assert bench.counters()["recycled"] == int(recycled)
    if recycled:
        assert_reaped(record.pid)
    else:
        assert record.pid in bench.pids()


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("leave", faults.INTERPRETER)
def test_the_interpreter_is_put_back(bench: Bench, leave: str, raises: bool) -> None:
    """What one run sets reaches neither its own answer nor the next run, however short it was."""
    pid, before = bench.submit(faults.interpreter).result(support.TIMEOUT)
    future = bench.submit(faults.leave_interpreter, leave, raises)
    record = only_record(future, Outcome.FAILED if raises else Outcome.SUCCEEDED)
    if raises:
        assert record.error == "ValueError: left"
        assert type(future.exception(support.TIMEOUT)) is ValueError
    else:
        assert future.result(support.TIMEOUT) == [[[]]]
    assert bench.submit(faults.interpreter).result(support.TIMEOUT) == (pid, before)


def test_a_trace_function_that_raises_ends_no_worker(bench: Bench) -> None:
    """It is its own run that it makes fail."""
    pid, before = bench.submit(faults.interpreter).result(support.TIMEOUT)
    for which in ("setprofile", "settrace"):
        only_record(bench.submit(faults.leave_raising, which), Outcome.FAILED)
    assert bench.submit(faults.interpreter).result(support.TIMEOUT) == (pid, before)


def test_numbers_of_the_interpreter_are_put_back_after_a_while(bench: Bench) -> None:
    """After runs of a millisecond: they harm nobody soon."""
    pid, before = bench.submit(faults.interpreter_numbers).result(support.TIMEOUT)
    bench.submit(faults.leave_interpreter_numbers).result(support.TIMEOUT)
    assert bench.submit(faults.interpreter_numbers).result(support.TIMEOUT) == (pid, before)


def test_a_recursion_limit_that_a_module_sets_stays(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is imported while the first of its calls is loaded, and not again."""
    bench.submit(int).result(support.TIMEOUT)
    (tmp_path / "deep_module.py").write_text(
        "import os, sys\n"
        f"if os.getpid() != {os.getpid()}:\n"
        "    sys.setrecursionlimit(4321)\n"
        "def limit():\n"
        "    return os.getpid(), sys.getrecursionlimit()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import deep_module

    first = bench.submit(deep_module.limit).result(support.TIMEOUT)
    assert first[1] == 4321
    assert bench.submit(deep_module.limit).result(support.TIMEOUT) == first


def test_the_working_directory_is_put_back(bench: Bench, tmp_path: Path) -> None:
    """A change of directory ends with the run, also where that directory is removed meanwhile."""
    gone = tmp_path / "gone"
    gone.mkdir()
    future = bench.submit(faults.leave_cwd, str(gone))
    future.result(support.TIMEOUT)
    gone.rmdir()
    for state in states(bench):
        assert state["cwd"] == os.getcwd()
    assert only_record(future, Outcome.SUCCEEDED).pid in bench.pids()


def test_a_working_directory_that_cannot_be_put_back_costs_the_worker(tmp_path: Path) -> None:
    """A run that removes the directory it was started in is a success; nobody is left in the void."""
    home = tmp_path / "home"
    home.mkdir()
    with Bench(tmp_path, 1, cwd=home) as bench:
        assert bench.submit(os.getcwd).result(support.TIMEOUT) == str(home)
        future = bench.submit(os.rmdir, str(home))
        assert future.result(support.TIMEOUT) is None
        only_record(future, Outcome.SUCCEEDED)


@pytest.mark.parametrize("seconds", [0.0001, 0.0003, 0.001, 0.003])
def test_a_timer_that_raises_hits_its_own_run_or_none(bench: Bench, seconds: float) -> None:
    """A handler that raises while the run is being put away harms neither the worker nor the next run."""
    for _ in range(25):
        first = bench.submit(faults.leave_raising_timer, seconds)
        second = bench.submit(faults.add, 1, 1)
        assert first.wait_record(support.TIMEOUT).outcome in (Outcome.SUCCEEDED, Outcome.FAILED)
        assert second.result(support.TIMEOUT) == 2
    assert bench.counters()["killed_workers"] == 0


def test_our_signals_are_put_back(bench: Bench) -> None:
    """A run that takes SIGTERM away does not make the next one deaf to being asked."""
    future = bench.submit(signal.signal, signal.SIGTERM, signal.SIG_IGN)
    future.exception(support.TIMEOUT)
    for _ in range(2):
        path = bench.path()
        asked = bench.submit(faults.clean_up, path, timeout=0.3, grace=5.0)
        only_record(asked, Outcome.TIMED_OUT)
        assert Path(path).read_text().split()[-1] == "cleaned"


# How a run may lose a standard stream, and whether its worker goes for it.
LOSSES = {"None": False, "memory": False, "deleted": False, "closed": True, "detached": True}
LOSSES_OF_MORE = {"wrapped": True, "opened anew": True}  # where output is captured they may do no harm


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    ("how", "recycled", "capture"),
    [(how, recycled, True) for how, recycled in LOSSES.items()]
    + [(how, recycled, False) for how, recycled in (LOSSES | LOSSES_OF_MORE).items()],
)
def test_streams_are_put_back(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], how: str, recycled: bool, capture: bool, stream: str
) -> None:
    """A run that replaces or closes a stream keeps what it printed, and takes no later one's output."""
    with Bench(tmp_path, 1, capture_output=capture) as bench:
        future = bench.submit(faults.lose_stream, stream, how)
        future.result(support.TIMEOUT)
        losing = only_record(future, Outcome.SUCCEEDED)
        assert losing.output == ("half" if capture else None)
        pids: list[int] = []

        def said_by_the_same_worker() -> bool:
            future = bench.submit(faults.say, stream)
            pids.append(future.result(support.TIMEOUT))
            record = only_record(future, Outcome.SUCCEEDED)
            assert record.output == ("seen\n" if capture else None)
            return pids[-1] == losing.pid

        if recycled:
            assert not said_by_the_same_worker()
            assert_reaped(losing.pid)
        else:
            support.eventually(said_by_the_same_worker)
        assert bench.counters()["recycled"] == int(recycled)
    found = capfd.readouterr()
    text = found.out if stream == "stdout" else found.err
    assert text == ("" if capture else "half" + "seen\n" * len(pids))


def test_a_descriptor_that_a_short_run_has_closed_crashes_no_worker(bench: Bench) -> None:
    """A run whose output is captured has it all the same; then the worker goes, where it has not gone before."""
    bench.submit(os.close, 1).result(support.TIMEOUT)
    future = bench.submit(print, "seen", capture_output=True)
    future.result(support.TIMEOUT)
    assert only_record(future, Outcome.SUCCEEDED).output == "seen\n"
    assert bench.counters()["recycled"] == 1
    assert bench.counters()["crashed_workers"] == 0


def test_captured_output_is_put_back_after_a_run_that_tidies_up(bench: Bench) -> None:
    """A run that closes every descriptor it may take for its own ends as itself, captured or not."""
    for capture in (False, True, False):
        future = bench.submit(os.closerange, 3, HIGH_FD, capture_output=capture)
        future.result(support.TIMEOUT)
        only_record(future, Outcome.SUCCEEDED)
    assert bench.counters()["crashed_workers"] == 0


def test_stdin_is_put_back(bench: Bench) -> None:
    """What a run had as sys.stdin is read by no other: there is nothing in it."""
    first = bench.submit(faults.replace_stdin)
    first.result(support.TIMEOUT)

    def nothing_in_the_same_worker() -> bool:
        future = bench.submit(input)
        assert isinstance(future.exception(support.TIMEOUT), EOFError)
        return only_record(future, Outcome.FAILED).pid == only_record(first, Outcome.SUCCEEDED).pid

    support.eventually(nothing_in_the_same_worker)


def test_the_streams_of_an_initializer_stay(tmp_path: Path) -> None:
    """Streams that the initializer has set, or taken away, belong to the worker, and are what is put back."""
    with Bench(tmp_path, 1, initializer=faults.replace_streams) as bench:
        pid, *found = bench.submit(faults.printed_so_far).result(support.TIMEOUT)
        assert found == ["seen\n", None]
        future = bench.submit(faults.lose_stream, "stdout", "None")
        future.result(support.TIMEOUT)
        assert only_record(future, Outcome.SUCCEEDED).pid == pid

        def said_by_the_same_worker() -> bool:
            again, *found = bench.submit(faults.printed_so_far).result(support.TIMEOUT)
            assert found[1] is None
            return again == pid and str(found[0]).startswith("seen\nhalfseen\n")

        support.eventually(said_by_the_same_worker)
        assert bench.counters()["recycled"] == 0


def test_what_an_initializer_has_closed_costs_no_worker(tmp_path: Path) -> None:
    """No run is blamed for a stream that was closed before it."""
    with Bench(tmp_path, 1, initializer=faults.lose_stream, initargs=("stdout", "closed")) as bench:
        for _ in range(5):
            bench.submit(faults.nap, 0.002).result(support.TIMEOUT)
        assert bench.counters()["recycled"] == 0


def test_output_belongs_to_its_run(bench: Bench) -> None:
    """Captured output is that of the run, in full and of no other, also where it ends in a crash."""
    futures = [bench.submit(faults.say_and, str(n), n % 3, capture_output=True) for n in range(12)]
    for n, future in enumerate(futures):
        record = future.wait_record(support.TIMEOUT)
        assert record.outcome is (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.CRASHED)[n % 3]
        assert record.output == f"out {n}\nerr {n}\n"


def test_modules_and_handlers_stay(bench: Bench) -> None:
    """Module state stays in a worker, as in any pool."""
    bench.submit(faults.remember, "kept").result(support.TIMEOUT)
    assert "kept" in [bench.submit(faults.recall).result(support.TIMEOUT) for _ in range(3)]


def test_a_recycled_worker_is_counted_and_replaced(tmp_path: Path) -> None:
    """max_tasks_per_child replaces a worker after so many runs, without losing any."""
    with Bench(tmp_path, 1, max_tasks_per_child=3) as bench:
        pids = [bench.submit(os.getpid).result(support.TIMEOUT) for _ in range(12)]
        assert all(pids.count(pid) <= 3 for pid in pids)
        assert bench.counters()["recycled"] >= 3
        support.assert_gone(*[pid for pid in set(pids) if pids.count(pid) == 3])


def test_what_the_initializer_starts_stays(tmp_path: Path) -> None:
    """A thread and a process that the initializer started belong to the worker: no run is blamed for them."""
    with Bench(tmp_path, 1, initializer=faults.start_thread_and_process) as bench:
        pids = {bench.submit(os.getpid).result(support.TIMEOUT) for _ in range(5)}
        assert len(pids) == 1
        assert bench.counters()["recycled"] == 0


@pytest.mark.parametrize(
    "fault",
    [faults.lower_limits, faults.drop_stdout, faults.become_nobody, faults.be_nice, faults.stop_reaping],
)
def test_changed_settings_of_the_process_reach_no_other_run(
    tmp_path: Path, fault: Callable[[], None]
) -> None:
    """Limits, standard descriptors, user, priority and care for orphans that a run changed go with its worker."""
    with Bench(tmp_path, 1) as bench:
        first = bench.submit(faults.settings).result(support.TIMEOUT)
        bench.submit(fault).result(support.TIMEOUT)
        assert bench.submit(faults.settings).result(support.TIMEOUT) == first
        assert bench.counters()["recycled"] == 1


@pytest.mark.parametrize("initializer", [None, faults.start_thread_and_process])
def test_a_child_is_seen_where_no_descriptor_is_left(
    tmp_path: Path, initializer: Callable[[], None] | None
) -> None:
    """It goes with the worker, also where that has more threads, whose children nobody can tell then."""
    with Bench(tmp_path, 1, initializer=initializer) as bench:
        support.assert_gone(bench.submit(faults.hide_child).result(support.TIMEOUT))
        assert bench.counters()["recycled"] == 1
