"""What every store must do, as tests that whoever writes a store can run on it.

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self) -> MyStore: ...     # an empty one

`DurableStoreContract` is for stores from which a scheduler goes on after a restart; its fixture `make` returns a
function that opens what was written once more.
"""

from __future__ import annotations

import threading

from procsched._core.models import ExecutionRecord, Outcome, ScheduledTask, Task, TaskStatus
from procsched._core.positions import Position, position_of
from procsched.schedules import FixedRate, OneTime
from procsched.stores.changes import Change, loaded_from
from procsched.stores.payloads import store_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TIMEOUT = 60.0  # seconds, that no healthy store comes near
AT = 1_700_000_000.0  # UNIX seconds
# What a text may hold that an action has brought.
AWKWARD = "caf\u00e9 \u2603 \U0001f40d \udc80 \0 'x' \"y\" %s :z"


def make_task(number: int, attempt: int = 0, status: TaskStatus = TaskStatus.SCHEDULED) -> ScheduledTask:
    """Return a task with one record."""
    task = Task(f"task-{number}", f"name {number}", print)
    return ScheduledTask(task, OneTime(5.0), status, 5.0, attempt, 0, (make_record(number, attempt),))


def make_record(number: int, attempt: int = 1) -> ExecutionRecord:
    """Return a record of `make_task(number)`."""
    return ExecutionRecord(attempt, 1.0, 2.0, True, task_id=f"task-{number}", name=f"name {number}")


class StoreContract:
    """What every `TaskStore` does. A subclass provides the fixture `store`, empty at first."""

    def test_keeps_the_latest_state(self, store: Any) -> None:
        """A task is there once, as it was saved last, with its newest record."""
        store.save(make_task(1))
        store.save(make_task(1, 2, TaskStatus.RETRYING))
        (task,) = store.load_all()
        assert (task.id, task.name, task.status, task.attempt) == ("task-1", "name 1", TaskStatus.RETRYING, 2)
        assert task.next_run_at == 5.0
        assert task.history == [make_record(1, 2)]

    def test_loads_in_order_of_registration(self, store: Any) -> None:
        """Saving again does not move a task; deleting and saving does."""
        for number in (3, 1, 2, 3):
            store.save(make_task(number))
        assert [task.id for task in store.load_all()] == ["task-3", "task-1", "task-2"]
        store.delete("task-3")
        store.save(make_task(3))
        assert [task.id for task in store.load_all()] == ["task-1", "task-2", "task-3"]

    def test_deletes(self, store: Any) -> None:
        """A task that is not there is no error."""
        store.save(make_task(1))
        store.delete("task-1")
        store.delete("task-1")
        store.delete("never there")
        assert list(store.load_all()) == []

    def test_is_not_changed_from_outside(self, store: Any) -> None:
        """Neither the object that was saved nor one that was loaded is the store's own."""
        task = make_task(1)
        store.save(task)
        task.status = TaskStatus.RUNNING
        (loaded,) = store.load_all()
        loaded.attempt = 9
        (again,) = store.load_all()
        assert (again.status, again.attempt) == (TaskStatus.SCHEDULED, 0)

    def test_a_scheduler_can_go_on_from_it(self, store: Any) -> None:
        """What it gives back says of each task where that stood: before a slot or a retry, in a run, or at its end."""
        states = (TaskStatus.SCHEDULED, TaskStatus.RETRYING, TaskStatus.RUNNING, TaskStatus.SUCCEEDED)
        for number, status in enumerate(states, 1):
            task = make_task(number, 1, status)
            if status in (TaskStatus.RUNNING, TaskStatus.SUCCEEDED):
                task.next_run_at = None
            store.save(task)
        loaded = loaded_from(store.load_all(), AT)
        assert [entry.status for entry in loaded.tasks] == list(states)
        assert [entry.attempt for entry in loaded.tasks] == [1, 1, 1, 1]
        assert [entry.handle.schedule for entry in loaded.tasks] == [OneTime(5.0)] * 4
        assert loaded.tasks[0].slot == 5.0
        assert (loaded.underway["task-2"].after, loaded.underway["task-2"].retry_at) == ("retry", 5.0)
        assert (loaded.underway["task-3"].live, loaded.underway["task-3"].started_at) == (True, 5.0)
        assert (loaded.finished, loaded.down_at) == (("task-4",), 2.0)

    def test_takes_calls_from_several_threads(self, store: Any) -> None:
        """Each call is atomic."""
        failures: list[BaseException] = []

        def work(first: int) -> None:
            try:
                for number in range(first, first + 20):
                    store.save(make_task(number))
                    store.load_all()
                    if number % 2:
                        store.delete(f"task-{number}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(first,)) for first in (0, 1000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert failures == []
        assert len(list(store.load_all())) == 20


# --- stores that outlive the process -----------------------------------------------------------------------


def position(**values: Any) -> Position:
    """Return a position with these values, and others for the rest."""
    where: dict[str, Any] = {"due_at": AT, "run": 3, "stands_for": 2}
    return Position(AT + 60.1, AT + 120.2, AT + 0.1, (AT + 60.1, AT + 120.2), **where | values)


def change(number: int, place: Position | None = None, *, new: bool = False, **values: Any) -> Change:
    """Return a change of task `number`.

    Args:
        new: it is not there yet.
        values: of the snapshot: `status`, `attempt`, `record`.
    """
    task = Task(f"job-{number}", "a job", print, key=f"key {number}")
    record = values.pop("record", None)
    snapshot = ScheduledTask(
        task,
        FixedRate(60.1),
        values.pop("status", TaskStatus.SCHEDULED),
        AT + 60.1,
        values.pop("attempt", 1),
        7,
    )
    snapshot.unloadable = values.pop("unloadable", None)
    assert not values
    call = store_call(print, (number, "x"), {"sep": "-"}) if new else None
    return Change(task.id, snapshot, record, place or position(), call)


def record_of(number: int, run: int = 1, attempt: int = 1, **values: Any) -> ExecutionRecord:
    """Return a record of task `number` that ended `run` seconds after `AT`."""
    values = {"ok": True, "due_at": AT} | values
    return ExecutionRecord(attempt, AT, AT + run, task_id=f"job-{number}", name="a job", run=run, **values)


def _refusal(store: Any, changes: list[Change]) -> str:
    """Return the text of the error with which a store refuses changes."""
    try:
        store.write(changes)
    except Exception as error:
        return str(error) or repr(error)
    raise AssertionError("it was written")


class DurableStoreContract:
    """What every `DurableStore` does. A subclass provides the fixture `make`: each call gives the same store once more.

    The one before counts as dead then, without having been closed.
    """

    def test_is_empty_at_first(self, make: Callable[[], Any]) -> None:
        """Nothing is in it, and nobody had it."""
        store = make()
        loaded = store.open(lambda: AT)
        assert (list(loaded.tasks), loaded.finished, loaded.known_ids) == ([], (), ())
        assert store.history(None, None, None, 10) == []
        store.close()

    def test_gives_back_what_was_written(self, make: Callable[[], Any]) -> None:
        """To the last bit."""
        store = make()
        store.open(lambda: AT)
        place = position(owed=True, held=True, after="failed, goes on", ended_at=AT + 0.3, retry_at=AT + 0.7)
        place.live, place.started_at = True, AT + 0.9
        store.write(
            [change(1, place, new=True, status=TaskStatus.RUNNING, attempt=4, unloadable=AWKWARD[:4])]
        )
        loaded = make().open(lambda: AT)
        (entry,) = loaded.tasks
        found = position_of(entry, 0.0)
        for name in ("slot", "dealt", "anchor", "backlog", "due_at", "run", "stands_for", "owed", "held"):
            assert getattr(found, name) == getattr(place, name), name
        for name in ("live", "started_at", "after", "ended_at", "retry_at"):
            assert getattr(loaded.underway["job-1"], name) == getattr(place, name), name
        handle = entry.handle
        assert (entry.status, entry.attempt, entry.generation) == (TaskStatus.RUNNING, 4, 7)
        assert (handle.id, handle.name, handle.task.key) == ("job-1", "a job", "key 1")
        assert (handle.status, handle.attempt, handle.generation) == (TaskStatus.RUNNING, 4, 7)
        assert handle.next_run_at == AT + 60.1
        assert handle.schedule == FixedRate(60.1)
        assert handle.unloadable == AWKWARD[:4]
        assert (handle.task.args, handle.task.kwargs) == ((1, "x"), {"sep": "-"})
        assert entry.payload.parts == store_call(print, (1, "x"), {"sep": "-"}).parts

    def test_the_last_of_several_changes_counts(self, make: Callable[[], Any]) -> None:
        """In one batch as well, where every record of it is kept."""
        store = make()
        store.open(lambda: AT)
        batch = [change(1, new=True)]
        batch += [change(1, attempt=run, record=record_of(1, run)) for run in (1, 2, 3)]
        store.write(batch)
        (kept,) = make().open(lambda: AT).tasks
        assert kept.handle.attempt == 3
        assert [record.run for record in store.history(None, None, None, 10)] == [3, 2, 1]

    def test_writing_again_does_no_harm(self, make: Callable[[], Any]) -> None:
        """Who did not hear that something was written does it once more."""
        store = make()
        store.open(lambda: AT)
        batch = [change(1, new=True), change(1, record=record_of(1)), change(2, new=True)]
        store.write(batch)
        store.write(batch)
        assert len(store.history(None, None, None, 10)) == 1
        assert [kept.handle.id for kept in make().open(lambda: AT).tasks] == ["job-1", "job-2"]

    def test_a_batch_is_written_whole_or_not_at_all(self, make: Callable[[], Any]) -> None:
        """A change that cannot be written keeps the others of its batch out, and none after it."""
        store = make()
        store.open(lambda: AT)
        bad = change(2, new=True)
        bad.snapshot.schedule = object()  # type: ignore[union-attr]
        assert _refusal(store, [change(1, new=True), change(1, record=record_of(1)), bad])
        assert store.history(None, None, None, 10) == []
        store.write([change(3, new=True)])
        assert [kept.handle.id for kept in make().open(lambda: AT).tasks] == ["job-3"]

    def test_a_record_outlives_its_task(self, make: Callable[[], Any]) -> None:
        """And the number of the id is not free again."""
        store = make()
        store.open(lambda: AT)
        store.write([change(41, new=True, record=record_of(41))])
        store.write([Change("job-41", None), change(9, new=True)])
        loaded = make().open(lambda: AT)
        assert [kept.handle.id for kept in loaded.tasks] == ["job-9"]
        assert "job-41" in loaded.known_ids
        assert len(store.history("job-41", None, None, 10)) == 1

    def test_only_the_last_one_to_open_it_may_write(self, make: Callable[[], Any]) -> None:
        """The one before, which does not know that it is over, changes nothing any more; it may read."""
        first = make()
        first.open(lambda: AT)
        first.write([change(1, new=True)])
        second = make()
        second.open(lambda: AT)
        assert "another scheduler" in _refusal(first, [change(1, attempt=5)])
        first.close()
        second.write([change(1, attempt=6)])
        (kept,) = make().open(lambda: AT).tasks
        assert kept.handle.attempt == 6

    def test_says_when_it_was_alive_last(self, make: Callable[[], Any]) -> None:
        """At the last write; or at the end, where that was in order."""
        now = AT
        store = make()
        store.open(lambda: now)
        now = AT + 10
        store.write([change(1, new=True)])
        now = AT + 20
        assert make().open(lambda: now).down_at == AT + 10
        store = make()
        store.open(lambda: now)
        now = AT + 30
        store.close()
        assert make().open(lambda: now).down_at == AT + 30

    def test_finished_tasks_come_in_the_order_of_their_ends(self, make: Callable[[], Any]) -> None:
        """Which is that of the dead letter."""
        now = AT
        store = make()
        store.open(lambda: now)
        store.write([change(number, new=True) for number in (1, 2, 3)])
        for number in (3, 1):
            now += 1
            store.write([change(number, status=TaskStatus.FAILED)])
        assert list(make().open(lambda: now).finished) == ["job-3", "job-1"]

    def test_history_answers_what_is_asked(self, make: Callable[[], Any]) -> None:
        """By task, by outcome, by time, and so many; the newest first."""
        store = make()
        store.open(lambda: AT)
        for run in range(1, 6):
            outcome = Outcome.FAILED if run % 2 else Outcome.SUCCEEDED
            records = [record_of(number, run, ok=not run % 2, outcome=outcome) for number in (1, 2)]
            store.write([change(number, new=True, record=record) for number, record in enumerate(records, 1)])

        def found(*question: Any) -> list[tuple[str, int]]:
            return [(record.task_id[-1], record.run) for record in store.history(*question)]

        assert found(None, None, None, 3) == [("2", 5), ("1", 5), ("2", 4)]
        assert found("job-1", None, None, 2) == [("1", 5), ("1", 4)]
        assert found("job-1", Outcome.SUCCEEDED, None, 9) == [("1", 4), ("1", 2)]
        assert found("job-2", None, AT + 4, 9) == [("2", 5), ("2", 4)]
        assert found("nobody", None, None, 9) == []

    def test_keeps_whatever_a_record_holds(self, make: Callable[[], Any]) -> None:
        """Every field; of texts that no database takes as they are, what can be read."""
        store = make()
        store.open(lambda: AT)
        values: dict[str, Any] = {
            "outcome": Outcome.CRASHED,
            "missed": 5,
            "pid": 4_000_000,
            "exit_code": 4_294_967_295,
            "signal": "SIGSEGV",
            "limit": "memory: 1 GiB",
            "cpu_seconds": 0.1,
            "peak_rss": 1 << 40,
            "output_truncated": True,
        }
        texts: dict[str, Any] = {name: AWKWARD + name for name in ("error", "traceback", "stack", "output")}
        record = record_of(1, ok=False, **values, **texts)
        store.write([change(1, new=True, record=record)])
        (found,) = store.history(None, None, None, 9)
        for name in ("attempt", "started_at", "finished_at", "task_id", "name", "run", "due_at", *values):
            assert getattr(found, name) == getattr(record, name), name
        for name in texts:
            text = getattr(found, name)
            assert text.startswith("caf\u00e9 \u2603 \U0001f40d ")
            assert text.endswith(f"'x' \"y\" %s :z{name}")
