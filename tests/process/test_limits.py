"""Limits of memory, CPU time, processes, files, output and result: each ends its own run, and harms no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    LimitExceededError,
    Limits,
    Outcome,
)
from tests import hungry, support
from tests.hungry import MIB
from tests.pools import Bench

needs_proc = pytest.mark.needs("proc", "what a tree of processes uses is known")


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1, preload=("tests.faults", "tests.hungry")) as bench:
        yield bench


def ended(bench: Bench, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the record of a call that has ended, after a look at whether the next one is unharmed."""
    future = bench.submit(function, *args, **options)
    record = future.wait_record(support.TIMEOUT)
    assert record is not None
    bench.assert_usable()
    return record


EXCEEDING = {
    "memory": (Limits(memory=48 * MIB), hungry.touch, (200 * MIB,), "48 MiB"),
    "cpu": (Limits(cpu_seconds=0.2), hungry.burn, (30.0,), "0.2 s"),
    "cpu in C": (Limits(cpu_seconds=0.2), hungry.burn_without_answer, (), "0.2 s"),
    "cpu below": (Limits(cpu_seconds=0.3), hungry.burn_below, (60.0,), "0.3 s"),
    "output": (Limits(output=2000), hungry.speak, (3000,), "1.953 KiB"),
    "output without end": (Limits(output=100_000), hungry.speak_without_end, (), "97.66 KiB"),
    "output below": (Limits(output=2000), hungry.speak_below, (3000,), "1.953 KiB"),
    "result": (Limits(result=1000), hungry.answer, (2000,), "1000 bytes"),
    "large result": (Limits(result=2 * MIB), hungry.answer, (4 * MIB,), "2 MiB"),
    "result of a coroutine": (Limits(result=1000), hungry.answer_later, (2000,), "1000 bytes"),
}
KEEPING = {
    "memory": (Limits(memory=200 * MIB), hungry.touch, (20 * MIB,)),
    "address space": (Limits(memory=48 * MIB), hungry.reserve, (1 << 30,)),
    "cpu": (Limits(cpu_seconds=20.0), hungry.burn, (0.05,)),
    "processes": (Limits(processes=2), hungry.start_one_after_another, (5,)),
    "open_files": (Limits(open_files=64), hungry.open_files, (5,)),
    "open_files at the limit": (Limits(open_files=64), hungry.open_as_many_as_possible, ()),
    "file_size": (Limits(file_size=MIB), hungry.write_file, (1000,)),
    "output": (Limits(output=2000), hungry.speak, (2000,)),
    "result": (Limits(result=1000), hungry.answer, (900,)),
}


@needs_proc
@pytest.mark.parametrize("name", EXCEEDING)
def test_more_than_a_limit_ends_the_run(single: Bench, name: str) -> None:
    """The outcome, the limit's name and value, what was used; the exception that says the same; and the next run."""
    limits, function, args, value = EXCEEDING[name]
    field = {"cpu": "cpu_seconds", "large": "result"}.get(name.split()[0], name.split()[0])
    future = single.submit(function, *args, limits=limits, timeout=100.0)
    with pytest.raises(LimitExceededError) as caught:
        future.result(support.TIMEOUT)
    record = future.wait_record(support.TIMEOUT)
    assert record is not None
    assert record.outcome is Outcome.LIMIT_EXCEEDED, record
    assert not record.ok
    assert record.error is not None
    assert record.error.startswith(f"exceeded its {field} limit of {value}"), record.error
    assert record.limit == caught.value.limit == f"{field}={getattr(limits, field)}"
    assert record.pid == caught.value.pid
    assert single.submit(hungry.soft_limits).result(support.TIMEOUT) == hungry.soft_limits()
    single.assert_usable()


@needs_proc
@pytest.mark.parametrize("name", KEEPING)
def test_less_than_a_limit_harms_nobody(single: Bench, name: str) -> None:
    """The run succeeds, and its worker goes on as it was."""
    limits, function, args = KEEPING[name]
    before = single.submit(hungry.pid_and_limits).result(support.TIMEOUT)
    record = ended(single, function, *args, limits=limits)
    assert record.outcome is Outcome.SUCCEEDED, record
    assert record.limit is None
    assert single.submit(hungry.pid_and_limits).result(support.TIMEOUT) == before
