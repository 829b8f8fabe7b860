"""The process pool: hands calls to workers, takes their answers.

    scheduler / executor                               Fleet: starts workers, notices their end
      | pump()  kill()           call.ended()            ^
      v                              |                   |
    ProcessPool -- next_call() --> source                |
      |  any thread, lock held       ^                   |
      |                              |                   v
      '-- Worker.assign_locked()     '-- I/O thread: Loop, Worker.on_...
            writes, never blocks           one socket, and one pipe for output, per worker

Which call goes to which worker, and when, is in `dispatch.py`, with the rules of the lock; what becomes of answers is
in `booking.py`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import threading
import time

from procsched import _system
from procsched._core.checks import whole_number
from procsched._core.models import Outcome, WorkerStats
from procsched._interrupts import Latch, owner_check
from procsched._logs import say
from procsched.clock import SystemClock
from procsched.errors import SchedulerStateError
from procsched.workers.base import CLOSED_REASON, Ending
from procsched.workers.booking import Booker
from procsched.workers.capacity import check_descriptors, default_size
from procsched.workers.guard import Guard
from procsched.workers.loop import Loop
from procsched.workers.options import PoolOptions
from procsched.workers.sending import MOST_SPARES, WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, Never, ParamSpec, TypeVar

    from procsched._core.limits import Limits
    from procsched._parts import Inspection
    from procsched.protocols import CallSource, Clock
    from procsched.sandbox.policy import Sandbox
    from procsched.sandbox.prepare import Prepared, Report
    from procsched.workers.base import Call

    P = ParamSpec("P")
    R = TypeVar("R")


class ProcessPool(Booker):
    """Runs calls in supervised child processes that can be ended with everything they started.

    Args:
        workers: how many calls run at once; by default the number of CPUs that this process may use, or fewer where
            half of its descriptors would not do for so many.
        initializer, initargs: called in each worker before its first call. If it raises, or does not return within
            `start_timeout`, the calls that wait for a worker end as CRASHED with its traceback.
        preload: names of modules that are imported once, in the helper, and shared by all workers.
        max_runs_per_worker: a worker that has run this many calls is replaced.
        max_rss_per_worker: a worker whose resident memory is above this many bytes after a call is replaced.
        env: the workers' environment variables; the parent's of the moment when the worker starts by default.
        cwd: their working directory; likewise.
        nice: added to their niceness, 0 to 19. None, the default, for 0; with a sandbox for 10, on all processors but
            one where there are several: where others keep all of them busy, a job gets about a tenth of one then. A
            number with a sandbox is for that niceness alone.
        capture_output: keep the end of stdout and stderr of every call in `record.output`.
        start_timeout: seconds that a worker may take to become ready: `preload`, `initializer` and all.
        limits: what each call may use beside time; where the call has limits too, the tighter ones hold.
        sandbox: run code that nobody trusts: a `Source`, or a function that can be imported, with plain data as
            arguments and result. Each call gets a fresh process; `initializer`, `preload`, `env`, `cwd` and what limits
            the use of a worker are refused with it.
    Raises:
        ValidationError: naming the option.
        TaskSerializationError: the initializer cannot be pickled.
        SandboxUnavailableError: a promise of the sandbox cannot be kept here.
    Thread safety: `pump`, `kill`, `poke` and `stats` may be called from any thread. A pool serves one scheduler or
        executor, once.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: Sequence[Any] = (),
        preload: Sequence[str] = (),
        max_runs_per_worker: int | None = None,
        max_rss_per_worker: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        nice: int | None = None,
        capture_output: bool = False,
        start_timeout: float = 30.0,
        limits: Limits | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        size = whole_number("workers", default_size() if workers is None else workers)
        options = PoolOptions(
            initializer=initializer,
            initargs=initargs,
            preload=preload,
            max_runs_per_worker=max_runs_per_worker,
            max_rss_per_worker=max_rss_per_worker,
            env=env,
            cwd=cwd,
            nice=nice,
            capture_output=capture_output,
            start_timeout=start_timeout,
            limits=limits,
            confined=sandbox is not None,
        )
        self.sandbox = sandbox
        self._prepared: Prepared | None = None
        if sandbox is not None:
            options.check_confined()
            self._prepared = _prepared(sandbox, size, nice)
            from procsched import _places

            _places.note_writable(self, sandbox.writable)
        super().__init__(size, options)
        self.paths: dict[str, int] = {}  # see `Stats.paths`; guarded by lock
        self.real_clock = True
        self.awake: Callable[[], float] = time.monotonic
        self._fleet_closing = False
        self.closed = Latch()
        self._pid = os.getpid()
        self._pack: Callable[..., Any] | None = None

    # -- for the owner, from any thread --------------------------------------------------------------------

    def pack(self, action: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Pickle a call.

        Raises:
            TaskSerializationError: something in it cannot be pickled; says what and where.
        """
        if self._pack is None:
            if self._prepared is not None:
                from procsched.sandbox import packing

                self._pack = functools.partial(packing.pack, self._prepared)
                return self._pack(action, args, kwargs)
            from procsched.workers import managed  # here, so that an executor's helper is on its way by then

            self._pack = managed.pack
        return self._pack(action, args, kwargs)

    def __reduce__(self) -> Never:
        raise TypeError("a pool stays in the process that made it: what needs one makes its own")

    def start(self, source: CallSource, clock: Clock) -> None:
        """Begin to serve `source`: start the I/O thread, the helper and a first worker.

        Raises:
            SchedulerStateError: the pool has served somebody before.
            OSError: this process may not have the descriptors that its workers need, say.
        """
        if self._source is not None:
            raise SchedulerStateError("this pool already serves a scheduler or an executor; make a new one")
        check_descriptors(self.size)
        self.real_clock = isinstance(clock, SystemClock)
        self.awake = getattr(clock, "awake", clock.monotonic)
        self._pid = os.getpid()
        # First of all, for it takes a while until it listens: the rest of what we are made of is imported meanwhile.
        guard = None
        with contextlib.suppress(Exception):  # the fleet tries again, and its errors are told
            guard = Guard()
        with contextlib.ExitStack() as undo:
            if guard is not None:
                undo.callback(guard.abandon)
            from procsched.workers.fleet import Fleet

            self.loop = Loop("procsched-io", self._on_loop_error, self.lock)
            self.loop.on_trouble = self._look_for_torn
            undo.callback(self.loop.close)
            if self._prepared is None:
                self.fleet = Fleet(self, guard)
            else:
                from procsched.workers.confined_fleet import ConfinedFleet

                self.fleet = ConfinedFleet(self, guard, self._prepared)
            if _system.offers("eventfd") and self._prepared is None:
                from procsched.workers import holding

                self.holding = self.loop.holding = holding.found()
            undo.pop_all()
        self._source = source  # first: what follows has something to end, as soon as it runs
        try:
            self.loop.start()
        except RuntimeError:  # no thread can be started now
            self._source = None
            self.fleet.release()
            self.loop.close()
            raise
        except BaseException:
            # Thrown at this thread from without while it waited for the other one, which runs.
            self._source = None
            self.loop.call_soon(self.fleet.release)
            self.loop.stop()
            raise
        for path in self.loop.paths():
            self.went(path)
        self.loop.alarms.add(self.fleet)
        self.loop.alarms.add(self._look_again)
        self.loop.call_soon(self.fleet.ensure)

    def sandbox_report(self) -> Report | None:
        """Return what keeps each promise of the sandbox here, and which were given up; None without a sandbox."""
        return None if self._prepared is None else self._prepared.report

    def poke(self) -> None:
        """Look at the deadlines: an injected clock was moved."""
        if not self.real_clock and self._source is not None:
            self.loop.call_soon(self._look_at_clock)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline by an injected clock's `awake` seconds, or None."""
        if self.real_clock or self._source is None:
            return None
        with self.lock:
            times = [
                min(worker.fake_soft, worker.fake_hard)
                for worker in self.fleet.workers.values()
                if worker.state is WorkerState.BUSY
            ]
        earliest = min(times, default=math.inf)
        return None if earliest == math.inf else earliest

    def running_calls(self) -> list[Call]:
        """Return what runs now; what was sent ahead and has not begun is back in its source then."""
        if self._source is None:
            return []
        return self.whole(self._running_locked)

    def _running_locked(self) -> list[Call]:
        self.recall_locked()
        workers = list(self.fleet.workers.values())
        running = [worker.call for worker in workers if worker.call is not None]
        running += [call for worker in workers for call in worker.ahead]
        return running + list(self._returned)  # their owner was told that they have begun

    def stats(self) -> tuple[tuple[WorkerStats, ...], dict[str, int]]:
        """Return the workers that are not gone, and the counters."""
        with self.lock:
            counters = dict(self.counters)
            workers = [] if self._source is None else list(self.fleet.workers.values())
            shown = [
                (worker.pid, worker.state, worker.call.task_id if worker.call else None, worker.runs)
                for worker in workers
                if worker.state is not WorkerState.GONE
            ]
        return (
            tuple(
                WorkerStats(pid, _SHOWN.get(state, state.value), task_id, runs, _system.resident_bytes(pid))
                for pid, state, task_id, runs in shown
            ),
            counters,
        )

    def inspect(self, inspection: Inspection) -> None:
        """Say how the pool's thread and processes are. Takes no lock."""
        if self._source is not None:
            from procsched.workers import inspecting

            inspecting.inspect(self, inspection)

    def shutdown(self, timeout: float) -> None:
        """End every worker, the helper and the I/O thread; calls that still run end as KILLED.

        Returns when nothing of the pool is left, at the latest a second after `timeout` seconds; from the I/O thread
        itself at once. In a fork of the process it does nothing: the workers are the parent's.
        """
        if self._pid != os.getpid() or self._source is None:
            return
        self._closing = True
        self.loop.call_soon(functools.partial(self._close, time.monotonic() + max(0.0, timeout)))
        if threading.current_thread() is not self.loop.thread:
            self.closed.wait(max(0.0, timeout) + 1.0)
            self.loop.thread.join(1.0)

    def after_fork(self) -> None:
        """In a fork of the process: another thread may have held the lock, and there is none any more to let it go."""
        self.lock = threading.RLock()
        self.holds_lock = owner_check(self.lock)
        self.reading = threading.RLock()
        self.holds_reading = owner_check(self.reading)
        # The sockets are the parent's, and the epoll of its loop is the very same: nothing here may change either.
        self.holding, self.listened = None, set()

    # -- the I/O thread ------------------------------------------------------------------------------------

    def _close(self, until: float) -> None:
        if not self._fleet_closing:
            self._fleet_closing = True
            self.fleet.close(until)

    def _look_for_torn(self) -> None:
        """The I/O thread was short of memory, or of depth: whatever it was at may be half done."""
        self.end_all(self.untold)
        with self.lock:
            self.mend_locked()
        if self.fleet.launcher is not None:
            self.fleet.launcher.hear_received()
        for worker in list(self.fleet.workers.values()):
            if worker.mangled:
                worker.break_off("an error in the pool")
                worker.mangled = False

    def _look_at_clock(self) -> None:
        awake = self.awake()
        for worker in list(self.fleet.workers.values()):
            worker.look_at_clock(awake)

    def refuse_waiting(self, error: str, traceback: str | None) -> None:
        """No worker can be started: end every call that waits for one."""
        while True:
            try:
                with self.lock:
                    call = None if self._closing else self._next_locked()
            except Exception as failure:
                self._pump_later(failure)
                return
            if call is None:
                return
            ending = Ending(Outcome.CRASHED, error)
            ending.traceback = traceback
            self.end(call, ending)

    def end_returned(self) -> None:
        """The pool is shut down: calls that were given back will not be started again."""
        with self.lock:
            calls = list(self._returned)
            self._returned.clear()
        for call in calls:
            self.end(call, Ending(Outcome.KILLED, CLOSED_REASON))

    def went(self, path: str) -> None:
        """Count a way that was gone: see `Stats.paths`."""
        with self.lock:
            self.paths[path] = self.paths.get(path, 0) + 1

    def problem(self, text: str) -> None:
        """Say that something is wrong with the pool itself."""
        say(logging.WARNING, "%s", text)
        if self._source is not None:
            try:
                self._source.pool_problem(text)
            except BaseException as error:
                say(logging.ERROR, "a problem of the pool could not be reported", error=error)

    def _on_loop_error(self, error: BaseException) -> None:
        if self._source is not None:
            self._source.pool_problem(f"an error in the I/O thread: {type(error).__name__}: {error}")

    def on_closed(self) -> None:
        """The last process of the pool is gone."""
        if self._prepared is not None:
            from procsched import _places

            _places.forget_writable(self)
        self.closed.set()
        self.bells.clear()
        self.loop.stop()


# States that `WorkerStats` does not tell apart.
_SHOWN = {WorkerState.FAILING: "starting", WorkerState.DUMPING: "asked", WorkerState.LEAVING: "dying"}


def _prepared(sandbox: Sandbox, size: int, nice: int | None) -> Prepared:
    """Return a sandbox that was tried out."""
    from procsched.errors import ValidationError
    from procsched.sandbox.prepare import prepare

    prepared = prepare(sandbox, nice=nice)
    needed = size + MOST_SPARES + 3
    if sandbox.run_as is not None and len(sandbox.run_as) < needed:
        raise ValidationError(
            f"run_as has {len(sandbox.run_as)} uids, and {size} workers need {needed}: with those that wait, those "
            "that are just ending, and the process that looks into what they write"
        )
    return prepared
