"""The life of tasks whose runs are real children: kill, cancel, pause, retries, limits, and what is told of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    FixedDelay,
    FixedRate,
    OneTime,
    Outcome,
    RetryPolicy,
    Scheduler,
    TaskKilledError,
    TaskSerializationError,
    TaskStatus,
    ThreadPool,
)
from tests import faults, support
from tests.pools import assert_reaped, helper_pid, open_gate, told_pids
from tests.schedulers import (
    Rig,
    clean_up_slowly,
    describe_run,
    fail_by,
    grow,
    hang_once,
    steps_and_gate,
    wait_async,
    zeros,
)

S = TaskStatus
QUICK = RetryPolicy(3, 0.01)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as it:
        yield it


# --- kill and cancel ----------------------------------------------------------------------------------------


def test_kill_ends_the_run_and_leaves_the_schedule(rig: Rig) -> None:
    """The run is gone when its record is there; the task goes on with its next slot."""
    told = rig.path()
    task = rig.scheduler.schedule("t", hang_once, FixedDelay(0.01), args=(told, rig.path()))
    pid = told_pids(told)[0]
    assert task.status is S.RUNNING
    assert rig.scheduler.kill(task)
    record = rig.wait(task)
    assert_reaped(pid)
    assert (record.outcome, record.ok, record.run, record.pid) == (Outcome.KILLED, False, 1, pid)
    assert record.error == "killed by request"
    following = rig.wait(task)
    assert (following.outcome, following.result, following.attempt) == (Outcome.SUCCEEDED, "second", 1)
    assert following.run >= 2
    assert rig.scheduler.cancel(task)


def test_kill_of_the_only_run_cancels(rig: Rig) -> None:
    """Where no slot follows, a killed run is the end of its task; there is no retry, and nothing more to kill."""
    told = rig.path()
    task = rig.at_once(faults.sleep, told, retry=QUICK)
    pid = told_pids(told)[0]
    assert rig.scheduler.kill(task.id)
    record = rig.wait(task)
    assert_reaped(pid)
    assert (task.status, record.outcome, len(task.history)) == (S.CANCELLED, Outcome.KILLED, 1)
    assert not rig.scheduler.kill(task)
    assert not rig.scheduler.cancel(task, kill=True)
    assert rig.scheduler.dead_letter() == []


@pytest.mark.parametrize("hang", [faults.hang_in_c, faults.block_signals, faults.stop_itself])
def test_kill_ends_what_cannot_be_asked(rig: Rig, hang: Callable[[str], object]) -> None:
    """A run that holds the GIL, blocks signals or has stopped itself is gone all the same, grace or not."""
    told = rig.path()
    task = rig.at_once(hang, told, grace=0.05)
    pid = told_pids(told)[0]
    assert rig.scheduler.kill(task)
    assert rig.wait(task).outcome is Outcome.KILLED
    assert_reaped(pid)


def test_cancel_lets_the_run_finish(rig: Rig) -> None:
    """The run is recorded as it ends and schedules nothing; a second cancel has nothing to change."""
    gate, told = rig.gate(), rig.path()
    task = rig.scheduler.schedule("t", faults.wait_at_gate, FixedDelay(0), args=(gate, told))
    support.wait_for_file(told)
    assert rig.scheduler.cancel(task)
    assert not rig.scheduler.cancel(task)
    assert (task.status, task.next_run_at) == (S.CANCELLED, None)
    open_gate(gate)
    assert rig.wait(task).outcome is Outcome.SUCCEEDED
    rig.settle()
    assert (task.status, len(task.history), rig.scheduler.pending()) == (S.CANCELLED, 1, 0)


def test_cancelled_run_that_fails_is_not_tried_again(rig: Rig) -> None:
    """A failure after the cancel is recorded, and no retry follows it."""
    told, gate = rig.path(), rig.gate()
    task = rig.at_once(faults.wait_at_gate, gate, told, retry=QUICK)
    pid = told_pids(told)[0]
    assert rig.scheduler.cancel(task)
    os.kill(pid, signal.SIGKILL)
    assert rig.wait(task).outcome is Outcome.CRASHED
    rig.settle()
    assert (task.status, len(task.history), rig.scheduler.pending()) == (S.CANCELLED, 1, 0)


def test_cancel_with_kill_ends_the_run(rig: Rig) -> None:
    """`cancel(kill=True)` withdraws the task and ends its run at once."""
    told = rig.path()
    task = rig.scheduler.schedule("t", faults.sleep, FixedDelay(0), args=(told,))
    pid = told_pids(told)[0]
    assert rig.scheduler.cancel(task, kill=True)
    record = rig.wait(task)
    assert_reaped(pid)
    assert (task.status, record.outcome) == (S.CANCELLED, Outcome.KILLED)
    assert record.error == "killed: the task was cancelled"


def test_cancel_with_kill_reaches_the_run_of_a_cancelled_task(rig: Rig) -> None:
    """Also on a task that is CANCELLED already it says True while its run is alive, and False after it."""
    told = rig.path()
    task = rig.at_once(faults.sleep, told)
    pid = told_pids(told)[0]
    assert rig.scheduler.cancel(task)
    assert rig.scheduler.cancel(task, kill=True)
    assert rig.wait(task).outcome is Outcome.KILLED
    assert_reaped(pid)
    assert not rig.scheduler.cancel(task, kill=True)
    assert len(task.history) == 1


def test_cancel_withdraws_a_task_that_waits_for_a_worker(tmp_path: Path) -> None:
    """With every worker busy a due task is withdrawn before it starts, and leaves no trace in a child."""
    with Rig(tmp_path, 1) as rig:
        gate, told, never = rig.gate(), rig.path(), rig.path()
        busy = rig.at_once(faults.wait_at_gate, gate, told)
        support.wait_for_file(told)
        waiting = rig.at_once(faults.tell_pid, never)
        support.eventually(lambda: rig.scheduler.stats().ready == 1)
        assert rig.scheduler.cancel(waiting)
        with pytest.raises(TaskKilledError, match="never ran"):
            rig.wait(waiting)
        open_gate(gate)
        rig.wait(busy)
        rig.settle()
        assert not os.path.exists(never)


def test_killing_one_task_leaves_the_other(rig: Rig) -> None:
    """The run beside the one that is killed comes out unharmed."""
    gate, told, hung = rig.gate(), rig.path(), rig.path()
    innocent = rig.at_once(faults.wait_at_gate, gate, told, "unharmed")
    victim = rig.at_once(faults.sleep, hung)
    support.wait_for_file(told)
    support.wait_for_file(hung)
    assert rig.scheduler.kill(victim)
    rig.wait(victim)
    open_gate(gate)
    record = rig.wait(innocent)
    assert (record.outcome, record.result) == (Outcome.SUCCEEDED, "unharmed")


# --- pause and resume ---------------------------------------------------------------------------------------


def test_pause_lets_the_run_go_on_and_resume_rejoins_it(rig: Rig) -> None:
    """While its run is alive a task is paused and resumed with no second run."""
    gate, told = rig.gate(), rig.path()
    task = rig.at_once(faults.wait_at_gate, gate, told)
    support.wait_for_file(told)
    assert rig.scheduler.pause(task)
    assert not rig.scheduler.pause(task)
    assert (task.status, task.is_active) == (S.PAUSED, False)
    assert rig.scheduler.resume(task)
    assert not rig.scheduler.resume(task)
    assert task.status is S.RUNNING
    open_gate(gate)
    assert rig.wait(task).ok
    assert (task.status, len(task.history)) == (S.SUCCEEDED, 1)


def by_gate(rig: Rig, gate: str, pid: int, task: Any) -> None:
    open_gate(gate)


def by_signal(rig: Rig, gate: str, pid: int, task: Any) -> None:
    os.kill(pid, signal.SIGKILL)


def by_request(rig: Rig, gate: str, pid: int, task: Any) -> None:
    assert rig.scheduler.kill(task)


@pytest.mark.parametrize(
    ("end", "attempts", "outcome", "status"),
    [
        (by_gate, 1, Outcome.SUCCEEDED, S.SUCCEEDED),
        (by_signal, 1, Outcome.CRASHED, S.FAILED),
        (by_signal, 2, Outcome.CRASHED, S.RETRYING),
        (by_request, 2, Outcome.KILLED, S.CANCELLED),
    ],
)
def test_an_end_while_paused_is_recorded_and_decided_at_the_resume(
    rig: Rig, end: Callable[..., None], attempts: int, outcome: Outcome, status: TaskStatus
) -> None:
    """However a run ends while its task is paused, what follows is what would have followed."""
    gate, told = rig.gate(), rig.path()
    task = rig.at_once(faults.wait_at_gate, gate, told, retry=RetryPolicy(attempts, 60.0))
    pid = told_pids(told)[0]
    assert rig.scheduler.pause(task)
    end(rig, gate, pid, task)
    assert rig.log.wait_for(lambda _: rig.log.runs("t"))
    assert (task.status, [record.outcome for record in task.history]) == (S.PAUSED, [outcome])
    assert rig.scheduler.resume(task)
    assert (task.status, task.attempt) == (status, 1)
    assert rig.scheduler.dead_letter() == ([task.id] if status is S.FAILED else [])


def test_a_retry_that_waited_while_paused_goes_on_at_the_resume(rig: Rig) -> None:
    """The attempt count is kept: the second attempt runs after the resume, and only then."""
    task = rig.at_once(fail_by, rig.path(), 2, "crash", retry=RetryPolicy(2, 60.0))
    assert rig.log.wait_for(lambda _: rig.log.runs("t"))
    support.eventually(lambda: task.status is S.RETRYING)
    assert rig.scheduler.pause(task)
    assert rig.scheduler.pending() == 0
    assert rig.scheduler.resume(task)
    assert (task.status, task.attempt, rig.scheduler.pending()) == (S.RETRYING, 1, 1)


# --- attempts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "outcome", "error"),
    [
        ("raise", Outcome.FAILED, "ValueError: attempt {}"),
        ("crash", Outcome.CRASHED, "worker died: exit code 5"),
        ("segfault", Outcome.CRASHED, "worker died: SIGSEGV"),
        ("hang", Outcome.TIMED_OUT, "exceeded its 0.3 s budget"),
    ],
)
def test_failed_attempts_are_retried_and_each_has_its_record(
    rig: Rig, how: str, outcome: Outcome, error: str
) -> None:
    """An exception, a crash and a timeout are all tried again; every attempt is recorded, the slot is the same."""
    told = rig.path()
    task = rig.at_once(fail_by, told, 3, how, retry=QUICK, timeout=0.3 if how == "hang" else None)
    last = rig.wait(task)
    records = task.history
    assert (last.attempt, last.result, task.status) == (3, 3, S.SUCCEEDED)
    assert [record.attempt for record in records] == [1, 2, 3]
    assert [record.outcome for record in records] == [outcome, outcome, Outcome.SUCCEEDED]
    assert [record.error for record in records] == [error.format(1), error.format(2), None]
    assert {(record.run, record.due_at) for record in records} == {(1, records[0].due_at)}
    assert [record.timed_out for record in records] == [how == "hang"] * 2 + [False]
    pids = [int(word) for word in support.wait_for_file(told, lines=3).split()]
    assert [record.pid for record in records] == pids
    rig.settle()
    assert [event.record for event in rig.log.runs("t")] == records
    assert rig.scheduler.stats().counters["retried"] == 2


def test_each_attempt_is_told_once_with_its_record(rig: Rig) -> None:
    """The events of a task are its transitions; exactly those that end an attempt carry a record."""
    task = rig.at_once(fail_by, rig.path(), 2, "crash", retry=QUICK)
    rig.wait(task)
    rig.settle()
    told = [(event.status, event.record is not None) for event in rig.log.events if event.name == "t"]
    assert told == [
        (S.SCHEDULED, False),
        (S.RUNNING, False),
        (S.RETRYING, True),
        (S.RUNNING, False),
        (S.SUCCEEDED, True),
    ]


def test_exhausted_attempts_end_in_the_dead_letter_and_are_revived(rig: Rig) -> None:
    """A task that crashes each time is FAILED; revived, it starts anew with the first attempt of a new run."""
    task = rig.at_once(faults.exit_hard, 4, retry=RetryPolicy(2, 0.01))
    assert rig.wait(task).attempt == 2
    assert (task.status, rig.scheduler.dead_letter()) == (S.FAILED, [task.id])
    assert rig.scheduler.revive(task)
    assert rig.scheduler.dead_letter() == []
    record = rig.wait(task)
    assert [(r.run, r.attempt) for r in task.history] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert (record.exit_code, record.error) == (4, "worker died: exit code 4")
    assert rig.scheduler.dead_letter() == [task.id]


@pytest.mark.parametrize("goes_on", [False, True])
def test_a_recurring_task_that_is_exhausted(rig: Rig, goes_on: bool) -> None:
    """It goes to the dead letter, or with "continue" keeps its schedule and notes each failure."""
    told = rig.path()
    task = rig.scheduler.schedule(
        "t",
        fail_by,
        FixedDelay(0.01),
        args=(told, 99, "crash"),
        retry=RetryPolicy(2, 0.01),
        on_exhausted="continue" if goes_on else "dead_letter",
    )
    support.wait_for_file(told, lines=4 if goes_on else 2)
    if goes_on:
        assert rig.log.wait_for(lambda _: len(rig.log.runs("t")) >= 4)
        assert rig.scheduler.cancel(task)
        assert [(r.run, r.attempt) for r in task.history[:4]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
        assert rig.scheduler.dead_letter() == []
        return
    rig.settle()
    assert (task.status, len(task.history), task.next_run_at) == (S.FAILED, 2, None)
    assert rig.scheduler.dead_letter() == [task.id]


def test_a_lost_attempt_is_tried_again(rig: Rig) -> None:
    """When the helper dies under a run, the attempt is LOST, and the next one runs in a new worker."""
    told = rig.path()
    task = rig.at_once(hang_once, told, rig.path(), retry=QUICK)
    pid = told_pids(told)[0]
    os.kill(helper_pid(), signal.SIGKILL)
    assert rig.wait(task).result == "second"
    assert [record.outcome for record in task.history] == [Outcome.LOST, Outcome.SUCCEEDED]
    support.assert_gone(pid)
    assert "helper" in (task.history[0].error or "")
    assert any("helper" in problem for problem in rig.scheduler.stats().problems)


# --- limits of time -----------------------------------------------------------------------------------------


def test_a_timeout_ends_the_run_and_says_where_it_was(rig: Rig) -> None:
    """The record of a run that was ended at its deadline names the budget and the line that hung."""
    told = rig.path()
    record = rig.wait(rig.at_once(faults.sleep, told, timeout=0.3))
    assert_reaped(record.pid)
    assert (record.outcome, record.ok, record.timed_out) == (Outcome.TIMED_OUT, False, True)
    assert record.error == "exceeded its 0.3 s budget"
    assert "faults.py" in (record.stack or "")
    assert record.duration >= 0.3


def test_a_soft_timeout_may_be_caught_or_not(rig: Rig) -> None:
    """A run that leaves by it is TIMED_OUT and keeps its worker; one that catches it and returns succeeds."""
    caught = rig.at_once(faults.swallow_once, soft_timeout=0.2)
    left = rig.at_once(faults.sleep, rig.path(), soft_timeout=0.2)
    assert (rig.wait(caught).outcome, rig.wait(caught).result) == (Outcome.SUCCEEDED, "swallowed")
    record = rig.wait(left)
    assert (record.outcome, record.error) == (Outcome.TIMED_OUT, "exceeded its 0.2 s soft limit")


@pytest.mark.parametrize("action", [faults.clean_up, faults.clean_up_async])
@pytest.mark.parametrize("how", ["timeout", "kill", "cancel"])
def test_a_grace_lets_a_run_clean_up(rig: Rig, action: Callable[[str], object], how: str) -> None:
    """Within its grace a run is asked to stop, says what it was asked by, and its `finally` runs."""
    told = rig.path()
    task = rig.at_once(action, told, grace=8.0, timeout=0.3 if how == "timeout" else None)
    support.wait_for_file(told)
    if how == "kill":
        assert rig.scheduler.kill(task)
    elif how == "cancel":
        assert rig.scheduler.cancel(task, kill=True)
    record = rig.wait(task)
    lines = support.wait_for_file(told, lines=3).split()
    assert lines[0] == "began"
    assert lines[2] == "cleaned"
    if action is faults.clean_up:
        assert lines[1] == ("TaskTimeoutError" if how == "timeout" else "TaskKilledError")
    assert record.outcome is (Outcome.TIMED_OUT if how == "timeout" else Outcome.KILLED)


def test_killing_what_is_in_its_grace_changes_nothing(rig: Rig) -> None:
    """Who asks to end a run that is being ended already hears False, and the first verdict stands."""
    told = rig.path()
    task = rig.at_once(clean_up_slowly, told, grace=8.0)
    support.wait_for_file(told)
    assert rig.scheduler.kill(task)
    assert not rig.scheduler.kill(task)
    record = rig.wait(task)
    assert (record.outcome, record.error) == (Outcome.KILLED, "killed by request")
    assert task.status is S.CANCELLED


# --- what a run says ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [0, 1, 2], ids=["returns", "raises", "crashes"])
def test_output_is_captured_where_it_is_wanted(rig: Rig, end: int) -> None:
    """The end of both streams is in the record, however the run ended; without the option nothing is kept."""
    wanted = rig.at_once(faults.say_and, "loud", end, capture_output=True)
    record = rig.wait(wanted)
    assert (record.output or "").splitlines() == ["out loud", "err loud"]
    assert not record.output_truncated


def test_progress_becomes_events(rig: Rig) -> None:
    """Each step is an event in the parent while the run is alive, in order, and none carries a record."""
    gate = rig.gate()
    task = rig.at_once(steps_and_gate, gate)

    def steps() -> list[Any]:
        return [event.progress for event in rig.log.events if event.kind == "progress"]

    assert rig.log.wait_for(lambda _: len(steps()) == 3)
    assert task.status is S.RUNNING
    assert steps() == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]
    open_gate(gate)
    rig.wait(task)
    told = [event for event in rig.log.events if event.kind == "progress"]
    assert {(event.task_id, event.name, event.status, event.record) for event in told} == {
        (task.id, "t", S.RUNNING, None)
    }


def test_an_action_knows_its_run(rig: Rig) -> None:
    """Id, name, attempt, run and deadline inside the action are those of the record."""
    task = rig.at_once(describe_run, name="nightly", timeout=100)
    record = rig.wait(task)
    known = record.result
    assert (known["id"], known["name"]) == (task.id, "nightly")
    assert (known["attempt"], known["run"]) == (record.attempt, record.run) == (1, 1)
    assert 0 < known["remaining"] <= 100
    assert record.started_at < known["deadline"] <= record.finished_at + 100
    free = rig.wait(rig.at_once(describe_run)).result
    assert (free["deadline"], free["remaining"]) == (None, None)


def test_an_action_knows_its_attempt_and_run(rig: Rig) -> None:
    """Further attempts and further runs are numbered inside the action as in the records."""
    told = rig.path()
    task = rig.scheduler.schedule(
        "t", fail_by, FixedDelay(0.01), args=(told, 2, "crash"), retry=RetryPolicy(2, 0.01)
    )
    assert rig.log.wait_for(lambda _: len(rig.log.runs("t")) >= 4)
    assert rig.scheduler.cancel(task)
    first = task.history[:4]
    assert [(r.run, r.attempt, r.result) for r in first] == [(1, 1, None), (1, 2, 2), (2, 1, None), (2, 2, 2)]


def test_a_result_over_the_limit_is_dropped_and_said_so(tmp_path: Path) -> None:
    """A large result is not kept, the run has succeeded all the same; a small one is kept."""
    with Rig(tmp_path, result_limit=1000) as rig:
        large = rig.wait(rig.at_once(zeros, 5000))
        assert large.ok
        assert "bytes not kept" in repr(large.result)
        assert rig.wait(rig.at_once(zeros, 500)).result == zeros(500)


def test_arguments_are_frozen_when_scheduled(rig: Rig) -> None:
    """Neither the caller nor a run can change what the next run is given."""
    values, table = [0], {"given": 1}
    task = rig.scheduler.schedule("t", grow, FixedDelay(0.01, 0.05), args=(values,), kwargs={"table": table})
    values.append(99)
    table["late"] = 1
    assert rig.log.wait_for(lambda _: len(rig.log.runs("t")) >= 3)
    assert rig.scheduler.cancel(task)
    results = [record.result for record in task.history]
    assert results[:3] == [([0, 1], {"given": 1, "seen": 1})] * 3


def test_async_actions_run(rig: Rig) -> None:
    """An `async def` action is run to its end in the child."""
    assert rig.wait(rig.at_once(wait_async, "awaited")).result == "awaited"


def test_closures_and_lambdas_run(rig: Rig) -> None:
    """What plain pickle refuses travels by value, with what it has captured."""
    factor = 3
    assert rig.wait(rig.at_once(lambda value: value * factor, 14)).result == 42


def test_what_cannot_be_pickled_is_refused_in_the_caller(rig: Rig) -> None:
    """The error names what it is and nothing is registered; a ThreadPool takes the same action."""
    lock = threading.Lock()
    with pytest.raises(TaskSerializationError, match=r"lock.*ThreadPool"):
        rig.at_once(faults.identity, lock)
    assert rig.scheduler.tasks() == []
    with Scheduler(pool=ThreadPool(1)) as threads:
        task = threads.schedule("t", faults.identity, OneTime(0), args=(lock,))
        assert threads.wait(task, support.TIMEOUT).result is lock


# --- waiting ------------------------------------------------------------------------------------------------


def test_wait_gives_up_in_time_and_may_be_asked_again(rig: Rig) -> None:
    """A wait with a limit ends with TimeoutError while the run is alive; the run goes on, and so may the wait."""
    gate, told = rig.gate(), rig.path()
    task = rig.at_once(faults.wait_at_gate, gate, told)
    support.wait_for_file(told)
    with pytest.raises(TimeoutError):
        rig.scheduler.wait(task, 0.02)
    assert not rig.scheduler.wait_idle(0.02)
    assert not rig.log.wait_for(lambda _: rig.log.runs("t"), 0.02)
    open_gate(gate)
    assert rig.wait(task).ok
    assert rig.scheduler.wait(task, 0).ok
    assert rig.scheduler.wait_idle(support.TIMEOUT)
    assert len(rig.log.runs("t")) == 1


def test_wait_ends_with_the_run_and_not_with_an_attempt(rig: Rig) -> None:
    """Many threads that wait for one task all get the record that ends its run."""
    found: list[Any] = []
    gate, told = rig.gate(), rig.path()
    task = rig.at_once(faults.wait_at_gate, gate, told, retry=QUICK)
    threads = [threading.Thread(target=lambda: found.append(rig.wait(task))) for _ in range(5)]
    for thread in threads:
        thread.start()
    os.kill(told_pids(told)[0], signal.SIGKILL)
    support.wait_for_file(told, lines=2)
    open_gate(gate)
    for thread in threads:
        thread.join(support.TIMEOUT)
    assert [record.attempt for record in found] == [2] * 5


def test_history_keeps_the_newest(tmp_path: Path) -> None:
    """A task remembers as many records as its scheduler is told to; the events have them all."""
    with Rig(tmp_path, history_limit=3) as rig:
        task = rig.scheduler.schedule("t", faults.add, FixedDelay(0), args=(1, 1))
        assert rig.log.wait_for(lambda _: len(rig.log.runs("t")) >= 6)
        rig.scheduler.cancel(task)
        rig.settle()
        runs = [event.record.run for event in rig.log.runs("t") if event.record is not None]
        assert runs == list(range(1, len(runs) + 1))
        assert [record.run for record in task.history] == runs[-3:]


def test_stats_show_who_runs_what(rig: Rig) -> None:
    """A busy worker is shown with its pid, its task and its memory; what waits is counted."""
    told, gate = rig.path(), rig.gate()
    task = rig.at_once(faults.wait_at_gate, gate, told)
    pid = told_pids(told)[0]
    stats = rig.scheduler.stats()
    busy = [worker for worker in stats.workers if worker.state == "busy"]
    assert [(worker.pid, worker.task_id) for worker in busy] == [(pid, task.id)]
    assert (busy[0].rss or 0) > 1 << 20
    assert (stats.running, stats.ready, stats.tasks, stats.problems) == (1, 0, 1, ())
    open_gate(gate)
    rig.wait(task)


def test_a_rate_skips_what_its_own_run_outlasts(rig: Rig) -> None:
    """Slots that pass while the run of a rate is alive are skipped and counted; the grid stays."""
    gate, told = rig.gate(), rig.path()
    task = rig.scheduler.schedule("t", faults.wait_at_gate, FixedRate(0.05), args=(gate, told))
    support.wait_for_file(told)
    assert task.next_run_at is None
    start = rig.scheduler.clock.monotonic()
    support.eventually(lambda: rig.scheduler.clock.monotonic() > start + 0.2)
    open_gate(gate)
    support.wait_for_file(told, lines=2)
    assert rig.scheduler.cancel(task)
    open_gate(gate)
    rig.settle()
    first, second = task.history
    assert first.due_at is not None
    assert second.due_at is not None
    steps = (second.due_at - first.due_at) / 0.05
    assert steps == pytest.approx(round(steps), abs=1e-3)
    assert rig.scheduler.stats().counters["skipped"] == round(steps) - 1 >= 3


def test_errors_of_a_crash_can_be_told_apart(rig: Rig) -> None:
    """A raise, an exit and a signal in one scheduler are three records with their own words."""
    tasks = [
        rig.at_once(faults.raise_awkward, "plain"),
        rig.at_once(faults.exit_hard, 7),
        rig.at_once(faults.kill_itself),
        rig.at_once(faults.exit_soft, 3),
    ]
    found = [
        (record.outcome, record.error, record.exit_code, record.signal) for record in map(rig.wait, tasks)
    ]
    assert found == [
        (Outcome.FAILED, "ValueError: bad row", None, None),
        (Outcome.CRASHED, "worker died: exit code 7", 7, None),
        (Outcome.CRASHED, "worker died: SIGKILL", None, "SIGKILL"),
        (Outcome.FAILED, "SystemExit: 3", None, None),
    ]
