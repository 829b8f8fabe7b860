"""A durable store that fails: nothing starts unrecorded, nothing is lost, everybody is told, and it catches up."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    EventLog,
    InlinePool,
    OneTime,
    Scheduler,
    SqlTaskStore,
    StoreError,
    TaskStatus,
    ThreadPool,
    ValidationError,
    connect,
)
from procsched.scheduler import staging
from procsched.stores import base, codec, database, durable
from procsched.stores.changes import Change
from procsched.stores.waiting import thin_out
from procsched.testing.stores import change, record_of
from tests import postgres as pg
from tests import stored, support
from tests.unit.scheduling import Held

S = TaskStatus


class Breaking(SqlTaskStore):
    """Refuses to write while it is told to."""

    broken: BaseException | None = None

    def write(self, changes: Sequence[Change]) -> None:
        if self.broken is not None:
            raise self.broken
        super().write(changes)


class Hanging(SqlTaskStore):
    """Does not come back from a write while it is told to."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.goes_on = threading.Event()
        self.goes_on.set()

    def write(self, changes: Sequence[Change]) -> None:
        assert self.goes_on.wait(support.TIMEOUT)
        super().write(changes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@contextmanager
def impatient() -> Iterator[None]:
    """Let requests wait for the store only briefly: for those that are refused."""
    before, staging.STORE_SECONDS = staging.STORE_SECONDS, 0.2
    try:
        yield
    finally:
        staging.STORE_SECONDS = before


def scheduler_on(store: SqlTaskStore, **options: Any) -> tuple[Scheduler, EventLog]:
    log = EventLog()
    return Scheduler(pool=ThreadPool(2), store=store, listeners=[log], **options), log


def is_told(log: EventLog, word: str) -> bool:
    return log.wait_for(
        lambda events: any(event.kind == "store" and word in str(event.progress) for event in events),
        support.TIMEOUT,
    )


def is_failing(log: EventLog) -> bool:
    return any(event.kind == "store" for event in log.events)


def test_nothing_starts_unrecorded(path: Path) -> None:
    """What runs goes on, and its record waits; what is due waits; then all of it goes on."""
    store = Breaking(f"sqlite:///{path}")
    scheduler, log = scheduler_on(store)
    held = Held()
    stored.held.append(held)
    try:
        with scheduler:
            running = scheduler.schedule("running", stored.hold, OneTime(0), retry=NO_RETRY)
            assert held.started.wait(support.TIMEOUT)
            late = scheduler.schedule("late", stored.nothing, OneTime(scheduler.clock.now() + 1e6))
            scheduler.pause(late)
            store.broken = OSError(28, "No space left on device")
            held.release.set()
            assert scheduler.wait(running, support.TIMEOUT).ok
            with impatient(), pytest.raises(StoreError, match=r"was not scheduled.*No space left"):
                scheduler.schedule("refused", stored.nothing, OneTime(0))
            with impatient(), pytest.raises(StoreError, match=r"resumed.*not stored yet.*No space left"):
                scheduler.resume(late)
            assert late.status is S.SCHEDULED
            assert [task.name for task in scheduler.tasks()] == ["running", "late"]
            assert is_told(log, "No space left")
            assert any("No space left" in text for text in scheduler.stats().problems)
            assert stored.rows(path, "SELECT count(*) FROM runs") == [(0,)]
            store.broken = None
            assert is_told(log, "works again")
            assert scheduler.wait_idle(support.TIMEOUT)
            assert stored.rows(path, "SELECT name FROM runs") == [("running",)]
            assert stored.rows(path, "SELECT name, status FROM tasks") == [
                ("running", "succeeded"),
                ("late", "scheduled"),
            ]
    finally:
        stored.held.clear()


def test_a_start_waits_until_the_store_works(path: Path) -> None:
    """It was due meanwhile, and runs once."""
    store = Breaking(f"sqlite:///{path}")
    scheduler, log = scheduler_on(store)
    task = scheduler.schedule("t", stored.nothing, OneTime(0))
    store.broken = OSError("gone")
    with scheduler:
        assert is_told(log, "gone")
        assert task.status is S.SCHEDULED
        assert scheduler.stats().running == 0
        store.broken = None
        assert scheduler.wait(task, support.TIMEOUT).ok
    assert stored.rows(path, "SELECT run, attempt, outcome FROM runs") == [(1, 1, "succeeded")]


def test_who_does_not_need_the_store_goes_on(path: Path) -> None:
    """With `store_required=False` attempts start and requests return, and all is written later."""
    store = Breaking(f"sqlite:///{path}")
    scheduler, log = scheduler_on(store, store_required=False)
    with scheduler:
        store.broken = OSError("gone")
        first = scheduler.schedule("first", stored.nothing, OneTime(0))
        assert scheduler.wait(first, support.TIMEOUT).ok
        second = scheduler.schedule("second", stored.nothing, OneTime(scheduler.clock.now() + 1e6))
        assert scheduler.pause(second)
        assert is_told(log, "gone")
        store.broken = None
        assert is_told(log, "works again")
        assert scheduler.wait_idle(support.TIMEOUT)
        assert stored.rows(path, "SELECT status FROM tasks") == [("succeeded",), ("paused",)]
        assert len(scheduler.history(first)) == 1


def test_what_waits_for_long_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest records are kept, those that were dropped are counted, and every task is written as it is."""
    monkeypatch.setattr(durable, "MOST_RECORDS", 3)
    monkeypatch.setattr(base, "LAST_RETRY", 0.1)
    store = Breaking(f"sqlite:///{path}")
    scheduler, log = scheduler_on(store, store_required=False)
    with scheduler:
        store.broken = OSError("gone")
        tasks = []
        for number in range(8):
            tasks.append(scheduler.schedule(f"task {number}", stored.nothing, OneTime(0), retry=NO_RETRY))
            assert scheduler.wait(tasks[-1], support.TIMEOUT).ok
        late = scheduler.schedule("late", stored.nothing, OneTime(scheduler.clock.now() + 1e6))
        for _ in range(50):
            assert scheduler.pause(late)
            assert scheduler.resume(late)
        assert is_told(log, "5 records of attempts were dropped")
        assert scheduler.stats().counters["records_dropped"] == 5
        (part,) = [each for each in scheduler.health().parts if each.name.startswith("store")]
        assert part.state == "failing"
        assert part.detail.endswith("gone; 5 records of attempts were dropped")
        store.broken = None
        assert is_told(log, "works again")
        assert scheduler.wait_idle(support.TIMEOUT)
        names = [record.name for record in scheduler.history()]
        assert names == ["task 7", "task 6", "task 5"]
        assert scheduler.writer is not None
        assert scheduler.writer.backlog == 0
        assert scheduler.pause(late)
        (part,) = [each for each in scheduler.health().parts if each.name.startswith("store")]
        assert (part.ok, part.detail) == (True, "5 records of attempts were dropped")
    assert stored.rows(path, "SELECT name, status FROM tasks ORDER BY seq") == [
        *((f"task {number}", "succeeded") for number in range(8)),
        ("late", "paused"),
    ]


def test_who_does_not_need_the_store_does_not_wait_for_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request after the store breaks hears of it at once, however long others would wait."""
    monkeypatch.setattr(staging, "STORE_SECONDS", 1e6)
    store = Breaking(f"sqlite:///{path}")
    scheduler, _log = scheduler_on(store, store_required=False)
    with scheduler:
        late = scheduler.schedule("late", stored.nothing, OneTime(scheduler.clock.now() + 1e6))
        store.broken = OSError("gone")
        assert scheduler.pause(late)
        assert not stored.rows(path, "SELECT 1 FROM tasks WHERE status = 'paused'")
        store.broken = None
    assert stored.rows(path, "SELECT status FROM tasks") == [("paused",)]


def test_a_store_that_hangs_is_one_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of it that does not end holds up nobody who does not need it, and what queues up behind is bounded."""
    monkeypatch.setattr(staging, "STORE_SECONDS", 1e6)
    monkeypatch.setattr(durable, "GLANCE", 0.05)
    monkeypatch.setattr(durable, "MOST_RECORDS", 3)
    monkeypatch.setattr(durable, "MOST_QUEUED", 6)
    store = Hanging(f"sqlite:///{path}")
    scheduler, log = scheduler_on(store, store_required=False)
    with scheduler:
        store.goes_on.clear()
        try:
            for number in range(8):
                task = scheduler.schedule(f"task {number}", stored.nothing, OneTime(0), retry=NO_RETRY)
                assert scheduler.wait(task, support.TIMEOUT).ok
            late = scheduler.schedule("late", stored.nothing, OneTime(scheduler.clock.now() + 1e6))
            for _ in range(50):
                assert scheduler.pause(late)
                assert scheduler.resume(late)
            assert scheduler.writer is not None
            assert scheduler.writer.backlog > 100
            assert stored.rows(path, "SELECT count(*) FROM tasks") == [(0,)]
        finally:
            store.goes_on.set()
        assert scheduler.wait_idle(support.TIMEOUT)
        assert scheduler.writer.backlog == 0
        dropped = scheduler.stats().counters["records_dropped"]
        assert is_told(log, f"{dropped} records of attempts were dropped")
    names = [name for (name,) in stored.rows(path, "SELECT name FROM runs ORDER BY id")]
    assert names == [f"task {number}" for number in range(8)][dropped:]
    assert 0 < dropped < 8
    assert stored.rows(path, "SELECT name, status FROM tasks ORDER BY seq") == [
        *((f"task {number}", "succeeded") for number in range(8)),
        ("late", "scheduled"),
    ]


def kept(*changes: Change, most: int = 10) -> tuple[list[int], int]:
    """Return the positions of the changes that are left, and how many records were dropped."""
    left, dropped = thin_out(changes, most)
    return [changes.index(each) for each in left], dropped


def test_only_the_last_state_of_a_task_waits() -> None:
    """With every record, and what it runs; of one that is gone its end and its records."""
    first, ended, again = change(1, new=True), change(1, record=record_of(1)), change(1)
    assert kept(first, change(1), ended, change(1), change(2), again) == ([0, 2, 4, 5], 0)
    assert kept(first, ended, again, Change("job-1", None)) == ([1, 3], 0)
    assert kept(Change("job-1", None), first) == ([0, 1], 0)
    assert kept(first, change(1, record=record_of(1, 1)), change(1, record=record_of(1, 2)), most=1) == (
        [0, 2],
        1,
    )


def test_what_no_database_takes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is in the way of all else."""
    monkeypatch.setattr(codec, "MOST_BYTES", 1000)
    with Scheduler(pool=InlinePool(), store=SqlTaskStore(f"sqlite:///{tmp_path}/jobs.db")) as scheduler:
        with pytest.raises(ValidationError, match="at most 1000 bytes to be stored"):
            scheduler.schedule("large", stored.nothing, OneTime(0), args=(b"x" * 1001,))
        assert scheduler.tasks() == []


def test_a_locked_file_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody with a transaction that writes holds everything up, and breaks nothing."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    scheduler, log = scheduler_on(SqlTaskStore(f"sqlite:///{path}"))
    task = scheduler.schedule("t", stored.nothing, OneTime(0))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with scheduler:
        assert is_told(log, "database is locked")
        assert task.history == []
        other.execute("ROLLBACK")
        assert scheduler.wait(task, support.TIMEOUT).ok
    other.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_is_waited_for(path: Path, tmp_path: Path, replaced: bool) -> None:
    """What would be written to it nobody would ever read: nothing starts, and it goes on when the file is back."""
    scheduler, log = scheduler_on(SqlTaskStore(f"sqlite:///{path}"))
    away = tmp_path / "away.db"
    with scheduler:
        assert scheduler.wait(scheduler.schedule("first", stored.nothing, OneTime(0)), support.TIMEOUT).ok
        assert scheduler.wait_idle(support.TIMEOUT)
        stored.copy(path, tmp_path / "copy.db")
        os.rename(path, away)
        if replaced:
            os.rename(tmp_path / "copy.db", path)
        with (
            impatient(),
            pytest.raises(StoreError, match=r"was removed, or another file was put in its place"),
        ):
            scheduler.schedule("refused", stored.nothing, OneTime(0))
        assert is_told(log, "was removed")
        assert any("was removed" in text for text in scheduler.stats().problems)
        os.rename(away, path)
        assert is_told(log, "works again")
        assert scheduler.wait(scheduler.schedule("second", stored.nothing, OneTime(0)), support.TIMEOUT).ok
    assert stored.rows(path, "SELECT name FROM runs") == [("first",), ("second",)]
    assert stored.rows(path, "SELECT count(*) FROM owner WHERE closed_at IS NOT NULL") == [(1,)]


def test_who_has_lost_its_file_takes_nothing_from_the_next_one(path: Path) -> None:
    """Not the socket beside the file that is there now; nor its log, which SQLite sees to."""
    first, _log = scheduler_on(SqlTaskStore(f"sqlite:///{path}"))
    second, _log = scheduler_on(SqlTaskStore(f"sqlite:///{path}"))
    with first:
        assert first.wait(first.schedule("first", stored.nothing, OneTime(0)), support.TIMEOUT).ok
        for name in os.listdir(path.parent):
            os.unlink(path.parent / name)
        with second:
            assert second.wait(second.schedule("second", stored.nothing, OneTime(0)), support.TIMEOUT).ok
            first.shutdown(drain=False)
            late = second.schedule("late", stored.nothing, OneTime(second.clock.now() + 1e6))
            assert connect(f"sqlite:///{path}").pause(late)
            # What a process that is killed now leaves: the file and its log.
            assert os.path.getsize(f"{path}-wal") > 0
            assert stored.rows(path, "SELECT name, status FROM tasks") == [
                ("second", "succeeded"),
                ("late", "paused"),
            ]


@pytest.mark.parametrize("written", [False, True])
def test_a_locked_file_does_not_hold_up_a_shutdown(
    path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """Letting go of it goes on behind; the next scheduler in the process has it then."""
    monkeypatch.setattr(durable.DurableWriter, "close_seconds", 0.05)
    store = SqlTaskStore(f"sqlite:///{path}")
    scheduler, log = scheduler_on(store)
    scheduler.start()
    if written:
        assert scheduler.wait(scheduler.schedule("t", stored.nothing, OneTime(0)), support.TIMEOUT).ok
        assert scheduler.wait_idle(support.TIMEOUT)
    released = threading.Event()
    leave = store.close

    def close() -> None:
        assert released.wait(support.TIMEOUT)  # as it waits for a lock of somebody else
        leave()

    monkeypatch.setattr(store, "close", close)
    scheduler.shutdown(timeout=0)
    assert not released.is_set()
    assert store._epoch
    released.set()
    assert scheduler.writer is not None
    scheduler.writer.thread.join(support.TIMEOUT)  # type: ignore[union-attr]
    assert stored.rows(path, "SELECT count(*) FROM owner WHERE closed_at IS NOT NULL") == [(1,)]
    again, log = scheduler_on(SqlTaskStore(f"sqlite:///{path}"))
    with again:
        assert not is_failing(log)


def test_a_store_that_cannot_be_left_in_order_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an event, and among the problems."""
    store = SqlTaskStore(f"sqlite:///{path}")
    scheduler, log = scheduler_on(store)
    leave = store.close

    def close() -> None:
        leave()
        raise StoreError("database is locked")

    monkeypatch.setattr(store, "close", close)
    with scheduler:
        pass
    assert any("not left in order" in text and "locked" in text for text in scheduler.stats().problems)
    assert any("not left in order" in str(event.progress) for event in log.events)


def test_a_store_that_hung_is_let_go_of_when_it_comes_back(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else nobody could have it while this process lives."""
    monkeypatch.setattr(durable.DurableWriter, "close_seconds", 0.05)
    store = SqlTaskStore(f"sqlite:///{path}")
    scheduler, _log = scheduler_on(store, store_required=False)
    scheduler.start()
    hangs, released = threading.Event(), threading.Event()
    write = store.write

    def hang(changes: Sequence[Change]) -> None:
        hangs.set()
        assert released.wait(support.TIMEOUT)
        write(changes)

    monkeypatch.setattr(store, "write", hang)
    adding = threading.Thread(target=scheduler.schedule, args=("t", stored.nothing, OneTime(0)))
    adding.start()
    assert hangs.wait(support.TIMEOUT)
    scheduler.shutdown(drain=False, timeout=0)
    adding.join(support.TIMEOUT)
    released.set()
    assert scheduler.writer is not None
    scheduler.writer.thread.join(support.TIMEOUT)  # type: ignore[union-attr]
    with scheduler_on(SqlTaskStore(f"sqlite:///{path}"))[0]:
        pass


def test_postgresql_restarted_under_load(postgres: pg.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost, and nothing runs twice."""
    monkeypatch.setattr(staging, "STORE_SECONDS", support.TIMEOUT)  # a busy machine may take long to start it
    url = postgres.new_database()
    scheduler, log = scheduler_on(SqlTaskStore(url))
    with scheduler:
        tasks = [scheduler.schedule("t", stored.nothing, OneTime(0), retry=NO_RETRY) for _ in range(30)]
        postgres.stop(signal.SIGQUIT)
        late = scheduler.clock.now() + 0.1
        thread = threading.Thread(
            target=lambda: tasks.append(
                scheduler.schedule("late", stored.nothing, OneTime(late), retry=NO_RETRY)
            )
        )
        thread.start()  # it waits until the server is there again
        assert is_told(log, "failed")
        postgres.start()
        thread.join(support.TIMEOUT)
        for task in tasks:
            assert scheduler.wait(task, support.TIMEOUT).ok
        assert scheduler.wait_idle(support.TIMEOUT)
        records = scheduler.history(limit=1000)
    assert len(records) == len({record.task_id for record in records}) == 31
