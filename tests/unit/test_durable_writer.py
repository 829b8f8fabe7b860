"""What the writer of a durable store sends it, and when."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from procsched import TaskStatus
from procsched.stores import durable
from procsched.stores.changes import Change
from procsched.stores.durable import DurableWriter
from procsched.testing.stores import AT, change, position, record_of
from tests import support


class Noting:
    """A store that notes what it is given: number of the task, status, whether its process is in it."""

    durable = True

    def __init__(self) -> None:
        self.written: list[tuple[str, str, bool]] = []
        self.batches: list[int] = []  # how many changes each has
        self.takes = lambda: None
        self.something = threading.Event()

    def write(self, changes: Sequence[Change]) -> None:
        """Note the changes."""
        self.takes()
        self.batches.append(len(changes))
        for each in changes:
            assert each.snapshot is not None
            assert each.position is not None
            began = each.position.started_at is not None
            self.written.append((each.task_id, each.snapshot.status.value, began))
        self.something.set()

    def prune(self) -> bool:
        """Have nothing to delete."""
        return False

    def close(self) -> None:
        """Do nothing."""


class Putting:
    """A writer with its store, and the changes that a scheduler makes."""

    def __init__(self) -> None:
        self.store = Noting()
        self.writer = DurableWriter(self.store, lambda text: None, lambda: None)  # type: ignore[arg-type]

    def put(self, number: int, status: TaskStatus, began: bool, record: Any = None) -> None:
        """Put a change of a task."""
        place = position(live=status is TaskStatus.RUNNING, started_at=AT if began else None)
        made = change(number, place, status=status, record=record)
        assert made.snapshot is not None
        self.writer.put(made.snapshot, record, place)

    def start(self, number: int) -> None:
        """Put that an attempt is to start, which is waited for, and then that it has."""
        self.put(number, TaskStatus.RUNNING, False)
        assert self.writer.wait_stored(self.writer.accepted, support.TIMEOUT)
        self.put(number, TaskStatus.RUNNING, True)


@pytest.fixture
def putting() -> Iterator[Putting]:
    made = Putting()
    yield made
    assert made.writer.close(support.TIMEOUT)


INTENT, BEGUN, ENDED = ("running", False), ("running", True), ("succeeded", False)


def test_the_end_of_a_short_run_replaces_its_beginning(
    putting: Putting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writes for each run, not three; that of another, which goes on, does not come along before its time."""
    monkeypatch.setattr(durable, "LINGER", 1e6)
    putting.start(1)
    putting.start(2)
    putting.put(1, TaskStatus.SUCCEEDED, False, record_of(1))
    assert putting.writer.wait_stored(putting.writer.accepted, support.TIMEOUT)
    assert putting.store.written == [("job-1", *INTENT), ("job-2", *INTENT), ("job-1", *ENDED)]
    assert putting.writer.flush(support.TIMEOUT)
    assert putting.store.written[3:] == [("job-2", *BEGUN)]


def test_the_process_of_a_longer_run_is_written_by_itself(
    putting: Putting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody asks for it, and nothing else is written."""
    monkeypatch.setattr(durable, "LINGER", 0.001)
    putting.put(1, TaskStatus.RUNNING, False)
    assert putting.writer.wait_stored(putting.writer.accepted, support.TIMEOUT)
    putting.store.something.clear()
    putting.put(1, TaskStatus.RUNNING, True)
    assert putting.store.something.wait(support.TIMEOUT)
    assert putting.store.written == [("job-1", *INTENT), ("job-1", *BEGUN)]


def test_it_is_written_among_others_when_its_time_has_come(
    putting: Putting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store thread that always has something to do writes it too."""
    monkeypatch.setattr(durable, "LINGER", 1e6)
    putting.start(1)
    monkeypatch.setattr(durable, "LINGER", 0.0)
    putting.put(2, TaskStatus.RUNNING, False)
    assert putting.writer.wait_stored(putting.writer.accepted, support.TIMEOUT)
    assert sorted(putting.store.written[1:]) == [("job-1", *BEGUN), ("job-2", *INTENT)]


def test_what_is_held_is_written_at_the_close(putting: Putting, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the store is let go."""
    monkeypatch.setattr(durable, "LINGER", 1e6)
    putting.start(1)
    assert putting.writer.close(support.TIMEOUT)
    assert putting.store.written == [("job-1", *INTENT), ("job-1", *BEGUN)]


def test_a_run_that_is_resumed_is_written_at_once(putting: Putting, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks like one that has just begun; somebody waits for it."""
    monkeypatch.setattr(durable, "LINGER", 1e6)
    putting.start(1)
    for status in (TaskStatus.PAUSED, TaskStatus.RUNNING):
        putting.put(1, status, True)
        assert putting.writer.wait_stored(putting.writer.accepted, support.TIMEOUT)
    assert putting.store.written == [("job-1", *INTENT), ("job-1", "paused", True), ("job-1", *BEGUN)]


def test_what_a_write_takes_is_smoothed(putting: Putting, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single late one counts little, many count; one that fails does not."""
    now = [1.0]
    monkeypatch.setattr(durable, "real_seconds", lambda: now[0])
    writer = putting.writer

    def write(seconds: float) -> float:
        def takes() -> None:
            now[0] += seconds

        putting.store.takes = takes
        writer._write_some([change(1, position(live=False))])
        return writer.commit_seconds

    assert writer.commit_seconds == 0.0
    assert write(0.008) == pytest.approx(0.001)
    assert [write(0.008) for _ in range(100)][-1] == pytest.approx(0.008, rel=0.01)

    def breaks() -> None:
        now[0] += 100.0
        raise OSError("gone")

    putting.store.takes = breaks
    with pytest.raises(OSError, match="gone"):
        writer._write_some(durable.deque([change(1, position(live=False))]))
    assert writer.commit_seconds == pytest.approx(0.008, rel=0.01)
