"""How the scheduler's changes reach a store: in order, from one thread, and without waiting for it.

    scheduler, under its lock --put, forget--> queue --> "procsched-store" thread --commit or save--> store

A store may be slow, raise or hang; the scheduler neither waits nor loses the order. A batch that failed is
tried again before anything newer is written, so an older state can never replace a newer one.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from procsched._core.failures import describe
from procsched._interrupts import owner_check
from procsched._logs import say
from procsched.clock import real_seconds
from procsched.errors import StoreError, ValidationError
from procsched.stores.memory import DirectWriter, InMemoryTaskStore, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Protocol

    from procsched._core.models import ExecutionRecord, ScheduledTask
    from procsched._parts import Inspection
    from procsched.protocols import TaskStore
    from procsched.stores.changes import Loaded

    Change = tuple[str, ScheduledTask | None, ExecutionRecord | None]  # (id, None, None): forget it

    class CommittingStore(TaskStore, Protocol):
        """A store that writes several changes together or not at all."""

        def commit(self, changes: Sequence[tuple[ScheduledTask, ExecutionRecord | None]]) -> None:
            """Write the changes, in their order."""


FIRST_RETRY = 0.1  # seconds from a failure to the next try: long enough for a lock to go away
LOAD_SECONDS = 60.0  # for which a start waits until the store has said what it holds
LAST_RETRY = 5.0  # seconds, to which it doubles: short enough to notice that the store is back


def writer_for(
    store: TaskStore, on_problem: Callable[[str], None], on_settled: Callable[[], None] | None = None
) -> StoreWriter | DirectWriter:
    """Return what writes to `store`: its own thread, or none for the store in memory, which cannot hang.

    Args:
        store: the user's, or the default.
        on_problem: hears in words what is wrong with the store, and when that is over; called from the store
            thread, with no lock held.
        on_settled: hears that something was written to a durable store, likewise.
    Raises:
        ValidationError: `store` lacks a method of `TaskStore`.
    """
    if type(store) is InMemoryTaskStore:
        return DirectWriter(store)
    if isinstance(store, str):
        raise ValidationError("store must be an object, not a text: of a URL make one by SqlTaskStore(url)")
    missing = [name for name in ("save", "delete", "load_all") if not callable(getattr(store, name, None))]
    if missing or isinstance(store, type):
        what = f"the class {store.__name__}" if isinstance(store, type) else type(store).__name__
        raise ValidationError(
            f"store must be an object with save(task), delete(task_id) and load_all(); {what} is not"
            + (f": it has no {', '.join(missing)}" if missing else "")
        )
    if getattr(store, "durable", False) and on_settled is not None:
        # Here and not above: a scheduler without such a store does without.
        from procsched.stores.durable import DurableWriter

        return DurableWriter(store, on_problem, on_settled)  # type: ignore[arg-type]
    return StoreWriter(store, on_problem)


class _LoadAll:
    """What stands in the queue for the question what a store holds; with the answer, or what was raised."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.loaded: Loaded | None = None
        self.error: BaseException | None = None

    def ask(self, store: TaskStore) -> None:
        try:
            self.loaded = load(store, self._now)
        except BaseException as error:  # user code; it is raised to who has asked
            self.error = error


class StoreWriter:
    """One thread that writes to a store; it starts with the first change, and is parked while idle.

    Args:
        store: saves and deletes; with `commit` it gets what queued up as one batch.
        on_problem: see `writer_for`.
    Attributes:
        failing: what is wrong with the store now, in words; None while it works.
        failures: calls of the store that raised.
        lost: changes that were given up at the close.
        dropped: records that were given up before that, because the store failed for long.
        thread: the one that writes, None before the first change.
        busy_since: steady time since when the store has been in one call; 0 while it is in none.
    Thread safety: call from anywhere.
    """

    durable = False
    close_seconds = 0.0  # for what is queued at a shutdown, at least

    def __init__(self, store: TaskStore, on_problem: Callable[[str], None]) -> None:
        self._store = store
        self._commit: Callable[..., None] | None = getattr(store, "commit", None)
        self._on_problem = on_problem
        # `_lock` guards the fields below. Callers may hold the scheduler's lock, so it is only ever held
        # for a few instructions: no call of the store, of `on_problem` or of logging happens under it.
        # Reentrant only so that a signal handler can tell that it interrupted a holder.
        self._renew_lock()
        # A `Change` each, or what a subclass has for that; guarded by _lock.
        self._queue: deque[Any] = deque()
        self._put = 0  # changes accepted so far; guarded by _lock
        self._settled = 0  # of these, written or given up; guarded by _lock
        self._parked = False  # guarded by _lock
        self._closing = False  # guarded by _lock
        self._abandoned = False  # guarded by _lock
        self._finished = False  # the thread takes no further change; guarded by _lock
        self.thread: threading.Thread | None = None  # guarded by _lock
        self.busy_since = 0.0  # this and the next three are written by the store thread, and read by anybody
        self.failing: str | None = None
        self.failing_since = 0.0  # steady time
        self.failures = 0
        self.lost = 0  # guarded by _lock
        self.dropped = 0  # guarded by _lock

    def after_fork(self) -> None:
        """In a fork of the process: what was put before is written by the thread of the parent, which is not there."""
        self._renew_lock()
        self._queue.clear()
        self._settled = self._put
        self._parked = False
        self.thread = None
        self.busy_since = 0.0

    def _renew_lock(self) -> None:
        """Make the lock, or another one for a fork of the process: a thread that is not there may have held it."""
        self._lock = threading.RLock()
        self.holds_lock = owner_check(self._lock)
        self._work = threading.Condition(self._lock)  # the store thread waits here
        self._progress = threading.Condition(self._lock)  # flush and close wait here

    @property
    def backlog(self) -> int:
        """How many changes are not written yet."""
        with self._lock:
            return self._put - self._settled

    def open(self, now: Callable[[], float]) -> Loaded | None:
        """Return what the store holds, which is asked in its own thread; None for nothing. Before anything is put.

        Raises:
            StoreError: `load_all` raised, or hangs, or the store is closed meanwhile.
        """
        asked = _LoadAll(now)
        self._enqueue(asked)
        if self.thread is None or not self.flush(LOAD_SECONDS):
            why = self.failing or f"it is closed, or has not answered within {LOAD_SECONDS:g} s"
        elif asked.error is not None:
            why = describe(asked.error)
        else:
            return asked.loaded
        raise StoreError(
            f"the store {type(self._store).__name__} cannot be loaded, and what it holds would be overwritten: {why}"
        ) from asked.error

    def put(
        self, snapshot: ScheduledTask, record: ExecutionRecord | None = None, _position: object = None
    ) -> None:
        """Write `snapshot` in its turn, together with the `record` of the attempt that led to it.

        Never blocks. The caller gives the snapshot away. After `close` the change is counted as lost.
        """
        self._enqueue((snapshot.task.id, snapshot, record))

    def forget(self, task_id: str) -> None:
        """Delete the task in its turn. Never blocks."""
        self._enqueue((task_id, None, None))

    def flush(self, timeout: float | None) -> bool:
        """Wait until everything put before is written.

        Args:
            timeout: real seconds; None for no limit.
        Returns:
            False when the time was up, when something was given up, or from the store's own thread.
        """
        end = None if timeout is None else real_seconds() + timeout
        with self._lock:
            if self.thread is threading.current_thread():
                return False
            target = self._put
            while self._settled < target and not self._abandoned:
                left = None if end is None else end - real_seconds()
                if left is not None and left <= 0.0:
                    return False
                self._progress.wait(left)
            return self.lost == 0

    def close(self, timeout: float) -> bool:
        """Write what is queued, and end the thread. A second call waits for the first.

        A store that fails is tried once more at once, then the rest is given up; one that hangs is left to
        its thread, which writes nothing more once it comes back. Both are said in the log.

        Args:
            timeout: real seconds.
        Returns:
            True when everything is written and the thread has ended.
        """
        end = real_seconds() + timeout
        with self._lock:
            self._closing = True
            self._work.notify_all()
            thread = self.thread
            if thread is None:
                self._finished = True
                self._give_up_locked()
            if thread is threading.current_thread():
                return False  # it ends when it returns to us
        if thread is not None:
            thread.join(max(0.0, end - real_seconds()))
            if thread.is_alive():
                self._abandon(timeout)
        with self._lock:
            return self._finished and self.lost == 0

    def inspect(self, inspection: Inspection) -> None:
        """Say how the store and its thread are. Takes no lock."""
        name = f"store {type(self._store).__name__}"
        given_up = f"{self.dropped} records of attempts were dropped" if self.dropped else ""
        inspection.add_thread(
            name, self.thread, self.busy_since, self.failing, self.failing_since, detail=given_up
        )

    def _abandon(self, timeout: float) -> None:
        with self._lock:
            if self._abandoned or self._finished:
                return
            self._abandoned = True
            unwritten = self._give_up_locked()
        say(
            logging.ERROR,
            "the store %s did not return within %.1f s: it is abandoned, %d changes may not be written",
            type(self._store).__name__,
            timeout,
            unwritten,
        )

    def _give_up_locked(self) -> int:
        """Count all that is not written as lost. Return how much that is."""
        unwritten = self._put - self._settled
        self.lost += unwritten
        self._settled = self._put
        self._queue.clear()
        self._progress.notify_all()
        return unwritten

    def _enqueue(self, change: Change | _LoadAll) -> None:
        with self._lock:
            self._append_locked(change)

    def _append_locked(self, change: Any) -> None:
        self._put += 1
        if self._finished or self._abandoned:
            self._settled += 1
            self.lost += 1
            return
        self._queue.append(change)
        if self.thread is None:
            self._start_locked()
        elif self._parked:
            self._wake_locked()

    def _wake_locked(self) -> None:
        self._work.notify()  # first: a signal handler that raises in between must not leave it asleep
        self._parked = False

    def _start_locked(self) -> None:
        thread = threading.Thread(target=self._run, name="procsched-store", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left; tried again at the next change
            self.failing = f"the store thread cannot start: {error}"
        else:
            self.thread = thread
            self.failing = None

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closing:
                    self._parked = True
                    self._work.wait()
                self._parked = False
                if not self._queue or self._abandoned:
                    self._finished = True
                    return
                batch, self._queue = self._queue, deque()
            self._write_all(batch)

    def _write_all(self, batch: deque[Change]) -> None:
        """Write `batch` in order, however often it takes; give it up when the writer is closing."""
        streak = 0
        while batch:
            self.busy_since = real_seconds()
            try:
                written = self._write_some(batch)
            except BaseException as error:  # whatever user code raises, this thread goes on
                streak += 1
                if self.failing is None:
                    self.failing_since = real_seconds()
                self.busy_since = 0.0
                self._note_failure(error, streak)
                if not self._may_retry(streak):
                    return
                continue
            self.busy_since = 0.0
            for _ in range(written):
                batch.popleft()
            if streak:
                self._note_recovery(streak)
                streak = 0
            with self._lock:
                if self._abandoned:  # counted as lost already
                    return
                self._settled += written
                self._progress.notify_all()
            self._written()

    def _written(self) -> None:
        """Hear that more is written. With no lock held."""

    def _write_some(self, batch: deque[Change]) -> int:
        """Write the first changes of `batch` that go together. Return how many they are."""
        if isinstance(batch[0], _LoadAll):
            batch[0].ask(self._store)
            return 1
        task_id, snapshot, _ = batch[0]
        if snapshot is None:
            self._store.delete(task_id)
            return 1
        if self._commit is None:
            self._store.save(snapshot)
            return 1
        together: list[tuple[ScheduledTask, ExecutionRecord | None]] = []
        for _, snapshot, record in batch:
            if snapshot is None:
                break
            together.append((snapshot, record))
        self._commit(together)
        return len(together)

    def _note_failure(self, error: BaseException, streak: int) -> None:
        self.failures += 1
        text = f"the store {type(self._store).__name__} failed: {describe(error)}"
        if streak & (streak - 1) and text == self.failing:
            return  # told at the first, second, fourth, eighth failure of a kind
        self.failing = text
        with self._lock:
            self._progress.notify_all()  # who does not need the store waits no longer
        say(logging.ERROR, "%s; %d changes wait, failure %d", text, self.backlog, streak, error=error)
        self._tell(text)

    def _note_recovery(self, streak: int) -> None:
        text = f"the store {type(self._store).__name__} works again after {streak} failures"
        self.failing = None
        say(logging.WARNING, "%s", text)
        self._tell(text)

    def _tell(self, text: str) -> None:
        try:
            self._on_problem(text)
        except BaseException as failure:  # the scheduler's; the store thread must go on
            say(logging.ERROR, "the store's problem could not be reported", error=failure)

    def _may_retry(self, streak: int) -> bool:
        """Wait before the next try. Return False when the changes have been given up."""
        end = real_seconds() + min(LAST_RETRY, FIRST_RETRY * 2 ** min(streak - 1, 10))
        with self._lock:
            if self._abandoned:
                return False
            if not self._closing:
                while (left := end - real_seconds()) > 0.0:
                    self._work.wait(left)
                    if self._closing:
                        break
                return True
            if streak == 1:
                return True
            unwritten = self._give_up_locked()
        say(logging.ERROR, "the store still fails at the close: %d changes are not written", unwritten)
        return False
