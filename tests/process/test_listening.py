"""Who waits for a result takes it from the worker itself: `workers/listening.py`, with `ProcessExecutor(spin=...)`."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procsched import (
    Outcome,
    ProcessExecutor,
    TaskTimeoutError,
    ValidationError,
    WorkerCrashedError,
    _system,
    current_run,
)
from procsched._core import wire
from procsched._interrupts import Latch
from procsched.child.protocol import ANSWERED
from procsched.future import ProcessFuture
from procsched.workers.process import Worker
from tests import faults, support
from tests.pools import Bench, only_record, open_gate
from tests.striking import Strike, blaming, interrupt

pytestmark = pytest.mark.needs("eventfd", "who waits for a result takes it from the worker itself")


@pytest.fixture(params=[0.0, support.TIMEOUT], ids=["waits", "spins"])
def bench(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A caller that waits in the kernel, and one that spins for as long as it takes."""
    with Bench(tmp_path, 2) as it:
        it.core.pool.spin = request.param
        hang_bell(it)
        yield it


def hang_bell(bench: Bench) -> None:
    """Have somebody wait, so that there is what the next one listens by."""
    for _ in support.looks(support.TIMEOUT):
        assert bench.submit(faults.identity, 0).result(support.TIMEOUT) == 0
        if bench.core.pool.bells:
            return
    raise AssertionError("nobody has listened")


def test_a_result_comes_without_the_io_thread(bench: Bench) -> None:
    """With that thread kept away, a result is there, with its record, and the worker is free for the next call."""
    with bench.deaf():
        for n in range(50):
            future = bench.submit(faults.identity, n)
            assert future.result(support.TIMEOUT) == n
            assert future.done()
            assert only_record(future, Outcome.SUCCEEDED).pid in bench.pids()
    assert bench.submit(faults.identity, 7).result(support.TIMEOUT) == 7
    assert bench.counters()["late_results"] == 0


@pytest.mark.parametrize("spin", [0.0, 0.0002])
def test_the_io_thread_may_come_first_or_last(tmp_path: Path, spin: float) -> None:
    """Whoever of the two is the first to look, every call ends once; several threads wait at a time."""
    with Bench(tmp_path, 3) as bench:
        bench.core.pool.spin = spin
        wrong: list[object] = []

        def call(start: int) -> None:
            numbers = range(start, start + 500)
            results = [bench.submit(faults.identity, n).result(support.TIMEOUT) for n in numbers]
            wrong.extend(n for n, result in zip(numbers, results, strict=True) if n != result)

        threads = [threading.Thread(target=call, args=(1000 * n,)) for n in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(support.TIMEOUT * 3)
        assert not any(thread.is_alive() for thread in threads)
        assert not wrong
        assert bench.counters()["killed_workers"] == 0


@pytest.mark.parametrize("spin", [0.0, 0.05])
@pytest.mark.parametrize("kind", ["raises", "large", "crashes", "slow", "prints", "limit"])
def test_what_is_no_plain_result_is_left_to_that_thread(tmp_path: Path, kind: str, spin: float) -> None:
    """It comes all the same."""
    with Bench(tmp_path, 1) as bench:
        bench.core.pool.spin = spin
        if kind == "raises":
            with pytest.raises(ZeroDivisionError):
                bench.submit(divmod, 1, 0).result(support.TIMEOUT)
        elif kind == "large":
            assert len(bench.submit(bytes, 1 << 20).result(support.TIMEOUT)) == 1 << 20
        elif kind == "crashes":
            with pytest.raises(WorkerCrashedError):
                bench.submit(faults.exit_hard, 3).result(support.TIMEOUT)
        elif kind == "slow":
            gate = bench.gate()
            future = bench.submit(faults.wait_at_gate, gate)
            with pytest.raises(TimeoutError):
                future.result(0.01)
            open_gate(gate)
            assert future.result(support.TIMEOUT) == "through"
        elif kind == "prints":
            future = bench.submit(print, "words", capture_output=True)
            assert future.result(support.TIMEOUT) is None
            assert only_record(future, Outcome.SUCCEEDED).output == "words\n"
        else:
            with pytest.raises(TaskTimeoutError):
                bench.submit(faults.spin, bench.path(), timeout=0.2).result(support.TIMEOUT)
        assert bench.submit(faults.identity, 1).result(support.TIMEOUT) == 1


def listens(bench: Bench, future: ProcessFuture[object]) -> bool:
    """Return whether a caller listens to the worker of a call."""
    worker = future._item.worker if future._item is not None else None
    return worker is not None and worker in bench.core.pool.listened


def in_thread(function: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Call a function in a thread; return that, and what the list of its results will be."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    return thread, results


OTHERS: dict[str, Callable[[ProcessFuture[object]], object]] = {
    "wait": lambda future: concurrent.futures.wait([future], support.TIMEOUT).done == {future},
    "as_completed": lambda future: next(concurrent.futures.as_completed([future], support.TIMEOUT)) is future,
    "exception": lambda future: future.exception(support.TIMEOUT) is None,
    "done": lambda future: support.eventually(future.done),
    "wait_record": lambda future: future.wait_record(support.TIMEOUT).ok,
    "running": lambda future: support.eventually(lambda: not future.running()),
    "record": lambda future: support.eventually(lambda: future.record is not None),
    "records": lambda future: support.eventually(lambda: bool(future.records)),
    "stats": lambda future: support.eventually(lambda: not future._owner.stats().tasks),
    "shutdown": lambda future: shuts_down(future),
}


def shuts_down(future: ProcessFuture[object]) -> bool:
    """Have a thread shut the executor down and wait for the work; return whether that comes to an end."""
    thread, _results = in_thread(lambda: future._owner.shutdown(wait=True, cancel=False))
    thread.join(support.TIMEOUT)
    return not thread.is_alive()


@pytest.mark.parametrize("how", OTHERS)
def test_nobody_waits_for_a_listener_that_is_kept(bench: Bench, how: str) -> None:
    """A signal handler that keeps a waiting thread may itself wait for the same call, in any way."""
    bench.core.pool.spin = 0.0
    gate, told = bench.gate(), bench.path()
    future = bench.submit(faults.wait_at_gate, gate, told)
    support.wait_for_file(told)
    came: list[object] = []

    def handler(_signum: int, _frame: object) -> None:
        open_gate(gate)
        came.append(OTHERS[how](future))

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        thread, _results = in_thread(lambda: strike_when(lambda: listens(bench, future)))
        assert future.result(support.TIMEOUT * 2) == "through"
        thread.join(support.TIMEOUT)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == [True]


def test_progress_is_seen_by_who_keeps_a_listener(bench: Bench) -> None:
    """A signal handler may look until some has come."""
    bench.core.pool.spin = 0.0
    first, second, told = bench.gate(), bench.gate(), bench.path()

    def work() -> str:
        faults.wait_at_gate(first, told)
        current_run().progress(1)
        return str(faults.wait_at_gate(second))

    future = bench.submit(work)
    support.wait_for_file(told)
    came: list[object] = []

    def handler(_signum: int, _frame: object) -> None:
        open_gate(first)
        came.append(support.eventually(lambda: future.progress))
        open_gate(second)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        thread, _results = in_thread(lambda: strike_when(lambda: listens(bench, future)))
        assert future.result(support.TIMEOUT * 2) == "through"
        thread.join(support.TIMEOUT)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == [(1.0, None, "")]


def strike_when(condition: Callable[[], bool]) -> None:
    """Have the main thread interrupted once it is where it is to be."""
    support.eventually(condition, what="the main thread listens")
    os.kill(os.getpid(), signal.SIGUSR1)


def test_no_call_waits_for_a_listener_that_is_kept(tmp_path: Path) -> None:
    """The only worker is free for a call that came meanwhile, of the very handler that keeps the thread."""
    with Bench(tmp_path, 1) as bench:
        hang_bell(bench)
        gate, told = bench.gate(), bench.path()
        future = bench.submit(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        came: list[object] = []

        def handler(_signum: int, _frame: object) -> None:
            behind = bench.submit(faults.identity, 8)
            open_gate(gate)
            came.append(behind.result(support.TIMEOUT))

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            thread, _results = in_thread(lambda: strike_when(lambda: listens(bench, future)))
            assert future.result(support.TIMEOUT * 2) == "through"
            thread.join(support.TIMEOUT)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert came == [8]


ENDS: dict[str, Callable[[Bench, ProcessFuture[object]], object]] = {
    "cancel": lambda _bench, future: future.cancel(),
    "kill_workers": lambda bench, _future: bench.executor.kill_workers(),
    "worker dies": lambda _bench, future: os.kill(future._item.worker.pid, signal.SIGKILL),
}


@pytest.mark.parametrize("how", ENDS)
def test_whoever_ends_the_call_wakes_the_listener(bench: Bench, how: str) -> None:
    """A cancel, a shutdown and a death are heard of, by a caller that waits for an answer."""
    bench.core.pool.spin = 0.0
    future = bench.submit(faults.wait_at_gate, bench.gate(), told := bench.path())
    support.wait_for_file(told)

    def wait() -> object:
        try:
            return future.result(support.TIMEOUT * 2)
        except concurrent.futures.CancelledError:
            return "cancelled"
        except Exception as error:
            return type(error).__name__

    thread, results = in_thread(wait)
    support.eventually(lambda: listens(bench, future), what="it listens")
    ENDS[how](bench, future)
    thread.join(support.TIMEOUT)
    assert results == [
        {"cancel": "cancelled", "kill_workers": "TaskKilledError"}.get(how, "WorkerCrashedError")
    ]


def test_to_look_at_a_future_takes_no_lock(bench: Bench) -> None:
    """Who asks may hold what the holder of the pool's lock waits for: the condition of another future, in `wait`."""
    bench.core.pool.spin = 0.0
    gate, told = bench.gate(), bench.path()
    future = bench.submit(faults.wait_at_gate, gate, told)
    support.wait_for_file(told)
    thread, results = in_thread(lambda: future.result(support.TIMEOUT))
    support.eventually(lambda: listens(bench, future), what="it listens")
    with bench.core.pool.lock:
        for look in (future.done, future.running, lambda: future._condition):
            looking, _results = in_thread(look)
            looking.join(support.TIMEOUT)
            assert not looking.is_alive()
    open_gate(gate)
    thread.join(support.TIMEOUT)
    assert results == ["through"]


@pytest.mark.slow
def test_a_handler_raises_in_who_listens(tmp_path: Path) -> None:
    """KeyboardInterrupt at any point of a wait whose time is up: the next to wait, in another way, hears of the end."""
    with Bench(tmp_path, 1) as bench:
        for number in itertools.count(1):
            hang_bell(bench)
            gate, told = bench.gate(), bench.path()
            future = bench.submit(faults.wait_at_gate, gate, told)
            support.wait_for_file(told)
            with Strike(number, interrupt) as strike:
                with contextlib.suppress(KeyboardInterrupt, TimeoutError):
                    future.result(0.01)
            open_gate(gate)
            with blaming(strike):
                assert concurrent.futures.wait([future], support.TIMEOUT).done == {future}
            os.unlink(told)
            if strike.left > 0:
                break
        assert number > 20


def test_what_a_handler_raises_is_heard(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Exception in the midst of booking, by a handler of SIGALRM say, reaches who is interrupted."""

    class TimeIsUpError(Exception):
        pass

    def handler() -> None:
        monkeypatch.undo()
        raise TimeIsUpError

    with bench.deaf():
        future = bench.submit(faults.identity, 1)
        item, worker = future._item, future._item.worker
        support.eventually(lambda: worker.page[ANSWERED] >= item.number, what="it has answered")
        monkeypatch.setattr(bench.core.pool, "_take_late_locked", handler)
        with pytest.raises(TimeIsUpError):
            future.result(support.TIMEOUT)
        assert future.result(support.TIMEOUT) == 1
    bench.assert_usable()


def test_an_answer_that_is_none_ends_the_call(tmp_path: Path) -> None:
    """The run wrote one into the connection, with the number of its call."""
    with Bench(tmp_path, 1) as bench:
        hang_bell(bench)
        first, told = bench.gate(), bench.path()
        bench.ready_pids(1)
        number = bench.core.pool.idle[-1].last_number + 1
        frame = b"".join(wire.encode(wire.DONE, number, b"", 0, 0.0, 0.0, 0, b"no facts"))

        def forge() -> None:
            faults.wait_at_gate(first, told)
            faults.write_bytes(0, [frame], told, "hang")

        future = bench.submit(forge)
        support.wait_for_file(told)
        thread, errors = in_thread(lambda: str(future.exception(support.TIMEOUT)))
        support.eventually(lambda: listens(bench, future), what="it listens")
        open_gate(first)
        thread.join(support.TIMEOUT * 2)
        assert errors
        assert "no facts of a run" in str(errors[0])
        assert only_record(future, Outcome.CRASHED)


def test_output_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The I/O thread reads it while who listens books the answer: the record has all of it, and the next none."""
    with Bench(tmp_path, 1, capture_output=True) as bench:
        hang_bell(bench)
        loop, booked = bench.core.pool.loop, threading.Event()

        class Slow:
            @staticmethod
            def read(fd: int, size: int) -> bytes:
                data = os.read(fd, size)
                if threading.current_thread() is loop.thread and data:
                    booked.wait(0.3)  # it is preempted
                return data

        monkeypatch.setattr("procsched.workers.output.os", Slow)
        for word in ("one", "two"):
            future = bench.submit(print, word)
            assert future.result(support.TIMEOUT) is None
            assert only_record(future, Outcome.SUCCEEDED).output == f"{word}\n"


def test_a_bell_that_was_lost_is_replaced(bench: Bench) -> None:
    """A handler that raises in who listens may lose one."""
    for _ in range(bench.workers + 1):
        bench.core.pool.bells.clear()
        hang_bell(bench)


FORK = """
import os, signal, threading, time
from procsched import ProcessExecutor

parent, inside, go = os.getpid(), threading.Event(), threading.Event()

def handler(*_):
    future.done()  # the loop is to listen again
    time.sleep(0.05)
    pool.loop.call_soon(lambda: (inside.set(), go.wait(20)))  # and comes late to it
    inside.wait()
    child = os.fork()
    if child:
        for _ in range(30):
            if os.waitpid(child, os.WNOHANG)[0]:
                break
            time.sleep(0.1)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        go.set()

def strike():
    while future._item.worker not in pool.listened:
        time.sleep(0.001)
    os.kill(parent, signal.SIGUSR1)

executor = ProcessExecutor(1)
pool = executor._core.pool
while not pool.bells:
    executor.submit(abs, 1).result()
signal.signal(signal.SIGUSR1, handler)
future = executor.submit(time.sleep, 0.5)
threading.Thread(target=strike).start()
try:
    future.result(10)
    print("parent" if os.getpid() == parent else "child", flush=True)
finally:
    if os.getpid() != parent:
        os._exit(0)
    executor.kill_workers()
"""


@pytest.mark.slow
def test_a_fork_of_a_listener_takes_nothing() -> None:
    """A handler forks, and returns in both processes: the answer is the parent's."""
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.stdout == "parent\n", done.stderr


def test_it_works_without_epoll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may have it monkeypatched away, as gevent does, which leaves a poll."""
    monkeypatch.delattr(select, "epoll")
    with Bench(tmp_path, 1) as bench:
        for n in range(3):
            assert bench.submit(faults.identity, n).result(support.TIMEOUT) == n


def test_a_bell_that_was_rung_for_another_wakes_nobody(bench: Bench) -> None:
    """Who has it next goes on listening, and takes the result."""
    bench.core.pool.spin = 0.0
    for bell in bench.core.pool.bells:
        bell.ring()
    gate, told = bench.gate(), bench.path()
    future = bench.submit(faults.wait_at_gate, gate, told)
    support.wait_for_file(told)
    thread, results = in_thread(lambda: future.result(support.TIMEOUT))

    def drained() -> bool:
        latch = future.__dict__.get("_lazy_latch")
        return (
            latch is not None and latch.bell is not None and not select.select([latch.bell._fd], [], [], 0)[0]
        )

    support.eventually(drained, what="it has been woken")
    with bench.deaf():
        open_gate(gate)
        thread.join(support.TIMEOUT)
    assert results == ["through"]


def test_two_threads_wait_for_one_call(bench: Bench) -> None:
    """Both have its result."""
    bench.core.pool.spin = 0.0
    gate, told = bench.gate(), bench.path()
    future = bench.submit(faults.wait_at_gate, gate, told)
    support.wait_for_file(told)
    first, results = in_thread(lambda: future.result(support.TIMEOUT))
    support.eventually(lambda: listens(bench, future), what="it listens")
    second, others = in_thread(lambda: future.result(support.TIMEOUT))
    support.eventually(lambda: not listens(bench, future), what="the other is there")
    open_gate(gate)
    for thread in (first, second):
        thread.join(support.TIMEOUT)
    assert (results, others) == (["through"], ["through"])


def test_a_worker_that_was_listened_to_may_die_idle(bench: Bench) -> None:
    """It is replaced, though the loop does not listen for answers."""
    for _ in support.looks(support.TIMEOUT):  # the answer may be there before anybody listens
        pid = bench.submit(os.getpid).result(support.TIMEOUT)
        if bench.core.pool.listened:
            break
    os.kill(pid, signal.SIGKILL)
    support.eventually(lambda: bench.counters()["crashed_workers"] == 1, what="its death is noticed")
    bench.assert_usable()


def test_a_wait_ends_when_its_time_is_up(bench: Bench) -> None:
    """By the caller's timeout, the call goes on, and its end is heard of."""
    bench.core.pool.spin = 0.0
    gate, told = bench.gate(), bench.path()
    future = bench.submit(faults.wait_at_gate, gate, told)
    support.wait_for_file(told)
    for timeout in (0, 0.001, -1, 0.02):
        before = time.monotonic()
        with pytest.raises(TimeoutError):
            future.result(timeout)
        assert time.monotonic() - before >= timeout
    ended = threading.Event()
    future.add_done_callback(lambda _future: ended.set())
    open_gate(gate)
    assert ended.wait(support.TIMEOUT)


def test_without_descriptors_the_io_thread_does_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is left for who waits."""

    def none_left() -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(_system, "event_descriptor", none_left)
    pool = bench.core.pool
    pool.bells.clear()
    pool.bells_made.clear()
    for n in range(3):
        assert bench.submit(faults.identity, n).result(support.TIMEOUT) == n
    with bench.deaf():
        assert not pool.bells
    monkeypatch.undo()
    for _ in support.looks(support.TIMEOUT):
        assert bench.submit(faults.identity, 3).result(support.TIMEOUT) == 3
        if pool.bells:
            break


def test_a_cancelled_call_is_not_taken(bench: Bench) -> None:
    """A call that was cancelled before its answer was looked at stays so."""
    with bench.deaf():
        future = bench.submit(faults.identity, 1)
        item, worker = future._item, future._item.worker
        support.eventually(lambda: worker.page[ANSWERED] >= item.number, what="it has answered")
        assert future.cancel()
        worker.listen(item, Latch(), support.TIMEOUT)
        assert future.cancelled()
    only_record(future, Outcome.KILLED)


def test_the_end_of_a_call_does_not_hit_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens books no answer between the decision of the I/O thread to end a call and the signal."""
    with Bench(tmp_path, 1) as bench:
        first, second = bench.gate(), bench.gate()
        told = bench.path()
        killed = bench.submit(faults.wait_at_gate, first, told)
        support.wait_for_file(told)
        behind = bench.submit(faults.wait_at_gate, second)
        item, worker = killed._item, killed._item.worker
        dump_or_kill, threads = Worker.dump_or_kill, []

        def preempted(self: Worker) -> None:
            if self is worker and not threads:
                open_gate(first)
                support.eventually(lambda: worker.page[ANSWERED] >= item.number, what="it has answered")
                threads.append(threading.Thread(target=worker._take, args=(item, Latch())))
                threads[0].start()
                threads[0].join(0.2)  # it must not get far, so there is nothing to wait for
            dump_or_kill(self)

        monkeypatch.setattr(Worker, "dump_or_kill", preempted)
        assert bench.core.pool.kill(item, "enough of it")
        open_gate(second)
        assert behind.result(support.TIMEOUT) == "through"
        threads[0].join(support.TIMEOUT)
        only_record(killed, Outcome.KILLED)


def test_the_soft_limit_of_a_call_does_not_hit_who_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer is booked when the I/O thread is about to raise the soft timeout in it."""
    with Bench(tmp_path, 1) as bench:
        hang_bell(bench)
        gate = bench.gate()
        settle, settled, go_on = Worker.settle, threading.Event(), threading.Event()

        def preempted(self: Worker) -> object:
            call = settle(self)
            if call is future._item:
                settled.set()
                go_on.wait(support.TIMEOUT)
            return call

        monkeypatch.setattr(Worker, "settle", preempted)
        future = bench.submit(faults.wait_at_gate, gate, soft_timeout=0.3)
        thread, results = in_thread(lambda: future.result(support.TIMEOUT))
        try:
            assert settled.wait(support.TIMEOUT)
            open_gate(gate)
            thread.join(0.2)  # it must not get far, so there is nothing to wait for
        finally:
            go_on.set()
        thread.join(support.TIMEOUT)
        assert results == ["through"]
        with bench.deaf():  # it has done what it was about to
            assert not bench.core.problems


def test_who_spins_lets_the_worker_have_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where both are on the same one, the answer would come after the last look otherwise."""
    with Bench(tmp_path, 1) as bench:
        bench.core.pool.spin = support.TIMEOUT
        hang_bell(bench)
        gate = bench.gate()
        closed = [gate]
        monkeypatch.setattr(bench.core.pool.holding, "give_way", lambda: closed and open_gate(closed.pop()))
        assert bench.submit(faults.wait_at_gate, gate).result(support.TIMEOUT) == "through"


@pytest.mark.parametrize("spin", [-1.0, float("nan"), 0.5, "1", True])
def test_what_is_no_time_to_spin_is_refused(spin: object) -> None:
    """A millisecond at most: nobody else runs meanwhile."""
    with pytest.raises(ValidationError, match="spin"):
        ProcessExecutor(1, spin=spin)  # type: ignore[arg-type]


def test_it_works_as_given(tmp_path: Path) -> None:
    """By the option, with the calls that keep hold of the interpreter."""
    with ProcessExecutor(2, spin=0.001, preload=("tests.faults",)) as executor:
        for n in range(200):
            assert executor.submit(faults.identity, n).result(support.TIMEOUT) == n
        assert executor.submit(faults.length, bytes(300_000)).result(support.TIMEOUT) == 300_000
