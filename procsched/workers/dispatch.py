"""Which call goes to which worker, and when: decided by whoever holds the pool's lock.

    source --next_call()--> idle worker              (pump: as long as there are both)
           --next_call(ahead=True)--> busy worker    (where what it has is brief, and soon done)
           <--take_back()-- busy worker              (whatever calls for it: `recall` and its kin)

Pull, not push: a call leaves its source only when a worker is idle, so priority, cancel and pause hold until the last
moment. Where calls are so brief that a worker would do little but wait for the next, some are sent ahead of that
moment, and come back to their source when anything of the kind calls for it (`tokens.py` says how that is exact).
Lock order: the pool's lock, then the source's. Nothing waits while it is held; the system calls made under it are reads
and writes that never block.

Signal handlers run in the main thread, also while that holds the lock. One that raises there tears what it interrupts,
and `whole` mends that before the lock is let go; one that calls us finds the lock its own thread's (`holds_lock`), and
leaves the call to the I/O thread.
"""

from __future__ import annotations

import functools
import math
import threading
import time
import weakref
from collections import deque

from procsched._core.models import Outcome
from procsched._interrupts import owner_check
from procsched.child.protocol import REASON_KILL
from procsched.workers.base import Ending
from procsched.workers.loop import Alarm
from procsched.workers.sending import RUNNING_STATES, Sender, WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import ParamSpec, TypeVar

    from procsched.protocols import CallSource
    from procsched.workers.base import Call
    from procsched.workers.fleet import Fleet
    from procsched.workers.holding import Holding
    from procsched.workers.listening import Bell
    from procsched.workers.loop import Loop
    from procsched.workers.options import PoolOptions
    from procsched.workers.process import Worker

    P = ParamSpec("P")
    R = TypeVar("R")

ASK_AGAIN = 0.1  # seconds until a source that has raised is asked again
MOST_HANDED = 10  # workers that may die before they begin a call, until that counts as a crash of the call
AHEAD_SECONDS = 0.001  # how much work is sent to a worker ahead, and how many calls at most
AHEAD_CALLS = 64
AHEAD_ROOM = 1 << 16  # bytes after which a packet takes no further call; a socket holds three times as much
# Seconds, at most, for which calls gather before they are sent to workers that have something to do, and answers before
# they are booked.
GATHER = 0.0001
CALL_COST = 10e-6  # seconds that a worker spends on a call beside running it
MENDS = 100  # signal handlers that may raise while what they have torn is mended
LATE = 0.0005  # seconds that a call may take until those sent ahead behind it are taken back for somebody who is free
# The same for somebody who goes on with calls that came later: a worker that waits for a processor is not late.
OUTRUN = 0.005


class Dispatcher:
    """The part of a process pool that hands calls to its workers.

    Attributes:
        holds_limits: whether calls may have `Limits`.
    """

    holds_limits = True

    def __init__(self, size: int, options: PoolOptions) -> None:
        self.size = size
        self.options = options
        # Guards the workers' states and calls, the idle list, `running` and the counters. Taken by any thread that
        # pumps or kills and by the I/O thread; held while the source picks a call and while its frame is written.
        # Reentrant only so that a signal handler can tell that it interrupted a holder; no code of ours enters twice.
        self.lock = threading.RLock()
        self.holds_lock = owner_check(self.lock)
        # Seconds for which who waits for a result looks whether it is there, before it sleeps. Set before the start.
        self.spin = 0.0
        # How a caller that waits for a result does without the I/O thread, or None: see `listening.py`. Set by `start`.
        self.holding: Holding | None = None
        self.bells: deque[Bell] = deque()  # those that nobody uses; single operations, atomic
        # All that there are: a signal handler that raises may lose one. Changed by the I/O thread.
        self.bells_made: weakref.WeakSet[Bell] = weakref.WeakSet()
        self.listened: set[Sender] = set()  # workers to which a caller listens; guarded by lock
        # Held while answers are read and booked, by the I/O thread or by who waits for one; before `lock`. Reentrant
        # as that one is: who was interrupted in the midst of this must not be waited for.
        self.reading = threading.RLock()
        self.holds_reading = owner_check(self.reading)
        # What is half done while a signal handler may raise, for `_mend_locked`. Guarded by lock.
        self.touched: Sender | None = None  # it is sent something, or has something taken back
        self.taking: Call | None = None  # on its way from the source, or from those returned
        self.in_hand: Sequence[Call] = ()  # on their way to a worker, or back; oldest first
        self.running = 0  # workers in RUNNING_STATES; guarded by lock
        # Calls that may still gather before it is looked which worker has room, and until which steady time. Guarded
        # by lock.
        self.sated, self.sated_until = 0, 0.0
        self.busy: deque[Sender] = deque()  # those that are BUSY, in turn; guarded by lock
        self.idle: list[Sender] = []  # the last one is the warmest; guarded by lock
        self.loop: Loop  # this and the next from `start` on
        self.fleet: Fleet
        # Calls whose worker died before it began them; they are started before any other. Guarded by lock.
        self._returned: deque[Call] = deque()
        self._source: CallSource | None = None
        self._look_again = _LookAgain(self)
        self._start_wanted = False  # a start is asked for and not looked at yet; guarded by lock
        self._closing = False  # guarded by lock

    def whole(self, section: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `section` with the lock held; where a signal handler raises in it, mend what that has torn."""
        with self.lock:
            try:
                return section(*args, **kwargs)
            except BaseException:
                try:
                    self.mend_locked()
                except BaseException:  # another one, before it has begun
                    self.mend_locked()
                raise

    def pump(self) -> None:
        """Hand calls to workers while the source has some. Never blocks."""
        if self.holds_lock():
            self.loop.call_soon(self.pump)
            return
        try:
            self.whole(self.pump_locked)
        except Exception as error:
            if threading.current_thread() is not self.loop.thread:
                raise
            self._pump_later(error)

    def _pump_later(self, error: BaseException) -> None:
        """The source has raised, over a clock of the user's, say: tell, and ask it again. On the I/O thread."""
        self.loop.note(error)
        self.loop.call_at(time.monotonic() + ASK_AGAIN, self.pump)

    def pump_locked(self) -> None:
        """Do the same for a caller that holds the pool's lock."""
        while not self._closing and self._source is not None:
            if not self.idle or self.running >= self.size:
                if not self.idle and not self._start_wanted:
                    # Either a call waits for a worker, or the spare has been taken: both call for a start.
                    self._start_wanted = True
                    self.loop.call_soon(self._want_worker)
                if self.running >= self.size:
                    self._send_ahead_locked()
                return
            worker = self.idle[-1]
            call = self.taking = self._next_locked()
            if call is None:
                if self._take_from_busy_locked():
                    continue
                return
            worker.assign_locked(call)
            self.taking = None
            self.sated = 0

    def _next_locked(self) -> Call | None:
        if self._returned:
            call = self.taking = self._returned[0]
            self._returned.popleft()
            return call
        return None if self._source is None else self._source.next_call()

    def _send_ahead_locked(self) -> None:
        """Send calls to busy workers that will soon have nothing to do."""
        if self.options.limits is not None:
            return
        now = time.monotonic()
        if self.sated and now < self.sated_until:
            self.sated -= 1
            return
        for _ in range(len(self.busy)):
            worker = self.busy[0]
            self.busy.rotate(-1)
            if worker.has_room_locked() and not self._fill_locked(worker):
                break
        self.sated = min((worker.may_gather_locked() for worker in self.busy), default=0)
        self.sated_until = now + GATHER

    def _fill_locked(self, worker: Sender) -> bool:
        """Send calls ahead to one worker; return False when the source has no more."""
        assert self._source is not None
        most = AHEAD_CALLS
        if self.options.max_runs is not None:
            most = min(most, self.options.max_runs - worker.runs - len(worker.ahead) - 1)
        calls: list[Call] = []
        self.in_hand = calls
        left = AHEAD_SECONDS
        room = AHEAD_ROOM
        more = not self._returned
        while more and left > 0 and room > 0 and len(calls) < most:
            call = self.taking = self._source.next_call(ahead=True)
            if call is None:
                more = False
            else:
                calls.append(call)
                room -= len(call.payload)
                left -= CALL_COST + (math.inf if call.pace is None else call.pace.seconds)
        if calls:
            worker.send_ahead_locked(calls)
        self.taking, self.in_hand = None, ()
        return more

    def _take_from_busy_locked(self) -> bool:
        """Take calls that wait behind one that takes long, for a worker that is free; return whether there were any."""
        look_again = False
        for worker in self.busy:
            since = worker.waiting_since_locked()
            if since < math.inf:
                if time.monotonic() - since > LATE and worker.recall_locked():
                    return True
                look_again = True
        if look_again:
            self._look_again.alarm = time.monotonic() + LATE
            self.loop.hurry(self._look_again.alarm)
        return False

    def _take_late_locked(self) -> None:
        """Take back what waits behind calls that take long, before others are started that came later."""
        for worker in self.busy:
            if worker.ahead and time.monotonic() - worker.waiting_since_locked() > OUTRUN:
                worker.recall_locked()
                return  # `busy` is as it was, but one at a time is enough

    def heed_locked(self) -> None:
        """Have the loop listen to all workers: a call waits, and nobody may keep a worker from it."""
        for worker in list(self.listened):  # no tuple, see `Latch.set`
            worker.heed_locked()

    def recall(self) -> None:
        """Have every call that was sent ahead either begun or back in its source, before this returns."""
        self.whole(self.recall_locked)

    def recalled(self, function: Callable[[], R]) -> R:
        """Do the same, and return what `function` returns, which is called while the lock is held."""

        def section() -> R:
            self.recall_locked()
            return function()

        return self.whole(section)

    def recall_locked(self) -> None:
        """Do the same for a caller that holds the pool's lock."""
        for worker in tuple(self.busy):
            worker.recall_locked()

    def take_back_locked(self, calls: list[Call]) -> None:
        """Give calls that nobody began, oldest first, back to the source."""
        assert self._source is not None
        for call in reversed(calls):
            if call.verdict is None:
                self._source.take_back(call)
            else:
                Sender.note_begun_locked(call)
                self._end_soon(call)

    def put_back_locked(self, call: Call) -> None:
        """Have a call started before any other that is told to run, but was not begun by the worker that had it."""
        if call.verdict is None:
            self._returned.appendleft(call)
            self.heed_locked()
        else:
            self._end_soon(call)

    def _end_soon(self, call: Call) -> None:
        """Tell of the end of a call that no worker has any more, and whose end is decided. Twice is once."""
        self.loop.call_soon(functools.partial(self._end_decided, call))

    def _end_decided(self, call: Call) -> None:
        with self.lock:
            verdict = call.verdict
            if verdict is None or call.worker is not None:
                return
            call.verdict = None
        call.ended(Ending(*verdict))

    def kill(self, call: Call, reason: str) -> bool:
        """End a running call, grace first. It is decided here: no later answer of the call counts.

        Args:
            reason: why, in the words of `record.error`.
        Returns:
            False when the call is not running, or its end was decided before. One that was sent ahead and had not
            begun is then back in its source.
        """
        return self.whole(self.kill_locked, call, reason)

    def kill_locked(self, call: Call, reason: str) -> bool:
        """Do the same for a caller that holds the pool's lock."""
        worker: Worker | None = call.worker
        if worker is not None:
            worker.recall_locked()
            worker = call.worker
        if call in self._returned:
            self.taking = call
            call.verdict = (Outcome.KILLED, reason)
            self._returned.remove(call)
            self._end_soon(call)
            self.taking = None
            return True
        if worker is None or call.verdict is not None or worker.held is not None:
            return False
        call.verdict = (Outcome.KILLED, reason)
        self.carry_out_kill(worker, call)
        return True

    def carry_out_kill(self, worker: Worker, call: Call) -> None:
        """Have a call ended that was decided to end."""
        self.loop.call_soon(functools.partial(self._carry_out_kill, worker, call))

    def _carry_out_kill(self, worker: Worker, call: Call) -> None:
        with self.reading:
            if worker.settle() is call and call.verdict is not None:
                worker.stop(call, call.verdict, REASON_KILL)

    def give_back(self, call: Call) -> bool:
        """Take back a call whose worker died before it began it. Return False for one to which that happens often.

        It may be the call itself that kills whoever reads it.
        """
        with self.lock:
            if call.handed >= MOST_HANDED or self._closing:
                return False
            self.put_back_locked(call)
        return True

    def _want_worker(self) -> None:
        with self.lock:
            self._start_wanted = False
        self.fleet.ensure(wanted=True)

    # -- what a signal handler has torn ----------------------------------------------------------------------

    def mend_locked(self) -> None:
        """Put the books in order after a signal handler has raised in a section of ours."""
        for _ in range(MENDS):
            try:
                self._mend_locked()
                return
            except BaseException:  # another one: the first is on its way to the caller
                continue

    def _mend_locked(self) -> None:
        source = self._source
        if source is None:
            return
        source.mend()
        workers = self.fleet.workers.values()
        self._mend_books_locked(workers)
        held = {id(worker.call) for worker in workers} | {id(call) for each in workers for call in each.ahead}
        held.update(map(id, self._returned))
        for call in (*reversed(self.in_hand), self.taking):
            if call is None or id(call) in held or source.holds(call):
                continue
            call.worker = None
            if call.told or call.verdict is not None:
                self.put_back_locked(call)
            else:
                source.take_back(call)
            held.add(id(call))
        self.taking, self.in_hand = None, ()
        if self.touched is not None:
            self.touched.part_locked()
            self.touched = None
        for worker in workers:
            if worker.call is not None and worker.call.verdict is not None:
                self.carry_out_kill(worker, worker.call)
        self._start_wanted = False
        for function in (self.loop.rearm, self._want_worker, self.pump):
            self.loop.call_soon(function)

    def _mend_books_locked(self, workers: Collection[Worker]) -> None:
        """Make the lists of workers anew from their states, in the order that they have."""
        busy = [worker for worker in workers if worker.state is WorkerState.BUSY]
        idle = [worker for worker in workers if worker.may_be_idle_locked()]
        # Those that are not in yet come behind the others.
        order = {worker: place for place, worker in enumerate((*self.busy, *self.idle))}
        self.busy = deque(sorted(busy, key=lambda worker: order.get(worker, math.inf)))
        self.idle = sorted(idle, key=lambda worker: order.get(worker, math.inf))
        self.running = sum(worker.state in RUNNING_STATES for worker in workers)


class _LookAgain(Alarm):
    """Wakes the pool when a worker is free while calls wait behind others that were to be brief."""

    __slots__ = ("pool",)

    def __init__(self, pool: Dispatcher) -> None:
        super().__init__()
        self.pool = pool

    def on_alarm(self, now: float) -> None:
        self.alarm = math.inf
        self.pool.pump()
