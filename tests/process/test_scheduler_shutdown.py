"""The end of a scheduler with real children: from everywhere, in time, with a true report, leaving nothing."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    FakeClock,
    FixedRate,
    InlinePool,
    InMemoryTaskStore,
    OneTime,
    Outcome,
    OverrunPolicy,
    ProcessPool,
    RetryPolicy,
    Scheduler,
    SchedulerStateError,
    ShutdownReport,
    TaskStatus,
    ThreadPool,
)
from procsched.scheduler import closing
from tests import faults, support
from tests.pools import Parent, assert_reaped, open_gate, told_pids
from tests.schedulers import PRELOAD, Rig, clean_up_slowly
from tests.unit.scheduling import Foreign

S = TaskStatus
HANG = 8.0  # seconds that only a wait for something that never comes takes


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as it:
        yield it


def in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """Call in a thread of its own; return it, and the list that gets the answer."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


class Stopwatch:
    """Fails a block that takes as long as a hang."""

    def __enter__(self) -> None:
        self.began = time.monotonic()

    def __exit__(self, kind: object, *_rest: object) -> None:
        if kind is None:
            assert time.monotonic() - self.began < HANG


# --- what happens to runs -----------------------------------------------------------------------------------


def test_drain_waits_for_what_runs_and_runs_what_is_due(tmp_path: Path) -> None:
    """In-flight and due runs finish, later ones stay; the report names those that finished."""
    with Rig(tmp_path, 1) as rig:
        gate, told = rig.gate(), rig.path()
        running = rig.at_once(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        due = rig.at_once(faults.add, 1, 2)
        later = rig.scheduler.schedule("later", faults.add, OneTime(time.time() + 3600), args=(1, 2))
        support.eventually(lambda: rig.scheduler.stats().ready == 1)
        thread, found = in_thread(rig.scheduler.shutdown)
        support.eventually(lambda: rig.scheduler.engine.closing)
        with pytest.raises(SchedulerStateError, match="shut down"):
            rig.at_once(faults.add, 1, 2)
        open_gate(gate)
        thread.join(support.TIMEOUT)
        assert found == [ShutdownReport(finished=(running.id, due.id))]
        assert [task.status for task in (running, due, later)] == [S.SUCCEEDED, S.SUCCEEDED, S.SCHEDULED]
        assert due.history[0].result == 3


def test_without_drain_what_is_due_is_returned(tmp_path: Path) -> None:
    """What is due and not started is given back, also in the store; what runs may finish."""
    store = InMemoryTaskStore()
    with Rig(tmp_path, 1, store=store) as rig:
        gate, told, never = rig.gate(), rig.path(), rig.path()
        running = rig.at_once(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        due = rig.at_once(faults.tell_pid, never)
        support.eventually(lambda: rig.scheduler.stats().ready == 1)
        thread, found = in_thread(lambda: rig.scheduler.shutdown(drain=False))
        support.eventually(lambda: rig.scheduler.engine.closing)
        open_gate(gate)
        thread.join(support.TIMEOUT)
        assert found == [ShutdownReport(finished=(running.id,), returned=(due.id,))]
        saved = store.get(due.id)
        assert saved is not None
        assert (saved.status, due.status, due.history) == (S.SCHEDULED, S.SCHEDULED, [])
        assert not os.path.exists(never)


def test_drain_runs_what_is_to_be_caught_up_with(tmp_path: Path) -> None:
    """The slots that passed during a run are due: the worker gets them although no slot is waited for any more."""
    clock = FakeClock(1000.0)
    with Rig(tmp_path, 1, clock=clock) as rig:
        gate, told = rig.gate(), rig.path()
        rate = FixedRate(10, OverrunPolicy.CATCH_UP)
        task = rig.scheduler.schedule("t", faults.wait_at_gate, rate, args=(gate, told))
        support.wait_for_file(told)
        clock.advance(25)
        thread, found = in_thread(rig.scheduler.shutdown)
        support.eventually(lambda: rig.scheduler.engine.closing)
        for runs in (1, 2, 3):
            open_gate(gate)
            support.eventually(lambda runs=runs: len(task.history) == runs)  # type: ignore[misc]
        thread.join(support.TIMEOUT)
        assert found == [ShutdownReport(finished=(task.id,))]
        assert [record.due_at for record in task.history] == [1000.0, 1010.0, 1020.0]


@pytest.mark.parametrize(
    ("attempts", "recurring", "status"),
    [(1, False, S.FAILED), (2, False, S.RETRYING), (1, True, S.SCHEDULED)],
)
def test_what_runs_when_the_time_is_up_is_killed(
    rig: Rig, attempts: int, recurring: bool, status: TaskStatus
) -> None:
    """A hung run is KILLED, gone and reported; its task is left as a restart should find it."""
    from procsched import FixedDelay

    told = rig.path()
    task = rig.scheduler.schedule(
        "t",
        faults.ignore_signals,
        FixedDelay(60) if recurring else OneTime(0),
        args=(told,),
        retry=RetryPolicy(attempts, 60.0),
    )
    pid = told_pids(told)[0]
    with Stopwatch():
        report = rig.scheduler.shutdown(timeout=0.1)
    assert_reaped(pid)
    assert report == ShutdownReport(killed=(task.id,))
    assert [record.outcome for record in task.history] == [Outcome.KILLED]
    assert "shutdown" in (task.history[0].error or "")
    assert task.status is status
    assert len(rig.log.runs("t")) == 1


def test_a_killed_run_has_its_grace(rig: Rig) -> None:
    """At the timeout the run is asked first: it cleans up, and is KILLED all the same."""
    told = rig.path()
    task = rig.at_once(faults.clean_up, told, grace=HANG)
    support.wait_for_file(told)
    with Stopwatch():
        report = rig.scheduler.shutdown(timeout=0)
    assert support.wait_for_file(told, lines=3).split() == ["began", "TaskKilledError", "cleaned"]
    assert report.killed == (task.id,)
    assert task.history[0].outcome is Outcome.KILLED


@pytest.mark.parametrize("times", [1, 2, 3])
def test_what_a_user_has_killed_is_not_the_shutdowns(rig: Rig, times: int) -> None:
    """A run that was killed by request, however often, and is in its grace, is not tried again after a restart."""
    told = rig.path()
    task = rig.at_once(clean_up_slowly, told, grace=HANG, retry=RetryPolicy(3, 60.0))
    support.wait_for_file(told)
    assert [rig.scheduler.kill(task) for _ in range(times)] == [True] + [False] * (times - 1)
    report = rig.scheduler.shutdown(timeout=0)
    assert [record.error for record in task.history] == ["killed by request"]
    assert task.status is S.CANCELLED
    assert report.killed == ()


def test_runs_are_killed_side_by_side(tmp_path: Path) -> None:
    """Four runs end only when all have been asked, and not one has to be killed for want of that."""
    with Rig(tmp_path, 4) as rig:
        told = rig.path()
        tasks = [rig.at_once(faults.end_together, told, 4, grace=support.TIMEOUT) for _ in range(4)]
        pids = told_pids(told, lines=4)
        report = rig.scheduler.shutdown(timeout=0)
        assert sorted(report.killed) == sorted(task.id for task in tasks)
        assert [(record.outcome, record.signal) for task in tasks for record in task.history] == [
            (Outcome.KILLED, None)
        ] * 4
        for pid in pids:
            assert_reaped(pid)


@pytest.mark.slow
def test_a_hanging_schedule_does_not_hold_a_killed_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is over is not waited for until its schedule, which never answers, has said what follows."""
    monkeypatch.setattr(closing, "UNKILLABLE", HANG)
    asked, go = threading.Event(), threading.Event()

    def following(record: object, now: float) -> None:
        asked.set()
        go.wait(support.TIMEOUT)

    told = rig.path()
    task = rig.scheduler.schedule("t", faults.sleep, Foreign(0.0, following), args=(told,), retry=NO_RETRY)
    support.wait_for_file(told)
    with Stopwatch():
        report = rig.scheduler.shutdown(drain=False, timeout=0)
    assert report == ShutdownReport(killed=(task.id,))
    assert asked.is_set()
    go.set()


@pytest.mark.parametrize("timeout", [0.0, 0.2])
def test_an_idle_worker_that_does_not_leave_is_killed(
    rig: Rig, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time is up, and not when it has had as long as workers get where there is time."""
    monkeypatch.setattr(closing, "BEYOND", 0.05)
    assert rig.wait(rig.at_once(faults.add, 1, 2)).ok
    support.eventually(lambda: all(worker.state == "idle" for worker in rig.scheduler.stats().workers))
    pids = [worker.pid for worker in rig.scheduler.stats().workers]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    rig.scheduler.shutdown(timeout=timeout)
    assert time.monotonic() - began < 0.9
    for pid in pids:
        assert_reaped(pid)


def test_what_a_run_left_is_gone_too(rig: Rig) -> None:
    """Grandchildren in their own sessions and daemons end with the run that the shutdown kills."""
    told = rig.path()
    rig.at_once(faults.leave_and_hang, told)
    pids = told_pids(told)
    rig.scheduler.shutdown(timeout=0)
    support.assert_gone(*pids)


def test_a_shutdown_in_the_midst_of_the_start(tmp_path: Path) -> None:
    """Workers that are still starting when the end comes are no reason to wait, and none is left."""
    for _ in range(5):
        with Rig(tmp_path) as rig:
            task = rig.at_once(faults.add, 1, 2)
            with Stopwatch():
                report = rig.scheduler.shutdown(drain=False, timeout=0)
            assert report in (ShutdownReport(returned=(task.id,)), ShutdownReport(killed=(task.id,)))


def test_before_the_start_and_after_the_end(tmp_path: Path) -> None:
    """A scheduler that never started has no process to end; a second shutdown gives the first one's report."""
    rig = Rig(tmp_path)
    task = rig.at_once(faults.add, 1, 2)
    assert rig.scheduler.shutdown() == ShutdownReport(returned=(task.id,))
    assert rig.scheduler.shutdown(drain=False, timeout=0) == ShutdownReport(returned=(task.id,))
    with pytest.raises(SchedulerStateError):
        rig.scheduler.start()


@pytest.mark.parametrize("make", [ProcessPool, ThreadPool, InlinePool])
def test_a_pool_that_serves_another_scheduler_is_left_to_it(make: Callable[[], Any]) -> None:
    """A second scheduler on the same pool is refused, or shut down unstarted; the first one goes on."""
    pool = make()
    with Scheduler(pool=pool) as first:
        with pytest.raises(SchedulerStateError, match="already serves"), Scheduler(pool=pool):
            pass
        assert first.wait(first.schedule_after(faults.add, 0, args=(1, 2)), support.TIMEOUT).ok
        Scheduler(pool=pool).shutdown()
        assert first.wait(first.schedule_after(faults.add, 0, args=(1, 2)), support.TIMEOUT).ok


def test_waiters_are_told(rig: Rig) -> None:
    """Who waits for a run that the shutdown kills gets its record; for one that it prevents, an error."""
    told = rig.path()
    hung = rig.at_once(faults.sleep, told)
    later = rig.scheduler.schedule("later", faults.add, OneTime(time.time() + 3600), args=(1, 2))
    support.wait_for_file(told)
    first, record = in_thread(lambda: rig.scheduler.wait(hung))

    def wait_later() -> object:
        with pytest.raises(SchedulerStateError, match="shut down"):
            rig.scheduler.wait(later)
        return "refused"

    second, refused = in_thread(wait_later)
    support.eventually(lambda: len(rig.scheduler.engine.waiting) == 2)
    rig.scheduler.shutdown(timeout=0)
    first.join(support.TIMEOUT)
    second.join(support.TIMEOUT)
    assert (record[0].outcome, refused) == (Outcome.KILLED, ["refused"])


# --- from where it may be called ----------------------------------------------------------------------------


def test_twice_at_once(rig: Rig) -> None:
    """Two callers get the same report, and the shorter of their times counts for both."""
    told = rig.path()
    task = rig.at_once(faults.sleep, told)
    support.wait_for_file(told)
    patient, found = in_thread(lambda: rig.scheduler.shutdown(timeout=None))
    support.eventually(lambda: rig.scheduler.engine.closing)
    with Stopwatch():
        report = rig.scheduler.shutdown(timeout=0.05)
        patient.join(support.TIMEOUT)
    assert found == [report] == [ShutdownReport(killed=(task.id,))]


def test_from_many_threads(rig: Rig) -> None:
    """Ten callers at the same moment agree."""
    told = rig.path()
    task = rig.at_once(clean_up_slowly, told, grace=HANG)
    support.wait_for_file(told)
    callers = [in_thread(lambda: rig.scheduler.shutdown(timeout=0)) for _ in range(10)]
    for thread, _found in callers:
        thread.join(support.TIMEOUT)
    assert {report for _thread, found in callers for report in found} == {ShutdownReport(killed=(task.id,))}


@pytest.mark.parametrize("timeout", [0, 30])
def test_from_a_listener(tmp_path: Path, timeout: float) -> None:
    """A listener that hears of the first record may end everything, also with a run in flight."""
    done = threading.Event()

    class Closer:
        scheduler: Scheduler
        reports: list[ShutdownReport] = []

        def on_task_event(self, event: Any) -> None:
            if event.record is not None and not self.reports:
                self.reports.append(self.scheduler.shutdown(drain=False, timeout=timeout))
                done.set()

    closer = Closer()
    closer.reports = []
    with Rig(tmp_path, listeners=[closer]) as rig:
        closer.scheduler = rig.scheduler
        gate, told = rig.gate(), rig.path()
        other = rig.at_once(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        first = rig.at_once(faults.add, 1, 2)
        if timeout:
            support.eventually(lambda: rig.scheduler.engine.closing)
            open_gate(gate)
        assert done.wait(support.TIMEOUT)
        assert rig.scheduler.shutdown() == closer.reports[0]
        assert (first.status, len(other.history)) == (S.SUCCEEDED, 1)
        assert other.id in (closer.reports[0].finished if timeout else closer.reports[0].killed)


class ClosingHandler(logging.Handler):
    """A handler of the user's that ends the scheduler when an attempt is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: Scheduler | None = None
        self.reports: list[ShutdownReport] = []

    def emit(self, record: logging.LogRecord) -> None:
        if self.scheduler is not None and "ended as" in record.getMessage():
            scheduler, self.scheduler = self.scheduler, None
            self.reports.append(scheduler.shutdown())


def test_from_the_path_of_a_record(rig: Rig) -> None:
    """A log handler that runs where an attempt has just ended may shut down; the thread there waits for nothing."""
    handler = ClosingHandler()
    logger = logging.getLogger("procsched")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        handler.scheduler = rig.scheduler
        gate, told = rig.gate(), rig.path()
        other = rig.at_once(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        task = rig.at_once(faults.exit_hard, 5)
        with Stopwatch():
            support.eventually(lambda: rig.scheduler.engine.closing)
            open_gate(gate)
            report = rig.scheduler.shutdown()
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert [record.outcome for record in task.history] == [Outcome.CRASHED]
    assert (report.finished, report.killed) == ((other.id,), ())


def test_from_a_store(tmp_path: Path) -> None:
    """A store that is handed a record may shut down from the store's thread."""

    class Closes(InMemoryTaskStore):
        scheduler: Scheduler | None = None

        def save(self, task: Any) -> None:
            super().save(task)
            if task.history and self.scheduler is not None:
                scheduler, self.scheduler = self.scheduler, None
                scheduler.shutdown()

    store = Closes()
    with Rig(tmp_path, store=store) as rig:
        store.scheduler = rig.scheduler
        task = rig.at_once(faults.add, 1, 2)
        with Stopwatch():
            support.eventually(lambda: rig.scheduler.engine.closing)
            rig.scheduler.shutdown()
        saved = store.get(task.id)
        assert saved is not None
        assert saved.status is S.SUCCEEDED


def test_from_a_schedule(rig: Rig) -> None:
    """A schedule that is asked what follows may shut down, but not wait: the timer's thread waits for its answer."""

    def following(record: object, now: float) -> None:
        with pytest.raises(SchedulerStateError, match="wait for itself"):
            rig.scheduler.wait_idle()
        rig.scheduler.shutdown()

    task = rig.scheduler.schedule("t", faults.add, Foreign(0.0, following), args=(1, 2))
    with Stopwatch():
        support.eventually(lambda: rig.scheduler.engine.closing)
        report = rig.scheduler.shutdown()
    assert report.finished == (task.id,)
    assert [record.outcome for record in task.history] == [Outcome.SUCCEEDED]


def test_from_a_signal_handler(rig: Rig) -> None:
    """A handler that interrupts a wait of the main thread ends everything, and the wait gets its record."""
    told = rig.path()
    task = rig.at_once(faults.sleep, told)
    pid = told_pids(told)[0]
    reports: list[ShutdownReport] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: reports.append(rig.scheduler.shutdown(timeout=0)))
    try:
        main = threading.get_ident()
        killer = threading.Thread(
            target=lambda: (
                support.eventually(lambda: rig.scheduler.engine.waiting),
                signal.pthread_kill(main, signal.SIGUSR1),
            )
        )
        killer.start()
        assert rig.wait(task).outcome is Outcome.KILLED
        killer.join(support.TIMEOUT)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert_reaped(pid)
    assert reports == [ShutdownReport(killed=(task.id,))]


def test_leaving_the_block_drains(tmp_path: Path) -> None:
    """At the end of a `with` block what is due has run."""
    with Scheduler(2, preload=PRELOAD) as scheduler:
        tasks = [scheduler.schedule("t", faults.add, OneTime(0), args=(n, n)) for n in range(5)]
    assert [task.history[0].result for task in tasks] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt, SystemExit])
def test_leaving_the_block_by_an_exception_ends_what_runs(
    tmp_path: Path, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """It does not wait: runs are killed, what is due is not started, and the exception passes.

    That a task does not run any more is a warning, as whenever it has no attempt left.
    """
    told = str(tmp_path / "told")
    with Stopwatch(), pytest.raises(error), Scheduler(1, preload=PRELOAD) as scheduler:
        hung = scheduler.schedule("t", faults.sleep, OneTime(0), args=(told,), retry=NO_RETRY)
        pid = told_pids(told)[0]
        due = scheduler.schedule("t", faults.add, OneTime(0), args=(1, 2))
        raise error("mine")
    assert_reaped(pid)
    assert [record.outcome for record in hung.history] == [Outcome.KILLED]
    assert (due.status, due.history) == (S.SCHEDULED, [])
    said = caplog.messages[0]
    assert "attempt 1 ended as killed: " in said
    assert "it is in the dead letter" in said


# --- at the interpreter's exit ------------------------------------------------------------------------------

PREFIX = """
import logging, os, signal, sys, threading, time
from procsched import *
from tests import faults, support

told = sys.argv[1]
logging.getLogger("procsched").setLevel(logging.ERROR)  # what was killed is a warning; errors are still shown

class Log:
    def on_task_event(self, event):
        if event.record:
            print(event.name, event.record.outcome, flush=True)

def make(**options):
    return Scheduler(2, listeners=[Log()], **options)

def hang(scheduler, action=faults.sleep, name="hung", **options):
    lines = 0
    if os.path.exists(told):
        lines = open(told).read().count("\\n")
    task = scheduler.schedule(name, action, OneTime(0), args=(told,), retry=NO_RETRY, **options)
    support.wait_for_file(told, lines=lines + 1)
    return task
"""

EXITS = {
    "never started": ("s = make(); s.schedule('t', int, OneTime(0))", ""),
    "just started": ("make().start()", ""),
    "idle": (
        "s = make(); s.start(); s.wait(s.schedule('t', int, OneTime(0)), 30)\n"
        "s.schedule('later', int, OneTime(time.time() + 3600))",
        "t succeeded\n",
    ),
    "running": ("s = make(); s.start(); hang(s)", "hung killed\n"),
    "running, and nobody refers to it": (
        "def f():\n    s = make(); s.start(); hang(s)\nf()",
        "hung killed\n",
    ),
    "running stubbornly": (
        "s = make(); s.start(); hang(s, faults.ignore_signals, grace=0.1)",
        "hung killed\n",
    ),
    "running with descendants": ("s = make(); s.start(); hang(s, faults.leave_and_hang)", "hung killed\n"),
    "more due than workers": (
        "s = make(); s.start(); hang(s); hang(s)\nfor _ in range(100): s.schedule('due', int, OneTime(0))",
        "hung killed\nhung killed\n",
    ),
    "draining in a thread": (
        "s = make(); s.start(); hang(s)\n"
        "threading.Thread(target=s.shutdown, kwargs={'timeout': None}, daemon=True).start()\n"
        "support.eventually(lambda: s.engine.closing)",
        "hung killed\n",
    ),
    "shut down": ("s = make(); s.start(); hang(s); s.shutdown(timeout=0)", "hung killed\n"),
    "a listener hangs": (
        "class Stuck:\n"
        "    def on_task_event(self, event):\n        time.sleep(3600)\n"
        "s = make(); s.add_listener(Stuck()); s.start(); hang(s)",
        "hung killed\n",
    ),
    "by sys.exit": ("s = make(); s.start(); hang(s); sys.exit(0)", "hung killed\n"),
    "with a thread that schedules": (
        "s = make(); s.start(); hang(s)\n"
        "def go():\n"
        "    try:\n"
        "        while True: s.schedule('later', int, OneTime(time.time() + 3600))\n"
        "    except SchedulerStateError: pass\n"
        "threading.Thread(target=go, daemon=True).start()",
        "hung killed\n",
    ),
    "two schedulers": (
        "a = make(); a.start(); hang(a); b = make(); b.start(); hang(b)",
        "hung killed\nhung killed\n",
    ),
    "paused": ("s = make(); s.start(); t = hang(s); s.pause(t)", "hung killed\n"),
    "cancelled": ("s = make(); s.start(); t = hang(s); s.cancel(t)", "hung killed\n"),
}


def assert_nothing_is_left() -> None:
    """Fail if a process of this run is alive that is not below the test."""
    support.eventually(lambda: not support.orphans(), what="no process of the script is left")


@pytest.mark.slow
@pytest.mark.parametrize("state", EXITS)
def test_interpreter_exit(tmp_path: Path, state: str) -> None:
    """Whatever a scheduler is in the midst of, the interpreter exits with it: in time, quietly, leaving nothing."""
    code, expected = EXITS[state]
    with Parent(tmp_path, PREFIX + code + "\n", arguments=(str(tmp_path / "told"),)) as parent:
        assert parent.output() == expected
        assert_nothing_is_left()


@pytest.mark.slow
def test_an_unhandled_exception_ends_the_interpreter(tmp_path: Path) -> None:
    """A script that dies of an exception with a run in flight ends with its traceback and nothing else."""
    code = "s = make(); s.start(); hang(s); raise KeyError('mine')\n"
    with Parent(tmp_path, PREFIX + code, arguments=(str(tmp_path / "told"),)) as parent:
        out, err = parent.process.communicate(timeout=30)
        assert (parent.process.returncode, out) == (1, "hung killed\n")
        assert err.endswith("KeyError: 'mine'\n")
        assert err.count("Traceback") == 1
        assert_nothing_is_left()


HANDLER = """
s = make()
s.start()
hang(s)

def stop(signum, frame):
    report = s.shutdown(drain=False, timeout=0)
    raise SystemExit(0)

signal.signal(signal.SIGTERM, stop)
support.tell(told, "armed")
try:
    while True:
        s.cancel(s.schedule("later", int, OneTime(time.time() + 3600)))
except SchedulerStateError:
    pass
"""


@pytest.mark.slow
def test_from_a_signal_handler_in_the_midst_of_calls(tmp_path: Path) -> None:
    """SIGTERM that hits the main thread while it schedules without a pause ends the program, wherever it hits."""
    for _ in range(4):
        told = tmp_path / "told"
        told.unlink(missing_ok=True)
        with Parent(tmp_path, PREFIX + HANDLER, arguments=(str(told),)) as parent:
            support.wait_for_file(told, lines=2)
            parent.signal(signal.SIGTERM)
            assert parent.output() == "hung killed\n"
            assert_nothing_is_left()


INTERRUPT = """
try:
    with make() as s:
        hang(s)
        support.tell(told, "armed")
        s.wait_idle()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.slow
def test_ctrl_c_in_a_wait(tmp_path: Path) -> None:
    """SIGINT in the block of a scheduler ends its runs, prints no traceback of a child, and reaches the script."""
    told = tmp_path / "told"
    with Parent(tmp_path, PREFIX + INTERRUPT, arguments=(str(told),)) as parent:
        support.wait_for_file(told, lines=2)
        parent.signal(signal.SIGINT)
        assert parent.output() == "hung killed\ninterrupted\n"
        assert_nothing_is_left()
