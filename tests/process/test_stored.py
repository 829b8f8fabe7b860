"""A durable store with real workers: what is on the disk when a worker begins, and what a kill of the parent leaves."""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    After,
    CronSchedule,
    EventLog,
    FixedRate,
    OneTime,
    Outcome,
    Priority,
    ScheduledTask,
    Scheduler,
    SqlTaskStore,
    SystemClock,
    TaskStatus,
    ThreadPool,
    connect,
)
from procsched._core.staging import MOST_BEHIND
from procsched.stores import durable
from procsched.workers.base import pace_of
from tests import faults, pools, stored, support


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


def open_scheduler(path: str, **options: Any) -> tuple[Scheduler, EventLog]:
    log = EventLog()
    options.setdefault("workers", 1)
    options.setdefault("preload", ("tests.stored",))
    return Scheduler(store=SqlTaskStore(f"sqlite:///{path}"), listeners=[log], **options), log


# --- actions ------------------------------------------------------------------------------------------------


def look(path: str, notes: str) -> None:
    """Note what the store knows of the task that this runs for."""
    from procsched import current_run

    run = current_run()
    assert run is not None
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        (row,) = connection.execute(
            "SELECT status, run, attempt, live FROM tasks WHERE id = ?", (run.id,)
        ).fetchall()
    finally:
        connection.close()
    support.tell(notes, *row, run.run, run.attempt)


def wait_long(gate: str, notes: str) -> None:
    """Wait at a gate; of its runs nobody knows how long they take."""
    faults.wait_at_gate(gate, notes)


def begin_and_hang(notes: str) -> None:
    support.tell(notes, os.getpid())
    time.sleep(faults.FOREVER)


# --- tests --------------------------------------------------------------------------------------------------


def test_running_is_stored_before_the_worker_has_it(path: str, tmp_path: Path) -> None:
    """Another process, the worker itself, sees the attempt in the file when it begins, with its numbers."""
    notes = str(tmp_path / "notes")
    scheduler, _log = open_scheduler(path)
    with scheduler:
        tasks = [
            scheduler.schedule(f"t{number}", look, OneTime(0), args=(path, notes), retry=NO_RETRY)
            for number in range(20)
        ]
        for task in tasks:
            assert scheduler.wait(task, support.TIMEOUT).ok
    assert set(Path(notes).read_text().splitlines()) == {"running 1 1 1 1 1"}


def test_each_end_is_stored_with_what_follows(path: str) -> None:
    """At any moment a copy of the file has as many records as runs that are over."""
    scheduler, log = open_scheduler(path)
    with scheduler:
        task = scheduler.schedule("t", stored.nothing, FixedRate(0.01))
        assert log.wait_for(lambda events: len(log.runs("t")) >= 20, support.TIMEOUT)
        for _ in range(10):
            ((run, live, count),) = stored.rows(
                path, "SELECT run, live, (SELECT count(*) FROM runs) FROM tasks"
            )
            assert count == run - live
        scheduler.cancel(task)


CRASHING = """
import sys, signal, os
from procsched import *
from tests.process.test_stored import begin_and_hang
path, notes = sys.argv[1:]
scheduler = Scheduler(1, store=SqlTaskStore(f"sqlite:///{path}"))
scheduler.schedule("t", begin_and_hang, OneTime(0), args=(notes,), retry=RetryPolicy(2, 0.0), key="k")
scheduler.start()
print("started", flush=True)
signal.pause()
"""


def test_a_killed_parent_leaves_a_lost_run_with_its_process(path: str, tmp_path: Path) -> None:
    """The record names the process; the next attempt follows the policy for retries."""
    notes = str(tmp_path / "notes")
    process = subprocess.Popen(
        [sys.executable, "-c", CRASHING, path, notes],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        pid = int(support.wait_for_file(notes).split()[0])
        support.eventually(
            lambda: stored.rows(path, "SELECT pid FROM tasks") == [(pid,)], what="the pid is stored"
        )
    finally:
        process.kill()
        process.communicate()
    support.assert_gone(pid)
    scheduler, _log = open_scheduler(path)
    with scheduler:
        support.wait_for_file(notes, lines=2)
        (task,) = scheduler.tasks()
        assert (task.status, task.attempt) == (TaskStatus.RUNNING, 2)
        (record,) = scheduler.history()
        assert (record.outcome, record.attempt, record.pid) == (Outcome.LOST, 1, pid)
        assert f"pid {process.pid}" in (record.error or "")
        scheduler.cancel(task, kill=True)


def test_priority_holds_for_what_is_staged(path: str, tmp_path: Path) -> None:
    """Of two that wait, one of them stored as about to run, the urgent one that came last runs first."""
    notes = str(tmp_path / "notes")
    scheduler, _log = open_scheduler(path)
    with scheduler:
        brief = [scheduler.schedule("brief", stored.through, OneTime(0), args=("", "")) for _ in range(5)]
        for task in brief:
            scheduler.wait(task, support.TIMEOUT)  # now it is known to be
        gate, waits = str(tmp_path / "gate"), str(tmp_path / "waits")
        os.mkfifo(gate)
        blocker = scheduler.schedule("blocker", stored.through, OneTime(0), args=(gate, waits))
        support.wait_for_file(waits)
        low = scheduler.schedule("low", stored.note, OneTime(0), Priority.LOW, args=(notes, "low"))
        assert low.status is TaskStatus.SCHEDULED
        support.eventually(
            lambda: stored.rows(path, "SELECT live FROM tasks WHERE name = 'low'") == [(1,)],
            what="it is stored as about to run",
        )
        cancelled = scheduler.schedule("gone", stored.note, OneTime(0), Priority.HIGH, args=(notes, "gone"))
        high = scheduler.schedule("high", stored.note, OneTime(0), Priority.HIGH, args=(notes, "high"))
        assert scheduler.cancel(cancelled)
        pools.open_gate(gate)
        for task in (blocker, low, high):
            assert scheduler.wait(task, support.TIMEOUT).ok
        assert stored.rows(path, "SELECT count(*) FROM runs WHERE name = 'gone'") == [(0,)]
    assert Path(notes).read_text() == "high\nlow\n"


def staged(path: str) -> list[str]:
    """Return the names of what is stored as begun, or about to."""
    return [name for (name,) in stored.rows(path, "SELECT name FROM tasks WHERE live ORDER BY seq")]


class Deep:
    """One worker that a run known to be brief keeps busy, and a disk so slow that as many as may be are staged."""

    def __init__(self, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        monkeypatch.setattr(durable, "SMOOTHING", 0.0)
        for action, seconds in ((stored.through, 0.001), (stored.note, 0.001), (wait_long, math.inf)):
            monkeypatch.setattr(pace_of(action), "seconds", seconds)
        self.path, self.tmp_path = path, tmp_path
        self.notes = str(tmp_path / "notes")
        self.scheduler, self.log = open_scheduler(path, **options)
        writer: Any = self.scheduler.writer
        writer.commit_seconds = 10.0

    def begin(self) -> None:
        """Let the scheduler begin, and keep its worker busy."""
        self.gate = self.block("blocker", stored.through)

    def block(self, name: str, action: Any, *, wait: bool = True) -> str:
        """Schedule what waits at a gate, which is returned."""
        gate, waits = str(self.tmp_path / f"{name} gate"), str(self.tmp_path / f"{name} waits")
        os.mkfifo(gate)
        self.scheduler.schedule(name, action, OneTime(0), args=(gate, waits))
        if wait:
            support.wait_for_file(waits)
        return gate

    def add(self, *names: str, priority: Priority = Priority.NORMAL) -> list[ScheduledTask]:
        """Schedule what notes its name."""
        return [
            self.scheduler.schedule(name, stored.note, OneTime(0), priority, args=(self.notes, name))
            for name in names
        ]

    def staged(self, *names: str) -> None:
        """Wait until just these are stored as begun, or about to."""
        support.eventually(lambda: staged(self.path) == list(names), what=f"staged are {names}")


@pytest.fixture
def deep(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deep]:
    made = Deep(path, tmp_path, monkeypatch)
    with made.scheduler:
        made.begin()
        yield made


def test_on_a_slow_disk_more_is_staged_up_to_a_bound(deep: Deep) -> None:
    """A crash makes that many LOST that have not begun, and no more; what runs then goes in order."""
    names = [f"t{number}" for number in range(MOST_BEHIND + 3)]
    tasks = deep.add(*names)
    deep.staged("blocker", *names[:MOST_BEHIND])
    assert deep.scheduler.stats().running == 1
    assert {task.status for task in tasks} == {TaskStatus.SCHEDULED}
    copied = f"{deep.path}.crashed"
    stored.copy(deep.path, copied)
    pools.open_gate(deep.gate)
    for task in tasks:
        assert deep.scheduler.wait(task, support.TIMEOUT).ok
    assert Path(deep.notes).read_text().split() == names
    scheduler, _log = open_scheduler(copied)
    with scheduler:
        lost = scheduler.history(outcome=Outcome.LOST)
        assert {record.name for record in lost} == {"blocker", *names[:MOST_BEHIND]}
        assert scheduler.cancel(next(task for task in scheduler.tasks() if task.task.name == "blocker"))


def test_what_is_staged_deep_is_taken_back(deep: Deep) -> None:
    """By a cancel, by a pause, and by what is more urgent, which runs first; then there is room for others."""
    names = [f"t{number}" for number in range(MOST_BEHIND)]
    tasks = deep.add(*names)
    deep.staged("blocker", *names)
    assert deep.scheduler.cancel(tasks[3])
    assert deep.scheduler.pause(tasks[5])
    left = [name for name in names if name not in ("t3", "t5")]
    deep.staged("blocker", *left)
    urgent = deep.add("u0", "u1", "u2", priority=Priority.HIGH)
    deep.staged("blocker", *left[: MOST_BEHIND - 3], "u0", "u1", "u2")
    pools.open_gate(deep.gate)
    for task in (tasks[-1], *urgent):
        assert deep.scheduler.wait(task, support.TIMEOUT).ok
    assert tasks[5].status is TaskStatus.PAUSED
    assert Path(deep.notes).read_text().split() == ["u0", "u1", "u2", *left]
    assert stored.rows(deep.path, "SELECT count(*) FROM runs WHERE name IN ('t3', 't5')") == [(0,)]


def test_a_run_that_may_take_long_has_nothing_staged_behind_it(deep: Deep) -> None:
    """What was staged behind brief ones is taken back when it begins, and runs when it has ended."""
    gate = deep.block("long", wait_long, wait=False)
    tasks = deep.add("a", "b", "c")
    deep.staged("blocker", "long", "a", "b", "c")
    pools.open_gate(deep.gate)
    deep.staged("long")
    pools.open_gate(gate)
    for task in tasks:
        assert deep.scheduler.wait(task, support.TIMEOUT).ok
    assert Path(deep.notes).read_text().split() == ["a", "b", "c"]


class Set(SystemClock):
    """The system's clock, whose wall time a test sets."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


def test_what_is_staged_stays_so_when_the_clock_is_set(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its times are stored anew, and that it is about to begin: it may do so at any moment."""
    clock = Set()
    deep = Deep(path, tmp_path, monkeypatch, clock=clock)
    with deep.scheduler as scheduler:
        deep.begin()
        task = scheduler.schedule("after", stored.note, After(0), args=(deep.notes, "after"))
        deep.staged("blocker", "after")
        clock.ahead = -3600.0
        scheduler.wake()
        assert deep.log.wait_for(
            lambda events: any(event.kind == "clock" for event in events), support.TIMEOUT
        )
        assert scheduler.writer is not None
        assert scheduler.writer.flush(support.TIMEOUT)
        assert staged(path) == ["blocker", "after"]
        ((status, due),) = stored.rows(path, "SELECT status, due_at FROM tasks WHERE name = 'after'")
        assert status == "running"
        pools.open_gate(deep.gate)
        record = scheduler.wait(task, support.TIMEOUT)
        assert record.ok
        assert record.due_at == pytest.approx(due, rel=0.0, abs=1e-3)


def test_what_is_due_at_once_is_stored_together_with_its_start(path: str) -> None:
    """It waits for one commit, not for two: who schedules it puts both."""
    scheduler, _log = open_scheduler(path)
    with scheduler:
        writer: Any = scheduler.writer
        put, puts = writer.put, []

        def noting(snapshot: ScheduledTask, *rest: Any) -> None:
            puts.append((threading.get_ident(), snapshot.status))
            put(snapshot, *rest)

        writer.put = noting
        task = scheduler.schedule("t", stored.nothing, OneTime(0))
        mine = threading.get_ident()
        assert puts[:2] == [(mine, TaskStatus.SCHEDULED), (mine, TaskStatus.RUNNING)]
        assert scheduler.wait(task, support.TIMEOUT).ok


HEAVY = (
    """sorted({"sqlalchemy", "alembic", "sqlite3", "procsched.stores"} & set(__import__("sys").modules))"""
)


def test_no_worker_loads_sqlalchemy(path: str) -> None:
    """A stored call is opened without anything of the store."""
    for _ in range(2):
        scheduler, _log = open_scheduler(path, preload=())
        with scheduler:
            scheduler.schedule("t", eval, FixedRate(1000), args=(HEAVY,), key="t", retry=NO_RETRY)
            task = scheduler.schedule("now", eval, OneTime(0), args=(HEAVY,), retry=NO_RETRY)
            assert scheduler.wait(task, support.TIMEOUT).result == []


@pytest.mark.slow
@pytest.mark.parametrize("by_value", [False, True])
def test_a_stored_call_is_opened_in_a_worker_only(path: str, tmp_path: Path, by_value: bool) -> None:
    """What its loading does is never done in the parent, nor in who looks at the store or steers it from outside."""
    due_told, paused_told = (str(tmp_path / name) for name in ("due", "paused"))
    action = (lambda *_args: None) if by_value else stored.nothing
    scheduler, _log = open_scheduler(path)
    due, paused = (
        scheduler.schedule(name, action, OneTime(0), args=(faults.OnLoad(faults.tell_pid, told),))
        for name, told in (("due", due_told), ("paused", paused_told))
    )
    scheduler.shutdown()
    client = connect(f"sqlite:///{path}")
    assert client.pause(paused)
    assert stored.rows(path, "SELECT DISTINCT form FROM payloads") == [("" if by_value else "pickle",)]
    scheduler, _log = open_scheduler(path)
    with scheduler:
        assert scheduler.wait(due.id, support.TIMEOUT).ok
        for looks in (scheduler, client):
            assert [task.status for task in looks.tasks()] == [TaskStatus.SUCCEEDED, TaskStatus.PAUSED]
            (record,) = looks.history()
        assert [row["name"] for row in client.rows()] == ["due", "paused"]
        (worker,) = pools.told_pids(due_told)
        assert worker == record.pid != os.getpid()
    assert not Path(paused_told).exists()


BY_VALUE = """
import logging, sys
from typing import NewType
from procsched import FixedRate, InlinePool, Scheduler, SqlTaskStore

logging.basicConfig(stream=sys.stdout, format="%(message)s")
FACTOR = 1
WORDS = frozenset({"one", "two", "three"})
Count = NewType("Count", int)

class Row:
    count: Count

def job(row):
    return Row, Count, row.count * FACTOR, row.word in WORDS, row.word in {"four", "five", "six"}

with Scheduler(pool=InlinePool(), store=SqlTaskStore("sqlite:///" + sys.argv[1])) as scheduler:
    scheduler.schedule("t", job, FixedRate(3600, start_delay=3600), args=(Row(),), key="k")
"""


def test_code_kept_by_value_is_told_when_the_script_has_changed(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not before: neither the order of a set nor what names a class for one start makes it another."""
    said = []
    for start, script in enumerate((BY_VALUE, BY_VALUE, BY_VALUE.replace("FACTOR = 1", "FACTOR = 2"))):
        monkeypatch.setenv("PYTHONHASHSEED", str(start))
        with pools.Parent(tmp_path, script, arguments=(path,)) as parent:
            said.append(parent.output(support.TIMEOUT))
    assert said[:2] == ["", ""]
    assert "stays as it is, for its key 'k' is there already" in said[2]
    assert "has another code or arguments. Give replace=True" in said[2]


def test_every_commit_may_be_the_last(tmp_path: Path) -> None:
    """SIGKILL before and after each commit of a life loses no task and no record, and doubles none."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.crashing", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.endswith(" 0 bad\n")


def test_random_kills_under_load(tmp_path: Path) -> None:
    """A few; `python -m tests.crashes` does as many as you like."""
    from tests import crashes

    assert crashes.run(tmp_path, 3, 1) == []


def test_what_comes_while_a_shutdown_returns_what_is_due_does_not_start(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missed slot, about which its schedule is asked meanwhile, is returned too, though a worker is free at once."""
    notes = tmp_path / "notes"
    clock, log = Set(), EventLog()
    first = Scheduler(store=SqlTaskStore(f"sqlite:///{path}"), pool=ThreadPool(1))
    task = first.schedule("t", stored.note, CronSchedule("0 0 1 1 *"), args=(str(notes), "ran"))
    first.shutdown()
    clock.ahead = 366 * 86400.0
    scheduler = Scheduler(
        store=SqlTaskStore(f"sqlite:///{path}"), pool=ThreadPool(1), clock=clock, listeners=[log]
    )
    writer: Any = scheduler.writer
    answer, pump, open_gates = scheduler._answer, scheduler.pool.pump, scheduler._open_idle_gates_locked
    returning = threading.Event()

    def answer_late(question: Any) -> None:
        assert returning.wait(support.TIMEOUT)
        monkeypatch.setattr(
            scheduler, "_open_idle_gates_locked", lambda: None
        )  # who leads does not hear of it
        answer(question)

    def pump_first() -> None:
        pump()
        if threading.current_thread() is scheduler._timer and returning.is_set():
            assert writer.flush(support.TIMEOUT)
            pump()
            monkeypatch.setattr(scheduler, "_open_idle_gates_locked", open_gates)
            with scheduler._lock:
                open_gates()

    give_back = scheduler._give_back_locked

    def give_back_noting(closing: Any) -> None:
        give_back(closing)
        returning.set()

    monkeypatch.setattr(scheduler, "_answer", answer_late)
    monkeypatch.setattr(scheduler.pool, "pump", pump_first)
    monkeypatch.setattr(scheduler, "_give_back_locked", give_back_noting)
    scheduler.start()
    report = scheduler.shutdown(drain=False)
    assert report.returned == (task.id,)
    assert not notes.exists()


class Failing(SystemClock):
    """The system's clock, whose wall time cannot be had once the test says so, after some more readings."""

    left: int | None = None

    def now(self) -> float:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise OSError("the clock is gone")
        return super().now()


def test_a_clock_that_fails_leaves_no_task_of_which_the_caller_does_not_know(
    path: str, tmp_path: Path
) -> None:
    """Whichever reading it is: the call raises and nothing is there, or the task is and the caller has it."""
    clock = Failing()
    scheduler = Scheduler(store=SqlTaskStore(f"sqlite:///{path}"), pool=ThreadPool(1), clock=clock)
    with scheduler:
        assert scheduler.wait_idle(support.TIMEOUT)
        for readings in range(3):
            before = scheduler.tasks()
            clock.left = readings
            with contextlib.suppress(OSError):
                before.append(
                    scheduler.schedule("t", stored.note, OneTime(0), args=(str(tmp_path / "notes"), "ran"))
                )
            clock.left = None
            assert scheduler.tasks() == before
            scheduler.wake()
            assert scheduler.wait_idle(support.TIMEOUT)
