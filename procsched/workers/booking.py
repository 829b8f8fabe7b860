"""What becomes of the answers of workers: each ends its call, and lets its worker go on.

    Worker.read() -- frames --> on_answers() --- lock held: book, next calls to the worker ---> call.ended()
    result() that waits ------> hear() --------'

Whoever reads books: the I/O thread, or a caller that waits for a result and finds it there.
"""

from __future__ import annotations

import functools
import time

from procsched import _system
from procsched._core import wire
from procsched._core.models import Outcome, Sealed
from procsched.workers import verdict as verdicts
from procsched.workers.base import Ending
from procsched.workers.dispatch import GATHER, Dispatcher
from procsched.workers.loop import SHORTAGES
from procsched.workers.sending import AHEAD_LEAST, RUNNING_STATES, WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched.workers.base import Call
    from procsched.workers.options import PoolOptions
    from procsched.workers.process import Worker

# Where a worker has more to do than these, answers gather: a wake-up costs as much as booking some of them.
GATHERED = 16

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
_SUCCEEDED = Outcome.SUCCEEDED  # looking up a member of an enum takes its time


class Booker(Dispatcher):
    """The part of a process pool that takes the answers of its workers, and counts.

    Attributes:
        counters: those of `Stats`; guarded by lock.
        untold: calls that have ended, and whose owners are to be told. The I/O thread's.
    """

    def __init__(self, size: int, options: PoolOptions) -> None:
        super().__init__(size, options)
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.untold: list[tuple[Call, Ending]] = []
        self._wears = options.max_runs is not None or options.max_rss is not None

    def on_answers(self, worker: Worker, frames: list[wire.Frame]) -> None:
        """A worker has answered calls.

        Raises:
            WireError: one of the answers is none. Those before it count.
        """
        ended: list[tuple[Call, Ending]] = []
        try:
            with self.lock:
                over, worn, problem = self._book_locked(worker, frames, ended)
            if over:
                worker.kill()  # it is not used again, and there is nothing left to ask it
            elif worn:
                self.fleet.ensure()
        finally:
            self.untold += ended
            self.end_all(self.untold)  # whatever is raised: no worker has them any more
        if isinstance(problem, wire.WireError):
            raise problem
        if problem is not None:
            self._pump_later(problem)

    def hear(self, worker: Worker, frames: list[wire.Frame]) -> bool:
        """Book plain results in the thread that waits for one. A signal handler may raise in it, at any moment.

        Returns:
            Whether they are booked: an answer that is none is left to the I/O thread.
        """
        ended: list[tuple[Call, Ending]] = []
        try:
            over, worn, problem = self.whole(self._book_locked, worker, frames, ended)
            for call, ending in ended:
                call.ended(ending)
        except BaseException:
            self.loop.call_soon(functools.partial(self.end_all, ended))  # whom it was told does not mind
            raise
        if over or worn:
            self.loop.call_soon(worker.kill if over else self.fleet.ensure)
        if isinstance(problem, wire.WireError):
            return False
        if problem is not None:
            raise problem  # nobody can tell whether a signal handler has: whoever asked is to hear of it
        return True

    def end_all(self, ended: list[tuple[Call, Ending]]) -> None:
        """Tell the owners of calls how they have ended, and take out of the list who was told. On the I/O thread."""
        for _ in range(len(ended)):
            self.end(*ended[0])
            del ended[0]

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
            try:
                worn = worker.go_on_locked(frames[-1].first) and worn
                if worker.call is not None and worker.call.verdict is not None:
                    self.carry_out_kill(worker, worker.call)  # decided before we knew that it had begun
                if worn:
                    worker.leave_locked()
                    self.counters["recycled"] += 1
                self._take_late_locked()
                self.sated = 0
                self.touched = None  # whatever comes now, this worker is whole
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
            if isinstance(error, SHORTAGES):
                self.untold.append((call, ending))
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
        asked = worker.state is WorkerState.ASKED
        watch = worker.watch
        if watch is not None and watch.call is call:
            if call.verdict is None:
                call.verdict = watch.judge_locked(ending, flags, third)
                ending.limit = watch.exceeded
            if worker.state is WorkerState.BUSY:
                watch.end()
        if call.verdict is not None:
            # A verdict wins over an answer: whoever gave it was told so.
            self.counters["late_results"] += 1
            if worker.state is not WorkerState.BUSY and not asked:
                return None
            ending.outcome, ending.error = call.verdict
            ending.result = None
            ending.unloadable = False
            if asked:
                # It gave way: what it raised says where it was asked, and no signal has ended it, though one ends its
                # worker, in which the asking may have left anything half done.
                if watch is not None and watch.call is call:
                    watch.complete(ending)
            elif not flags & wire.REFUSED:
                # It came back by itself, and nobody was signalled: the worker can go on.
                ending.exception = None
        worker.add_output(ending, call)  # before the next call can write; a read that does not block
        if late:
            worker.recall_locked()
        # It may not let go of the memory, and be over the limit of the next run from its start.
        swollen = ending.limit is not None and ending.limit.startswith("memory=")
        if asked or flags & wire.DIRTY or (late and not worker.ahead) or swollen:
            worker.held = ending  # told when its tree is gone
            if not asked:
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
        return options.max_rss is not None and (_system.resident_bytes(worker.pid) or 0) > options.max_rss

    def count(self, name: str) -> None:
        """Add one to a counter."""
        with self.lock:
            self.counters[name] += 1
