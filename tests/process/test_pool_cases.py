"""Faults that users met in other pools: one test for each report of cases/pools.md that is not about speed.

The number in a docstring is the row there. Rows that another file tests in full are named at the end.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procsched import Limits, Outcome, TaskTimeoutError, WorkerCrashedError, _system
from procsched.future import ProcessFuture
from procsched.workers.fleet import Fleet
from procsched.workers.process import Worker
from procsched.workers.sending import WorkerState
from tests import faults, ledger, support, unforkable
from tests.pools import ROOT, Bench, guard_pid, helper_pid, only_record, open_gate, told_pids

FULL = bool(os.environ.get("PROCSCHED_FULL_CASES"))
"""Whether the cases have the size of the reports: minutes instead of moments."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 2) as it:
        yield it


def test_a_worker_that_dies_while_it_reads_blocks_nobody(bench: Bench) -> None:
    """Row 1, pebble#163: an argument whose unpickling exits fails its own call; the next answers at once."""
    bad = bench.submit(faults.identity, faults.OnLoad(faults.exit_hard, 9))
    good = bench.submit(pow, 2, 3)
    assert good.result(support.TIMEOUT) == 8
    only_record(bad, Outcome.CRASHED)


@pytest.mark.parametrize("where", ["caller", "another thread"])
def test_cancel_at_any_moment_loses_no_call(bench: Bench, where: str) -> None:
    """Row 2, pebble#153: a cancel that meets the end of its call loses neither that call nor the next."""
    generator = random.Random(153)
    pause = 20.0  # turns of a loop; what has won is given a handicap, so that the other does too
    won = lost = 0
    for _ in range(10_000 if FULL else 150):
        first, second = bench.submit(faults.add, 1, 2), bench.submit(faults.add, 3, 4)

        def cancel(future: ProcessFuture = first, steps: int = int(pause * generator.random() * 2)) -> None:
            for _ in range(steps):
                pass
            future.cancel()

        if where == "caller":
            cancel()
        else:
            thread = threading.Thread(target=cancel)
            thread.start()
            thread.join()
        assert second.result(support.TIMEOUT) == 7
        if not first.cancelled():
            assert first.result(support.TIMEOUT) == 3
            lost += 1
            pause = max(1.0, pause / 1.5)
        else:
            assert [r.outcome for r in first.records] in ([], [Outcome.KILLED], [Outcome.SUCCEEDED])
            won += 1
            pause *= 1.5
    assert won
    assert lost
    bench.executor.shutdown()
    assert not bench.core.open


def test_a_big_argument_to_a_worker_that_is_killed_holds_up_nobody(bench: Bench) -> None:
    """Row 4, pebble#97: SIGKILL for a worker in the middle of reading 100 MB ends that call and no other."""
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    data = b"x" * (100 << 20)
    pids = bench.ready_pids()
    future = bench.submit(faults.length, data)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    record = future.wait_record(support.TIMEOUT)
    assert len(future.records) == 1
    assert record.outcome in (Outcome.CRASHED, Outcome.SUCCEEDED)
    bench.assert_usable()


def test_a_big_result_of_a_worker_that_is_killed_holds_up_nobody(bench: Bench) -> None:
    """Notes, fault matrix: SIGKILL for a worker half-way through writing 300 MB."""
    told = bench.path()
    future = bench.submit(faults.answer_with, told, 300 << 20)
    pid = told_pids(told)[0]
    os.kill(pid, signal.SIGKILL)
    record = future.wait_record(support.TIMEOUT)
    assert record.outcome in (Outcome.CRASHED, Outcome.SUCCEEDED)
    bench.assert_usable()


def test_a_cancelled_call_is_not_in_the_pipe_already(tmp_path: Path) -> None:
    """Row 5, pebble#33: with one busy worker, a call that is cancelled while it waits leaves no file behind."""
    with Bench(tmp_path, 1) as bench:
        gate, told, path = bench.gate(), bench.path(), bench.path()
        busy = bench.submit(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        waiting = bench.submit(support.tell, path, "ran")
        assert waiting.cancel()
        open_gate(gate)
        busy.result(support.TIMEOUT)
        bench.assert_usable()
        assert not os.path.exists(path)


def test_cancel_in_asyncio_ends_the_process_and_never_blocks_the_loop(bench: Bench) -> None:
    """Row 9, pebble#154: a task that is cancelled ends the run; the event loop waits for nobody meanwhile."""
    told = bench.path()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(loop.run_in_executor(bench.executor, faults.ignore_signals, told))
        pid = (await asyncio.to_thread(told_pids, told))[0]
        (future,) = (item.future for item in bench.core.open)
        with bench.deaf():  # who ends the run hears nothing, and the loop goes on all the same
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)  # the call is cancelled at the loop's next turn
            assert future.cancelled()
            assert future.record is None
        assert await asyncio.to_thread(support.process_gone, pid)

    asyncio.run(main())


def test_processes_may_be_started_and_die_with_the_run(bench: Bench) -> None:
    """Row 10, pebble#76: multiprocessing works inside a call, and what it started is ended with the call."""
    told = bench.path()
    bench.submit(faults.start_multiprocessing, told).result(support.TIMEOUT)
    support.assert_gone(*told_pids(told, lines=2))


def test_pools_may_be_nested(bench: Bench) -> None:
    """Row 10, pebble#76: an executor inside a call works, and leaves nothing when the call is killed."""
    assert bench.submit(faults.nest, "").result(support.TIMEOUT) == 3
    told = bench.path()
    future = bench.submit(faults.nest, told)
    inner = told_pids(told)
    assert future.cancel()
    only_record(future, Outcome.KILLED)
    support.assert_gone(*inner)


def test_a_shell_and_what_it_started_end_with_the_timeout(bench: Bench) -> None:
    """Row 11, pebble#62: after a timeout no process of the shell's session exists."""
    told = bench.path()
    future = bench.submit(faults.leave, ["shell"], told, "hang", timeout=0.5)
    worker, _shell = told_pids(told)
    only_record(future, Outcome.TIMED_OUT)
    import psutil

    assert [process.pid for process in psutil.process_iter() if session_of(process.pid) == worker] == []


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


@pytest.mark.slow
def test_shutdown_ends_with_a_crash_among_large_arguments(tmp_path: Path) -> None:
    """Row 12, cpython#94777: a worker crashes while large arguments are being written; shutdown returns."""
    data = b"x" * (100 << 20)
    with Bench(tmp_path, 2) as bench:
        futures = [
            bench.submit(faults.length, data),
            bench.submit(faults.segfault),
            bench.submit(faults.length, data),
        ]
        bench.executor.shutdown()
        assert [future.done() for future in futures] == [True] * 3
        assert [futures[0].result(), futures[2].result()] == [len(data)] * 2
        only_record(futures[1], Outcome.CRASHED)


@pytest.mark.parametrize("code", [0, 1])
def test_a_worker_that_leaves_without_a_word_is_told(bench: Bench, code: int) -> None:
    """Row 13, cpython#66587: os._exit(0) and os._exit(1) are crashes."""
    with pytest.raises(WorkerCrashedError, match=f"exit code {code}"):
        bench.submit(faults.exit_hard, code).result(support.TIMEOUT)


@pytest.mark.slow
def test_no_worker_hangs_in_its_start_under_a_threaded_parent(tmp_path: Path) -> None:
    """Row 16, cpython#90622: with threads of the parent printing and allocating, every replaced worker starts.

    Half of the workers exit by themselves, half are killed. Two thousand of them with `PROCSCHED_FULL_CASES`.
    """
    stop = threading.Event()

    def work() -> None:
        with open(os.devnull, "w") as file:
            while not stop.is_set():
                print([object() for _ in range(100)], file=file)

    threads = [threading.Thread(target=work) for _ in range(8 if FULL else 4)]
    for thread in threads:
        thread.start()
    count = 2000 if FULL else 20
    try:
        with Bench(tmp_path, 2) as bench:
            for n in range(0, count, 2):
                crash, kill = (
                    bench.submit(faults.exit_hard, n % 7),
                    bench.submit(faults.sleep, path := bench.path()),
                )
                support.wait_for_file(path, 3 * support.TIMEOUT)
                kill.cancel()
                assert crash.wait_record(3 * support.TIMEOUT).outcome is Outcome.CRASHED
                assert kill.wait_record(3 * support.TIMEOUT).outcome is Outcome.KILLED
            bench.assert_usable()
            counters = bench.counters()
            assert counters["killed_workers"] + counters["crashed_workers"] >= count
            assert counters["respawned"] >= count - 3
            assert counters["start_failures"] == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@pytest.mark.slow
def test_many_submissions_from_many_threads_stall_nobody(bench: Bench) -> None:
    """Row 18, cpython#105829: wake-ups are a flag, so that no pipe of them can fill.

    A million calls with `PROCSCHED_FULL_CASES`.
    """
    count = 250_000 if FULL else 1000
    results: list[int] = []
    submit_one = bench.executor.submit

    def submit(base: int) -> None:
        futures = [submit_one(faults.add, base, n) for n in range(count)]
        results.extend(future.result(600 if FULL else support.TIMEOUT * 3) for future in futures)

    threads = [threading.Thread(target=submit, args=(base * count,)) for base in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == list(range(4 * count))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["wake.eventfd", "wake.pipe"])
def test_wake_ups_fill_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Row 18, cpython#105829: far more wake-ups than a pipe holds return though nobody takes them, and all count."""
    if path == "wake.pipe":
        monkeypatch.setenv("PROCSCHED_WITHOUT", f"{os.environ.get('PROCSCHED_WITHOUT', '')},eventfd")
    elif not _system.offers("eventfd"):
        pytest.skip("there is no eventfd here")
    count, calls = 75_000, []
    with Bench(tmp_path, 1) as bench:
        bench.assert_usable()
        assert path in bench.core.pool.paths
        with bench.deaf():
            for n in range(count):
                bench.core.pool.loop.call_soon(functools.partial(calls.append, n))
            assert calls == []
        bench.assert_usable()
        with bench.deaf():  # it has heard of all before
            assert calls == [*range(count)]


@pytest.mark.slow
@pytest.mark.needs("pidfd", "the parent signals through descriptors")
def test_the_parent_signals_no_number(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 29, cpython#127049: workers are killed through pid descriptors alone, also just when their call ends."""
    bench.idle_pair()
    sent = []
    for name, original in (("kill", os.kill), ("killpg", os.killpg)):

        def note(pid: int, signum: int, original: Callable[[int, int], None] = original) -> None:
            sent.append((pid, signum))
            original(pid, signum)

        monkeypatch.setattr(os, name, note)
    for n in range(24):
        told = bench.path()
        future = bench.submit(faults.brief_work, (0.0005 * n) if n % 4 else support.TIMEOUT, told, n)
        support.wait_for_file(told)
        future.cancel()
        future.wait_record(support.TIMEOUT)
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    assert bench.counters()["killed_workers"] >= 6
    bench.executor.shutdown()
    assert sent == []


@pytest.mark.slow
@pytest.mark.parametrize("without", ["", "pidfd", "subreaper", "pidfd,subreaper"])
def test_the_helper_signals_no_number_that_it_has_reaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    """Row 29, cpython#127049: however workers end, and whatever they leave, a signal precedes the reaping."""
    book = tmp_path / "ledger"
    monkeypatch.setenv(ledger.LEDGER, str(book))
    monkeypatch.setenv("PROCSCHED_WITHOUT", f"{os.environ.get('PROCSCHED_WITHOUT', '')},{without}")
    detached = ["session_grandchild"] if _system.offers("subreaper") else []  # which a crash hides there
    with Bench(tmp_path, 2, preload=("tests.faults", "tests.ledger")) as bench:
        for _ in range(3):
            futures = [
                bench.submit(faults.exit_hard, 3),
                bench.submit(faults.leave, ["grandchild"], bench.path(), "return"),
                bench.submit(faults.leave, ["grandchild", *detached], bench.path(), "exit"),
                bench.submit(faults.clean_up, bench.path(), timeout=0.1, grace=support.TIMEOUT),
            ]
            cancelled = bench.submit(faults.leave, ["session_grandchild"], told := bench.path(), "hang")
            support.wait_for_file(told)
            cancelled.cancel()
            for future in (*futures, cancelled):
                future.wait_record(support.TIMEOUT)
            fleet = bench.core.pool.fleet
            with bench.deaf():  # as one asks who has not heard yet that they are dead
                assert fleet.launcher is not None
                for number in set(range(1, max(fleet.workers))) - fleet.workers.keys():
                    fleet.launcher.kill(number)
                    fleet.launcher.ask(number)
        ended = sum(bench.counters()[name] for name in ("killed_workers", "crashed_workers"))
    lines = book.read_text().splitlines()
    assert ended >= 9
    assert lines.count("reaped") >= ended
    assert lines.count("killpg own") >= ended
    assert [line for line in lines if line.endswith("stranger")] == []


@pytest.mark.slow
@pytest.mark.parametrize("without", ["", "pidfd", "pidfd,subreaper"])
def test_who_has_got_the_number_of_a_dead_worker_is_not_signalled(tmp_path: Path, without: str) -> None:
    """Row 29, cpython#127049: strangers take the numbers of workers and their children as these die, unharmed."""
    own_namespace = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here")
    can = subprocess.run(
        [*own_namespace, "sh", "-c", "echo 100 > /proc/sys/kernel/ns_last_pid"],
        capture_output=True,
        text=True,
    )
    if can.returncode != 0:
        pytest.skip(f"no pid namespace whose numbers can be chosen: {can.stderr.strip()}")
    environ = {**os.environ, "PROCSCHED_WITHOUT": f"{os.environ.get('PROCSCHED_WITHOUT', '')},{without}"}
    done = subprocess.run(
        [*own_namespace, sys.executable, "-m", "tests.reuse", str(tmp_path)],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=support.TIMEOUT * 4,
    )
    assert done.returncode == 0, done.stderr
    taken, *hit = map(int, done.stdout.split())
    assert taken > 20
    assert hit == []


def test_answers_out_of_turn_count_once(bench: Bench) -> None:
    """A worker that answers a call three times is free once, not three times: two calls never share it."""
    assert bench.submit(faults.answer_three_times).result(support.TIMEOUT) in ("early", "late")
    support.eventually(lambda: bench.counters()["late_results"] >= 2, what="the other answers have come")
    idle = bench.core.pool.idle
    assert len(set(idle)) == len(idle)
    bench.assert_usable()


FLEET, LAUNCHER, WORKER, WATCH = (
    "procsched.workers.fleet.Fleet",
    "procsched.workers.launcher.Launcher",
    "procsched.workers.process.Worker",
    "procsched.workers.limiting.Watch",
)
STEPS = [  # of whom, which, and what makes it come
    ("procsched.workers.booking.Booker", "on_answers", "calls"),
    (WORKER, "go_on_locked", "calls"),
    (WORKER, "may_be_idle_locked", "calls"),
    (FLEET, "on_gone", "calls"),
    (FLEET, "on_spawned", "calls"),
    (FLEET, "on_ready", "calls"),
    (FLEET, "on_dying", "calls"),
    (FLEET, "on_removed", "calls"),
    (FLEET, "ensure", "calls"),
    (FLEET, "on_spawn_failed", "a fork fails"),
    (FLEET, "on_alarm", "a fork fails"),
    (FLEET, "on_helper_lost", "the helper dies"),
    (LAUNCHER, "_handle", "calls"),
    (LAUNCHER, "_on_control", "calls"),
    (LAUNCHER, "_close_control", "the helper dies"),
    (LAUNCHER, "_on_guard_dead", "the helper dies"),
    (WORKER, "on_socket", "calls"),
    (WORKER, "on_alarm", "calls"),
    (WORKER, "on_deadline", "calls"),
    (WORKER, "on_side", "calls"),
    (WORKER, "on_hangup", "calls"),
    (WORKER, "on_mute", "a worker hangs up"),
    (WORKER, "kill", "calls"),
    (WORKER, "ending_of", "calls"),
    (WATCH, "on_alarm", "limits"),
    (WATCH, "on_output", "limits"),
    (WATCH, "judge_locked", "limits"),
    (WATCH, "complete", "limits"),
]

ONLY_WITH = {WATCH: "proc", "_on_guard_dead": "pidfd"}


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("owner", "step", "scene"), STEPS, ids=[f"{owner.rpartition('.')[2]}.{step}" for owner, step, _ in STEPS]
)
def test_an_error_in_the_supervisor_ends_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, step: str, scene: str, when: str
) -> None:
    """Row 31, loky#663: an error of ours at a step of the supervisor, or in its place, leaves no call without end."""
    monkeypatch.setenv(unforkable.MARK, str(tmp_path / "unforkable"))
    feature = ONLY_WITH.get(owner) or ONLY_WITH.get(step)
    if feature is not None and not _system.offers(feature):
        pytest.skip(f"without {feature} there is no such step")
    armed = threading.Event()
    failures = inject(monkeypatch, owner, step, when, armed)  # before the I/O thread is given its callbacks
    with Bench(tmp_path, 2, start_timeout=3.0, preload=("tests.faults", "tests.unforkable")) as bench:
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
        armed.set()
        for future in SCENES[scene](bench):
            future.wait_record(support.TIMEOUT)
        assert bench.submit(faults.add, 4, 4).result(support.TIMEOUT) == 8
        assert failures


def test_an_error_between_two_calls_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of ours while a worker is about to be idle leaves it in no book as one that runs something."""
    armed = threading.Event()
    original = Worker.may_be_idle_locked

    def once(worker: Worker) -> bool:
        if armed.is_set() and worker.state is WorkerState.IDLE and worker.runs > 1:
            armed.clear()
            raise RuntimeError("injected")
        return original(worker)

    monkeypatch.setattr(Worker, "may_be_idle_locked", once)
    with Bench(tmp_path, 1) as bench:
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
        armed.set()
        assert bench.submit(faults.add, 2, 2).result(support.TIMEOUT) == 4
        assert bench.submit(faults.add, 4, 4).result(support.TIMEOUT) == 8
        assert not armed.is_set()


def calls(bench: Bench) -> list[ProcessFuture]:
    return [
        bench.submit(faults.add, 2, 2),
        bench.submit(faults.exit_hard, 3),
        bench.submit(faults.sleep, bench.path(), timeout=0.2),
        bench.submit(print, "something", capture_output=True),
        bench.submit(faults.add, 3, 3),
    ]


def the_helper_dies(bench: Bench) -> list[ProcessFuture]:
    futures = [bench.submit(faults.sleep, path := bench.path())]
    support.wait_for_file(path)
    os.kill(helper_pid(), signal.SIGKILL)
    return futures


def a_worker_hangs_up(bench: Bench) -> list[ProcessFuture]:
    return [bench.submit(faults.close_everything, bench.path())]


def a_fork_fails(bench: Bench) -> list[ProcessFuture]:
    Path(os.environ[unforkable.MARK]).touch()
    return [
        bench.submit(faults.exit_hard, 3),
        bench.submit(faults.exit_hard, 3),
        bench.submit(faults.add, 3, 3),
    ]


def limits(bench: Bench) -> list[ProcessFuture]:
    return [
        bench.submit(faults.nap, 0.05, limits=Limits(processes=9)),
        bench.submit(faults.print_much, 100_000, limits=Limits(output=10_000)),
        bench.submit(faults.use, 100 << 20, faults.FOREVER, limits=Limits(memory=50 << 20)),
    ]


SCENES = {
    "calls": calls,
    "the helper dies": the_helper_dies,
    "a worker hangs up": a_worker_hangs_up,
    "a fork fails": a_fork_fails,
    "limits": limits,
}


def inject(
    monkeypatch: pytest.MonkeyPatch, owner: str, step: str, when: str, armed: threading.Event
) -> list[str]:
    """Have a step raise, once, instead of being done or after that; return a list that tells whether it has."""
    module, _dot, name = owner.rpartition(".")
    cls = getattr(__import__(module, fromlist=[name]), name)
    original = getattr(cls, step)
    failures: list[str] = []

    def once(*args: object, **kwargs: object) -> object:
        if not armed.is_set():
            return original(*args, **kwargs)
        if not failures and when == "before":
            failures.append(step)
            if step == "on_spawned" and isinstance(args[-1], int):
                os.close(args[-1])  # who takes a descriptor over has to close it
            raise RuntimeError("injected")
        result = original(*args, **kwargs)
        if not failures:
            failures.append(step)
            raise RuntimeError("injected")
        return result

    monkeypatch.setattr(cls, step, once)
    return failures


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Have a method of `Fleet` raise, once; return a list that tells whether it has."""
    original = getattr(Fleet, name)
    failures: list[str] = []

    def once(*args: object, **kwargs: object) -> object:
        if not failures:
            failures.append(name)
            raise RuntimeError("injected")
        return original(*args, **kwargs)

    monkeypatch.setattr(Fleet, name, once)
    return failures


def test_an_error_behind_an_answer_keeps_no_call_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is booked, and no worker has the call any more, when the next worker cannot be started."""
    with Bench(tmp_path, 1, max_tasks_per_child=1) as bench:
        gate = bench.gate()
        future = bench.submit(faults.wait_at_gate, gate, told := bench.path())
        future.add_done_callback(_ignore)  # so that it is the I/O thread that reads the answer
        support.wait_for_file(told)
        bench.ready_pids(1)  # the spare
        with bench.deaf():  # what the start of the call has asked for is done
            pass
        failures = fail_once(monkeypatch, "ensure")
        open_gate(gate)
        assert future.result(support.TIMEOUT) == "through"
        assert failures


def _ignore(_future: object) -> None:
    pass


def test_an_error_at_the_end_of_the_helper_keeps_no_call_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several workers that end with it one cannot be put away: their calls are all told."""
    with Bench(tmp_path, 2) as bench:
        paths = [bench.path(), bench.path()]
        futures = [bench.submit(faults.sleep, path) for path in paths]
        for path in paths:
            support.wait_for_file(path)
        failures = fail_once(monkeypatch, "_mourn")
        os.kill(helper_pid(), signal.SIGKILL)
        for future in futures:
            only_record(future, Outcome.LOST)
        assert failures
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2


@pytest.mark.slow
def test_limits_around_the_length_of_the_runs_never_stop_the_pool(tmp_path: Path) -> None:
    """Row 34, billiard#104: kills at every moment of a run leave no worker behind a lock.

    Ten thousand runs with `PROCSCHED_FULL_CASES`.
    """
    count = 10_000 if FULL else 200
    with Bench(tmp_path, 4) as bench:
        futures = [bench.submit(faults.nap, 0.004 + 0.0001 * (n % 20), timeout=0.005) for n in range(count)]
        for future in futures:
            assert future.wait_record(support.TIMEOUT).outcome in (Outcome.SUCCEEDED, Outcome.TIMED_OUT)
        bench.assert_usable()


def test_a_worker_that_was_told_to_stop_takes_no_other_call(tmp_path: Path) -> None:
    """Row 35, billiard PR#457: a run that catches everything when asked does not go on to the next call."""
    with Bench(tmp_path, 1) as bench:
        told = bench.path()
        first = bench.submit(faults.swallow_once, timeout=0.2, grace=5.0)
        second = bench.submit(faults.tell_pid, told)
        record = only_record(first, Outcome.TIMED_OUT)
        assert second.result(support.TIMEOUT) != record.pid


def test_a_limit_cannot_be_swallowed(bench: Bench) -> None:
    """Row 38, rq#2296: a run that catches every exception in a loop is killed, and TIMED_OUT."""
    with pytest.raises(TaskTimeoutError):
        bench.submit(faults.swallow, bench.path(), timeout=0.3, grace=0.1).result(support.TIMEOUT)


def test_a_result_that_takes_long_to_load_is_no_ones_deadline(bench: Bench) -> None:
    """Notes, trap 7: results are loaded by who asks; six seconds of loading hold up no other call."""
    path = bench.path()
    slow = bench.submit(faults.loads_in_parent_for_ever, path, os.getpid())
    other = bench.submit(faults.sleep, bench.path(), timeout=0.2)
    only_record(slow, Outcome.SUCCEEDED)
    only_record(other, Outcome.TIMED_OUT)


def test_a_clock_that_is_set_neither_kills_nor_spares(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes, pebble (h): limits follow the steady clock, whatever the wall clock does."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86400)
    future = bench.submit(faults.nap, 0.1, timeout=support.TIMEOUT)
    monkeypatch.setattr(time, "time", lambda: real() - 86400)
    assert future.result(support.TIMEOUT) == "napped"
    only_record(bench.submit(faults.sleep, bench.path(), timeout=0.2), Outcome.TIMED_OUT)


@pytest.mark.slow
def test_a_helper_that_stops_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing waits for ever: a helper that is stopped is found out when a worker's end is not reported."""
    with Bench(tmp_path, 1) as bench:
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
        helper = helper_pid()
        os.kill(helper, signal.SIGSTOP)
        with caplog.at_level(logging.WARNING, "procsched"):
            future = bench.submit(faults.sleep, bench.path(), timeout=0.2)
            assert future.wait_record(support.TIMEOUT * 2).outcome is Outcome.TIMED_OUT
            support.assert_gone(helper)
        bench.assert_usable()


@pytest.mark.slow
def test_shutdown_ends_while_the_helper_is_stopped(tmp_path: Path) -> None:
    """Nothing waits for ever: shutdown returns though the helper does nothing."""
    with Bench(tmp_path, 1) as bench:
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
        os.kill(helper_pid(), signal.SIGSTOP)
        bench.executor.shutdown()


@pytest.mark.slow
def test_shutdown_ends_while_the_guard_is_stopped(tmp_path: Path) -> None:
    """Nothing waits for ever: shutdown returns though the guard does nothing."""
    with Bench(tmp_path, 1) as bench:
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
        os.kill(guard_pid(), signal.SIGSTOP)
        bench.executor.shutdown()


def test_a_pool_needs_no_name_in_the_system(tmp_path: Path) -> None:
    """Row 7, pebble#160: a pool has no semaphore or segment in /dev/shm, not even while it lives."""

    def named(pid: int | str) -> set[str]:
        maps = Path(f"/proc/{pid}/maps").read_text("utf-8").split()
        return {word for word in maps if word.startswith("/dev/shm/")}

    before = named("self")
    with Bench(tmp_path, 2) as bench:
        pid = bench.idle_pair()
        processes = [guard_pid(), helper_pid(), *bench.pids()]
        assert pid in processes
        assert named("self") == before
        assert not set().union(*map(named, processes))


# Row 6: test_executor.py, test_map_tells_which_item_was_late.   Row 8: test_blame.py, test_an_argument_that_cannot_...
# Row 14: test_blame.py, test_an_exception_is_an_outcome_...      Row 15: test_parent_death.py.
# Rows 20, 21, 24, 25: test_executor.py: ctrl_c, signals_of_the_parent, map_is_lazy and map_keeps_nothing,
# a_callback_that_raises.
