"""The process pool: hands calls to workers, takes their answers.

    scheduler / executor                               Fleet: starts workers, notices their end
      | pump()  kill()           call.ended()            ^
      v                              |                   |
    ProcessPool -- next_call() --> source                |
      |  any thread, lock held       ^                   |
      |                              |                   v
      '-- Worker.assign_locked()     '-- I/O thread: Loop, Worker.on_...
            writes, never blocks           one socket, and one pipe for output, per worker

Which call goes to which worker, and when, is in `dispatch.py`, with the rules of the lock.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import math
import mmap
import os
import threading
import time

from procsched import _system
from procsched._core import wire
from procsched._core.checks import whole_number
from procsched._core.models import Outcome, Sealed, WorkerStats
from procsched._interrupts import Latch, owner_check
from procsched._logs import say
from procsched.clock import SystemClock
from procsched.errors import SchedulerStateError
from procsched.workers import verdict as verdicts
from procsched.workers.base import CLOSED_REASON, Ending
from procsched.workers.dispatch import Dispatcher
from procsched.workers.guard import Guard
from procsched.workers.loop import Loop
from procsched.workers.options import PoolOptions
from procsched.workers.sending import AHEAD_LEAST, MOST_SPARES, RUNNING_STATES, WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, ParamSpec, TypeVar

    from procsched._core.limits import Limits
    from procsched._parts import Inspection
    from procsched.protocols import CallSource, Clock
    from procsched.sandbox.policy import Sandbox
    from procsched.sandbox.prepare import Prepared, Report
    from procsched.workers.base import Call
    from procsched.workers.process import Worker

    P = ParamSpec("P")
    R = TypeVar("R")

# Seconds for which answers gather where a worker has more to do than that, and how many are enough: a wake-up costs as
# much as booking some of them.
GATHER, GATHERED = 0.0001, 16

# Descriptors of this process: of the pool itself, with those that a start needs for a moment; and of each worker.
POOL_DESCRIPTORS, WORKER_DESCRIPTORS = 14, 6

# What has become of the workers that are gone: each is counted under one of these. With those that are left they add up
# to `spawned`.
ENDS = ("left_workers", "killed_workers", "crashed_workers", "lost_workers")
_COUNTERS = (
    "spawned",
    "respawned",
    *ENDS,
    "recycled",
    "start_failures",
    "helper_restarts",
    "unkillable",
    "late_results",
)


class ProcessPool(Dispatcher):
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
        nice: added to their niceness, 0 to 19.
        capture_output: keep the end of stdout and stderr of every call in `record.output`.
        start_timeout: seconds that a worker may take to become ready.
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
        nice: int = 0,
        capture_output: bool = False,
        start_timeout: float = 30.0,
        limits: Limits | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        size = whole_number("workers", _default_size() if workers is None else workers)
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
        )
        self.sandbox = sandbox
        self._prepared: Prepared | None = None
        if sandbox is not None:
            options.check_confined()
            self._prepared = _prepared(sandbox, size)
        super().__init__(size, options)
        self.counters = dict.fromkeys(_COUNTERS, 0)  # guarded by lock
        self.paths: dict[str, int] = {}  # see `Stats.paths`; guarded by lock
        self.real_clock = True
        self.awake: Callable[[], float] = time.monotonic
        self._fleet_closing = False
        self._closed = Latch()
        self._pid = os.getpid()
        self._pack: Callable[..., Any] | None = None
        self._wears = self.options.max_runs is not None or self.options.max_rss is not None

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
            undo.callback(self.loop.close)
            if self._prepared is None:
                self.fleet = Fleet(self, guard)
            else:
                from procsched.workers.confined_fleet import ConfinedFleet

                self.fleet = ConfinedFleet(self, guard, self._prepared)
            undo.pop_all()
        try:
            self.loop.start()
        except BaseException:  # no thread can be started now
            self.fleet.release()
            self.loop.close()
            raise
        self._source = source
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
                WorkerStats(pid, _SHOWN.get(state, state.value), task_id, runs, resident_bytes(pid))
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
            self._closed.wait(max(0.0, timeout) + 1.0)
            self.loop.thread.join(1.0)

    def after_fork(self) -> None:
        """In a fork of the process: another thread may have held the lock, and there is none any more to let it go."""
        self.lock = threading.RLock()
        self.holds_lock = owner_check(self.lock)
        self.reading = threading.RLock()

    # -- the I/O thread ------------------------------------------------------------------------------------

    def _close(self, until: float) -> None:
        if not self._fleet_closing:
            self._fleet_closing = True
            self.fleet.close(until)

    def on_answers(self, worker: Worker, frames: list[wire.Frame]) -> None:
        """A worker has answered calls.

        Raises:
            WireError: one of the answers is none. Those before it count.
        """
        ended: list[tuple[Call, Ending]] = []
        with self.lock:
            over, worn, problem = self._book_locked(worker, frames, ended)
        if over:
            worker.kill()  # it is not used again, and there is nothing left to ask it
        elif worn:
            self.fleet.ensure()
        for call, ending in ended:
            self.end(call, ending)
        if isinstance(problem, wire.WireError):
            raise problem
        if problem is not None:
            self._pump_later(problem)

    def hear(self, worker: Worker, frames: list[wire.Frame]) -> None:
        """Book plain results in the thread that waits for one. A signal handler may raise in it, at any moment."""
        ended: list[tuple[Call, Ending]] = []
        try:
            over, worn, problem = self.whole(self._book_locked, worker, frames, ended)
            for call, ending in ended:
                call.ended(ending)
        except BaseException:
            self.loop.call_soon(functools.partial(self._end_all, ended))  # whom it was told does not mind
            raise
        if over or worn:
            self.loop.call_soon(worker.kill if over else self.fleet.ensure)
        if isinstance(problem, Exception):
            self.loop.call_soon(functools.partial(self._pump_later, problem))
        elif problem is not None:
            raise problem

    def _end_all(self, ended: list[tuple[Call, Ending]]) -> None:
        for call, ending in ended:
            self.end(call, ending)

    def _book_locked(
        self, worker: Worker, frames: list[wire.Frame], ended: list[tuple[Call, Ending]]
    ) -> tuple[bool, bool, BaseException | None]:
        """Take answers, and let the worker go on.

        Args:
            ended: where the calls that have ended are to be put, with their endings.
        Returns:
            Whether the worker has to be killed, whether it is worn out, and what was raised by an answer that is none
            (WireError; those before it count) or by the source of calls.
        """
        ending: Ending | None
        problem: BaseException | None = None
        over = worn = False
        now = time.monotonic()
        self.touched = worker
        ahead, pid = worker.ahead, worker.pid
        running = worker.state in RUNNING_STATES
        silent = worker.has_been_silent() and not self.options.capture_output
        for frame in frames:
            call = worker.call
            kind, flags, number, end, began, _third, meta, payload = frame
            if call is None or number != call.number or not running:
                self.counters["late_results"] += 1
                continue
            worker.runs += 1
            seconds, timeout = end - began, call.timeout
            if (
                kind == wire.DONE
                and not flags
                and not meta
                and silent
                and call.verdict is None
                and not call.capture_output
                and (timeout is None or (call.sent_ahead and seconds <= timeout))
            ):
                # As in `_take_answer_locked`, which is for all that is not as plain as this: most are.
                if call.pace is not None:
                    call.pace.note(seconds)
                ending = Ending(_SUCCEEDED, None, Sealed(payload), seconds if call.sent_ahead else None, pid)
            else:
                try:
                    ending = self._take_answer_locked(worker, call, frame)
                except wire.WireError as error:
                    problem = error
                    break
                if ending is None:
                    worker.note_begun_locked(call, now - began)  # it may have come with the answer before it
                    over = True
                    break  # nothing comes behind it
            if not call.told:
                call.told = True
                call.begun(now - began)
            ended.append((call, ending))  # first: see `hear`
            call.worker = None
            worker.call = ahead.popleft() if ahead else None
        if ended and not over:
            worn = worker.retiring or (self._wears and self._is_worn(worker))
            if worn:
                worker.retiring = True
                worker.recall_locked()
            worn = worker.go_on_locked(frames[-1].first) and worn
            if worker.call is not None and worker.call.verdict is not None:
                self.carry_out_kill(worker, worker.call)  # decided before we knew that it had begun
            if worn:
                worker.leave_locked()
                self.counters["recycled"] += 1
            self._take_late_locked()
            self.touched = None  # whatever comes now, this worker is whole
            try:
                self.pump_locked()  # first, so that the worker runs while these calls are booked
            except BaseException as error:
                self.mend_locked()
                problem = problem or error
            if len(frames) < GATHERED and len(worker.ahead) > AHEAD_LEAST:
                self.loop.pause(GATHER)
        self.touched = None
        return over, worn, problem

    def end(self, call: Call, ending: Ending) -> None:
        """Tell the owner of a call how it has ended. What that raises keeps nobody from going on."""
        try:
            call.ended(ending)
        except BaseException as error:
            self.loop.note(error)

    def _take_answer_locked(self, worker: Worker, call: Call, frame: wire.Frame) -> Ending | None:
        """Return how the call that runs has ended; None where the worker has to be killed before that is told."""
        _kind, flags, _number, end, began, third, _meta, _payload = frame
        seconds = end - began
        if call.pace is not None:
            call.pace.note(seconds)
        ending = self._read_answer(worker, call, frame)
        if call.sent_ahead:
            ending.seconds = seconds
            late = call.timeout is not None and seconds > call.timeout
        else:
            late = end > worker.hard_at
        if late and call.verdict is None:
            assert call.timeout is not None
            call.verdict = verdicts.timed_out(call.timeout)
            worker.retiring = True  # once it has ended what it has begun meanwhile
        watch = worker.watch
        if watch is not None and watch.call is call:
            if call.verdict is None:
                call.verdict = watch.judge_locked(ending, third if flags & wire.LARGE else 0)
                ending.limit = watch.exceeded
            if worker.state is WorkerState.BUSY:
                watch.end()
        if call.verdict is not None:
            # A verdict wins over an answer: whoever gave it was told so.
            self.counters["late_results"] += 1
            if worker.state is not WorkerState.BUSY:
                return None
            # It came back by itself, and nobody was signalled: the worker can go on.
            ending.outcome, ending.error = call.verdict
            ending.result = ending.exception = None
            ending.unloadable = False
        worker.add_output(ending, call)  # before the next call can write; a read that does not block
        if late:
            worker.recall_locked()
        # It may not let go of the memory, and be over the limit of the next run from its start.
        swollen = ending.limit is not None and ending.limit.startswith("memory=")
        if flags & wire.DIRTY or (late and not worker.ahead) or swollen:
            worker.held = ending  # told when its tree is gone
            self.counters["recycled"] += 1
            return None
        return ending

    def _read_answer(self, worker: Worker, call: Call, frame: wire.Frame) -> Ending:
        kind, flags, _number, _end, _began, _third, meta, payload = frame
        if kind == wire.DONE:
            ending = Ending(Outcome.SUCCEEDED)
            ending.result = Sealed(payload)
        else:
            text, traceback, carried, obstacle = wire.open_failure(payload)
            if flags & wire.SOFT and call.soft_timeout is not None:
                ending = Ending(*verdicts.soft_timed_out(call.soft_timeout))
            else:
                ending = Ending(Outcome.FAILED, text)
            if flags & wire.UNLOADABLE:
                ending.unloadable = True
                ending.error = text.removeprefix("Unloadable: ")
            ending.traceback = traceback
            ending.exception = None if carried is None else Sealed(carried)
            ending.obstacle = obstacle
        ending.pid = worker.pid
        if meta:
            cpu, peak = wire.open_facts(meta)
            if cpu >= 0:
                ending.cpu_seconds = cpu
                worker.cpu_base += cpu
            ending.peak_rss = peak or None
        return ending

    def _is_worn(self, worker: Worker) -> bool:
        options = self.options
        if options.max_runs is not None and worker.runs >= options.max_runs:
            return True
        return options.max_rss is not None and (resident_bytes(worker.pid) or 0) > options.max_rss

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

    def count(self, name: str) -> None:
        """Add one to a counter."""
        with self.lock:
            self.counters[name] += 1

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
        self._closed.set()
        self.loop.stop()


_SUCCEEDED = Outcome.SUCCEEDED  # looking up a member of an enum takes its time
# States that `WorkerStats` does not tell apart.
_SHOWN = {WorkerState.FAILING: "starting", WorkerState.DUMPING: "asked", WorkerState.LEAVING: "dying"}


def check_descriptors(size: int) -> None:
    """Refuse a pool for which this process has no descriptors: else it would be found out in the midst of the work.

    Raises:
        OSError: EMFILE, with the figures and what to do.
    """
    limit, used = _system.descriptor_limit(), _system.open_descriptors()
    needed = POOL_DESCRIPTORS + WORKER_DESCRIPTORS * (size + 1)  # with a spare
    if used + needed > limit:
        raise OSError(
            errno.EMFILE,
            f"a pool of {size} workers needs up to {needed} descriptors, and this process has {used} open of the "
            f"{limit} that it may have (RLIMIT_NOFILE): raise the limit (ulimit -n), close some, or use fewer workers",
        )


def _default_size() -> int:
    """Return the number of CPUs, or fewer where half of the descriptors would not do for so many workers."""
    most = (_system.descriptor_limit() // 2 - POOL_DESCRIPTORS) // WORKER_DESCRIPTORS - 1
    return max(1, min(_cpus(), most))


def _prepared(sandbox: Sandbox, size: int) -> Prepared:
    """Return a sandbox that was tried out."""
    from procsched.errors import ValidationError
    from procsched.sandbox.prepare import prepare

    prepared = prepare(sandbox)
    needed = size + MOST_SPARES + 2
    if sandbox.run_as is not None and len(sandbox.run_as) < needed:
        raise ValidationError(
            f"run_as has {len(sandbox.run_as)} uids, and {size} workers need {needed}: with those that wait and those "
            "that are just ending"
        )
    return prepared


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
