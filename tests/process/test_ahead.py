"""Calls that were sent ahead and have not begun: everything holds for them that holds for calls that wait.

Each test makes sure that they really were sent: `line_up` stops a worker, submits calls of a function that is known
to be brief, and looks at what the worker has. What a call is begun by is counted in a log that they append to.
"""

from __future__ import annotations

import collections
import contextlib
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    Outcome,
    Priority,
    RetryPolicy,
    TaskKilledError,
    TaskTimeoutError,
    WorkerCrashedError,
)
from procsched._core import wire
from procsched.child.protocol import ANSWERED
from procsched.future import ProcessFuture
from procsched.workers import dispatch, sending
from procsched.workers.base import AHEAD_BYTES, pace_of
from procsched.workers.dispatch import AHEAD_ROOM
from procsched.workers.process import Worker
from tests import faults, support
from tests.pools import Bench, helper_pid, is_stopped, only_record, open_gate, stop

RACES = int(os.environ.get("PROCSCHED_TEST_RACES", "300"))
SOAK_SECONDS = float(os.environ.get("PROCSCHED_TEST_SOAK", "3"))
SEED = int(os.environ.get("PROCSCHED_TEST_SEED", "0")) or random.randrange(1, 1 << 30)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


class Log:
    """What the calls have told: which began, in order, and where."""

    def __init__(self, bench: Bench) -> None:
        self.path = bench.path("log")

    def wait(self, value: object) -> None:
        """Wait until the call with this value has begun."""
        support.eventually(lambda: str(value) in self.values(), what=f"{value} has begun")

    def values(self) -> list[str]:
        return [line.split()[0] for line in self._lines()]

    def pid_of(self, value: object) -> int:
        (pid,) = [int(line.split()[1]) for line in self._lines() if line.split()[0] == str(value)]
        return pid

    def pids(self) -> collections.Counter[int]:
        return collections.Counter(int(line.split()[1]) for line in self._lines())

    def _lines(self) -> list[str]:
        try:
            return Path(self.path).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []


def warm(bench: Bench, function: Callable[..., object] = faults.maybe, *args: object) -> None:
    """Call a function until it is known to be brief."""
    for _ in range(500):
        bench.submit(function, *args).result(support.TIMEOUT)
        if pace_of(function).seconds <= sending.BRIEF / 2:
            return
    raise AssertionError(f"it took {pace_of(function).seconds} s")


Line = tuple[Worker, list[ProcessFuture]]


def stop_one(bench: Bench) -> Worker:
    """Have the worker that takes the next call stopped, and return it; calls are known to be brief."""
    warm(bench)
    bench.ready_pids()
    with bench.core.lock:
        worker = bench.core.pool.idle[-1]
    assert isinstance(worker, Worker)
    pid = worker.pid
    assert pid is not None
    stop(pid)
    return worker


def send_all_ahead(patch: pytest.MonkeyPatch) -> None:
    """Have everything that may be sent ahead be sent, however long calls take on a busy machine."""
    patch.setattr(sending, "BRIEF", 3600.0)
    patch.setattr(dispatch, "AHEAD_SECONDS", math.inf)
    patch.setattr(Worker, "may_gather_locked", lambda _worker: 0)


def line_up(bench: Bench, *calls: dict[str, Any]) -> Line:
    """Have the one worker that is free given these calls of `faults.maybe`, all but the first ahead of their start.

    Options of the call are those whose names `faults.maybe` does not have.
    """
    pool = bench.core.pool
    worker = stop_one(bench)
    with pytest.MonkeyPatch.context() as patch:
        send_all_ahead(patch)
        futures = [submit(bench, **call) for call in calls]
    with pool.lock:
        assert worker.call is futures[0]._item
        assert [call.future for call in worker.ahead] == futures[1:]
    os.kill(worker.pid, signal.SIGCONT)
    return worker, futures


def submit(bench: Bench, **call: Any) -> ProcessFuture:
    own = ("log", "value", "gate", "then", "asked")
    options = {name: value for name, value in call.items() if name not in own}
    return bench.submit(faults.maybe, *(call.get(name, "") for name in own), **options)


def lined_up(log: Log, *values: str) -> list[dict[str, Any]]:
    """Return quick calls with these values."""
    return [{"log": log.path, "value": value} for value in values]


def results(futures: list[ProcessFuture]) -> list[Any]:
    """Return the results of calls that nothing has happened to."""
    found = [future.result(support.TIMEOUT) for future in futures]
    for future in futures:
        only_record(future, Outcome.SUCCEEDED)
    return found


def has_ahead(worker: Worker) -> bool:
    with worker.pool.lock:
        return bool(worker.ahead)


# --- what is sent ahead, and what is not ------------------------------------------------------------------------


def test_a_packet_larger_than_one_read_arrives(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of some kilobytes each go in packets too, and each gets its own bytes."""
    sizes = []
    packet = wire.packet

    def measured(first: int, calls: list[Any]) -> list[bytes | bytearray]:
        parts = packet(first, calls)
        sizes.append(sum(map(len, parts)))
        return parts

    warm(bench, faults.length, b"")
    monkeypatch.setattr(wire, "packet", measured)
    send_all_ahead(monkeypatch)
    (pid,) = {bench.submit(os.getpid).result(support.TIMEOUT)}
    with bench.deaf():
        stop(pid)
        futures = [bench.submit(faults.length, bytes(3000 + n)) for n in range(200)]
    os.kill(pid, signal.SIGCONT)
    assert [future.result(support.TIMEOUT) for future in futures] == [3000 + n for n in range(200)]
    assert AHEAD_ROOM < max(sizes) < AHEAD_ROOM + AHEAD_BYTES


def test_calls_sent_ahead_start_in_order_once_each(bench: Bench) -> None:
    """A packet is begun in the order of the submissions, by one worker."""
    log, gate = Log(bench), bench.gate()
    _, futures = line_up(bench, {"log": log.path, "value": "first", "gate": gate}, *lined_up(log, *"abcdef"))
    open_gate(gate)
    assert results(futures) == ["first", *"abcdef"]
    assert log.values() == ["first", *"abcdef"]
    assert len(log.pids()) == 1


@pytest.mark.parametrize("why", ["unknown", "long", "captured"])
def test_nothing_is_sent_behind_a_call_that_may_take_long(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Behind a call of unknown or long duration, or whose output is kept, the next ones wait in their queue."""

    def nap_and_wait(seconds: float, gate: str) -> None:
        time.sleep(seconds)
        if gate:
            faults.wait_at_gate(gate)

    log, gate = Log(bench), bench.gate()
    warm(bench)
    if why == "long":
        bench.submit(nap_and_wait, 0.01, "").result(support.TIMEOUT)
        assert sending.BRIEF < pace_of(nap_and_wait).seconds < math.inf
    # Whatever the machine does meanwhile, the call has just begun: so it is not for that that nothing is sent.
    monkeypatch.setattr(Worker, "_since_locked", lambda _worker: time.monotonic())
    if why == "captured":
        first = submit(bench, log=log.path, value="first", gate=gate, capture_output=True)
    else:
        first = bench.submit(nap_and_wait, 0.0, gate)
    behind = [submit(bench, **call) for call in lined_up(log, *"abc")]
    (worker,) = bench.core.pool.busy
    assert not worker.ahead
    assert sum(map(len, bench.core.queues)) == 3
    open_gate(gate)
    first.result(support.TIMEOUT)
    assert results(behind) == ["a", "b", "c"]


def test_nothing_more_is_sent_behind_a_call_that_turns_out_long(bench: Bench) -> None:
    """A call that was to be brief and is not is found out: later calls wait in their queue."""
    log, gate = Log(bench), bench.gate()
    worker, futures = line_up(
        bench, {"log": log.path, "value": "first", "gate": gate}, *lined_up(log, "a", "b")
    )
    log.wait("first")
    since = worker.waiting_since_locked()
    support.eventually(lambda: time.monotonic() - since > sending.BRIEF)
    late = [submit(bench, **call) for call in lined_up(log, "c", "d")]
    with bench.core.lock:
        assert [call.future for call in worker.ahead] == futures[1:]
    open_gate(gate)
    assert results(futures + late) == ["first", "a", "b", "c", "d"]
    assert log.values() == ["first", "a", "b", "c", "d"]


def test_a_worker_need_not_wait_until_its_answers_are_read(bench: Bench) -> None:
    """Threads that compute may keep the I/O thread from it for long; what has answered everything gets more."""
    warm(bench)
    bench.ready_pids()
    with bench.deaf():
        futures = [submit(bench, value="first")]
        (worker,) = bench.core.pool.busy
        for value in "abc":
            support.eventually(lambda: worker.page[ANSWERED] == worker.last_number)
            since = worker._since_locked()
            support.eventually(lambda since=since: time.monotonic() - since > sending.BRIEF)
            futures.append(submit(bench, value=value))
        support.eventually(lambda: worker.page[ANSWERED] == worker.last_number)
        assert [call.future for call in worker.ahead] == futures[1:]
    assert results(futures) == ["first", "a", "b", "c"]


@pytest.mark.parametrize(("count", "gather", "rooms"), [(16, 8, [True, False, False]), (0, 7, [True] * 3)])
def test_calls_gather_while_the_worker_has_something_to_do(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, count: int, gather: int, rooms: list[bool]
) -> None:
    """Half as many as wait in the worker, and a few in any case, come before it is looked again whether it has room."""
    looks = []
    has_room = Worker.has_room_locked

    def counted(worker: Worker) -> bool:
        looks.append(has_room(worker))
        return looks[-1]

    log, gate = Log(bench), bench.gate()
    ahead = lined_up(log, *(f"a{n}" for n in range(count)))
    _, futures = line_up(bench, {"log": log.path, "value": "first", "gate": gate}, *ahead)
    log.wait("first")
    bench.core.pool.sated = 0
    pace_of(faults.maybe).seconds = 1e-5
    monkeypatch.setattr(sending, "BRIEF", 3600.0)  # so that the time that it has run is no reason
    monkeypatch.setattr(dispatch, "GATHER", 3600.0)
    monkeypatch.setattr(Worker, "has_room_locked", counted)
    more = 1 + 2 * (gather + 1)
    futures += [submit(bench, **call) for call in lined_up(log, *(f"b{n}" for n in range(more)))]
    assert looks == rooms
    open_gate(gate)
    assert len(results(futures)) == len(log.values()) == 1 + count + more


@pytest.mark.slow
def test_the_limit_of_a_call_that_was_taken_back_ends_nobody(bench: Bench) -> None:
    """A worker that goes on to nothing has no timer running, though it thought that there was a call to come."""
    log, gate = Log(bench), bench.gate()
    limit = 1.0
    line = [{"log": log.path, "value": "a", "gate": gate}, *lined_up(log, "b")]
    worker, (first, second) = line_up(bench, *({**call, "timeout": limit} for call in line))
    log.wait("a")
    assert second.cancel()
    open_gate(gate)
    assert first.result(support.TIMEOUT) == "a"
    assert worker.pid in bench.ready_pids()
    # What must not come can only be waited for.
    assert not support.process_gone(worker.pid, timeout=1.5 * limit)


# --- priority, cancel -------------------------------------------------------------------------------------------


def test_a_more_urgent_call_goes_before_those_sent_ahead(bench: Bench) -> None:
    """A call of high priority is begun before calls of lower priority that the worker has already."""
    log, gate = Log(bench), bench.gate()
    _, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gate},
        *lined_up(log, "a"),
        {"log": log.path, "value": "low", "priority": Priority.LOW},
    )
    log.wait("first")
    urgent = submit(bench, log=log.path, value="urgent", priority=Priority.HIGH)
    open_gate(gate)
    assert results([*futures, urgent]) == ["first", "a", "low", "urgent"]
    assert log.values() == ["first", "urgent", "a", "low"]


def test_a_call_sent_ahead_is_withdrawn_by_cancel(bench: Bench) -> None:
    """Such a call never starts and has no record; the worker, and the others that it has, are left alone."""
    log, gate = Log(bench), bench.gate()
    _, futures = line_up(bench, {"log": log.path, "value": "first", "gate": gate}, *lined_up(log, *"abc"))
    first, a, b, c = futures
    log.wait("first")
    assert not b.running()
    assert b.cancel()
    assert b.cancelled()
    with pytest.raises(CancelledError):
        b.result(0)
    with pytest.raises(CancelledError):
        b.wait_record(support.TIMEOUT)
    open_gate(gate)
    assert results([first, a, c]) == ["first", "a", "c"]
    assert log.values() == ["first", "a", "c"]
    assert b.records == []
    assert len(log.pids()) == 1
    assert bench.counters()["killed_workers"] == 0


def test_cancelling_what_runs_spares_what_is_behind(bench: Bench) -> None:
    """The calls behind a running one that is cancelled start once each, elsewhere."""
    log = Log(bench)
    _, futures = line_up(
        bench, {"log": log.path, "value": "first", "gate": bench.gate()}, *lined_up(log, *"abc")
    )
    log.wait("first")
    assert futures[0].cancel()
    only_record(futures[0], Outcome.KILLED)
    assert results(futures[1:]) == ["a", "b", "c"]
    assert log.values() == ["first", "a", "b", "c"]


def test_a_call_that_began_behind_our_back_is_killed_by_cancel(bench: Bench) -> None:
    """A call that has begun, while the end of the one before was not heard of yet, is ended, and that one is not."""
    log, gates = Log(bench), [bench.gate(), bench.gate()]
    _, (first, second, third) = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gates[0]},
        {"log": log.path, "value": "second", "gate": gates[1]},
        *lined_up(log, "third"),
    )
    with bench.deaf():
        open_gate(gates[0])
        log.wait("second")
        assert second.cancel()
    only_record(second, Outcome.KILLED)
    assert results([first, third]) == ["first", "third"]
    assert log.values() == ["first", "second", "third"]


def test_a_call_is_given_to_nobody_while_it_is_on_its_way_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker has not begun between two calls is taken back whole; what comes after that waits for its turn.

    The worker finds the calls that were taken back all the same, before those that it is sent anew. It must not take
    the token of one of these for one of those: that would then count as begun, and could not be withdrawn.
    """
    log, gate = Log(bench), bench.gate()
    worker, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "then": "stop"},
        {"log": log.path, "value": "second", "gate": gate},
        *lined_up(log, "a", "b"),
    )
    assert worker.pid is not None
    assert futures[0].result(support.TIMEOUT) == "first"
    support.eventually(lambda: is_stopped(worker.pid or 0), what="the worker is stopped")
    support.eventually(lambda: worker.call is futures[1]._item, what="the second is its call")
    send_all_ahead(monkeypatch)
    urgent = submit(bench, log=log.path, value="urgent", priority=Priority.HIGH)
    with bench.core.lock:
        assert [call.future for call in worker.ahead] == [urgent, *futures[2:]]
    os.kill(worker.pid, signal.SIGCONT)
    log.wait("second")
    assert urgent.cancel()
    assert futures[2].cancel()
    open_gate(gate)
    assert results([futures[1], futures[3]]) == ["second", "b"]
    assert log.values() == ["first", "second", "b"]
    for future in (urgent, futures[2]):
        with pytest.raises(CancelledError):
            future.wait_record(support.TIMEOUT)


# --- timeouts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grace", [0.0, 0.2])
def test_a_timeout_hits_the_call_that_runs_and_no_other(bench: Bench, grace: float) -> None:
    """The call that is over its limit is TIMED_OUT; those sent behind it start once each, elsewhere."""
    log = Log(bench)
    first = {"log": log.path, "value": "first", "gate": bench.gate(), "timeout": 0.2, "grace": grace}
    _, futures = line_up(bench, first, *lined_up(log, *"abc"))
    only_record(futures[0], Outcome.TIMED_OUT)
    assert results(futures[1:]) == ["a", "b", "c"]
    assert log.values() == ["first", "a", "b", "c"]
    assert log.pid_of("a") != log.pid_of("first")


def test_a_timeout_does_not_count_the_wait_behind_another_call(bench: Bench) -> None:
    """The limit of a call sent ahead is measured from its own start."""
    log, gates = Log(bench), [bench.gate() for _ in range(3)]
    worker, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gates[0]},
        {"log": log.path, "value": "second", "gate": gates[1], "timeout": 0.5},
        {"log": log.path, "value": "third", "gate": gates[2], "timeout": 0.5},
    )
    log.wait("first")
    since = worker.waiting_since_locked()
    support.eventually(lambda: time.monotonic() > since + 0.7)
    assert has_ahead(worker)
    open_gate(gates[0])
    open_gate(gates[1])
    assert results(futures[:2]) == ["first", "second"]
    record = only_record(futures[2], Outcome.TIMED_OUT)
    assert record.duration > 0.45
    assert log.values() == ["first", "second", "third"]


def test_a_soft_timeout_hits_the_call_that_runs_and_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a call cleans up after its soft timeout nothing is sent behind it, for its worker is to go."""
    log, gates = Log(bench), [bench.gate(), bench.gate()]
    first = {"log": log.path, "value": "first", "gate": gates[0], "asked": gates[1], "soft_timeout": 0.2}
    worker, futures = line_up(bench, first, *lined_up(log, *"abc"))
    log.wait("asked")
    monkeypatch.setattr(sending, "BRIEF", 3600.0)  # so that the time that it has run is no reason
    futures += [submit(bench, **call) for call in lined_up(log, *"de")]
    assert not has_ahead(worker)
    open_gate(gates[1])
    only_record(futures[0], Outcome.TIMED_OUT)
    assert results(futures[1:]) == [*"abcde"]
    assert log.values() == ["first", "asked", *"abcde"]


def test_a_soft_timeout_that_comes_before_the_start_is_not_lost(bench: Bench) -> None:
    """A call that is begun only when its soft limit has passed, on a busy machine say, is asked all the same."""
    log = Log(bench)
    worker = stop_one(bench)
    future = submit(bench, log=log.path, value="late", gate=bench.gate(), soft_timeout=0.02)
    support.eventually(lambda: worker.soft_at == math.inf, what="it was asked")
    os.kill(worker.pid, signal.SIGCONT)
    only_record(future, Outcome.TIMED_OUT)


def test_what_began_behind_a_late_answer_ends_in_peace(bench: Bench) -> None:
    """A call that returns after its deadline is TIMED_OUT; who began behind it before we knew is not hit for it."""
    log, gates = Log(bench), [bench.gate(), bench.gate()]
    first = {"log": log.path, "value": "first", "gate": gates[0], "timeout": 0.2, "grace": support.TIMEOUT}
    last = {"log": log.path, "value": "last", "gate": gates[1]}
    worker, futures = line_up(bench, first, *lined_up(log, "a"), last, *lined_up(log, "b"))
    log.wait("first")
    with bench.deaf():
        since = worker.waiting_since_locked()
        support.eventually(lambda: time.monotonic() > since + 0.25)
        open_gate(gates[0])
        log.wait("last")
    only_record(futures[0], Outcome.TIMED_OUT)
    assert not futures[2].done()
    open_gate(gates[1])
    assert results(futures[1:]) == ["a", "last", "b"]
    assert log.values() == ["first", "a", "last", "b"]
    assert log.pid_of("b") != log.pid_of("first"), "a worker whose call was out of time is not used again"


def test_what_ran_too_long_behind_our_back_is_timed_out(bench: Bench) -> None:
    """A call sent ahead that began, ran beyond its limit and returned, all unheard, is TIMED_OUT."""
    log, gates = Log(bench), [bench.gate(), bench.gate()]
    _, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gates[0]},
        {"log": log.path, "value": "second", "gate": gates[1], "timeout": 0.1, "grace": support.TIMEOUT},
        *lined_up(log, "third"),
    )
    with bench.deaf():
        open_gate(gates[0])
        log.wait("second")
        since = time.monotonic()
        support.eventually(lambda: time.monotonic() > since + 0.15)
        open_gate(gates[1])
        log.wait("third")
    only_record(futures[1], Outcome.TIMED_OUT)
    assert results([futures[0], futures[2]]) == ["first", "third"]
    assert log.values() == ["first", "second", "third"]


# --- deaths -----------------------------------------------------------------------------------------------------


def test_a_crash_is_blamed_on_the_call_that_ran(bench: Bench) -> None:
    """The third of a packet takes the worker with it: the two before have their results, the rest run elsewhere."""
    log, gate = Log(bench), bench.gate()
    _, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gate},
        *lined_up(log, "a"),
        {"log": log.path, "value": "bad", "then": "exit"},
        *lined_up(log, "b", "c"),
    )
    open_gate(gate)
    assert only_record(futures[2], Outcome.CRASHED).exit_code == 5
    with pytest.raises(WorkerCrashedError):
        futures[2].result(0)
    assert results([*futures[:2], *futures[3:]]) == ["first", "a", "b", "c"]
    assert log.values() == ["first", "a", "bad", "b", "c"]


def test_sigkill_from_outside_is_blamed_on_the_call_that_ran(bench: Bench) -> None:
    """So it is with a worker that is killed in the middle of a packet."""
    log = Log(bench)
    worker, futures = line_up(
        bench, {"log": log.path, "value": "first", "gate": bench.gate()}, *lined_up(log, *"abc")
    )
    log.wait("first")
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    only_record(futures[0], Outcome.CRASHED)
    assert results(futures[1:]) == ["a", "b", "c"]
    assert log.values() == ["first", "a", "b", "c"]


def test_sigkill_of_a_worker_that_has_begun_nothing_of_it_harms_no_call(bench: Bench) -> None:
    """A worker that is killed before the first of its calls has begun takes none with it."""
    log = Log(bench)
    worker = stop_one(bench)
    futures = [submit(bench, **call) for call in lined_up(log, *"abc")]
    assert has_ahead(worker)
    os.kill(worker.pid, signal.SIGKILL)
    assert results(futures) == ["a", "b", "c"]
    assert log.values() == ["a", "b", "c"]


def test_each_attempt_that_started_has_its_record(bench: Bench) -> None:
    """A call with retries in the middle of a packet has one record for each start, and the others one."""
    log, gate = Log(bench), bench.gate()
    retry = RetryPolicy(3, initial_backoff=0.001)
    _, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gate},
        {"log": log.path, "value": "crash", "then": "exit", "retry": retry},
        {"log": log.path, "value": "fail", "then": "raise", "retry": retry},
        *lined_up(log, "a"),
    )
    open_gate(gate)
    for future, outcome in ((futures[1], Outcome.CRASHED), (futures[2], Outcome.FAILED)):
        future.wait_record(support.TIMEOUT)
        assert [record.outcome for record in future.records] == [outcome] * 3
        assert [record.attempt for record in future.records] == [1, 2, 3]
    assert results([futures[0], futures[3]]) == ["first", "a"]
    assert collections.Counter(log.values()) == {"first": 1, "crash": 3, "fail": 3, "a": 1}


def test_the_death_of_the_helper_loses_the_call_that_ran(bench: Bench) -> None:
    """When the helper dies with all workers, the call that ran is LOST, and those behind it run later."""
    log = Log(bench)
    _, futures = line_up(
        bench, {"log": log.path, "value": "first", "gate": bench.gate()}, *lined_up(log, *"abc")
    )
    log.wait("first")
    os.kill(helper_pid(), signal.SIGKILL)
    only_record(futures[0], Outcome.LOST)
    assert results(futures[1:]) == ["a", "b", "c"]
    assert log.values() == ["first", "a", "b", "c"]


def test_an_answer_that_is_none_spoils_none_before_it(bench: Bench) -> None:
    """Answers that were read together with something that is no answer count."""
    log, gate = Log(bench), bench.gate()
    _, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gate},
        *lined_up(log, "a"),
        {"log": log.path, "value": "bad", "then": "junk"},
        *lined_up(log, "unlucky"),
    )
    with bench.deaf():
        open_gate(gate)
        log.wait("unlucky")
    assert results(futures[:2]) == ["first", "a"]
    only_record(futures[2], Outcome.CRASHED)
    only_record(futures[3], Outcome.CRASHED)  # it had begun: it is not begun again
    assert log.values() == ["first", "a", "bad", "unlucky"]
    bench.assert_usable()


# --- other workers ----------------------------------------------------------------------------------------------


def test_a_free_worker_takes_over_what_waits_behind_a_long_call(tmp_path: Path) -> None:
    """Calls that were sent behind one that takes long are run by whoever is free first."""
    with Bench(tmp_path, 2) as bench:
        log, gates = Log(bench), [bench.gate(), bench.gate()]
        # Nothing is sent behind a call whose output is kept, so that all goes to the other worker.
        other = bench.submit(faults.wait_at_gate, gates[0], log.path, "other", capture_output=True)
        support.wait_for_file(log.path)
        first = {"log": log.path, "value": "first", "gate": gates[1]}
        worker, futures = line_up(bench, first, *lined_up(log, *"abc"))
        log.wait("first")
        open_gate(gates[0])
        assert results([other, *futures[1:]]) == ["other", "a", "b", "c"]
        assert not futures[0].done()
        assert log.pid_of("a") != worker.pid
        open_gate(gates[1])
        assert results(futures[:1]) == ["first"]
        assert log.values()[1:] == ["first", "a", "b", "c"]


def test_a_worker_runs_no_more_calls_than_it_may(tmp_path: Path) -> None:
    """max_tasks_per_child is exact although calls are sent ahead, and each call is begun once."""
    with Bench(tmp_path, 1, max_tasks_per_child=5) as bench:
        log = Log(bench)
        warm(bench)
        futures = [submit(bench, **call) for call in lined_up(log, *map(str, range(40)))]
        assert results(futures) == [*map(str, range(40))]
        assert log.values() == [*map(str, range(40))]
        assert max(log.pids().values()) <= 5


def test_a_worker_that_is_worn_gives_back_what_it_has(tmp_path: Path) -> None:
    """A worker that grew too large begins nothing more than what it has begun, and is replaced."""
    with Bench(tmp_path, 1, max_rss_per_worker=1) as bench:
        log = Log(bench)
        for _ in range(60):  # each on a worker of its own
            bench.submit(faults.maybe).result(support.TIMEOUT)
            if pace_of(faults.maybe).seconds <= sending.BRIEF:
                break
        futures = [submit(bench, **call) for call in lined_up(log, *map(str, range(30)))]
        assert results(futures) == [*map(str, range(30))]
        assert sorted(log.values(), key=int) == [*map(str, range(30))]
        assert len(log.pids()) > 1


@pytest.mark.parametrize("how", ["thread", "process", "mask"])
def test_what_is_behind_a_dirty_run_runs_elsewhere(bench: Bench, how: str) -> None:
    """A run that leaves something behind is the last of its worker, also where others were sent behind it."""
    log, gate = Log(bench), bench.gate()
    _, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gate},
        {"log": log.path, "value": "dirty", "then": how},
        *lined_up(log, *"abc"),
    )
    open_gate(gate)
    assert results(futures) == ["first", "dirty", "a", "b", "c"]
    assert log.values() == ["first", "dirty", "a", "b", "c"]
    assert log.pid_of("dirty") == log.pid_of("first")
    assert log.pid_of("a") != log.pid_of("dirty")


def test_captured_output_is_of_its_own_call_alone(bench: Bench) -> None:
    """Calls that print, with and without their output kept, in any order: each keeps what it printed itself."""
    warm(bench)
    futures = [
        submit(bench, value=str(number), then="print", capture_output=number % 3 == 0) for number in range(90)
    ]
    for number, future in enumerate(futures):
        record = future.wait_record(support.TIMEOUT)
        assert record.output == (f"{number}\n" if number % 3 == 0 else None)


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_shutdown_that_waits_has_them_run(bench: Bench) -> None:
    """shutdown(wait=True) runs what was sent ahead."""
    log, gate = Log(bench), bench.gate()
    _, futures = line_up(bench, {"log": log.path, "value": "first", "gate": gate}, *lined_up(log, *"abc"))
    bench.executor.shutdown(wait=False)
    open_gate(gate)
    bench.executor.shutdown()
    assert results(futures) == ["first", "a", "b", "c"]
    assert log.values() == ["first", "a", "b", "c"]


def test_a_shutdown_that_cancels_withdraws_them(bench: Bench) -> None:
    """cancel_futures=True withdraws what was sent ahead and has not begun; what runs ends in its own time."""
    log, gate = Log(bench), bench.gate()
    _, futures = line_up(bench, {"log": log.path, "value": "first", "gate": gate}, *lined_up(log, *"abc"))
    log.wait("first")
    bench.executor.shutdown(wait=False, cancel_futures=True)
    assert [future.cancelled() for future in futures] == [False, True, True, True]
    open_gate(gate)
    bench.executor.shutdown()
    assert results(futures[:1]) == ["first"]
    assert log.values() == ["first"]
    assert all(future.records == [] for future in futures[1:])


def test_killing_the_workers_ends_what_runs_and_withdraws_the_rest(bench: Bench) -> None:
    """kill_workers() kills the call that runs; what was sent behind it is cancelled and never starts."""
    log = Log(bench)
    _, futures = line_up(
        bench, {"log": log.path, "value": "first", "gate": bench.gate()}, *lined_up(log, *"abc")
    )
    log.wait("first")
    bench.executor.kill_workers()
    bench.executor.shutdown()
    only_record(futures[0], Outcome.KILLED)
    with pytest.raises(TaskKilledError):
        futures[0].result(0)
    assert all(future.cancelled() and not future.records for future in futures[1:])
    assert log.values() == ["first"]


def test_killing_the_workers_ends_also_what_began_behind_our_back(bench: Bench) -> None:
    """kill_workers() reaches a call that has begun before the end of the one before was heard of."""
    log, gates = Log(bench), [bench.gate(), bench.gate()]
    _, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gates[0]},
        {"log": log.path, "value": "second", "gate": gates[1]},
        *lined_up(log, "third"),
    )
    with bench.deaf():
        open_gate(gates[0])
        log.wait("second")
        bench.executor.kill_workers()
    began = time.monotonic()
    only_record(futures[1], Outcome.KILLED)
    bench.executor.shutdown()
    assert time.monotonic() - began < support.TIMEOUT
    assert futures[2].cancelled()
    assert len(futures[0].records) == 1
    assert log.values() == ["first", "second"]


# --- races ------------------------------------------------------------------------------------------------------


def test_a_cancel_that_meets_the_end_has_one_winner(bench: Bench) -> None:
    """Aimed at the moment of the end: either it was cancelled or it has its result, and the next call is not hit."""
    log = Log(bench)
    dice = random.Random(SEED)
    print("PROCSCHED_TEST_SEED", SEED)
    warm(bench, faults.brief_work, 0.0, log.path, "warm")
    won = lost = together = 0
    aim = 0.0003
    ended = time.monotonic()
    for number in range(RACES):
        warm_up = pace_of(faults.brief_work).seconds > sending.BRIEF
        work = 0.0 if warm_up else dice.uniform(0.0, 0.0002)
        target = bench.submit(faults.brief_work, work, log.path, f"target-{number}")
        behind = [bench.submit(faults.brief_work, 0.0, log.path, f"next-{number}-{n}") for n in range(2)]
        together += any(worker.ahead for worker in tuple(bench.core.pool.busy))
        at = ended + aim * dice.uniform(0.5, 1.5) if number % 2 else time.monotonic() + aim * dice.random()
        while time.monotonic() < at:
            pass
        if target.cancel():
            won += 1
            aim *= 1.1
            assert target.cancelled()
            assert {record.outcome for record in target.records} <= {Outcome.KILLED}
        else:
            lost += 1
            aim /= 1.1
            assert target.result(support.TIMEOUT) == f"target-{number}"
            only_record(target, Outcome.SUCCEEDED)
        for n, future in enumerate(behind):
            assert future.result(support.TIMEOUT) == f"next-{number}-{n}"
            only_record(future, Outcome.SUCCEEDED)
        ended = time.monotonic()
    counts = collections.Counter(value for value in log.values() if value != "warm")
    assert set(counts.values()) == {1}
    assert sum(value.startswith("next-") for value in counts) == 2 * RACES
    print(f"won {won}, lost {lost}, with calls ahead {together}, killed {bench.counters()['killed_workers']}")
    assert won
    assert lost
    assert together


class Soak:
    """Calls of all kinds at random, and what became of them."""

    def __init__(self, bench: Bench, dice: random.Random) -> None:
        self.bench = bench
        self.dice = dice
        self.log = Log(bench)
        self.gates: list[str] = []
        self.calls: list[tuple[str, str, ProcessFuture]] = []  # kind, value, future
        self.kills = 0

    def step(self) -> None:
        kind = self.dice.choices(
            [
                "brief",
                "gated",
                "open",
                "exit",
                "raise",
                "timeout",
                "soft",
                "cancel",
                "dirty",
                "print",
                "kill",
            ],
            [60, 2, 6, 2, 4, 1, 1, 6, 1, 3, 0.5],
        )[0]
        if kind == "open":
            self.open_gates()
        elif kind == "cancel":
            if self.calls:
                self.dice.choice(self.calls[-20:])[2].cancel()
        elif kind == "kill":
            # One that has not started yet would be an error for all that wait for it.
            workers = self.bench.core.pool.stats()[0]
            pids = [worker.pid for worker in workers if worker.state != "starting" and worker.pid is not None]
            if pids:
                self.kills += 1
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.dice.choice(pids), signal.SIGKILL)
        else:
            self.submit(kind)

    def submit(self, kind: str) -> None:
        value = f"{kind}-{len(self.calls)}"
        call: dict[str, Any] = {"log": self.log.path, "value": value}
        if kind in ("gated", "timeout", "soft"):
            call["gate"] = self.bench.gate()
        if kind == "gated":
            self.gates.append(call["gate"])
        elif kind == "timeout":
            call |= {"timeout": self.dice.uniform(0.005, 0.05), "grace": self.dice.choice([0.0, 0.01])}
        elif kind == "soft":
            call["soft_timeout"] = self.dice.uniform(0.005, 0.05)
        elif kind in ("exit", "raise"):
            call["then"] = kind
        elif kind == "dirty":
            call["then"] = self.dice.choice(["thread", "process", "mask"])
        elif kind == "print":
            call |= {"then": "print", "capture_output": True}
        if kind in ("brief", "print") and self.dice.random() < 0.2:
            call["timeout"] = support.TIMEOUT
        if kind in ("exit", "raise") and self.dice.random() < 0.3:
            call["retry"] = RetryPolicy(2, initial_backoff=0.001)
        call["priority"] = self.dice.choices(list(Priority), [1, 8, 1])[0]
        self.calls.append((kind, value, submit(self.bench, **call)))

    def open_gates(self) -> None:
        for gate in list(self.gates):
            with contextlib.suppress(OSError):  # nobody waits there
                os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
                self.gates.remove(gate)

    def settle(self) -> None:
        def settled() -> bool:
            self.open_gates()
            return all(future.done() for _, _, future in self.calls)

        try:
            support.eventually(settled, 3 * support.TIMEOUT, "all calls have ended")
        except AssertionError:
            print("not done:", [(value, future) for _, value, future in self.calls if not future.done()])
            raise
        for _, _, future in self.calls:
            with contextlib.suppress(CancelledError):
                future.wait_record(support.TIMEOUT)

    def check(self) -> None:
        """Every call has ended, none was started more often than its records say, and the innocent have succeeded."""
        starts = collections.Counter(self.log.values())
        crashed_innocents = 0
        for kind, value, future in self.calls:
            records = future.records
            outcomes = [record.outcome for record in records]
            assert starts[value] <= len(records), (value, outcomes, starts[value])
            allowed: set[Outcome] = {Outcome.CRASHED}  # by a SIGKILL from outside
            if kind == "raise":
                allowed.add(Outcome.FAILED)
            elif kind in ("timeout", "soft"):
                allowed.add(Outcome.TIMED_OUT)
            elif kind != "exit":
                allowed.add(Outcome.SUCCEEDED)
            if future.cancelled():
                allowed.add(Outcome.KILLED)
            assert set(outcomes) <= allowed, (value, outcomes, [record.error for record in records])
            if not future.cancelled():
                assert records, value
            if kind != "exit":
                crashed_innocents += outcomes.count(Outcome.CRASHED)
            if kind == "print" and outcomes == [Outcome.SUCCEEDED]:
                assert records[0].output == f"{value}\n", (value, records[0].output)
        assert crashed_innocents <= self.kills


def test_a_mix_of_everything_keeps_every_promise(tmp_path: Path) -> None:
    """Brief, stuck, crashing, dirty and late calls with cancels, priorities and SIGKILL, for a few seconds of seeds."""
    end = time.monotonic() + SOAK_SECONDS
    seed = SEED
    rounds = 0
    while time.monotonic() < end:
        print("PROCSCHED_TEST_SEED", seed)
        dice = random.Random(seed)
        directory = tmp_path / str(seed)
        directory.mkdir()
        with Bench(
            directory, dice.choice([1, 2, 2, 4]), max_tasks_per_child=dice.choice([None, None, 7])
        ) as it:
            warm(it)
            soak = Soak(it, dice)
            for _ in range(400):
                soak.step()
            soak.settle()
            soak.check()
        seed += 1
        rounds += 1
    assert rounds


def test_the_error_of_a_call_behind_others_is_its_own(bench: Bench) -> None:
    """An exception in the middle of a packet reaches its own future, and a timeout names its own limit."""
    log, gate = Log(bench), bench.gate()
    _, futures = line_up(
        bench,
        {"log": log.path, "value": "first", "gate": gate},
        {"log": log.path, "value": "bad", "then": "raise"},
        {"log": log.path, "value": "slow", "gate": bench.gate(), "timeout": 0.15},
        *lined_up(log, "a"),
    )
    open_gate(gate)
    with pytest.raises(ValueError, match="bad"):
        futures[1].result(support.TIMEOUT)
    with pytest.raises(TaskTimeoutError, match=r"0\.15 s"):
        futures[2].result(support.TIMEOUT)
    assert results([futures[0], futures[3]]) == ["first", "a"]
