"""One worker as the parent sees it: its descriptors, its call, its deadlines, its end.

    STARTING --ready--> IDLE --call--> BUSY --answer--> IDLE
                                        |--deadline, kill--> ASKED (grace) --> DUMPING (stack) --> DYING
    any of them --broken pipe, start limit--> DYING --reaped, tree ended--> GONE
    IDLE --recycled, shutdown--> LEAVING --reaped--> GONE

Who touches what: `assign_locked` runs in whichever thread pumps, with the pool's lock held, and ends with a write
that does not block. Everything else runs on the pool's I/O thread; where it changes what `assign_locked` or
`ProcessPool.kill` reads, it does so with the lock.
"""

from __future__ import annotations

import logging
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
from procsched.child.protocol import (
    ASK_NUMBER,
    ASK_REASON,
    DUMP_SIGNAL,
    PAGE_WORDS,
    REASON_DEADLINE,
    REASON_SOFT,
    SOFT_SIGNAL,
    STARTED,
)
from procsched.workers import verdict as verdicts
from procsched.workers.loop import READ, WRITE, Alarm

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from procsched.workers.base import Call, Ending
    from procsched.workers.fleet import Fleet
    from procsched.workers.pool import ProcessPool

BACKSTOP_MARGIN = 0.025  # seconds after deadline and grace at which the kernel's own timer strikes
DUMP_WAIT = 0.0005  # seconds that a stack is waited for
DUMP_SILENCE = (
    0.0001  # seconds without a word of it until the process is asked whether it can answer: that is slow
)
HANGUP_WAIT = (
    0.1  # seconds after the end of its stream that a worker gets to be dead, before it counts as mute
)
DEATH_WAIT = 5.0  # seconds after SIGKILL until a process counts as one that the kernel cannot end
OUTPUT_KEPT = 64 << 10  # bytes of captured output that a record keeps, the newest
READS_PER_EVENT = 16  # so that one worker that floods cannot starve the others
PIECE = 1 << 18

logger = logging.getLogger("procsched")


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


RUNNING_STATES = frozenset({WorkerState.BUSY, WorkerState.ASKED, WorkerState.DUMPING})


class Worker(Alarm):
    """A child process with its handle in the parent."""

    __slots__ = (
        "asked_at",
        "call",
        "call_number",
        "cpu_base",
        "dead",
        "decoder",
        "direct",
        "dump_end",
        "fake_hard",
        "fake_soft",
        "fleet",
        "hard_at",
        "held",
        "hung_up",
        "number",
        "out",
        "output",
        "output_truncated",
        "page",
        "page_index",
        "path",
        "pid",
        "pidfd",
        "pool",
        "ready",
        "runs",
        "seen_path",
        "side",
        "sock",
        "soft_at",
        "start_error",
        "state",
        "stuck_reported",
        "verdict",
    )

    def __init__(
        self, pool: ProcessPool, fleet: Fleet, number: int, sock: socket.socket, side: int, page_index: int
    ) -> None:
        super().__init__()
        self.pool = pool
        self.fleet = fleet
        self.number = number
        self.sock = sock
        self.side = side
        self.page_index = page_index
        self.page = fleet.pages[page_index * PAGE_WORDS : (page_index + 1) * PAGE_WORDS]
        self.state = WorkerState.STARTING  # guarded by the pool's lock
        self.call: Call | None = None  # guarded by the pool's lock
        self.verdict: tuple[Outcome, str] | None = None  # guarded by the pool's lock; set once a run
        self.call_number = 0
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.direct = False  # whether a SIGKILL through the pid descriptor ends the whole tree
        self.ready = False
        self.dead = False  # its end was reported; what it wrote before may still be read
        self.hung_up = False  # its stream has ended
        self.decoder = wire.Decoder()
        self.out: deque[memoryview] = deque()  # guarded by the pool's lock
        self.path: list[str] = []  # the import path that the worker has
        self.seen_path: list[str] = []  # `sys.path` when it was made
        self.soft_at = self.hard_at = math.inf  # steady time
        self.fake_soft = self.fake_hard = math.inf  # the same on an injected clock
        self.held: Any = None  # an ending that waits for the tree to be gone
        self.dump_end = 0.0  # steady time
        self.asked_at = -1  # where in `output` a stack was asked for before the grace
        self.start_error: tuple[str, str | None] | None = None
        self.output = bytearray()
        self.output_truncated = False
        self.cpu_base = 0.0
        self.runs = 0
        self.stuck_reported = False

    # -- taking a call -------------------------------------------------------------------------------------

    def assign_locked(self, call: Call, number: int) -> None:
        """Take a call and send it. The caller holds the pool's lock."""
        self.state = WorkerState.BUSY
        self.call = call
        self.call_number = number
        self.verdict = None
        self.soft_at = self.hard_at = math.inf
        backstop = 0.0
        timeout = call.timeout
        if timeout is not None or call.soft_timeout is not None:
            if self.pool.real_clock:
                now = time.monotonic()
                if timeout is not None:
                    self.hard_at = now + timeout
                    backstop = self.hard_at + call.grace + BACKSTOP_MARGIN
                if call.soft_timeout is not None:
                    self.soft_at = now + call.soft_timeout
                self.alarm = min(self.soft_at, self.hard_at)
                self.pool.loop.hurry(self.alarm)
            else:
                awake = self.pool.awake()
                self.fake_hard = math.inf if timeout is None else awake + timeout
                self.fake_soft = math.inf if call.soft_timeout is None else awake + call.soft_timeout
        path = sys.path
        if path != self.seen_path:
            self.seen_path = list(path)
            self.path = import_path()
            self._queue_locked(wire.encode(wire.PATH, payload=pickle.dumps(self.path, 5)))
        parts = wire.encode(
            wire.CALL,
            number,
            call.payload,
            flags=wire.CAPTURE if self.captures(call) else 0,
            first=backstop,
            second=-1.0 if timeout is None else timeout,
            third=call.run << 32 | call.attempt,
            meta=f"{call.task_id}\0{call.name}".encode("utf-8", "surrogatepass"),
        )
        self._queue_locked(parts)
        self.flush_locked()

    def has_started(self) -> bool:
        """Return whether the worker began the run that it was last given. Exact once it is dead."""
        return self.page[STARTED] == self.call_number

    def send_start(self, payload: bytes) -> None:
        """Send the first frame."""
        with self.pool.lock:
            self._queue_locked(wire.encode(wire.START, payload=payload))
            self.flush_locked()

    def _queue_locked(self, parts: list[bytes | bytearray]) -> None:
        self.out.extend(map(memoryview, parts))

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
                        self.on_frame(frame)
                    continue
                data = self.sock.recv(1 << 16)
                if not data:
                    self.on_hangup()
                    return
                whole = self.decoder.whole(data)
                if whole is not None:
                    self.on_frame(whole)
                else:
                    for frame in self.decoder.feed(data):
                        self.on_frame(frame)
                if len(data) < 1 << 16 and limit == READS_PER_EVENT:
                    return  # that was all; if more has come meanwhile, the loop calls again
        except BlockingIOError:
            return
        except OSError:
            self.on_hangup()
        except wire.WireError as error:
            self.break_off(f"worker wrote what is no message: {error}")

    def on_frame(self, frame: wire.Frame) -> None:
        """Handle one message."""
        kind = frame.kind
        if kind in (wire.DONE, wire.RAISED):
            self.pool.on_answer(self, frame)
        elif kind == wire.PROGRESS:
            call = self.call
            if call is not None and frame.number == self.call_number:
                done, total, note = wire.unpack(frame.payload, 3)
                call.progressed(done, total, note)
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
        if self.pidfd is not None and _is_dead(self.pidfd):
            self.kill()  # which changes nothing for it, and has the report of its death waited for
        else:
            self.break_off("worker closed its connection")

    def break_off(self, reason: str) -> None:
        """End a worker with which there is no talking any more."""
        with self.pool.lock:
            if self.verdict is None:
                self.verdict = (Outcome.CRASHED, reason)
        if self.state is WorkerState.STARTING and self.start_error is None:
            self.start_error = (f"the worker could not start: {reason}", None)
        self.kill()

    def on_side(self, _events: int) -> None:
        """Output or a stack has come: keep the newest of it."""
        try:
            for _ in range(READS_PER_EVENT):
                data = os.read(self.side, 1 << 16)
                if not data:
                    self.pool.loop.forget(self.side)
                    break
                self.output += data
                if len(self.output) > 2 * OUTPUT_KEPT:
                    self.asked_at = max(-1, self.asked_at - (len(self.output) - OUTPUT_KEPT))
                    del self.output[:-OUTPUT_KEPT]
                    self.output_truncated = True
        except BlockingIOError:
            pass
        if self.state is WorkerState.DUMPING and verdicts.stack_is_complete(self.output):
            self.kill()

    def take_output(self) -> tuple[bytes, str | None, bool]:
        """Return output, stack and whether output was lost, of the run that ended, and begin anew."""
        self.on_side(READ)
        output, stack = verdicts.split_stack(bytes(self.output), self.asked_at)
        truncated = self.output_truncated or len(output) > OUTPUT_KEPT
        self.output.clear()
        self.output_truncated = False
        self.asked_at = -1
        return output[-OUTPUT_KEPT:], stack, truncated

    def add_output(self, ending: Ending, call: Call) -> None:
        """Put what the run wrote into its ending: the stack, and the output where it is wanted."""
        if not self.output and not self.captures(call):
            return
        output, ending.stack, truncated = self.take_output()
        if self.captures(call):
            ending.output = output.decode("utf-8", "replace")
            ending.output_truncated = truncated

    def captures(self, call: Call) -> bool:
        """Return whether the output of `call` is kept."""
        return call.capture_output or self.pool.options.capture_output

    # -- ending its run ------------------------------------------------------------------------------------

    def on_alarm(self, now: float) -> None:
        """A time has come that this worker was to be looked at."""
        self.alarm = math.inf
        state = self.state
        if state is WorkerState.BUSY and now >= min(self.soft_at, self.hard_at):
            self.on_deadline(now)
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
            self.on_overdue()

    def on_deadline(self, now: float) -> None:
        """The soft or the hard limit of the run has come; what was received whole by now still counts."""
        number = self.call_number
        self.read(limit=1 << 20)
        call = self.call
        if call is None or self.call_number != number or self.state is not WorkerState.BUSY:
            return
        if now >= self.hard_at:
            assert call.timeout is not None
            self.stop(verdicts.timed_out(call.timeout), REASON_DEADLINE)
            return
        if now >= self.soft_at:
            self.soft_at = math.inf
            self.ask_soft()
        self.alarm = min(self.soft_at, self.hard_at)
        self.pool.loop.hurry(self.alarm)

    def look_at_clock(self, awake: float) -> None:
        """An injected clock was moved: the same as `on_deadline` by that clock."""
        if self.state is not WorkerState.BUSY or min(self.fake_soft, self.fake_hard) > awake:
            return
        self.read(limit=1 << 20)
        call = self.call
        if call is None or self.state is not WorkerState.BUSY:
            return
        if awake >= self.fake_hard:
            assert call.timeout is not None
            self.stop(verdicts.timed_out(call.timeout), REASON_DEADLINE)
        elif awake >= self.fake_soft:
            self.fake_soft = math.inf
            self.ask_soft()

    def ask_soft(self) -> None:
        """Raise the soft timeout in the action."""
        self.page[ASK_REASON] = REASON_SOFT
        self.page[ASK_NUMBER] = self.call_number
        self.signal(SOFT_SIGNAL)

    def stop(self, verdict: tuple[Outcome, str], reason: int) -> None:
        """End the run with `verdict`, which wins over whatever comes later: ask, wait the grace, kill."""
        with self.pool.lock:
            if self.verdict is None:
                self.verdict = verdict
            call = self.call
            if call is None or self.state is not WorkerState.BUSY:
                return
            if call.grace <= 0:
                grace = 0.0
            else:
                grace = call.grace
                self.state = WorkerState.ASKED
        if not grace:
            self.dump_or_kill()
            return
        if reason == REASON_DEADLINE and self.pid is not None and _answers_dump(self.pid):
            self.on_side(READ)
            self.asked_at = len(self.output)
            self.signal(DUMP_SIGNAL)  # where it is now, before it begins to clean up
        self.page[ASK_REASON] = reason
        self.page[ASK_NUMBER] = self.call_number
        self.fleet.ask(self)
        self.alarm = time.monotonic() + grace
        self.pool.loop.hurry(self.alarm)

    def dump_or_kill(self) -> None:
        """Kill the worker; where it is out of time, let it first write down where it is."""
        wanted = self.start_error is not None or (
            self.verdict is not None and self.verdict[0] is Outcome.TIMED_OUT
        )
        if not (wanted and self.pid is not None and self.signal(DUMP_SIGNAL)):
            self.kill()
            return
        with self.pool.lock:
            self.state = WorkerState.DUMPING
        self.dump_end = time.monotonic() + DUMP_WAIT
        self.alarm = self.dump_end - DUMP_WAIT + DUMP_SILENCE
        self.pool.loop.hurry(self.alarm)

    def on_dump_late(self, now: float) -> None:
        """The stack is not complete: wait for the rest while there is time, unless it is not going to come."""
        if now >= self.dump_end or (not self.output and self.pid is not None and not _answers_dump(self.pid)):
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
            self.state = WorkerState.DYING
        if not (self.direct and self.signal(signal.SIGKILL)):
            self.fleet.kill_by_helper(self)
        self.alarm = time.monotonic() + DEATH_WAIT
        self.pool.loop.hurry(self.alarm)
        self.fleet.on_dying(self, was_running=was_running)

    def leave(self) -> None:
        """Let an idle worker exit by itself, within a second."""
        with self.pool.lock:
            if self.state not in (WorkerState.IDLE, WorkerState.BUSY):
                return
            self.state = WorkerState.LEAVING
        self.sock.shutdown(1)  # SHUT_WR: it reads the end of the stream
        self.alarm = time.monotonic() + 1.0
        self.pool.loop.hurry(self.alarm)

    def on_overdue(self) -> None:
        """Five seconds after SIGKILL nobody has reported its end."""
        if self.pidfd is not None and _is_dead(self.pidfd):
            self.fleet.on_helper_silent()
            return
        if not self.stuck_reported:
            self.stuck_reported = True
            self.fleet.on_unkillable(self)

    def close(self) -> None:
        """Close the parent's ends."""
        loop = self.pool.loop
        for fd in (self.sock.fileno(), self.side, self.pidfd):
            if fd is not None and fd >= 0:
                loop.forget(fd)
        self.sock.close()
        for fd in (self.side, self.pidfd):
            if fd is not None:
                os.close(fd)
        self.pidfd = None
        loop.alarms.discard(self)
        self.page.release()


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
