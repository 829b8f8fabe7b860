"""`ProcessFuture`: a `concurrent.futures.Future` whose running call can be cancelled, with a record."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import CancelledError, Future

from procsched._core.checks import waiting_seconds
from procsched._core.models import Outcome
from procsched._interrupts import Latch
from procsched.errors import RemoteError
from procsched.outcomes import open_ending, unfit
from procsched.workers.base import record_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from typing import Any, Never, TypeVar

    from procsched._core.models import ExecutionRecord
    from procsched.workers.base import Ending

    R = TypeVar("R")

LONGEST_HOLD = 1.0  # seconds for which others may hold a future's condition, at its end
SHORT_HOLD = 0.001  # the same after one that was held for longer
_SUCCEEDED = Outcome.SUCCEEDED  # looking up a member of an enum takes its time
_FINISHED = "FINISHED"  # the states of the standard library's Future
_CANCELLED = ("CANCELLED", "CANCELLED_AND_NOTIFIED")
_ENDED = (_FINISHED, *_CANCELLED)
_SETTLED = object()  # in the place of a condition: the call ended before anybody waited for it


class ProcessFuture(Future["R"]):
    """What `submit` returns. Made by executors only.

    A result is loaded in the thread that asks for it. Done-callbacks run on the executor's callback thread.
    """

    # What the standard library's Future makes for each one costs more than a call does: a Condition with its lock, two
    # lists. Here the plain values are the class's, and the rest is made when somebody must wait or leaves a callback.
    # Who ends the call puts `_SETTLED` in the condition's place, in one step, unless there is one; then the state
    # changes with that held, as the library's functions rely on: they look at it twice.
    _state = "PENDING"
    _result: Any = None
    _exception: BaseException | None = None
    _item: Any = None
    _ending: Ending | None = None  # of the last attempt, until the result is loaded
    _last: Ending | None = None  # of the last attempt, with those before
    _progress: tuple[float, float | None, str] | None = None
    _told = 0  # waiters that were told of the cancelling
    _cancel_told = False  # that was all of them, and the callbacks are on their way
    _called_back = False

    def __init__(self, owner: Any, name: str, timeout: float | None) -> None:
        # Not by way of the base class, see above.
        self._owner = owner
        self._name = name
        self._timeout = timeout

    def __reduce__(self) -> Never:
        raise TypeError("a future stays in the process that made it: pass its result")

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        made = self.__dict__.get("_lazy_condition")
        if made is None:
            made = self.__dict__.setdefault("_lazy_condition", threading.Condition())
            self._owner.heed(self)  # whoever needs it may wait for the call in another way than `result`
        if made is _SETTLED:
            self._state = _FINISHED  # whoever put that there is about to do the same
            made = self.__dict__.setdefault("_late_condition", threading.Condition())
        return made  # type: ignore[no-any-return]

    @property
    def _waiters(self) -> list[Any]:  # type: ignore[override]
        return self.__dict__.setdefault("_lazy_waiters", [])  # type: ignore[no-any-return]

    @property
    def _done_callbacks(self) -> list[Any]:
        return self.__dict__.setdefault("_lazy_callbacks", [])  # type: ignore[no-any-return]

    @property
    def _record_waiters(self) -> list[threading.Event]:
        return self.__dict__.setdefault("_lazy_record_waiters", [])  # type: ignore[no-any-return]

    # -- what the executor says ----------------------------------------------------------------------------

    def _note_start(self) -> None:
        if self._state == "PENDING":
            self._state = "RUNNING"

    def _close(self) -> None:
        """Hear that the call has ended for good: there will be no further record."""
        self._item = None
        # Not by `_condition`: the library's `result` takes any wake-up for the end of the call.
        if "_lazy_record_waiters" in self.__dict__:
            for waiter in tuple(self._record_waiters):
                waiter.set()

    def _settle(self, ending: Ending) -> None:
        """Take the ending of the last attempt. The executor has made sure that the call is not cancelled."""
        self._ending = ending  # its result is loaded when somebody asks: see `_load`
        condition = self.__dict__.setdefault("_lazy_condition", _SETTLED)
        if condition is _SETTLED:
            self._state = _FINISHED
            self._open()
            return
        _holding(condition, lambda held: self._finish(ending, condition if held else None))

    def _finish(self, ending: Ending, condition: threading.Condition | None) -> None:
        if self._state in _CANCELLED:  # by a signal handler, which could not have the call ended at once
            return
        self._state = _FINISHED
        self._open()
        if condition is not None:
            condition.notify_all()
        try:
            for waiter in self._waiters:
                if ending.outcome is _SUCCEEDED:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
        finally:
            self._invoke_callbacks()

    def _open(self) -> None:
        """Let those through who wait in `result` or `exception`."""
        latch = self.__dict__.get("_lazy_latch")
        if latch is not None:
            latch.set()

    def _invoke_callbacks(self) -> None:
        if "_lazy_callbacks" in self.__dict__:
            self._owner.run_callbacks(self._call_back)

    def _call_back(self) -> None:
        """Run the done-callbacks, once. On the callback thread."""
        if not self._called_back:
            self._called_back = True
            try:
                super()._invoke_callbacks()  # type: ignore[misc]
            finally:
                self._done_callbacks.clear()  # what they hold is needed no longer than the call

    # -- for the user --------------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Withdraw the call, or end it where it runs already.

        Returns:
            True when the call is cancelled, now or before: the future is then cancelled and notified. A running
            call's worker dies behind it; `record` (KILLED) appears when it is dead. False when the call had ended, or
            its end is decided, by a timeout say: then there is no further attempt.
        Thread safety: call from anywhere; never blocks.
        """
        return bool(self._owner.cancel(self))

    def cancelled(self) -> bool:
        """Return whether it was cancelled. Thread safety: call from anywhere; takes no lock, nor do the next two."""
        return self._state in _CANCELLED

    def running(self) -> bool:
        """Return whether the call is running."""
        if self._state != "RUNNING":
            return False
        self._owner.heed(self)  # as in `done`, and so wherever somebody may look until something has come
        return True

    def done(self) -> bool:
        """Return whether the call has ended or was cancelled."""
        if self._state not in _ENDED and self.__dict__.get("_lazy_condition") is _SETTLED:
            self._state = _FINISHED  # whoever put that there is about to do the same
        if self._state in _ENDED:
            return True
        # This may be a signal handler that looks until it is, in a thread which waits for it.
        self._owner.heed(self)
        return False

    def is_plain(self) -> bool:
        """Return whether nobody waits for it, or wants to be told of its end, but by `result` and `exception`."""
        return "_lazy_condition" not in self.__dict__ and "_lazy_record_waiters" not in self.__dict__

    def add_done_callback(self, fn: Callable[[Future[R]], object]) -> None:
        """Have `fn(self)` called on the executor's callback thread when the call has ended; at once where it has."""
        if self._item is not None:
            self._owner.ready_callbacks()
        super().add_done_callback(fn)

    def _mark_cancelled(self) -> bool:
        """Enter the cancelled state from pending or running, and tell the waiters. Where it was interrupted, go on."""
        condition = self._condition
        return _holding(condition, lambda held: self._enter_cancelled(condition if held else None))

    def _enter_cancelled(self, condition: threading.Condition | None) -> bool:
        if self._state == _FINISHED:
            return False
        if self._cancel_told:
            return True
        # All of it with the lock: who finds the state changed may rely on the callbacks being on their way.
        self._state = "CANCELLED_AND_NOTIFIED"
        self._open()
        if condition is not None:
            condition.notify_all()
        while self._told < len(self._waiters):
            self._waiters[self._told].add_cancelled(self)
            self._told += 1
        self._invoke_callbacks()
        self._cancel_told = True
        return True

    def result(self, timeout: float | None = None) -> R:
        """Return what the action returned, or raise what it raised.

        Raises:
            CancelledError: it was cancelled.
            TimeoutError: `timeout` seconds have passed and it has not ended.
            TaskTimeoutError, WorkerCrashedError, TaskKilledError, TaskLostError: how else it ended.
            RemoteError: the result or the exception cannot be loaded here.
        """
        if self._state != _FINISHED:
            self._wait(timeout)
        if self._ending is not None:
            self._load()
        if self._exception is not None:
            try:
                raise self._exception  # frames below this line are of the worker
            finally:
                self = None  # type: ignore[assignment]  # no cycle through the traceback
        return self._result  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what `result` would raise, or None.

        Raises:
            CancelledError: it was cancelled.
            TimeoutError: `timeout` seconds have passed and it has not ended.
        """
        if self._state != _FINISHED:
            self._wait(timeout)
        if self._ending is not None:
            self._load()
        return self._exception

    def _wait(self, timeout: float | None) -> None:
        """Wait for the end of the call. Raises as `exception` does."""
        if not self.done():
            self._owner.refuse_wait()  # where nobody would ever end it
        if timeout is not None and not isinstance(timeout, (int, float)):
            timeout = waiting_seconds("timeout", timeout)
        if self._state not in _ENDED:
            end = math.inf if timeout is None else time.monotonic() + timeout
            # Not by the condition, as the base class: where a signal handler raises on the way into that, it keeps its
            # lock for good, and the I/O thread would wait for it.
            latch = self.__dict__.setdefault("_lazy_latch", Latch())
            self._owner.listen(self, latch, math.inf if timeout is None else timeout)
            if not self.done():  # looked at when the latch is there for `_open` to find
                latch.wait(None if timeout is None else end - time.monotonic())
        if self._state in _CANCELLED:
            raise CancelledError
        if self._state != _FINISHED:
            raise TimeoutError

    def _load(self) -> None:
        """Put the result or the exception in its place, in whichever thread asks first.

        Where two ask at once both may load it, and the first to be done wins. Where loading is interrupted, by a
        KeyboardInterrupt say, the next one to ask begins anew.
        """
        ending = self._ending
        if ending is not None:
            try:
                opened = open_ending(ending, self._timeout)
            except RemoteError as error:
                opened = None, error  # `exception` returns it, as that of the call: asyncio relies on that
            except Exception as error:  # of the user's class, while its exception was put together
                opened = None, unfit(ending, error)
            loaded = self.__dict__.setdefault("_loaded", opened)
            self._result, self._exception = loaded
            if ending.outcome is _SUCCEEDED and loaded[1] is None:
                # For the record: the result is kept once, and not its pickle as well.
                ending.result = loaded[0]
            self._ending = None

    def _let_go(self) -> None:
        """Forget a result that was taken by the only one who will ask: the pool may hold the future a moment longer."""
        for ending in self._endings():
            ending.result = None
        self._result = None
        self.__dict__.pop("_loaded", None)

    @property
    def record(self) -> ExecutionRecord | None:
        """The `ExecutionRecord` of the last attempt that ended, or None so far."""
        self._owner.heed(self)
        last = self._last
        return None if last is None else self._make_record(last)

    @property
    def records(self) -> list[ExecutionRecord]:
        """The records of all attempts, oldest first."""
        self._owner.heed(self)
        return [self._make_record(ending) for ending in reversed(self._endings())]

    def _endings(self) -> list[Ending]:
        """Return how the attempts have ended, the last one first."""
        found = []
        ending = self._last
        while ending is not None:
            found.append(ending)
            ending = ending.before
        return found

    @property
    def progress(self) -> tuple[float, float | None, str] | None:
        """What the run last said of its progress, as (done, total, note), or None."""
        self._owner.heed(self)
        return self._progress

    def wait_record(self, timeout: float | timedelta | None = None) -> ExecutionRecord:
        """Wait for the record of the attempt that ended the call: for a cancelled one, until its worker is dead.

        Raises:
            TimeoutError: `timeout` seconds have passed.
            CancelledError: the call was cancelled before it started, so there will be no record.
            TaskSerializationError: nor will there be one of a call that could not be sent.
        """
        seconds = None if timeout is None else waiting_seconds("timeout", timeout)
        self._owner.refuse_fork()
        closed = threading.Event()
        self._record_waiters.append(closed)  # before the look, as with `_condition`
        if self._item is not None:
            self._owner.refuse_wait()
            self._owner.heed(self)
            if not closed.wait(seconds):
                raise TimeoutError(f"no record after {seconds} s")
        record = self.record
        if record is None:
            raise self.exception() or CancelledError
        return record

    def _make_record(self, ending: Ending) -> ExecutionRecord:
        seconds = ending.seconds or 0.0
        return record_of(ending, ending.result, ending.started_at, seconds, ending.attempt, self._name)


_patience = LONGEST_HOLD


def _holding(condition: threading.Condition, act: Callable[[bool], R]) -> R:
    """Call `act` with a condition's lock held, and say whether it is.

    The lock itself, not the condition: where a signal handler raises on the way into that, the lock is kept for good.
    It may be so already, by a function of the standard library. Then a thread of ours goes on without it after a while,
    and sooner with the next ones: such a function has the conditions of many futures.
    """
    global _patience
    lock: Any = condition._lock  # type: ignore[attr-defined]
    if threading.current_thread() is threading.main_thread():
        with lock:
            return act(True)
    held = lock.acquire(timeout=_patience)
    _patience = LONGEST_HOLD if held else SHORT_HOLD
    try:
        return act(held)
    finally:
        if held:
            lock.release()
