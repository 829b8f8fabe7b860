"""`ProcessFuture`: a `concurrent.futures.Future` whose running call can be cancelled, with a record."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future

from procsched._core.models import Outcome, Sealed
from procsched.errors import (
    LimitExceededError,
    ProcschedError,
    RemoteError,
    TaskKilledError,
    TaskLostError,
    TaskTimeoutError,
    WorkerCrashedError,
)
from procsched.workers.base import record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    from procsched._core.models import ExecutionRecord
    from procsched.workers.base import Ending

    R = TypeVar("R")

_FINISHED = "FINISHED"  # the states of the standard library's Future
_ERRORS: dict[Outcome, type[ProcschedError]] = {
    Outcome.TIMED_OUT: TaskTimeoutError,
    Outcome.CRASHED: WorkerCrashedError,
    Outcome.LIMIT_EXCEEDED: LimitExceededError,
    Outcome.KILLED: TaskKilledError,
    Outcome.LOST: TaskLostError,
}
_DETAILS = ("pid", "exit_code", "signal", "stack", "output", "peak_rss", "cpu_seconds")


class _RemoteTraceback(Exception):
    """Carries the child's traceback as text, as the cause of the exception that it belongs to."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'

    def __reduce__(self) -> tuple[Any, ...]:
        return (_RemoteTraceback, (self.text,))


class ProcessFuture(Future["R"]):
    """What `submit` returns. Made by executors only.

    A result is loaded in the thread that asks for it. Done-callbacks run on the executor's callback thread.
    """

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self._owner = owner
        self._item: Any = None
        self._ending: Ending | None = None  # of the last attempt, until the result is loaded
        self._loading = threading.Lock()  # held by the thread that loads
        self._attempts: list[tuple[int, float, float, Ending]] = []  # number, start, seconds, ending
        self._name = ""
        self._timeout: float | None = None
        self._record_waiters: list[threading.Event] = []  # guarded by _condition
        self._progress: tuple[float, float | None, str] | None = None

    # -- what the executor says ----------------------------------------------------------------------------

    def _note_attempt(self, number: int, started_at: float, seconds: float, ending: Ending) -> None:
        self._attempts.append((number, started_at, seconds, ending))

    def _close(self) -> None:
        """Hear that the call has ended for good: there will be no further record."""
        with self._condition:
            self._item = None
            waiters, self._record_waiters = self._record_waiters, []
        # Not by `_condition`: the library's `result` takes any wake-up for the end of the call.
        for waiter in waiters:
            waiter.set()

    def _settle(self, ending: Ending) -> None:
        """Take the ending of the last attempt, unless the call was cancelled meanwhile."""
        self._ending = ending
        with self._condition:
            if self._state != "RUNNING":
                return
        super().set_result(None)  # type: ignore[arg-type]  # loaded when somebody asks: see `_load`

    def _invoke_callbacks(self) -> None:
        if self._done_callbacks:  # type: ignore[attr-defined]
            self._owner.run_callbacks(self, super()._invoke_callbacks)  # type: ignore[misc]

    # -- for the user --------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Withdraw the call, or end it where it runs already.

        Returns:
            True when the call is cancelled, now or before: the future is then cancelled and notified. A running
            call's worker dies behind it; `record` (KILLED) appears when it is dead. False when the call had ended.
        Thread safety: call from anywhere; never blocks.
        """
        return bool(self._owner.cancel(self))

    def _mark_cancelled(self) -> bool:
        """Enter the cancelled state from pending or running, and tell the waiters."""
        with self._condition:
            if self._state == _FINISHED:
                return False
            if self._state in ("CANCELLED", "CANCELLED_AND_NOTIFIED"):
                return True
            self._state = "CANCELLED"
            self._condition.notify_all()
        self.set_running_or_notify_cancel()
        self._invoke_callbacks()
        return True

    def result(self, timeout: float | None = None) -> R:
        """Return what the action returned, or raise what it raised.

        Raises:
            CancelledError: it was cancelled.
            TimeoutError: `timeout` seconds have passed and it has not ended.
            TaskTimeoutError, WorkerCrashedError, TaskKilledError, TaskLostError: how else it ended.
            RemoteError: the result or the exception cannot be loaded here.
        """
        self._load(timeout)
        try:
            return super().result(0)
        finally:
            self = None  # type: ignore[assignment]  # no cycle through the traceback

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what `result` would raise, or None.

        Raises:
            CancelledError: it was cancelled.
            TimeoutError: `timeout` seconds have passed and it has not ended.
        """
        self._load(timeout)
        return super().exception(0)

    def _load(self, timeout: float | None) -> None:
        """Wait for the end, and put the result or the exception in its place, in whichever thread asks first.

        Another thread that asks meanwhile waits. Where loading is interrupted, by a KeyboardInterrupt say, the next
        one to ask begins anew.
        """
        end = None if timeout is None else time.monotonic() + timeout
        if not self.done():
            self._owner.refuse_fork()  # there nobody would ever end it
        super().exception(timeout)
        if self._ending is None:
            return
        if not self._loading.acquire(timeout=-1 if end is None else max(0.0, end - time.monotonic())):
            raise TimeoutError
        try:
            ending = self._ending
            if ending is not None:
                self._result, self._exception = open_ending(ending, self._timeout)
                self._ending = None
        finally:
            self._loading.release()

    @property
    def record(self) -> ExecutionRecord | None:
        """The `ExecutionRecord` of the last attempt that ended, or None so far."""
        records = self._attempts
        return self._make_record(records[-1]) if records else None

    @property
    def records(self) -> list[ExecutionRecord]:
        """The records of all attempts, oldest first."""
        return [self._make_record(attempt) for attempt in list(self._attempts)]

    @property
    def progress(self) -> tuple[float, float | None, str] | None:
        """What the run last said of its progress, as (done, total, note), or None."""
        return self._progress

    def wait_record(self, timeout: float | None = None) -> ExecutionRecord:
        """Wait for the record of the attempt that ended the call: for a cancelled one, until its worker is dead.

        Raises:
            TimeoutError: `timeout` seconds have passed.
            CancelledError: the call was cancelled before it started, so there will be no record.
        """
        self._owner.refuse_fork()
        closed = threading.Event()
        with self._condition:
            if self._item is None:
                closed.set()
            else:
                self._record_waiters.append(closed)
        if not closed.wait(timeout):
            raise TimeoutError(f"no record after {timeout} s")
        record = self.record
        if record is None:
            raise CancelledError
        return record

    def _make_record(self, attempt: tuple[int, float, float, Ending]) -> ExecutionRecord:
        number, started_at, seconds, ending = attempt
        return record_of(ending, number, started_at, seconds, name=self._name)


def open_ending(ending: Ending, timeout: float | None) -> tuple[Any, BaseException | None]:
    """Return the value of an ending, or the exception that tells of it; `timeout` was the call's limit."""
    if ending.outcome is Outcome.SUCCEEDED:
        result = ending.result
        return (result.open() if type(result) is Sealed else result), None
    kind = _ERRORS.get(ending.outcome)
    if kind is not None:
        details = {name: getattr(ending, name) for name in _DETAILS}
        if kind is LimitExceededError:
            details["limit"] = ending.limit
        elif kind is TaskTimeoutError:
            details["timeout"] = timeout
        error: BaseException = kind(ending.error or ending.outcome.value, **details)
        # As notes, so that the message stays one line and a traceback shows them all the same.
        if ending.stack:
            error.add_note(f"where it was:\n{ending.stack}")
        if ending.output:
            error.add_note(f"end of its output:\n{ending.output[-2000:]}")
    else:
        error = _carried(ending)
    if ending.traceback:
        error.__cause__ = _RemoteTraceback(ending.traceback)
    return None, error


def _carried(ending: Ending) -> BaseException:
    """Return the exception that the action raised, or what stands in for it."""
    exception = ending.exception
    if type(exception) is Sealed:
        try:
            exception = exception.open()
        except RemoteError:
            exception = None
    if isinstance(exception, BaseException):
        return exception
    type_name, _colon, message = (ending.error or "").partition(": ")
    error = RemoteError(
        ending.error or "the action raised an exception that could not travel",
        type_name=type_name,
        message=message,
        traceback=ending.traceback or "",
    )
    if ending.obstacle:
        error.add_note(
            f"the {type_name} itself could not travel: {ending.obstacle}; "
            "an exception whose constructor takes other arguments than its `args` needs a __reduce__"
        )
    return error
