"""What is the worker's own stays so: a run that takes its descriptors for its own harms no other, nor the parent."""

from __future__ import annotations

import faulthandler
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procsched import Outcome, _system
from procsched.child.protocol import DUMP_SIGNAL, PAGE_SIZE
from procsched.child.surroundings import HIGH_FD
from procsched.child.worker import WORTH_ASKING
from procsched.workers.pages import Pages
from tests import faults, support
from tests.pools import Bench, only_record


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1, preload=["tests.process.test_own_descriptors"]) as it:
        yield it


def descriptors() -> dict[int, str]:
    """Return what this process has open."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # that of the directory itself
            continue
    return found


def take_a_while() -> None:
    """Run for long enough to be asked what it has used."""
    end = time.monotonic() + WORTH_ASKING
    while time.monotonic() <= end:
        pass


def close_all() -> str:
    """Close what is not one of the standard three, as programs do that become daemons."""
    os.closerange(3, HIGH_FD)
    take_a_while()
    return "returned"


def close_and_write(directory: str) -> list[str]:
    """Do the same, and write into files that get the numbers which are free then."""
    os.closerange(3, HIGH_FD)
    written = []
    for number in range(8):
        path = os.path.join(directory, str(number))
        with open(os.open(path, os.O_CREAT | os.O_WRONLY), "w", closefd=False) as file:
            file.write("hello")
        written.append(path)
    take_a_while()
    return written


def test_a_run_finds_no_descriptor_of_the_pools_among_its_own(bench: Bench) -> None:
    """Below the numbers of ours there are the standard three; the memory of other workers is not there at all."""
    found = bench.submit(descriptors).result(support.TIMEOUT)
    assert {fd for fd in found if fd < HIGH_FD} <= {0, 1, 2}
    assert not [target for target in found.values() if "memfd" in target or "procsched" in target]


def test_a_run_that_closes_what_it_finds_returns(bench: Bench) -> None:
    """It has closed nothing of ours: its result arrives, and its worker goes on."""
    pids = set()
    for _ in range(2):
        future = bench.submit(close_all)
        assert future.result(support.TIMEOUT) == "returned"
        pids.add(only_record(future, Outcome.SUCCEEDED).pid)
    assert len(pids) == 1


def test_nothing_of_ours_is_written_into_what_a_run_has_opened(bench: Bench, tmp_path: Path) -> None:
    """Whatever numbers its files have got."""
    paths = bench.submit(close_and_write, str(tmp_path)).result(support.TIMEOUT)
    bench.submit(take_a_while).result(support.TIMEOUT)
    assert [Path(path).read_text(encoding="utf-8") for path in paths] == ["hello"] * 8


@pytest.mark.skipif(not _system.offers("memfd"), reason="a file without a name cannot be sealed")
def test_the_shared_memory_cannot_be_taken_from_under_the_parent() -> None:
    """Whoever looked at memory that is gone would die of SIGBUS."""
    pages = Pages(2)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(pages.fd, 0)
        assert os.fstat(pages.fd).st_size == 2 * PAGE_SIZE
    finally:
        pages.close()


def dump_later() -> None:
    """Have the process ended by a thread that Python knows nothing of."""
    faulthandler.dump_traceback_later(600, exit=True)


def threads() -> int:
    """Return how many threads the kernel sees."""
    return len(os.listdir("/proc/self/task"))


def patch_clock() -> None:
    """Put another clock in the place of the module's, as libraries for tests do, and leave it there."""
    time.monotonic = lambda: 1e18  # type: ignore[assignment]


def test_a_dump_that_a_run_has_asked_for_does_not_come_in_the_next(bench: Bench) -> None:
    """The timer of faulthandler ends with its run."""
    bench.submit(dump_later).result(support.TIMEOUT)
    # The thread says that it is done a moment before the kernel has it no more.
    support.eventually(
        lambda: bench.submit(threads).result(support.TIMEOUT) == 1, what="its timer's thread is gone"
    )


def disable_faulthandler() -> None:
    """As test runners do when they end."""
    faulthandler.disable()
    take_a_while()


def enable_faulthandler() -> None:
    """As programs do when they begin."""
    faulthandler.enable()
    take_a_while()


def unregister_dumps() -> None:
    """Take a signal that is not its own."""
    faulthandler.unregister(DUMP_SIGNAL)
    take_a_while()


@pytest.mark.parametrize("take", [disable_faulthandler, enable_faulthandler, unregister_dumps])
def test_a_run_that_uses_faulthandler_takes_no_stack_from_others(
    bench: Bench, take: Callable[[], None]
) -> None:
    """What crashes, or hangs, in the same worker later shows where."""
    for _ in support.looks(support.TIMEOUT):  # a spare may get in between
        taking = bench.submit(take)
        taking.result(support.TIMEOUT)
        if take is unregister_dumps:
            record = only_record(bench.submit(faults.nap, faults.FOREVER, timeout=0.1), Outcome.TIMED_OUT)
        else:
            record = only_record(bench.submit(faults.segfault), Outcome.CRASHED)
        if record.pid == only_record(taking, Outcome.SUCCEEDED).pid:
            break
    assert record.pid == only_record(taking, Outcome.SUCCEEDED).pid
    assert record.stack is not None
    assert "faults.py" in record.stack


def test_a_clock_that_a_run_has_patched_does_not_count(bench: Bench) -> None:
    """How long the next run takes is measured by the real one."""
    bench.submit(patch_clock).result(support.TIMEOUT)
    future = bench.submit(abs, -1, timeout=support.TIMEOUT)
    assert future.result(support.TIMEOUT) == 1
    assert only_record(future, Outcome.SUCCEEDED).duration < 1e6
