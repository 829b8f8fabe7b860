"""Shutdown: what runs, what is returned, what is killed, from where it may be called, and how long it takes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    CronSchedule,
    EventLog,
    FakeClock,
    FixedDelay,
    FixedRate,
    InlinePool,
    InMemoryTaskStore,
    OneTime,
    Outcome,
    OverrunPolicy,
    RetryPolicy,
    Scheduler,
    SchedulerStateError,
    ShutdownReport,
    TaskStatus,
    ThreadPool,
)
from tests import support
from tests.unit.scheduling import START, Fails, Foreign, Held, offsets, simulated, threaded

S = TaskStatus


def _nothing() -> None:
    pass


def _in_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


class _Asleep:
    """A clock that can pass while the system sleeps, and tells nobody."""

    slept = 0.0

    def now(self) -> float:
        return START + self.slept

    def monotonic(self) -> float:
        return self.slept

    def awake(self) -> float:
        return 0.0

    def wait(self, condition: threading.Condition, _seconds: float | None) -> None:
        condition.wait(support.TIMEOUT)


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("schedule", [CronSchedule("* * * * *"), FixedRate(60, start_delay=60)])
def test_a_shutdown_is_the_first_to_see_what_passed_in_a_sleep(schedule: Any, drain: bool) -> None:
    """What is due by its misfire policy runs, or is returned, also where a schedule has to be asked for it."""
    clock = _Asleep()
    scheduler = Scheduler(clock=clock, pool=InlinePool())
    scheduler.start()
    task = scheduler.schedule("t", _nothing, schedule)
    clock.slept = 90.0
    report = scheduler.shutdown(drain=drain)
    if drain:
        assert (report.finished, report.returned, len(task.history)) == ((task.id,), (), 1)
    else:
        assert (report.finished, report.returned, len(task.history)) == ((), (task.id,), 0)
    assert scheduler.stats().counters["returned"] == (0 if drain else 1)


def test_drain_runs_what_is_due_and_nothing_later() -> None:
    """With drain, what is due runs and what is in flight is waited for; later slots stay SCHEDULED."""
    held = Held()
    with threaded() as (scheduler, clock, log):
        running = scheduler.schedule("running", held, OneTime(START))
        assert held.started.wait(5)
        due = scheduler.schedule("due", _nothing, OneTime(START))
        later = scheduler.schedule("later", _nothing, OneTime(START + 60))
        clock.advance(1)
        thread, found = _in_thread(scheduler.shutdown)
        support.eventually(lambda: scheduler.engine.closing)
        held.release.set()
        thread.join(5)
        assert found == [ShutdownReport(finished=(running.id, due.id))]
        assert (due.status, later.status) == (S.SUCCEEDED, S.SCHEDULED)
        assert [event.name for event in log.runs("due")] == ["due"]


def test_without_drain_what_is_due_is_returned() -> None:
    """Due and not started: given back as SCHEDULED, reported, counted, told and stored."""
    held = Held()
    store = InMemoryTaskStore()
    with threaded(store=store) as (scheduler, clock, log):
        running = scheduler.schedule("running", held, OneTime(START))
        assert held.started.wait(5)
        due = scheduler.schedule("due", _nothing, OneTime(START + 1))
        clock.advance(1)
        thread, found = _in_thread(lambda: scheduler.shutdown(drain=False))
        support.eventually(lambda: scheduler.engine.closing)
        held.release.set()
        thread.join(5)
        assert found == [ShutdownReport(finished=(running.id,), returned=(due.id,))]
        assert due.status is S.SCHEDULED
        assert due.next_run_at == START + 1
        assert scheduler.stats().counters["returned"] == 1
        saved = store.get(due.id)
        assert saved is not None
        assert (saved.status, saved.next_run_at) == (S.SCHEDULED, START + 1)
        told = [event for event in log.events if event.progress == "returned by the shutdown"]
        assert [(event.task_id, event.status) for event in told] == [(due.id, S.SCHEDULED)]


@pytest.mark.parametrize("drain", [True, False])
def test_slots_to_catch_up_with_are_due(drain: bool) -> None:
    """What passed during a run before the shutdown began runs after it, or is returned; what passes later waits."""
    held = Held()
    with threaded() as (scheduler, clock, _):
        rate = FixedRate(10, OverrunPolicy.CATCH_UP)
        task = scheduler.schedule("t", held, rate)
        assert held.started.wait(5)
        clock.advance(20)
        thread, found = _in_thread(lambda: scheduler.shutdown(drain=drain))
        support.eventually(lambda: scheduler.engine.closing)
        clock.advance(10)
        held.release.set()
        thread.join(5)
        returned = () if drain else (task.id,)
        assert found == [ShutdownReport(finished=(task.id,), returned=returned)]
        assert offsets(task.history) == ([0, 10, 20] if drain else [0])
        assert task.status is S.SCHEDULED
        assert task.next_run_at == START + (30 if drain else 10)
        assert scheduler.stats().counters["returned"] == len(returned)


def test_what_a_run_brings_by_its_end_is_not_due() -> None:
    """A shutdown ends also where a clock that stands still makes every next slot one of the same moment."""
    held = Held()
    with threaded() as (scheduler, _clock, _):
        task = scheduler.schedule("t", held, FixedDelay(0))
        assert held.started.wait(5)
        thread, found = _in_thread(scheduler.shutdown)
        support.eventually(lambda: scheduler.engine.closing)
        held.release.set()
        thread.join(5)
        assert found == [ShutdownReport(finished=(task.id,))]
        assert len(task.history) == 1


def test_due_retry_is_returned_as_retrying() -> None:
    """A retry that is due and not started keeps its attempt count, so that a restart goes on with it."""
    held = Held()
    with threaded() as (scheduler, clock, _):
        task = scheduler.schedule("t", Fails(1), OneTime(START), retry=RetryPolicy(3, 5.0))
        assert scheduler.wait_idle(5)
        scheduler.schedule("long", held, OneTime(START))
        assert held.started.wait(5)
        clock.advance(5)
        thread, found = _in_thread(lambda: scheduler.shutdown(drain=False))
        support.eventually(lambda: scheduler.engine.closing)
        held.release.set()
        thread.join(5)
        assert [report.returned for report in found] == [(task.id,)]  # type: ignore[attr-defined]
        assert (task.status, task.attempt, task.next_run_at) == (S.RETRYING, 1, START + 5)


def test_hung_thread_is_reported_killed_in_time() -> None:
    """A body that hangs cannot hold the shutdown: it returns while that goes on, and the run is recorded as KILLED."""
    held = Held()
    with threaded() as (scheduler, _, log):
        task = scheduler.schedule("hung", held, OneTime(START), retry=NO_RETRY)
        assert held.started.wait(5)
        report = scheduler.shutdown(drain=True, timeout=0.05)
        assert report == ShutdownReport(killed=(task.id,))
        assert [record.outcome for record in task.history] == [Outcome.KILLED]
        assert task.status is S.FAILED
        assert len(log.runs("hung")) == 1
        held.release.set()
        support.eventually(lambda: scheduler.stats().counters["late_results"] == 1)
        assert len(task.history) == 1


@pytest.mark.parametrize(
    ("schedule", "retry", "status"),
    [
        (OneTime(START), RetryPolicy(2, 5.0), S.RETRYING),
        (FixedRate(60), NO_RETRY, S.SCHEDULED),
        (OneTime(START), NO_RETRY, S.FAILED),
    ],
)
def test_status_after_being_killed_by_shutdown(
    schedule: object, retry: RetryPolicy, status: TaskStatus
) -> None:
    """RETRYING if attempts remain, else the next slot, else FAILED."""
    held = Held()
    with threaded() as (scheduler, _, _log):
        task = scheduler.schedule("t", held, schedule, retry=retry)  # type: ignore[arg-type]
        assert held.started.wait(5)
        assert scheduler.shutdown(timeout=0).killed == (task.id,)
        held.release.set()
        assert task.status is status


def test_second_call_gets_the_same_report() -> None:
    """Shutdown is idempotent; afterwards whatever changes something is refused, and questions are answered."""
    with simulated() as (scheduler, _, _log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 5))
        first = scheduler.shutdown()
        assert scheduler.shutdown(drain=False, timeout=0) is first
        for call in (
            lambda: scheduler.schedule("u", _nothing, OneTime(START)),
            lambda: scheduler.schedule_at(_nothing, START),
            lambda: scheduler.cancel(task),
            lambda: scheduler.kill(task),
            lambda: scheduler.pause(task),
            lambda: scheduler.resume(task),
            lambda: scheduler.revive(task),
            lambda: scheduler.add_listener(EventLog()),
            scheduler.start,
        ):
            with pytest.raises(SchedulerStateError, match="shut down"):
                call()
        assert scheduler.task(task.id) is task
        assert scheduler.tasks() == [task]
        assert scheduler.pending() == 1
        assert scheduler.wait_idle(1)


def test_two_at_once_agree_and_the_shorter_time_holds() -> None:
    """A second caller waits for the first; with less time it hurries both."""
    held = Held()
    with threaded() as (scheduler, _, _log):
        task = scheduler.schedule("hung", held, OneTime(START))
        assert held.started.wait(5)
        thread, found = _in_thread(lambda: scheduler.shutdown(timeout=60))
        support.eventually(lambda: scheduler.engine.closing)
        report = scheduler.shutdown(drain=False, timeout=0.01)
        thread.join(5)
        held.release.set()
        assert found == [report]
        assert report.killed == (task.id,)


def test_before_the_start() -> None:
    """A scheduler that never started gives back what is due, and cannot be started any more."""
    scheduler = Scheduler(clock=FakeClock(START), pool=InlinePool())
    due = scheduler.schedule("due", _nothing, OneTime(START - 5))
    scheduler.schedule("later", _nothing, OneTime(START + 5))
    assert scheduler.shutdown() == ShutdownReport(returned=(due.id,))
    with pytest.raises(SchedulerStateError, match="shut down"):
        scheduler.start()


def test_before_the_start_after_a_suspend() -> None:
    """Time asleep before the start does not confuse a shutdown before the start."""
    clock = FakeClock(START)
    scheduler = Scheduler(clock=clock, pool=InlinePool())
    due = scheduler.schedule("due", _nothing, FixedRate(1))
    clock.suspend(3600)
    assert not scheduler.wait_idle(0)
    clock.step_wall(3600)
    assert scheduler.shutdown() == ShutdownReport(returned=(due.id,))


def test_starts_once() -> None:
    """A second start is refused by name."""
    with simulated() as (scheduler, _, _log), pytest.raises(SchedulerStateError, match="already started"):
        scheduler.start()


def test_waiters_are_told() -> None:
    """Who waits for a run that the shutdown prevents gets a SchedulerStateError, then and later."""
    with threaded() as (scheduler, _, _log):
        task = scheduler.schedule("t", _nothing, OneTime(START + 60))

        def wait() -> object:
            try:
                return scheduler.wait(task, 10)
            except SchedulerStateError as error:
                return error

        thread, found = _in_thread(wait)
        support.eventually(lambda: scheduler.engine.waiting)
        scheduler.shutdown()
        thread.join(5)
        assert isinstance(found[0], SchedulerStateError)
        with pytest.raises(SchedulerStateError, match="shut down"):
            scheduler.wait(task)


def test_who_waits_while_the_listeners_close_is_told() -> None:
    """A wait that begins behind the one that was told first, while a listener holds the end, is told as well."""
    listening, go = threading.Event(), threading.Event()

    class Slow:
        def on_task_event(self, event: object) -> None:
            listening.set()
            go.wait(support.TIMEOUT)

    scheduler = Scheduler(clock=FakeClock(START), pool=InlinePool(), listeners=[Slow()])
    scheduler.start()
    task = scheduler.schedule("t", _nothing, OneTime(START + 100))
    assert listening.wait(support.TIMEOUT)

    def told() -> str:
        with pytest.raises(SchedulerStateError) as failure:
            scheduler.wait(task, support.TIMEOUT)
        return str(failure.value)

    first, one = _in_thread(told)
    support.eventually(lambda: scheduler.engine.waiting)
    ending, _ = _in_thread(lambda: scheduler.shutdown(timeout=support.TIMEOUT))
    first.join(support.TIMEOUT)
    second, other = _in_thread(told)
    support.eventually(lambda: scheduler.engine.waiting)
    go.set()
    for thread in (ending, second):
        thread.join(support.TIMEOUT)
    assert len(one) == 1
    assert other == one


def test_shutdown_while_a_wait_runs_the_call() -> None:
    """The thread in wait_idle that ran the call asks its schedule what follows, for the shutdown waits for that."""
    held = Held()
    with simulated() as (scheduler, clock, _log):
        task = scheduler.schedule("t", held, CronSchedule("* * * * *"))
        scheduler.pause(task)
        clock.advance(90)
        scheduler.resume(task)
        waiting, idle = _in_thread(lambda: scheduler.wait_idle(support.TIMEOUT))
        assert held.started.wait(support.TIMEOUT)
        ending, report = _in_thread(lambda: scheduler.shutdown(timeout=support.TIMEOUT))
        support.eventually(lambda: scheduler._idle_gates, what="the shutdown waits for the run")
        held.release.set()
        for thread in (ending, waiting):
            thread.join(support.TIMEOUT)
        assert idle == [True]
        assert report == [ShutdownReport(finished=(task.id,))]
        assert task.status is S.SCHEDULED


@pytest.mark.parametrize("pool", [lambda: ThreadPool(2), InlinePool])
def test_from_a_listener(pool: Callable[[], object]) -> None:
    """A listener may shut down; its own thread is not waited for, and it still hears the rest."""

    class Closer:
        report: ShutdownReport | None = None

        def on_task_event(self, event: object) -> None:
            if self.report is None and getattr(event, "record", None) is not None:
                self.report = self.scheduler.shutdown(timeout=5)
                self.done.set()

        scheduler: Scheduler
        done = threading.Event()

    closer = Closer()
    scheduler = closer.scheduler = Scheduler(pool=pool(), listeners=[closer])  # type: ignore[arg-type]
    scheduler.start()
    scheduler.schedule("t", _nothing, OneTime(0))
    assert closer.done.wait(5)
    assert closer.report == scheduler.shutdown()


@pytest.mark.parametrize("pool", [lambda: ThreadPool(2), InlinePool])
def test_from_an_action(pool: Callable[[], object]) -> None:
    """An action in this process may shut down; it returns at once and its own run is recorded."""
    scheduler = Scheduler(pool=pool())  # type: ignore[arg-type]
    scheduler.start()
    task = scheduler.schedule("t", lambda: scheduler.shutdown(timeout=5), OneTime(0))
    report = scheduler.wait(task, 5).result
    assert report == ShutdownReport()
    assert scheduler.shutdown().killed == ()
    assert task.status is S.SUCCEEDED


def test_leaving_the_block_drains_and_an_error_does_not_wait() -> None:
    """The context manager drains; left by an exception it ends what runs, and lets the exception pass."""
    with Scheduler(pool=ThreadPool(1)) as scheduler:
        task = scheduler.schedule("t", _nothing, OneTime(0))
    assert task.status is S.SUCCEEDED
    held = Held()
    with pytest.raises(KeyError), Scheduler(pool=ThreadPool(1)) as scheduler:
        hung = scheduler.schedule("t", held, OneTime(0), retry=NO_RETRY)
        assert held.started.wait(5)
        raise KeyError("mine")
    held.release.set()
    assert hung.history[0].outcome is Outcome.KILLED


@pytest.mark.slow
def test_hanging_schedule_does_not_hold_the_shutdown() -> None:
    """A schedule of the user's that hangs in the timer thread: the run is recorded, the shutdown ends."""
    hang = threading.Event()
    entered = threading.Event()

    def following(record: object, now: float) -> None:
        entered.set()
        hang.wait(support.TIMEOUT)

    scheduler = Scheduler(pool=ThreadPool(1))
    scheduler.start()
    task = scheduler.schedule("t", _nothing, Foreign(0.0, following))
    assert entered.wait(5)
    report = scheduler.shutdown(timeout=0.05)
    assert report.finished == (task.id,)
    assert len(task.history) == 1
    assert task.status is S.FAILED
    hang.set()


@pytest.mark.slow
def test_hanging_schedule_fails_no_other_task() -> None:
    """A cron schedule that would be asked behind one that hangs is answered, and its task goes on after a restart."""
    hang, entered = threading.Event(), threading.Event()

    def following(record: object, now: float) -> None:
        entered.set()
        hang.wait(support.TIMEOUT)

    scheduler, held = Scheduler(pool=ThreadPool(2)), Held()
    scheduler.start()
    cron = scheduler.schedule("cron", held, CronSchedule("* * * * * *"))
    assert held.started.wait(support.TIMEOUT)
    hanging = scheduler.schedule("hanging", _nothing, Foreign(0.0, following))
    assert entered.wait(support.TIMEOUT)
    held.release.set()
    support.eventually(lambda: len(scheduler.engine.open_questions) == 2, what="both have run")
    scheduler.shutdown(timeout=0.05)
    hang.set()
    assert hanging.status is S.FAILED
    assert cron.status is S.SCHEDULED
    assert cron.next_run_at is not None
    assert len(cron.history) == 1


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [0.0, 0.3])
def test_what_hangs_does_not_hold_the_shutdown(timeout: float) -> None:
    """What user code is given is bounded: a schedule in the timer, a listener and a store are left behind."""
    hang, asked = threading.Event(), threading.Event()
    came, went = [], []

    class Hangs(InMemoryTaskStore):
        def save(self, task: object) -> None:
            came.append(self)
            hang.wait(6 * support.TIMEOUT)
            went.append(self)

        def on_task_event(self, event: object) -> None:
            self.save(event)

    def following(record: object, now: float) -> None:
        asked.set()
        hang.wait(6 * support.TIMEOUT)
        went.append(None)

    scheduler = Scheduler(pool=ThreadPool(1), store=Hangs(), listeners=[Hangs()])
    scheduler.start()
    try:
        task = scheduler.schedule("t", _nothing, Foreign(0.0, following))
        assert asked.wait(support.TIMEOUT)
        support.eventually(lambda: len(came) == 2)
        report = scheduler.shutdown(timeout=timeout)
        assert report.finished == (task.id,)
        assert (len(came), went) == (2, [])
    finally:
        hang.set()


@pytest.mark.slow
@pytest.mark.parametrize("timeout", [0.0, 10.0])
def test_what_takes_a_moment_is_waited_for(timeout: float) -> None:
    """Listener and store are given what they have not had yet, though no time is left."""

    class Slow(InMemoryTaskStore):
        saved = heard = 0

        def save(self, task: object) -> None:
            threading.Event().wait(0.02)  # a moment
            self.saved += 1

        def on_task_event(self, event: object) -> None:
            threading.Event().wait(0.02)  # a moment
            self.heard += 1

    slow = Slow()
    scheduler = Scheduler(pool=ThreadPool(1), store=slow, listeners=[slow])
    scheduler.start()
    assert scheduler.wait(scheduler.schedule("t", _nothing, OneTime(0)), support.TIMEOUT).ok
    scheduler.shutdown(timeout=timeout)
    assert (slow.saved, slow.heard) == (3, 3)
    assert not any(thread.name.startswith("procsched") for thread in threading.enumerate())


def test_interrupted_shutdown_is_finished_by_the_next_call() -> None:
    """A KeyboardInterrupt in the midst of a shutdown leaves the rest to whoever calls it next."""
    with threaded() as (scheduler, _, _log):
        calls: list[int] = []
        end = scheduler._end_runs

        def interrupted(closing: object) -> bool:
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return end(closing)  # type: ignore[arg-type]

        scheduler._end_runs = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            scheduler.shutdown()
        assert scheduler.shutdown() == ShutdownReport()
        assert calls == [1, 1]


def test_signal_handler_that_interrupts_a_holder_of_the_lock() -> None:
    """A handler that hits the scheduler with its lock held begins the shutdown and returns at once."""
    with threaded() as (scheduler, _, _log):
        reports: list[ShutdownReport] = []
        before = signal.signal(signal.SIGUSR1, lambda *_: reports.append(scheduler.shutdown(timeout=5)))
        try:
            with scheduler._lock:
                os.kill(os.getpid(), signal.SIGUSR1)
                support.eventually(lambda: reports)
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert reports == [ShutdownReport()]
        assert scheduler.shutdown(timeout=5) == ShutdownReport()


def test_signal_handler_that_interrupts_a_wait() -> None:
    """A handler that hits a thread in wait_idle does the whole shutdown, and the wait ends."""
    held = Held()
    with threaded() as (scheduler, _, _log):
        task = scheduler.schedule("t", held, OneTime(START), retry=NO_RETRY)
        assert held.started.wait(5)
        reports: list[ShutdownReport] = []
        before = signal.signal(signal.SIGUSR1, lambda *_: reports.append(scheduler.shutdown(timeout=0)))
        try:
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            assert scheduler.wait_idle(10)
        finally:
            signal.signal(signal.SIGUSR1, before)
            held.release.set()
        assert [report.killed for report in reports] == [(task.id,)]


def test_the_log_names_some_and_counts_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    """A line of the log stays one that can be read; the report has all of them."""
    held = Held()
    with threaded() as (scheduler, _clock, _log):
        scheduler.schedule("running", held, OneTime(START))
        assert held.started.wait(5)
        due = [scheduler.schedule("due", _nothing, OneTime(START)).id for _ in range(25)]
        thread, _found = _in_thread(lambda: scheduler.shutdown(drain=False, timeout=None))
        support.eventually(lambda: scheduler.engine.closing)
        held.release.set()
        thread.join(support.TIMEOUT)
        assert scheduler.shutdown().returned == tuple(due)
    (line,) = [text for text in caplog.messages if "gave back" in text]
    assert line == f"the shutdown gave back the due tasks {', '.join(due[:20])} and 5 more"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.slow
def test_interpreter_exit_ends_a_scheduler_nobody_refers_to() -> None:
    """At exit a running scheduler shuts down without waiting, also after concurrent.futures' own hook."""
    done = run_python(
        "import concurrent.futures, threading, time\n"
        "from procsched import *\n"
        "concurrent.futures.ThreadPoolExecutor(1).submit(int).result()\n"
        "running = threading.Event()\n"
        "class Log:\n"
        "    def on_task_event(self, event):\n"
        "        if event.status is TaskStatus.RUNNING: running.set()\n"
        "        if event.record: print(event.record.outcome, flush=True)\n"
        "def start():\n"
        "    s = Scheduler(pool=ThreadPool(1), listeners=[Log()])\n"
        "    s.start()\n"
        "    s.schedule('t', time.sleep, OneTime(0), args=(100,))\n"
        "    running.wait(30)\n"
        "start()\n"
    )
    told = "the shutdown at the interpreter's exit ended runs of tasks task-1\n"
    assert (done.returncode, done.stderr, done.stdout) == (0, told, "killed\n")


@pytest.mark.slow
def test_fork_gets_a_scheduler_that_refuses() -> None:
    """A child of a fork is told what to do, and leaves the parent's alone, also at its exit."""
    done = run_python(
        "import os, time\n"
        "from procsched import *\n"
        "with Scheduler(pool=ThreadPool(1)) as s:\n"
        "    task = s.schedule('t', int, OneTime(time.time() + 0.2))\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        assert s.shutdown() == ShutdownReport()\n"
        "        for call in (s.tasks, s.stats, lambda: s.cancel(task)):\n"
        "            try: call()\n"
        "            except SchedulerStateError as error: assert 'fork' in str(error)\n"
        "            else: raise SystemExit('not refused')\n"
        "        raise SystemExit(0)\n"
        "    assert os.waitpid(pid, 0)[1] == 0\n"
        "    print(s.wait(task, 5).ok)\n"
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
