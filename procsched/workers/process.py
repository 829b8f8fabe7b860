"""One worker as the parent sees it: its descriptors, its call, its deadlines, its end.

    STARTING --ready--> IDLE --call--> BUSY --answer--> IDLE
                                        |--deadline, kill--> ASKED (grace) --> DUMPING (stack) --> DYING
    any of them --broken pipe, start limit--> DYING --reaped, tree ended--> GONE
    IDLE --recycled, shutdown--> LEAVING --reaped--> GONE

A worker that is BUSY may have been sent calls beyond the one that it runs (`ahead`); see `tokens.py` for who has them.

Who touches what: methods whose names end in `_locked` run in any thread that holds the pool's lock, and write without
blocking. Everything else runs on the pool's I/O thread; where it changes what those read, it does so with the lock.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import signal
import sys
import time
from collections import deque
from enum import StrEnum

from procsched import _system
from procsched._core import wire
from procsched._core.models import Outcome
from procsched._parcels import Arrived, InBand, Lost
from procsched._parcels import receive as receive_parcel
from procsched._parcels import send as send_parcel
from procsched.child.protocol import (
    ANSWERED,
    ASK_NUMBER,
    ASK_REASON,
    DUMP_SIGNAL,
    PAGE_WORDS,
    REASON_DEADLINE,
    REASON_SOFT,
    SOFT_SIGNAL,
    STARTED,
    STARTED_AT,
)
from procsched.workers import verdict as verdicts
from procsched.workers.loop import READ, WRITE, Alarm
from procsched.workers.output import Output
from procsched.workers.tokens import Tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from procsched._parcels import Parcel
    from procsched.workers.base import Call, Ending
    from procsched.workers.fleet import Fleet
    from procsched.workers.pool import ProcessPool

BACKSTOP_MARGIN = 0.025  # seconds after deadline and grace at which the kernel's own timer strikes
DUMP_LEAD = 0.0006  # seconds before its deadline at which a run is asked for its stack, so that the kill need not wait
DUMP_WAIT = 0.01  # seconds that a stack is waited for at the deadline, where it has not come by then
START_DUMP_WAIT = 0.05  # the same for a worker that does not get ready
DUMP_SILENCE = (
    0.0001  # seconds without a word of it until the process is asked whether it can answer: that is slow
)
REST_WAIT = 0.1  # seconds without the rest of a frame until it is asked whether there is one to come
HANGUP_WAIT = (
    0.1  # seconds after the end of its stream that a worker gets to be dead, before it counts as mute
)
NUDGE_WAIT = (
    0.25  # seconds after SIGKILL at which the helper is asked about a dead worker that it has not reported
)
DEATH_WAIT = 5.0  # seconds after SIGKILL until a process counts as one that the kernel cannot end
BRIEF = 0.001  # seconds; calls are sent ahead only behind those that are known, and found, to take no longer
AHEAD_LEAST = 16  # so many calls not begun, or fewer, until more are sent
READS_PER_EVENT = 16  # so that one worker that floods cannot starve the others
PIECE = 1 << 18


class WorkerState(StrEnum):
    """Where a worker stands; the drawing at the head of this file has the moves."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    ASKED = "asked"
    DUMPING = "dumping"
    LEAVING = "leaving"
    DYING = "dying"
    GONE = "gone"


STARTING, IDLE, BUSY = (
    WorkerState.STARTING,
    WorkerState.IDLE,
    WorkerState.BUSY,
)  # looking them up takes its time
RUNNING_STATES = frozenset({WorkerState.BUSY, WorkerState.ASKED, WorkerState.DUMPING})


class Worker(Alarm):
    """A child process with its handle in the parent."""

    __slots__ = (
        "ahead",
        "call",
        "cpu_base",
        "dead",
        "decoder",
        "direct",
        "dump_end",
        "dump_number",
        "fake_hard",
        "fake_soft",
        "fleet",
        "hard_at",
        "held",
        "hung_up",
        "imports",
        "killed_at",
        "last_number",
        "number",
        "out",
        "output",
        "page",
        "page_index",
        "parcels",
        "path",
        "pid",
        "pidfd",
        "ping",
        "pool",
        "ready",
        "retiring",
        "runs",
        "sealed",
        "seen_path",
        "sock",
        "soft_at",
        "start_error",
        "state",
        "stuck_reported",
        "times",
        "tokens",
        "turned_at",
    )

    def __init__(
        self,
        pool: ProcessPool,
        fleet: Fleet,
        number: int,
        sock: socket.socket,
        side: int,
        tokens: Tokens,
        page_index: int,
        parcels: socket.socket,
    ) -> None:
        super().__init__()
        self.pool = pool
        self.fleet = fleet
        self.number = number
        self.sock = sock
        self.output = Output(side)
        self.tokens = tokens
        self.parcels = parcels  # what goes beside the frames: the descriptors of parcels
        self.page_index = page_index
        words = slice(page_index * PAGE_WORDS, (page_index + 1) * PAGE_WORDS)
        self.page = fleet.pages[words]
        self.times = fleet.times[words]  # the same memory, read as floats
        self.state = WorkerState.STARTING  # guarded by the pool's lock
        self.call: Call | None = None  # what it runs; guarded by the pool's lock
        self.ahead: deque[Call] = deque()  # what it was sent beyond that; guarded by the pool's lock
        self.last_number = 0  # of the last call that it was sent; guarded by the pool's lock
        self.turned_at = 0.0  # steady time at which it turned to `call`; guarded by the pool's lock
        # What it runs is to be signalled, or may be: nothing is sent ahead until it has been idle. Guarded by the lock.
        self.sealed = False
        self.retiring = False  # it is given no further call; guarded by the pool's lock
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.direct = False  # whether a SIGKILL through the pid descriptor ends the whole tree
        self.ready = False
        self.imports = False  # whether it imports modules before it is ready
        self.dead = False  # its end was reported; what it wrote before may still be read
        self.hung_up = False  # its stream has ended
        self.decoder = wire.Decoder()
        self.out: deque[memoryview] = deque()  # guarded by the pool's lock
        self.path: list[str] = []  # the import path that the worker has
        self.seen_path: list[str] = []  # `sys.path` when it was made
        self.soft_at = self.hard_at = math.inf  # steady time
        self.fake_soft = self.fake_hard = math.inf  # the same on an injected clock
        self.held: Any = None  # an ending that waits for the tree to be gone
        self.dump_number = 0  # the run that was asked for its stack ahead of its deadline
        self.dump_end = 0.0  # steady time
        self.start_error: tuple[str, str | None] | None = None
        self.cpu_base = 0.0
        self.runs = 0
        self.stuck_reported = False
        self.killed_at = 0.0  # steady time
        self.ping = 0  # number of the question to the helper why it does not report our end

    # -- taking calls --------------------------------------------------------------------------------------

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
        flags = wire.CAPTURE if self.captures(call) else 0
        if stale:
            self.tokens.grant(call.number, 1)
            flags |= wire.AHEAD
        self._refresh_path_locked()
        if type(call.payload) is not bytes:
            self._send_parcel_locked(call)
        self.out.extend(map(memoryview, self._frame(call, flags, backstop)))
        self.flush_locked()
        self.pool.touched = None

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
            begun = self.page[STARTED] >= call.number
            began = self.times[STARTED_AT] if begun else time.monotonic()
        self._begin_locked(call, began)
        self.note_begun_locked(call)
        if call.verdict is not None:  # it was to be ended before we knew that it had begun
            self.pool.carry_out_kill(self, call)
        return False

    def recall_locked(self) -> bool:
        """Take back the calls that were sent ahead and not begun; return whether there were any. The rest has begun."""
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
        return bool(unbegun)

    def _take_locked(self, unbegun: set[int]) -> None:
        """Have those with these numbers back, and tell of all others that they have begun."""
        call, pool = self.call, self.pool
        taken = [each for each in self.ahead if each.number in unbegun]
        first = call is not None and call.number in unbegun
        if first or taken:
            pool.in_hand = taken if call is None or not first else (call, *taken)
        if call is not None and first:
            # The worker had answered for the one before, and not taken the next.
            self.call = None
            call.worker = None
            call.handed -= 1
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
        if call is None or call.verdict is not None or self.out or self.sealed or self.retiring:
            return False
        tail = self.ahead[-1] if self.ahead else call
        if tail.number - self.page[STARTED] > AHEAD_LEAST or tail.pace is None or tail.pace.seconds > BRIEF:
            return False
        return time.monotonic() - self._since_locked() <= BRIEF

    def waiting_locked(self) -> tuple[int, float]:
        """Return how many of the calls sent ahead have not begun, and since when the one before has been running."""
        waiting = self.ahead[-1].number - self.page[STARTED] if self.ahead else 0
        return waiting, self._since_locked()

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
        return wire.encode(wire.CALL, call.number, payload, flags, backstop, *Worker._facts(call))

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
            with contextlib.suppress(OSError):
                send_parcel(self.parcels, call.number, parcel.fd)

    def _with_parcel(self, frame: wire.Frame) -> wire.Frame:
        """Return the answer with a large result as its payload, whose memory is in nobody else's hands then.

        Raises:
            WireError: it could be taken away while it is read.
        """
        if frame.flags & wire.WHOLE:
            return frame._replace(payload=InBand(frame.payload))
        try:
            return frame._replace(payload=Arrived(receive_parcel(self.parcels, frame.number)))
        except OSError as error:
            return frame._replace(payload=Lost(error))
        except ValueError as error:
            raise wire.WireError(str(error)) from error

    def send_start(self, payload: bytes) -> None:
        """Send the first frame."""
        with self.pool.lock:
            self.out.extend(map(memoryview, wire.encode(wire.START, payload=payload)))
            self.flush_locked()

    def flush_locked(self) -> None:
        """Write what the socket takes, and ask to be told when it takes more. Never blocks."""
        out = self.out
        send = self.sock.send
        try:
            while out:
                view = out[0]
                sent = send(view[:PIECE])
                if sent == len(view):
                    out.popleft()
                else:
                    out[0] = view[sent:]
        except BlockingIOError:
            self.pool.loop.change(self.sock.fileno(), READ | WRITE)
            return
        except OSError:
            out.clear()  # its end is gone: the death of the worker follows, or its broken pipe is noticed
            return

    # -- hearing from it -----------------------------------------------------------------------------------

    def on_socket(self, events: int) -> None:
        """Write what waits, read what came."""
        if events & WRITE:
            with self.pool.lock:
                self.flush_locked()
                if not self.out:
                    self.pool.loop.change(self.sock.fileno(), READ)
        if events & ~WRITE:
            self.read()

    def read(self, limit: int = READS_PER_EVENT) -> None:
        """Read what is there and handle the frames that are whole."""
        try:
            for _ in range(limit):
                target = self.decoder.target
                if target is not None:
                    count = self.sock.recv_into(target)
                    if not count:
                        self.on_hangup()
                        return
                    frame = self.decoder.filled(count)
                    if frame is not None:
                        self.on_frames([frame])
                    continue
                data = self.sock.recv(1 << 16)
                if not data:
                    self.on_hangup()
                    return
                self.on_frames(self.decoder.feed(data))
                if len(data) < 1 << 16 and limit == READS_PER_EVENT:
                    break  # that was all; if more has come meanwhile, the loop calls again
            self.expect_rest()
        except BlockingIOError:
            self.expect_rest()
        except OSError:
            self.on_hangup()
        except wire.WireError as error:
            self.break_off(f"worker wrote what is no message: {error}")

    def expect_rest(self) -> None:
        """Where a frame has begun and not ended: look again, for something else may have written into the socket."""
        if self.decoder.in_frame and self.state is WorkerState.BUSY:
            self.alarm = min(self.alarm, time.monotonic() + REST_WAIT)
            self.pool.loop.hurry(self.alarm)

    def on_rest_late(self, call: Call) -> None:
        """The rest of a frame has not come. If the worker has written all that it had to say, it never will."""
        answered = self.page[ANSWERED] >= call.number
        self.read(limit=1 << 20)
        if answered and self.call is call and self.decoder.in_frame:
            self.break_off("the run wrote into the worker's connection")

    def on_frames(self, frames: list[wire.Frame]) -> None:
        """Handle messages: answers together, for each costs a lock."""
        answers: list[wire.Frame] = []
        for frame in frames:
            if frame.kind in (wire.DONE, wire.RAISED):
                if frame.flags & wire.PARCEL:
                    frame = self._with_parcel(frame)
                answers.append(frame)
                continue
            if answers:
                self.pool.on_answers(self, answers)
                answers = []
            self.on_frame(frame)
        if answers:
            self.pool.on_answers(self, answers)
        if self.decoder.error is not None:
            raise self.decoder.error

    def on_frame(self, frame: wire.Frame) -> None:
        """Handle one message that is no answer."""
        kind = frame.kind
        if kind == wire.PROGRESS:
            call = self.call
            if call is not None and frame.number == call.number:
                done, total, note = wire.unpack(frame.payload, 3)
                try:
                    call.progressed(done, total, note)
                except BaseException as error:  # what came behind it is still to be handled
                    self.pool.loop.note(error)
        elif kind == wire.READY and self.state is WorkerState.STARTING:
            self.ready = True
            self.cpu_base = frame.second
            self.fleet.on_ready(self)
        elif kind == wire.START_FAILED and self.state is WorkerState.STARTING:
            text, traceback, _carried, _obstacle = wire.unpack(frame.payload, 4)
            self.start_error = (f"the worker could not start: {text}", traceback)
            self.kill()
        else:
            self.break_off(f"worker sent a message of kind {kind} out of turn")

    def on_hangup(self) -> None:
        """The socket has ended: the process is dying, or it closed its pipe and can be of no use."""
        self.pool.loop.forget(self.sock.fileno())
        if self.state in (WorkerState.DYING, WorkerState.LEAVING, WorkerState.GONE):
            return
        if self.state is WorkerState.IDLE:
            self.kill()
            return
        # The descriptors of a process are closed a moment before it counts as dead. What ended it is for its wait
        # status to say, or for the death of the helper: a verdict now would hide that.
        self.hung_up = True
        self.alarm = min(self.alarm, time.monotonic() + HANGUP_WAIT)
        self.pool.loop.hurry(self.alarm)

    def on_mute(self) -> None:
        """A while has passed since the end of its stream."""
        # Where it is dead that changes nothing for it, and has the report of its death waited for. What it has not
        # begun is not to blame.
        if self.is_dead() or self._has_begun_nothing():
            self.kill()
        else:
            self.break_off("worker closed its connection")

    def break_off(self, reason: str) -> None:
        """End a worker with which there is no talking any more."""
        with self.pool.lock:
            self.retiring = True
            self.recall_locked()  # what it has not begun is not to blame
            if self.call is not None and self.call.verdict is None:
                self.call.verdict = (Outcome.CRASHED, reason)
        if self.state is WorkerState.STARTING and self.start_error is None:
            self.start_error = (f"the worker could not start: {reason}", None)
        self.kill()

    def on_side(self, _events: int) -> None:
        """Output or a stack has come: keep the newest of it."""
        self.output.read()
        if self.output.ended:
            self.pool.loop.forget(self.output.fd)
        if self.state is WorkerState.DUMPING and self.output.stack_is_complete:
            self.kill()

    def add_output(self, ending: Ending, call: Call) -> None:
        """Put what the run wrote into its ending: the stack, and the output where it is wanted."""
        output, captures = self.output, self.captures(call)
        if not captures and self.has_been_silent():
            return
        text, stack, truncated = output.take()
        if ending.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED):  # else it came back from where it was
            ending.stack = stack
        if captures:
            ending.output = text.decode("utf-8", "replace")
            ending.output_truncated = truncated

    def has_been_silent(self) -> bool:
        """Return whether the run wrote nothing, and was not asked for its stack, as far as is known."""
        return not self.output.kept and self.output.asked_at < 0

    def captures(self, call: Call) -> bool:
        """Return whether the output of `call` is kept."""
        return call.capture_output or self.pool.options.capture_output

    # -- ending its run ------------------------------------------------------------------------------------

    def on_alarm(self, now: float) -> None:
        """A time has come that this worker was to be looked at."""
        self.alarm = math.inf
        state = self.state
        if state is WorkerState.BUSY and now >= min(self.soft_at, self.hard_at - DUMP_LEAD):
            self.on_deadline(now)
        elif state is WorkerState.BUSY and self.call is not None and not self.hung_up:
            self.alarm = min(self.soft_at, self._dump_at(self.call))
            self.pool.loop.hurry(self.alarm)
            if self.decoder.in_frame:
                self.on_rest_late(self.call)
        elif self.hung_up and state not in (WorkerState.LEAVING, WorkerState.DYING):
            self.on_mute()
        elif state is WorkerState.ASKED:
            self.dump_or_kill()
        elif state is WorkerState.DUMPING:
            self.on_dump_late(now)
        elif state is WorkerState.LEAVING:
            self.kill()
        elif state is WorkerState.STARTING:
            limit = self.pool.options.start_timeout
            failure = f"the worker could not start: not ready within {limit} s"
            if self.pid is None:
                self.fleet.on_helper_silent(failure)
            else:
                self.start_error = (failure, None)
                self.dump_or_kill()
        elif state is WorkerState.DYING:
            self.on_overdue(now)

    def on_deadline(self, now: float) -> None:
        """The soft or the hard limit of the run has come, or is near; what was received whole by now still counts."""
        call = self.settle()
        if call is None:
            return
        if now >= self.hard_at:
            assert call.timeout is not None
            self.stop(verdicts.timed_out(call.timeout), REASON_DEADLINE)
            return
        if now >= self.soft_at:
            self.soft_at = math.inf
            self.ask_soft()
        self.alarm = min(self.soft_at, self._dump_at(call))
        if now >= self.alarm:
            self.alarm = min(self.soft_at, self.hard_at)
            self.ask_stack(call)
        self.pool.loop.hurry(self.alarm)

    def ask_stack(self, call: Call) -> None:
        """Have the run write down where it is, if it can, while it goes on."""
        self.dump_number = call.number
        if self.pid is not None and _answers_dump(self.pid):
            self.output.mark()
            self.signal(DUMP_SIGNAL)

    def settle(self) -> Call | None:
        """Find out what the worker runs now, and let it begin nothing else; return that, or None where it is idle.

        Whatever it was sent ahead is taken back first, and nothing more is sent until it has been idle. What it has
        begun nevertheless it began after it had answered for the call before, so the answer can be read: who is still
        seen as running then is the one that a signal hits.
        """
        with self.pool.lock:
            self.sealed = True
            self.recall_locked()
        self.read(limit=1 << 20)
        return self.call if self.state is WorkerState.BUSY else None

    def look_at_clock(self, awake: float) -> None:
        """An injected clock was moved: the same as `on_deadline` by that clock."""
        if self.state is not WorkerState.BUSY or min(self.fake_soft, self.fake_hard) > awake:
            return
        call = self.settle()
        if call is None:
            return
        if awake >= self.fake_hard:
            assert call.timeout is not None
            self.stop(verdicts.timed_out(call.timeout), REASON_DEADLINE)
        elif awake >= self.fake_soft:
            self.fake_soft = math.inf
            self.ask_soft()

    def ask_soft(self) -> None:
        """Raise the soft timeout in the action."""
        assert self.call is not None
        self.page[ASK_REASON] = REASON_SOFT
        self.page[ASK_NUMBER] = self.call.number
        self.signal(SOFT_SIGNAL)

    def stop(self, verdict: tuple[Outcome, str], reason: int) -> None:
        """End the run with `verdict`, which wins over whatever comes later: ask, wait the grace, kill."""
        with self.pool.lock:
            call = self.call
            if call is None or self.state is not WorkerState.BUSY:
                return
            if call.verdict is None:
                call.verdict = verdict
            if call.grace > 0:
                self.enter_locked(WorkerState.ASKED)
        if call.grace <= 0:
            self.dump_or_kill()
            return
        if reason == REASON_DEADLINE:
            self.ask_stack(call)  # where it is now, before it begins to clean up
        self.page[ASK_REASON] = reason
        self.page[ASK_NUMBER] = call.number
        self.fleet.ask(self)
        self.alarm = time.monotonic() + call.grace
        self.pool.loop.hurry(self.alarm)

    def dump_or_kill(self) -> None:
        """Kill the worker; where it is out of time, let it first write down where it is."""
        call = self.call
        out_of_time = call is not None and call.verdict is not None and call.verdict[0] is Outcome.TIMED_OUT
        wait = DUMP_WAIT if self.start_error is None else START_DUMP_WAIT
        if out_of_time and call is not None and call.number == self.dump_number:
            self.output.read()
            if self.output.asked_at < 0 or self.output.stack_is_complete:
                self.kill()
                return
            silence = wait
        elif (
            (out_of_time or self.start_error is not None)
            and self.pid is not None
            and self.signal(DUMP_SIGNAL)
        ):
            silence = DUMP_SILENCE
        else:
            self.kill()
            return
        with self.pool.lock:
            self.enter_locked(WorkerState.DUMPING)
        now = time.monotonic()
        self.dump_end = now + wait
        self.alarm = now + silence
        self.pool.loop.hurry(self.alarm)

    def on_dump_late(self, now: float) -> None:
        """The stack is not complete: wait for the rest while there is time, unless it is not going to come."""
        silent = not self.output.kept
        if now >= self.dump_end or (silent and self.pid is not None and not _answers_dump(self.pid)):
            self.kill()
            return
        self.alarm = self.dump_end
        self.pool.loop.hurry(self.alarm)

    def signal(self, signum: int) -> bool:
        """Send a signal to the worker through its pid descriptor; return whether it went."""
        if self.pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(self.pidfd, signum)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to the worker and its tree; the slot is free from here on."""
        with self.pool.lock:
            if self.state in (WorkerState.DYING, WorkerState.GONE):
                return
            was_running = self.state in RUNNING_STATES
            self.recall_locked()
            self.enter_locked(WorkerState.DYING)
        if not (self.direct and self.signal(signal.SIGKILL)):
            self.fleet.kill_by_helper(self)
        self.killed_at = time.monotonic()
        self.alarm = self.killed_at + NUDGE_WAIT
        self.pool.loop.hurry(self.alarm)
        self.fleet.on_dying(self, was_running=was_running)
        self.output.prepare()

    def leave(self) -> None:
        """Let an idle worker exit by itself, within a second."""
        with self.pool.lock:
            self.leave_locked()

    def leave_locked(self) -> None:
        """Do the same for a caller that holds the pool's lock."""
        if self.state is not WorkerState.IDLE:
            return
        self.enter_locked(WorkerState.LEAVING)
        self.sock.shutdown(1)  # SHUT_WR: it reads the end of the stream
        self.alarm = time.monotonic() + 1.0
        self.pool.loop.hurry(self.alarm)

    def on_overdue(self, now: float) -> None:
        """It was sent SIGKILL, and nobody has reported its end: either the helper is stuck, or this process is."""
        dead = self.is_dead()
        if dead and not self.ping:
            self.ping = self.fleet.ping()
            self.alarm = now + DEATH_WAIT
            self.pool.loop.hurry(self.alarm)
        elif dead and not self.fleet.helper_answered(self.ping):
            self.fleet.on_helper_silent()
        elif now < self.killed_at + DEATH_WAIT:
            self.alarm = self.killed_at + DEATH_WAIT
            self.pool.loop.hurry(self.alarm)
        elif not self.stuck_reported:
            self.stuck_reported = True
            self.fleet.on_unkillable(self)

    def is_dead(self) -> bool:
        """Return whether the process has ended for certain, reaped or not."""
        return self.pidfd is not None and _is_dead(self.pidfd)

    def close(self) -> None:
        """Close the parent's ends."""
        loop = self.pool.loop
        for fd in (self.sock.fileno(), self.output.fd, self.pidfd):
            if fd is not None and fd >= 0:
                loop.forget(fd)
        self.sock.close()
        self.tokens.close()
        self.parcels.close()
        for fd in (self.output.fd, self.pidfd):
            if fd is not None:
                os.close(fd)
        self.pidfd = None
        loop.alarms.discard(self)
        self.page.release()
        self.times.release()


def import_path() -> list[str]:
    """Return a copy of `sys.path` with the working directory in place of the empty entry."""
    entries = [entry or working_directory() for entry in sys.path]
    return [entry for entry in entries if entry]  # without one for a working directory that was removed


def working_directory() -> str | None:
    """Return the working directory, or None where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def _is_dead(pidfd: int) -> bool:
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _answers_dump(pid: int) -> bool:
    """Return whether a process can handle the dump signal now: not stopped, not blocked, and with its handler."""
    if not _system.offers("proc"):
        return True
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
    except OSError:
        return False

    def value(name: bytes) -> bytes:
        start = text.find(name)
        return text[start + len(name) : text.find(b"\n", start)] if start >= 0 else b""

    bit = 1 << (DUMP_SIGNAL - 1)
    stopped = value(b"State:\t")[:1] in (b"T", b"t", b"Z", b"X")
    blocked = int(value(b"SigBlk:\t") or b"0", 16) & bit
    caught = int(value(b"SigCgt:\t") or b"0", 16) & bit
    return bool(caught) and not stopped and not blocked
