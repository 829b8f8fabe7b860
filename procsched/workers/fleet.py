"""Keeps a pool in workers: starts them ahead of need, notices their end, waits longer when starting fails.

    ProcessPool --wants--> Fleet --Launcher--> guard, helper --> worker processes
        ^                    |
        '--- call ends ------'     (the worker died, or the helper with all of them)

Everything here runs on the pool's I/O thread, except what says otherwise; what other threads read is changed with the
pool's lock.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import sys
import time

from procsched import _system
from procsched._core.backoff import LONG_LIFE, Backoff
from procsched._core.models import Outcome
from procsched.child.protocol import (
    ANSWERED,
    ASK_NUMBER,
    CHILD_PEAK_BEFORE,
    RESIDENT_BEFORE,
    STARTED,
    USED_BEFORE,
)
from procsched.workers import verdict as verdicts
from procsched.workers.base import CLOSED_REASON, Ending
from procsched.workers.guard import Guard
from procsched.workers.launcher import Launcher
from procsched.workers.loop import READ, Alarm
from procsched.workers.pages import Pages
from procsched.workers.process import DEATH_WAIT, Worker
from procsched.workers.sending import (
    MOST_SPARES,
    RUNNING_STATES,
    Ends,
    WorkerState,
    import_path,
    working_directory,
)
from procsched.workers.tokens import Tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched.workers.base import Call
    from procsched.workers.pool import ProcessPool

# Bytes on the way to either side, each of which a small frame takes a kilobyte of; the kernel doubles it (socket(7)).
# Twice what is usual: a worker that answers brief calls is not to stop where a thread that submits keeps the I/O thread
# from reading for the five milliseconds of a switch interval.
UNREAD = 1 << 18
MODULES_KEPT = 16  # imported by spares
# States of a worker that will be given a call, or whose failure to start is about to decide when the next is tried.
_SPARE = (WorkerState.STARTING, WorkerState.FAILING, WorkerState.IDLE)
# Seconds from a death until it is made up for: so long a thread that was told of it takes to be running, if this one
# does not keep the interpreter.
AFTER_YOU = 0.0002
LEAVE_WAIT = 1.5  # seconds that idle workers get to exit by themselves at a shutdown


class Fleet(Alarm):
    """The workers of one pool, and the helper that they come from.

    Attributes:
        workers: all that are not gone, by number; changed with the pool's lock.
        backoff: when the next may be started, and why not at once.
        pages: the memory shared with them.
    """

    def __init__(self, pool: ProcessPool, guard: Guard | None) -> None:
        super().__init__()
        self.pool = pool
        self.loop = pool.loop
        self.workers: dict[int, Worker] = {}
        self.pages = Pages(2 * pool.size + 16)
        self.launcher: Launcher | None = None  # other threads look at it
        self._numbers = 0
        self._sent_environ: dict[str, str] = {}  # with the path, what the helper has, and so a new worker
        self._sent_path: list[str] = []
        self.backoff = Backoff()
        self._vacant = 0  # workers that are gone and not replaced; guarded by the pool's lock
        self._spares = 1
        self._by_value = False  # whether the helper knows that calls are pickled by value
        # What the calls of late had to import, the newest last; None once a spare has failed over it.
        self._modules: dict[str, None] | None = {}
        self._closing = False
        self._close_steps = 0
        self._guard = guard
        # Pid descriptors of workers whose helper has ended, and which are about to.
        self._mourned: set[int] = set()

    # -- workers come --------------------------------------------------------------------------------------

    def ensure(self, *, wanted: bool = False) -> None:
        """Start workers until there are enough for what runs, with a spare.

        Args:
            wanted: whether a call waits. Only then is a start tried again that has failed before.
        """
        if self.backoff.early_deaths and any(worker.runs for worker in self.workers.values()):
            self.backoff.served()
        if self._closing or (self.backoff.seconds and not wanted):
            return
        states = [worker.state for worker in self.workers.values()]
        missing = self._spares - sum(map(states.count, _SPARE))
        if missing <= 0:
            return
        if WorkerState.DYING in states and self.pool.running >= self.pool.size:
            return  # nobody waits for a start; the helper is to report the death first, not to fork
        now = time.monotonic()
        if now < self.backoff.not_before:
            self.alarm = self.backoff.not_before
            self.loop.hurry(self.alarm)
            return
        try:
            if self.launcher is None:
                self._launch()
            assert self.launcher is not None
            if not self._by_value and "cloudpickle" in sys.modules:
                self._by_value = True
                self.launcher.prepare_by_value()
            spare = not wanted or self.pool.running >= self.pool.size  # nobody waits for it
            for _ in range(missing):
                self._spawn(spare=spare)
        except Exception as error:  # no descriptors, processes or memory; or no interpreter to start
            self._start_failed(
                f"no worker could be started: {type(error).__name__}: {error}{_system.remedy(error)}", None
            )

    def on_alarm(self, now: float) -> None:
        """The back-off before the next start is over; or a shutdown takes too long."""
        self.alarm = math.inf
        if self._closing:
            self._close_further(now)
        else:
            self.ensure(wanted=True)

    def _launch(self) -> None:
        launcher = Launcher(self.loop, self)
        options = self.pool.options
        environ = dict(os.environ) if options.env is None else options.env
        path = import_path()
        self._by_value = "cloudpickle" in sys.modules
        config = {
            "environ": environ,
            "path": path,
            "preload": options.preload,
            "by_value": self._by_value,
        }
        if self._guard is None:
            self._guard = Guard()
        launcher.start(self._guard, config, self.pages.fd)
        self._guard = None
        self._sent_environ, self._sent_path = environ, path
        self.launcher = launcher

    def _spawn(self, *, spare: bool) -> None:
        import socket

        assert self.launcher is not None
        with contextlib.ExitStack() as undo:  # whatever is missing in between, nothing stays
            ours, theirs = _system.socket_pair(socket)
            undo.callback(ours.close)
            with theirs:
                for end in (ours, theirs):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD)
                side_read, side_write = _system.pipe()
                undo.callback(os.close, side_read)
                their_parcels = None
                try:
                    parcels, their_parcels = _system.socket_pair(socket, type=socket.SOCK_DGRAM)
                    undo.callback(parcels.close)
                    ours.setblocking(False)
                    parcels.setblocking(False)
                    os.set_blocking(side_read, False)
                    number = self.next_number()
                    page = self.pages.take()
                    undo.callback(self.pages.give_back, page)
                    tokens = Tokens()
                    undo.callback(tokens.close)
                    ends = Ends(ours, side_read, tokens, page, parcels)
                    worker = Worker(self.pool, self, number, ends)
                    undo.callback(worker.times.release)
                    undo.callback(worker.page.release)
                    worker.page[ASK_NUMBER] = worker.page[STARTED] = worker.page[ANSWERED] = 0
                    worker.page[USED_BEFORE] = worker.page[RESIDENT_BEFORE] = 0
                    worker.page[CHILD_PEAK_BEFORE] = 0
                    fds = (theirs.fileno(), side_write, tokens.reader, their_parcels.fileno())
                    self.launcher.spawn(worker.number, fds, {"page": page, "spare": spare})
                finally:
                    os.close(side_write)
                    if their_parcels is not None:
                        their_parcels.close()
            undo.pop_all()
        self._enlist(worker)
        self.loop.watch(ours.fileno(), READ, worker.on_socket)
        self.loop.watch(worker.output.fd, READ, worker.on_side)
        self.loop.alarms.add(worker)
        worker.alarm = time.monotonic() + self.pool.options.start_timeout
        self.loop.hurry(worker.alarm)
        worker.seen_path = list(sys.path)
        worker.path = import_path()
        worker.send_start(pickle.dumps(self._start_message(worker, spare=spare), 5))

    def _enlist(self, worker: Worker) -> None:
        with self.pool.lock:
            self.workers[worker.number] = worker
            self.pool.counters["spawned"] += 1
            if self._vacant:
                self._vacant -= 1
                self.pool.counters["respawned"] += 1

    def _start_message(self, worker: Worker, *, spare: bool) -> dict[str, Any]:
        """Return what a new worker is to become."""
        import resource

        options = self.pool.options
        for other in self.workers.values():
            self._note_module(other.call)
        worker.imports = bool(spare and self._modules)
        environ = dict(os.environ) if options.env is None else options.env
        return {
            "path": None if worker.path == self._sent_path else worker.path,
            "modules": list(self._modules or ()) if spare else [],
            "argv": [str.__str__(str(argument)) for argument in sys.argv],
            "environ": None if environ == self._sent_environ else environ,
            "cwd": options.cwd or working_directory(),
            "umask": _system.umask(),
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            "nice": options.nice,
            "initializer": options.initializer,
        }

    def _note_module(self, call: Call | None) -> None:
        """Remember what a call had to import, so that the next spare has done it before anybody waits for it."""
        modules = self._modules
        if call is None or call.pace is None or modules is None:
            return
        module = call.pace.module
        if module:
            modules.pop(module, None)
            modules[module] = None
            if len(modules) > MODULES_KEPT:
                del modules[next(iter(modules))]

    def went(self, path: str) -> None:
        """Count a way that was gone: see `Stats.paths`."""
        self.pool.went(path)

    def on_spawned(self, number: int, pid: int, pidfd: int | None) -> None:
        """The helper has forked a worker."""
        worker = self.workers.get(number)
        if worker is None:
            if pidfd is not None:
                os.close(pidfd)
            return
        worker.pid = pid
        worker.pidfd = pidfd
        worker.direct = pidfd is not None and _system.offers("subreaper")
        if worker.state is WorkerState.DYING:
            self.kill_by_helper(worker)  # it was to die before its pid was known
        self.on_ready(worker)

    def on_ready(self, worker: Worker) -> None:
        """A worker is ready when it has said so and its process is known."""
        with self.pool.lock:
            if not worker.ready or worker.pid is None or worker.state is not WorkerState.STARTING:
                return
            worker.enter_locked(WorkerState.IDLE)
            worker.alarm = math.inf
        self.backoff.started()
        self.pool.pump()

    def on_spawn_failed(self, number: int, error: str, traceback: str | None) -> None:
        """The helper could not fork."""
        worker = self.workers.get(number)
        if worker is not None:
            self._remove(worker)
            self._start_failed(f"the worker could not start: {error}", traceback)

    # -- workers go ----------------------------------------------------------------------------------------

    def ask(self, worker: Worker) -> None:
        """Have a worker and its tree asked to stop."""
        if self.launcher is not None:
            self.launcher.ask(worker.number)

    def kill_by_helper(self, worker: Worker) -> None:
        """Have a worker killed by the helper, which knows its pid."""
        if self.launcher is not None:
            self.launcher.kill(worker.number)

    def on_dying(self, worker: Worker, *, was_running: bool) -> None:
        """A worker was sent SIGKILL: its slot is free."""
        if was_running:
            self._spares = min(MOST_SPARES, self.pool.size)
        if worker.ready:  # else it failed to start, and its end decides when the next is tried
            self.pool.pump()

    def on_gone(
        self, number: int, status: int, at: float, cpu: float, rss: int, stuck: tuple[int, ...]
    ) -> None:
        """A worker is dead and reaped, and all of its tree has been sent SIGKILL."""
        worker = self.workers.get(number)
        if worker is None:
            return
        self._hear_last(worker)
        was = worker.state
        self._note_module(worker.call)
        self._note_death(worker, status)
        # In one step: whoever ends all calls finds this one either with its worker or among those returned.
        with self.pool.lock:
            running = worker.call
            by_itself = "crashed_workers"
            if running is not None and verdicts.was_backstop(status, at, worker.hard_at, running.timeout):
                by_itself = "killed_workers"  # by its own timer, which is ours
            call = self._detach(worker, stuck=len(stuck), by_itself=by_itself)
            if call is not None and worker.held is None and self._was_spared(worker, call):
                call = None
            elif call is not None and call.verdict is None and worker.broken:
                call.verdict = (Outcome.CRASHED, worker.broken)
        if call is not None:
            self.tell(worker, call, self._ending_of(worker, call, status, at, cpu, rss), stuck)
        failure = None
        killed = False
        if not worker.ready and worker.imports:
            self._modules = None  # one of them may be to blame: whoever calls it is told
            self.loop.call_soon(lambda: self.ensure(wanted=True))
        elif not worker.ready and was is not WorkerState.LEAVING:
            how = verdicts.exit_words(status)[0]
            text, traceback = worker.start_error or (f"the worker could not start: it died ({how})", None)
            killed = worker.start_error is None and how == "SIGKILL"
            failure = text, traceback or worker.output.take()[1]
        self._remove(worker)
        if self._closing:
            self._check_empty()
        elif failure is not None:
            self._start_failed(*failure, killed=killed)
        else:
            self.pool.pump()
            # A moment later, for it takes a while, and who has waited for this ending is to run first.
            self.loop.call_at(time.monotonic() + AFTER_YOU, self.ensure)

    def _ending_of(self, worker: Worker, call: Call, status: int, at: float, cpu: float, rss: int) -> Ending:
        """Return how a call has ended that no worker has any more; less of it where an error of ours is in the way."""
        try:
            return worker.ending_of(call, status, at, cpu, rss)
        except Exception as error:
            self.loop.note(error)
            words = f"worker died: {verdicts.exit_words(status)[0]}"
            return Ending(*(call.verdict or (Outcome.CRASHED, words)), pid=worker.pid)

    def _note_death(self, worker: Worker, status: int) -> None:
        """Slow down where worker after worker dies before it has run anything; what killed one may kill them all."""
        by_itself = worker.hung_up or worker.state not in _END_OF
        if not worker.ready or not by_itself or self._closing:
            return
        now = time.monotonic()
        if worker.runs or worker.call is not None or now - worker.born_at > LONG_LIFE:
            self.backoff.served()
            return
        words = verdicts.exit_words(status)[0]
        text = self.backoff.died_early(now, f"a worker died ({words}) before it had run anything")
        if text:
            self.pool.problem(text)

    def _hear_last(self, worker: Worker) -> None:
        """Read what a dead worker wrote: an answer that it wrote whole counts. It gets no further call."""
        with self.pool.lock:
            worker.dead = True
            worker.recall_locked()
            if worker in self.pool.idle:
                self.pool.idle.remove(worker)
        call = worker.call
        # Where its end is decided, and nothing came behind it, no answer counts any more.
        if call is not None and worker.held is None and (call.verdict is None or worker.ahead):
            worker.read(thorough=True)

    def _was_spared(self, worker: Worker, call: Call) -> bool:
        """Return whether a call that a dead worker had was never begun, and is given to another."""
        if call.verdict is not None or worker.has_begun(call):
            return False
        if self._closing:
            call.verdict = (Outcome.KILLED, CLOSED_REASON)
            return False
        return self.pool.give_back(call)

    def _detach(self, worker: Worker, *, stuck: int = 0, by_itself: str = "crashed_workers") -> Call | None:
        """Take a dead worker out of service; return the call that it was in, or None. Twice is once.

        Args:
            stuck: how many processes of its tree could not be ended.
            by_itself: under what it is counted if we have not sent it away.
        """
        with self.pool.lock:
            if worker.state is not WorkerState.GONE:
                # Whose stream had ended was only put out of its misery.
                ended = None if worker.hung_up else _END_OF.get(worker.state)
                self.pool.counters[ended or by_itself] += 1
                self._vacant += 1
                worker.enter_locked(WorkerState.GONE)
            call, worker.call = worker.call, None
            if call is not None:
                call.worker = None
            # It had their tokens, so their owner was told that they have begun; but mostly it died before.
            for behind in reversed(worker.ahead):
                behind.worker = None
                if worker.has_begun(behind) and behind.verdict is None:
                    behind.verdict = (Outcome.CRASHED, "worker died after it had broken its connection")
                self.pool.put_back_locked(behind)
            worker.ahead.clear()
            self.pool.counters["unkillable"] += stuck
        return call

    def _remove(self, worker: Worker) -> None:
        self._detach(worker)
        with self.pool.lock:
            del self.workers[worker.number]
        worker.close()
        self.pages.give_back(worker.page_index)
        self.on_removed(worker)

    def on_removed(self, worker: Worker) -> None:
        """A worker is gone, and nothing of it is left."""

    def tell(self, worker: Worker, call: Call, ending: Ending, stuck: tuple[int, ...] = ()) -> None:
        """Tell how a call has ended that a worker had which is of no use any more.

        Args:
            stuck: processes of the run that could not be ended.
        """
        ending.error = verdicts.note_stuck(ending.error, stuck)
        self.pool.end(call, ending)

    def next_number(self) -> int:
        """Return a number by which the helper can know a process."""
        self._numbers += 1
        return self._numbers

    def limit(self, worker: Worker, at: float) -> None:
        """See to it that a worker which has no backstop of its own is killed at steady time `at`."""

    def ping(self) -> int:
        """Ask the helper for a sign of life; return a number for `helper_answered`."""
        return 0 if self.launcher is None else self.launcher.ping()

    def helper_answered(self, number: int) -> bool:
        """Return whether the helper has answered that `ping`."""
        return self.launcher is not None and self.launcher.answered >= number

    def on_unkillable(self, worker: Worker) -> None:
        """A worker has not gone within five seconds of its SIGKILL: say so, and go on watching it."""
        with self.pool.lock:
            call, worker.call = worker.call, None
            if call is not None:
                call.worker = None
            self.pool.counters["unkillable"] += 1
        text = f"worker {worker.pid} has not ended {DEATH_WAIT:g} s after SIGKILL: it is stuck in the kernel"
        if worker.is_dead():
            tracer = _system.tracer_of(worker.pid) if worker.pid else 0
            text = f"worker {worker.pid} is dead, but cannot be reaped: process {tracer or '?'} traces it"
        self.pool.problem(text)
        if call is not None:
            outcome, error = call.verdict or (Outcome.CRASHED, "worker stuck")
            self.tell(worker, call, worker.held or Ending(outcome, f"{error}; {text}", pid=worker.pid))

    def on_helper_silent(self, failure: str | None = None) -> None:
        """The helper is stuck: it does not report a death; or (with `failure`) it never came so far as to fork."""
        if self.launcher is not None:
            self.pool.problem(failure or f"the helper process {self.launcher.helper_pid} does not answer")
            self.launcher.destroy(failure)

    def on_helper_lost(self, reason: str, failure: tuple[str, str | None] | None) -> None:
        """The helper has ended, and its workers with it."""
        self.launcher = None
        ended: list[tuple[Worker, Call, Ending]] = []
        served = any(worker.runs or worker.call is not None for worker in self.workers.values())
        # Each step by itself: whatever an error of ours keeps from being done, every call is told of its end.
        run = self.loop.run
        for worker in list(self.workers.values()):
            run(functools.partial(self._hear_last, worker))
            run(functools.partial(self._lose, worker, reason, ended))
        if not self._closing:
            self.pool.count("helper_restarts")
            if failure is None:
                text = self.backoff.helper_lost(time.monotonic(), reason, served=served)
                run(functools.partial(self.pool.problem, text))
        for worker, call, ending in ended:
            run(functools.partial(self.tell, worker, call, ending))
        if self._closing:
            self._finish()
        elif failure is not None:
            preload = self.pool.options.preload
            hint = f"; it imports preload={preload!r}" if preload and "preload=" not in failure[0] else ""
            self._start_failed(failure[0] + hint, failure[1])
        else:
            self.ensure(wanted=True)

    def _lose(self, worker: Worker, reason: str, ended: list[tuple[Worker, Call, Ending]]) -> None:
        """Remove a worker that has ended with its helper; the call that it was in goes into `ended`."""
        with self.pool.lock:  # as in `on_gone`
            call = self._detach(worker, by_itself="lost_workers")
            if call is not None and worker.held is None and self._was_spared(worker, call):
                call = None
        if call is not None:
            outcome, error = call.verdict or (Outcome.LOST, f"{reason} while the run was going on")
            ended.append((worker, call, worker.held or Ending(outcome, error, pid=worker.pid)))
        self._mourn(worker)
        self._remove(worker)

    def _mourn(self, worker: Worker) -> None:
        """Wait for the end of a worker that the helper cannot reap: it may be left to this process to do so."""
        if worker.pidfd is None:
            return
        fd, worker.pidfd = worker.pidfd, None
        self._mourned.add(fd)
        self.loop.watch(fd, READ, lambda _events: self._on_mourned(fd))

    def _on_mourned(self, fd: int) -> None:
        self._bury(fd)
        if self._closing and self.launcher is None and not self.workers:
            self._finish()

    def _bury(self, fd: int) -> None:
        self._mourned.discard(fd)
        self.loop.forget(fd)
        _system.reap_adopted(fd)
        os.close(fd)

    # -- starting fails ------------------------------------------------------------------------------------

    def _start_failed(self, error: str, traceback: str | None, *, killed: bool = False) -> None:
        """A worker could not be started: an error for those who wait, if nobody else can serve them.

        Args:
            killed: somebody sent it SIGKILL. If it was not itself, the next one starts: only a second is an error.
        """
        text = self.backoff.failed(time.monotonic(), error)
        self.pool.count("start_failures")
        self.pool.problem(text)
        serving = any(
            worker.state in RUNNING_STATES or worker.state is WorkerState.IDLE
            for worker in self.workers.values()
        )
        if serving or (killed and self.backoff.failures == 1):
            self.ensure(wanted=True)
        else:
            self.pool.refuse_waiting(error, traceback)

    # -- the end -------------------------------------------------------------------------------------------

    def close(self, until: float) -> None:
        """End all workers, then the helper, at the latest about steady time `until`; then tell the pool."""
        self._closing = True
        self.pool.end_returned()
        for worker in list(self.workers.values()):
            if worker.state is WorkerState.BUSY:
                worker.settle()
            if worker.state is WorkerState.IDLE:
                worker.leave()
            elif worker.state is not WorkerState.LEAVING:
                with self.pool.lock:
                    if worker.call is not None and worker.call.verdict is None:
                        worker.call.verdict = (Outcome.KILLED, CLOSED_REASON)
                worker.kill()
        self.alarm = min(until, time.monotonic() + LEAVE_WAIT)
        self.loop.hurry(self.alarm)
        self._check_empty()

    def _check_empty(self) -> None:
        """When the last worker is gone, the helper may go."""
        if not self.workers:
            if self.launcher is None:
                self._finish()
            elif not self.launcher.closing:
                self.launcher.stop()

    def _close_further(self, now: float) -> None:
        """Hurry a shutdown along: the helper is told to end what is left, a second later it is killed."""
        if self.launcher is None:
            if not self.workers:
                for fd in tuple(self._mourned):  # they are dead in all but the end
                    self._bury(fd)
                self._finish()
            return
        self._close_steps += 1
        if self._close_steps == 1 and not self.launcher.closing:
            self.launcher.stop()
        else:
            self.launcher.destroy()
        self.alarm = now + 1.0
        self.loop.hurry(self.alarm)

    def _finish(self) -> None:
        if self._mourned:
            self.alarm = time.monotonic() + 1.0
            self.loop.hurry(self.alarm)
            return
        self.alarm = math.inf
        try:
            self.release()
        finally:
            self.pool.on_closed()  # whatever cannot be let go of: somebody waits for this

    def release(self) -> None:
        """Let go of the shared memory, and of a guard that was not needed."""
        if self._guard is not None:
            self._guard.abandon()
        self.pages.close()


_END_OF = {WorkerState.DYING: "killed_workers", WorkerState.LEAVING: "left_workers"}
