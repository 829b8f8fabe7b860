"""The edges at which users and tests may put something of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from procsched._core.models import ExecutionRecord, ScheduledTask, TaskEvent, WorkerStats

if TYPE_CHECKING:
    import threading

    from procsched.workers.base import Call


@runtime_checkable
class Schedule(Protocol):
    """A rule that yields due times. A value: no clock, no cursor, no state.

    A schedule whose attribute `steady` is true is given `now` and the record's times on the steady line
    (wall time at the scheduler's creation plus steady seconds since), and answers on it; others are given
    wall time. Called without any lock held; an exception fails that task alone.
    """

    def first_run(self, now: float) -> float | None:
        """Return the first due time, in UNIX seconds, for a task scheduled at `now`; None for never."""

    def next_run(self, record: ExecutionRecord, now: float) -> float | None:
        """Return the due time that follows the run that ended with `record`; None when there is none."""


@runtime_checkable
class Clock(Protocol):
    """Where the scheduler gets its time from. See `procsched.SystemClock` and `procsched.FakeClock`."""

    def now(self) -> float:
        """Return wall time in UNIX seconds."""

    def monotonic(self) -> float:
        """Return steady seconds; where the system can say so, time asleep counts."""

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait, with `condition` held, until it is notified or `seconds` of this clock have passed."""


@runtime_checkable
class IdGenerator(Protocol):
    """Gives ids to tasks. Called with no lock held, possibly from several threads at once."""

    def next_id(self) -> str:
        """Return an id never given before."""


@runtime_checkable
class TaskStore(Protocol):
    """Where tasks are written at every change of status. Calls come in order, from one thread; `load_all` is the first.

    One scheduler at a time may have a store: two would overwrite each other's tasks. It may also have
    `commit(changes)`, with a sequence of (task, record or None) pairs that must be written together or not at all;
    then `save` is not called.
    """

    def save(self, task: ScheduledTask) -> None:
        """Write the task; `task` is a snapshot, and `task.history` holds the newest record."""

    def delete(self, task_id: str) -> None:
        """Forget the task; one that is not there is no error."""

    def load_all(self) -> Iterable[ScheduledTask]:
        """Return every task that is kept, as it was saved last.

        A scheduler asks once, at its first use, and goes on from what it gets; it changes nothing of that. What is
        raised here is raised to its caller as a `StoreError`, and the next one asks again.
        """


@runtime_checkable
class TaskListener(Protocol):
    """Is told of every change, on a thread of its own. An exception is logged and goes no further."""

    def on_task_event(self, event: TaskEvent) -> None:
        """Handle one event."""


@runtime_checkable
class CallSource(Protocol):
    """Who owns calls and hands them out when a worker is free: the scheduler or the executor."""

    def next_call(self, *, ahead: bool = False) -> Call | None:
        """Return the call that should start now, or None.

        Called by the pool from any thread with the pool's lock held, so it must be quick and must not call
        the pool. What it returns is started: the source takes its start time here.

        Args:
            ahead: it is not started yet but sent to a worker that is busy for some microseconds more. It starts when
                `Call.begun` is called, or comes back by `take_back`. A source may answer None always.
        """

    def take_back(self, call: Call) -> None:
        """Take back a call that was given out `ahead` and was not begun. As quick as `next_call`; newest first."""

    def holds(self, call: Call) -> bool:
        """Return whether the source has the call: it waits there, or its end was told. With the pool's lock held."""

    def mend(self) -> None:
        """Put in order what a signal handler has torn that raised in the main thread. With the pool's lock held.

        Until here the source may have lost a call that it was giving out or taking back; any call that the pool has
        not had from it is the source's again.
        """

    def pool_problem(self, text: str) -> None:
        """Hear that something is wrong with the pool itself, in words for a person."""


@runtime_checkable
class WorkerPool(Protocol):
    """Where attempts run. The scheduler owns the pool that it is given.

    Attributes:
        size: how many calls may run at once.
    """

    size: int

    def pack(self, action: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the payload of a call: what is run is fixed here.

        Raises:
            TaskSerializationError: this pool sends bytes, and something cannot be pickled.
        """

    def start(self, source: CallSource, clock: Clock) -> None:
        """Begin to serve `source`. Once per pool."""

    def pump(self) -> None:
        """Ask the source for calls while workers are free. Any thread, no lock held; never blocks."""

    def kill(self, call: Call, reason: str) -> bool:
        """End a call that is running, its grace first; its ending (KILLED) follows. False if it is over.

        The error of that ending begins with `reason`. Of several who ask, the first gets True.
        """

    def poke(self) -> None:
        """Look at the deadlines again: an injected clock was moved."""

    def next_deadline(self) -> float | None:
        """Return the steady time of the earliest deadline that only `poke` can enforce, or None."""

    def stats(self) -> tuple[tuple[WorkerStats, ...], dict[str, int]]:
        """Return the workers and the counters."""

    def shutdown(self, timeout: float) -> None:
        """End every worker. The source has no calls left, or they are lost. Returns within `timeout`."""
