"""The process pool: which worker runs what, how many there are, and what happens when one dies.

    scheduler / executor                                     guard, helper
      | pump()  kill()            call.ended()                   ^
      v                               |                          | spawn, ask / spawned, gone
    ProcessPool  -- next_call() --> source                       |
      |   any thread, lock held       ^                          |
      |                               |                          v
      +-- Worker.assign_locked        +---- I/O thread: Loop, Launcher, Worker.on_...
            writes, never blocks                     one socket and one pid descriptor per worker

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
import pickle
import sys
import threading
import time

from procsched import _system
from procsched._core import wire
from procsched._core.models import Outcome, Sealed, WorkerStats, finite_seconds
from procsched.child.protocol import PAGE_SIZE, REASON_KILL
from procsched.clock import SystemClock
from procsched.errors import SchedulerStateError, ValidationError
from procsched.workers import packing
from procsched.workers import verdict as verdicts
from procsched.workers.base import Ending
from procsched.workers.launcher import Launcher
from procsched.workers.loop import READ, Alarm, Loop
from procsched.workers.process import RUNNING_STATES, Worker, WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from procsched.protocols import CallSource, Clock
    from procsched.workers.base import Call

SPARES = 1  # workers kept ready beyond those that run, so that a kill or a new call costs no start
FIRST_BACKOFF = 0.1  # seconds before the second try to start what failed to start
LAST_BACKOFF = 5.0

logger = logging.getLogger("procsched")


class ProcessPool(Alarm):
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
    Thread safety: `pump`, `kill` and `stats` may be called from any thread. A pool serves one scheduler or executor.
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
        super().__init__()
        if workers is None:
            workers = (
                len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            )
        self.size = _count("workers", workers)
        self.max_runs = (
            None if max_runs_per_worker is None else _count("max_runs_per_worker", max_runs_per_worker)
        )
        self.max_rss = (
            None if max_rss_per_worker is None else _count("max_rss_per_worker", max_rss_per_worker)
        )
        self.start_timeout = finite_seconds("start_timeout", start_timeout, above=True)
        self.capture_output = bool(capture_output)
        if initializer is not None and not callable(initializer):
            raise ValidationError(
                f"initializer must be callable, not {type(initializer).__name__} {initializer!r}"
            )
        self._initializer = None if initializer is None else packing.pack(initializer, tuple(initargs), {})
        if isinstance(preload, str) or not all(isinstance(name, str) for name in preload):
            raise ValidationError(f"preload must be a sequence of module names, not {preload!r}")
        self._preload = tuple(preload)
        if isinstance(nice, bool) or not isinstance(nice, int) or not 0 <= nice <= 19:
            raise ValidationError(f"nice must be a whole number from 0 to 19, not {nice!r}")
        self._nice = nice
        self._env = None if env is None else {str(name): str(value) for name, value in env.items()}
        self._cwd = None if cwd is None else os.path.abspath(os.fspath(cwd))
        # Guards the workers' states and calls, the idle list, `running` and the page slots. Taken by any thread that
        # pumps or kills and by the I/O thread; held while the source picks a call and while its frame is written.
        self.lock = threading.Lock()
        self.running = 0  # workers in RUNNING_STATES; guarded by lock
        self.real_clock = True
        self.pages: memoryview = memoryview(b"").cast("Q")
        self.loop: Loop  # from `start` on
        self.awake: Callable[[], float] = time.monotonic
        self._idle: list[Worker] = []  # guarded by lock; the last one is the warmest
        self._workers: dict[
            int, Worker
        ] = {}  # all that are not gone; changed by the I/O thread with the lock
        self._free_pages: list[int] = []
        self._source: CallSource | None = None
        self._launcher: Launcher | None = None
        self._lost_launchers: list[Launcher] = []
        self._page_fd = -1
        self._page_map: mmap.mmap | None = None
        self._numbers = 0
        self._calls = 0
        self._backoff = 0.0  # seconds; 0 while starts succeed
        self._not_before = -math.inf  # steady time before which nothing is started
        self._start_wanted = False  # a start is asked for and not looked at yet; guarded by lock
        self._closing = False  # guarded by lock
        self._closed = threading.Event()
        self._closer: _Closer | None = None  # from the beginning of the shutdown on
        self._pid = os.getpid()
        self._sent_environ: dict[str, str] = {}
        self._counters = dict.fromkeys(
            (
                "spawned",
                "killed_workers",
                "recycled",
                "start_failures",
                "helper_restarts",
                "unkillable",
                "late_results",
            ),
            0,
        )

    # -- for the owner -------------------------------------------------------------------------------------

    def pack(self, action: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Pickle a call.

        Raises:
            TaskSerializationError: something in it cannot be pickled; says what and where.
        """
        return packing.pack(action, args, kwargs)

    def start(self, source: CallSource, clock: Clock) -> None:
        """Begin to serve `source`: start the I/O thread, the helper and a first worker."""
        if self._source is not None:
            raise SchedulerStateError("this pool already serves a scheduler or an executor; make a new one")
        self._source = source
        self.real_clock = isinstance(clock, SystemClock)
        self.awake = getattr(clock, "awake", clock.monotonic)
        self.loop = Loop("procsched-io", self._on_loop_error)
        slots = 2 * self.size + 16
        self._page_fd = _memory_file(slots * PAGE_SIZE)
        self._page_map = mmap.mmap(self._page_fd, slots * PAGE_SIZE)
        self.pages = memoryview(self._page_map).cast("Q")
        self._free_pages = list(range(slots))
        self.loop.alarms.add(self)
        self.loop.start()
        self.loop.call_soon(self._ensure)

    def pump(self) -> None:
        """Hand calls to idle workers while the source has some. Any thread; never blocks."""
        while True:
            with self.lock:
                if self._closing or self._source is None:
                    return
                if not self._idle or self.running >= self.size:
                    wanted = self.running < self.size and not self._start_wanted
                    if wanted:
                        self._start_wanted = True
                    break
                worker = self._idle[-1]
                call = self._source.next_call()
                if call is None:
                    return
                self._idle.pop()
                self.running += 1
                self._calls += 1
                call.worker = worker
                worker.assign_locked(call, self._calls)
        if wanted:
            self.loop.call_soon(self._ensure)

    def kill(self, call: Call, reason: str) -> bool:
        """End a running call, grace first. It is decided here: no later answer of the call counts.

        Args:
            reason: why, in the words of `record.error`.
        Returns:
            False when the call is not running, or its end was decided before.
        """
        with self.lock:
            worker: Worker | None = call.worker
            if (
                worker is None
                or worker.call is not call
                or worker.verdict is not None
                or worker.held is not None
            ):
                return False
            worker.verdict = (Outcome.KILLED, reason)
        self.loop.call_soon(functools.partial(self._carry_out_kill, worker, call))
        return True

    def poke(self) -> None:
        """Look at the deadlines: an injected clock was moved. Any thread."""
        if not self.real_clock:
            self.loop.call_soon(self._look_at_clock)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline by an injected clock's `awake` seconds, or None."""
        if self.real_clock:
            return None
        with self.lock:
            times = [
                min(worker.fake_soft, worker.fake_hard)
                for worker in self._workers.values()
                if worker.state is WorkerState.BUSY
            ]
        earliest = min(times, default=math.inf)
        return None if earliest == math.inf else earliest

    def workers_locked(self) -> list[Worker]:
        """Return the workers that are not gone. The caller holds the lock."""
        return list(self._workers.values())

    def stats(self) -> tuple[tuple[WorkerStats, ...], dict[str, int]]:
        """Return the workers that are not gone, and the counters. Any thread."""
        with self.lock:
            workers = [
                (worker.pid, worker.state.value, worker.call.task_id if worker.call else None, worker.runs)
                for worker in self._workers.values()
            ]
            counters = dict(self._counters)
        return (
            tuple(
                WorkerStats(pid, _shown(state), task_id, runs, resident_bytes(pid))
                for pid, state, task_id, runs in workers
            ),
            counters,
        )

    def shutdown(self, timeout: float) -> None:
        """End every worker, the helper and the I/O thread; calls that still run end as KILLED.

        Returns when nothing of the pool is left, at the latest after `timeout` seconds.
        """
        with self.lock:
            first = not self._closing
            self._closing = True
        if self._pid != os.getpid():
            return  # a fork: the processes are the parent's
        if self._source is None:
            return
        if first:
            self.loop.call_soon(functools.partial(self._begin_shutdown, time.monotonic() + max(0.0, timeout)))
        if threading.current_thread() is not self.loop.thread:
            self._closed.wait(timeout + 1.0)
            self.loop.thread.join(1.0)

    # -- the I/O thread: workers come ----------------------------------------------------------------------

    def _ensure(self) -> None:
        """Start workers until there are enough for what runs, with a spare."""
        with self.lock:
            self._start_wanted = False
            if self._closing:
                return
            coming = sum(
                worker.state in (WorkerState.STARTING, WorkerState.IDLE) for worker in self._workers.values()
            )
            missing = min(SPARES, self.size + SPARES - self.running) - coming
        if missing <= 0:
            return
        now = time.monotonic()
        if now < self._not_before:
            self.alarm = self._not_before
            self.loop.hurry(self.alarm)
            return
        try:
            if self._launcher is None:
                self._launch()
            for _ in range(missing):
                self._spawn()
        except Exception as error:
            self._start_failed(f"no worker could be started: {type(error).__name__}: {error}", None)

    def on_alarm(self, now: float) -> None:
        """The back-off before the next start is over."""
        self.alarm = math.inf
        self._ensure()

    def _launch(self) -> None:
        launcher = Launcher(self.loop, self)
        environ = dict(os.environ) if self._env is None else self._env
        config = {
            "environ": environ,
            "path": self.import_path(),
            "preload": self._preload,
            "cloudpickle": "cloudpickle" in sys.modules,
        }
        launcher.start(config, self._page_fd)
        self._sent_environ = environ
        self._launcher = launcher

    def _spawn(self) -> None:
        import socket

        assert self._launcher is not None
        if not self._free_pages:
            raise OSError("too many workers that cannot be ended")
        environ = dict(os.environ) if self._env is None else self._env
        path = self.import_path()
        start = {
            "path": path,
            "argv": list(sys.argv),
            "environ": None if environ == self._sent_environ else environ,
            "cwd": self._cwd or _working_directory(),
            "umask": _umask(),
            "nice": self._nice,
            "initializer": self._initializer,
        }
        ours, theirs = socket.socketpair()
        side_read = side_write = -1
        try:
            side_read, side_write = os.pipe()
            ours.setblocking(False)
            os.set_blocking(side_read, False)
            self._numbers += 1
            page = self._free_pages.pop()
            worker = Worker(self, self._numbers, ours, side_read, page)
            worker.page[0] = worker.page[1] = 0
            self._launcher.spawn(worker.number, (theirs.fileno(), side_write), {"page": page})
        except BaseException:
            ours.close()
            if side_read >= 0:
                os.close(side_read)
            raise
        finally:
            theirs.close()
            if side_write >= 0:
                os.close(side_write)
        worker.path = path
        with self.lock:
            self._workers[worker.number] = worker
            self._counters["spawned"] += 1
        self.loop.watch(ours.fileno(), READ, worker.on_socket)
        self.loop.watch(side_read, READ, worker.on_side)
        self.loop.alarms.add(worker)
        worker.alarm = time.monotonic() + self.start_timeout
        self.loop.hurry(worker.alarm)
        worker.send_start(pickle.dumps(start, 5))

    def on_spawned(self, number: int, pid: int, pidfd: int | None) -> None:
        """The helper has forked a worker."""
        worker = self._workers.get(number)
        if worker is None:
            if pidfd is not None:
                os.close(pidfd)
            return
        worker.pid = pid
        worker.pidfd = pidfd
        worker.direct = pidfd is not None and _system.offers("subreaper")
        if worker.state is WorkerState.DYING:
            worker.signal(9)
        self.on_ready(worker)

    def on_ready(self, worker: Worker) -> None:
        """A worker may be ready: it is when it has said so and we know its process."""
        with self.lock:
            if not worker.ready or worker.pid is None or worker.state is not WorkerState.STARTING:
                return
            worker.state = WorkerState.IDLE
            worker.alarm = math.inf
            self._idle.append(worker)
            self._backoff = 0.0
        self.pump()

    def on_spawn_failed(self, number: int, error: str, traceback: str | None) -> None:
        """The helper could not fork."""
        worker = self._workers.get(number)
        if worker is not None:
            self._remove(worker)
            self._start_failed(f"the worker could not start: {error}", traceback)

    # -- the I/O thread: calls end -------------------------------------------------------------------------

    def on_answer(self, worker: Worker, frame: wire.Frame) -> None:
        """A worker has answered its call."""
        with self.lock:
            call = worker.call
            if call is None or frame.number != worker.call_number or worker.state not in RUNNING_STATES:
                self._counters["late_results"] += 1
                return
            late = self.real_clock and frame.first > worker.hard_at
            decided = worker.verdict is not None
            if late and not decided:
                assert call.timeout is not None
                worker.verdict = verdicts.timed_out(call.timeout)
            if late or decided:
                self._counters["late_results"] += 1
        if late or decided:
            worker.kill()  # it will not be used again, and nothing is left to ask it
            return
        ending = self._read_answer(worker, call, frame)
        worker.runs += 1
        dirty = bool(frame.flags & wire.DIRTY) or ending.outcome is Outcome.TIMED_OUT
        worn = self._is_worn(worker)
        worker.alarm = math.inf
        with self.lock:
            if worker.verdict is not None:  # a kill came first after all
                decided = True
            elif dirty:
                worker.held = ending  # told when its tree is gone
                self._counters["recycled"] += 1
            else:
                worker.call = None
                call.worker = None
                self.running -= 1
                if not worn:
                    worker.state = WorkerState.IDLE
                    self._idle.append(worker)
        if decided or dirty:
            worker.kill()
            return
        if worn:
            self._counters["recycled"] += 1
            worker.leave()
            self._ensure()
        call.ended(ending)
        self.pump()

    def _read_answer(self, worker: Worker, call: Call, frame: wire.Frame) -> Ending:
        if frame.kind == wire.DONE:
            ending = Ending(Outcome.SUCCEEDED)
            ending.result = Sealed(frame.payload)
        else:
            text, traceback, carried = pickle.loads(frame.payload)
            if frame.flags & wire.SOFT and call.soft_timeout is not None:
                ending = Ending(*verdicts.soft_timed_out(call.soft_timeout))
            else:
                ending = Ending(Outcome.FAILED, text)
            ending.traceback = traceback
            ending.exception = None if carried is None else Sealed(carried)
        ending.pid = worker.pid
        if frame.second >= 0:
            ending.cpu_seconds = frame.second
            worker.cpu_base += frame.second
        if frame.third:
            ending.peak_rss = frame.third
        if call.capture_output or self.capture_output:
            for name, value in worker.take_output(wanted=True).items():
                setattr(ending, name, value)
        return ending

    def _is_worn(self, worker: Worker) -> bool:
        if self.max_runs is not None and worker.runs >= self.max_runs:
            return True
        return self.max_rss is not None and (resident_bytes(worker.pid) or 0) > self.max_rss

    def _carry_out_kill(self, worker: Worker, call: Call) -> None:
        if worker.call is call and worker.verdict is not None:
            worker.stop(worker.verdict, REASON_KILL)

    def _look_at_clock(self) -> None:
        awake = self.awake()
        for worker in list(self._workers.values()):
            worker.look_at_clock(awake)

    # -- the I/O thread: workers go ------------------------------------------------------------------------

    def ask(self, worker: Worker) -> None:
        """Have a worker and its tree asked to stop."""
        if self._launcher is not None:
            self._launcher.ask(worker.number)

    def kill_by_helper(self, worker: Worker) -> None:
        """Have a worker killed by the helper, which knows its pid."""
        if self._launcher is not None:
            self._launcher.kill(worker.number)

    def on_dying(self, worker: Worker, *, was_running: bool) -> None:
        """A worker was sent SIGKILL: its slot is free."""
        with self.lock:
            self._counters["killed_workers"] += 1
            if was_running:
                self.running -= 1
            if worker in self._idle:
                self._idle.remove(worker)
        self._ensure()
        self.pump()

    def on_gone(
        self, number: int, status: int, at: float, cpu: float, rss: int, stuck: tuple[int, ...]
    ) -> None:
        """A worker is dead and reaped, and all of its tree has been sent SIGKILL."""
        worker = self._workers.get(number)
        if worker is None:
            return
        if worker.call is not None and worker.held is None:
            worker.read(limit=1 << 20)  # an answer that was written whole before the death counts
        if worker.state is WorkerState.GONE:
            return
        with self.lock:
            if worker.state in RUNNING_STATES:
                self.running -= 1
            was, worker.state = worker.state, WorkerState.GONE
            if worker in self._idle:
                self._idle.remove(worker)
            call, worker.call = worker.call, None
            if call is not None:
                call.worker = None
            if stuck:
                self._counters["unkillable"] += len(stuck)
        ending = worker.held
        if call is not None and ending is None:
            outcome, error = verdicts.decide_death(worker.verdict, status, at, worker.hard_at, call.timeout)
            ending = Ending(outcome, error)
            ending.pid = worker.pid
            ending.cpu_seconds = max(0.0, cpu - worker.cpu_base)
            ending.peak_rss = rss or None
            verdicts.facts_of(ending, status)
            found = worker.take_output(wanted=call.capture_output or self.capture_output)
            for name, value in found.items():
                setattr(ending, name, value)
        never_ready = not worker.ready and was is not WorkerState.LEAVING
        start_error = worker.start_error
        if never_ready and start_error is None:
            words = verdicts.exit_words(status)[0]
            start_error = (
                f"the worker could not start: it died ({words})",
                worker.take_output(wanted=False)["stack"],
            )
        elif never_ready and start_error is not None and start_error[1] is None:
            start_error = (start_error[0], worker.take_output(wanted=False)["stack"])
        self._remove(worker)
        if call is not None and ending is not None:
            ending.error = verdicts.note_stuck(ending.error, stuck)
            call.ended(ending)
        if self._closing:
            self.check_empty()
        elif never_ready and start_error is not None:
            self._start_failed(*start_error)
        else:
            self._ensure()
            self.pump()

    def _remove(self, worker: Worker) -> None:
        with self.lock:
            self._workers.pop(worker.number, None)
            worker.state = WorkerState.GONE
            if worker in self._idle:
                self._idle.remove(worker)
        worker.close()
        self._free_pages.append(worker.page_index)

    def on_unkillable(self, worker: Worker) -> None:
        """The kernel has not ended a worker within five seconds: say so, and go on watching it."""
        with self.lock:
            call, worker.call = worker.call, None
            if call is not None:
                call.worker = None
            self._counters["unkillable"] += 1
            verdict = worker.verdict or (Outcome.CRASHED, "worker stuck")
        text = (
            f"worker {worker.pid} has not ended {verdicts_wait()} s after SIGKILL: it is stuck in the kernel"
        )
        self._problem(text)
        if call is not None:
            ending = worker.held or Ending(verdict[0], f"{verdict[1]}; {text}")
            ending.pid = worker.pid
            call.ended(ending)

    def on_helper_silent(self) -> None:
        """A worker is dead and the helper does not report it: the helper itself is stuck."""
        if self._launcher is not None:
            self._problem(f"the helper process {self._launcher.helper_pid} does not answer; it is replaced")
            self._launcher.destroy()

    def on_helper_lost(self, reason: str, preload: tuple[str, str] | None) -> None:
        """The helper has ended, and its workers with it."""
        self._launcher = None
        lost = list(self._workers.values())
        ended: list[tuple[Call, Ending]] = []
        for worker in lost:
            if worker.call is not None and worker.held is None:
                worker.read(limit=1 << 20)
            with self.lock:
                if worker.state in RUNNING_STATES:
                    self.running -= 1
                call, worker.call = worker.call, None
                if call is not None:
                    call.worker = None
            if call is not None:
                ending = worker.held
                if ending is None:
                    outcome, error = worker.verdict or (Outcome.LOST, f"{reason} while the run was going on")
                    ending = Ending(outcome, error, pid=worker.pid)
                ended.append((call, ending))
            self._remove(worker)
        closing = self._closing
        if not closing:
            with self.lock:
                self._counters["helper_restarts"] += 1
            if preload is None:
                self._problem(f"{reason}; it is started anew")
                self._slow_down()
        for call, ending in ended:
            call.ended(ending)
        if closing:
            self._finish_shutdown()
        elif preload is not None:
            self._start_failed(*preload)
        else:
            self._ensure()

    # -- the I/O thread: starting fails --------------------------------------------------------------------

    def _slow_down(self) -> None:
        self._backoff = min(max(FIRST_BACKOFF, self._backoff * 2), LAST_BACKOFF)
        self._not_before = time.monotonic() + self._backoff

    def _start_failed(self, error: str, traceback: str | None) -> None:
        """A worker could not be started: an error for those who wait if nobody else can serve them."""
        self._slow_down()
        with self.lock:
            self._counters["start_failures"] += 1
            serving = any(
                worker.state in RUNNING_STATES or worker.state is WorkerState.IDLE
                for worker in self._workers.values()
            )
        self._problem(error)
        if serving:
            self._ensure()
            return
        while True:
            with self.lock:
                call = None if self._source is None or self._closing else self._source.next_call()
            if call is None:
                return
            call.ended(Ending(Outcome.CRASHED, error, traceback=traceback))

    def _problem(self, text: str) -> None:
        logger.warning("procsched: %s", text)
        if self._source is not None:
            self._source.pool_problem(text)

    def _on_loop_error(self, error: BaseException) -> None:
        if self._source is not None:
            self._source.pool_problem(f"an error in the I/O thread: {type(error).__name__}: {error}")

    # -- the I/O thread: the end ---------------------------------------------------------------------------

    def _begin_shutdown(self, until: float) -> None:
        for worker in list(self._workers.values()):
            if worker.state is WorkerState.IDLE:
                with self.lock:
                    self._idle.clear()
                worker.leave()
            elif worker.state is not WorkerState.LEAVING:
                with self.lock:
                    if worker.call is not None and worker.verdict is None:
                        worker.verdict = (Outcome.KILLED, "killed: the pool was shut down")
                worker.kill()
        self.alarm = math.inf
        self._closer = _Closer(self, min(until, time.monotonic() + 1.5))
        self.loop.alarms.add(self._closer)
        self.loop.hurry(self._closer.alarm)
        self.check_empty()

    def check_empty(self) -> None:
        """When the last worker is gone, the helper may go."""
        if self._closer is not None and not self._workers:
            if self._launcher is None:
                self._finish_shutdown()
            elif not self._launcher.closing:
                self._launcher.stop()

    def _finish_shutdown(self) -> None:
        if self._page_map is not None:
            self.pages.release()
            self._page_map.close()
            os.close(self._page_fd)
            self._page_map = None
        self._closed.set()
        self.loop.stop()

    # -- small things --------------------------------------------------------------------------------------

    def import_path(self) -> list[str]:
        """Return a copy of `sys.path` with the working directory in place of the empty entry."""
        return [entry or os.getcwd() for entry in sys.path]


class _Closer(Alarm):
    """Hurries a shutdown along: after a while the helper is told to end what is left, then it is killed."""

    __slots__ = ("pool", "steps")

    def __init__(self, pool: ProcessPool, at: float) -> None:
        super().__init__()
        self.pool = pool
        self.alarm = at
        self.steps = 0

    def on_alarm(self, now: float) -> None:
        """The workers, or then the helper, have taken too long."""
        self.steps += 1
        launcher = self.pool._launcher
        if launcher is None:
            self.alarm = math.inf
            return
        self.alarm = now + 1.0
        self.pool.loop.hurry(self.alarm)
        if self.steps == 1 and not launcher.closing:
            launcher.stop()
        else:
            launcher.destroy()


def verdicts_wait() -> str:
    """Return how long a process is given to die, in words."""
    from procsched.workers.process import DEATH_WAIT

    return f"{DEATH_WAIT:g}"


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValidationError(f"{name} must be a whole number of at least 1, not {value!r}")
    return value


def _shown(state: str) -> str:
    return {"dumping": "asked", "leaving": "dying"}.get(state, state)


def _memory_file(size: int) -> int:
    """Return a descriptor of `size` zero bytes that nobody else can find and that goes with its users."""
    if _system.offers("memfd"):
        fd = os.memfd_create("procsched", os.MFD_CLOEXEC)
    else:
        import tempfile

        fd, path = tempfile.mkstemp(prefix="procsched-")
        os.unlink(path)
    os.ftruncate(fd, size)
    return fd


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed: the worker keeps the helper's
        return None


def _umask() -> int | None:
    """Return the process's umask without changing it, or None where that cannot be read."""
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        pass
    return None


def resident_bytes(pid: int | None) -> int | None:
    """Return the resident memory of a process, or None where it is gone or nobody can say."""
    if pid is None:
        return None
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return None
