"""Which call of an executor is next: one queue per priority, oldest first, and what leaves them in another way.

    submit, a retry --> _queue_locked() --> queue --next_call()--> the pool --> a worker
                                              '<--take_back()----'   (sent ahead, and not begun)
    cancel, shutdown --> _withdraw_locked(): it stays in its queue until it comes to the front, or they are pruned

All of it with the pool's lock held.
"""

from __future__ import annotations

import collections
import time

from procsched._core.models import Outcome, Priority
from procsched.workers.base import AHEAD_BYTES, Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched.call_options import Options
    from procsched.future import ProcessFuture
    from procsched.workers.base import Ending, Pace
    from procsched.workers.pool import ProcessPool

# Where a call stands, as the core sees it. No enum: to look up a member takes a tenth of a microsecond.
WAITING = 0  # in a queue, or between two attempts
HANDED = 1  # taken by the pool, maybe ahead of its start
OVER = 2  # its last attempt has ended, or it was withdrawn
_COUNTERS = (
    *(outcome.value for outcome in Outcome if outcome is not Outcome.SUCCEEDED),
    "retried",
    "cancelled",
    "returned",
)


class Item(Call):
    """One submitted call, through all its attempts. What may change is guarded by the core's lock, but for `began`.

    Attributes:
        last: no further attempt is made: it was cancelled when the end of this one was decided already.
    """

    __slots__ = ("began", "cancelled", "core", "future", "last", "options", "queued", "state")

    def __init__(
        self, core: Queueing, future: ProcessFuture[Any], payload: bytes, options: Options, pace: Pace | None
    ) -> None:
        # Not by way of `Call.__init__`: keyword arguments cost as much again as all the rest.
        self.payload = payload
        self.timeout = options.timeout
        self.soft_timeout = options.soft_timeout
        self.grace = options.grace
        self.limits = options.limits
        self.capture_output = options.capture_output
        self.task_id = ""
        self.name = options.name
        self.attempt = self.run = 1
        self.pace = pace
        self.worker = self.verdict = None
        self.handed = self.number = 0
        self.told = False
        self.core = core
        self.future = future
        self.options = options
        self.state = WAITING
        self.cancelled = self.last = False
        self.queued = False
        self.began = 0.0

    def is_alone(self) -> bool:
        """Return whether nobody waits for its end but in `result`, nor for its worker."""
        return self.future.is_plain() and not self.core.refused and not any(self.core.queues)

    def begun(self, ago: float) -> None:
        """Hear that the attempt began so many seconds ago."""
        if not self.began:  # told twice, it is the same attempt
            self.core.attempts += 1
        self.began = time.monotonic() - ago
        if self.attempt == 1 and not self.cancelled:
            self.future._note_start()

    def ended(self, ending: Ending) -> None:
        """Hear how the attempt ended."""
        self.core.on_ended(self, ending)

    def progressed(self, done: float, total: float | None, note: str) -> None:
        """Hear of progress."""
        self.future._progress = (done, total, note)


class Queueing:
    """The queues of an executor.

    Attributes:
        open: calls that have not ended for good; single operations, atomic. All others are guarded by `lock`.
        resting: those between two attempts.
        ahead: nothing less urgent is sent ahead now.
        withdrawn: how many items in the queues are not to be run.
        attempts: how many have begun.
        counters: what became of the others, see `Stats`.
    """

    def __init__(self, pool: ProcessPool) -> None:
        self.pool = pool
        self.holds_lock = pool.holds_lock
        self.lock = pool.lock
        self.queues: tuple[collections.deque[Item], ...] = tuple(collections.deque() for _ in Priority)
        self.resting: set[Item] = set()
        self.ahead = Priority.HIGH
        self.withdrawn = 0
        self.refused = ""  # why nothing is taken any more; set at once, and looked at with the lock held
        self.open: set[Item] = set()
        self.attempts = 0
        self.counters = dict.fromkeys(_COUNTERS, 0)

    def on_ended(self, item: Item, ending: Ending) -> None:
        """An attempt has ended."""
        raise NotImplementedError

    def tell_cancelled(self) -> None:
        """Tell of what was cancelled, should that have been interrupted. On the I/O thread."""
        raise NotImplementedError

    def enqueue(self, item: Item) -> None:
        """Queue an attempt again."""
        with self.lock:
            self.resting.discard(item)
            if item.state is not WAITING:
                return  # cancelled meanwhile
            self._queue_locked(item)
            self.pool.pump_locked()

    def _queue_locked(self, item: Item) -> None:
        item.queued = True
        priority = item.options.priority
        self.queues[priority].append(item)
        pool = self.pool
        if pool.listened and (not pool.idle or pool.running >= pool.size):
            pool.heed_locked()
        if priority < self.ahead:  # it goes before what was sent ahead
            self.pool.recall_locked()
            self.ahead = Priority.HIGH

    def next_call(self, *, ahead: bool = False) -> Call | None:
        """Return the call that should start now. With the pool's lock held."""
        for waiting in self.queues:
            while waiting:
                item = waiting[0]
                if item.state is not WAITING:
                    self.withdrawn -= 1
                    waiting.popleft().queued = False
                    continue
                if not ahead:
                    item.begun(0.0)
                elif len(item.payload) > AHEAD_BYTES or item.pace is None:
                    return None
                elif item.options.priority > self.ahead:
                    self.ahead = item.options.priority
                item.state = HANDED
                waiting.popleft().queued = False
                return item
        return None

    def take_back(self, call: Any) -> None:
        """Queue a call that was sent ahead and has not begun, where it was. With the pool's lock held."""
        call.queued = True
        self.queues[call.options.priority].appendleft(call)
        call.state = WAITING
        if call.options.priority < self.ahead:  # other workers may have calls that go behind it
            self.pool.loop.call_soon(self._let_pass)
        if call.began:  # on its way to a worker, when a signal handler raised
            self.attempts -= 1
            call.began = 0.0

    def _let_pass(self) -> None:
        """Have back what was sent ahead, for a more urgent call that waits again. On the I/O thread."""
        with self.lock:
            if self.ahead > Priority.HIGH:
                self.pool.recall_locked()
                self.ahead = Priority.HIGH
                self.pool.pump_locked()

    def holds(self, call: Any) -> bool:
        """Return whether a call waits here or is over. With the pool's lock held."""
        return call.state is not HANDED

    def mend(self) -> None:
        """Put the queues in order after a signal handler has raised in a section of ours. With the pool's lock held."""
        for item in list(self.open):  # no tuple, see `Latch.set`
            # `next_call` and `take_back` leave only those they were about to move in this state, at the front or not
            # in the queue at all.
            if item.state is HANDED and item.queued:
                waiting = self.queues[item.options.priority]
                if not waiting or waiting[0] is not item:
                    waiting.appendleft(item)
                item.state = WAITING
        self.withdrawn = sum(item.state is OVER for waiting in self.queues for item in waiting)
        self.pool.loop.call_soon(self.tell_cancelled)

    def _withdraw_locked(self, item: Item, how: str) -> None:
        """See to it that a call which waits is not begun; count it as "cancelled" or, by a shutdown, "returned"."""
        self.counters[how] += item.state is WAITING
        item.state = OVER
        item.cancelled = True
        item.payload = b""  # it may stay in its queue for a while
        self.withdrawn += item.queued

    def prune(self) -> None:
        """Forget withdrawn items once they outnumber the others."""
        if self.withdrawn >= 64:
            self.pool.whole(self._prune_locked)

    def _prune_locked(self) -> None:
        if self.withdrawn * 2 >= sum(map(len, self.queues)):
            # In one step: a signal handler that raises must not find a queue without its items.
            self.queues = tuple(
                collections.deque(item for item in waiting if item.state is WAITING)
                for waiting in self.queues
            )
            self.withdrawn = 0

    def _withdraw_waiting_locked(self, *, kill: bool) -> list[Item]:
        """Withdraw the calls that wait, and return them."""
        self.pool.recall_locked()
        items = [item for waiting in self.queues for item in waiting if item.state is WAITING]
        if not kill:
            # A call for which a worker is free, though it may be starting yet, counts as one that has started.
            free = max(0, self.pool.size - self.pool.running)
            items = items[free:]
        items += [item for item in self.resting if item.state is WAITING]
        for item in items:
            self._withdraw_locked(item, "returned")
        return items
