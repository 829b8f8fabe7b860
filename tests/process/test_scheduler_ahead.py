"""Tasks that were sent to a worker ahead of their start: everything holds for them that holds for those that wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsched import NO_RETRY, OneTime, Outcome, Priority, ScheduledTask, Scheduler, TaskStatus
from procsched._core.entries import LENT, READY
from procsched.child.protocol import ANSWERED
from procsched.workers import sending
from procsched.workers.base import pace_of
from procsched.workers.process import Worker
from tests import faults, support
from tests.pools import deaf, open_gate
from tests.schedulers import Rig

S = TaskStatus
BRIEF = 1e-5  # seconds


def note(path: str, word: str, gate: str = "") -> None:
    """Write a word; wait at the gate, if there is one. The word "dirty" leaves a thread behind."""
    support.tell(path, word)
    if gate:
        faults.wait_at_gate(gate)
    if word == "dirty":
        faults.leave_thread()


@pytest.fixture(autouse=True)
def nothing_gathers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may be sent ahead is sent at once."""
    monkeypatch.setattr(Worker, "may_gather_locked", lambda _worker: 0)


class Behind:
    """A worker that waits at a gate, in a function thought to be brief, and tasks that were sent to it meanwhile."""

    def __init__(self, rig: Rig, count: int = 5) -> None:
        self.rig = rig
        self.scheduler = rig.scheduler
        self.path = rig.path("log")
        self.gate = rig.gate()
        self.engine = self.scheduler.engine
        rig.wait(rig.at_once(note, rig.path(), "warm"))
        pace_of(note).seconds = BRIEF
        self.first = rig.at_once(note, self.path, "first", self.gate)
        support.wait_for_file(self.path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sending, "BRIEF", 3600.0)  # so that the first is not found out
            self.tasks = [self.add(f"t{number}") for number in range(count)]
            support.eventually(lambda: self.engine.ready.lent == count, what="all are sent ahead")

    def add(self, word: str, priority: Priority = Priority.NORMAL, key: str | None = None) -> ScheduledTask:
        return self.scheduler.schedule(
            word, note, OneTime(0.0), args=(self.path, word), retry=NO_RETRY, priority=priority, key=key
        )

    def open(self) -> None:
        """Let the first one through, and wait until all is done."""
        open_gate(self.gate)
        self.rig.settle()

    def words(self) -> list[str]:
        """Return what was run, in order."""
        return Path(self.path).read_text().split()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, 1) as it:
        yield it


@pytest.fixture
def behind(rig: Rig) -> Behind:
    return Behind(rig)


def test_what_is_sent_ahead_still_waits(behind: Behind) -> None:
    """Until it begins a task is SCHEDULED, pending, without a record; then all run once, in order."""
    assert [task.status for task in behind.tasks] == [S.SCHEDULED] * 5
    assert behind.scheduler.stats().running == 1
    assert not any(task.history for task in behind.tasks)
    behind.open()
    assert behind.words() == ["first", "t0", "t1", "t2", "t3", "t4"]
    assert [task.status for task in behind.tasks] == [S.SUCCEEDED] * 5
    for task in behind.tasks:
        record = task.last_run()
        assert record is not None
        assert 0 <= record.duration < support.TIMEOUT
        assert record.attempt == record.run == 1


def test_an_end_that_is_heard_with_the_one_before(rig: Rig) -> None:
    """A run whose answer comes together with the one before it has its record, also if it ends its worker."""
    behind = Behind(rig, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "BRIEF", 3600.0)
        tasks = [behind.add(word) for word in ("dirty", "t1")]
        support.eventually(lambda: behind.engine.ready.lent == 2, what="both are sent ahead")
    worker = next(each for each in rig.scheduler.pool.fleet.workers.values() if each.call is not None)
    with rig.scheduler.pool.reading:  # nobody hears of anything meanwhile
        open_gate(behind.gate)
        last = worker.last_number - 1
        support.eventually(lambda: worker.page[ANSWERED] >= last, what="the one that is dirty has answered")
    records = [rig.scheduler.wait(task, support.TIMEOUT) for task in tasks]
    assert [record.outcome for record in records] == [Outcome.SUCCEEDED] * 2
    assert behind.words() == ["first", "dirty", "t1"]
    assert records[0].pid != records[1].pid


def test_cancelled_before_its_start(behind: Behind) -> None:
    """A task that was sent ahead is withdrawn like one that waits: no run, no record; the others run."""
    assert behind.scheduler.cancel(behind.tasks[1])
    assert behind.tasks[1].status is S.CANCELLED
    behind.open()
    assert behind.words() == ["first", "t0", "t2", "t3", "t4"]
    assert not behind.tasks[1].history


def test_nothing_to_kill_before_its_start(behind: Behind) -> None:
    """`kill` finds no run of a task that has not begun, and leaves it to run."""
    assert not behind.scheduler.kill(behind.tasks[0])
    behind.open()
    assert behind.words() == ["first", "t0", "t1", "t2", "t3", "t4"]


def test_paused_before_its_start(behind: Behind) -> None:
    """A task that is paused after it was sent ahead does not start until it is resumed."""
    assert behind.scheduler.pause(behind.tasks[0])
    behind.open()
    assert behind.words() == ["first", "t1", "t2", "t3", "t4"]
    assert behind.scheduler.resume(behind.tasks[0])
    behind.rig.settle()
    assert behind.words() == ["first", "t1", "t2", "t3", "t4", "t0"]


def test_outrun_by_a_more_urgent_one_that_is_resumed(behind: Behind) -> None:
    """A task of high priority that a thread resumes starts before those that were sent ahead meanwhile."""
    scheduler = behind.scheduler
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "BRIEF", 3600.0)
        urgent = behind.add("urgent", Priority.HIGH)
        assert scheduler.pause(urgent)
        scheduler.pool.pump()
        support.eventually(lambda: behind.engine.ready.lent == 5, what="the others are sent ahead again")
    thread = threading.Thread(target=scheduler.resume, args=(urgent,))
    thread.start()
    thread.join(support.TIMEOUT)
    behind.open()
    assert behind.words() == ["first", "urgent", "t0", "t1", "t2", "t3", "t4"]


def test_outrun_by_a_more_urgent_one(behind: Behind) -> None:
    """A task of high priority starts before those that were sent ahead, though it came later."""
    urgent = behind.add("urgent", Priority.HIGH)
    support.eventually(
        lambda: behind.engine.entries[urgent.task.id].queued in (READY, LENT), what="it is due"
    )
    behind.open()
    assert behind.words() == ["first", "urgent", "t0", "t1", "t2", "t3", "t4"]


def test_killing_the_one_before_leaves_them_alone(behind: Behind) -> None:
    """Those behind a run that is killed run once, elsewhere."""
    assert behind.scheduler.kill(behind.first)
    behind.rig.settle()
    record = behind.first.last_run()
    assert record is not None
    assert record.outcome is Outcome.KILLED
    assert behind.words() == ["first", "t0", "t1", "t2", "t3", "t4"]
    assert all(len(task.history) == 1 for task in behind.tasks)


def test_shutdown_returns_them(behind: Behind) -> None:
    """A shutdown without drain gives back what was sent ahead and not begun."""
    report = behind.scheduler.shutdown(drain=False, timeout=0)
    assert sorted(report.returned) == sorted(task.task.id for task in behind.tasks)
    assert report.killed == (behind.first.task.id,)
    assert behind.words() == ["first"]


def test_shutdown_drains_them(behind: Behind) -> None:
    """One with drain runs them."""
    open_gate(behind.gate)
    report = behind.scheduler.shutdown(drain=True, timeout=support.TIMEOUT)
    assert report.returned == ()
    assert behind.words() == ["first", "t0", "t1", "t2", "t3", "t4"]


def test_replaced_by_key(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new task of the same key replaces one that was sent ahead: that never runs."""
    behind = Behind(rig, 0)
    monkeypatch.setattr(sending, "BRIEF", 3600.0)  # so that the first is not found out
    old = behind.add("old", key="k")
    support.eventually(lambda: behind.engine.ready.lent == 1, what="it is sent ahead")
    new = rig.scheduler.schedule(
        "new", note, OneTime(0.0), args=(behind.path, "new"), key="k", replace=True, retry=NO_RETRY
    )
    behind.open()
    assert behind.words() == ["first", "new"]
    assert (old.status, new.status) == (S.CANCELLED, S.SUCCEEDED)


def test_a_free_worker_takes_them_over(tmp_path: Path) -> None:
    """What was sent ahead behind a run that turns out long does not wait for its end where a worker is free."""
    with Rig(tmp_path, 2) as rig:
        gates = [rig.gate(), rig.gate()]
        path = rig.path("log")
        rig.wait(rig.at_once(note, rig.path(), "warm"))
        pace_of(note).seconds = BRIEF
        held = [rig.at_once(note, path, "held", gate) for gate in gates]
        support.wait_for_file(path, lines=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sending, "BRIEF", 3600.0)  # so that they are not found out
            tasks = [rig.at_once(note, path, f"t{number}") for number in range(6)]
            support.eventually(lambda: rig.scheduler.engine.ready.lent == 6, what="all are sent ahead")
        open_gate(gates[0])
        for task in tasks:
            assert rig.wait(task).ok
        open_gate(gates[1])
        assert all(rig.wait(task).ok for task in held)
        words = Path(path).read_text().split()
        assert sorted(words) == sorted(["held", "held", *(f"t{number}" for number in range(6))])


def test_nothing_is_sent_behind_what_is_not_known(tmp_path: Path) -> None:
    """Behind the first call of a function nothing is sent: how long it takes is not known."""
    with Scheduler(1) as scheduler:
        gate = str(tmp_path / "gate")
        os.mkfifo(gate)
        scheduler.schedule("first", faults.wait_at_gate, OneTime(0.0), args=(gate,))
        support.eventually(lambda: scheduler.stats().running == 1)
        later = [scheduler.schedule("t", abs, OneTime(0.0), args=(-1,)) for _ in range(3)]
        support.eventually(lambda: len(scheduler.engine.ready) == 3)
        assert scheduler.engine.ready.lent == 0
        open_gate(gate)
        for task in later:
            assert scheduler.wait(task, support.TIMEOUT).ok


@pytest.mark.parametrize("then", ["thread", "process", "mask", "junk"])
def test_the_end_of_its_worker_is_heard_together_with_the_end_before(rig: Rig, then: str) -> None:
    """A task that began and ended with its worker before anybody heard of it has its record all the same."""
    scheduler, path, gate = rig.scheduler, rig.path("log"), rig.gate()
    rig.wait(rig.at_once(faults.maybe))
    pace_of(faults.maybe).seconds = BRIEF
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "BRIEF", 3600.0)  # so that the first is not found out
        first = rig.at_once(faults.maybe, path, "first", gate)
        support.wait_for_file(path)
        second = rig.at_once(faults.maybe, path, "second", "", then)
        support.eventually(lambda: scheduler.engine.ready.lent == 1, what="the second is sent ahead")
    (worker,) = scheduler.pool.busy
    number = worker.ahead[-1].number
    with deaf(scheduler.pool.loop):
        open_gate(gate)
        support.wait_for_file(path, lines=2)
        if then != "junk":
            support.eventually(lambda: worker.page[ANSWERED] >= number, what="both are answered")
    record = rig.wait(second)
    assert record.outcome is (Outcome.CRASHED if then == "junk" else Outcome.SUCCEEDED), record
    assert rig.wait(first).outcome is Outcome.SUCCEEDED
    rig.settle()
    assert len(second.history) == 1
