"""The vocabulary: enums, the task, its handle, the record of an attempt, events, the retry policy.

Pure values. A `ScheduledTask` is the one object here that changes, and only the scheduler changes it.
"""

from __future__ import annotations

import math
import pickle
from enum import IntEnum, StrEnum

from procsched._core.checks import finite_seconds, member_of, whole_number
from procsched._core.frozen import frozen
from procsched.errors import RemoteError, ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from dataclasses import KW_ONLY
    from typing import Any, Final

    from procsched._core.limits import Limits
    from procsched.protocols import Schedule


class TaskStatus(StrEnum):
    """Where a task stands. SUCCEEDED, FAILED and CANCELLED are terminal."""

    SCHEDULED = "scheduled"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    RETRYING = "retrying"
    FAILED = "failed"
    PAUSED = "paused"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """True for SUCCEEDED, FAILED and CANCELLED."""
        return self in _TERMINAL


_TERMINAL = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELLED})


class Priority(IntEnum):
    """Which of two due tasks starts first. Strict: LOW may starve while HIGH keeps coming."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class OverrunPolicy(StrEnum):
    """What a FixedRate does with the slots that passed while its own run was alive."""

    SKIP = "skip"
    CATCH_UP = "catch_up"


class MisfirePolicy(StrEnum):
    """What happens to slots that passed while paused, down, asleep or before the start."""

    RUN_ONCE = "run_once"
    SKIP = "skip"
    CATCH_UP = "catch_up"


class Outcome(StrEnum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    LIMIT_EXCEEDED = "limit_exceeded"
    KILLED = "killed"
    LOST = "lost"


@frozen
class RetryPolicy:
    """How often a run is tried, and how long to wait between attempts.

    Args:
        max_attempts: attempts in all, the first included; at least 1.
        initial_backoff: seconds before the second attempt.
        multiplier: growth of each further wait; at least 1.
        max_backoff: cap in seconds; an `initial_backoff` above it is capped, not refused.
        jitter: 0 to 1; each wait is lengthened or shortened by up to this part of itself.
    Raises:
        ValidationError: a value is out of range, naming the field.
    """

    max_attempts: int = 3
    initial_backoff: float = 1.0
    multiplier: float = 2.0
    max_backoff: float = 60.0
    _: KW_ONLY
    jitter: float = 0.0

    def __post_init__(self) -> None:
        whole_number("max_attempts", self.max_attempts)
        put = object.__setattr__
        put(self, "initial_backoff", finite_seconds("initial_backoff", self.initial_backoff))
        put(self, "max_backoff", finite_seconds("max_backoff", self.max_backoff))
        for name, low, high in (("multiplier", 1.0, math.inf), ("jitter", 0.0, 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise ValidationError(f"{name} must be a number from {low:g} to {high:g}, not {value!r}")
            if not math.isfinite(value):
                raise ValidationError(f"{name} must be finite, not {value!r}")
            put(self, name, float(value))

    def should_retry(self, attempt: int) -> bool:
        """Return whether attempt number `attempt` (from 1), having failed, is followed by another."""
        return attempt < self.max_attempts

    def backoff(self, attempt: int) -> float:
        """Return the seconds to wait after failed attempt number `attempt` (from 1), without jitter.

        Never overflows: the exponent is bounded before the power is taken.
        """
        if self.initial_backoff >= self.max_backoff or self.initial_backoff == 0.0:
            return min(self.initial_backoff, self.max_backoff)
        if self.multiplier == 1.0:
            return self.initial_backoff
        exponent = max(0, attempt - 1)
        growth, first, most = map(math.log, (self.multiplier, self.initial_backoff, self.max_backoff))
        if exponent >= (most - first) / growth:
            return self.max_backoff
        try:
            wait = self.initial_backoff * self.multiplier**exponent
        except OverflowError:  # the factor is too large for a float; the wait is not
            wait = math.exp(min(first + exponent * growth, most))
        return min(wait, self.max_backoff)


DEFAULT_RETRY: Final = RetryPolicy()
NO_RETRY: Final = RetryPolicy(max_attempts=1)


@frozen
class Task:
    """The Command: a callable with its settings, and nothing about when.

    Positional fields are those of any thread-based scheduler; the keyword-only ones are procsched's.
    Durations are seconds; `timeout=None` means no limit.
    """

    id: str
    name: str
    action: Callable[..., Any] | str
    priority: Priority = Priority.NORMAL
    retry: RetryPolicy = DEFAULT_RETRY
    timeout: float | None = None
    _: KW_ONLY
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None
    soft_timeout: float | None = None
    grace: float = 0.0
    misfire: MisfirePolicy = MisfirePolicy.RUN_ONCE
    max_catch_up: int = 100
    on_exhausted: str = "dead_letter"
    limits: Limits | None = None
    capture_output: bool = False
    key: str | None = None

    def __hash__(self) -> int:
        # Arguments need not be hashable; ids are unique within a scheduler.
        return hash((Task, self.id))


_PICKLES = frozenset({bytes, bytearray, memoryview})


class Sealed:
    """A pickled value that is opened in the thread that asks for it, and never before.

    Only ever made from what a trusted worker wrote.
    """

    __slots__ = ("data",)

    def __init__(self, data: Any) -> None:
        self.data = data  # a pickle; or something that has a length and can `load` itself

    def open(self) -> Any:
        """Return the value.

        Raises:
            RemoteError: it cannot be loaded in this process; the message says why.
        """
        try:
            data = self.data
            return pickle.loads(data) if type(data) in _PICKLES else data.load()
        except BaseException as error:
            if not isinstance(error, Exception):
                raise
            raise RemoteError(
                f"the result cannot be loaded here: {type(error).__name__}: {error}",
                type_name=type(error).__name__,
                message=str(error),
            ) from error


class Dropped:
    """Stands for a result that was not kept because it is larger than the record may hold."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size

    def __repr__(self) -> str:
        return (
            f"<result of {self.size} bytes not kept: Scheduler(result_limit=...) says how large one may be>"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dropped) and other.size == self.size

    def __hash__(self) -> int:
        return hash((Dropped, self.size))


@frozen
class ExecutionRecord:
    """What one attempt left.

    `started_at` and `finished_at` are UNIX seconds; `finished_at` is `started_at` plus the steady seconds
    between, so `duration` survives a step of the wall clock. Where an attempt is LOST because its scheduler died,
    `finished_at` is when that last wrote to its store: it ran for `duration` at least. `ok` is true exactly
    when the outcome is SUCCEEDED, `timed_out` exactly when it is TIMED_OUT.

    Args:
        attempt: number of the attempt within its run, from 1.
        error: one line for a person, None on success.
        outcome: decides `ok` and `timed_out`, whatever was given for them; where it is not given it follows from them.
        run: number of the run, from 1.
        due_at: the slot in UNIX seconds, the same for all attempts of a run.
        missed: how many slots this run stands for beyond its own.
        result: the action's return value, loaded in the thread that reads it, where a `RemoteError` says that it
            cannot be. One that is larger than a record may hold is replaced by a note of its size.
        traceback: the child's traceback as text; of a run that gave way when it was asked to stop, where that was.
        stack: where the code was when its time ran out or it crashed.
        signal: name of the signal that ended the run with its process, such as ``"SIGKILL"``; None for one that came
            back within its grace, whatever became of its process then.
        limit: the limit that was exceeded, with its value.
        cpu_seconds: CPU time of this attempt; None where unknown or too short to be worth asking.
        peak_rss: bytes, likewise.
        output: tail of stdout and stderr where they were captured.
        given_up: the promises of its sandbox that nothing kept, in the order of `Sandbox`; empty without one.
    Raises:
        ValidationError: `outcome` is none.
    """

    attempt: int
    started_at: float
    finished_at: float
    ok: bool
    error: str | None = None
    timed_out: bool = False
    _: KW_ONLY
    outcome: Outcome = None  # type: ignore[assignment]
    task_id: str = ""
    name: str = ""
    run: int = 1
    due_at: float | None = None
    missed: int = 0
    result: Any = None
    traceback: str | None = None
    stack: str | None = None
    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    limit: str | None = None
    cpu_seconds: float | None = None
    peak_rss: int | None = None
    output: str | None = None
    output_truncated: bool = False
    given_up: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.outcome is None:
            outcome = (
                Outcome.SUCCEEDED if self.ok else Outcome.TIMED_OUT if self.timed_out else Outcome.FAILED
            )
        else:
            outcome = member_of(Outcome, "outcome", self.outcome)
        put = object.__setattr__
        put(self, "outcome", outcome)
        put(self, "ok", outcome is Outcome.SUCCEEDED)
        put(self, "timed_out", outcome is Outcome.TIMED_OUT)

    @property
    def duration(self) -> float:
        """Steady seconds from start to end."""
        return self.finished_at - self.started_at

    def __hash__(self) -> int:
        # The result need not be hashable.
        return hash((self.task_id, self.run, self.attempt, self.started_at))


class _ResultField:
    """The slot behind `ExecutionRecord.result`: a `Sealed` value is opened by whoever reads it."""

    def __init__(self, slot: Any) -> None:
        self.slot = slot

    def __get__(self, record: Any, owner: type | None = None) -> Any:
        if record is None:
            return self
        value = self.slot.__get__(record, owner)
        return value.open() if type(value) is Sealed else value

    def __set__(self, record: Any, value: Any) -> None:
        self.slot.__set__(record, value)


# Read results lazily: `_ResultField` sits in front of the slot that `frozen` made.
ExecutionRecord.result = _ResultField(ExecutionRecord.__dict__["result"])


class ScheduledTask:
    """A live handle to a scheduled task, safe to read from any thread.

    The scheduler that gave it keeps it up to date; assigning to it changes nothing in the scheduler.

    Attributes:
        task: the `Task`.
        schedule: the rule that yields its due times.
        status: a `TaskStatus`.
        next_run_at: UNIX seconds of the next start that is planned (slot or retry), or None.
        attempt: number of the attempt that runs or ran last, within its run; 0 before the first.
        generation: grows with every change that makes earlier queue entries stale.
        unloadable: why its code could not be loaded, the last time that was tried; None where it could, or nobody
            has tried. Only with a store that outlives the process.
    """

    __slots__ = (
        "__weakref__",
        "_end",
        "_history",
        "_stored",
        "attempt",
        "generation",
        "next_run_at",
        "schedule",
        "status",
        "task",
        "unloadable",
    )
    # Who has forgotten it, and how it had ended; not there as long as it is known.
    _end: tuple[object, TaskStatus]

    def __init__(
        self,
        task: Task,
        schedule: Schedule,
        status: TaskStatus = TaskStatus.SCHEDULED,
        next_run_at: float | None = None,
        attempt: int = 0,
        generation: int = 0,
        history: Iterable[ExecutionRecord] = (),
    ) -> None:
        self.task = task
        self.schedule = schedule
        self.status = status
        self.next_run_at = next_run_at
        self.attempt = attempt
        self.generation = generation
        self.unloadable: str | None = None
        # A tuple that is replaced as a whole: a reader in another thread sees the old or the new one.
        self._history = tuple(history)
        # Gives these with the records of an earlier life before them; None where there are none.
        self._stored: Callable[[ScheduledTask], tuple[ExecutionRecord, ...]] | None = None

    @property
    def id(self) -> str:
        """The task's id."""
        return self.task.id

    @property
    def name(self) -> str:
        """The task's name."""
        return self.task.name

    @property
    def history(self) -> list[ExecutionRecord]:
        """The newest records, oldest first, as a list of your own.

        Those from before a restart are read from the durable store at the first use, which may take a moment: two
        seconds at most, then, or where the store fails, those of this life alone are shown.
        """
        stored = self._stored
        return list(self._history if stored is None else stored(self))

    @property
    def is_active(self) -> bool:
        """True unless the task is terminal or PAUSED."""
        return self.status is not TaskStatus.PAUSED and self.status not in _TERMINAL

    def last_run(self) -> ExecutionRecord | None:
        """Return the newest record, or None before the first attempt ended. See `history` for after a restart."""
        history = self._history
        if not history and self._stored is not None:
            history = self._stored(self)
        return history[-1] if history else None

    def summary(self) -> str:
        """Return one line for a person: name, id, status, attempts, next run, last outcome."""
        return self._line(self.last_run())

    def _line(self, last: ExecutionRecord | None) -> str:
        parts = [f"{self.name} ({self.id}): {self.status.value}"]
        if self.attempt:
            parts.append(f"attempt {self.attempt} of {self.task.retry.max_attempts}")
        if self.next_run_at is not None:
            parts.append(f"next run at {_utc(self.next_run_at)}")
        if self.unloadable is not None:
            parts.append(f"its code cannot be loaded: {self.unloadable}")
        if last is not None:
            ended = f"last {last.outcome.value} after {last.duration:.3f} s"
            parts.append(f"{ended}: {last.error}" if last.error else ended)
        return ", ".join(parts)

    def snapshot(self) -> ScheduledTask:
        """Return a copy that no longer changes, with the records of this life."""
        copy = ScheduledTask(
            self.task,
            self.schedule,
            self.status,
            self.next_run_at,
            self.attempt,
            self.generation,
            self._history,
        )
        if self.unloadable is not None:
            copy.unloadable = self.unloadable
        return copy

    def __repr__(self) -> str:
        return f"<ScheduledTask {self._line(self._history[-1] if self._history else None)}>"  # reads no store


def _utc(seconds: float) -> str:
    """Return UNIX seconds as a date and time in UTC, or as they are where no calendar has them."""
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return f"{seconds:.3f}"


@frozen
class TaskEvent:
    """One change, as listeners are told of it.

    Args:
        status: the task's status after the change; for a progress event its status now.
        record: the attempt's record; exactly one event per attempt carries it.
        sequence: number of the event, in the order of the changes.
        at: UNIX seconds.
        kind: ``"status"``, ``"progress"``, ``"missed"``, ``"clock"``, ``"store"`` or ``"health"``.
        progress: for a progress event, ``(done, total, note)``; for other kinds a text that says more.
    """

    task_id: str
    name: str
    status: TaskStatus | None
    record: ExecutionRecord | None = None
    _: KW_ONLY
    sequence: int = 0
    at: float = 0.0
    kind: str = "status"
    progress: Any = None


@frozen
class QueueEntry:
    """An entry of the heap of due times. Ordered by its fields; ties never reach the task."""

    due_at: float
    priority: Priority
    sequence: int
    task_id: str
    generation: int

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, QueueEntry):
            return NotImplemented
        mine = (self.due_at, self.priority, self.sequence, self.task_id, self.generation)
        return mine < (other.due_at, other.priority, other.sequence, other.task_id, other.generation)

    def __le__(self, other: object) -> bool:
        return self == other or self < other

    def __gt__(self, other: object) -> bool:
        return other < self if isinstance(other, QueueEntry) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return other <= self if isinstance(other, QueueEntry) else NotImplemented


@frozen
class ShutdownReport:
    """What a shutdown did, as tuples of task ids.

    Args:
        finished: runs that ended by themselves during the shutdown.
        killed: runs that were ended because the time was up.
        returned: tasks that were due and not started, given back as SCHEDULED.
    """

    finished: tuple[str, ...] = ()
    killed: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


@frozen
class WorkerStats:
    """One worker as `Scheduler.stats()` sees it.

    Args:
        pid: process id; None for a thread or while starting.
        state: ``"starting"``, ``"idle"``, ``"busy"``, ``"asked"`` or ``"dying"``.
        task_id: the task it runs, "" for a call of an executor, or None.
        runs: attempts it has ended.
        rss: resident bytes now, or None.
    """

    pid: int | None
    state: str
    task_id: str | None = None
    runs: int = 0
    rss: int | None = None


@frozen
class Stats:
    """A snapshot of a scheduler or an executor.

    Args:
        workers: one `WorkerStats` each. Beyond those that may run at once there are spares: one, or two where runs
            have been killed.
        counters: totals since the start by name.
            Of attempts: ``started``, one per `Outcome` value, which with those that run add up to it, ``retried``,
            ``late_results`` (answers that came when the end of their attempt was decided).
            Of slots, for a scheduler: ``missed``, ``skipped``; of tasks: ``returned``, ``dead_letter_dropped``,
            ``schedule_errors``. Of what a store could not take, for a scheduler: ``records_dropped`` (it failed for so
            long that their number grew too large), ``changes_lost`` (it still failed at the shutdown).
            For an executor, of calls that did not begin: ``returned``, ``cancelled``.
            Of workers: ``spawned``, ``respawned`` (in the place of one that was gone), and of those that are gone
            ``left_workers`` (they were asked to), ``killed_workers`` (by us), ``crashed_workers`` (died by themselves,
            or could not be forked) and ``lost_workers`` (went with their helper), which with `workers` add up to
            ``spawned``; ``recycled`` (replaced after use), ``start_failures``, ``helper_restarts``, ``unkillable``.
        heap: entries in the heap of due times, or calls in the queues, tombstones included.
        tombstones: how many of them are stale.
        ready: due, or submitted, and waiting for a worker.
        running: in flight.
        tasks: in the registry, terminal ones included; for an executor calls that have not ended.
        problems: what went wrong, in words: the last twenty things, those that are over too; empty when nothing has.
        paths: which of the ways that systems differ in were really gone, and how often: ``start.fork`` or
            ``start.exec`` of workers, ``kill.pidfd`` or ``kill.helper``, ``tree.subreaper`` or ``tree.walk`` when
            killed, ``kill.hastened`` where the parent took part in freeing the memory of what was killed,
            ``large.memfd`` of calls that went in shared memory, ``timer.timerfd`` or ``timer.timeout``, and
            ``wake.eventfd`` or ``wake.pipe``. Empty for pools in this process. See "What can slip through".
    """

    workers: tuple[WorkerStats, ...] = ()
    counters: Mapping[str, int] = None  # type: ignore[assignment]
    heap: int = 0
    tombstones: int = 0
    ready: int = 0
    running: int = 0
    tasks: int = 0
    problems: tuple[str, ...] = ()
    paths: Mapping[str, int] = None  # type: ignore[assignment]
