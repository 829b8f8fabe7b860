"""The calls of an executor: from `submit` through the pool to the future, and back for another attempt.

    submit() --> Core: one queue per priority --next_call()--> ProcessPool --> worker
    result() <-- ProcessFuture <-- Core.on_ended() <-- I/O thread
    add_done_callback() <-- callback thread

One lock guards queues and pool together, the pool's: see there for what is done while it is held, and what becomes of a
signal handler that interrupts its holder. Which call is next is in `queueing.py`.

The pool's thread refers to the `Core`, and nothing here to the executor, so that one which nobody refers to any more
can be collected: its core then finishes the calls and ends.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
import threading
import time

from procsched import exits
from procsched._core.failures import name_of
from procsched._core.models import Outcome, Stats
from procsched._core.retrying import decide_retry
from procsched._interrupts import Latch, apart, owner_check
from procsched._jitter import draw
from procsched.callbacks import Callbacks
from procsched.errors import SchedulerStateError, TaskSerializationError, ValidationError
from procsched.future import ProcessFuture
from procsched.queueing import HANDED, OVER, WAITING, Item, Queueing
from procsched.workers.base import pace_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from procsched._parts import Inspection
    from procsched.call_options import Options
    from procsched.workers.base import Ending
    from procsched.workers.pool import ProcessPool

KILL_WAIT = 30.0  # seconds for the graces of what is killed and for its end, before the pool is shut down all the same
PROBLEMS = 20  # texts that stats() shows
_SUCCEEDED = Outcome.SUCCEEDED  # looking up a member of an enum takes its time
AFTER_SHUTDOWN = (  # it begins with the words of the standard library
    "cannot schedule new futures after shutdown: make a new executor, or submit before this one is shut down"
)


class Core(Queueing):
    """The queues and the pool behind an executor. See the drawing above."""

    def __init__(self, pool: ProcessPool) -> None:
        super().__init__(pool)
        self.killing = False  # no further attempt is made; guarded by lock
        self.hurried = False  # somebody who waited for the end of its workers would not wait any longer
        # Held while the pool is started, so that it is started once. Reentrant only so that a finalizer which runs in
        # the midst of that can tell; no code of ours enters twice.
        self.start_lock = threading.RLock()
        self.started = False
        self.finishing = False  # the pool is being shut down; guarded by lock
        self.drained = Latch()  # set when, after a shutdown, nothing is open
        self.started_at = 0.0  # steady time
        self.pid = 0  # of the process that has started the pool
        self.is_fork = False  # this is a fork of it
        self.callbacks = Callbacks(pool)
        # Single operations, atomic.
        self.problems: collections.deque[str] = collections.deque(maxlen=PROBLEMS)
        # Those that succeeded: they are told of without the lock, by one thread or another, and this is one step.
        self.succeeded = itertools.count()
        exits.note(self)

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
        if not self.started:
            self.start()
        future: ProcessFuture[Any] = ProcessFuture(self, options.name or name_of(fn), options.timeout)
        try:
            payload = self.pool.pack(fn, args, kwargs)
        except TaskSerializationError as error:
            future.set_exception(error)
            return future
        # None of which anything is kept, or watched, while it runs is sent ahead.
        alone = options.capture_output or options.limits is not None or self.pool.options.capture_output
        item = Item(self, future, payload, options, None if alone else pace_of(fn))
        future._item = item
        if self.holds_lock():
            self._submit_later(item)
            return future
        with self.lock:
            if self.refused:
                raise SchedulerStateError(self.refused)
            try:
                self.open.add(item)
                self._queue_locked(item)
                self.pool.pump_locked()
            except BaseException:  # as in `ProcessPool.whole`, without a call for each call
                try:
                    self._drop_locked(item)
                except BaseException:
                    self._drop_locked(item)
                raise
        return future

    def _submit_later(self, item: Item) -> None:
        """Queue a call of a signal handler that interrupted a holder of the lock, once that has let it go."""
        if self.refused:
            raise SchedulerStateError(self.refused)
        self.open.add(item)
        self.pool.loop.call_soon(functools.partial(self.enter, item))

    def enter(self, item: Item) -> None:
        """Queue a call that could not be queued when it was submitted. On the I/O thread."""
        with self.lock:
            if item.state is not WAITING:
                return  # cancelled meanwhile
            late = self.finishing or self.killing or item.future.cancelled()
            if late:
                self._withdraw_locked(item, "cancelled" if item.future.cancelled() else "returned")
            else:
                self._queue_locked(item)
                self.pool.pump_locked()
        if late:
            self._tell_withdrawn(item)

    def _drop_locked(self, item: Item) -> None:
        """A signal handler has raised in `submit`: nobody will have the future. What a worker has already, it runs."""
        if item.state is WAITING:
            item.state = OVER
            item.payload = b""
            self.open.discard(item)
        self.pool.mend_locked()

    def start(self) -> None:
        """Start the pool, once.

        Raises:
            OSError: it cannot be started now; the next call tries again.
        """
        if owner_check(self.start_lock)():
            raise SchedulerStateError(
                "this executor is just being started by the code that was interrupted for this call: "
                "submit from a thread, or later"
            )
        if not self.started:
            apart(self._start)

    def wait_for_start(self) -> None:
        """Where a first call is about to start the pool, wait for that."""
        if not owner_check(self.start_lock)() and self.start_lock.acquire(timeout=KILL_WAIT):
            self.start_lock.release()

    def _start(self) -> None:
        from procsched.clock import SystemClock

        with self.start_lock:
            if not self.started and not self.refused:
                self.pid = os.getpid()
                self.started_at = time.monotonic()
                self.pool.start(self, SystemClock())
                self.started = True
                if self.refused:  # a shutdown meanwhile found nothing to end
                    # Not the pool's alone: who shuts down may come to us when its thread has ended, and nobody is
                    # there any more to say that nothing is open.
                    self.pool.loop.call_soon(self.finish)
                else:
                    exits.keep(self)

    def check_open(self) -> None:
        """Refuse where this executor takes no calls."""
        self.refuse_fork()
        if self.refused:
            raise SchedulerStateError(self.refused)

    def refuse_wait(self) -> None:
        """Refuse to wait for the end of a call where that would never come.

        Raises:
            SchedulerStateError: naming the remedy.
        """
        self.refuse_fork()
        if self.holds_lock() or self.pool.holds_reading():
            raise SchedulerStateError(
                "this signal handler, or finalizer (__del__), has interrupted the executor, which cannot go on while "
                "it waits for a call: set a flag, or wait in a thread"
            )

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

    # -- what the pool asks and says -----------------------------------------------------------------------

    def pool_problem(self, text: str) -> None:
        """Remember a problem. The pool logs it itself, and those who wait hear of it by their futures."""
        self.problems.append(text)

    def listen(self, future: ProcessFuture[Any], latch: Latch, most: float) -> None:
        """Wait for the result at the worker itself, at most `most` seconds, where that can be done: see `Listener`."""
        item: Item | None = future._item
        if item is not None and item.state is OVER:
            # This may be a signal handler that has interrupted who was to tell.
            self.pool.loop.call_soon(self.tell_cancelled)
        if item is None or self.pool.holding is None:
            return
        worker = item.worker
        if worker is not None and worker.call is item and not worker.ahead:
            worker.listen(item, latch, most)

    def heed(self, future: ProcessFuture[Any]) -> None:
        """Somebody else waits for this call: have the loop listen to its worker. Takes no lock.

        Who asks may hold the conditions of other futures, for which whoever holds our lock may be waiting: a signal
        handler that cancels.
        """
        item: Item | None = future._item
        worker = None if item is None else item.worker
        if worker is not None and worker in self.pool.listened:
            self.pool.loop.call_soon(worker.heed)

    def on_ended(self, item: Item, ending: Ending) -> None:
        """An attempt has ended: settle its future, or try again. Told twice, it is the same as told once."""
        future = item.future
        if item.state is OVER and future.done():
            return
        seconds = ending.seconds
        if seconds is None:
            seconds = time.monotonic() - item.began if item.began else 0.0
        again = future._last is ending
        if not again:
            if ending.outcome is _SUCCEEDED:
                next(self.succeeded)
            ending.attempt, ending.started_at, ending.seconds = item.attempt, time.time() - seconds, seconds
            ending.before = future._last
            future._last = ending
        if ending.outcome is not _SUCCEEDED:
            with self.lock:
                self.counters[ending.outcome] += not again
                wait = self._again_locked(item, ending)
            if wait is not None:
                enqueue = functools.partial(self.enqueue, item)
                # By way of `call_soon`: this may be a thread that waits for its result.
                soon = functools.partial(self.pool.loop.call_at, time.monotonic() + wait, enqueue)
                self.pool.loop.call_soon(soon)
                return
        try:
            if item.cancelled:
                future._mark_cancelled()
            else:
                future._settle(ending)
        finally:  # whatever somebody who waits makes of it
            self.close_call(item)

    def _again_locked(self, item: Item, ending: Ending) -> float | None:
        """Return the seconds until the next attempt, which is prepared here; None when there is to be none."""
        if item.cancelled or item.last or self.killing:
            return None
        retry = item.options.retry
        wait = decide_retry(retry, ending.outcome, item.attempt, draw() if retry.jitter else 0.5)
        if wait is None:
            return None
        item.verdict = None
        item.attempt += 1
        item.began = 0.0
        item.state = WAITING
        self.counters["retried"] += 1
        self.resting.add(item)
        return wait

    def close_call(self, item: Item) -> None:
        """A call has ended for good."""
        item.state = OVER
        item.payload = b""  # a large one holds memory and a descriptor, whoever still has the item
        item.future._close()
        self.open.discard(item)
        if self.refused and not self.open:
            self.finish_soon()

    def cancel(self, future: ProcessFuture[Any]) -> bool:
        """Withdraw or end a call: see `ProcessFuture.cancel`."""
        self.refuse_fork()
        item: Item | None = future._item
        if item is None:
            return future.cancelled()
        if self.holds_lock():
            return self._cancel_later(item)
        try:
            # One winner: with the lock held the call can neither start nor end.
            withdrawn = self.pool.whole(self._cancel_locked, item)
            if withdrawn:
                self._tell_withdrawn(item)
            elif item.cancelled:
                future._mark_cancelled()
            else:
                return future.cancelled()
        except BaseException:
            self.pool.loop.call_soon(self.tell_cancelled)
            raise
        return True

    def _cancel_locked(self, item: Item) -> bool:
        """Withdraw the call and return True, or have it ended where it runs."""
        # One that was sent ahead and has not begun is given back by this, and then withdrawn.
        if item.state is HANDED:
            if self.pool.kill_locked(item, "killed: cancelled"):
                item.cancelled = True
            else:
                item.last = item.state is HANDED  # how this attempt ends is decided, and stays so
        withdrawn = item.state is WAITING
        if withdrawn:
            self._withdraw_locked(item, "cancelled")
        return withdrawn

    def _cancel_later(self, item: Item) -> bool:
        """Cancel for a signal handler that interrupted a holder of the lock: the future now, the call thereafter."""
        self.pool.loop.call_soon(functools.partial(self.cancel, item.future))
        return item.future._mark_cancelled()

    def tell_cancelled(self) -> None:
        """Tell of what was cancelled, should that have been interrupted. On the I/O thread."""
        for item in list(self.open):  # no tuple, see `Latch.set`
            if item.cancelled:
                item.future._mark_cancelled()
            if item.state is OVER:
                self._tell_withdrawn(item)
        if self.refused:
            self.finish_soon()

    def _tell_withdrawn(self, item: Item) -> None:
        """Tell of the end of a call that was withdrawn."""
        item.future._mark_cancelled()
        self.close_call(item)
        self.prune()

    def stats(self) -> Stats:
        """See `ProcessExecutor.stats`."""
        self.refuse_fork()
        workers, counters = self.pool.stats()
        with self.lock:
            self.pool.heed_locked()  # this may be a signal handler that looks until nothing is open
            counters |= {"started": self.attempts, "succeeded": _reached(self.succeeded), **self.counters}
            waiting = sum(map(len, self.queues)) - self.withdrawn
            tombstones = self.withdrawn
        ended = sum(counters[outcome.value] for outcome in Outcome)
        return Stats(
            workers,
            counters,
            waiting + tombstones,
            tombstones,
            waiting,
            counters["started"] - ended,
            len(self.open),
            self.recent_problems(),
            dict(self.pool.paths),
        )

    kind = "executor"

    def inspect(self, inspection: Inspection) -> None:
        """Say how the threads and processes are. Takes no lock."""
        if self.started and not self.is_fork:
            self.pool.inspect(inspection)
            inspection.add_thread("callback thread", self.callbacks.thread, self.callbacks.busy_since)
            inspection.add_locks([("pool", self.lock), ("answers", self.pool.reading)])

    def recent_problems(self) -> tuple[str, ...]:
        """Return what went wrong lately, in words."""
        return tuple(self.problems)

    # -- callbacks -----------------------------------------------------------------------------------------

    def run_callbacks(self, run: Callable[[], None]) -> None:
        """Run the done-callbacks of a future on the callback thread."""
        self.callbacks.put(run)

    def ready_callbacks(self) -> None:
        """Have the callback thread started before there is something for it to run."""
        if self.callbacks.thread is None and self.started and not self.finishing:
            wait = not self.holds_lock() and threading.current_thread() is not self.io_thread()
            self.callbacks.prepare(wait=wait)

    # -- ending --------------------------------------------------------------------------------------------

    def shutdown(self, *, wait: bool, cancel: bool, kill: bool = False) -> None:
        """Take no more calls, and end when the last one has."""
        if self.is_fork:
            return
        self.refused = self.refused or AFTER_SHUTDOWN
        self.killing = self.killing or kill
        if wait and not self.started:
            self.wait_for_start()
        if self.holds_lock():  # a signal handler has interrupted us, and must not wait for us
            self._shutdown_soon(cancel=cancel, kill=kill)
            return
        try:
            if cancel or kill:
                for item in self.pool.whole(self._withdraw_waiting_locked, kill=kill):
                    self._tell_withdrawn(item)
            if kill:
                for call in self.pool.running_calls():
                    self.pool.kill(call, "killed: the workers were killed")
            # Who listens may be kept from it by the very handler that waits for us.
            self.pool.whole(self.pool.heed_locked)
            self.finish_soon()
        except BaseException:
            self._shutdown_soon(cancel=cancel, kill=kill)
            raise
        if self.pool.holds_reading():  # the same: for who books there the I/O thread waits
            return
        if wait and threading.current_thread() not in (self.callbacks.thread, self.io_thread()):
            if self.started:
                # This may be a signal handler that has interrupted who was to tell of what is withdrawn.
                self.pool.loop.call_soon(self.tell_cancelled)
            # Without `kill` this waits for the work, which has its own limits; with it, for deaths.
            self.drained.wait(KILL_WAIT if kill else None)
            self.pool.shutdown(10.0)
            self.callbacks.join(10.0)

    def leave(self, *, kill: bool) -> None:
        """Shut down and wait: for the work, or, with `kill`, only for the end of the workers.

        Whatever interrupts the waiting for the work, a KeyboardInterrupt in most cases, ends the calls; what interrupts
        the waiting for that is heard at once.
        """
        if not kill:
            try:
                self.shutdown(wait=True, cancel=False)
                return
            except BaseException:
                self.leave(kill=True)
                raise
        try:
            self.shutdown(wait=True, cancel=True, kill=True)
        except BaseException:
            self.hurried = True
            raise

    def _shutdown_soon(self, *, cancel: bool, kill: bool) -> None:
        if self.started:
            self.pool.loop.call_soon(self.tell_cancelled)
            self.pool.loop.call_soon(functools.partial(self.shutdown, wait=False, cancel=cancel, kill=kill))

    def after_fork(self) -> None:
        """In a fork of the process: the pool is the parent's, if there is one. Locks may be held by threads of its."""
        if self.started or not self.start_lock.acquire(blocking=False):
            self.is_fork = True
        exits.release(self)
        self.start_lock = threading.RLock()
        self.pool.after_fork()
        self.lock, self.holds_lock = self.pool.lock, self.pool.holds_lock

    def io_thread(self) -> threading.Thread | None:
        """Return the pool's thread, or None before the start."""
        return self.pool.loop.thread if self.started else None

    def finish_soon(self) -> None:
        """End pool and callback thread, if nothing is open any more; without waiting for them."""
        if self.started:
            self.pool.loop.call_soon(self.finish)
        else:
            self.drained.set()

    def finish(self) -> None:
        """Do the same, at once. On the I/O thread."""
        with self.lock:
            if self.finishing or self.open or not self.refused:
                return
            self.finishing = True
        exits.release(self)
        self.drained.set()
        self.pool.shutdown(5.0)
        self.pool.loop.call_soon(self.callbacks.end)


def _reached(count: itertools.count[int]) -> int:
    """Return how many numbers a count from 0 has given."""
    return int(repr(count).removeprefix("count(").removesuffix(")"))
