"""Stores: what every store must do, and how changes reach one that is slow, raises or hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from procsched._core.models import ExecutionRecord, ScheduledTask
from procsched.errors import ValidationError
from procsched.stores import base
from procsched.stores.base import StoreWriter, writer_for
from procsched.stores.memory import DirectWriter, InMemoryTaskStore
from procsched.testing.stores import StoreContract, make_record, make_task
from tests.support import TIMEOUT


class TestInMemoryTaskStore(StoreContract):
    """The store of a scheduler that is given none."""

    @pytest.fixture
    def store(self) -> InMemoryTaskStore:
        return InMemoryTaskStore()

    def test_get_and_len(self, store: InMemoryTaskStore) -> None:
        """One task can be looked at; an empty store counts as a store."""
        assert store
        assert len(store) == 0
        assert store.get("task-1") is None
        store.save(make_task(1))
        kept = store.get("task-1")
        assert kept is not None
        assert kept.id == "task-1"
        kept.attempt = 9
        assert store.get("task-1").attempt == 0  # type: ignore[union-attr]
        assert len(store) == 1


# --- the writer ----------------------------------------------------------------------------------------


class SlowStore:
    """Notes every call; the test decides when one may go on, and which raise."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.threads: set[str] = set()
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.errors: list[BaseException] = []
        self.broken: BaseException | None = None

    def _call(self, name: str, what: Any) -> None:
        self.threads.add(threading.current_thread().name)
        self.entered.release()
        self.gate.wait(TIMEOUT)
        if self.errors:
            raise self.errors.pop(0)
        if self.broken is not None:
            raise self.broken
        self.calls.append((name, what))

    def save(self, task: ScheduledTask) -> None:
        self._call("save", (task.id, task.attempt))

    def delete(self, task_id: str) -> None:
        self._call("delete", task_id)

    def load_all(self) -> list[ScheduledTask]:
        return []


class BatchStore(SlowStore):
    def commit(self, changes: Sequence[tuple[ScheduledTask, ExecutionRecord | None]]) -> None:
        self._call("commit", [(task.id, record) for task, record in changes])


def finish_store_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "procsched-store":
            thread.join(TIMEOUT)
            assert not thread.is_alive()


class Rig:
    """A writer with its store and what it reported."""

    def __init__(self, store: SlowStore) -> None:
        self.store = store
        self.problems: list[str] = []
        self.told = threading.Semaphore(0)
        writer = writer_for(store, self._problem)
        assert isinstance(writer, StoreWriter)
        self.writer = writer

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        self.told.release()

    def block(self) -> None:
        """Let the store thread enter a call of the store, and hang there."""
        self.store.gate.clear()
        self.writer.forget("blocker")
        assert self.store.entered.acquire(timeout=TIMEOUT)


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let failed calls be repeated at once."""
    monkeypatch.setattr(base, "FIRST_RETRY", 0.0)


@pytest.fixture
def long_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a failed call be repeated only when something ends the wait."""
    monkeypatch.setattr(base, "FIRST_RETRY", 1e6)
    monkeypatch.setattr(base, "LAST_RETRY", 1e6)


@pytest.fixture(params=[SlowStore, BatchStore])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    rig = Rig(request.param())
    yield rig
    rig.store.gate.set()
    rig.writer.close(TIMEOUT)


@pytest.fixture
def saving() -> Iterator[Rig]:
    rig = Rig(SlowStore())
    yield rig
    rig.store.gate.set()
    rig.writer.close(TIMEOUT)


def test_the_thread_starts_with_the_first_change(rig: Rig) -> None:
    """Nothing to write, no thread; flush and close have nothing to do."""
    before = threading.active_count()
    assert rig.writer.flush(0.0)
    assert threading.active_count() == before
    rig.writer.put(make_task(1))
    assert rig.writer.flush(TIMEOUT)
    assert rig.store.threads == {"procsched-store"}
    assert rig.writer.close(TIMEOUT)
    assert threading.active_count() == before


def test_closing_an_unused_writer_is_no_work(rig: Rig) -> None:
    """And may be done twice."""
    assert rig.writer.close(0.0)
    assert rig.writer.close(0.0)


def test_changes_arrive_in_order_without_blocking(saving: Rig) -> None:
    """While the store hangs in one call, the caller goes on."""
    saving.block()
    for attempt in range(3):
        saving.writer.put(make_task(1, attempt))
    saving.writer.forget("task-1")
    saving.writer.put(make_task(2))
    assert saving.writer.backlog == 6
    assert not saving.writer.flush(0.0)
    saving.store.gate.set()
    assert saving.writer.flush(TIMEOUT)
    assert saving.store.calls == [
        ("delete", "blocker"),
        *[("save", ("task-1", attempt)) for attempt in range(3)],
        ("delete", "task-1"),
        ("save", ("task-2", 0)),
    ]
    assert saving.writer.backlog == 0


def test_a_store_with_commit_gets_what_queued_up() -> None:
    """One batch of pairs, cut only where a task is deleted."""
    rig = Rig(BatchStore())
    rig.block()
    record = make_record(1)
    rig.writer.put(make_task(1, 1), record)
    rig.writer.put(make_task(2))
    rig.writer.forget("task-2")
    rig.writer.put(make_task(3))
    rig.store.gate.set()
    assert rig.writer.close(TIMEOUT)
    assert rig.store.calls == [
        ("delete", "blocker"),
        ("commit", [("task-1", record), ("task-2", None)]),
        ("delete", "task-2"),
        ("commit", [("task-3", None)]),
    ]


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("error", [OSError("disk full"), SystemExit(3), KeyboardInterrupt()])
def test_a_failed_change_is_tried_again_before_newer_ones(
    saving: Rig, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the store raises; the failure is counted, logged and reported, and so is its end."""
    caplog.set_level(logging.WARNING, "procsched")
    saving.block()
    saving.store.errors = [error] * 3
    saving.writer.put(make_task(1, 1))
    saving.writer.put(make_task(1, 2))
    saving.store.gate.set()
    assert saving.writer.flush(TIMEOUT)
    assert saving.store.calls == [
        ("delete", "blocker"),
        ("save", ("task-1", 1)),
        ("save", ("task-1", 2)),
    ]
    assert saving.writer.failures == 3
    assert saving.writer.failing is None
    assert type(error).__name__ in saving.problems[0]
    assert "SlowStore failed" in caplog.text
    assert "works again after 3 failures" in caplog.text


@pytest.mark.usefixtures("no_backoff")
def test_a_failing_store_is_not_reported_at_every_try(saving: Rig) -> None:
    """The first, second, fourth failure of a kind are told; a new kind at once; and that it is over."""
    saving.store.errors = [OSError("full")] * 7 + [OSError("gone")]
    saving.writer.put(make_task(1))
    assert saving.writer.flush(TIMEOUT)
    assert saving.writer.failures == 8
    *failures, over = saving.problems
    assert [text.rpartition(" ")[2] for text in failures] == ["full", "full", "full", "gone"]
    assert over.endswith("works again after 8 failures")


@pytest.mark.usefixtures("no_backoff")
def test_a_listener_of_problems_that_raises_stops_nothing() -> None:
    """Nor does an error whose text cannot be made."""

    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    store = SlowStore()
    store.errors = [Nasty()]

    def report(text: str) -> None:
        raise LookupError(text)

    writer = writer_for(store, report)
    writer.put(make_task(1))
    assert writer.close(TIMEOUT)
    assert store.calls == [("save", ("task-1", 0))]


@pytest.mark.usefixtures("long_backoff")
def test_closing_ends_the_wait_and_tries_once_more(rig: Rig) -> None:
    """What failed before is written when the store is back by then."""
    rig.store.errors = [OSError("busy")]
    rig.writer.put(make_task(1))
    assert rig.told.acquire(timeout=TIMEOUT)
    rig.writer.put(make_task(2))
    assert rig.writer.failing is not None
    assert rig.writer.close(TIMEOUT)
    assert len(rig.store.calls) == 2
    assert (rig.writer.lost, rig.writer.failing) == (0, None)


@pytest.mark.usefixtures("long_backoff")
def test_a_store_that_fails_at_the_close_is_given_up(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """The changes are counted as lost, said in the log, and those who flush are told."""
    rig.store.broken = OSError("gone for good")
    rig.writer.put(make_task(1))
    assert rig.told.acquire(timeout=TIMEOUT)
    rig.writer.put(make_task(2))
    answers: list[bool] = []
    flusher = threading.Thread(target=lambda: answers.append(rig.writer.flush(None)))
    flusher.start()
    assert not rig.writer.close(TIMEOUT)
    flusher.join(TIMEOUT)
    assert answers == [False]
    assert rig.writer.lost == 2
    assert "2 changes are not written" in caplog.text


def test_a_store_that_hangs_is_abandoned(saving: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Closing returns at its timeout; a store that comes back later is written to no more."""
    saving.block()
    saving.writer.put(make_task(1))
    assert not saving.writer.close(0.01)
    assert saving.writer.lost == 2
    assert "2 changes may not be written" in caplog.text
    assert not saving.writer.flush(None)
    saving.writer.put(make_task(2))
    assert saving.writer.lost == 3
    saving.store.gate.set()
    finish_store_threads()
    assert saving.store.calls == [("delete", "blocker")]
    assert not saving.writer.close(0.0)


def test_a_change_after_the_close_is_lost_and_counted(rig: Rig) -> None:
    """Nothing vanishes in silence."""
    rig.writer.put(make_task(1))
    assert rig.writer.close(TIMEOUT)
    rig.writer.put(make_task(2))
    rig.writer.forget("task-1")
    assert rig.writer.lost == 2
    assert not rig.writer.flush(0.0)


def test_the_store_may_call_its_writer() -> None:
    """From its own thread neither flush nor close waits for itself."""
    answers: list[bool] = []
    store = SlowStore()

    def save(task: ScheduledTask) -> None:
        answers.append(writer.flush(None))
        answers.append(writer.close(TIMEOUT))

    store.save = save  # type: ignore[method-assign]
    writer = writer_for(store, print)
    writer.put(make_task(1))
    finish_store_threads()
    assert answers == [False, False]
    assert writer.close(0.0)


def test_many_threads_put_and_flush(saving: Rig) -> None:
    """Each finds its own changes written, in its own order."""

    def work(number: int) -> None:
        for attempt in range(100):
            saving.writer.put(make_task(number, attempt))
            if attempt % 10 == 9:
                assert saving.writer.flush(TIMEOUT)
                assert ("save", (f"task-{number}", attempt)) in saving.store.calls

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    for number in range(4):
        mine = [what for _, what in saving.store.calls if what[0] == f"task-{number}"]
        assert mine == [(f"task-{number}", attempt) for attempt in range(100)]


def test_the_store_in_memory_is_written_directly() -> None:
    """Without a thread; a subclass may do anything, so it gets one."""
    store = InMemoryTaskStore()
    writer = writer_for(store, print)
    assert isinstance(writer, DirectWriter)
    writer.put(make_task(1), make_record(1))
    writer.put(make_task(2))
    writer.forget("task-1")
    assert [task.id for task in store.load_all()] == ["task-2"]
    assert writer.flush(0.0)
    assert writer.close(0.0)
    assert (writer.failing, writer.failures, writer.lost, writer.backlog) == (None, 0, 0, 0)

    class Own(InMemoryTaskStore):
        pass

    assert isinstance(writer_for(Own(), print), StoreWriter)


def test_the_url_of_a_store_is_no_store() -> None:
    """The message says what makes one of it, and does not repeat what may hold a password."""
    with pytest.raises(ValidationError, match=r"SqlTaskStore\(url\)") as caught:
        writer_for("postgresql+psycopg://me:secret@host/name", print)  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("store", [None, 5, InMemoryTaskStore, {}, object()])
def test_what_is_no_store_is_refused_by_name(store: Any) -> None:
    """The message names the parameter and what is missing."""
    with pytest.raises(ValidationError, match="store must be an object with save"):
        writer_for(store, print)
