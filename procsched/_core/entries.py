"""What the engine keeps of one task, and the questions it has about slow schedules. Pure."""

from __future__ import annotations

from procsched._core import planning
from procsched._core.models import ExecutionRecord, TaskStatus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Protocol

    from procsched._core.models import ScheduledTask
    from procsched._core.planning import Plan, Slots

    class LiveAttempt(Protocol):
        """What the engine sees of an attempt that runs. The driver makes it."""

        entry: Entry
        over: bool  # its ending has arrived

    class Waiter(Protocol):
        """Somebody who waits for the end of a run. The engine only holds it and gives it back."""


SCHEDULED, RUNNING, SUCCEEDED, RETRYING, FAILED, PAUSED, CANCELLED = TaskStatus
"""The states of a task. By these names, because up to Python 3.11 to find a member in its class costs as much as
all that is decided by it."""

NOWHERE, STEADY, WALL, READY, LENT = range(5)
"""Where an entry is queued: nowhere, in one of the heaps of due times, in the ready order, or lent by that."""

BY_REQUEST: Final = "killed by request"
BY_CANCEL: Final = "killed: the task was cancelled"
BY_SHUTDOWN: Final = "killed by the shutdown of the scheduler"
"""With which words a pool is asked to end an attempt. Several may ask at once; the pool knows which came first, and
the error of the record begins with the words of that one."""

GOOD, AGAIN, ENDED, BAD, UNLOADABLE = range(5)
"""What the end of an attempt means: success, a retry, ended by request, attempts exhausted, no code to run."""


class Ended:
    """An attempt that has ended, and what is to follow.

    Attributes:
        record: what it left.
        verdict: `GOOD`, `AGAIN`, `ENDED`, `BAD` or `UNLOADABLE`.
        at: when it ended, on the steady line.
        retry_at: when the next attempt is due, on the steady line; None unless the verdict is `AGAIN`.
        goes_on: whether the schedule goes on although the verdict is `BAD`.
    """

    __slots__ = ("at", "goes_on", "record", "retry_at", "verdict")

    def __init__(
        self, record: ExecutionRecord, verdict: int, at: float, retry_at: float | None, goes_on: bool
    ) -> None:
        self.record = record
        self.verdict = verdict
        self.at = at
        self.retry_at = retry_at
        self.goes_on = goes_on

    @property
    def asks_schedule(self) -> bool:
        """Whether what follows depends on the next slot."""
        return self.verdict in (GOOD, ENDED, UNLOADABLE) or (self.verdict == BAD and self.goes_on)


class Entry:
    """A task in the registry. Owned by the engine; the handle mirrors it for users.

    Attributes:
        handle: what users hold. Nothing is ever read back from its changing attributes.
        payload: what the pool made of action and arguments.
        status, generation, attempt: as in the handle.
        kind: of the schedule, see `planning`.
        steady: whether its slots are on the steady line.
        queued: `NOWHERE`, `STEADY`, `WALL`, `READY` or `LENT`.
        slot, dealt, anchor, backlog: see `planning.Slots`; `slot` is that of the current or next run.
        due_wall: the slot of the current or last run as wall time, which may be one of a task that this has replaced.
        run: number of the current or last run.
        stands_for: slots that the current or next run stands for beyond its own.
        owed: the slot was already due when nothing could run it, so it is no misfire.
        held: paused by us, because its code cannot be loaded and it has no other slot.
        live: the attempt that runs, or None.
        ended: the attempt whose follow-up waits: a retry, or what is decided at the resume.
        waiters: who waits for the end of the run, or None.
    """

    __slots__ = (
        "anchor",
        "attempt",
        "backlog",
        "dealt",
        "due_wall",
        "ended",
        "generation",
        "handle",
        "held",
        "kind",
        "live",
        "owed",
        "payload",
        "queued",
        "run",
        "slot",
        "stands_for",
        "status",
        "steady",
        "waiters",
    )

    def __init__(self, handle: ScheduledTask, payload: Any, kind: int, steady: bool, slot: float) -> None:
        self.handle = handle
        self.payload = payload
        self.status = SCHEDULED
        self.generation = 0
        self.attempt = 0
        self.kind = kind
        self.steady = steady
        self.queued = NOWHERE
        self.slot = slot
        self.dealt = slot
        self.anchor = slot
        self.backlog: tuple[float, ...] = ()
        self.due_wall: float | None = None
        self.run = 0
        self.stands_for = 0
        self.owed = False
        self.held = False
        self.live: LiveAttempt | None = None
        self.ended: Ended | None = None
        self.waiters: list[Waiter] | None = None

    def slots(self) -> Slots:
        """Return where the task stands in its schedule, as a copy."""
        task = self.handle.task
        return planning.Slots(
            self.handle.schedule,
            self.slot,
            anchor=self.anchor,
            dealt=self.dealt,
            backlog=self.backlog,
            limit=task.max_catch_up,
            policy=task.misfire,
        )

    def __repr__(self) -> str:
        return f"<Entry {self.handle.task.id} {self.status.value} generation {self.generation}>"


AFTER_RUN, MISFIRE, RESUME, REVIVE, CLOCK_SET, AFTER_LOSS = range(6)
"""Why a schedule is asked."""


class Question:
    """What a schedule is asked, taken as a copy, so that it can be answered with no lock held.

    Attributes:
        why: `AFTER_RUN`, `MISFIRE`, `RESUME`, `REVIVE`, `CLOCK_SET` or `AFTER_LOSS`.
        entry, generation: an answer counts only while the entry's generation is still this one (save after
            a run: its record counts in any case).
        ended: the attempt that has ended, or None.
        record: its record with times on the schedule's line; for `CLOCK_SET` the last one, or None.
        now, at: this moment and the end of the attempt, on the schedule's line.
        owed: see `planning.plan_misfire`.
    """

    __slots__ = ("at", "ended", "entry", "generation", "now", "owed", "record", "slots", "why")

    def __init__(
        self,
        why: int,
        entry: Entry,
        now: float,
        *,
        ended: Ended | None = None,
        record: ExecutionRecord | None = None,
        at: float = 0.0,
        owed: bool = False,
    ) -> None:
        self.why = why
        self.entry = entry
        self.generation = entry.generation
        self.slots = entry.slots()
        self.now = now
        self.ended = ended
        self.record = record
        self.at = at
        self.owed = owed

    def answer(self) -> Plan:
        """Ask the schedule. For a foreign one this is user code: it may raise anything, or hang."""
        if self.why == AFTER_RUN:
            assert self.record is not None
            return planning.plan_next(self.slots, self.record, self.at, self.now)
        if self.why == AFTER_LOSS or (self.why == RESUME and self.record is not None):
            assert self.record is not None
            return planning.plan_resumed(self.slots, self.record, self.at, self.now)
        if self.why == REVIVE:
            return planning.plan_revived(self.slots, self.now)
        if self.why == CLOCK_SET:
            return planning.plan_again(self.slots, self.record, self.now)
        return planning.plan_misfire(self.slots, self.now, self.owed)
