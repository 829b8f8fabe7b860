"""At its deadline, or on request, a run is ended, whatever it does; the record says so, and the slot works again."""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procsched import Outcome, TaskKilledError, TaskTimeoutError, _system
from procsched.child.protocol import DUMP_SIGNAL
from procsched.workers import sending
from tests import faults, support
from tests.pools import Bench, Parent, assert_reaped, only_record, open_gate, told_pids

LIMIT = 0.25  # seconds; long enough for an action to tell where it is


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 2) as it:
        yield it


def name_of(function: Callable[..., object]) -> str:
    return function.__name__


# --- deadlines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", faults.HANGS, ids=name_of)
@pytest.mark.parametrize("grace", [0.0, 0.05], ids=["no grace", "grace"])
def test_a_hang_is_ended_at_its_deadline(bench: Bench, fault: Callable[[str], object], grace: float) -> None:
    """Whatever a run does, with or without a grace: TIMED_OUT, its process is gone, its slot works again."""
    with bench.innocent():
        future = bench.submit(fault, bench.path(), timeout=LIMIT, grace=grace)
        record = only_record(future, Outcome.TIMED_OUT)
        assert_reaped(record.pid)
        assert record.error == f"exceeded its {LIMIT} s budget"
        assert record.timed_out
        assert record.duration >= LIMIT
        with pytest.raises(TaskTimeoutError, match=f"exceeded its {LIMIT} s budget"):
            future.result()
    bench.assert_usable()


@pytest.mark.parametrize("fault", faults.HALVES, ids=name_of)
def test_a_child_that_stops_in_mid_frame_is_ended_at_its_deadline(
    bench: Bench, fault: Callable[[str], object]
) -> None:
    """A child that writes the beginning of a message and hangs holds up nobody, and is TIMED_OUT."""
    with bench.innocent():
        record = only_record(bench.submit(fault, bench.path(), timeout=LIMIT), Outcome.TIMED_OUT)
        assert_reaped(record.pid)
    bench.assert_usable()


@pytest.mark.parametrize(
    "fault", [faults.write_half_frame_and_return, faults.write_half_header_and_return], ids=name_of
)
def test_an_answer_behind_half_a_frame_is_not_waited_for(bench: Bench, fault: Callable[[], object]) -> None:
    """A run that writes the beginning of a message and returns, without a limit, is CRASHED and holds up nobody."""
    with bench.innocent():
        record = only_record(bench.submit(fault), Outcome.CRASHED)
        assert record.error == "the run wrote into the worker's connection"
        assert_reaped(record.pid)
    bench.assert_usable()


@pytest.mark.parametrize("fault", faults.BREAKS, ids=name_of)
def test_a_child_that_breaks_its_pipe_is_crashed_at_once(
    bench: Bench, fault: Callable[[str], object]
) -> None:
    """A child that closes its pipe or writes nonsense into it is CRASHED without waiting for a deadline."""
    with bench.innocent():
        record = only_record(bench.submit(fault, bench.path()), Outcome.CRASHED)
        assert_reaped(record.pid)
        assert record.error is not None
        assert record.error.startswith("worker ")
    bench.assert_usable()


@pytest.mark.parametrize("size", [50 << 20, 1 << 10], ids=["50 MB", "1 KB"])
def test_a_child_stopped_while_its_argument_is_on_its_way_is_ended(bench: Bench, size: int) -> None:
    """A worker that is stopped and reads nothing more is ended at the deadline; the sending never blocks."""
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    pids = bench.ready_pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    future = bench.submit(faults.length, b"x" * size, timeout=LIMIT)
    record = only_record(future, Outcome.TIMED_OUT)
    assert record.pid in pids
    assert_reaped(record.pid)
    for pid in set(pids) - {record.pid}:
        os.kill(pid, signal.SIGCONT)
    bench.assert_usable()
    assert bench.submit(faults.length, b"x" * size).result(support.TIMEOUT) == size


def test_a_child_stopped_in_the_middle_of_reading_is_ended(bench: Bench) -> None:
    """A worker that is stopped after it has read a part of a large argument is ended at the deadline."""
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    data = b"x" * (50 << 20)
    pids = bench.ready_pids()
    future = bench.submit(faults.length, data, timeout=0.5)
    for pid in pids:  # it reads, or is about to: fifty megabytes take longer than this line
        os.kill(pid, signal.SIGSTOP)
    record = future.wait_record(support.TIMEOUT)
    assert record.outcome in (Outcome.TIMED_OUT, Outcome.SUCCEEDED)
    for pid in set(bench.pids()) & set(pids):
        os.kill(pid, signal.SIGCONT)
    bench.assert_usable()


def test_unpickling_counts_and_waiting_for_a_worker_does_not(tmp_path: Path) -> None:
    """A timeout begins when a ready worker is handed the run, however long it waited for one."""
    with Bench(tmp_path, 1) as bench:
        gate, told = bench.gate(), bench.path()
        first = bench.submit(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        second = bench.submit(faults.add, 1, 2, timeout=LIMIT)
        third = bench.submit(faults.identity, faults.hang_on_load(bench.path()), timeout=LIMIT)
        with pytest.raises(TimeoutError):  # longer than its limit
            second.exception(LIMIT * 2)
        with open(gate, "wb"):
            pass
        assert first.result(support.TIMEOUT) == "through"
        assert second.result(support.TIMEOUT) == 3
        only_record(third, Outcome.TIMED_OUT)


def test_kills_run_side_by_side(tmp_path: Path) -> None:
    """Many runs end only when all of them have been asked, and none has to be killed for want of that."""
    with Bench(tmp_path, 6) as bench:
        told = bench.path()
        futures = [
            bench.submit(faults.end_together, told, 6, timeout=1.0, grace=support.TIMEOUT) for _ in range(6)
        ]
        records = [only_record(future, Outcome.TIMED_OUT) for future in futures]
        assert [record.signal for record in records] == [None] * 6


def test_one_in_its_grace_holds_up_no_other(bench: Bench) -> None:
    """A run that ignores everything is killed while another one that does so still has time."""
    told = bench.path()
    first = bench.submit(faults.swallow, told, timeout=LIMIT, grace=faults.FOREVER)
    (pid,) = told_pids(told)
    second = bench.submit(faults.ignore_signals, bench.path(), timeout=LIMIT, grace=0.1)
    try:
        record = only_record(second, Outcome.TIMED_OUT)
        assert record.signal == "SIGKILL"
        assert not first.done()
    finally:
        os.kill(pid, signal.SIGKILL)  # else the end of the pool waits for its grace
    only_record(first, Outcome.TIMED_OUT)


def test_a_result_in_time_wins_and_a_late_one_loses(bench: Bench) -> None:
    """A run ends as SUCCEEDED or as TIMED_OUT around its deadline, always once and never as anything else."""
    seen = set()
    for round_ in range(60):
        future = bench.submit(faults.nap, 0.01 + 0.0002 * (round_ % 10), timeout=0.011)
        record = future.wait_record(support.TIMEOUT)
        assert len(future.records) == 1
        seen.add(record.outcome)
        if record.outcome is Outcome.TIMED_OUT:
            assert_reaped(record.pid)
        else:
            assert future.result() == "napped"
    assert seen <= {Outcome.SUCCEEDED, Outcome.TIMED_OUT}


def test_the_record_of_a_timeout_says_where_the_code_was(bench: Bench) -> None:
    """`record.stack` shows the function that was running, and nothing of ours."""
    record = only_record(bench.submit(faults.sleep, bench.path(), timeout=LIMIT), Outcome.TIMED_OUT)
    assert record.stack is not None
    assert "in sleep" in record.stack
    assert os.path.join("procsched", "child") not in record.stack


def test_a_chain_of_forks_is_ended(bench: Bench) -> None:
    """A tree that renews itself all the time is followed to its end."""
    told = bench.path()
    record = only_record(bench.submit(faults.fork_without_end, told, timeout=LIMIT), Outcome.TIMED_OUT)
    assert_reaped(record.pid)
    bench.assert_usable()


# --- asking ---------------------------------------------------------------------------------------------------


def test_at_its_deadline_a_run_may_clean_up(bench: Bench) -> None:
    """With a grace, TaskTimeoutError is raised in the action, so that its `finally` runs; TIMED_OUT all the same."""
    path = bench.path()
    future = bench.submit(faults.clean_up, path, timeout=LIMIT, grace=5.0)
    only_record(future, Outcome.TIMED_OUT)
    assert Path(path).read_text().split() == ["began", "TaskTimeoutError", "cleaned"]


@pytest.mark.parametrize("cancelled", [False, True], ids=["timed out", "cancelled"])
def test_a_run_that_gave_way_is_told_from_one_that_had_to_be_killed(bench: Bench, cancelled: bool) -> None:
    """Of the former the record has where it was asked, and no signal; of the latter the signal, and no traceback."""
    timeout = None if cancelled else LIMIT
    polite, deaf = bench.path(), bench.path()
    asked = bench.submit(faults.clean_up, polite, timeout=timeout, grace=support.TIMEOUT)
    killed = bench.submit(faults.swallow, deaf, timeout=timeout, grace=0.2)
    if cancelled:
        for future, path in ((asked, polite), (killed, deaf)):
            support.wait_for_file(path)
            assert future.cancel()
    outcome, error = (
        (Outcome.KILLED, "TaskKilledError") if cancelled else (Outcome.TIMED_OUT, "TaskTimeoutError")
    )
    gave_way, had_to_be = only_record(asked, outcome), only_record(killed, outcome)
    assert (gave_way.signal, gave_way.exit_code) == (None, None)
    assert "in clean_up" in (gave_way.traceback or "")
    assert (gave_way.traceback or "").splitlines()[-1].startswith(f"procsched.{error}: ")
    assert (had_to_be.signal, had_to_be.traceback) == ("SIGKILL", None)
    for record in (gave_way, had_to_be):
        assert_reaped(record.pid)
    assert bench.counters()["recycled"] == 0
    if not cancelled:
        with pytest.raises(TaskTimeoutError) as caught:
            asked.result(support.TIMEOUT)
        assert isinstance(caught.value.__cause__, TaskTimeoutError)
        assert not any("SIGKILL" in note for note in caught.value.__notes__)
    bench.assert_usable()


def test_a_cancelled_run_may_clean_up(bench: Bench) -> None:
    """With a grace, a cancel raises TaskKilledError in the action."""
    path = bench.path()
    future = bench.submit(faults.clean_up, path, grace=5.0)
    support.wait_for_file(path)
    assert future.cancel()
    assert future.cancelled()
    only_record(future, Outcome.KILLED)
    assert Path(path).read_text().split() == ["began", "TaskKilledError", "cleaned"]


def test_a_coroutine_is_cancelled(tmp_path: Path) -> None:
    """With a grace, an `async def` action is cancelled at its deadline."""
    with Bench(tmp_path, 1, preload=("tests.faults", "asyncio")) as bench:  # its import may outlast the limit
        path = bench.path()
        future = bench.submit(faults.clean_up_async, path, timeout=LIMIT, grace=5.0)
        only_record(future, Outcome.TIMED_OUT)
        assert Path(path).read_text().split() == ["began", "CancelledError", "cleaned"]


def test_what_is_returned_after_the_deadline_does_not_count(bench: Bench) -> None:
    """An action that swallows the asking and returns is TIMED_OUT, and its worker is not used again."""
    future = bench.submit(faults.swallow_once, timeout=LIMIT, grace=5.0)
    record = only_record(future, Outcome.TIMED_OUT)
    assert (record.result, record.signal, record.traceback) == (None, None, None)
    assert_reaped(record.pid)
    bench.assert_usable()


def test_a_soft_timeout_that_is_caught_is_a_success(bench: Bench) -> None:
    """A soft timeout raises TaskTimeoutError in the action; if the action returns, it has succeeded."""
    future = bench.submit(faults.swallow_once, soft_timeout=LIMIT, timeout=support.TIMEOUT)
    assert future.result(support.TIMEOUT) == "swallowed"
    record = only_record(future, Outcome.SUCCEEDED)
    assert record.pid in bench.pids()


@pytest.mark.parametrize("fault", [faults.clean_up, faults.clean_up_async], ids=name_of)
def test_a_soft_timeout_that_leaves_the_action_is_timed_out(
    bench: Bench, fault: Callable[[str], object]
) -> None:
    """A soft timeout that the action does not catch ends it as TIMED_OUT, naming the soft limit."""
    path = bench.path()
    future = bench.submit(fault, path, soft_timeout=LIMIT)
    record = only_record(future, Outcome.TIMED_OUT)
    assert record.error == f"exceeded its {LIMIT} s soft limit"
    assert Path(path).read_text().split()[-1] == "cleaned"


def test_a_soft_timeout_never_reaches_the_next_run(tmp_path: Path) -> None:
    """Soft limits that end just as the run does hit that run or none."""
    with Bench(tmp_path, 1) as bench:
        pairs = [
            (
                bench.submit(faults.nap, 0.002, soft_timeout=0.0015 + 0.00001 * round_),
                bench.submit(faults.nap, 0.001),
            )
            for round_ in range(150)
        ]
        for first, second in pairs:
            assert first.wait_record(support.TIMEOUT).outcome in (Outcome.SUCCEEDED, Outcome.TIMED_OUT)
            only_record(second, Outcome.SUCCEEDED)


# --- on request ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", faults.HANGS, ids=name_of)
def test_a_running_call_is_cancelled_at_once_and_dies(bench: Bench, fault: Callable[[str], object]) -> None:
    """cancel() of a running call says True at once; the record is KILLED when the process is gone."""
    path = bench.path()
    with bench.innocent():
        future = bench.submit(fault, path)
        pid = told_pids(path)[0]
        assert future.cancel()
        assert future.cancelled()
        record = only_record(future, Outcome.KILLED)
        assert record.pid == pid
        assert_reaped(pid)
    bench.assert_usable()


def test_kill_workers_ends_everything(tmp_path: Path) -> None:
    """kill_workers() ends what runs as KILLED, withdraws what waits, and leaves no process."""
    with Bench(tmp_path, 2) as bench:
        path = bench.path()
        running = [bench.submit(faults.ignore_signals, path) for _ in range(2)]
        waiting = [bench.submit(faults.add, 1, 1) for _ in range(5)]
        pids = told_pids(path, lines=2)
        bench.executor.kill_workers()
        for future in running:
            with pytest.raises(TaskKilledError):
                future.result(support.TIMEOUT)
            only_record(future, Outcome.KILLED)
        assert all(future.cancelled() for future in waiting)
        for pid in pids:
            assert_reaped(pid)


# --- the backstop ------------------------------------------------------------------------------------------------

STUCK_PARENT = """
import sys
from procsched import ProcessExecutor
from tests import faults, support

told, fault, grace, how = sys.argv[1:]
executor = ProcessExecutor(1, preload=["tests.faults"])
future = executor.options(timeout=0.4, grace=float(grace)).submit(getattr(faults, fault), told)
support.wait_for_file(told)
if how == "C call":
    support.hang_in_c(3.0)
else:
    import os, signal
    os.kill(os.getpid(), signal.SIGSTOP)
support.tell(told, "back")
record = future.wait_record(10)
print(record.outcome, record.error)
executor.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "grace", "how"),
    [
        ("ignore_signals", "0", "C call"),
        ("leave_and_hang", "0", "C call"),
        ("hang_in_c", "0.1", "stopped"),
        ("block_signals", "0", "stopped"),
        ("stop_itself", "0", "stopped"),
        ("answer_that_nobody_reads", "0", "stopped"),
        ("flood", "0", "stopped"),
    ],
)
def test_a_stuck_parent_keeps_no_child_alive(tmp_path: Path, fault: str, grace: str, how: str) -> None:
    """With the parent in one C call that holds the GIL, or stopped, worker and tree end without it."""
    told = tmp_path / "told"
    with Parent(tmp_path, STUCK_PARENT, arguments=(str(told), fault, grace, how)) as parent:
        pids = told_pids(told)
        support.assert_gone(*pids)
        assert "back" not in told.read_text()  # the parent is still stuck, so it was not the parent's doing
        if how == "stopped":
            parent.signal(signal.SIGCONT)
        assert parent.output() == "timed_out exceeded its 0.4 s budget\n"


# --- cost of a mistake: waiting for a child with a descriptor must see its end ------------------------------------


def test_the_end_is_seen_without_looking(bench: Bench) -> None:
    """A descriptor of the run's process is readable by the time that its record is there."""
    path = bench.path()
    future = bench.submit(faults.sleep, path, timeout=LIMIT)
    descriptor = os.pidfd_open(told_pids(path)[0])
    try:
        only_record(future, Outcome.TIMED_OUT)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(0)
    finally:
        os.close(descriptor)


DUMPING = """
import faulthandler, os, signal, sys
from procsched.child.protocol import DUMP_SIGNAL

reader, writer = os.pipe()
os.set_blocking(writer, False)
try:
    while True:
        os.write(writer, bytes(4096))
except BlockingIOError:
    os.set_blocking(writer, True)
faulthandler.register(DUMP_SIGNAL, writer, all_threads=False)
if sys.argv[1] == "blocked":
    signal.pthread_sigmask(signal.SIG_BLOCK, {DUMP_SIGNAL})
open(sys.argv[2], "w").write("ready\\n")
while True:
    signal.sigtimedwait([signal.SIGUSR2], 60)
"""


@pytest.mark.parametrize("state", ["dumping", "blocked"])
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc")
def test_a_process_that_dumps_its_stack_is_not_taken_for_one_that_never_will(
    tmp_path: Path, state: str
) -> None:
    """A signal is blocked while its handler runs; only one that is pending as well is not going to be heard."""
    told = tmp_path / "told"
    with Parent(tmp_path, DUMPING, arguments=(state, str(told))) as child:
        support.wait_for_file(told)
        assert _system.can_handle(child.process.pid, DUMP_SIGNAL) == (state == "dumping")
        os.kill(child.process.pid, DUMP_SIGNAL)  # its handler waits for room in the pipe

        def blocks() -> bool:
            lines = Path(f"/proc/{child.process.pid}/status").read_text().splitlines()
            mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigBlk:"))
            return bool(mask & 1 << DUMP_SIGNAL - 1)

        support.eventually(blocks)
        assert _system.can_handle(child.process.pid, DUMP_SIGNAL, sent=True) == (state == "dumping")


def test_a_run_that_ends_after_it_was_asked_for_its_stack_leaves_nothing(tmp_path: Path) -> None:
    """Its output has no stack in it, and what the next run writes is read while it writes."""
    with Bench(tmp_path, 1) as bench:
        gate, told = bench.gate(), bench.path()
        asked = bench.submit(faults.wait_at_gate, gate, told, timeout=100.0)
        pid = told_pids(told)[0]
        item = asked._item
        worker, loop = item.worker, bench.core.pool.loop
        with bench.core.pool.lock:
            worker.hard_at = time.monotonic()  # but for a moment: see `process.DUMP_LEAD`
        done = threading.Event()

        def look() -> None:
            worker.on_deadline(worker.hard_at - sending.DUMP_LEAD / 2)
            worker.hard_at = math.inf
            done.set()

        loop.call_soon(look)
        assert done.wait(support.TIMEOUT)
        assert not worker.side_watched
        open_gate(gate)
        assert asked.result(support.TIMEOUT) == "through"
        assert only_record(asked, Outcome.SUCCEEDED).stack is None
        size = 300_000
        loud = bench.submit(faults.print_much, size, capture_output=True)
        assert loud.result(support.TIMEOUT) == pid
        output = only_record(loud, Outcome.SUCCEEDED).output
        assert output is not None
        assert set(output) <= {"x", "\n"}


def test_with_a_grace_the_stack_is_from_the_deadline(bench: Bench) -> None:
    """A run that cleans up within its grace shows where it was when its time ran out, and all of its output."""
    future = bench.executor.options(timeout=0.2, grace=20.0, capture_output=True).submit(faults.cleans_up)
    with pytest.raises(TaskTimeoutError):
        future.result(support.TIMEOUT)
    record = future.wait_record(support.TIMEOUT)
    assert record.output == "before\nafter\n"
    assert record.stack is not None
    assert "in cleans_up" in record.stack
