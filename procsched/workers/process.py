"""One worker as the parent sees it: its descriptors, its call, its deadlines, its end.

    STARTING --ready--> IDLE --call--> BUSY --answer--> IDLE
                                        |--deadline, kill--> ASKED (grace) --> DUMPING (stack) --> DYING
    STARTING --start limit--> FAILING (stack) --> DYING
    any of them --broken pipe--> DYING --reaped, tree ended--> GONE
    IDLE --recycled, shutdown--> LEAVING --reaped--> GONE

What it is sent, and in how far it has begun that, is in `sending.py`.

Who touches what: methods whose names end in `_locked` run in any thread that holds the pool's lock, and write without
blocking. Everything else runs on the pool's I/O thread; where it changes what those read, it does so with the lock.
"""

from __future__ import annotations

import math
import os
import signal
import time
from _socket import MSG_PEEK, SO_SNDBUF, SOL_SOCKET  # importing `socket` takes milliseconds

from procsched import _system
from procsched._core import wire
from procsched._core.models import Outcome
from procsched._parcels import Arrived, InBand, Lost
from procsched._parcels import receive as receive_parcel
from procsched.child.protocol import (
    ANSWERED,
    ASK_NUMBER,
    ASK_REASON,
    DUMP_SIGNAL,
    REASON_DEADLINE,
    REASON_SOFT,
    SOFT_SIGNAL,
    USED_BEFORE,
)
from procsched.workers import verdict as verdicts
from procsched.workers.base import Ending
from procsched.workers.loop import READ, WRITE
from procsched.workers.output import Output
from procsched.workers.sending import DUMP_LEAD, RUNNING_STATES, Sender, WorkerState
from procsched.workers.tokens import Tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

    from procsched.workers.base import Call
    from procsched.workers.fleet import Fleet
    from procsched.workers.pool import ProcessPool

DUMP_WAIT = 0.01  # seconds that a stack is waited for at the deadline, where it has not come by then
START_DUMP_WAIT = 1.0  # the same for a worker that does not get ready: nobody counts the milliseconds of that
# Seconds without a word of it until the process is asked whether it can answer: that is slow.
DUMP_SILENCE = 0.0001
REST_WAIT = 0.1  # seconds without the rest of a frame until it is asked whether there is one to come
# Seconds after the end of its stream that a worker gets to be dead, before it counts as mute.
HANGUP_WAIT = 0.1
# Seconds after SIGKILL at which the helper is asked about a dead worker that it has not reported.
NUDGE_WAIT = 0.25
DEATH_WAIT = 5.0  # seconds after SIGKILL until a process counts as one that the kernel cannot end
ALARM_AGAIN = (
    1.0  # seconds after which a deadline is looked at again that an error of ours kept from being enforced
)
SPUN = 1 << 13  # bytes of an answer, at most, that a caller who spins takes
_WITH_STACK = (Outcome.TIMED_OUT, Outcome.LIMIT_EXCEEDED)  # of which people want to know where it was
READ_PER_EVENT = 1 << 20  # bytes, so that one worker that floods cannot starve the others


class Worker(Sender):
    """A child process with its handle in the parent."""

    __slots__ = (
        "born_at",
        "broken",
        "cpu_base",
        "decoder",
        "direct",
        "dump_end",
        "dump_number",
        "fleet",
        "held",
        "imports",
        "killed_at",
        "output",
        "pid",
        "pidfd",
        "ping",
        "ready",
        "side_watched",
        "start_error",
        "stuck_reported",
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
        super().__init__(pool, fleet, number, sock, tokens, page_index, parcels)
        self.fleet = fleet
        self.born_at = time.monotonic()
        self.output = Output(side)
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.direct = False  # whether a SIGKILL through the pid descriptor ends the whole tree
        self.ready = False
        self.side_watched = True  # whether the loop tells of what comes beside the answers
        self.imports = False  # whether it imports modules before it is ready
        self.decoder = wire.Decoder()
        self.broken = ""  # why there is no talking with it any more
        self.held: Any = None  # an ending that waits for the tree to be gone
        self.dump_number = 0  # the run that was asked for its stack ahead of its deadline
        self.dump_end = 0.0  # steady time
        self.start_error: tuple[str, str | None] | None = None
        self.cpu_base = 0.0
        self.stuck_reported = False
        self.killed_at = 0.0  # steady time
        self.ping = 0  # number of the question to the helper why it does not report our end

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

    def read(self, *, thorough: bool = False) -> None:
        """Read what is there and handle the frames that are whole.

        Args:
            thorough: nothing that is there now may stay unread. What comes meanwhile may: a worker that writes more
                quickly than it is read would have this go on for ever.
        """
        with self.pool.reading:
            self._read(thorough)

    def spin(self, call: Call, seconds: float) -> None:
        """Look for so many seconds whether the result of `call` has come, and book it when it has. From any thread.

        Nobody else runs in this process meanwhile. What has come is only looked at until it is booked, so that nothing
        is lost where a signal handler raises in between: an answer that is found again is known by its number. Anything
        that is not one plain result is left to the I/O thread, which has been woken for it as well.
        """
        from procsched.workers import holding

        end = time.monotonic() + seconds
        try:
            while self.page[ANSWERED] < call.number:
                if time.monotonic() >= end:
                    return
        except ValueError:  # the worker is gone
            return
        with self.pool.reading:
            if self.call is not call or self.decoder.in_frame:
                return
            fd = self.sock.fileno()
            try:
                data = holding.receive(fd, SPUN, MSG_PEEK)
                frames = wire.Decoder().feed(data)
                if len(frames) != 1 or frames[0].kind != wire.DONE or frames[0].number != call.number:
                    return
                size = wire.HEADER.size + len(frames[0].meta) + len(frames[0].payload)
                if size == len(data) and not frames[0].flags:
                    self.pool.hear(self, frames)
                    holding.receive(fd, size)
            except OSError:  # it is gone already, or somebody else has read it
                return

    def _read(self, thorough: bool) -> None:
        left = READ_PER_EVENT
        try:
            if thorough:
                # Twice what the kernel lets a writer have on its way: its end was made with ours (unix(7)).
                left = 2 * self.sock.getsockopt(SOL_SOCKET, SO_SNDBUF)
            while left > 0:
                target = self.decoder.target
                if target is not None:
                    count = self.sock.recv_into(target)
                    if not count:
                        self.on_hangup()
                        return
                    left -= count
                    frame = self.decoder.filled(count)
                    if frame is not None:
                        self.on_frames([frame])
                    continue
                data = self.sock.recv(1 << 16)
                if not data:
                    self.on_hangup()
                    return
                left -= len(data)
                self.on_frames(self.decoder.feed(data))
                if len(data) < 1 << 16 and not thorough:
                    break  # that was all; if more has come meanwhile, the loop calls again
            self.expect_rest()
        except BlockingIOError:
            self.expect_rest()
        except OSError:
            self.on_hangup()
        except wire.WireError as error:
            self.break_off(f"worker wrote what is no message: {error}")
        except Exception as error:
            # A fault of ours. What was read is lost, and an answer may be among it, which somebody waits for.
            self.pool.loop.note(error)
            self.break_off(f"an error in the pool: {type(error).__name__}: {error}")

    def expect_rest(self) -> None:
        """Where a frame has begun and not ended: look again, for something else may have written into the socket."""
        if self.decoder.in_frame and self.state is WorkerState.BUSY:
            self.alarm = min(self.alarm, time.monotonic() + REST_WAIT)
            self.pool.loop.hurry(self.alarm)

    def on_rest_late(self, call: Call) -> None:
        """The rest of a frame has not come. If the worker has written all that it had to say, it never will."""
        answered = self.page[ANSWERED] >= call.number
        self.read(thorough=True)
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

    def on_frame(self, frame: wire.Frame) -> None:
        """Handle one message that is no answer."""
        kind = frame.kind
        if kind == wire.PROGRESS:
            call = self.call
            if call is not None and frame.number == call.number:
                done, total, note = wire.open_progress(frame.payload)
                try:
                    call.progressed(done, total, note)
                except BaseException as error:  # what came behind it is still to be handled
                    self.pool.loop.note(error)
        elif kind == wire.READY and self.state is WorkerState.STARTING:
            self.ready = True
            self.cpu_base = frame.second
            self.fleet.on_ready(self)
        elif kind == wire.START_FAILED and self.state is WorkerState.STARTING:
            text, traceback, _carried, _obstacle = wire.open_failure(frame.payload)
            self.start_error = (f"the worker could not start: {text}", traceback)
            self.kill()
        else:
            self.break_off(f"worker sent a message of kind {kind} out of turn")

    def on_hangup(self) -> None:
        """The socket has ended: the process is dying, or it closed its pipe and can be of no use."""
        self.pool.loop.forget(self.sock.fileno())
        if self.state in (WorkerState.DYING, WorkerState.LEAVING, WorkerState.GONE):
            return
        self.hung_up = True
        if self.state is WorkerState.IDLE:
            self.kill()
            return
        # The descriptors of a process are closed a moment before it counts as dead. What ended it is for its wait
        # status to say, or for the death of the helper: a verdict now would hide that.
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
            self.broken = reason
            # One that it has not begun yet is not to blame either; once it is dead that is known for certain.
            if self.call is not None and self.call.verdict is None and self.has_begun(self.call):
                self.call.verdict = (Outcome.CRASHED, reason)
        if self.state is WorkerState.STARTING and self.start_error is None:
            self.start_error = (f"the worker could not start: {reason}", None)
        self.kill()

    def on_side(self, _events: int) -> None:
        """Output or a stack has come: keep the newest of it."""
        self.output.read()
        if self.output.ended:
            self.pool.loop.forget(self.output.fd)
        if self.watch is not None:
            self.watch.on_output()
        if self.state in (WorkerState.DUMPING, WorkerState.FAILING) and self.output.stack_is_complete:
            self.kill()

    def add_output(self, ending: Ending, call: Call) -> None:
        """Put what the run wrote into its ending: the stack, and the output where it is wanted."""
        output, captures = self.output, self.captures(call)
        if not captures and self.has_been_silent():
            return
        text, stack, truncated = output.take()
        if not self.dead:
            self.watch_side(True)
        if ending.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED):  # else it came back from where it was
            ending.stack = stack
        if captures:
            ending.output = text.decode("utf-8", "replace")
            ending.output_truncated = truncated

    def has_been_silent(self) -> bool:
        """Return whether the run wrote nothing, and was not asked for its stack, as far as is known."""
        return not self.output.kept and self.output.asked_at < 0

    def ending_of(self, call: Call, status: int, at: float, cpu: float, rss: int) -> Ending:
        """Return how the call ended that a dead worker had: as was held back, or as its death says.

        Args:
            status: its wait status.
            at: steady time of its death.
            cpu, rss: seconds of CPU time and bytes of memory of its whole life.
        """
        if self.held is not None:
            held: Ending = self.held
            return held
        outcome, error = verdicts.decide_death(call.verdict, status, at, self.hard_at, call.timeout)
        ending = Ending(outcome, error, pid=self.pid)
        ending.peak_rss = rss or None
        before = self.times[USED_BEFORE]
        # It may have written anything there.
        ending.cpu_seconds = max(0.0, cpu - (before if self.cpu_base <= before <= cpu else self.cpu_base))
        verdicts.facts_of(ending, status)
        self.add_output(ending, call)
        if self.watch is not None and self.watch.call is call:
            self.watch.complete(ending)
        return ending

    # -- ending its run ------------------------------------------------------------------------------------

    def on_alarm(self, now: float) -> None:
        """A time has come that this worker was to be looked at. Where that fails it is tried again."""
        try:
            self._on_alarm(now)
        except BaseException:
            self.alarm = now + ALARM_AGAIN
            raise

    def _on_alarm(self, now: float) -> None:
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
        elif state in (WorkerState.DUMPING, WorkerState.FAILING):
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
            if self.output.asked_at >= 0:
                self.watch_side(False)  # it comes in a hundred pieces, and is looked at when it is wanted
        self.pool.loop.hurry(self.alarm)

    def ask_stack(self, call: Call) -> None:
        """Have the run write down where it is, if it can, while it goes on."""
        self.dump_number = call.number
        if self.pid is not None and answers_dump(self.pid):
            self.output.mark()
            self.signal(DUMP_SIGNAL)

    def watch_side(self, wanted: bool) -> None:
        """Have the I/O thread read what is written beside the answers, or leave it for now."""
        if wanted is not self.side_watched and not self.output.ended:
            self.side_watched = wanted
            self.pool.loop.change(self.output.fd, READ if wanted else 0)

    def settle(self) -> Call | None:
        """Find out what the worker runs now, and let it begin nothing else; return that, or None where it is idle.

        Whatever it was sent ahead is taken back first, and nothing more is sent until it has been idle. What it has
        begun nevertheless it began after it had answered for the call before, so the answer can be read: who is still
        seen as running then is the one that a signal hits.
        """
        with self.pool.lock:
            self.sealed = True
            self.recall_locked()
        self.read(thorough=True)
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

    def is_at_work(self) -> bool:
        """Return whether its run goes on, be it asked to stop."""
        return self.state in (WorkerState.BUSY, WorkerState.ASKED)

    def exceed(self, call: Call, verdict: tuple[Outcome, str]) -> None:
        """End a run that uses more than it may, without a grace: it would use yet more. What came before counts."""
        if self.state is WorkerState.ASKED and self.call is call:
            self.kill()  # its end was decided before; the grace is no leave to use more
            return
        if self.settle() is not call:
            return
        with self.pool.lock:
            if self.call is not call or self.state is not WorkerState.BUSY:
                return
            if call.verdict is None:
                call.verdict = verdict
        self.ask_stack(call)
        self.dump_or_kill()

    def dump_or_kill(self) -> None:
        """Kill the worker; where it is out of time, or over a limit, let it first write down where it is."""
        call = self.call
        out_of_time = call is not None and call.verdict is not None and call.verdict[0] in _WITH_STACK
        wait = DUMP_WAIT if self.start_error is None else START_DUMP_WAIT
        if out_of_time and call is not None and call.number == self.dump_number:
            self.output.read()
            if self.output.asked_at < 0 or self.output.stack_is_complete:
                self.kill()
                return
            silence = wait
            self.watch_side(True)
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
            # One that does not get ready runs nothing, and takes no place from what could run.
            self.enter_locked(WorkerState.DUMPING if self.ready else WorkerState.FAILING)
        now = time.monotonic()
        self.dump_end = now + wait
        self.alarm = now + silence
        self.pool.loop.hurry(self.alarm)

    def on_dump_late(self, now: float) -> None:
        """The stack is not complete: wait for the rest while there is time, unless it is not going to come."""
        self.output.read()
        silent = not self.output.kept and self.pid is not None
        over = now >= self.dump_end or self.output.stack_is_complete
        if over or (silent and not answers_dump(self.pid or 0, asked=True)):
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
        if self.direct and self.signal(signal.SIGKILL):
            self.pool.went("kill.pidfd")
        else:
            self.pool.went("kill.helper")
            self.fleet.kill_by_helper(self)
        self.pool.went("tree.subreaper" if _system.offers("subreaper") else "tree.walk")
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
        return self.pidfd is not None and _system.has_ended(self.pidfd)

    def close(self) -> None:
        """Close the parent's ends."""
        loop = self.pool.loop
        for fd in (self.sock.fileno(), self.output.fd, self.pidfd):
            if fd is not None and fd >= 0:
                loop.forget(fd)
        # Who spins reads by the number of the descriptor, which is somebody else's next.
        with self.pool.reading:
            self.sock.close()
        self.tokens.close()
        self.parcels.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        os.close(self.output.fd)
        self.pidfd = None
        if self.watch is not None:
            self.watch.close()
        loop.alarms.discard(self)
        self.page.release()
        self.times.release()


def answers_dump(pid: int, *, asked: bool = False) -> bool:
    """Return whether a process can handle the dump signal now: not stopped, not blocked, and with its handler.

    Args:
        asked: whether it was sent the signal. While its handler runs the signal is blocked too, but not pending.
    """
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
    if asked:
        blocked &= int(value(b"ShdPnd:\t") or b"0", 16) | int(value(b"SigPnd:\t") or b"0", 16)
    caught = int(value(b"SigCgt:\t") or b"0", 16) & bit
    return bool(caught) and not stopped and not blocked
