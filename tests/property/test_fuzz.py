"""Any bytes, in each end that reads what another process wrote. `tests/fuzz` has the targets, and looks for longer."""

from __future__ import annotations

import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from procsched import Outcome, _parcels
from procsched._core import wire
from procsched.child import protocol
from procsched.child.control import Control
from procsched.child.worker import Worker as ChildWorker
from procsched.workers.base import Pace
from procsched.workers.launcher import is_message
from procsched.workers.sending import WorkerState
from tests import faults, support
from tests.fuzz.__main__ import NAMES
from tests.fuzz.targets import MESSAGES, TARGETS
from tests.fuzz.worker_bench import Bench as Wire
from tests.fuzz.worker_bench import FuzzCall, frame
from tests.pools import Bench

EXAMPLES = int(os.environ.get("PROCSCHED_FUZZ_EXAMPLES", "100"))


def test_the_command_knows_every_target() -> None:
    """Its list is one of its own: atheris has to see the import of the targets."""
    assert sorted(NAMES) == sorted(TARGETS)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_any_bytes_are_a_message_an_error_or_a_wait(name: str) -> None:
    """Whatever comes in, at any split: nobody else is harmed, and nothing is raised that is not meant for that."""

    @settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(st.binary(max_size=60), max_size=8).map(b"".join))
    def check(data: bytes) -> None:
        TARGETS[name](data)

    check()


# --- what the fuzzer has found, each by itself ------------------------------------------------------------------


def busy(count: int = 1, **options: Any) -> Wire:
    """Return the parent's side of a worker that runs the first of some calls."""
    bench = Wire([FuzzCall(**options) for _ in range(count)])
    bench.write(frame(wire.READY))
    bench.pool.pump()
    assert bench.worker.state is WorkerState.BUSY
    bench.worker.page[protocol.STARTED] = 1
    return bench


def answer(kind: int = wire.DONE, **fields: Any) -> bytes:
    fields.setdefault("payload", wire.pickle.dumps(7, 5))
    return frame(kind, number=1, first=2.0, second=1.0, **fields)


@pytest.mark.parametrize(
    "data",
    [
        answer(meta=b"short"),
        answer(flags=wire.DIRTY, meta=b"x"),
        answer(wire.RAISED, payload=wire.pickle.dumps((1, 2, 3, 4), 5)),
        answer(wire.RAISED, payload=wire.pickle.dumps(("text", b"no text", None, ""), 5)),
        answer(wire.RAISED, payload=wire.pickle.dumps(("text", None, "no bytes", ""), 5)),
        answer(wire.PROGRESS, payload=b"one =2 note"),
        answer(wire.PROGRESS, payload=b"=1 [] note"),
        answer(wire.PROGRESS, payload=b"=1 =2"),
    ],
    ids=["facts", "dirt", "failure", "traceback", "exception", "done", "total", "note"],
)
def test_an_answer_that_is_none_ends_that_worker(data: bytes) -> None:
    """Facts that are too short, values of other types: the worker is ended, and its call CRASHED with the reason."""
    bench = busy()
    bench.write(data)
    assert bench.worker.state is WorkerState.DYING
    bench.end()
    assert bench.all[0].endings[0].outcome is Outcome.CRASHED
    assert "worker wrote what is no message" in (bench.all[0].endings[0].error or "")


def test_a_time_that_is_no_number_spoils_no_pace() -> None:
    """What is known of a function is shared by all workers."""
    pace = Pace()
    pace.note(0.5)
    pace.note(math.nan)
    assert pace.seconds == 0.5
    pace.note(math.inf)
    pace.note(0.25)
    assert pace.seconds == 0.25


@pytest.mark.parametrize("written", [math.nan, math.inf, 1e300])
def test_a_start_that_is_no_time_moves_no_deadline(written: float) -> None:
    """A call that was sent ahead, and its worker says that it began never, or in a thousand years."""
    bench = busy(2, timeout=60.0)
    first, second = bench.all
    assert bench.pool.busy[0].ahead[0] is second
    bench.worker.page[protocol.STARTED] = second.number
    bench.worker.times[protocol.STARTED_AT] = written
    bench.write(answer())
    assert bench.worker.call is second
    assert bench.worker.hard_at < math.inf
    assert first.endings[0].outcome is Outcome.SUCCEEDED
    bench.end()


def test_half_a_token_ends_that_worker() -> None:
    """What is left in the pipe is no row of tokens: who recalls them gets an answer, and the worker is ended."""
    bench = busy(3)
    os.write(bench.worker.tokens.writer, b"abc")
    bench.pool.recall()
    bench.turn()
    assert bench.worker.state is WorkerState.DYING
    bench.end()
    assert bench.all[0].endings[0].error == "the run wrote into the worker's tokens"


def test_who_waits_behind_a_broken_token_is_not_to_blame() -> None:
    """A call that the worker has not begun, and cannot begin without its token, is given to another worker."""
    bench = busy(3)
    first, second, third = bench.all
    os.read(bench.worker.tokens.reader, 4)  # of the second's
    bench.write(answer())
    assert bench.worker.call is second
    bench.pool.recall()
    bench.turn()
    assert bench.worker.state is WorkerState.DYING
    bench.end()
    assert first.endings[0].outcome is Outcome.SUCCEEDED
    assert not second.endings
    assert not third.endings


def test_a_token_that_was_put_back_starts_nothing_twice() -> None:
    """The worker says that it has begun the call: that is believed, whatever is in the pipe."""
    bench = busy(3)
    second = bench.all[1]
    bench.worker.page[protocol.STARTED] = second.number
    bench.pool.recall()
    assert second not in bench.waiting
    assert second.starts == 1
    bench.end()


@pytest.mark.parametrize("data", [b"abc", b"/" + wire.TOKEN.pack(wire.TOKEN_MARK, 1), bytes(10)])
def test_a_worker_that_finds_no_token_where_one_should_be_ends(data: bytes) -> None:
    """To go on would mean to begin none of the calls that come, and their owner would wait for ever."""
    reader, writer = os.pipe()
    worker = ChildWorker.__new__(ChildWorker)
    worker.token, worker.token_fd = 0, reader
    try:
        os.write(writer, data)
        with pytest.raises(wire.WireError):
            worker.has_token(1)
    finally:
        os.close(reader)
        os.close(writer)


def test_what_a_helper_says_is_known() -> None:
    """Of the messages for the fuzzer the first of each kind is right, and no other."""
    right = [message for message in MESSAGES if is_message(message, 0)]
    assert right == [MESSAGES[index] for index in (0, 1, 5, 8, 10, 12)]
    assert is_message(("spawned", 1, 77, False), 1)
    assert not is_message(("spawned", 1, 77), 1)
    assert is_message(("hello", 5), 1)
    assert not is_message(("pong", 5), 1)
    assert not is_message(("hello", 0), 0)


@pytest.mark.parametrize("data", [b"\x03\0\0\0abc", b"\xff\xff\xff\xff", b"\x03\0\0\0K\x01."])
def test_what_came_before_a_broken_message_counts(data: bytes) -> None:
    """It is returned, and the broken one is the end: who wrote that is not to be understood."""
    ours, theirs = socket.socketpair()
    control = Control(ours)
    theirs.sendall(Control.encode("good") + data)
    assert control.receive_available() == [("good", []), (None, [])]
    theirs.close()
    control.forget()


def test_a_parcel_that_announces_more_than_it_has_is_refused() -> None:
    """A pickle of gigabytes is read as a file; at the end of what there is, that waited for the rest for ever."""
    memory = (
        _parcels.HEAD.pack(_parcels.MAGIC, 1 << 40, 0) + b"cos"
    )  # a name, which ends with a line that never comes
    with pytest.raises(wire.pickle.UnpicklingError, match="announces"):
        _parcels.load(bytearray(memory))


# --- real processes -----------------------------------------------------------------------------------------------

pieces = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=300),
        st.builds(
            lambda kind, number, flags, payload, meta: frame(
                kind, number=number, flags=flags, payload=payload, meta=meta
            ),
            st.sampled_from([wire.DONE, wire.RAISED, wire.PROGRESS, wire.READY, wire.START_FAILED, 77]),
            st.integers(0, 6),
            st.integers(0, 255),
            st.binary(max_size=50),
            st.binary(max_size=30),
        ),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
def test_a_worker_that_writes_anything_harms_nobody(tmp_path: Path) -> None:
    """Into each of its descriptors, and hangs, returns or exits: one record, and all others go on."""
    with Bench(tmp_path, 2) as bench, bench.innocent():

        @settings(max_examples=max(20, EXAMPLES // 5), suppress_health_check=list(HealthCheck))
        @given(st.integers(0, 3), pieces, st.sampled_from(["hang", "return", "exit"]))
        def check(which: int, data: list[bytes], then: str) -> None:
            # With its output captured nothing is sent ahead behind it, which that very worker might have begun.
            options = {"timeout": 0.2, "capture_output": True}
            future = bench.submit(faults.write_bytes, which, data, bench.path(), then, **options)
            behind = [bench.submit(faults.add, n, 1) for n in range(3)]
            future.wait_record(support.TIMEOUT)
            assert len(future.records) == 1
            assert [each.result(support.TIMEOUT) for each in behind] == [1, 2, 3]
            bench.forget()

        check()
    assert not support.children()


@pytest.mark.slow
@pytest.mark.parametrize("data", [b"garbage that is no message at all", b"\x03\0\0\0abc"])
def test_a_preload_that_writes_to_the_helpers_socket_is_told(tmp_path: Path, data: bytes) -> None:
    """It ends that helper; as it happens each time, those who wait are told that none will come, and of `preload=`."""
    (tmp_path / "writes_where_it_should_not.py").write_text(f"import os\nos.write(3, {data!r})\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with Bench(tmp_path, 1, preload=["writes_where_it_should_not"]) as bench:
            future = bench.submit(faults.add, 1, 1)
            error = str(future.exception(support.TIMEOUT))
    assert "before it was ready" in error
    assert "preload=" in error
