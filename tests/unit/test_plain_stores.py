"""Going on from a store that keeps nothing but tasks: a dictionary, a file of pickles, the store in memory."""

from __future__ import annotations

import logging
import pathlib
import pickle
import re
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    After,
    ExecutionRecord,
    FakeClock,
    FixedRate,
    InlinePool,
    InMemoryTaskStore,
    MisfirePolicy,
    OneTime,
    Outcome,
    RetryPolicy,
    ScheduledTask,
    Scheduler,
    SchedulerStateError,
    StoreError,
    Task,
    TaskStatus,
)
from procsched._core.snapshots import entry_of
from procsched.stores import base
from tests import stored, support
from tests.unit.scheduling import SCHEDULES, START, Foreign, offsets

S = TaskStatus
DAY = 86_400.0
TRY_LATER = RetryPolicy(3, 600.0, max_backoff=600.0)


class DictStore:
    """The smallest store there is: it keeps and gives the very objects that it was given."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}
        self.threads: set[str] = set()

    def save(self, task: ScheduledTask) -> None:
        self.threads.add(threading.current_thread().name)
        self.kept[task.id] = task

    def delete(self, task_id: str) -> None:
        self.kept.pop(task_id, None)

    def load_all(self) -> Iterable[ScheduledTask]:
        self.threads.add(threading.current_thread().name)
        return self.kept.values()

    def copy(self) -> DictStore:
        """Return what a process that is killed now leaves to its successor."""
        after = type(self)()
        after.kept = dict(self.kept)
        return after


class PickleStore(DictStore):
    """One that keeps bytes, as a file would."""

    def save(self, task: ScheduledTask) -> None:
        self.kept[task.id] = pickle.dumps(task)

    def load_all(self) -> Iterable[ScheduledTask]:
        return map(pickle.loads, self.kept.values())


class Memory(InMemoryTaskStore):
    """The store in memory, with a copy. A subclass is written by a thread."""

    def copy(self) -> InMemoryTaskStore:
        after = InMemoryTaskStore()
        for task in self.load_all():
            after.save(task)
        return after


@pytest.fixture(params=[DictStore, PickleStore, Memory])
def store(request: pytest.FixtureRequest) -> Any:
    return request.param()


def going_on(store: Any, at: float = 0.0, **options: Any) -> Any:
    """Give a further scheduler on a store, so many seconds after the start of the test."""
    return stored.simulated("", FakeClock(START + at), store=store, **options)


in_the_midst: list[Callable[[], None]] = []


def run() -> None:
    """Do what the test wants to be done in the midst of a run."""
    in_the_midst[-1]()


def crash_in(store: Any, *calls: Callable[[Scheduler], object], **options: Any) -> Any:
    """Return what a crash leaves in the midst of the last run of a task, 150 s after the start of the test.

    Args:
        calls: what is done with the scheduler in that run.
        options: of the task.
    """
    left: list[Any] = []
    with going_on(store) as (scheduler, clock, _log):

        def crash() -> None:
            if clock.now() < START + 150:
                return
            for call in calls:
                call(scheduler)
            assert scheduler.writer.flush(support.TIMEOUT)
            left.append(store.copy())

        in_the_midst.append(crash)
        scheduler.schedule("t", run, **options)
        for _ in range(3):
            clock.advance(50)
    in_the_midst.clear()
    return left[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_task_comes_back_as_it_was(store: Any, schedule: Any) -> None:
    """Once, with all its settings and its slot; it runs, and its id is not given again."""
    with going_on(store) as (scheduler, _clock, _log):
        first = scheduler.schedule("t", stored.nothing, schedule, args=(1,), key="k")
        planned = first.next_run_at
    with going_on(store, 10) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert task is not first
        assert task.task == first.task
        assert (task.schedule, task.status, task.next_run_at) == (schedule, S.SCHEDULED, planned)
        assert scheduler.schedule("t", stored.nothing, schedule, key="k") is task
        assert scheduler.schedule("other", stored.nothing, After(DAY)).id == "task-2"
        clock.advance(planned - clock.now())
        assert [record.due_at for record in task.history] == [planned]
        assert first.status is S.SCHEDULED  # what the first scheduler gave is none of this one's
        assert first.history == []


def test_nothing_of_it_is_shared(store: Any) -> None:
    """What the store gave may be its own: it changes neither with the task nor with what the store does to it."""
    with going_on(store) as (scheduler, _clock, _log):
        scheduler.schedule("t", stored.nothing, FixedRate(60, start_delay=60))
    before = {task.id: (task, task.status, len(task.history)) for task in store.load_all()}
    with going_on(store.copy(), 60) as (scheduler, _clock, _log):
        assert len(scheduler.tasks()[0].history) == 1
        scheduler.cancel("task-1")
    assert {each.id: (each.status, len(each.history)) for each, _status, _records in before.values()} == {
        "task-1": (S.SCHEDULED, 0)
    }


def test_a_retry_goes_on_at_its_time(store: Any) -> None:
    """With the number of its attempt, and on the slot of its run."""
    with going_on(store) as (scheduler, _clock, _log):
        scheduler.schedule("t", stored.fail, FixedRate(DAY), retry=TRY_LATER)
    with going_on(store, 100) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        assert (task.status, task.attempt, task.next_run_at) == (S.RETRYING, 1, START + 600)
        clock.advance(500)
        assert [(each.run, each.attempt, each.due_at) for each in task.history] == [
            (1, 1, START),
            (1, 2, START),
        ]
        clock.advance(600)
        assert (task.status, scheduler.dead_letter()) == (S.FAILED, ["task-1"])


@pytest.mark.parametrize("policy", list(MisfirePolicy))
def test_slots_that_passed_follow_the_policy(store: Any, policy: MisfirePolicy) -> None:
    """As after any time in which nothing could run."""
    with going_on(store) as (scheduler, _clock, _log):
        scheduler.schedule("t", stored.nothing, FixedRate(60, start_delay=60), misfire=policy)
    with going_on(store, 200) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        expected = {"run_once": [180.0], "skip": [], "catch_up": [60.0, 120.0, 180.0]}[policy]
        assert offsets(task.history) == expected
        clock.advance(40)
        assert offsets(task.history) == [*expected, 240.0]


# --- what ran -----------------------------------------------------------------------------------------------


def test_what_ran_is_lost_and_tried_again(store: Any) -> None:
    """With a record that says so, on the slot of its run; the grid keeps its anchor."""
    after = crash_in(store, schedule=FixedRate(50), retry=TRY_LATER)
    with going_on(after, 170) as (scheduler, clock, log):
        (task,) = scheduler.tasks()
        last = task.last_run()
        assert (last.outcome, last.run, last.attempt, last.due_at) == (Outcome.LOST, 4, 1, START + 150)
        assert "its scheduler ended while this ran" in last.error
        assert (task.status, task.next_run_at) == (S.RETRYING, START + 750)
        assert len([event for event in log.events if event.record is last]) == 1
        in_the_midst.append(lambda: None)
        clock.advance(580)
        assert [(each.run, each.attempt) for each in task.history[-2:]] == [(4, 1), (4, 2)]
        assert task.next_run_at == START + 800


def test_what_may_be_tried_but_once_is_not_repeated(store: Any) -> None:
    """Its retries are exhausted by that, as after any other failure."""
    after = crash_in(store, schedule=OneTime(START + 150), retry=NO_RETRY)
    with going_on(after, 170) as (scheduler, _clock, _log):
        (task,) = scheduler.tasks()
        assert (task.status, scheduler.dead_letter()) == (S.FAILED, ["task-1"])
        assert [(each.outcome, each.due_at) for each in task.history] == [(Outcome.LOST, START + 150)]
        assert scheduler.wait(task, 5) is task.last_run()


def test_a_schedule_goes_on_behind_what_was_lost(store: Any) -> None:
    """From its slot: the one that ran is none that passed."""
    after = crash_in(store, schedule=FixedRate(50), retry=NO_RETRY, on_exhausted="continue")
    with going_on(after, 160) as (scheduler, _clock, _log):
        (task,) = scheduler.tasks()
        assert task.last_run().outcome is Outcome.LOST
        assert (task.status, task.next_run_at) == (S.SCHEDULED, START + 200)


def test_the_first_run_of_all_may_be_lost(store: Any) -> None:
    """Of which nothing is known but that it ran: what follows counts from the moment of loading."""
    after = crash_in(store, schedule=FixedRate(50, start_delay=150), retry=NO_RETRY, on_exhausted="continue")
    with going_on(after, 160) as (scheduler, _clock, _log):
        (task,) = scheduler.tasks()
        assert [(each.outcome, each.due_at, each.run) for each in task.history] == [(Outcome.LOST, None, 1)]
        assert task.next_run_at == START + 210


def test_a_schedule_of_the_users_is_not_asked_for_the_slot_that_was_lost() -> None:
    """What follows counts from the moment of loading, so that no slot comes twice."""
    store = DictStore()
    every_50 = Foreign(START, lambda record, now: (record.due_at or record.started_at) + 50)
    after = crash_in(store, schedule=every_50, retry=NO_RETRY, on_exhausted="continue")
    with going_on(after, 160) as (scheduler, _clock, _log):
        (task,) = scheduler.tasks()
        assert task.last_run().due_at is None
        assert task.next_run_at == START + 210


def test_paused_in_the_midst_of_its_run(store: Any) -> None:
    """The run is lost, the task stays paused, and goes on at the resume as that says."""
    after = crash_in(
        store, lambda scheduler: scheduler.pause("task-1"), schedule=OneTime(START + 150), retry=TRY_LATER
    )
    with going_on(after, 170) as (scheduler, _clock, _log):
        (task,) = scheduler.tasks()
        assert (task.status, task.last_run().outcome) == (S.PAUSED, Outcome.LOST)
        assert scheduler.resume(task)
        assert (task.status, task.next_run_at) == (S.RETRYING, START + 750)


# --- what was paused ----------------------------------------------------------------------------------------


def test_paused_before_its_slot(store: Any) -> None:
    """It stays so, and what passed follows the policy at the resume."""
    with going_on(store) as (scheduler, _clock, _log):
        scheduler.pause(scheduler.schedule("t", stored.nothing, FixedRate(60, start_delay=60)))
    with going_on(store, 100) as (scheduler, clock, _log):
        (task,) = scheduler.tasks()
        clock.advance(100)
        assert (task.status, task.history) == (S.PAUSED, [])
        assert scheduler.resume(task)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert offsets(task.history) == [180.0]


def test_paused_before_a_retry(store: Any) -> None:
    """It is the retry that comes at the resume, at its time."""
    with going_on(store) as (scheduler, _clock, _log):
        task = scheduler.schedule("t", stored.fail, OneTime(START), retry=TRY_LATER)
        assert scheduler.wait_idle(support.TIMEOUT)
        scheduler.pause(task)
    with going_on(store, 100) as (scheduler, _clock, _log):
        (task,) = scheduler.tasks()
        assert task.status is S.PAUSED
        assert scheduler.resume(task)
        assert (task.status, task.next_run_at) == (S.RETRYING, START + 600)


@pytest.mark.parametrize(
    ("outcome", "schedule", "retry", "status"),
    [
        (True, OneTime(START), NO_RETRY, S.SUCCEEDED),
        (False, OneTime(START), NO_RETRY, S.FAILED),
        (False, OneTime(START), TRY_LATER, S.RETRYING),
        (True, FixedRate(60), NO_RETRY, S.SCHEDULED),
    ],
)
def test_paused_while_its_last_run_ended(
    store: Any, outcome: bool, schedule: Any, retry: RetryPolicy, status: TaskStatus
) -> None:
    """What follows from that is decided at the resume."""
    record = ExecutionRecord(1, START, START + 5, outcome, task_id="task-1", due_at=START)
    task = Task("task-1", "t", stored.nothing, retry=retry, misfire=MisfirePolicy.SKIP)
    store.save(ScheduledTask(task, schedule, S.PAUSED, None, 1, 1, [record]))
    with going_on(store, 10) as (scheduler, _clock, _log):
        (found,) = scheduler.tasks()
        assert (found.status, found.history) == (S.PAUSED, [record])
        assert scheduler.resume(found)
        assert found.status is status
        if status is S.RETRYING:
            assert found.next_run_at == START + 605


# --- slots, ids, what is over -------------------------------------------------------------------------------


def test_what_waited_for_a_worker_is_owed(store: Any) -> None:
    """A slot that was due when the newest record was written has not passed unseen: it is not skipped."""
    record = ExecutionRecord(1, START, START + 60, True, task_id="task-1", due_at=START)
    store.save(
        ScheduledTask(Task("task-1", "a", stored.nothing), OneTime(START), S.SUCCEEDED, None, 1, 0, [record])
    )
    for name, at in (("task-2", START + 30), ("task-3", START + 90)):
        task = Task(name, name, stored.nothing, misfire=MisfirePolicy.SKIP)
        store.save(ScheduledTask(task, OneTime(at), S.SCHEDULED, at))
    with going_on(store, 100) as (scheduler, _clock, _log):
        _over, waited, passed = scheduler.tasks()
        assert (waited.status, passed.status) == (S.SUCCEEDED, S.CANCELLED)


def test_a_record_of_a_time_to_come_says_nothing_of_the_clock(store: Any) -> None:
    """That may have been set back while the scheduler lived, and what is stored have followed it."""
    record = ExecutionRecord(1, START, START + 900, True, task_id="task-1", due_at=START)
    task = Task("task-1", "t", stored.nothing)
    store.save(ScheduledTask(task, FixedRate(60), S.SCHEDULED, START + 90, 1, 0, [record]))
    with going_on(store, 50) as (scheduler, _clock, log):
        assert scheduler.tasks()[0].next_run_at == START + 90
        assert not [event for event in log.events if event.kind == "clock"]


def test_what_is_over_is_known(store: Any) -> None:
    """It is shown and waited for as before, and may be revived."""
    with going_on(store) as (scheduler, clock, _log):
        for number in (2, 1, 3):
            scheduler.schedule("bad", stored.fail, OneTime(START + number), retry=NO_RETRY)
        scheduler.schedule("good", stored.nothing, OneTime(START))
        scheduler.cancel(scheduler.schedule("none", stored.nothing, OneTime(START + DAY)))
        for _ in range(3):
            clock.advance(1)
        dead = scheduler.dead_letter()
    with going_on(store, 20, keep_finished=4) as (scheduler, _clock, _log):
        assert scheduler.dead_letter() == dead == ["task-2", "task-1", "task-3"]
        assert [task.status for task in scheduler.tasks()] == [S.FAILED] * 3 + [S.SUCCEEDED]
        assert scheduler.wait("task-4", 5).ok
        assert scheduler.revive("task-1")
        assert scheduler.wait_idle(support.TIMEOUT)
        assert len(scheduler.task("task-1").history) == 2
        assert scheduler.history(outcome="succeeded")
    assert [task.id for task in store.load_all()] == ["task-1", "task-2", "task-3", "task-4"]


def test_an_id_that_the_store_knows_is_not_given_again(store: Any) -> None:
    """Whatever the generator says: nothing is overwritten."""

    class Same:
        def __init__(self) -> None:
            self.numbers = iter(range(1000))

        def next_id(self) -> str:
            return f"mine-{next(self.numbers)}"

    for count in (1, 2):
        with going_on(store, ids=Same()) as (scheduler, _clock, _log):
            scheduler.schedule(f"number {count}", stored.nothing, OneTime(START + DAY))
            assert len(scheduler.tasks()) == count
    assert [task.name for task in store.load_all()] == ["number 1", "number 2"]


def test_the_history_is_no_longer_than_it_may_be(store: Any) -> None:
    """Also where the scheduler before kept more."""
    with going_on(store) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, FixedRate(60))
        for _ in range(5):
            clock.advance(60)
    with going_on(store, 310, history_limit=2) as (scheduler, _clock, _log):
        assert offsets(scheduler.tasks()[0].history) == [240.0, 300.0]


def test_what_every_start_adds_anew_is_told(store: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A recurring task without a key beside one of its name."""
    for start in range(2):
        with going_on(store) as (scheduler, _clock, _log):
            scheduler.schedule("nightly", stored.nothing, FixedRate(DAY))
        assert ("give it a key=" in caplog.text) == bool(start)


# --- code that cannot be packed -----------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["a text", threading.Lock().acquire])
def test_what_cannot_be_packed_is_kept(action: Any) -> None:
    """It is shown and told of, each slot says why, no attempt is used up, and it stays in the store."""
    store = DictStore()
    task = Task("task-1", "t", action, retry=NO_RETRY)
    store.save(ScheduledTask(task, FixedRate(DAY), S.SCHEDULED, START + DAY))
    with Scheduler(1, FakeClock(START), store=store) as scheduler:
        (found,) = scheduler.tasks()
        assert found.unloadable
        assert any("its code cannot be loaded" in problem for problem in scheduler.stats().problems)
        scheduler.clock.advance(DAY)  # type: ignore[attr-defined]
        record = scheduler.wait(found, support.TIMEOUT)
        assert found.unloadable in (record.error or "")
        assert (found.status, found.next_run_at) == (S.SCHEDULED, START + 2 * DAY)
    assert list(store.kept) == ["task-1"]


def test_the_only_slot_of_what_could_not_be_packed_is_owed() -> None:
    """The task is paused, and runs when a scheduler can pack it and somebody resumes it."""
    store = DictStore()
    store.save(
        ScheduledTask(Task("task-1", "t", "a text", retry=NO_RETRY), OneTime(START), S.SCHEDULED, START)
    )
    with going_on(store) as (scheduler, _clock, _log):
        (task,) = scheduler.tasks()
        assert task.status is S.PAUSED
    (left,) = store.load_all()
    left.task = Task("task-1", "t", stored.nothing, retry=NO_RETRY)
    with going_on(store, 10) as (scheduler, _clock, _log):
        (task,) = scheduler.tasks()
        assert (task.status, task.unloadable) == (S.PAUSED, None)
        assert scheduler.resume(task)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert (task.status, offsets(task.history)) == (S.SUCCEEDED, [0.0, 0.0])


def test_what_a_sandbox_refuses_is_refused_from_a_store_as_well() -> None:
    """A task without a timeout, say: nothing that stands for it could be run there, and nothing is loaded."""

    class Confined(InlinePool):
        sandbox = object()

    store = DictStore()
    store.save(ScheduledTask(Task("task-1", "t", stored.nothing), OneTime(START), S.SCHEDULED, START))
    scheduler = Scheduler(clock=FakeClock(START), pool=Confined(), store=store)
    with pytest.raises(
        StoreError, match="task-1 of the store cannot go on in a sandbox: timeout must be given"
    ):
        scheduler.tasks()
    scheduler.shutdown()
    assert list(store.kept) == ["task-1"]


# --- asking the store ---------------------------------------------------------------------------------------


def test_only_its_own_thread_calls_the_store() -> None:
    """Also to ask what it holds; that is asked once, at the first use of the scheduler."""
    store = DictStore()
    scheduler = Scheduler(clock=FakeClock(START), pool=InlinePool(), store=store)
    assert store.threads == set()
    assert scheduler.tasks() == []
    assert store.threads == {"procsched-store"}
    store.threads.clear()
    scheduler.start()
    scheduler.schedule("t", stored.nothing, OneTime(START))
    assert scheduler.writer.flush(support.TIMEOUT)  # type: ignore[union-attr]
    assert store.threads == {"procsched-store"}
    scheduler.shutdown()


class Refuses(DictStore):
    """A store that cannot be read."""

    error: BaseException | None = OSError("no such disk")

    def load_all(self) -> Iterable[ScheduledTask]:
        if self.error is not None:
            raise self.error
        return super().load_all()


@pytest.mark.parametrize("error", [OSError("no such disk"), SystemExit("no such disk")])
def test_a_store_that_cannot_be_read_is_not_overwritten(error: BaseException) -> None:
    """Whoever comes first is told, by name; and whoever comes next asks again."""
    store = Refuses()
    store.save(ScheduledTask(Task("task-1", "t", stored.nothing), OneTime(START + 9), S.SCHEDULED, START + 9))
    store.error = error
    scheduler = Scheduler(clock=FakeClock(START), pool=InlinePool(), store=store)
    with pytest.raises(StoreError, match=r"store Refuses cannot be loaded.*no such disk"):
        scheduler.schedule("t", stored.nothing, OneTime(START + DAY))
    store.error = None
    assert scheduler.schedule("t", stored.nothing, OneTime(START + DAY)).id == "task-2"
    assert len(scheduler.tasks()) == 2
    scheduler.shutdown()
    other = Scheduler(clock=FakeClock(START), pool=InlinePool(), store=store)
    store.error = error
    with pytest.raises(StoreError, match="Refuses"):
        other.start()
    with pytest.raises(SchedulerStateError):
        other.start()


@pytest.mark.parametrize("given", [[None], 5, [ScheduledTask(Task("x", "x", print), OneTime(0), "odd")]])  # type: ignore[arg-type]
def test_a_store_that_gives_anything_else_is_told(given: Any) -> None:
    """As one that cannot be read."""
    store = DictStore()
    store.load_all = lambda: given  # type: ignore[method-assign]
    scheduler = Scheduler(pool=InlinePool(), store=store)
    with pytest.raises(StoreError, match="DictStore"):
        scheduler.tasks()
    scheduler.shutdown()


def test_a_store_that_asks_the_scheduler_is_refused() -> None:
    """It would wait for itself."""
    store = DictStore()
    scheduler = Scheduler(pool=InlinePool(), store=store)
    store.load_all = scheduler.tasks  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="just to give"):
        scheduler.tasks()
    scheduler.shutdown()


def test_a_shutdown_does_not_wait_for_a_store_that_hangs() -> None:
    """Who waits for the tasks is told so."""
    store, entered, release = DictStore(), threading.Event(), threading.Event()

    def hang() -> list[ScheduledTask]:
        entered.set()
        release.wait(support.TIMEOUT)
        return []

    store.load_all = hang  # type: ignore[method-assign]
    scheduler = Scheduler(pool=InlinePool(), store=store)
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            scheduler.tasks()
        except BaseException as error:
            errors.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    assert entered.wait(support.TIMEOUT)
    scheduler.shutdown(timeout=0)
    asker.join(support.TIMEOUT)
    release.set()
    assert isinstance(errors[0], StoreError)
    scheduler.writer.thread.join(support.TIMEOUT)  # type: ignore[union-attr]


def test_a_start_does_not_wait_for_ever_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which one, and the next one asks again."""
    store, release = DictStore(), threading.Event()
    asked = store.load_all
    store.load_all = lambda: asked() if release.wait(support.TIMEOUT) else []  # type: ignore[method-assign]
    monkeypatch.setattr(base, "LOAD_SECONDS", 0.01)
    scheduler = Scheduler(pool=InlinePool(), store=store)
    with pytest.raises(StoreError, match=r"DictStore.*has not answered"):
        scheduler.start()
    release.set()
    monkeypatch.setattr(base, "LOAD_SECONDS", support.TIMEOUT)
    assert scheduler.tasks() == []
    scheduler.shutdown()


def test_a_scheduler_without_a_store_asks_none() -> None:
    """And imports nothing for it."""
    scheduler = Scheduler(pool=InlinePool())
    assert not scheduler._unloaded


def test_steady_times_are_stored_by_the_clock_as_it_is(store: Any) -> None:
    """Where that was set, so that a restart does not wait by the old one."""
    with going_on(store) as (scheduler, clock, _log):
        scheduler.schedule("t", stored.nothing, After(100))
        clock.step_wall(DAY)
        assert scheduler.wait_idle(support.TIMEOUT)
    (task,) = store.load_all()
    assert task.next_run_at == START + DAY + 100


def test_a_snapshot_is_not_changed() -> None:
    """The store may keep it."""
    record = ExecutionRecord(1, START, START + 5, False, task_id="task-1", due_at=START)
    given = ScheduledTask(Task("task-1", "t", print), FixedRate(60), S.RETRYING, START + 9, 1, 4, [record])
    entry, underway = entry_of(given, START + 99)
    assert underway is not None
    assert entry.handle is not given
    assert (entry.slot, entry.anchor, entry.generation) == (START, START, 4)
    assert (underway.after, underway.retry_at) == ("retry", START + 9)


def test_the_store_of_the_documentation_keeps_what_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that cannot be pickled keeps no other out, and is told."""
    text = (Path(__file__).parents[2] / "docs/pages/reference/store.md").read_text()
    source = next(
        each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "PickleFile" in each
    )
    names: dict[str, Any] = {"pathlib": pathlib, "pickle": pickle, "logging": logging}
    exec(source, names)
    for start in range(2):
        scheduler = Scheduler(
            clock=FakeClock(START), pool=InlinePool(), store=names["PickleFile"](tmp_path / "tasks")
        )
        assert [task.name for task in scheduler.tasks()] == ["kept", "kept, too"][: 2 * start]
        scheduler.schedule("kept", stored.nothing, After(DAY), key="1")
        if not start:
            scheduler.schedule("left out", lambda: None, After(DAY))
        scheduler.schedule("kept, too", stored.nothing, After(DAY), key="2")
        scheduler.start()
        assert scheduler.wait_idle(support.TIMEOUT)
        scheduler.shutdown()
    assert any("(left out) is not saved" in message for message in caplog.messages)
    assert scheduler.stats().counters["changes_lost"] == 0
