"""What crosses between a pool and who owns the calls: the call and its ending."""

from __future__ import annotations

import math
import sys

from procsched._core.frozen import twin
from procsched._core.models import ExecutionRecord, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched._core.limits import Limits


CLOSED_REASON = "killed: the pool was shut down"


# Pickled; larger calls are not sent ahead, for what is had back has been sent for nothing. A chunk of a few thousand
# numbers is: it takes less than a millisecond too.
AHEAD_BYTES = 1 << 15


class Ending:
    """How a call ended, as the pool knows it. Made once per call, then only read.

    Attributes:
        outcome: one of `Outcome`.
        error: one line for a person, None on success.
        result: a `Sealed` (process pools) or the value itself (pools in this process).
        exception: the exception: a `Sealed` or the object itself; None where it could not travel.
        obstacle: why it could not.
        seconds: how long it took, where the worker knows better than who waited for it.
        unloadable: the call, which a store kept, could not be opened: nothing of it has run.
        attempt, started_at, before: for the owner of the call, who may keep here which attempt it was, when that began,
            and the ending of the one before. So may `seconds` be.
    Others are as in `ExecutionRecord`.
    """

    # Class attributes are the defaults: one is made for every call, and most calls just succeed.
    exception: Any = None
    obstacle: str = ""
    traceback: str | None = None
    stack: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    limit: str | None = None
    cpu_seconds: float | None = None
    peak_rss: int | None = None
    output: str | None = None
    output_truncated: bool = False
    given_up: tuple[str, ...] = ()
    unloadable: bool = False
    attempt: int = 1
    started_at: float = 0.0
    before: Ending | None = None

    def __init__(
        self,
        outcome: Outcome,
        error: str | None = None,
        result: Any = None,
        seconds: float | None = None,
        pid: int | None = None,
    ) -> None:
        self.outcome = outcome
        self.error = error
        self.result = result
        self.seconds = seconds
        self.pid = pid


_OpenRecord = twin(ExecutionRecord)  # one is made for every attempt
_SUCCEEDED, _TIMED_OUT = Outcome.SUCCEEDED, Outcome.TIMED_OUT  # looking up a member of an enum takes its time


def record_of(
    ending: Ending,
    result: Any,
    started_at: float,
    seconds: float,
    attempt: int,
    name: str,
    task_id: str = "",
    run: int = 1,
    due_at: float | None = None,
    missed: int = 0,
) -> ExecutionRecord:
    """Return the record of an attempt. Of the arguments that are not explained see `ExecutionRecord`.

    Args:
        result: that of the ending, or what stands in its place.
        started_at: UNIX seconds.
        seconds: how long it took.
    """
    outcome = ending.outcome
    record = _OpenRecord()
    record.attempt = attempt
    record.started_at = started_at
    record.finished_at = started_at + seconds
    record.ok = outcome is _SUCCEEDED
    record.error = ending.error
    record.timed_out = outcome is _TIMED_OUT
    record.outcome = outcome
    record.task_id = task_id
    record.name = name
    record.run = run
    record.due_at = due_at
    record.missed = missed
    record.result = result
    record.traceback = ending.traceback
    record.stack = ending.stack
    record.pid = ending.pid
    record.exit_code = ending.exit_code
    record.signal = ending.signal
    record.limit = ending.limit
    record.cpu_seconds = ending.cpu_seconds
    record.peak_rss = ending.peak_rss
    record.output = ending.output
    record.output_truncated = ending.output_truncated
    record.given_up = ending.given_up
    record.__class__ = ExecutionRecord
    return record  # type: ignore[no-any-return]


class Pace:
    """What is known of the calls of one function. Shared by them; only the pool changes it.

    Attributes:
        seconds: what the next one will take, infinite while nobody knows.
        module: what a new worker has to import first, "" where it goes without.
    """

    __slots__ = ("module", "seconds")

    def __init__(self, module: str = "") -> None:
        self.seconds = math.inf
        self.module = module

    def note(self, seconds: float) -> None:
        """A call has taken `seconds`. A long one counts at once, a short one by and by."""
        if seconds < self.seconds < math.inf:
            self.seconds += (seconds - self.seconds) * 0.25
        elif seconds == seconds:  # NaN is not: something else than the worker has written that
            self.seconds = seconds


_PACES_KEPT = 1000  # functions
_paces: dict[int, Pace] = {}


def pace_of(function: Any) -> Pace:
    """Return what is known of how long the calls of a function take.

    It goes by the identity of its code, which may be used again for another function when that one is gone: a guess
    that is wrong for a few calls does no harm.
    """
    key = id(getattr(function, "__code__", function))
    pace = _paces.get(key)
    if pace is None:
        if len(_paces) >= _PACES_KEPT:
            _paces.clear()
        pace = _paces.setdefault(key, Pace(_module_of(function)))
    return pace


def _module_of(function: Any) -> str:
    """Return the name of the module from which a worker takes a function, "" for one that is sent by value."""
    name = getattr(function, "__module__", None)
    found = sys.modules.get(name) if isinstance(name, str) and name != "__main__" else None
    # Not by `getattr`: a module may make its attributes when they are asked for (PEP 562).
    names = getattr(found, "__dict__", {})
    by_name = names.get(getattr(function, "__name__", "")) is function
    return str(name) if by_name else ""


class Call:
    """One attempt on its way through a pool. The owner subclasses it to hear of its end.

    Attributes:
        payload: what `WorkerPool.pack` returned.
        timeout, soft_timeout: seconds from the hand-over, or None.
        grace: seconds between asking and killing.
        limits: what else it may use, or None.
        capture_output: whether stdout and stderr are kept.
        task_id, name, attempt, run: what `current_run()` says inside the action.
        pace: how long the calls of its function take; None where nothing may be sent ahead of its end.
    Those of the pool, guarded by its lock:
        worker: where the call is, None before and after.
        number: which of that worker's calls it is.
        handed: how often it was sent to a worker.
        sent_ahead: whether it was sent ahead of its start. This and the next from when it was sent on.
        told: whether its owner knows that it has begun.
        verdict: outcome and error, once somebody has decided to end it.
    """

    __slots__ = (
        "attempt",
        "capture_output",
        "grace",
        "handed",
        "limits",
        "name",
        "number",
        "pace",
        "payload",
        "run",
        "sent_ahead",
        "soft_timeout",
        "task_id",
        "timeout",
        "told",
        "verdict",
        "worker",
    )

    def __init__(
        self,
        payload: Any,
        *,
        timeout: float | None = None,
        soft_timeout: float | None = None,
        grace: float = 0.0,
        limits: Limits | None = None,
        capture_output: bool = False,
        task_id: str = "",
        name: str = "",
        attempt: int = 1,
        run: int = 1,
        pace: Pace | None = None,
    ) -> None:
        self.payload = payload
        self.timeout = timeout
        self.soft_timeout = soft_timeout
        self.grace = grace
        self.limits = limits
        self.capture_output = capture_output
        self.task_id = task_id
        self.name = name
        self.attempt = attempt
        self.run = run
        self.pace = pace
        self.worker: Any = None
        self.number = 0
        self.handed = 0
        self.sent_ahead = self.told = False
        self.verdict: tuple[Outcome, str] | None = None

    @property
    def limited(self) -> bool:
        """Whether the time that it takes is limited."""
        return self.timeout is not None or self.soft_timeout is not None

    def is_alone(self) -> bool:
        """Return whether nobody but who asks waits for its end, or for its worker. With the pool's lock held."""
        return False

    def begun(self, ago: float) -> None:
        """Hear that a call that was sent ahead began `ago` seconds ago. From a thread of the pool, its lock held."""

    def ended(self, ending: Ending) -> None:
        """Hear how the call ended, once. Without the pool's lock, from a thread of the pool or one that waits."""
        raise NotImplementedError

    def progressed(self, done: float, total: float | None, note: str) -> None:
        """Hear of progress while the call runs. From a thread of the pool, without its lock."""
