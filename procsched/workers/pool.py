"""The process pool: hands calls to workers, takes their answers.

    scheduler / executor                               Fleet: starts workers, notices their end
      | pump()  kill()           call.ended()            ^
      v                              |                   |
    ProcessPool -- next_call() --> source                |
      |  any thread, lock held       ^                   |
      |                              |                   v
      '-- Worker.assign_locked()     '-- I/O thread: Loop, Worker.on_...
            writes, never blocks           one socket and one pid descriptor per worker

Pull, not push: a call leaves its source only when a worker is idle, so priority, cancel and pause hold until the last
moment. Lock order: the pool's lock, then the source's. Nothing waits while it is held; the one system call made under
it is a write to a socket that never blocks.
"""

from __future__ import annotations

import functools
import logging
import math
import mmap
import os
import threading
import time
from collections import deque

from procsched._core import wire
from procsched._core.models import Outcome, Sealed, WorkerStats
from procsched.child.protocol import REASON_KILL
from procsched.clock import SystemClock
from procsched.errors import SchedulerStateError
from procsched.workers import packing
from procsched.workers import verdict as verdicts
from procsched.workers.base import CLOSED_REASON, Ending
from procsched.workers.fleet import Fleet
from procsched.workers.loop import Loop
from procsched.workers.options import PoolOptions, at_least_one
from procsched.workers.process import RUNNING_STATES, Worker, WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from procsched.protocols import CallSource, Clock
    from procsched.workers.base import Call

MOST_HANDED = 10  # workers that may die before they begin a call, until that counts as a crash of the call

_COUNTERS = (
    "spawned",
    "killed_workers",
    "recycled",
    "start_failures",
    "helper_restarts",
    "unkillable",
    "late_results",
)

logger = logging.getLogger("procsched")


class ProcessPool:
    """Runs calls in supervised child processes that can be ended with everything they started.

    Args:
        workers: how many calls run at once; the number of CPUs that this process may use by default.
        initializer, initargs: called in each worker before its first call. If it raises, or does not return within
            `start_timeout`, the calls that wait for a worker end as CRASHED with its traceback.
        preload: names of modules that are imported once, in the helper, and shared by all workers.
        max_runs_per_worker: a worker that has run this many calls is replaced.
        max_rss_per_worker: a worker whose resident memory is above this many bytes after a call is replaced.
        env: the workers' environment variables; the parent's of the moment when the worker starts by default.
        cwd: their working directory; likewise.
        nice: added to their niceness, 0 to 19.
        capture_output: keep the end of stdout and stderr of every call in `record.output`.
        start_timeout: seconds that a worker may take to become ready.
    Raises:
        ValidationError: naming the option.
        TaskSerializationError: the initializer cannot be pickled.
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
        nice: int = 0,
        capture_output: bool = False,
        start_timeout: float = 30.0,
    ) -> None:
        self.size = at_least_one("workers", _cpus() if workers is None else workers) or 1
        self.options = PoolOptions(
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
        )
        # Guards the workers' states and calls, the idle list, `running` and the counters. Taken by any thread that
        # pumps or kills and by the I/O thread; held while the source picks a call and while its frame is written.
        self.lock = threading.Lock()
        self.running = 0  # workers in RUNNING_STATES; guarded by lock
        self.idle: list[Worker] = []  # the last one is the warmest; guarded by lock
        self.counters = dict.fromkeys(_COUNTERS, 0)  # guarded by lock
        self.real_clock = True
        self.awake: Callable[[], float] = time.monotonic
        self.loop: Loop  # this and the next from `start` on
        self.fleet: Fleet
        # Calls whose worker died before it began them; they are started before any other. Guarded by lock.
        self._returned: deque[Call] = deque()
        self._source: CallSource | None = None
        self._calls = 0  # numbers for calls; guarded by lock
        self._start_wanted = False  # a start is asked for and not looked at yet; guarded by lock
        self._closing = False  # guarded by lock
        self._closed = threading.Event()
        self._pid = os.getpid()
        self._wears = self.options.max_runs is not None or self.options.max_rss is not None

    # -- for the owner, from any thread --------------------------------------------------------------------

    def pack(self, action: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Pickle a call.

        Raises:
            TaskSerializationError: something in it cannot be pickled; says what and where.
        """
        return packing.pack(action, args, kwargs)

    def start(self, source: CallSource, clock: Clock) -> None:
        """Begin to serve `source`: start the I/O thread, the helper and a first worker.

        Raises:
            SchedulerStateError: the pool has served somebody before.
            OSError: no descriptors are left, say.
        """
        if self._source is not None:
            raise SchedulerStateError("this pool already serves a scheduler or an executor; make a new one")
        self.real_clock = isinstance(clock, SystemClock)
        self.awake = getattr(clock, "awake", clock.monotonic)
        self._pid = os.getpid()
        self.loop = Loop("procsched-io", self._on_loop_error)
        try:
            self.fleet = Fleet(self)
            try:
                self.loop.start()
            except BaseException:  # no thread can be started now
                self.fleet.release()
                raise
        except BaseException:
            self.loop.close()
            raise
        self._source = source
        self.loop.alarms.add(self.fleet)
        self.loop.call_soon(self.fleet.ensure)

    def pump(self) -> None:
        """Hand calls to idle workers while the source has some. Never blocks."""
        wanted = False
        while True:
            with self.lock:
                if self._closing or self._source is None:
                    return
                if not self.idle:
                    # Either a call waits for a worker, or the spare has been taken: both call for a start.
                    wanted = not self._start_wanted
                    self._start_wanted = True
                    break
                if self.running >= self.size:
                    return
                worker = self.idle[-1]
                call = self._next_locked()
                if call is None:
                    return
                self.idle.pop()
                self.running += 1
                self._calls += 1
                call.worker = worker
                call.handed += 1
                worker.assign_locked(call, self._calls)
        if wanted:
            self.loop.call_soon(self._want_worker)

    def _next_locked(self) -> Call | None:
        if self._returned:
            return self._returned.popleft()
        return None if self._source is None else self._source.next_call()

    def kill(self, call: Call, reason: str) -> bool:
        """End a running call, grace first. It is decided here: no later answer of the call counts.

        Args:
            reason: why, in the words of `record.error`.
        Returns:
            False when the call is not running, or its end was decided before.
        """
        with self.lock:
            return self.kill_locked(call, reason)

    def kill_locked(self, call: Call, reason: str) -> bool:
        """Do the same for a caller that holds the pool's lock."""
        if call in self._returned:
            self._returned.remove(call)
            self.loop.call_soon(lambda: call.ended(Ending(Outcome.KILLED, reason)))
            return True
        worker: Worker | None = call.worker
        if worker is None or worker.call is not call or worker.verdict is not None or worker.held is not None:
            return False
        worker.verdict = (Outcome.KILLED, reason)
        self.loop.call_soon(functools.partial(self._carry_out_kill, worker, call))
        return True

    def give_back(self, call: Call) -> bool:
        """Take back a call whose worker died before it began it. Return False for one to which that happens often.

        It may be the call itself that kills whoever reads it.
        """
        with self.lock:
            if call.handed >= MOST_HANDED or self._closing:
                return False
            self._returned.append(call)
        return True

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
        """Return what runs now."""
        if self._source is None:
            return []
        with self.lock:
            return [worker.call for worker in self.fleet.workers.values() if worker.call is not None]

    def stats(self) -> tuple[tuple[WorkerStats, ...], dict[str, int]]:
        """Return the workers that are not gone, and the counters."""
        with self.lock:
            counters = dict(self.counters)
            workers = [] if self._source is None else list(self.fleet.workers.values())
            shown = [
                (worker.pid, worker.state, worker.call.task_id if worker.call else None, worker.runs)
                for worker in workers
            ]
        return (
            tuple(
                WorkerStats(pid, _SHOWN.get(state, state.value), task_id, runs, resident_bytes(pid))
                for pid, state, task_id, runs in shown
            ),
            counters,
        )

    def shutdown(self, timeout: float) -> None:
        """End every worker, the helper and the I/O thread; calls that still run end as KILLED.

        Returns when nothing of the pool is left, at the latest a second after `timeout` seconds; from the I/O thread
        itself at once. In a fork of the process it does nothing: the workers are the parent's.
        """
        with self.lock:
            first = not self._closing
            self._closing = True
        if self._pid != os.getpid() or self._source is None:
            return
        if first:
            self.loop.call_soon(functools.partial(self.fleet.close, time.monotonic() + max(0.0, timeout)))
        if threading.current_thread() is not self.loop.thread:
            self._closed.wait(max(0.0, timeout) + 1.0)
            self.loop.thread.join(1.0)

    # -- the I/O thread ------------------------------------------------------------------------------------

    def _want_worker(self) -> None:
        with self.lock:
            self._start_wanted = False
        self.fleet.ensure(wanted=True)

    def on_answer(self, worker: Worker, frame: wire.Frame) -> None:
        """A worker has answered its call."""
        call = worker.call  # taken away by this thread only
        if call is None or frame.number != worker.call_number or worker.state not in RUNNING_STATES:
            self.count("late_results")
            return
        ending = self._read_answer(worker, call, frame)
        worker.runs += 1
        dirty = frame.flags & wire.DIRTY or ending.outcome is Outcome.TIMED_OUT
        worn = self._wears and self._is_worn(worker)
        with self.lock:
            if worker.verdict is None and frame.first > worker.hard_at:
                assert call.timeout is not None
                worker.verdict = verdicts.timed_out(call.timeout)
            # A verdict wins over an answer: whoever gave it was told so.
            spoiled = worker.verdict is not None
            if spoiled:
                self.counters["late_results"] += 1
            elif dirty:
                worker.add_output(ending, call)
                worker.held = ending  # told when its tree is gone
                self.counters["recycled"] += 1
            else:
                worker.add_output(ending, call)  # before the next call can write; a read that does not block
                worker.alarm = math.inf
                worker.call = call.worker = None
                self.running -= 1
                worker.state = WorkerState.IDLE
                if worn:
                    self.counters["recycled"] += 1
                elif not worker.dead:
                    self.idle.append(worker)
        if spoiled or dirty:
            worker.kill()  # it is not used again, and there is nothing left to ask it
            return
        if worn and not worker.dead:
            worker.leave()
            self.fleet.ensure()
        self.pump()  # first, so that the worker runs while this call is booked
        call.ended(ending)

    def _read_answer(self, worker: Worker, call: Call, frame: wire.Frame) -> Ending:
        if frame.kind == wire.DONE:
            ending = Ending(Outcome.SUCCEEDED)
            ending.result = Sealed(frame.payload)
        else:
            text, traceback, carried, obstacle = wire.unpack(frame.payload, 4)
            if frame.flags & wire.SOFT and call.soft_timeout is not None:
                ending = Ending(*verdicts.soft_timed_out(call.soft_timeout))
            else:
                ending = Ending(Outcome.FAILED, text)
            ending.traceback = traceback
            ending.exception = None if carried is None else Sealed(carried)
            ending.obstacle = obstacle
        ending.pid = worker.pid
        if frame.second >= 0:
            ending.cpu_seconds = frame.second
            worker.cpu_base += frame.second
        if frame.third:
            ending.peak_rss = frame.third
        return ending

    def _is_worn(self, worker: Worker) -> bool:
        options = self.options
        if options.max_runs is not None and worker.runs >= options.max_runs:
            return True
        return options.max_rss is not None and (resident_bytes(worker.pid) or 0) > options.max_rss

    def _carry_out_kill(self, worker: Worker, call: Call) -> None:
        if worker.call is call and worker.verdict is not None:
            worker.stop(worker.verdict, REASON_KILL)

    def _look_at_clock(self) -> None:
        awake = self.awake()
        for worker in list(self.fleet.workers.values()):
            worker.look_at_clock(awake)

    def refuse_waiting(self, error: str, traceback: str | None) -> None:
        """No worker can be started: end every call that waits for one."""
        while True:
            with self.lock:
                call = None if self._closing else self._next_locked()
            if call is None:
                return
            call.ended(Ending(Outcome.CRASHED, error, traceback=traceback))

    def end_returned(self) -> None:
        """The pool is shut down: calls that were given back will not be started again."""
        with self.lock:
            calls = list(self._returned)
            self._returned.clear()
        for call in calls:
            call.ended(Ending(Outcome.KILLED, CLOSED_REASON))

    def count(self, name: str) -> None:
        """Add one to a counter."""
        with self.lock:
            self.counters[name] += 1

    def problem(self, text: str) -> None:
        """Say that something is wrong with the pool itself."""
        logger.warning("%s", text)
        if self._source is not None:
            self._source.pool_problem(text)

    def _on_loop_error(self, error: BaseException) -> None:
        if self._source is not None:
            self._source.pool_problem(f"an error in the I/O thread: {type(error).__name__}: {error}")

    def on_closed(self) -> None:
        """The last process of the pool is gone."""
        self._closed.set()
        self.loop.stop()


_SHOWN = {
    WorkerState.DUMPING: "asked",
    WorkerState.LEAVING: "dying",
}  # states that `WorkerStats` does not tell apart


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident_bytes(pid: int | None) -> int | None:
    """Return the resident memory of a process, or None where it is gone or nobody can say."""
    if pid is None:
        return None
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return None
