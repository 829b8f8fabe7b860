"""What a worker is sent, and what it has of that: the call that it runs, and those sent ahead behind it.

A worker that is BUSY may have been sent calls beyond the one that it runs (`ahead`); see `tokens.py` for who has them.
All of this is done by whoever holds the pool's lock, and writes without blocking.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import sys
import time
from collections import deque
from enum import StrEnum

from procsched._core import wire
from procsched._parcels import send as send_parcel
from procsched.child.protocol import ANSWERED, STARTED, STARTED_AT
from procsched.workers.loop import READ, WRITE, Alarm

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from procsched._parcels import Parcel
    from procsched.workers.base import Call
    from procsched.workers.fleet import Fleet
    from procsched.workers.limiting import Watch
    from procsched.workers.pool import ProcessPool
    from procsched.workers.tokens import Tokens

BACKSTOP_MARGIN = 0.025  # seconds after deadline and grace at which the kernel's own timer strikes
DUMP_LEAD = 0.0006  # seconds before its deadline at which a run is asked for its stack, so that the kill need not wait
BRIEF = 0.001  # seconds; calls are sent ahead only behind those that are known, and found, to take no longer
AHEAD_LEAST = 16  # so many calls not begun, or fewer, until more are sent
# While a worker has something to do, so many calls may gather that take next to nothing, less than so many seconds.
GATHERS = 7
NEXT_TO_NOTHING = 0.0002
PIECE = 1 << 18  # bytes that are written at once
HELD = 1 << 12  # bytes at most that are written without letting go of the GIL: most calls
# Workers kept ready beyond those that run, so that a new call or a kill costs no start: one at first, and so many
# where runs have been killed, for two may come to their deadline at once.
MOST_SPARES = 2


class WorkerState(StrEnum):
    """Where a worker stands; the drawing at the head of `process.py` has the moves."""

    STARTING = "starting"
    IDLE = "idle"
    FAILING = "failing"
    BUSY = "busy"
    ASKED = "asked"
    DUMPING = "dumping"
    LEAVING = "leaving"
    DYING = "dying"
    GONE = "gone"


# Looking them up takes its time.
STARTING, IDLE, BUSY = WorkerState.STARTING, WorkerState.IDLE, WorkerState.BUSY
RUNNING_STATES = frozenset({WorkerState.BUSY, WorkerState.ASKED, WorkerState.DUMPING})


class Ends:
    """The parent's ends of what it shares with one worker.

    Attributes:
        sock: calls and answers.
        side: what the worker writes beside its answers: output, stacks.
        tokens: see there.
        page: the number of its page of memory, see `pages.py`.
        parcels: what goes beside the frames: the descriptors of large arguments and results.
    """

    __slots__ = ("page", "parcels", "side", "sock", "tokens")

    def __init__(
        self, sock: socket.socket, side: int, tokens: Tokens, page: int, parcels: socket.socket
    ) -> None:
        self.sock = sock
        self.side = side
        self.tokens = tokens
        self.page = page
        self.parcels = parcels


class Sender(Alarm):
    """The part of a worker that calls are given to."""

    __slots__ = (
        "ahead",
        "call",
        "dead",
        "fake_hard",
        "fake_soft",
        "hard_at",
        "hung_up",
        "last_number",
        "number",
        "out",
        "page",
        "page_index",
        "parcels",
        "path",
        "pool",
        "retiring",
        "runs",
        "sealed",
        "seen_path",
        "sock",
        "soft_at",
        "state",
        "taken",
        "times",
        "tokens",
        "turned_at",
        "watch",
    )

    def __init__(self, pool: ProcessPool, fleet: Fleet, number: int, ends: Ends) -> None:
        super().__init__()
        self.pool = pool
        self.number = number
        self.sock = ends.sock
        self.tokens = ends.tokens
        self.parcels = ends.parcels
        self.page_index = ends.page
        self.page, self.times = fleet.pages.views(ends.page)  # the same memory, as words and as floats
        self.state = WorkerState.STARTING  # guarded by the pool's lock
        self.call: Call | None = None  # what it runs; guarded by the pool's lock
        self.ahead: deque[Call] = deque()  # what it was sent beyond that; guarded by the pool's lock
        self.runs = 0  # those that it has answered
        self.last_number = 0  # of the last call that it was sent; guarded by the pool's lock
        self.turned_at = 0.0  # steady time at which it turned to `call`; guarded by the pool's lock
        # What it runs is to be signalled, or may be: nothing is sent ahead until it has been idle. Guarded by the lock.
        self.sealed = False
        self.retiring = False  # it is given no further call; guarded by the pool's lock
        self.dead = False  # its end was reported; what it wrote before may still be read
        self.hung_up = False  # its stream has ended
        self.taken = 0  # bytes to come that a caller has booked (`listening.py`); guarded by the pool's lock
        self.out: deque[memoryview] = deque()  # guarded by the pool's lock
        self.path: list[str] = []  # the import path that the worker has
        self.seen_path: list[str] = []  # `sys.path` when it was made
        self.watch: Watch | None = None  # of the limits of its runs, once one had some
        self.soft_at = self.hard_at = math.inf  # steady time
        self.fake_soft = self.fake_hard = math.inf  # the same on an injected clock

    def assign_locked(self, call: Call) -> None:
        """Take a call while idle, and send it."""
        self.pool.touched = self
        self.enter_locked(BUSY)
        self.sealed = False
        # It may still find calls that were taken back, and look for their tokens: it is to find that of this call then,
        # and not take that of one behind it while this one runs.
        stale = self.page[STARTED] < self.last_number
        self._number_locked(call)
        call.sent_ahead, call.told = False, True
        self.turned_at = now = time.monotonic()
        self._begin_locked(call, now)
        backstop = 0.0
        if call.timeout is not None and self.pool.real_clock:
            backstop = (call.timeout if stale else self.hard_at) + call.grace + BACKSTOP_MARGIN
        if call.limits is not None or self.pool.options.limits is not None:
            self._limit_locked(call)
        flags = wire.CAPTURE if self.captures(call) else 0
        if stale:
            self.tokens.grant(call.number, 1)
            flags |= wire.AHEAD
        self._refresh_path_locked()
        if type(call.payload) is not bytes:
            self._send_parcel_locked(call)
        self.out.extend(map(memoryview, self._frame(call, flags, backstop)))
        self.flush_locked()
        self.heed_locked()
        self.pool.touched = None

    def _limit_locked(self, call: Call) -> None:
        """See to it that the limits of a call that is about to be sent hold."""
        from procsched._core.limits import tighter  # here, for most programs never need it
        from procsched.workers.limiting import Watch

        limits = tighter(self.pool.options.limits, call.limits)
        assert limits is not None
        if self.watch is None:
            self.watch = Watch(self)  # type: ignore[arg-type]  # a `Worker`
        self.watch.begin_locked(call, limits)

    def send_ahead_locked(self, calls: list[Call]) -> None:
        """Take calls beyond the one that runs, and send them. None captures its output."""
        self.pool.touched = self
        self.tokens.grant(self.last_number + 1, len(calls))
        self._refresh_path_locked()
        first = self.last_number + 1
        packet = []
        for call in calls:
            self._number_locked(call)
            call.sent_ahead, call.told = True, False
            backstop = 0.0
            if call.timeout is not None and self.pool.real_clock:
                backstop = call.timeout + call.grace + BACKSTOP_MARGIN
            packet.append((call.payload, backstop, *self._facts(call)))
        self.ahead.extend(calls)
        self.out.extend(map(memoryview, wire.packet(first, packet)))
        self.flush_locked()
        self.pool.touched = None

    def go_on_locked(self, ended_at: float) -> bool:
        """Calls have ended: go on with `call`, the next of those sent ahead, or be idle; return whether it is."""
        self.alarm = math.inf
        self.turned_at = ended_at
        call = self.call
        if call is None:
            if self.state is BUSY:
                self.enter_locked(IDLE)
            return self.state is IDLE
        began = 0.0
        if call.limited:
            # It may have begun by now, and written down when; or else it begins at any moment.
            now, began = time.monotonic(), self.times[STARTED_AT]
            # It may have written anything there; a deadline has to come all the same.
            began = began if self.page[STARTED] >= call.number and began <= now else now
        self._begin_locked(call, began)
        self.note_begun_locked(call)
        return False

    def recall_locked(self) -> bool:
        """Take back the calls that were sent ahead and not begun; return whether there were any. The rest has begun."""
        self.heed_locked()
        self.pool.sated = 0
        tail = self.ahead[-1] if self.ahead else self.call
        if tail is None:
            return False
        if self.page[STARTED] >= tail.number:
            self._take_locked(set())
            return False
        self.pool.touched = self
        unbegun = self.tokens.take_back()
        self._take_locked(unbegun)
        self.pool.touched = None
        if self.tokens.broken and not self.retiring:
            self.retiring = True
            self.pool.loop.call_soon(
                functools.partial(self.break_off, "the run wrote into the worker's tokens")
            )
        return bool(unbegun)

    def break_off(self, reason: str) -> None:
        """End a worker with which there is no talking any more."""
        raise NotImplementedError

    def _take_locked(self, unbegun: set[int]) -> None:
        """Have those with these numbers back, and tell of all others that they have begun."""
        call, pool = self.call, self.pool
        # What it says it has begun it does not run a second time, whoever has put that token there.
        if unbegun:
            unbegun = {number for number in unbegun if number > self.page[STARTED]}
        taken = [each for each in self.ahead if each.number in unbegun]
        first = call is not None and call.number in unbegun
        if first or taken:
            pool.in_hand = taken if call is None or not first else (call, *taken)
        if call is not None and first:
            # The worker had answered for the one before, and not taken the next.
            self.call = None
            call.worker = None
            call.handed -= 1
            if call.told:
                pool.put_back_locked(call)
            if self.state is BUSY:
                if not self.hung_up:  # else it is about to be found dead
                    self.alarm = math.inf
                self.enter_locked(IDLE)
        for each in taken:
            self.ahead.remove(each)
            each.worker = None
            each.handed -= 1
        for each in self.ahead:
            self.note_begun_locked(each)
        if call is not None and first and not call.told:
            taken.insert(0, call)  # it has just become the first, and nobody was told of its start
        pool.take_back_locked(taken)
        pool.in_hand = ()
        if unbegun:
            pool.loop.call_soon(pool.pump)

    def part_locked(self) -> None:
        """Give it nothing more: a signal handler raised while it was sent something, or had something taken back.

        The kernel has what was sent, maybe not to the end. What the worker has of it whole, and may begin, it runs and
        answers; then it finds the end of its stream and exits. What it did not begin is given back, then or here.
        """
        self.retiring = True
        self.out.clear()
        self._take_locked(self.tokens.take_back_again())
        if self.call is None and self.state in (IDLE, BUSY):
            self.enter_locked(WorkerState.LEAVING)
            self.alarm = time.monotonic() + 1.0
        for call in self.ahead if self.call is None else (self.call, *self.ahead):
            call.handed = 0  # should it not be begun here, that is not the call's fault
        self.sock.shutdown(1)  # SHUT_WR

    @staticmethod
    def note_begun_locked(call: Call, ago: float = 0.0) -> None:
        """Tell the owner of a call that it has begun, once."""
        if not call.told:
            call.begun(ago)  # first: that it comes twice, where a signal handler raises, does no harm
            call.told = True

    def has_room_locked(self) -> bool:
        """Return whether it should be sent calls ahead: all that it has are brief, and they are soon done."""
        call = self.call
        # One that is dead may look busy still, while its last answers are booked.
        if call is None or call.verdict is not None or self.out or self.sealed or self.retiring or self.dead:
            return False
        tail = self.ahead[-1] if self.ahead else call
        if tail.number - self.page[STARTED] > AHEAD_LEAST or tail.pace is None or tail.pace.seconds > BRIEF:
            return False
        # One that has answered them all only waits for that to be booked.
        return self.page[ANSWERED] >= tail.number or time.monotonic() - self._since_locked() <= BRIEF

    def may_gather_locked(self) -> int:
        """Return how many calls may gather before it is sent some, instead of one by one.

        A packet costs as much as a few calls of next to nothing. An answer is to come, and then what has gathered goes.
        """
        if not self.ahead:
            return 0  # the first one goes at once
        tail = self.ahead[-1]
        if self.page[ANSWERED] >= tail.number:
            return 0
        share = (tail.number - self.page[STARTED]) // 2
        least = GATHERS if tail.pace is not None and tail.pace.seconds < NEXT_TO_NOTHING else 0
        return max(share, least)

    def waiting_since_locked(self) -> float:
        """Return since when calls that were sent ahead wait for the one before them; infinity where none waits."""
        if not self.ahead or self.page[STARTED] >= self.ahead[-1].number:
            return math.inf
        return self._since_locked()

    def _since_locked(self) -> float:
        """Return since when the worker has been at what it does, as far as is known."""
        return max(self.turned_at, self.times[STARTED_AT])

    def has_begun(self, call: Call) -> bool:
        """Return whether the worker began a call of its own. Exact once it is dead."""
        return self.page[STARTED] >= call.number

    def _has_begun_nothing(self) -> bool:
        return self.call is not None and self.call.verdict is None and not self.has_begun(self.call)

    def may_be_idle_locked(self) -> bool:
        """Return whether it waits for a call, and can be given one."""
        return self.state is IDLE and not (self.dead or self.hung_up or self.retiring)

    def enter_locked(self, state: WorkerState) -> None:
        """Change the state, and with it the pool's books. Nobody else does either."""
        pool, was = self.pool, self.state
        self.state = state
        if was is BUSY:
            pool.busy.remove(self)
        elif was is IDLE and self in pool.idle:
            pool.idle.remove(self)
        if state is BUSY:
            pool.busy.append(self)
        elif self.may_be_idle_locked():
            if was is STARTING:
                pool.idle.insert(0, self)  # the last one is taken first: one that has run something
            else:
                pool.idle.append(self)
        pool.running += (state in RUNNING_STATES) - (was in RUNNING_STATES)

    def _number_locked(self, call: Call) -> None:
        self.last_number += 1
        call.number = self.last_number
        call.worker = self
        call.handed += 1
        call.verdict = None

    def _begin_locked(self, call: Call, now: float) -> None:
        """Note that `call` is the one that runs, since steady time `now`."""
        self.call = call
        if not call.limited:
            self.soft_at = self.hard_at = math.inf
            return
        timeout, soft = call.timeout, call.soft_timeout
        if self.pool.real_clock:
            self.hard_at = math.inf if timeout is None else now + timeout
            self.soft_at = math.inf if soft is None else now + soft
            self.alarm = min(self.soft_at, self._dump_at(call))
            self.pool.loop.hurry(self.alarm)
        else:
            awake = self.pool.awake()
            self.fake_hard = math.inf if timeout is None else awake + timeout
            self.fake_soft = math.inf if soft is None else awake + soft

    def _dump_at(self, call: Call) -> float:
        """Return when to look at the hard limit first: ahead of it, to ask for the stack."""
        timeout = call.timeout
        early = timeout is not None and call.grace <= 0 and timeout > 4 * DUMP_LEAD
        return self.hard_at - DUMP_LEAD if early else self.hard_at

    def _refresh_path_locked(self) -> None:
        path = sys.path
        if path != self.seen_path:
            self.seen_path = list(path)
            self.path = import_path()
            self.out.extend(map(memoryview, wire.encode(wire.PATH, payload=pickle.dumps(self.path, 5))))

    @staticmethod
    def _frame(call: Call, flags: int, backstop: float) -> list[bytes | bytearray]:
        payload = call.payload
        if type(payload) is not bytes:
            flags |= wire.WHOLE if payload.fd < 0 else wire.APART
            payload = payload.data
        return wire.encode(wire.CALL, call.number, payload, flags, backstop, *Sender._facts(call))

    @staticmethod
    def _facts(call: Call) -> tuple[float, int, bytes]:
        """Return what `current_run()` is to know: limit, numbers, names."""
        name = b"\0"
        if call.task_id or call.name:
            name = f"{call.task_id}\0{call.name}".encode("utf-8", "surrogatepass")
        timeout = call.timeout
        return -1.0 if timeout is None else timeout, call.run << 32 | call.attempt, name

    def _send_parcel_locked(self, call: Call) -> None:
        """Send the descriptor of a large call ahead of its frame. Where it cannot go, loading says so in the worker."""
        parcel: Parcel = call.payload
        if parcel.fd >= 0:
            self.pool.went("large.memfd")
            with contextlib.suppress(OSError):
                send_parcel(self.parcels, call.number, parcel.fd)

    def send_start(self, payload: bytes) -> None:
        """Send the first frame."""
        with self.pool.lock:
            self.out.extend(map(memoryview, wire.encode(wire.START, payload=payload)))
            self.flush_locked()

    def flush_locked(self) -> None:
        """Write what the socket takes, and ask to be told when it takes more. Never blocks."""
        out = self.out
        sock, held = self.sock, self.pool.holding
        try:
            while out:
                view = out[0]
                if held is None or len(view) > HELD:
                    sent = sock.send(view[:PIECE])
                else:
                    sent = held.send(sock.fileno(), view)
                if sent == len(view):
                    out.popleft()
                else:
                    out[0] = view[sent:]
        except BlockingIOError:
            self.tune_locked()
            return
        except OSError:
            out.clear()  # its end is gone: the death of the worker follows, or its broken pipe is noticed
            return

    def heed_locked(self) -> None:
        """Have the loop listen to this worker, where a caller did (`listening.py`)."""
        if self in self.pool.listened:
            self.drop_taken_locked()
            self._tune_locked(READ)  # first: where a signal handler raises, whoever comes next does it again
            self.pool.listened.discard(self)

    def drop_taken_locked(self) -> None:
        """Read what was booked without that. Should that not be done, it is found again, and known by its number."""
        size, self.taken = self.taken, 0
        if size and self.pool.holding is not None:
            try:
                self.pool.holding.drop(self.sock.fileno(), size)
            except OSError:
                pass

    def tune_locked(self) -> None:
        """Have the loop wait for what it is to wait for: answers, unless a caller does, and room for what waits."""
        self._tune_locked(0 if self in self.pool.listened else READ)

    def _tune_locked(self, events: int) -> None:
        try:
            self.pool.loop.change(self.sock.fileno(), events | WRITE if self.out else events)
        except (OSError, ValueError):  # it watches this one no longer
            pass

    def captures(self, call: Call) -> bool:
        """Return whether the output of `call` is kept."""
        options = self.pool.options
        if call.capture_output or options.capture_output:
            return True
        # What limits its output counts it, so it comes to us. Not asked of `watch`, which is done with the run before
        # its output is taken.
        limits, others = call.limits, options.limits
        return bool((limits and limits.output is not None) or (others and others.output is not None))


def import_path() -> list[str]:
    """Return what of `sys.path` imports look at, as plain texts, with the working directory for the empty one.

    A class of the program's own no helper knows.
    """
    entries = [str.__str__(entry) or working_directory() for entry in sys.path if isinstance(entry, str)]
    return [entry for entry in entries if entry]  # without one for a working directory that was removed


def working_directory() -> str | None:
    """Return the working directory, or None where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None
