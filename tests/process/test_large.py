"""Large arguments and results: how they arrive, and that nothing is left of them, whoever dies."""

from __future__ import annotations

import functools
import gc
import os
import pickle
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import Outcome, RemoteError, RetryPolicy, Scheduler
from procsched._core.models import Dropped
from tests import large, support
from tests.large import MEGABYTE
from tests.pools import Bench, Parent, only_record, open_gate, told_pids

np = pytest.importorskip("numpy")


@pytest.fixture(params=["memfd", "in band"])
def bench(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Two workers, with and without memory that can be shared."""
    if request.param == "in band":
        monkeypatch.setenv("PROCSCHED_WITHOUT", "memfd")
    with Bench(tmp_path, 2, preload=("tests.faults", "tests.large", "numpy")) as it:
        yield it


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Bench]:
    """Two workers with memory that is shared."""
    with Bench(tmp_path, 2, preload=("tests.faults", "tests.large", "numpy")) as it:
        yield it


def values() -> dict[str, Any]:
    """Return large values of every kind that treats its memory in a way of its own."""
    array = np.arange(100_000.0)
    frozen = array.copy()
    frozen.flags.writeable = False
    table = np.zeros(30_000, [("id", "<i8"), ("name", "S16")])
    table["id"] = np.arange(30_000)
    return {
        "array": array,
        "read-only": frozen,
        "from bytes": np.frombuffer(bytes(800_000), np.int32),
        "matrix": array.reshape(100, 1000),
        "Fortran": np.asfortranarray(array.reshape(100, 1000)),
        "small Fortran": np.asfortranarray(array[:20_000].reshape(100, 200)),
        "transposed": array.reshape(10, 100, 100).transpose(2, 0, 1),
        "every second": array[::2],
        "backwards": array[::-1],
        "part": array.reshape(1000, 100)[:, :50],
        "none": array[:0],
        "none of many": np.zeros((0, 1000)),
        "scalar": np.array(1.5),
        "structured": table,
        "record": table.view(np.recarray),
        "objects": np.array([array, "text", None, 3], dtype=object),
        "big-endian": array.astype(">f4"),
        "dates": np.arange(100_000).astype("M8[s]"),
        "masked": np.ma.masked_greater(array, 5.0),
        "bytes": bytes(range(256)) * 4000,
        "bytearray": bytearray(range(256)) * 4000,
        "huge bytes": b"\x00\x01" * (3 * MEGABYTE),
        "str": "añ€𝄞" * 200_000,
        "subclass": large.Text(b"text" * 100_000),
        "of its own": large.Packed(array),
        "of its own, read-only": large.Packed(frozen),
        "nested": {"list": [array, (frozen, b"y" * 400_000)], "again": array, "text": "z" * 70_000},
        "many": [bytes([n % 256]) * 70_000 for n in range(10)],
        "small items": list(range(200_000)),
    }


VALUES = values()


@pytest.mark.parametrize("name", VALUES)
def test_it_arrives_as_plain_pickle_would_give_it(bench: Bench, name: str) -> None:
    """Types, contents, memory order and whether it can be written into: the same, as argument and as result."""
    value = VALUES[name]
    plain = large.facts(pickle.loads(pickle.dumps(value, 5)))
    argument = bench.submit(large.facts, value)
    result = bench.submit(large.echo, value)
    assert argument.result(support.TIMEOUT) == plain
    assert large.facts(result.result(support.TIMEOUT)) == plain


def test_what_is_written_into_an_argument_stays_with_the_attempt(bench: Bench) -> None:
    """Neither the caller's array nor the next attempt sees it, and what the caller writes later comes too late."""
    array = np.zeros(MEGABYTE)
    retry = RetryPolicy(2, initial_backoff=0.01)
    future = bench.submit(large.spoil, array, bench.path(), retry=retry)
    array += 7
    assert future.result(support.TIMEOUT) == (0.0, 1.0)
    assert len(future.records) == 2
    assert array[0] == 7


def test_a_closure_carries_large_data(bench: Bench) -> None:
    """What goes by value goes the same way."""
    array = np.arange(200_000)
    assert bench.submit(lambda: int(array.sum())).result(support.TIMEOUT) == array.sum()
    assert (bench.submit(lambda: array + 1).result(support.TIMEOUT) == array + 1).all()


def test_a_result_is_kept_once(bench: Bench) -> None:
    """The record shares the result with the future, and one may write into it."""
    future = bench.submit(large.zeros, MEGABYTE)
    result = future.result(support.TIMEOUT)
    result[0] = 1
    assert future.record is not None
    assert future.record.result is result


def test_a_record_gives_each_reader_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one reader of a task's result writes into it does not reach the next."""
    for without in ("", "memfd"):
        monkeypatch.setenv("PROCSCHED_WITHOUT", without)
        with Scheduler(1, result_limit=10 * MEGABYTE) as scheduler:
            record = scheduler.wait(
                scheduler.schedule_after(large.echo, 0, args=([np.zeros(MEGABYTE), b"x" * MEGABYTE],)), 30
            )
            for _ in range(3):
                array, text = record.result
                assert array[0] == 0
                assert text == b"x" * MEGABYTE
                array += 1


def test_a_result_over_the_limit_is_dropped(tmp_path: Path) -> None:
    """A record says how large the result was, and no memory is kept for it."""
    with Scheduler(1) as scheduler:
        task = scheduler.schedule_after(large.zeros, 0, args=(30 * MEGABYTE,))
        record = scheduler.wait(task, 30)
        assert isinstance(record.result, Dropped)
        assert 30 * MEGABYTE <= record.result.size < 31 * MEGABYTE
        assert_freed()


def assert_freed() -> None:
    """Fail unless this process has no parcel any more, open or mapped."""
    gc.collect()
    support.eventually(lambda: not large.parcels_open(), what="no parcel is open")
    support.eventually(lambda: not large.parcels_mapped(), what="no parcel is mapped")


@pytest.mark.parametrize("size", [MEGABYTE, 40 * MEGABYTE])
def test_nothing_is_left_of_a_call(shared: Bench, size: int) -> None:
    """Memory and descriptors go with the call, the result's memory with the last array in it."""
    array = np.ones(size, np.uint8)
    futures = [shared.submit(large.echo, array) for _ in range(4)]
    parts = [future.result(support.TIMEOUT)[10:20] for future in futures]
    support.eventually(lambda: not large.parcels_open(), what="no parcel is open")
    del futures
    shared.forget()
    assert [part.sum() for part in parts] == [10] * 4
    support.eventually(lambda: len(large.parcels_mapped()) == 4, what="only the results are mapped")
    del parts
    assert_freed()


def test_nothing_is_left_of_what_was_cancelled_or_late(shared: Bench) -> None:
    """Neither of calls that wait, nor of those that run, nor of answers that nobody wants any more."""
    array = np.ones(MEGABYTE)
    told, gates = shared.path(), [shared.gate(), shared.gate()]
    running = [shared.submit(large.told_size, array, told, gate) for gate in gates]
    support.wait_for_file(told, lines=2)
    waiting = [shared.submit(large.echo, array) for _ in range(5)]
    assert len(large.parcels_open()) == 7
    for future in waiting + running:
        assert future.cancel()
    for future in running:
        future.wait_record(support.TIMEOUT)
    late = [shared.submit(large.echo, array, timeout=0.001 * n) for n in range(1, 20)]
    for future in late:
        future.exception(support.TIMEOUT)
        future.wait_record(support.TIMEOUT)
    del future, late, running, waiting
    shared.forget()
    assert_freed()
    shared.assert_usable()


def test_calls_that_wait_leave_descriptors_for_others(tmp_path: Path) -> None:
    """No more than a quarter of them is held; what waits beyond that travels all the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        with Bench(tmp_path, 1) as bench:
            told, gate = bench.path(), bench.gate()
            bench.submit(large.told_size, b"", told, gate)
            support.wait_for_file(told)
            futures = [bench.submit(large.size_of, b"x" * MEGABYTE, np.ones(MEGABYTE)) for _ in range(80)]
            assert len(large.parcels_open()) == 50
            open_gate(gate)
            assert [future.result(support.TIMEOUT) for future in futures] == [2 * MEGABYTE] * 80
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_result_for_which_no_descriptor_is_left(shared: Bench) -> None:
    """It is said to whoever asks for the result; the worker and the pool are unharmed."""
    told, gate = shared.path(), shared.gate()
    assert shared.submit(large.size_of, b"x" * MEGABYTE).result(support.TIMEOUT) == MEGABYTE
    shared.idle_pair()
    future = shared.submit(large.told_zeros, told, gate)
    support.wait_for_file(told)
    shared.ready_pids(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    writer = os.open(gate, os.O_WRONLY)
    lowest = os.dup(writer)  # and none below it is free
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        os.write(writer, b"go")
        with pytest.raises(RemoteError, match="descriptor"):
            future.result(support.TIMEOUT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(writer)
    shared.assert_usable()
    assert shared.submit(large.size_of, b"x" * MEGABYTE).result(support.TIMEOUT) == MEGABYTE


@pytest.mark.parametrize("blocking", [True, False])
def test_a_run_that_fills_the_way_of_descriptors_delays_nobody(shared: Bench, *, blocking: bool) -> None:
    """Its own large result comes through the other socket, and the next run is as ever."""
    for _ in range(2):
        future = shared.submit(functools.partial(large.fill_parcels, blocking=blocking))
        assert len(future.result(support.TIMEOUT)) == MEGABYTE
    assert shared.submit(large.size_of, b"x" * MEGABYTE).result(support.TIMEOUT) == MEGABYTE
    shared.assert_usable()


# --- whoever dies -----------------------------------------------------------------------------------------------


def test_a_worker_killed_while_it_writes_costs_its_own_call(bench: Bench) -> None:
    """SIGKILL when a third of 300 MB is written: one call CRASHED, nobody else notices."""
    with bench.innocent():
        if os.environ.get("PROCSCHED_WITHOUT"):
            future = bench.submit(large.killed_soon, 300 * MEGABYTE)
        else:
            future = bench.submit(large.killed_while_answering, 300 * MEGABYTE)
        record = only_record(future, Outcome.CRASHED)
        assert record.signal == "SIGKILL"
    bench.assert_usable()
    assert bench.submit(large.size_of, b"x" * MEGABYTE).result(support.TIMEOUT) == MEGABYTE


def test_a_worker_killed_while_it_reads_costs_its_own_call(bench: Bench) -> None:
    """SIGKILL when a third of 300 MB is in its place."""
    killer, data = large.KilledWhileReading(100 * MEGABYTE), b"x" * (300 * MEGABYTE)
    with bench.innocent():
        record = only_record(bench.submit(large.echo, (killer, data)), Outcome.CRASHED)
        assert record.signal == "SIGKILL"
    bench.assert_usable()
    assert bench.submit(large.size_of, data[:MEGABYTE]).result(support.TIMEOUT) == MEGABYTE
    support.eventually(lambda: not large.parcels_open(), what="no parcel is open")


def test_memory_that_could_be_taken_away_is_not_read(shared: Bench) -> None:
    """A worker that shrinks what it has sent ends its own call, and not the parent by SIGBUS."""
    record = only_record(shared.submit(large.answer_unsealed, MEGABYTE), Outcome.CRASHED)
    assert record.error is not None
    assert "not sealed" in record.error
    shared.assert_usable()


DYING = """
import sys
import numpy
from procsched import ProcessExecutor
from tests import large

told, gate, *_ = sys.argv[1:]
executor = ProcessExecutor(2)
array = numpy.ones(100 << 20, numpy.uint8)
result = executor.submit(large.zeros, 100 << 20).result()
for _ in range(5):
    executor.submit(large.told_size, array, told, gate)
executor.submit(large.echo, array).result()
"""


def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    """Neither a process that would hold the memory nor a file in /dev/shm."""
    told, gate = tmp_path / "told", tmp_path / "gate"
    os.mkfifo(gate)
    with Parent(tmp_path, DYING, arguments=(str(told), str(gate))) as parent:
        pids = told_pids(told, lines=2)
        below = support.children()
        maps = [Path(f"/proc/{pid}/maps").read_text("utf-8") for pid in [parent.process.pid, *below]]
        assert any("/memfd:procsched-parcel" in text for text in maps)
        assert not any("/dev/shm" in text for text in maps)
        parent.kill()
        support.assert_gone(*pids, *below)
        support.eventually(lambda: not support.orphans(), what="no process is left")


# --- memory -----------------------------------------------------------------------------------------------------


def peak_growth(begin: int) -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return int(file.read().partition("VmHWM:")[2].split()[0]) * 1024 - begin


def test_memory_of_the_parent(shared: Bench) -> None:
    """No more than a few megabytes for an argument, and no more than the result for a result."""
    size = 100 * MEGABYTE
    array, text = np.ones(size, np.uint8), b"x" * size
    for value in (array, text):  # what is loaded at a first time
        assert shared.submit(large.size_of, value).result(support.TIMEOUT) == size
        assert len(shared.submit(large.echo, value[:MEGABYTE]).result(support.TIMEOUT)) == MEGABYTE
    shared.forget()

    def grown(run: Any) -> float:
        gc.collect()
        with open("/proc/self/clear_refs", "w") as file:  # proc(5): the peak is counted anew
            file.write("5")
        begin = large.resident()
        run()
        shared.forget()
        return peak_growth(begin) / MEGABYTE

    assert grown(lambda: shared.submit(large.size_of, array).result(support.TIMEOUT)) < 10
    assert grown(lambda: shared.submit(large.size_of, text, [text]).result(support.TIMEOUT)) < 10
    assert grown(lambda: shared.submit(large.zeros, size).result(support.TIMEOUT).sum()) < 110
    assert grown(lambda: shared.submit(large.text, size).result(support.TIMEOUT)) < 110


def test_a_gigabyte_needs_no_room_in_dev_shm(shared: Bench) -> None:
    """It travels both ways, and the file system of that name, 64 MB in a container, is as it was."""
    before = os.statvfs("/dev/shm")
    array = np.zeros(1 << 30, np.uint8)
    future = shared.submit(large.echo, array)
    result = future.result(60)
    used = (before.f_bfree - os.statvfs("/dev/shm").f_bfree) * before.f_frsize
    assert used < 64 * MEGABYTE  # others may use it meanwhile, but not for a gigabyte
    assert result.nbytes == 1 << 30
    assert result.flags.writeable
