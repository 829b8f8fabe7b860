"""Pools in this process: threads for what cannot be pickled, and no thread at all for tests.

    scheduler --pump--> ThreadPool ---next_call--> scheduler    in the thread that pumps, or became free
                          '--call--> "procsched-worker-N" --ended--> scheduler
    scheduler --pump--> InlinePool --next_call, the action itself, ended--> in the thread that pumps

Neither can end a run: one that is too long is reported as TIMED_OUT when it is over, and `kill` says False. Nor can
they ask one to stop, or keep what it prints.
"""

from __future__ import annotations

import logging
import os
import threading
from types import CoroutineType

from procsched._core.checks import whole_number
from procsched._core.failures import describe, traceback_text
from procsched._core.models import Outcome, WorkerStats
from procsched._interrupts import owner_check
from procsched._logs import say
from procsched.child.stored import Unloadable
from procsched.clock import real_seconds
from procsched.errors import SchedulerStateError
from procsched.workers.base import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Never

    from procsched.clock import FullClock
    from procsched.protocols import CallSource, Clock
    from procsched.workers.base import Call

MOST_THREADS = 32  # the default never makes more: actions in threads mostly wait, but memory is finite
EXTRA_THREADS = 4  # beyond the number of CPUs, as in concurrent.futures
FIRST_WAIT, LAST_WAIT = 0.05, 5.0  # seconds until a source that has raised is asked again


class LocalPool:
    """What the pools in this process share.

    Attributes:
        inline: the pool runs calls in the thread that pumps it, so the scheduler chooses that thread.
        can_kill: False, so a shutdown does not wait for the end of what it cannot end.
        strict: whether a task is refused the options that only a child process can keep: to be asked to stop, and to
            have its output in its record.
        size: how many calls run at once.
    """

    inline = False
    can_kill = False
    strict = False
    size: int

    def __init__(self) -> None:
        # `_lock` guards the fields of the pool. The source's may be taken while it is held (`next_call`),
        # never the other way; no action, ending or wait happens under it.
        # Reentrant only so that a signal handler can tell that it interrupted a holder.
        self.after_fork()
        self._source: CallSource | None = None
        self._clock: FullClock | None = None
        self._closing = False  # guarded by _lock
        self._calls: dict[int, Call] = {}  # thread ident -> what it runs; guarded by _lock
        self._runs = 0  # ended; guarded by _lock

    def after_fork(self) -> None:
        """In a fork of the process: a thread that is not there may have held the lock."""
        self._lock = threading.RLock()
        self.holds_lock = owner_check(self._lock)

    def pack(self, action: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the call as it is: it runs in this process, on these very objects."""
        return action, args, kwargs

    def __reduce__(self) -> Never:
        raise TypeError("a pool stays in the process that made it: what needs one makes its own")

    def start(self, source: CallSource, clock: Clock) -> None:
        """Begin to serve `source`. Once per pool."""
        if self._source is not None:
            raise SchedulerStateError("this pool already serves a scheduler; make a new one")
        self._clock = clock  # type: ignore[assignment]
        self._source = source

    def kill(self, call: Call, reason: str) -> bool:
        """Return False: what runs in this process cannot be ended."""
        return False

    def poke(self) -> None:
        """Do nothing: deadlines are looked at when a run is over."""

    def next_deadline(self) -> None:
        """Return None: there is no deadline to enforce."""
        return

    def current_call(self) -> Call | None:
        """Return the call that the calling thread is in, or None."""
        return self._calls.get(threading.get_ident())

    def _take_locked(self) -> Call | None:
        return None if self._closing or self._source is None else self._source.next_call()

    def _run(self, call: Call) -> Ending:
        """Run the action of a call. Whatever it raises is the call's outcome."""
        assert self._clock is not None
        ident = threading.get_ident()
        with self._lock:
            self._calls[ident] = call
        started = _read(self._clock.awake)
        ending = _outcome_of(call)
        if call.timeout is not None and started is not None:
            now = _read(self._clock.awake)
            if now is not None and now - started > call.timeout:
                ending.outcome = Outcome.TIMED_OUT
                ending.error = f"exceeded its {call.timeout} s budget"
                ending.result = None
        with self._lock:
            del self._calls[ident]
            self._runs += 1
        return ending


def _read(clock: Callable[[], float]) -> float | None:
    """Return what a clock says; None where it is a user's and raises, for the call in our hands runs all the same."""
    try:
        return clock()
    except BaseException as error:
        say(logging.ERROR, "the clock failed, so a timeout is not looked at", error=error)
        return None


def _tell(call: Call, ending: Ending) -> None:
    """Tell the owner of a call how it has ended. What that raises keeps the thread from nothing."""
    try:
        call.ended(ending)
    except BaseException as error:
        say(logging.ERROR, "the end of task %s could not be booked", call.task_id, error=error)


def _outcome_of(call: Call) -> Ending:
    action, args, kwargs = call.payload
    try:
        result = action(*args, **kwargs)
        if isinstance(result, CoroutineType):
            # Here and not above: few actions are coroutines, and asyncio takes long to load.
            import asyncio

            result = asyncio.run(result)
    except BaseException as error:  # SystemExit and KeyboardInterrupt are outcomes, too
        ending = Ending(Outcome.FAILED, describe(error))
        ending.exception, ending.traceback = error, traceback_text(error)
        if isinstance(error, Unloadable):
            ending.unloadable, ending.error = True, str(error)
        return ending
    return Ending(Outcome.SUCCEEDED, result=result)


class _Thread:
    """A worker thread. Its fields are guarded by the pool's lock."""

    __slots__ = ("call", "gate", "runs", "thread")

    def __init__(self) -> None:
        self.call: Call | None = None
        self.gate = threading.Lock()  # held while there is nothing to do: releasing it wakes the thread
        self.gate.acquire()
        self.runs = 0
        self.thread: threading.Thread | None = None


class ThreadPool(LocalPool):
    """Runs calls in threads of this process: the classic, for actions that cannot be pickled.

    A run that exceeds its `timeout` is TIMED_OUT once it is over. What a thread cannot do is refused where a task is
    scheduled: `soft_timeout`, `grace`, `capture_output` and `limits`.

    Args:
        workers: threads at most; they start when they are needed. By default four more than CPUs, up to 32.
    Raises:
        ValidationError: `workers` is no whole number of at least 1.
    Thread safety: call from anywhere. The threads are daemons: a run that never ends does not keep the
    interpreter from exiting.
    """

    strict = True

    def __init__(self, workers: int | None = None) -> None:
        super().__init__()
        if workers is None:
            workers = min(MOST_THREADS, (os.cpu_count() or 1) + EXTRA_THREADS)
        self.size = whole_number("workers", workers)
        self._threads: list[_Thread] = []  # guarded by _lock
        self._idle: list[_Thread] = []  # parked, the last one is the warmest; guarded by _lock

    def pump(self) -> None:
        """Hand calls to threads while one is free."""
        while True:
            with self._lock:
                if not self._idle and len(self._threads) >= self.size:
                    return
                call = self._take_locked()
                if call is None:
                    return
                if self._idle:
                    worker = self._idle.pop()
                    worker.call = call
                    worker.gate.release()
                    continue
                worker = _Thread()
                worker.call = call
                self._threads.append(worker)
                worker.thread = threading.Thread(
                    target=self._work,
                    args=(worker,),
                    name=f"procsched-worker-{len(self._threads)}",
                    daemon=True,
                )
            try:
                worker.thread.start()
            except RuntimeError as error:  # the system has no thread left, or the interpreter ends
                with self._lock:
                    self._threads.remove(worker)
                _tell(call, Ending(Outcome.CRASHED, f"no thread could be started: {error}"))

    def _work(self, worker: _Thread) -> None:
        while True:
            call = worker.call
            if call is None:  # woken by `shutdown`
                return
            _tell(call, self._run(call))
            failure: BaseException | None = None
            with self._lock:
                worker.runs += 1
                worker.call = call = None
                try:
                    worker.call = call = self._take_locked()
                except BaseException as error:  # a clock of the user's, say
                    failure = error
                if call is None:
                    if self._closing:
                        return
                    self._idle.append(worker)
            if call is None:
                self._park(worker, failure)

    def _park(self, worker: _Thread, failure: BaseException | None) -> None:
        """Wait for a call. After a `failure` of the source nobody else may ask it again for those that are ready."""
        seconds = FIRST_WAIT
        while failure is not None:
            say(logging.ERROR, "there may be more to run, but the scheduler failed", error=failure)
            if worker.gate.acquire(timeout=seconds):
                return
            seconds = min(2 * seconds, LAST_WAIT)
            try:
                self.pump()
                failure = None
            except BaseException as error:
                failure = error
        worker.gate.acquire()

    def stats(self) -> tuple[tuple[WorkerStats, ...], dict[str, int]]:
        """Return the threads that were started."""
        with self._lock:
            workers = tuple(
                WorkerStats(
                    None,
                    "idle" if thread.call is None else "busy",
                    None if thread.call is None else thread.call.task_id,
                    thread.runs,
                )
                for thread in self._threads
            )
        return workers, {}

    def shutdown(self, timeout: float) -> None:
        """End the threads. One that is in a run is waited for until `timeout`, then left behind."""
        end = real_seconds() + timeout
        with self._lock:
            self._closing = True
            idle, self._idle = self._idle, []
            threads = [worker.thread for worker in self._threads]
        for worker in idle:
            worker.gate.release()
        for thread in threads:
            if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, end - real_seconds()))


class InlinePool(LocalPool):
    """Runs one call at a time in the thread that pumps: for deterministic tests.

    Under a fake clock that is the thread that calls `advance`, `wait_idle`, `wake` or `schedule`, else the
    timer thread. An action may use the scheduler; what becomes due through it runs after it, never inside.

    So that a program can be tested with the tasks that it has, `soft_timeout`, `grace` and `capture_output` are taken,
    and have no effect: no run is asked to stop, and what it prints goes where the test prints. A run that exceeds its
    `timeout` is TIMED_OUT once it is over. `limits` are refused.

    Thread safety: call from anywhere; while one thread runs calls, what others bring is run by it.
    """

    inline = True
    size = 1

    def __init__(self) -> None:
        super().__init__()
        self._owner: int | None = None  # ident of the thread that runs calls; guarded by _lock

    def pump(self) -> None:
        """Run calls until the source has none, unless a thread (this one, or another) already does."""
        mine = False
        try:
            with self._lock:
                if self._owner is not None:
                    return  # whoever it is asks the source again before it stops
                self._owner, mine = threading.get_ident(), True
            while True:
                with self._lock:
                    call = self._take_locked()
                    if call is None:
                        self._owner = None
                        return
                _tell(call, self._run(call))
        except BaseException:
            if mine:
                with self._lock:
                    self._owner = None
            raise

    def stats(self) -> tuple[tuple[WorkerStats, ...], dict[str, int]]:
        """Return the one worker."""
        with self._lock:
            call = next(iter(self._calls.values()), None)
            state, task_id = ("idle", None) if call is None else ("busy", call.task_id)
            return (WorkerStats(None, state, task_id, self._runs),), {}

    def shutdown(self, timeout: float) -> None:
        """Run nothing more. A run that goes on is left to its thread."""
        with self._lock:
            self._closing = True
