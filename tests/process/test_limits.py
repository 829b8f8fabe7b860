"""Limits of memory, CPU time, processes, files, output and result: each ends its own run, and harms no other."""

from __future__ import annotations

import errno
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    InlinePool,
    LimitExceededError,
    Limits,
    OneTime,
    Outcome,
    ProcessExecutor,
    ProcessPool,
    RetryPolicy,
    Sandbox,
    Scheduler,
    TaskStatus,
    ThreadPool,
    ValidationError,
    _system,
    killable,
    run,
    shutdown_shared,
)
from procsched.workers import limiting
from tests import faults, hungry, support
from tests.hungry import MIB
from tests.pools import Bench, only_record, open_gate

PATIENCE = 6 * support.TIMEOUT  # seconds: what is to use CPU time may get little of it
needs_proc = pytest.mark.needs("proc", "what a tree of processes uses is known")


@pytest.fixture
def single(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1, preload=("tests.faults", "tests.hungry")) as bench:
        yield bench


def ended(bench: Bench, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Return the record of a call that has ended, after a look at whether the next one is unharmed."""
    future = bench.submit(function, *args, **options)
    record = future.wait_record(PATIENCE)
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
    "open_files": (Limits(open_files=32), hungry.open_files, (100,), "32"),
    "file_size": (Limits(file_size=1000), hungry.write_file, (5000,), "1000 bytes"),
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
        future.result(PATIENCE)
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


SPEAKING = {
    "returns": (hungry.speak, Outcome.SUCCEEDED),
    "raises": (hungry.speak_and_fail, Outcome.FAILED),
    "dies": (hungry.speak_and_die, Outcome.CRASHED),
    "exceeds": (hungry.speak_twice, Outcome.LIMIT_EXCEEDED),
}


@pytest.mark.parametrize("name", SPEAKING)
def test_output_that_is_limited_is_kept(single: Bench, name: str) -> None:
    """However the run ends, for it goes nowhere else; and that of the next run goes where it should."""
    function, outcome = SPEAKING[name]
    record = ended(single, function, 1500, limits=Limits(output=2000))
    assert record.outcome is outcome, record
    assert record.output is not None
    assert record.output.startswith("x" * 1499 + "\n")
    assert not record.output_truncated
    assert only_record(single.submit(hungry.soft_limits), Outcome.SUCCEEDED).output is None


def test_output_that_a_pool_limits_is_kept(tmp_path: Path) -> None:
    """By the pool itself, and by a task of a scheduler."""
    with Scheduler(pool=ProcessPool(1, limits=Limits(output=2000))) as scheduler:
        task = scheduler.schedule_after(hungry.speak, 0, args=(5,))
        assert scheduler.wait(task, support.TIMEOUT).output == "xxxx\n"
    with Scheduler(pool=ProcessPool(1)) as scheduler:
        task = scheduler.schedule_after(hungry.speak, 0, args=(5,), limits=Limits(output=2000))
        assert scheduler.wait(task, support.TIMEOUT).output == "xxxx\n"


# --- the tree -----------------------------------------------------------------------------------------------


@needs_proc
def test_memory_below_counts_also_where_it_has_left_the_session(single: Bench) -> None:
    """What a run has started is a part of it, and goes with it."""
    told = single.path("told")
    record = ended(single, hungry.hold_below, 150 * MIB, told, limits=Limits(memory=100 * MIB))
    assert record.limit == f"memory={100 * MIB}", record
    assert record.peak_rss > 100 * MIB


@needs_proc
def test_the_grace_is_no_leave_to_use_more(single: Bench) -> None:
    """A run that was asked to stop, and has its grace, is killed where it exceeds a limit; its outcome stands."""
    limits = Limits(memory=60 * MIB)
    record = ended(single, hungry.eat_when_asked, 200 * MIB, timeout=0.5, grace=90.0, limits=limits)
    assert record.outcome is Outcome.TIMED_OUT, record
    assert record.limit is None


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with each look at a run: by the number of its processes."""
    found: list[int] = []
    asked = _system.tree_usage

    def look(pid: int) -> _system.TreeUsage:
        usage = asked(pid)
        found.append(usage.processes)
        return usage

    monkeypatch.setattr(_system, "tree_usage", look)
    return found


@needs_proc
def test_what_forks_share_counts_once(single: Bench, looks: list[int]) -> None:
    """Four forks of a process of 60 MiB have not 300 MiB together."""
    gate = single.gate()
    limits = Limits(memory=150 * MIB)
    future = single.submit(hungry.share_with_forks, 60 * MIB, 4, gate, limits=limits)
    support.eventually(lambda: looks.count(5) >= 3 or future.done(), PATIENCE)
    assert not future.done(), future.wait_record(support.TIMEOUT)
    open_gate(gate)
    assert future.result(support.TIMEOUT) == 4
    single.assert_usable()


@needs_proc
def test_too_many_processes_end_with_the_run(single: Bench) -> None:
    """The run is ended, and none of them is left."""
    told = single.path("told")
    future = single.submit(hungry.start_many, 6, told, limits=Limits(processes=4))
    record = future.wait_record(support.TIMEOUT)
    assert record is not None
    assert record.limit == "processes=4", record
    assert record.error is not None
    assert record.error.startswith("exceeded its processes limit of 4 (it had ")
    single.assert_usable()


# --- whose memory and time it is ----------------------------------------------------------------------------


@needs_proc
def test_memory_of_an_earlier_run_is_not_this_ones(single: Bench) -> None:
    """What a worker has kept is not counted for the next run in it."""
    kept = single.submit(hungry.keep, 120 * MIB).result(support.TIMEOUT)
    future = single.submit(hungry.touch, 10 * MIB, limits=Limits(memory=60 * MIB))
    assert future.result(support.TIMEOUT) == 10 * MIB
    assert future.record is not None
    assert future.record.pid == kept


@needs_proc
@pytest.mark.parametrize("function", [faults.nap, faults.kill_itself], ids=["returns", "dies"])
def test_cpu_time_of_short_runs_is_not_that_of_the_long_one_behind_them(
    single: Bench, function: Callable[..., Any]
) -> None:
    """Runs that are too short to be asked for their CPU time do not add up in a later record."""
    futures = [single.submit(hungry.burn, 0.0002) for _ in range(1000)]
    used = sum(future.result(PATIENCE) for future in futures)
    last = single.submit(function, *((0.02,) if function is faults.nap else ()))
    record = last.wait_record(support.TIMEOUT)
    assert record is not None
    assert record.cpu_seconds is not None
    assert record.cpu_seconds < used / 2, (record, used)


@needs_proc
def test_the_peak_is_of_the_run_alone(single: Bench) -> None:
    """A run that had much memory, and gave it back, does not show in the next record."""
    assert single.submit(hungry.touch, 150 * MIB).result(support.TIMEOUT)
    future = single.submit(hungry.burn, 0.01, limits=Limits(memory=60 * MIB))
    future.result(support.TIMEOUT)
    assert future.record is not None
    assert future.record.peak_rss is not None
    assert future.record.peak_rss < 100 * MIB


# --- who notices --------------------------------------------------------------------------------------------


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody look at runs while they go on."""
    monkeypatch.setattr(limiting, "LEAST_WAIT", 10_000.0)


@needs_proc
@pytest.mark.usefixtures("unseen")
def test_memory_that_nobody_saw_counts_at_the_end(single: Bench) -> None:
    """The worker's own count decides, and that worker, which may keep the memory, is not used again."""
    before = single.submit(os.getpid).result(support.TIMEOUT)
    record = ended(single, hungry.touch, 80 * MIB, limits=Limits(memory=40 * MIB))
    assert record.limit == f"memory={40 * MIB}", record
    assert record.pid == before
    assert single.submit(os.getpid).result(support.TIMEOUT) != before


@pytest.mark.usefixtures("unseen")
def test_cpu_time_that_nobody_saw_counts_at_the_end(single: Bench) -> None:
    """A run that comes back by itself has exceeded its limit all the same."""
    record = ended(single, hungry.burn, 0.15, limits=Limits(cpu_seconds=0.05))
    assert record.limit == "cpu_seconds=0.05", record
    assert record.cpu_seconds >= 0.15


@pytest.mark.slow
@pytest.mark.usefixtures("unseen")
def test_the_kernel_ends_a_run_that_nobody_sees(single: Bench) -> None:
    """SIGXCPU is the verdict where the CPU time says the same."""
    record = ended(single, hungry.burn_without_answer, limits=Limits(cpu_seconds=0.2))
    assert (record.outcome, record.limit, record.signal) == (
        Outcome.LIMIT_EXCEEDED,
        "cpu_seconds=0.2",
        "SIGXCPU",
    ), record


def test_what_a_look_has_found_too_late_does_not_count(single: Bench) -> None:
    """An answer that had come by then wins, and its record names no limit."""
    gate, told = single.gate(), single.path("told")
    future = single.submit(faults.wait_at_gate, gate, told, limits=Limits(memory=MIB << 10))
    support.wait_for_file(told)
    (watch,) = [each for each in single.core.pool.loop.alarms if isinstance(each, limiting.Watch)]
    watch._exceed("memory", 5)
    open_gate(gate)
    assert future.result(support.TIMEOUT) == "through"
    assert future.record is not None
    assert future.record.limit is None


def test_another_sigxcpu_is_a_crash(single: Bench) -> None:
    """A signal alone is no proof."""
    record = ended(single, faults.kill_itself, signal.SIGXCPU, limits=Limits(cpu_seconds=100))
    assert (record.outcome, record.limit) == (Outcome.CRASHED, None), record


@needs_proc
def test_nobody_looks_where_no_such_run_is_alive(single: Bench, looks: list[int]) -> None:
    """Neither at runs without limits, nor at those whose limits others hold, nor after the end of one that was."""
    held = Limits(output=1000, result=1000, open_files=64, file_size=1000)
    watched = Limits(memory=200 * MIB)
    for limits in (None, held, watched, held, None):
        before = len(looks)
        began = time.monotonic()
        gate, told = single.gate(), single.path("told")
        future = single.submit(faults.wait_at_gate, gate, told, limits=limits)
        support.wait_for_file(told)
        if limits is watched:
            support.eventually(lambda before=before: len(looks) >= before + 3)
        else:
            assert planned_looks(single) == []
        open_gate(gate)
        future.result(support.TIMEOUT)
        assert planned_looks(single) == []
        most = (time.monotonic() - began) / limiting.LEAST_WAIT if limits is watched else 0
        assert len(looks) - before <= most


def planned_looks(bench: Bench) -> list[float]:
    """Return when the pool is to look at a run."""
    watches = [each for each in tuple(bench.core.pool.loop.alarms) if isinstance(each, limiting.Watch)]
    alarms = [each.alarm for each in watches]
    return [alarm for alarm in alarms if alarm != math.inf]


# --- what the kernel refuses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "function", "count", "number", "words"),
    [
        (Limits(open_files=32), hungry.open_files, 100, errno.EMFILE, "its open_files limit is 32"),
        (Limits(file_size=1000), hungry.write_file, 5000, errno.EFBIG, "its file_size limit is 1000 bytes"),
    ],
    ids=["open_files", "file_size"],
)
def test_what_the_kernel_refuses_is_the_cause(
    single: Bench, limits: Limits, function: Callable[[int], Any], count: int, number: int, words: str
) -> None:
    """The error that the action got, with where it got it; the worker goes on as it was."""
    before = single.submit(hungry.pid_and_limits).result(support.TIMEOUT)
    future = single.submit(function, count, limits=limits)
    error = future.exception(support.TIMEOUT)
    assert type(error) is LimitExceededError
    cause = error.__cause__
    assert isinstance(cause, OSError)
    assert cause.errno == number
    assert words in cause.__notes__
    assert function.__name__ in (only_record(future, Outcome.LIMIT_EXCEEDED).traceback or "")
    assert single.submit(hungry.pid_and_limits).result(support.TIMEOUT) == before


@needs_proc
def test_memory_that_the_system_has_not_is_the_runs_own_error(single: Bench) -> None:
    """FAILED, with the limit that was set in the error and as a note, for it may have other reasons."""
    before = single.submit(hungry.pid_and_limits).result(support.TIMEOUT)
    future = single.submit(hungry.ask_for_too_much, limits=Limits(memory=64 * MIB))
    with pytest.raises(MemoryError) as caught:
        future.result(support.TIMEOUT)
    words = "its memory limit is 64 MiB"
    assert words in caught.value.__notes__
    record = only_record(future, Outcome.FAILED)
    assert record.limit is None
    assert words in (record.error or "")
    assert single.submit(hungry.pid_and_limits).result(support.TIMEOUT) == before


def test_limits_that_cannot_be_put_back_cost_the_worker(single: Bench) -> None:
    """What a run did to its hard limits does not reach the next one."""
    before = single.submit(hungry.pid_and_limits).result(support.TIMEOUT)
    single.submit(hungry.lower_for_good, limits=Limits(file_size=1000)).result(support.TIMEOUT)
    after = single.submit(hungry.pid_and_limits).result(support.TIMEOUT)
    assert after[0] != before[0]
    assert after[1] == before[1]


# --- each face ----------------------------------------------------------------------------------------------


def test_the_tighter_limit_holds(tmp_path: Path) -> None:
    """Of pool and call, field by field, also where the call says None."""
    with Bench(tmp_path, 1, limits=Limits(result=1000, output=5000)) as bench:
        tight = bench.submit(hungry.answer, 500, limits=Limits(result=100)).wait_record(support.TIMEOUT)
        loose = bench.submit(hungry.answer, 2000, limits=Limits(result=10_000)).wait_record(support.TIMEOUT)
        none = bench.submit(hungry.answer, 2000, limits=None).wait_record(support.TIMEOUT)
        other = bench.submit(hungry.speak, 6000, limits=Limits(result=10_000)).wait_record(support.TIMEOUT)
        assert [each and each.limit for each in (tight, loose, none, other)] == [
            "result=100",
            "result=1000",
            "result=1000",
            "output=5000",
        ]


def test_limits_hold_for_their_own_call_among_many(single: Bench) -> None:
    """Calls that follow one another closely, and are sent ahead, have no limit of a neighbour's."""
    futures = [
        single.submit(hungry.answer, 500, **({"limits": Limits(result=100)} if number % 50 == 7 else {}))
        for number in range(400)
    ]
    records = [future.wait_record(support.TIMEOUT) for future in futures]
    wrong = [number for number, record in enumerate(records) if record and record.limit]
    assert wrong == list(range(7, 400, 50))


def test_limits_hold_for_their_own_task_among_many() -> None:
    """Tasks that are due at once, and whose calls are sent ahead, have no limit of a neighbour's."""
    with Scheduler(pool=ProcessPool(1)) as scheduler:
        tasks = [
            scheduler.schedule(
                f"t{number}",
                hungry.answer,
                OneTime(0.0),
                args=(500,),
                limits=Limits(result=100) if number % 50 == 7 else None,
                retry=NO_RETRY,
            )
            for number in range(300)
        ]
        assert scheduler.wait_idle(PATIENCE)
        limited = [number for number, task in enumerate(tasks) if task.status is TaskStatus.FAILED]
        assert limited == list(range(7, 300, 50))


def test_each_item_of_a_map_has_its_limit(tmp_path: Path) -> None:
    """Also inside a chunk, and where the limit is the pool's."""
    limits: dict[str, Any] = {"limits": Limits(result=1000)}
    for options, view in (({}, limits), (limits, {}), (limits, {"limits": None})):
        with ProcessExecutor(1, **options) as executor:  # type: ignore[arg-type]
            sizes = executor.options(**view).map(hungry.answer, [10, 2000, 10], chunksize=3)  # type: ignore[arg-type]
            assert len(next(sizes)) == 10
            with pytest.raises(LimitExceededError):
                next(sizes)


def test_a_task_that_exceeds_a_limit_is_tried_again(tmp_path: Path) -> None:
    """By its retry policy; each attempt leaves a record."""
    with Scheduler(pool=ProcessPool(1, limits=Limits(output=100))) as scheduler:
        again = RetryPolicy(2, 0.01)
        for limits, expected in ((Limits(result=100), "result=100"), (None, "output=100")):
            action, args = (hungry.answer, (500,)) if limits else (hungry.speak, (500,))
            task = scheduler.schedule("t", action, OneTime(0.0), args=args, limits=limits, retry=again)
            support.eventually(lambda task=task: task.status is TaskStatus.FAILED)
            assert [record.limit for record in task.history] == [expected] * 2
            assert {record.outcome for record in task.history} == {Outcome.LIMIT_EXCEEDED}


def test_run_and_killable_have_limits() -> None:
    """And the shared pool behind them is as it was."""
    try:
        with pytest.raises(LimitExceededError, match="result limit of 100 bytes"):
            run(hungry.answer, 500, limits=Limits(result=100))
        limited = killable(limits=Limits(result=100))(hungry.answer)
        with pytest.raises(LimitExceededError, match="result limit of 100 bytes"):
            limited(500)
        assert run(hungry.soft_limits) == hungry.soft_limits()
    finally:
        shutdown_shared()


@pytest.mark.parametrize("pool", [ThreadPool(1), InlinePool()], ids=["threads", "inline"])
def test_a_pool_in_this_process_refuses_limits(pool: Any) -> None:
    """It could hold none of them."""
    scheduler = Scheduler(pool=pool)
    with pytest.raises(ValidationError, match="limits cannot be held by"):
        scheduler.schedule("t", faults.nap, OneTime(0.0), limits=Limits(memory=MIB))
    scheduler.shutdown()


def test_limits_and_a_sandbox_do_not_mix() -> None:
    """A sandbox has limits of its own."""
    with pytest.raises(ValidationError, match="limits cannot be given"):
        ProcessPool(1, limits=Limits(memory=MIB), sandbox=Sandbox())
    with pytest.raises(ValidationError, match="limits cannot be given"):
        ProcessExecutor(1, timeout=5, limits=Limits(memory=MIB), sandbox=Sandbox())


@pytest.mark.parametrize("field", ["memory", "processes"])
def test_what_nobody_can_count_here_is_refused(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no /proc; the others hold."""
    monkeypatch.setattr(_system, "offers", lambda feature: feature != "proc")
    limits = Limits(**{field: MIB})
    with pytest.raises(ValidationError, match=f"{field} cannot be limited on this system"):
        ProcessPool(1, limits=limits)
    with pytest.raises(ValidationError, match=f"{field} cannot be limited on this system"):
        ProcessExecutor(1).options(limits=limits)
    ProcessPool(1, limits=Limits(cpu_seconds=1, open_files=20, file_size=1, output=1, result=1))
