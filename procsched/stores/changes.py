"""What a store that outlives the process is given to write, and what it gives back."""

from __future__ import annotations

from types import MappingProxyType

from procsched._core.snapshots import entry_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Protocol

    from procsched._core.entries import Entry
    from procsched._core.models import ExecutionRecord, Outcome, ScheduledTask
    from procsched._core.positions import Position, Underway
    from procsched.protocols import TaskStore
    from procsched.stores.payloads import StoredCall

    class DurableStore(TaskStore, Protocol):
        """A store from which a scheduler goes on after a restart.

        `write` and `prune` are called by the store thread only, and `close` by that at its end; `open` before it
        starts; `history` by any thread at any time.
        """

        durable: bool

        def open(self, now: Callable[[], float]) -> Loaded:
            """Take the store to schedule from it, and return what it holds.

            Args:
                now: gives UNIX seconds by the scheduler's clock, from any thread; its slots are compared with what is
                    written down.
            Raises:
                StoreError: saying why not.
            """

        def write(self, changes: Sequence[Change]) -> None:
            """Write all changes, or none. Repeating it does no harm: an attempt has one record."""

        def prune(self) -> bool:
            """Delete a few old records, if any. Return whether there may be more."""

        def history(
            self, task_id: str | None, outcome: Outcome | None, since: float | None, limit: int
        ) -> list[ExecutionRecord]:
            """Return records, the newest first."""

        def close(self) -> None:
            """Let go of the store. `history` may still be asked."""


class Change:
    """A task as it is now, with the record of the attempt that led to it; or the end of a task.

    Attributes:
        task_id: whose.
        snapshot, position: None where the task is to be forgotten.
        record: of the attempt that has just ended, or None.
        call: what is run, where the task is new.
        schedule: as it is stored, where the task is new; "" where nobody has made that yet.
    """

    __slots__ = ("call", "position", "record", "schedule", "snapshot", "task_id")

    def __init__(
        self,
        task_id: str,
        snapshot: ScheduledTask | None,
        record: ExecutionRecord | None = None,
        position: Position | None = None,
        call: StoredCall | None = None,
        schedule: str = "",
    ) -> None:
        self.task_id = task_id
        self.snapshot = snapshot
        self.record = record
        self.position = position
        self.call = call
        self.schedule = schedule


class Loaded:
    """What a store holds when it is opened.

    Attributes:
        tasks: in order of registration, as entries whose slots are wall time. The `payload` of each is its
            `StoredCall`, which tasks with the same call may share; None where that is gone. From a store that keeps
            the tasks themselves, it is its `Task`.
        underway: id -> what else there is, where an attempt runs or something waits to follow from the last one.
        finished: ids of those that are terminal, in the order in which they ended.
        down_at: UNIX seconds when the last owner was alive for certain.
        why: the error of the records of what was lost with it.
        same_boot: whether the pids that were written down may still be those processes, and nobody's.
        known_ids: ids that must never be given again, those of `tasks` left out.
    """

    def __init__(
        self,
        tasks: Sequence[Entry] = (),
        underway: Mapping[str, Underway] = MappingProxyType({}),
        finished: Iterable[str] = (),
        down_at: float = 0.0,
        why: str = "",
        same_boot: bool = False,
        known_ids: Iterable[str] = (),
    ) -> None:
        self.tasks = tasks
        self.underway = underway
        self.finished = tuple(finished)
        self.down_at = down_at
        self.why = why
        self.same_boot = same_boot
        self.known_ids = tuple(known_ids)


LOST = "its scheduler ended while this ran, at a time that is not known"


def loaded_from(snapshots: Iterable[ScheduledTask], now: float) -> Loaded:
    """Return what a store holds that keeps nothing but snapshots.

    The newest record says when its scheduler was alive for certain. Where that is yet to come, the clock was set back,
    but nobody knows whether before the scheduler ended: times are taken as they are.

    Args:
        snapshots: of several of a task the last one counts.
        now: UNIX seconds.
    Raises:
        Exception: there is something else among them.
    """
    newest = {snapshot.task.id: snapshot for snapshot in snapshots}
    found = {name: entry_of(snapshot, now) for name, snapshot in newest.items()}
    entries = [entry for entry, _underway in found.values()]
    underway = {name: more for name, (_entry, more) in found.items() if more is not None}
    ends = {each.handle.task.id: _last_end(each.handle) for each in entries}
    finished = [each.handle.task.id for each in entries if each.status.is_terminal]
    finished.sort(key=ends.__getitem__)
    return Loaded(entries, underway, finished, min(now, max(ends.values(), default=0.0)), LOST)


def _last_end(handle: ScheduledTask) -> float:
    last = handle.last_run()
    return 0.0 if last is None else last.finished_at
