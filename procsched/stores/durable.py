"""Writing to a store that outlives the process: what somebody waits for, and what may ride along.

    scheduler, under its lock --put--> queue --> "procsched-store" thread --write--> store
         ^                                                       |
         '------ on_settled: what was put up to here is on the disk

A batch is whatever has queued up while the one before was written, so its size regulates itself: one change at a time
while little happens, hundreds while the disk is slow.
"""

from __future__ import annotations

import logging
import threading
from collections import deque

from procsched._core.entries import RUNNING
from procsched._core.failures import describe
from procsched._logs import say
from procsched.clock import real_seconds
from procsched.errors import SchedulerStateError
from procsched.stores.base import StoreWriter
from procsched.stores.changes import Change
from procsched.stores.waiting import thin_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from procsched._core.models import ExecutionRecord, Outcome, ScheduledTask
    from procsched.stores.changes import DurableStore, Loaded
    from procsched.stores.payloads import StoredCall

# Seconds until it is written in which process a run is. The end of a shorter run comes before that, and replaces it.
LINGER = 0.05

# Records that wait while a store fails, before the oldest are dropped: some 100 MB, and only where attempts start
# although nothing can be written (`store_required=False`).
MOST_RECORDS = 100_000
MOST_QUEUED = 2 * MOST_RECORDS  # changes behind a call of a store that hangs, until they are looked through

# Seconds for which who does not need the store waits for it: a disk that works is faster.
GLANCE = 0.25

SMOOTHING = 0.125  # share of the last commit in what one takes: a single late one shall not count for much

_NOT_NEW: tuple[StoredCall | None, str] = (None, "")


class DurableWriter(StoreWriter):
    """The store thread of a durable store.

    Args:
        store: see `DurableStore`.
        on_problem: see `writer_for`.
        on_settled: hears that something was written; called from the store thread, with no lock held.
    Attributes:
        store: as given.
        settled: the ticket up to which all is written. Read it from anywhere.
        commit_seconds: real seconds that a write takes of late. Read it from anywhere.
        visiting: the store is had for a moment only, to change something in it; no run is started.
        calls: task id -> what it runs, and its schedule as it is stored, for tasks that are about to be put for the
            first time; guarded by the scheduler's lock.
    """

    durable = True
    close_seconds = 2.0  # a disk may take its time

    def __init__(
        self, store: DurableStore, on_problem: Callable[[str], None], on_settled: Callable[[], None]
    ) -> None:
        super().__init__(store, on_problem)
        self.store = store
        self.visiting = bool(getattr(store, "visiting", False))
        self._on_settled = on_settled
        # Whether a run may begin: not where the store is, or may be, another scheduler's.
        self.may_start: Callable[[], bool] = getattr(store, "may_start", _always)
        self.calls: dict[str, tuple[StoredCall, str]] = {}
        # Tasks whose last change says that an attempt is to start: the next one says that it has. By the one who puts.
        self._intended: set[str] = set()
        # Changes that say so, by task, and since when the first of them waits; guarded by _lock.
        self._held: dict[str, Change] = {}
        self._held_since = 0.0
        self._superseded = 0  # changes that were left out of the batch; the store thread's own
        self._left_out = 0  # changes that were left out of the queue; guarded by _lock
        self._most_queued = MOST_QUEUED  # changes, until the queue is looked through; guarded by _lock
        self._told_dropped = 0  # the store thread's own
        self.commit_seconds = 0.0
        self._leaving = False  # it is being closed; in single steps
        self._lingers = False  # the thread looks at what is held by itself in a moment; guarded by _lock

    @property
    def accepted(self) -> int:
        """The ticket of what was put last."""
        return self._put

    @property
    def settled(self) -> int:
        """The ticket up to which all is written."""
        return self._settled

    def put(
        self,
        snapshot: ScheduledTask,
        record: ExecutionRecord | None = None,
        position: Any = None,
    ) -> None:
        """Write `snapshot` in its turn, with the record of the attempt that led to it. Never blocks."""
        task_id = snapshot.task.id
        call, schedule = self.calls.pop(task_id, _NOT_NEW) if self.calls else _NOT_NEW
        change = Change(task_id, snapshot, record, position, call, schedule)
        if snapshot.status is RUNNING and position is not None:
            if position.started_at is None:
                self._intended.add(task_id)
            elif task_id in self._intended:
                self._intended.discard(task_id)
                self._hold(change)
                return
        elif self._intended:
            self._intended.discard(task_id)
        self._add(change)

    def forget(self, task_id: str) -> None:
        """Delete the task in its turn. Never blocks."""
        self._add(Change(task_id, None))

    def _add(self, change: Change) -> None:
        with self._lock:
            if self._held:
                self._held.pop(change.task_id, None)  # this one says more
            self._append_locked(change)
            if len(self._queue) >= self._most_queued:
                self._thin_queue_locked()

    def _hold(self, change: Change) -> None:
        """Have a change written in a moment, if no later one of its task has come by then."""
        with self._lock:
            if self._finished or self._abandoned:
                return
            if not self._held:
                self._held_since = real_seconds()
            self._held[change.task_id] = change
            if self._parked and not self._lingers:
                self._wake_locked()

    def _release_held_locked(self) -> None:
        self._put += len(self._held)
        self._queue.extend(self._held.values())
        self._held.clear()

    def is_in_trouble(self) -> bool:
        """Return whether the store fails, or does not come back from a call. Takes no lock."""
        return self.failing is not None or self.trouble_in() <= 0.0

    def trouble_in(self) -> float:
        """Return in how many real seconds the call that the store is in, or is about to begin, takes too long."""
        since = self.busy_since
        return since + GLANCE - real_seconds() if since else GLANCE

    def wait_stored(self, ticket: int, timeout: float, patient: bool = True) -> bool:
        """Wait until what has this ticket is written.

        Args:
            ticket: see `accepted`.
            timeout: real seconds.
            patient: wait also while the store is in trouble.
        Returns:
            False when the time was up, when it was given up, or in the store thread itself.
        """
        if self._settled >= ticket:
            return self.lost == 0
        end = real_seconds() + timeout
        with self._lock:
            if self.thread is threading.current_thread():
                return False
            while self._settled < ticket and not self._abandoned:
                left = end - real_seconds()
                if left <= 0.0 or (not patient and self.is_in_trouble()):
                    return False
                self._progress.wait(left if patient else min(left, self.trouble_in()))
            return self.lost == 0

    def flush(self, timeout: float | None) -> bool:
        """Wait until everything put before is written; as in the base."""
        with self._lock:
            if self._held:
                self._release_held_locked()
                self._work.notify()
        return super().flush(timeout)

    def _give_up_locked(self) -> int:
        self._held.clear()
        return super()._give_up_locked()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._write_all(batch)
            self._prune()
        self.let_go()

    def _next_batch(self) -> deque[Any] | None:
        """Return what is to be written now, when there is something; None at the end."""
        with self._lock:
            self._wait_for_changes_locked()
            if self._held and (self._closing or self._held_since + LINGER <= real_seconds()):
                self._release_held_locked()
            if not self._queue or self._abandoned:
                self._finished = True
                return None
            batch, self._queue = self._queue, deque()
            self._superseded, self._left_out = self._left_out, 0
            return batch

    def _wait_for_changes_locked(self) -> None:
        """Wait until something is queued, or what is held has waited long enough; or for the end."""
        while not (self._queue or self._closing):
            left = None
            if self._held:
                left = self._held_since + LINGER - real_seconds()
                if left <= 0.0:
                    break
            self._parked, self._lingers = True, left is not None
            self._work.wait(left)
        self._parked = self._lingers = False

    def open(self, now: Callable[[], float]) -> Loaded:
        """Take the store, and return what it holds. Before anything is put.

        Raises:
            StoreError: as `DurableStore.open`; also where another scheduler was given the same store and has it.
        """
        begin_use = getattr(self.store, "begin_use", None)
        if begin_use is not None:
            begin_use(self)
        if self._leaving:  # its `stop_waiting` may have come before this
            self.let_go()
            raise SchedulerStateError("this scheduler was shut down before it had opened its store")
        return self.store.open(now)

    def _is_anothers(self) -> bool:
        """Return whether another scheduler was given the same store and has it: then it is not ours to close."""
        is_anothers = getattr(self.store, "is_anothers", None)
        return is_anothers is not None and is_anothers(self)

    def serve(
        self,
        obey: Callable[[Any, str], dict[str, Any]],
        lost: Callable[[str], None],
        regained: Callable[[], None],
    ) -> None:
        """Have requests of other processes answered, if the store brings them; see `SqlTaskStore.serve`."""
        serve = getattr(self.store, "serve", None)
        if serve is not None:
            serve(obey, lost, regained)

    def history(
        self, task_id: str | None, outcome: Outcome | None, since: float | None, limit: int
    ) -> list[ExecutionRecord]:
        """Return records from the store, the newest first."""
        return self.store.history(task_id, outcome, since, limit)

    def knows(self, task_id: str) -> bool:
        """Return whether the store has a record of a task with this id."""
        return bool(self.store.history(task_id, None, None, 1))

    def close(self, timeout: float) -> bool:
        """Write what is queued, let go of the store, if it has not hung, and end the thread; as in the base."""
        self._leaving = True
        stop_waiting = getattr(self.store, "stop_waiting", None)
        if stop_waiting is not None and not self._is_anothers():
            stop_waiting()
        with self._lock:
            if self.thread is None and not self._closing:
                self._start_locked()  # to let go of the store may take long as well
            thread = self.thread
        written = super().close(timeout)
        if thread is None:
            self.let_go()
        elif thread is not threading.current_thread() and thread.is_alive() and self._finished:
            text = "the store %s does not let go within %.1f s: that goes on behind the shutdown"
            say(logging.WARNING, text, type(self._store).__name__, timeout)
        return written

    def let_go(self) -> None:
        """Close the store; what it raises is logged. Twice does no harm."""
        if self._is_anothers():
            return
        try:
            self.store.close()
        except Exception as error:
            say(logging.ERROR, "the store was not left in order", error=error)
            self._tell(f"the store was not left in order: {describe(error)}")

    def _write_some(self, batch: Any) -> int:
        began = real_seconds()
        try:
            self.store.write(batch)
        except BaseException:
            self._thin_out(batch)
            raise
        self.commit_seconds += (real_seconds() - began - self.commit_seconds) * SMOOTHING
        return len(batch)

    def _thin_out(self, batch: deque[Change]) -> None:
        """Take what has queued up behind a batch that cannot be written into it, and leave out what need not be."""
        with self._lock:
            if self._abandoned:
                return
            batch.extend(self._queue)
            self._queue.clear()
            self._superseded += self._left_out
            self._left_out = 0
        before = len(batch)
        kept, dropped = thin_out(batch, MOST_RECORDS)
        batch.clear()
        batch.extend(kept)
        self._superseded += before - len(batch)
        with self._lock:
            self.dropped += dropped
        self._tell_of_dropped()

    def _thin_queue_locked(self) -> None:
        """Leave out what need not be written of what waits behind a call that does not end."""
        before = len(self._queue)
        kept, dropped = thin_out(self._queue, MOST_RECORDS)
        self._queue = deque(kept)
        self._left_out += before - len(kept)
        self.dropped += dropped
        self._most_queued = max(MOST_QUEUED, 2 * len(kept))

    def _tell_of_dropped(self) -> None:
        dropped = self.dropped
        if dropped > self._told_dropped:
            self._told_dropped = dropped
            text = f"the store fails for so long that {dropped} records of attempts were dropped, the oldest first"
            say(logging.ERROR, "%s", text)
            self._tell(text)

    def _written(self) -> None:
        self._tell_of_dropped()
        if self._superseded:
            with self._lock:  # they were put before the last of those that are written now
                self._settled += self._superseded
                self._superseded = 0
                self._progress.notify_all()
        self._on_settled()

    def _prune(self) -> None:
        """Delete old records, a few at a time, while nothing waits to be written."""
        try:
            more = True
            while more and not self._queue and not self._closing:
                self.busy_since = real_seconds()
                more = self.store.prune()
        except Exception as error:  # the next write says what is wrong; nothing is lost by this
            say(logging.WARNING, "old records could not be deleted: %s", error)
        finally:
            self.busy_since = 0.0


def _always() -> bool:
    return True
