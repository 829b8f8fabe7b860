"""`health()` and `dump()` where there are processes: each thread and process of a pool is told when it is stuck."""

from __future__ import annotations

import io
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import procsched
from procsched import EventLog, ProcessExecutor, Scheduler, TaskTimeoutError, WorkerCrashedError
from tests import faults, support
from tests.pools import Bench, guard_pid, helper_pid, open_gate
from tests.schedulers import Rig
from tests.unit.test_health import stuck_part

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as bench:
        bench.submit(faults.add, 1, 1).result(support.TIMEOUT)
        bench.ready_pids()
        yield bench


def test_all_is_well_and_named(bench: Bench) -> None:
    """An executor that waits has an I/O thread, a guard and a helper; so has one with a run that takes long."""
    health = support.eventually(lambda: (found := bench.executor.health()).ok and found)
    assert [part.name for part in health.parts] == ["I/O thread", "guard", "helper"]
    future = bench.submit(faults.wait_at_gate, gate := bench.gate(), path := bench.path())
    support.wait_for_file(path)
    support.eventually(lambda: bench.executor.health(0.0).ok)
    open_gate(gate)
    future.result(support.TIMEOUT)
    with ProcessExecutor(1) as other:
        assert not procsched.health().troubled
        assert other.health().parts == ()  # it has not begun
        other.submit(int).result(support.TIMEOUT)
        assert {part.owner for part in procsched.health().parts} == {"executor 1", "executor 2"}


def test_a_stuck_callback_is_told(bench: Bench) -> None:
    """A done-callback that does not return keeps the callback thread, and nobody else."""
    with bench.hung_callback():
        part = stuck_part("callback thread", bench.executor.health)
        assert "hung_callback.<locals>.hold (" in (part.where or "")
        support.eventually(
            lambda: [part.name for part in procsched.health(0.05).troubled] == ["callback thread"]
        )
    support.eventually(lambda: procsched.health(0.05).ok)


@contextmanager
def log_handler(handler: logging.Handler) -> Iterator[None]:
    logging.getLogger("procsched").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("procsched").removeHandler(handler)


def test_a_log_handler_that_hangs_the_io_thread_is_told(bench: Bench) -> None:
    """By the handler's function; the thread goes on when that returns."""
    inside, go_on = threading.Event(), threading.Event()

    class Hangs(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if threading.current_thread().name == "procsched-io":
                inside.set()
                go_on.wait(support.TIMEOUT)

    with log_handler(Hangs()):
        os.kill(helper_pid(), signal.SIGKILL)
        assert inside.wait(support.TIMEOUT)
        try:
            part = stuck_part("I/O thread")
            assert "Hangs.emit (" in (part.where or "")
        finally:
            go_on.set()
    support.eventually(lambda: procsched.health(0.5).ok)
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2


@pytest.mark.parametrize("name", ["helper", "guard"])
def test_a_stopped_helper_or_guard_is_told(bench: Bench, name: str) -> None:
    """Though nobody wants anything of it; and no longer once it goes on."""
    pid = helper_pid() if name == "helper" else guard_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        part = stuck_part(name)
        assert part.detail == f"process {pid} is stopped by a signal"
    finally:
        os.kill(pid, signal.SIGCONT)
    support.eventually(lambda: procsched.health().ok)
    bench.assert_usable()


def test_a_helper_that_owes_an_answer_is_told_since_when(bench: Bench) -> None:
    """Where the kernel says nothing of the process, what it was asked for does."""
    launcher = bench.core.pool.fleet.launcher
    assert launcher is not None
    pid, launcher.helper_pid = launcher.helper_pid, -1  # of which nobody knows anything
    os.kill(pid or 0, signal.SIGSTOP)
    try:
        with bench.deaf():
            pass
        bench.core.pool.loop.call_soon(launcher.ping)
        part = stuck_part("helper")
        assert part.detail == "process -1 does not answer"
    finally:
        os.kill(pid or 0, signal.SIGCONT)
    support.eventually(lambda: procsched.health(0.05).ok)
    launcher.helper_pid = pid


def test_a_helper_that_imports_for_long_is_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell a long import from one that hangs; but for how long it goes on is told."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "slow_module.py").write_text(f"open({str(gate)!r}).read()")
    monkeypatch.syspath_prepend(tmp_path)
    with ProcessExecutor(1, preload=["slow_module"]) as executor:
        future = executor.submit(faults.add, 1, 1)
        part = support.eventually(lambda: [p for p in executor.health().parts if p.state == "starting"])[0]
        assert (part.name, part.ok) == ("helper", True)
        support.eventually(lambda: executor.health().parts[-1].seconds > part.seconds)
        open_gate(str(gate))
        assert future.result(support.TIMEOUT) == 2


def test_a_worker_that_does_not_go_is_told(bench: Bench) -> None:
    """One that was sent SIGKILL while nobody could report its end."""
    future = bench.submit(faults.sleep, path := bench.path(), timeout=0.2)
    support.wait_for_file(path)
    helper = helper_pid()
    os.kill(helper, signal.SIGSTOP)
    try:
        worker = future._item.worker
        part = stuck_part(f"worker {worker.pid}")
        assert part.detail == "not gone since its SIGKILL"
    finally:
        os.kill(helper, signal.SIGCONT)
    with pytest.raises(TaskTimeoutError):
        future.result(support.TIMEOUT)


def test_a_broken_preload_is_told_everywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A crash loop at the start backs off, and says so: log, stats, health, and an event of kind health."""
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no license')")
    log = EventLog()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        with Scheduler(1, preload=["broken_module"], listeners=[log]) as scheduler:
            while scheduler.stats().counters["start_failures"] < 3:
                task = scheduler.schedule_after(len, 0.0, args=("",))
                assert "no license" in (scheduler.wait(task, support.TIMEOUT).error or "")
                part = support.eventually(
                    lambda: [part for part in scheduler.health().troubled if part.state == "failing"]
                )[0]
                assert part.name == "worker starts"
                assert " in a row, the next in " in part.detail
                assert "no license" in part.detail
            support.eventually(lambda: scheduler.health().troubled[0].seconds > part.seconds)
            told = support.eventually(lambda: [e.progress for e in log.events if e.kind == "health"][2:])[0]
            assert "3 times in a row; the next is started in 0.4 s at the earliest" in told
            assert told in caplog.text
            assert told in scheduler.stats().problems
            assert told in scheduler.health().problems
            assert scheduler.stats().counters["start_failures"] >= 3


def test_a_start_that_works_ends_the_trouble(tmp_path: Path) -> None:
    """As soon as a worker is ready, nothing fails any more."""
    marker = tmp_path / "works"
    with Bench(tmp_path, 1, initializer=faults.need_file, initargs=(str(marker),)) as bench:
        with pytest.raises(WorkerCrashedError):
            bench.submit(faults.add, 1, 1).result(support.TIMEOUT)
        assert "worker starts" in [part.name for part in bench.executor.health().troubled]
        marker.touch()
        support.eventually(lambda: bench.submit(faults.add, 1, 1).exception(support.TIMEOUT) is None)
        support.eventually(lambda: bench.executor.health().ok)


def test_a_dump_shows_each_worker_with_its_call(tmp_path: Path) -> None:
    """Pid, state, call, deadline and age, those that wait and those between two attempts."""
    (tmp_path / "rig").mkdir()
    with Bench(tmp_path, 2) as bench, Rig(tmp_path / "rig", 1) as rig:
        paths = [bench.path(), bench.path(), rig.path()]
        limited = bench.submit(faults.sleep, paths[0], timeout=60.0, soft_timeout=50.0, name="limited")
        bench.submit(faults.sleep, paths[1])
        waiting = bench.submit(faults.add, 1, 1, name="waiting")
        retry = procsched.RetryPolicy(2, initial_backoff=60.0)
        with ProcessExecutor(1, retry=retry) as resting:
            again = resting.submit(faults.raise_it, ValueError)
            support.eventually(lambda: resting.stats().counters["retried"] == 1)
            task = rig.at_once(faults.sleep, paths[2], timeout=70.0)
            pid, _other, in_rig = (int(support.wait_for_file(path)) for path in paths)
            file = io.StringIO()
            procsched.dump(file)
            again.cancel()
        text = file.getvalue()
        for expected in (
            "--- executor 1",
            "running, 3 calls open, 2 attempts started",
            "workers: 3, at most 2 run at once",
            f"pid {pid}: busy, ",
            "; limited, run 1, attempt 1, for ",
            " s, soft limit in ",
            " s, deadline in ",
            "no deadline",
            ": idle, ",
            "waiting with priority 1: 1",
            "    waiting, run 1, attempt 1",
            "waiting for its next attempt: raise_it, run 1, attempt 2",
            f"pid {in_rig}: busy, ",
            f"; {task.id} (t), run 1, attempt 1, for ",
            "thread procsched-io",
        ):
            assert expected in text, f"{expected!r} is not in\n{text}"
        assert waiting.cancel()
        assert limited.cancel()


def test_a_dump_under_a_fake_clock_says_when_by_that(tmp_path: Path) -> None:
    """A deadline that only an injected clock brings is told in its time; a kill that is decided is told as well."""
    with Rig(tmp_path, 1, clock=procsched.FakeClock(1000.0)) as rig:
        task = rig.at_once(
            faults.ignore_signals, path := rig.path(), timeout=70.0, grace=1.0, soft_timeout=60.0
        )
        support.wait_for_file(path)
        file = io.StringIO()
        procsched.dump(file)
        assert "deadline when the clock's awake() says " in file.getvalue()
        assert rig.scheduler.kill(task)
        file = io.StringIO()
        procsched.dump(file)
        assert ", to end as killed: killed by request" in file.getvalue()
