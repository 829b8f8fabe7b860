"""The calls of an executor: from `submit` through the pool to the future, and back for another attempt.

    submit() --> Core: one queue per priority --next_call()--> ProcessPool --> worker
    result() <-- ProcessFuture <-- Core.on_ended() <-- I/O thread
    add_done_callback() <-- callback thread

One lock guards queues and pool together, the pool's: see there for what is done while it is held.

The pool's thread refers to the `Core`, and nothing here to the executor, so that one which nobody refers to any more
can be collected: its core then finishes the calls and ends.
"""

from __future__ import annotations

import atexit
import collections
import functools
import logging
import os
import queue
import threading
import time
from enum import IntEnum

from procsched._core.models import NO_RETRY, Outcome, Priority, RetryPolicy, finite_seconds
from procsched.errors import SchedulerStateError, TaskSerializationError, ValidationError
from procsched.future import ProcessFuture
from procsched.workers.base import AHEAD_BYTES, Call, pace_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from procsched.workers.base import Ending, Pace
    from procsched.workers.pool import ProcessPool

KILL_WAIT = 30.0  # seconds for the graces of what is killed and for its end, before the pool is shut down all the same


class _NotGiven:
    """The default of an option that may be None. It shows in signatures."""

    def __repr__(self) -> str:
        return "<not given>"


UNSET: Any = _NotGiven()
AFTER_SHUTDOWN = (  # it begins with the words of the standard library
    "cannot schedule new futures after shutdown: make a new executor, or submit before this one is shut down"
)
AT_EXIT = (
    "cannot schedule new futures after shutdown: the interpreter is ending; submit before the end of the main script, "
    "and wait for the results there"
)

logger = logging.getLogger("procsched")


class Options:
    """The settings of a call, checked. `replace` makes a changed copy."""

    __slots__ = ("capture_output", "grace", "name", "priority", "retry", "soft_timeout", "timeout")

    def __init__(self) -> None:
        self.timeout: float | None = None
        self.soft_timeout: float | None = None
        self.grace = 0.0
        self.priority = Priority.NORMAL
        self.retry = NO_RETRY
        self.name = ""
        self.capture_output = False

    def replace(self, **changes: Any) -> Options:
        """Return a copy with `changes`; a value of `UNSET` changes nothing.

        Raises:
            ValidationError: naming the option.
        """
        made = Options()
        for name in Options.__slots__:
            setattr(made, name, getattr(self, name))
        for name, value in changes.items():
            if value is UNSET:
                continue
            if name in ("timeout", "soft_timeout"):
                value = None if value is None else finite_seconds(name, value, above=True)
            elif name == "grace":
                value = finite_seconds(name, value)
            elif name == "retry":
                if not isinstance(value, RetryPolicy):
                    raise ValidationError(
                        f"retry must be a RetryPolicy, not {type(value).__name__} {value!r}: "
                        "RetryPolicy(max_attempts=...) or NO_RETRY"
                    )
            elif name == "priority":
                if isinstance(value, bool) or value not in tuple(Priority):
                    raise ValidationError(
                        f"priority must be Priority.HIGH, NORMAL or LOW (0, 1 or 2), not {value!r}"
                    )
                value = Priority(value)
            elif name == "name":
                if not isinstance(value, str):
                    raise ValidationError(f"name must be a text, not {type(value).__name__} {value!r}")
            elif name == "capture_output":
                if not isinstance(value, bool):
                    raise ValidationError(f"{name} must be True or False, not {value!r}")
            elif name in ("limits", "sandbox"):
                if value is not None:
                    raise ValidationError(
                        f"{name} is not supported by this version of procsched; leave it None"
                    )
                continue
            else:
                from procsched.workers.options import check_names

                check_names((name,), (*Options.__slots__, "limits"))
            setattr(made, name, value)
        if made.timeout is not None and made.soft_timeout is not None and made.soft_timeout >= made.timeout:
            raise ValidationError(
                f"soft_timeout must be shorter than timeout ({made.timeout} s), not {made.soft_timeout} s"
            )
        return made

    @property
    def per_item(self) -> bool:
        """Whether each item of a `map` is an attempt of its own."""
        return self.timeout is not None or self.soft_timeout is not None or self.retry.max_attempts > 1


class _State(IntEnum):
    """Where a call stands, as the core sees it."""

    WAITING = 0  # in a queue, or between two attempts
    HANDED = 1  # taken by the pool, maybe ahead of its start
    OVER = 2  # its last attempt has ended, or it was withdrawn


class _Item(Call):
    """One submitted call, through all its attempts. State, `cancelled` and `queued` are guarded by the core's lock."""

    __slots__ = ("began", "cancelled", "core", "future", "options", "queued", "state")

    def __init__(
        self, core: Core, future: ProcessFuture[Any], payload: bytes, options: Options, pace: Pace | None
    ) -> None:
        # Not by way of `Call.__init__`: keyword arguments cost as much again as all the rest.
        self.payload = payload
        self.timeout = options.timeout
        self.soft_timeout = options.soft_timeout
        self.grace = options.grace
        self.capture_output = options.capture_output
        self.limits = None
        self.task_id = ""
        self.name = options.name
        self.attempt = self.run = 1
        self.pace = pace
        self.worker = self.verdict = None
        self.handed = self.number = 0
        self.core = core
        self.future = future
        self.options = options
        self.state = _State.WAITING
        self.cancelled = False
        self.queued = False
        self.began = 0.0

    def begun(self, ago: float) -> None:
        self.began = time.monotonic() - ago
        if self.attempt == 1 and not self.cancelled:
            self.future._note_start()

    def ended(self, ending: Ending) -> None:
        self.core.on_ended(self, ending)

    def progressed(self, done: float, total: float | None, note: str) -> None:
        self.future._progress = (done, total, note)


class Core:
    """The queues and the pool behind an executor. See the drawing above."""

    def __init__(self, pool: ProcessPool) -> None:
        self.pool = pool
        self.lock = pool.lock  # guards everything below that says so
        self.queues: tuple[collections.deque[_Item], ...] = tuple(collections.deque() for _ in Priority)
        self.resting: set[_Item] = set()  # those between two attempts; guarded by lock
        self.ahead = Priority.HIGH  # nothing less urgent is sent ahead now; guarded by lock
        self.killing = False  # no further attempt is made; guarded by lock
        self.withdrawn = 0  # items in the queues that are not to be run; guarded by lock
        self.open = 0  # calls that have not ended for good; guarded by lock
        self.start_lock = threading.Lock()  # held while the pool is started, so that it is started once
        self.started = False
        self.refused = ""  # why nothing is taken any more; guarded by lock
        self.finishing = False  # the pool is being shut down; guarded by lock
        self.drained = threading.Event()  # set when, after a shutdown, nothing is open
        self.pid = 0  # of the process that has started the pool
        self.is_fork = False  # this is a fork of it
        self.callbacks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Guards `callback_thread`; taken with a future's condition held, and takes nothing itself.
        self.callback_lock = threading.Lock()
        self.callback_thread: threading.Thread | None = None

    # -- submitting ----------------------------------------------------------------------------------------

    def submit(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
    ) -> ProcessFuture[Any]:
        """Queue a call."""
        if not callable(fn):
            which = "`async def` function" if hasattr(fn, "__await__") else "function"
            raise ValidationError(
                f"what is submitted must be callable, not {type(fn).__name__} {fn!r}: pass the {which} itself, "
                "without (), and its arguments behind it"
            )
        if self.refused or self.is_fork:
            self.check_open()
        name = options.name or getattr(fn, "__qualname__", type(fn).__qualname__)
        future: ProcessFuture[Any] = ProcessFuture(self, name, options.timeout)
        try:
            payload = self.pool.pack(fn, args, kwargs)
        except TaskSerializationError as error:
            future.set_exception(error)
            return future
        captures = options.capture_output or self.pool.options.capture_output
        item = _Item(self, future, payload, options, None if captures else pace_of(fn))
        future._item = item
        if not self.started:
            self.start()
        with self.lock:
            if self.refused:
                raise SchedulerStateError(self.refused)
            self.open += 1
            self._queue_locked(item)
            self.pool.pump_locked()
        return future

    def start(self) -> None:
        """Start the pool, once.

        Raises:
            OSError: it cannot be started now; the next call tries again.
        """
        if self.started:
            return
        from procsched.clock import SystemClock

        with self.start_lock:
            if not self.started and not self.refused:
                self.pool.start(self, SystemClock())
                self.pid = os.getpid()
                self.started = True
                if self.refused:  # a shutdown meanwhile found nothing to end
                    self.pool.loop.call_soon(functools.partial(self.pool.shutdown, 5.0))
                else:
                    _live.add(self)

    def check_open(self) -> None:
        """Refuse where this executor takes no calls."""
        self.refuse_fork()
        if self.refused:
            raise SchedulerStateError(self.refused)

    def refuse_fork(self) -> None:
        """Refuse in a fork of the process whose workers these are.

        Raises:
            SchedulerStateError: naming the remedy.
        """
        if self.is_fork:
            raise SchedulerStateError(
                f"this executor belongs to process {self.pid}, of which this one is a fork; "
                "make a new one after the fork"
            )

    def enqueue(self, item: _Item) -> None:
        """Queue an attempt again."""
        with self.lock:
            self.resting.discard(item)
            if item.state is not _State.WAITING:
                return  # cancelled meanwhile
            self._queue_locked(item)
            self.pool.pump_locked()

    def _queue_locked(self, item: _Item) -> None:
        item.queued = True
        priority = item.options.priority
        self.queues[priority].append(item)
        if priority < self.ahead:  # it goes before what was sent ahead
            self.pool.recall_locked()
            self.ahead = Priority.HIGH

    # -- what the pool asks and says -----------------------------------------------------------------------

    def next_call(self, *, ahead: bool = False) -> Call | None:
        """Return the call that should start now. With the pool's lock held."""
        for waiting in self.queues:
            while waiting:
                item = waiting[0]
                if item.state is not _State.WAITING:
                    self.withdrawn -= 1
                    waiting.popleft().queued = False
                    continue
                if not ahead:
                    item.begun(0.0)
                elif len(item.payload) > AHEAD_BYTES or item.pace is None:
                    return None
                elif item.options.priority > self.ahead:
                    self.ahead = item.options.priority
                item.state = _State.HANDED
                waiting.popleft().queued = False
                return item
        return None

    def take_back(self, call: Any) -> None:
        """Queue a call that was sent ahead and has not begun, where it was. With the pool's lock held."""
        call.state = _State.WAITING
        call.queued = True
        self.queues[call.options.priority].appendleft(call)

    def pool_problem(self, text: str) -> None:
        """The pool logs its problems itself; those who wait hear of them by their futures."""

    def on_ended(self, item: _Item, ending: Ending) -> None:
        """An attempt has ended: settle its future, or try again."""
        future = item.future
        now = time.monotonic()
        seconds = ending.seconds
        if seconds is None:
            seconds = now - item.began if item.began else 0.0
        future._note_attempt(item.attempt, time.time() - seconds, seconds, ending)
        if ending.outcome is not Outcome.SUCCEEDED:
            with self.lock:
                wait = self._again_locked(item, ending)
            if wait is not None:
                self.pool.loop.call_at(now + wait, functools.partial(self.enqueue, item))
                return
        if item.cancelled:
            future._mark_cancelled()
        else:
            future._settle(ending)
        self.close_call(item)

    def _again_locked(self, item: _Item, ending: Ending) -> float | None:
        """Return the seconds until the next attempt, which is prepared here; None when there is to be none."""
        if (
            ending.outcome is Outcome.KILLED
            or not item.options.retry.should_retry(item.attempt)
            or item.cancelled
            or self.killing
        ):
            return None
        wait = self.backoff(item)
        item.attempt += 1
        item.state = _State.WAITING
        self.resting.add(item)
        return wait

    @staticmethod
    def backoff(item: _Item) -> float:
        """Return the seconds before the next attempt, with the policy's jitter."""
        policy = item.options.retry
        wait = policy.backoff(item.attempt)
        if policy.jitter:
            import random

            wait *= 1 + policy.jitter * random.uniform(-1, 1)
        return wait

    def close_call(self, item: _Item) -> None:
        """A call has ended for good."""
        item.state = _State.OVER
        item.payload = b""  # a large one holds memory and a descriptor, whoever still has the item
        item.future._close()
        with self.lock:
            self.open -= 1
            finish = bool(self.refused) and self.open == 0 and not self.finishing
            if finish:
                self.finishing = True
        if finish:
            self.finish()

    def cancel(self, future: ProcessFuture[Any]) -> bool:
        """Withdraw or end a call: see `ProcessFuture.cancel`."""
        self.refuse_fork()
        item: _Item | None = future._item
        if item is None:
            return future.cancelled()
        # One winner: with the lock held the call can neither start nor end.
        with self.lock:
            # One that was sent ahead and has not begun is given back by this, and then withdrawn.
            if item.state is _State.HANDED and self.pool.kill_locked(item, "killed: cancelled"):
                item.cancelled = True
            withdrawn = item.state is _State.WAITING
            if withdrawn:
                self._withdraw_locked(item)
            if not item.cancelled:
                return future.cancelled()
        if withdrawn:
            self._tell_withdrawn(item)
        else:
            future._mark_cancelled()
        return True

    def _withdraw_locked(self, item: _Item) -> None:
        """See to it that a call which waits is not begun."""
        item.state = _State.OVER
        item.cancelled = True
        item.payload = b""  # it may stay in its queue for a while
        self.withdrawn += item.queued

    def _tell_withdrawn(self, item: _Item) -> None:
        """Tell of the end of a call that was withdrawn."""
        item.future._mark_cancelled()
        self.close_call(item)
        self.prune()

    def prune(self) -> None:
        """Forget withdrawn items once they outnumber the others."""
        with self.lock:
            if self.withdrawn < 64 or self.withdrawn * 2 < sum(map(len, self.queues)):
                return
            for waiting in self.queues:
                kept = [item for item in waiting if item.state is _State.WAITING]
                waiting.clear()
                waiting.extend(kept)
            self.withdrawn = 0

    # -- callbacks -----------------------------------------------------------------------------------------

    def run_callbacks(self, future: ProcessFuture[Any], run: Callable[[], None]) -> None:
        """Run the done-callbacks of a future on the callback thread."""
        with self.callback_lock:
            if self.callback_thread is None:
                thread = threading.Thread(
                    target=self.serve_callbacks, name="procsched-callbacks", daemon=True
                )
                thread.start()
                self.callback_thread = thread
        self.callbacks.put(run)

    def serve_callbacks(self) -> None:
        """Be the callback thread."""
        while (run := self.callbacks.get()) is not None:
            try:
                run()
            except BaseException:
                # The library logs an Exception; SystemExit and the like come through to here.
                logger.exception("procsched: a done-callback raised")
            run = None  # no future is kept alive by an idle thread

    # -- ending --------------------------------------------------------------------------------------------

    def shutdown(self, *, wait: bool, cancel: bool, kill: bool = False) -> None:
        """Take no more calls, and end when the last one has."""
        if self.is_fork:
            return
        with self.lock:
            self.refused = self.refused or AFTER_SHUTDOWN
            self.killing = self.killing or kill
            if cancel or kill:
                self.pool.recall_locked()
            items = [item for waiting in self.queues for item in waiting] if cancel or kill else []
            if items and not kill:
                # A call for which a worker is free, though it may be starting yet, counts as one that has started.
                free = max(0, self.pool.size - self.pool.running)
                items = [item for item in items if item.state is _State.WAITING][free:]
            if cancel or kill:
                items += self.resting
            items = [item for item in items if item.state is _State.WAITING]
            for item in items:
                self._withdraw_locked(item)
            idle = self.open == 0 and not self.finishing
            if idle:
                self.finishing = True
        for item in items:
            self._tell_withdrawn(item)
        if idle:
            self.finish()
        if kill:
            for call in self.pool.running_calls():
                self.pool.kill(call, "killed: the workers were killed")
        if wait and threading.current_thread() not in (self.callback_thread, self.io_thread()):
            # Without `kill` this waits for the work, which has its own limits; with it, for deaths.
            self.drained.wait(KILL_WAIT if kill else None)
            self.pool.shutdown(10.0)
            thread = self.callback_thread
            if thread is not None:
                thread.join(10.0)

    def io_thread(self) -> threading.Thread | None:
        """Return the pool's thread, or None before the start."""
        return self.pool.loop.thread if self.started else None

    def finish(self) -> None:
        """Nothing is open any more: end pool and callback thread, without waiting for them."""
        _live.discard(self)
        self.drained.set()
        if self.started:
            if threading.current_thread() is self.io_thread():
                self.pool.shutdown(5.0)
            else:
                self.pool.loop.call_soon(lambda: self.pool.shutdown(5.0))
        with self.callback_lock:
            thread = self.callback_thread
        if thread is not None:
            self.callbacks.put(None)


_live: set[Core] = set()  # started and not finished; kept so that they can end their calls at exit


def _at_exit() -> None:
    """Finish the calls of every executor: their threads are daemons, and would be cut off."""
    for core in list(_live):
        with core.lock:
            core.refused = core.refused or AT_EXIT
        core.shutdown(wait=True, cancel=False)


def _after_fork() -> None:
    for core in _live:
        core.is_fork = True
    _live.clear()


atexit.register(_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
