"""A signal handler strikes in the midst of the executor: whatever it interrupts, every other call ends once.

Each case goes through all points at which a handler may come, one after the other: see `tests.striking`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    Priority,
    ProcessExecutor,
    SchedulerStateError,
    TaskKilledError,
)
from procsched.child.protocol import ANSWERED
from procsched.future import ProcessFuture
from procsched.workers.pool import ProcessPool
from procsched.workers.sending import WorkerState
from tests import faults, support
from tests.pools import Bench, Parent
from tests.striking import Strike, blaming, interrupt


class Stage:
    """A pool of two with a call in each worker that waits at a gate, and calls that were sent ahead behind it."""

    def __init__(self, directory: Path, executor: ProcessExecutor) -> None:
        self.directory = directory
        self.executor = executor
        self.told = str(directory / "told")
        self.expected: list[str] = []  # names of calls that must have run by the end
        self.maybe: list[str] = []  # of those that may have
        self.futures: list[ProcessFuture] = []
        self.gates: dict[str, ProcessFuture] = {}
        self._count = 0

    def submit(self, gate: str = "", *, maybe: bool = False, **options: Any) -> ProcessFuture:
        """Submit a call that leaves a line, and waits at the gate."""
        self._count += 1
        name = str(self._count)
        (self.maybe if maybe else self.expected).append(name)
        future = self.executor.options(**options).submit(faults.leave_line, self.told, name, gate)
        self.futures.append(future)
        return future

    def hold(self, workers: int) -> None:
        """Have so many workers wait at a gate each."""
        for _ in range(workers):
            gate = str(self.directory / f"gate-{len(self.gates)}-{self._count}")
            os.mkfifo(gate)
            lines = self.lines()
            self.gates[gate] = self.submit(gate)
            support.eventually(lambda seen=lines: self.lines() > seen)  # type: ignore[misc]

    def lines(self) -> int:
        return len(self.read())

    def read(self) -> list[str]:
        return Path(self.told).read_text(encoding="utf-8").split() if os.path.exists(self.told) else []

    def let_go(self) -> None:
        """Open the gates; every call ends, and those that had to run have run once."""
        for gate, held in self.gates.items():
            for _ in support.looks(support.TIMEOUT):
                with contextlib.suppress(OSError):  # nobody waits there: it was cancelled, or comes again
                    os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
                if held.done():
                    break
        self.gates.clear()
        for future in self.futures:
            try:
                future.result(support.TIMEOUT)
            except (CancelledError, TaskKilledError):
                pass
        self.futures.clear()
        told = self.read()
        assert sorted(told) == sorted(set(told)), "a call has run twice"
        assert set(self.expected) <= set(told), "a call has not run"
        assert set(told) <= {*self.expected, *self.maybe}, "what was cancelled has run"
        support.eventually(lambda: not self.executor._core.open, what="nothing is open")
        self.check_books()
        os.unlink(self.told)
        self.expected.clear()
        self.maybe.clear()

    def check_books(self) -> None:
        """Once the pool is at rest, its lists and its workers agree, and no worker is lost."""
        pool = self.executor._core.pool

        def at_rest() -> bool:
            with pool.lock:
                states = [worker.state for worker in pool.fleet.workers.values()]
                return (
                    not pool.running
                    and not pool.busy
                    and set(states) == {WorkerState.IDLE}
                    and sorted(worker.number for worker in pool.idle) == sorted(pool.fleet.workers)
                )

        support.eventually(at_rest, what="the workers are idle")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Calls count as brief however long they take, so that they are sent ahead behind one that waits."""
    monkeypatch.setattr("procsched.workers.sending.BRIEF", 3600.0)
    monkeypatch.setattr("procsched.workers.dispatch.AHEAD_SECONDS", 3600.0)
    monkeypatch.setattr("procsched.workers.process.Worker.may_gather_locked", lambda _worker: 0)
    monkeypatch.setattr("procsched.workers.dispatch.LATE", 3600.0)
    monkeypatch.setattr("procsched.workers.dispatch.OUTRUN", 3600.0)
    with Bench(tmp_path, 2) as bench:
        it = Stage(tmp_path, bench.executor)
        for _ in range(20):
            it.submit()
        it.let_go()
        yield it


def submit_one(stage: Stage) -> None:
    stage.submit(maybe=True)


def submit_urgent(stage: Stage) -> None:
    stage.submit(maybe=True, priority=Priority.HIGH)


def submit_large(stage: Stage) -> None:
    stage.maybe.append("large")
    stage.futures.append(stage.executor.submit(faults.leave_line, stage.told, "large", "", bytes(1 << 20)))


def cancel_first(stage: Stage) -> None:
    stage.futures[0].cancel()


def cancel_last(stage: Stage) -> None:
    stage.futures[-1].cancel()


def count_running(stage: Stage) -> None:
    stage.executor._core.pool.running_calls()


ACTS = {
    # what is done, how many workers wait meanwhile, how many calls are there behind those
    "to an idle worker": (submit_one, 0, 0),
    "large": (submit_large, 0, 0),
    "to one of two": (submit_one, 1, 0),
    "ahead": (submit_one, 2, 0),
    "behind others": (submit_one, 2, 3),
    "before others": (submit_urgent, 2, 3),
    "a running one": (cancel_first, 2, 3),
    "a waiting one": (cancel_last, 2, 3),
    "looking": (count_running, 2, 3),
}


def strike_everywhere(stage: Stage, name: str, handler: Callable[[], object]) -> int:
    """Do the act again and again, each time with the handler at the next point. Return how many points there are."""
    act, held, behind = ACTS[name]
    for number in itertools.count(1):
        stage.hold(held)
        for _ in range(behind):
            stage.submit()
        if act in (cancel_first, cancel_last):
            stage.maybe.append(stage.expected.pop(0 if act is cancel_first else -1))
        with Strike(number, handler) as strike, contextlib.suppress(KeyboardInterrupt):
            act(stage)
        stage.submit()  # it works as before
        with blaming(strike):
            stage.let_go()
        if strike.left > 0:
            return number - 1
    raise AssertionError


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTS)
def test_a_handler_raises_in_submit_or_cancel(stage: Stage, name: str) -> None:
    """KeyboardInterrupt at any point: every other call runs once, and no worker is lost."""
    assert strike_everywhere(stage, name, interrupt) > 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["to an idle worker", "ahead", "before others", "a running one", "a waiting one"]
)
def test_a_handler_submits_and_cancels(stage: Stage, name: str) -> None:
    """A handler that interrupts submit or cancel at any point may do both; neither is lost, and nothing blocks."""

    def handler() -> None:
        stage.submit()
        withdrawn = stage.submit(maybe=True)
        assert withdrawn.cancel() == withdrawn.cancelled()  # False where it was quicker

    assert strike_everywhere(stage, name, handler) > 10


def unread(pool: ProcessPool) -> bool:
    """Return whether a worker's answer waits to be read, that is not booked already."""
    socks = [worker.sock for worker in pool.fleet.workers.values() if not worker.taken]
    return bool(select.select(socks, [], [], 0)[0])


@pytest.mark.slow
@pytest.mark.needs("eventfd", "who waits for a result takes it from the worker itself")
def test_a_handler_raises_in_who_spins_for_a_result(tmp_path: Path) -> None:
    """KeyboardInterrupt at any point of taking an answer: it is there for the next one who asks."""
    with Bench(tmp_path, 2) as bench:
        bench.core.pool.spin = support.TIMEOUT
        stage = Stage(tmp_path, bench.executor)
        stage.submit().result(support.TIMEOUT)
        for number in itertools.count(1):
            with bench.deaf():
                future = stage.submit()
                item = future._item
                support.eventually(lambda it=item: it.worker.page[ANSWERED] >= it.number)  # type: ignore[misc]
                with Strike(number, interrupt) as strike, contextlib.suppress(KeyboardInterrupt):
                    future.result(support.TIMEOUT)
            with blaming(strike):
                assert future.wait_record(support.TIMEOUT).ok
                assert len(future.records) == 1
                stage.let_go()
            # Where the handler came between the booking of the answer and its reading, it is the I/O thread that reads
            # it. Who spins leaves an answer that another one lies before to that, which is deaf in the next round.
            support.eventually(lambda: not unread(bench.core.pool))
            if strike.left > 0:
                break
        assert number > 30
        bench.endings.clear()  # some were told twice, which is as once: each has one record


class Ending:
    """An executor with a worker that is about to be busy, and calls behind."""

    def __init__(self, directory: Path) -> None:
        self.executor = ProcessExecutor(1, preload=("tests.faults",))
        self.gate = str(directory / "gate")
        if not os.path.exists(self.gate):
            os.mkfifo(self.gate)
        self.futures = [self.executor.submit(faults.wait_at_gate, self.gate) for _ in range(3)]

    def end(self) -> None:
        """Nothing may be left undone, nor wait for ever."""
        with pytest.raises(SchedulerStateError):
            self.executor.submit(abs, 1)
        for _ in support.looks(support.TIMEOUT):
            if all(future.done() for future in self.futures):
                break
            with contextlib.suppress(OSError):
                os.close(os.open(self.gate, os.O_WRONLY | os.O_NONBLOCK))
        assert all(future.done() for future in self.futures)
        thread = threading.Thread(target=self.executor.shutdown)
        thread.start()
        thread.join(support.TIMEOUT)
        assert not thread.is_alive(), "shutdown waits for ever"


ENDS: dict[str, Callable[[ProcessExecutor], object]] = {
    "cancel": lambda executor: executor.shutdown(wait=False, cancel_futures=True),
    "kill": lambda executor: executor.kill_workers(),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_a_handler_raises_in_shutdown(tmp_path: Path, how: str) -> None:
    """KeyboardInterrupt at any point of a shutdown: it goes on behind the caller, and the next one returns."""
    for number in itertools.count(1, 5):
        ending = Ending(tmp_path)
        with Strike(number, interrupt) as strike, contextlib.suppress(KeyboardInterrupt):
            ENDS[how](ending.executor)
        ending.executor.shutdown(wait=False)  # should it not have begun
        with blaming(strike):
            ending.end()
        if strike.left > 0:
            assert number > 10
            return


@pytest.mark.slow
@pytest.mark.parametrize("how", ENDS)
def test_a_handler_shuts_down(tmp_path: Path, how: str) -> None:
    """A handler that interrupts submit at any point may end the executor; later calls are refused."""
    for number in itertools.count(1, 5):
        ending = Ending(tmp_path)
        with Strike(number, lambda: ENDS[how](ending.executor)) as strike:  # noqa: B023
            with contextlib.suppress(SchedulerStateError):
                ending.futures.append(ending.executor.submit(abs, 1))
        if strike.left > 0:
            ENDS[how](ending.executor)
        with blaming(strike):
            ending.end()
        if strike.left > 0:
            assert number > 10
            return


STORM = """
import itertools, signal, sys, time
from concurrent.futures import CancelledError
from procsched import ProcessExecutor

class Struck(KeyboardInterrupt):
    pass

armed = False

def handler(*_):
    global armed
    if armed:
        armed = False  # not while the last one is on its way
        raise Struck

def work(path, name):
    with open(path, "a") as file:
        file.write(name + "\\n")

def main():
    path = sys.argv[1]
    executor = ProcessExecutor(2)
    executor.submit(abs, 1).result(30)
    numbers = itertools.count()
    held, struck = [], 0
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    end = time.monotonic() + 1.0

    def storm():
        global armed
        while time.monotonic() < end:
            armed = True
            number = next(numbers)
            future = executor.submit(work, path, str(number))
            held.append((number, future))
            if number % 7 == 0 and len(held) > 3:
                held[-3][1].cancel()
            while len(executor._core.open) > 300:
                time.sleep(0.001)
        armed = False

    over = False
    while not over:
        try:
            storm()
            over = True
        except Struck:
            struck += 1
    signal.setitimer(signal.ITIMER_REAL, 0, 0)
    done = set()
    for name, future in held:
        try:
            future.result(30)
            done.add(str(name))
        except CancelledError:
            pass
    executor.shutdown()
    told = open(path).read().split()
    assert len(told) == len(set(told)), "a call has run twice"
    assert done <= set(told), "a call has not run"
    assert not executor._core.open
    assert struck > 50, struck
    print("over")

main()
"""


@pytest.mark.slow
def test_a_storm_of_signals(tmp_path: Path) -> None:
    """A second of signals whose handler raises, wherever they strike: nothing runs twice, is lost, or is left."""
    with Parent(tmp_path, STORM, arguments=(str(tmp_path / "told"),)) as parent:
        assert parent.output(support.TIMEOUT * 6) == "over\n"
