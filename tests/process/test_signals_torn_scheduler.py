"""A signal handler strikes in the midst of the scheduler: whatever it interrupts, the books stay in order.

What it interrupts leaves the task as it was before or as it was to be. Each case goes through all points at which a
handler may come, one after the other: see `tests.striking`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    EventLog,
    ExecutionRecord,
    FakeClock,
    FixedRate,
    InlinePool,
    OneTime,
    ScheduledTask,
    Scheduler,
    SchedulerStateError,
    ShutdownReport,
    SqlTaskStore,
    TaskStatus,
    ThreadPool,
    _system,
)
from procsched.stores import durable
from procsched.workers.base import pace_of
from tests import faults, stored, support
from tests.pools import open_gate
from tests.schedulers import Rig
from tests.striking import Strike, blaming, interrupt

S = TaskStatus
PERIOD = 3600.0


class Slow:
    """A schedule of the user's own, which is asked with no lock held. The first time its first slot is now."""

    steady = True

    def __init__(self) -> None:
        self.firsts = 0

    def first_run(self, now: float) -> float:
        self.firsts += 1
        return now if self.firsts == 1 else now + PERIOD

    def next_run(self, record: ExecutionRecord, now: float) -> float:
        assert record.due_at is not None
        return record.due_at + PERIOD


class Later(Slow):
    """One whose first slot is not now."""

    def first_run(self, now: float) -> float:
        return now + PERIOD


def fail() -> None:
    raise ValueError("bad row")


class World:
    """A scheduler that runs what is due in the main thread, which moves its clock."""

    def __init__(self) -> None:
        self.clock = FakeClock(1_000_000.0)
        self.log = EventLog()
        self.scheduler = Scheduler(clock=self.clock, pool=InlinePool(), listeners=[self.log])

    def recurring(self, schedule: Any, action: Callable[..., object] = abs, *args: Any) -> ScheduledTask:
        """Return a task whose first run is over."""
        task = self.scheduler.schedule("t", action, schedule, args=args, retry=NO_RETRY)
        self.settle()
        assert len(task.history) == 1
        return task

    def paused(self, schedule: Any) -> ScheduledTask:
        """Return one that is paused, and whose slots have passed meanwhile."""
        task = self.recurring(schedule, abs, -1)
        assert self.scheduler.pause(task)
        self.clock.advance(2.5 * PERIOD)
        return task

    def settle(self) -> None:
        """Nothing is left open, and the books are in order."""
        assert self.scheduler.wait_idle(support.TIMEOUT)
        self.scheduler.engine.check()
        assert not self.scheduler.in_user_code()


Request = Callable[[Scheduler, ScheduledTask], object]
REQUESTS: dict[str, tuple[Callable[[World], ScheduledTask], Request, set[TaskStatus]]] = {
    # the task to begin with, what is asked, and how the task may be afterwards
    "schedule": (
        lambda world: world.recurring(FixedRate(PERIOD), abs, -1),
        lambda scheduler, _: scheduler.schedule_after(abs, 3600, args=(1,)),
        {S.SCHEDULED},
    ),
    "schedule slow": (
        lambda world: world.recurring(Slow(), abs, -1),
        lambda scheduler, _: scheduler.schedule("u", abs, Later(), args=(1,)),
        {S.SCHEDULED},
    ),
    "cancel": (
        lambda world: world.recurring(FixedRate(PERIOD), abs, -1),
        lambda scheduler, task: scheduler.cancel(task),
        {S.SCHEDULED, S.CANCELLED},
    ),
    "pause": (
        lambda world: world.recurring(FixedRate(PERIOD), abs, -1),
        lambda scheduler, task: scheduler.pause(task),
        {S.SCHEDULED, S.PAUSED},
    ),
    "resume": (
        lambda world: world.paused(FixedRate(PERIOD)),
        lambda scheduler, task: scheduler.resume(task),
        {S.PAUSED, S.SCHEDULED},
    ),
    "resume slow": (
        lambda world: world.paused(Slow()),
        lambda scheduler, task: scheduler.resume(task),
        {S.PAUSED, S.SCHEDULED},
    ),
    "revive": (
        lambda world: world.recurring(FixedRate(PERIOD), fail),
        lambda scheduler, task: scheduler.revive(task),
        {S.FAILED, S.SCHEDULED},
    ),
    "revive slow": (
        lambda world: world.recurring(Slow(), fail),
        lambda scheduler, task: scheduler.revive(task),
        {S.FAILED, S.SCHEDULED},
    ),
    "stats": (
        lambda world: world.recurring(FixedRate(PERIOD), abs, -1),
        lambda scheduler, _: scheduler.stats(),
        {S.SCHEDULED},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", REQUESTS)
@pytest.mark.parametrize("raises", [True, False])
def test_a_handler_interrupts_a_request(what: str, raises: bool) -> None:
    """Wherever it strikes, the task is as it was or as it was to be, and what was asked for can be asked again."""
    prepare, request, allowed = REQUESTS[what]
    world = World()
    with world.scheduler as scheduler:

        def ask() -> None:
            with contextlib.suppress(SchedulerStateError):
                scheduler.schedule_after(abs, 3600, args=(1,))

        seen = set()
        for number in itertools.count(1):
            task = prepare(world)
            before, records = task.status, len(task.history)
            strike = Strike(number, interrupt if raises else ask, beyond=__file__)
            with strike, contextlib.suppress(KeyboardInterrupt):
                request(scheduler, task)
            seen.add(task.status)
            with blaming(strike):
                assert task.status in allowed or not raises
                assert (task.id in scheduler.dead_letter()) == (task.status is S.FAILED)
                world.settle()
                assert len(allowed) == 1 or task.status is not before or request(scheduler, task) is True
                world.settle()
                missed = 1 if what.startswith("resume") else 0  # slots that passed make one run
                assert len(task.history) == records + missed
            if strike.left > 0:
                break
            scheduler.cancel(task)
        assert number > 10
        assert not raises or seen == allowed


@pytest.mark.slow
def test_a_handler_interrupts_the_answer_of_a_slow_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a run is asked once more: its record is there, and so is the next slot."""
    world = World()
    with world.scheduler as scheduler:
        answer = scheduler._answer
        for number in itertools.count(1):
            strike = Strike(number, interrupt, beyond=__file__)

            def struck(question: Any, strike: Strike = strike) -> None:
                monkeypatch.setattr(scheduler, "_answer", answer)
                with strike:
                    answer(question)

            monkeypatch.setattr(scheduler, "_answer", struck)
            with contextlib.suppress(KeyboardInterrupt):
                task = scheduler.schedule("t", abs, Slow(), args=(-1,), retry=NO_RETRY)
            task = scheduler.tasks()[-1]
            with blaming(strike):
                world.settle()
                assert task.status is S.SCHEDULED
                assert [record.ok for record in task.history] == [True]
                assert task.next_run_at == task.history[0].due_at + PERIOD
            if strike.left > 0:
                break
            scheduler.cancel(task)
        assert number > 10


@pytest.mark.slow
def test_a_handler_interrupts_a_pass_with_answers_to_get(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several schedules that are to be asked, none is forgotten because a handler came before or between them."""
    world = World()
    with world.scheduler as scheduler:
        answer = scheduler._answer
        for number in itertools.count(1):
            monkeypatch.setattr(scheduler, "_answer", lambda _question: interrupt())
            for _ in range(2):
                with contextlib.suppress(KeyboardInterrupt):
                    scheduler.schedule("t", abs, Slow(), args=(-1,), retry=NO_RETRY)
            assert len(scheduler.engine.questions) == 2
            monkeypatch.setattr(scheduler, "_answer", answer)
            with Strike(number, interrupt) as strike, contextlib.suppress(KeyboardInterrupt):
                scheduler._pass()
            with blaming(strike):
                world.settle()
                tasks = scheduler.tasks()[-2:]
                assert [len(task.history) for task in tasks] == [1, 1]
                assert [task.status for task in tasks] == [S.SCHEDULED] * 2
            if strike.left > 0:
                break
            for task in tasks:
                scheduler.cancel(task)
        assert number > 30


def test_a_schedule_that_raises_what_is_no_error_is_asked_again_by_who_moves_the_clock() -> None:
    """As a signal handler's it passes through; the run has its record, and nothing is lost."""
    world = World()

    class Leaving(Slow):
        left = 1

        def next_run(self, record: ExecutionRecord, now: float) -> float:
            if self.left:
                self.left -= 1
                raise SystemExit
            return super().next_run(record, now)

    with world.scheduler as scheduler:
        with pytest.raises(SystemExit):
            scheduler.schedule("t", abs, Leaving(), args=(-1,))
        world.settle()
        (task,) = scheduler.tasks()
        assert task.status is S.SCHEDULED
        assert len(task.history) == 1


@pytest.mark.slow
@pytest.mark.parametrize("what", ["schedule", "cancel", "pause", "resume", "stats"])
@pytest.mark.parametrize("raises", [True, False])
def test_a_handler_interrupts_a_scheduler_with_threads(what: str, raises: bool) -> None:
    """The same beside a timer thread and a listener's, on the real clock."""
    request = REQUESTS[what][1]
    with Scheduler(pool=ThreadPool(1), listeners=[EventLog()]) as scheduler:

        def ask() -> None:
            with contextlib.suppress(SchedulerStateError):
                scheduler.schedule_after(abs, 3600, args=(1,))

        for number in itertools.count(1):
            task = scheduler.schedule_after(abs, 3600, args=(1,))
            if what == "resume":
                scheduler.pause(task)
            with (
                Strike(number, interrupt if raises else ask) as strike,
                contextlib.suppress(KeyboardInterrupt),
            ):
                request(scheduler, task)
            with scheduler._lock:
                scheduler.engine.check()
            if strike.left > 0:
                break
            scheduler.cancel(task)
        assert number > 10
        assert scheduler.wait(scheduler.schedule_after(abs, 0, args=(-1,)), support.TIMEOUT).ok
        assert scheduler.wait_idle(support.TIMEOUT)


def end(scheduler: Scheduler) -> None:
    """Shut down, in a thread that may not wait for ever; nothing of the scheduler is left."""
    thread = threading.Thread(target=scheduler.shutdown, args=(False, 0), daemon=True)
    thread.start()
    thread.join(support.TIMEOUT)
    assert not thread.is_alive(), "the shutdown waits for ever"
    with pytest.raises(SchedulerStateError, match="shut down"):
        scheduler.schedule_after(abs, 3600, args=(1,))
    assert scheduler._timer is not None
    assert not scheduler._timer.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("raises", [True, False])
def test_a_handler_interrupts_a_shutdown(raises: bool) -> None:
    """Wherever it strikes, it is heard, may shut down itself, and a further shutdown ends what is left."""
    for number in itertools.count(1):
        scheduler = Scheduler(pool=ThreadPool(1), listeners=[EventLog()])
        scheduler.start()
        scheduler.schedule_after(abs, 3600, args=(1,))
        handler = interrupt if raises else functools.partial(scheduler.shutdown, False, 0)
        heard = False
        try:
            with Strike(number, handler) as strike:
                scheduler.shutdown(False, 0)
        except KeyboardInterrupt:
            heard = True
        with blaming(strike):
            assert heard == (raises and strike.left <= 0), "the interrupt was swallowed"
            end(scheduler)
        if strike.left > 0:
            break
    assert number > 50


@pytest.mark.slow
def test_a_handler_interrupts_a_start() -> None:
    """Wherever it strikes, a shutdown behind it leaves no thread, no process and no descriptor."""
    for number in itertools.count(1):
        scheduler = Scheduler(1)
        before = set(threading.enumerate())
        with Strike(number, interrupt) as strike, contextlib.suppress(KeyboardInterrupt):
            scheduler.start()
        scheduler.shutdown(False, 0)
        with blaming(strike):
            # Not at once: a shutdown without time to spare does not wait for a starved thread.
            support.eventually(lambda seen=before: seen.issuperset(threading.enumerate()))  # type: ignore[misc]
            support.eventually(lambda: support.servers.issuperset(_system.process_children(os.getpid())))
        if strike.left > 0:
            break
    assert number > 10


def test_a_handler_shuts_down_while_a_shutdown_waits(tmp_path: Path) -> None:
    """The one that it has interrupted ends what runs at once: the handler does not wait for it in vain."""
    with Rig(tmp_path, 1) as rig:
        told = rig.path()
        task = rig.at_once(faults.sleep, told)
        support.wait_for_file(told)
        reports = []
        main = threading.get_ident()

        def strike_when_it_waits() -> None:
            support.eventually(lambda: rig.scheduler._idle_gates)
            signal.pthread_kill(main, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, lambda *_: reports.append(rig.scheduler.shutdown(timeout=0)))
        striker = threading.Thread(target=strike_when_it_waits)
        try:
            striker.start()
            reports.append(rig.scheduler.shutdown(timeout=None))
            striker.join(support.TIMEOUT)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert reports == [ShutdownReport(killed=(task.id,))] * 2


@pytest.mark.slow
def test_a_handler_interrupts_a_scheduler_whose_calls_are_lent(tmp_path: Path) -> None:
    """KeyboardInterrupt while a task is cancelled that was sent ahead: every other one runs once."""
    with pytest.MonkeyPatch.context() as patch, Rig(tmp_path, 1) as rig:
        patch.setattr("procsched.workers.sending.BRIEF", 3600.0)
        patch.setattr("procsched.workers.dispatch.AHEAD_SECONDS", 3600.0)
        patch.setattr("procsched.workers.process.Worker.may_gather_locked", lambda _worker: 0)
        told = str(tmp_path / "told")
        for _ in range(10):
            rig.at_once(faults.leave_line, told, "warm")
        assert rig.scheduler.wait_idle(support.TIMEOUT)
        expected = 10
        for number in itertools.count(1, 2):
            gate = str(tmp_path / f"gate-{number}")
            os.mkfifo(gate)
            rig.at_once(faults.leave_line, told, "held", gate)
            support.wait_for_file(told, lines=expected + 1)
            tasks = [rig.at_once(faults.leave_line, told, str(number)) for _ in range(3)]
            with Strike(number, interrupt) as strike, contextlib.suppress(KeyboardInterrupt):
                rig.scheduler.cancel(tasks[1])
            open_gate(gate)
            assert rig.scheduler.wait_idle(support.TIMEOUT), strike.where
            with rig.scheduler._lock:
                rig.scheduler.engine.check()
            expected = len(Path(told).read_text().split())
            assert [len(task.history) for task in (tasks[0], tasks[2])] == [1, 1], strike.where
            if strike.left > 0:
                assert number > 10
                return


@pytest.mark.slow
@pytest.mark.parametrize("what", ["cancel", "pause", "replace"])
def test_a_handler_interrupts_a_request_about_what_is_staged(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KeyboardInterrupt while it is taken back: every other task runs once, and the store has what the handle says."""
    monkeypatch.setattr(durable, "SMOOTHING", 0.0)
    for action in (stored.through, stored.note):
        monkeypatch.setattr(pace_of(action), "seconds", 0.001)
    path, notes = tmp_path / "jobs.db", str(tmp_path / "notes")
    with Scheduler(pool=ThreadPool(1), store=SqlTaskStore(f"sqlite:///{path}")) as scheduler:
        writer: Any = scheduler.writer
        writer.commit_seconds = 10.0  # so slow a disk that all of them are staged

        def add(name: str, **options: Any) -> ScheduledTask:
            return scheduler.schedule("t", stored.note, OneTime(0), args=(notes, name), key=name, **options)

        for number in itertools.count(1):
            gate, waits = str(tmp_path / f"gate-{number}"), str(tmp_path / f"waits-{number}")
            os.mkfifo(gate)
            scheduler.schedule("blocker", stored.through, OneTime(0), args=(gate, waits))
            support.wait_for_file(waits)
            tasks = [add(f"{number}-{name}") for name in "abc"]
            assert len(scheduler._staged) == 3
            with Strike(number, interrupt) as strike, contextlib.suppress(KeyboardInterrupt):
                if what == "replace":
                    add(f"{number}-b", replace=True)
                else:
                    (scheduler.cancel if what == "cancel" else scheduler.pause)(tasks[1])
            with blaming(strike):
                with scheduler._lock:
                    scheduler.engine.check()
                open_gate(gate)
                assert scheduler.wait_idle(support.TIMEOUT)
                assert [len(task.history) for task in (tasks[0], tasks[2])] == [1, 1]
                assert writer.flush(support.TIMEOUT)
                ((status, live),) = stored.rows(
                    path, f"SELECT status, live FROM tasks WHERE id = '{tasks[1].id}'"
                )
                assert (status, live) == (tasks[1].status, False)
            if strike.left > 0:
                break
        assert number > 10
