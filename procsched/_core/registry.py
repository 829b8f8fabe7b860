"""The books of a scheduler: its tasks, queues, counters, and what is to be told to whom. Pure.

Nothing here decides anything; `engine.py` does. What the driver has to carry out collects in the lists
`events`, `writes`, `forgotten`, `woken` and `problems`, in the order of the changes.
"""

from __future__ import annotations

from collections import OrderedDict

from procsched._core.entries import (
    FAILED,
    LENT,
    NOWHERE,
    READY,
    RETRYING,
    RUNNING,
    SCHEDULED,
    STEADY,
    WALL,
    Entry,
)
from procsched._core.frozen import twin
from procsched._core.models import Outcome, TaskEvent
from procsched._core.planning import ONCE
from procsched._core.positions import position_of
from procsched._core.queues import DueQueue, ReadyOrder
from procsched._core.transitions import next_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._core.entries import Waiter
    from procsched._core.models import ExecutionRecord, ScheduledTask
    from procsched._core.positions import Position
    from procsched._core.timeline import Timeline
    from procsched._core.transitions import TaskChange

_COUNTERS = (
    "started",
    *(outcome.value for outcome in Outcome),
    "retried",
    "missed",
    "skipped",
    "returned",
    "late_results",
    "dead_letter_dropped",
    "schedule_errors",
)

_OpenEvent = twin(TaskEvent)


class Registry:
    """Tasks, queues and counters, and the effects of changes as data.

    Args:
        timeline: the steady line.
        history_limit: records kept for each task.
        keep_finished: terminal tasks kept; the oldest are forgotten, also from the dead letter, and counted there.
        dead_letter_limit: ids kept in the dead letter; the oldest are dropped and counted.
    Attributes:
        events: to be published, in order; nothing is collected while `wants_events` is false.
        writes: (snapshot, record or None, position or None) to be stored, in order; likewise with `wants_writes`, the
            position with `wants_positions`.
        forgotten: ids to be deleted from the store.
        woken: (waiter, record or None, why there is none) to be told.
        problems: (entry or None, text) to be logged.
    Thread safety: none of its own. The driver's lock guards all of it.
    """

    def __init__(
        self, timeline: Timeline, *, history_limit: int, keep_finished: int, dead_letter_limit: int
    ) -> None:
        self.timeline = timeline
        self.history_limit = history_limit
        self.keep_finished = keep_finished
        self.dead_letter_limit = dead_letter_limit
        self.entries: dict[str, Entry] = {}  # in order of registration
        self.keys: dict[str, Entry] = {}
        self.due = DueQueue()
        self.ready = ReadyOrder()
        self.running: dict[str, Entry] = {}  # Invariant: those with a live attempt
        # Ordered dictionaries: the first key of a plain one is found ever more slowly behind those removed before it.
        # Terminal and without a live attempt, and the dead letter; the oldest first.
        self.finished: OrderedDict[str, None] = OrderedDict()
        self.dead: OrderedDict[str, None] = OrderedDict()
        # Stands for us in the handles of tasks that are forgotten, which do not keep us alive.
        self.mark = object()
        self.waiting: dict[str, Entry] = {}  # those with waiters
        self.counters: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        self.sequence = 0  # of the last event
        self.sooner = False  # a due time came before all others; the driver tells the timer and resets it
        self.wants_events = False
        self.wants_writes = False
        self.wants_positions = False
        self.events: list[TaskEvent] = []
        self.writes: list[tuple[ScheduledTask, ExecutionRecord | None, Position | None]] = []
        self.forgotten: list[str] = []
        self.woken: list[tuple[Waiter, ExecutionRecord | None, str]] = []
        self.problems: list[tuple[Entry | None, str]] = []

    @property
    def pending(self) -> int:
        """How many live entries wait, for their time or for a worker."""
        return len(self.due) - self.due.tombstones + len(self.ready)

    # --- effects ---------------------------------------------------------------------------------------

    def tell(
        self,
        entry: Entry | None,
        wall: float,
        record: ExecutionRecord | None = None,
        kind: str = "status",
        progress: object = None,
    ) -> None:
        """Number an event, and collect it where somebody listens."""
        self.sequence += 1
        if not self.wants_events:
            return
        event = _OpenEvent()
        if entry is None:
            event.task_id = event.name = ""
            event.status = None
        else:
            task = entry.handle.task
            event.task_id = task.id
            event.name = task.name
            event.status = entry.status
        event.record = record
        event.sequence = self.sequence
        event.at = wall
        event.kind = kind
        event.progress = progress
        event.__class__ = TaskEvent
        self.events.append(event)

    def move(
        self,
        entry: Entry,
        change: TaskChange,
        wall: float,
        record: ExecutionRecord | None = None,
        text: str | None = None,
    ) -> None:
        """Apply `change`: status, event and stored snapshot. What else belongs to it is done before.

        Raises:
            SchedulerStateError: the table of transitions has no such row; nothing was changed.
        """
        entry.status = entry.handle.status = next_status(entry.status, change)
        self.tell(entry, wall, record, "status", text)
        if self.wants_writes:
            self.write(entry, record)

    def write(self, entry: Entry, record: ExecutionRecord | None = None) -> None:
        """Have the entry stored as it is, with the record of the attempt that led to it."""
        position = position_of(entry, self.timeline.offset) if self.wants_positions else None
        self.writes.append((entry.handle.snapshot(), record, position))

    def count_missed(self, entry: Entry, missed: int, wall: float) -> None:
        """Count slots that nothing could run, and tell of them."""
        if missed:
            self.counters["missed"] += missed
            self.tell(entry, wall, None, "missed", f"{missed} slot{'s' if missed > 1 else ''} missed")

    def wake_waiters(self, entry: Entry, record: ExecutionRecord | None, why: str = "") -> None:
        """Give whoever waits for the end of the run its record, or say why there is none."""
        if entry.waiters:
            self.woken += [(waiter, record, why) for waiter in entry.waiters]
            entry.waiters = None
            del self.waiting[entry.handle.task.id]

    # --- queues ----------------------------------------------------------------------------------------

    def enqueue(self, entry: Entry, steady: bool, due_at: float) -> None:
        """Put an entry into the heap of due times. Where it is the first of its line, the timer must look."""
        if steady:
            entry.queued = STEADY
            entry.handle.next_run_at = due_at + self.timeline.offset
        else:
            entry.queued = WALL
            entry.handle.next_run_at = due_at
        if self.due.push(steady, due_at, entry.handle.task.priority, entry):
            self.sooner = True

    def make_ready(self, entry: Entry, steady: bool, due_at: float, sequence: int) -> None:
        """Let an entry that is due wait for a worker."""
        entry.queued = READY
        if steady:
            due_at += self.timeline.offset
        self.ready.push(entry.handle.task.priority, due_at, sequence, entry)

    def withdraw(self, entry: Entry) -> None:
        """Make what is queued of the entry, and every open question about it, stale. It must not be lent."""
        assert entry.queued != LENT
        entry.generation += 1
        entry.handle.generation = entry.generation
        queued, entry.queued = entry.queued, NOWHERE
        if queued == READY:
            self.ready.discard()
        elif queued != NOWHERE:
            self.due.discard(queued == STEADY)

    # --- the end of tasks ------------------------------------------------------------------------------

    def add_dead(self, entry: Entry) -> None:
        """Put a task into the dead letter."""
        self.dead[entry.handle.task.id] = None
        while len(self.dead) > self.dead_letter_limit:
            self._drop_dead(next(iter(self.dead)))

    def _drop_dead(self, task_id: str) -> None:
        del self.dead[task_id]
        self.counters["dead_letter_dropped"] += 1

    def retire(self, entry: Entry) -> None:
        """Note that a task is terminal and nothing of it runs; forget the oldest ones beyond the limit."""
        if entry.status is not FAILED:
            entry.payload = None  # only a failed task can be revived
        self.finished[entry.handle.task.id] = None
        while len(self.finished) > self.keep_finished:
            oldest, _nothing = self.finished.popitem(last=False)
            if oldest in self.dead:
                self._drop_dead(oldest)
            gone = self.entries.pop(oldest)
            gone.handle._end = self.mark, gone.status
            self.release_key(gone)
            if self.wants_writes:
                self.forgotten.append(oldest)

    def forgotten_entry(self, handle: ScheduledTask) -> Entry | None:
        """Return what stands for the entry of a task that is forgotten: nothing but its end, which never changes.

        Returns:
            None where `handle` is none of such a task here.
        """
        mark, status = getattr(handle, "_end", (None, SCHEDULED))
        if mark is not self.mark:
            return None
        entry = Entry(handle, None, ONCE, False, 0.0)
        entry.status = status
        return entry

    def forget(self, entry: Entry) -> None:
        """Let go of a terminal task before its time."""
        name = entry.handle.task.id
        self.finished.pop(name, None)
        self.entries.pop(name, None)
        self.release_key(entry)
        if self.wants_writes:
            self.forgotten.append(name)

    def release_key(self, entry: Entry) -> None:
        """Free the task's key, where it is still its own."""
        key = entry.handle.task.key
        if key is not None and self.keys.get(key) is entry:
            del self.keys[key]

    @staticmethod
    def may_go_on(entry: Entry) -> bool:
        """Return whether a task may run again: one that has failed may, for it can be revived."""
        return entry.status is FAILED or not entry.status.is_terminal

    def is_replaced(self, entry: Entry) -> bool:
        """Return whether another task has taken the place of a failed one, by its key; also where it is over itself."""
        key = entry.handle.task.key
        return key is not None and self.keys.get(key) is not entry

    # --- invariants ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert every invariant. Linear in the number of tasks: for tests."""
        self.due.check()
        self.ready.check()
        queued = {STEADY: 0, WALL: 0, READY: 0, LENT: 0, NOWHERE: 0}
        for name, entry in self.entries.items():
            handle = entry.handle
            assert handle.task.id == name
            queued[entry.queued] += 1
            assert (entry.live is not None) == (name in self.running), entry
            if entry.status is RUNNING:
                assert entry.live is not None, entry
            if entry.status not in (SCHEDULED, RETRYING):
                assert entry.queued == NOWHERE, entry
            assert (name in self.finished) == (entry.status.is_terminal and entry.live is None), entry
            assert bool(entry.waiters) == (name in self.waiting), entry
            assert len(handle._history) <= self.history_limit
            if name in self.dead:
                assert entry.status is FAILED, entry
                assert not self.is_replaced(entry), entry
        assert queued[STEADY] == self.due.steady.live, "steady heap"
        assert queued[WALL] == self.due.wall.live, "wall heap"
        assert queued[LENT] == self.ready.lent, "lent"
        assert queued[READY] + queued[LENT] == len(self.ready), "ready order"
        assert set(self.finished) <= set(self.entries)
        assert len(self.finished) <= self.keep_finished
        assert len(self.dead) <= self.dead_letter_limit
        ended = sum(self.counters[outcome.value] for outcome in Outcome)
        assert self.counters["started"] == ended + len(self.running), "one record per attempt"
        assert all(entry.handle.task.key == key for key, entry in self.keys.items())
