"""The store of a scheduler that is given none: it lives as long as the process."""

from __future__ import annotations

import threading

from procsched import _forks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from procsched._core.models import ExecutionRecord, ScheduledTask
    from procsched.protocols import TaskStore
    from procsched.stores.changes import Loaded


class InMemoryTaskStore:
    """Keeps the latest state of every task in memory. Each call is atomic; nothing survives the process.

    What is kept and what is given are snapshots: neither changes when the scheduler's task does.

    Thread safety: call from anywhere.
    """

    def __init__(self) -> None:
        # Guards `_tasks`; nothing else happens while it is held. Reentrant for a finalizer that interrupts a holder.
        self._lock = threading.RLock()
        self._tasks: dict[str, ScheduledTask] = {}  # in order of registration; guarded by _lock
        _forks.note(self)

    def after_fork(self) -> None:
        """In a fork of the process: a thread that is not there may have held the lock."""
        self._lock = threading.RLock()

    def save(self, task: ScheduledTask) -> None:
        """Keep a snapshot of `task` in place of an earlier one."""
        self.keep(task.snapshot())

    def keep(self, snapshot: ScheduledTask) -> None:
        """Keep `snapshot` itself, which its owner gives away and changes no more."""
        with self._lock:
            self._tasks[snapshot.task.id] = snapshot

    def delete(self, task_id: str) -> None:
        """Forget the task; one that is not there is no error."""
        with self._lock:
            self._tasks.pop(task_id, None)

    def load_all(self) -> list[ScheduledTask]:
        """Return every task that is kept, in order of registration."""
        with self._lock:
            kept = list(self._tasks.values())
        return [task.snapshot() for task in kept]

    def get(self, task_id: str) -> ScheduledTask | None:
        """Return the task as it was saved last, or None."""
        with self._lock:
            kept = self._tasks.get(task_id)
        return None if kept is None else kept.snapshot()

    def __len__(self) -> int:
        with self._lock:
            return len(self._tasks)

    def __bool__(self) -> bool:
        return True  # an empty store is a store

    def __repr__(self) -> str:
        return f"<InMemoryTaskStore of {len(self)} tasks>"


def load(store: TaskStore, now: Callable[[], float]) -> Loaded | None:
    """Ask a store that keeps nothing but snapshots what it holds. Return None for nothing."""
    snapshots = list(store.load_all())
    if not snapshots:
        return None
    from procsched.stores.changes import loaded_from  # here, for most stores are empty

    return loaded_from(snapshots, now())


class DirectWriter:
    """Writes to the store in memory at once. The interface of `StoreWriter`, without a thread."""

    durable = False
    close_seconds = 0.0
    failing: str | None = None
    failures = 0
    lost = 0
    backlog = 0

    def __init__(self, store: InMemoryTaskStore) -> None:
        self._store = store

    def open(self, now: Callable[[], float]) -> Loaded | None:
        """Return what the store holds, None for nothing."""
        return load(self._store, now)

    def put(
        self, snapshot: ScheduledTask, record: ExecutionRecord | None = None, _position: object = None
    ) -> None:
        """Keep `snapshot`, which the caller gives away."""
        self._store.keep(snapshot)

    def forget(self, task_id: str) -> None:
        """Delete the task."""
        self._store.delete(task_id)

    def flush(self, timeout: float | None) -> bool:
        """Return True: everything is written."""
        return True

    def close(self, timeout: float) -> bool:
        """Return True: there is nothing to end."""
        return True
