"""What is heard from a worker: its answers, its progress, its output, the end of its stream.

    worker == socket pair ==> read() --> on_frames() --answers--> ProcessPool.on_answers()
                                            '--the others--> on_frame()
           --side pipe------> on_side() --> Output (what it wrote, and its stack)

All of it on the pool's I/O thread. How a caller takes a result from here is in `listening.py`.
"""

from __future__ import annotations

import time
from _socket import SO_SNDBUF, SOL_SOCKET  # importing `socket` takes milliseconds

from procsched import _system
from procsched._core import wire
from procsched._core.models import Outcome
from procsched._parcels import Arrived, InBand, Lost
from procsched._parcels import receive as receive_parcel
from procsched.child.protocol import ANSWERED, CHILD_PEAK_BEFORE, USED_BEFORE
from procsched.workers import verdict as verdicts
from procsched.workers.base import Ending
from procsched.workers.loop import READ, WRITE
from procsched.workers.output import Output
from procsched.workers.sending import Ends, Sender, WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched.workers.base import Call
    from procsched.workers.fleet import Fleet
    from procsched.workers.pool import ProcessPool

CLOSED = "worker closed its connection"
REST_WAIT = 0.1  # seconds without the rest of a frame until it is asked whether there is one to come
# Seconds after the end of its stream that a worker gets to be dead, before it counts as mute.
HANGUP_WAIT = 0.1
READ_PER_EVENT = 1 << 20  # bytes, so that one worker that floods cannot starve the others


class Hearer(Sender):
    """The part of a worker's handle that hears from it.

    Attributes:
        pid: its process, None until the helper has told.
        pidfd: a descriptor of that, likewise; None where there is none.
        ready: it has said that it is.
        output: what it wrote beside its answers.
        broken: why there is no talking with it any more.
        held: an ending that waits for the tree to be gone.
        start_error: why it could not start, with a traceback.
        cpu_base: seconds of CPU time that are not of the run that goes on.
    """

    __slots__ = (
        "broken",
        "cpu_base",
        "decoder",
        "fleet",
        "held",
        "mangled",
        "output",
        "pid",
        "pidfd",
        "ready",
        "side_watched",
        "start_error",
    )

    def __init__(self, pool: ProcessPool, fleet: Fleet, number: int, ends: Ends) -> None:
        super().__init__(pool, fleet, number, ends)
        self.fleet = fleet
        self.output = Output(ends.side)
        self.pid: int | None = None
        self.pidfd: int | None = None
        self.ready = False
        self.side_watched = True  # whether the loop tells of what comes beside the answers
        self.decoder = wire.Decoder()
        self.broken = ""
        self.held: Any = None
        self.mangled = False  # what it wrote was read and lost, and it has not been ended yet
        self.start_error: tuple[str, str | None] | None = None
        self.cpu_base = 0.0

    def kill(self) -> None:
        """Send SIGKILL to the worker and its tree."""
        raise NotImplementedError

    def on_socket(self, events: int) -> None:
        """Write what waits, read what came."""
        if events & WRITE:
            with self.pool.lock:
                self.flush_locked()
                if not self.out:
                    self.tune_locked()
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

    def _read(self, thorough: bool) -> None:
        left = READ_PER_EVENT
        if self.taken:
            with self.pool.lock:
                self.drop_taken_locked()
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
                held = self.pool.holding
                data = self.sock.recv(1 << 16) if held is None else held.receive(self.sock.fileno())
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
            self.mangled = True  # first: what follows may fail as well, and is done again then
            self.pool.loop.note(error)
            self.break_off(f"an error in the pool: {type(error).__name__}: {error}")
            self.mangled = False

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
                self.pool.on_answers(self, answers)  # type: ignore[arg-type]  # a `Worker`
                answers = []
            self.on_frame(frame)
        if answers:
            self.pool.on_answers(self, answers)  # type: ignore[arg-type]  # a `Worker`
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
            self.fleet.on_ready(self)  # type: ignore[arg-type]  # a `Worker`
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
            self.break_off(CLOSED)

    def break_off(self, reason: str) -> None:
        """End a worker with which there is no talking any more."""
        with self.pool.reading:
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
        with self.pool.reading:
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
        # Where a child of an earlier run was as large, nobody knows how large this one was.
        ending.peak_rss = rss if rss > self.page[CHILD_PEAK_BEFORE] else None
        before = self.times[USED_BEFORE]
        # It may have written anything there.
        ending.cpu_seconds = max(0.0, cpu - (before if self.cpu_base <= before <= cpu else self.cpu_base))
        verdicts.facts_of(ending, status)
        self.output.read()  # a run that crashes writes its stack last, and its death may be heard of before that
        self.add_output(ending, call)
        if self.watch is not None and self.watch.call is call:
            self.watch.complete(ending)
        return ending

    def is_dead(self) -> bool:
        """Return whether the process has ended for certain, reaped or not."""
        return self.pidfd is not None and _system.has_ended(self.pidfd)

    def watch_side(self, wanted: bool) -> None:
        """Have the I/O thread read what is written beside the answers, or leave it for now."""
        if wanted is not self.side_watched and not self.output.ended:
            self.side_watched = wanted
            self.pool.loop.change(self.output.fd, READ if wanted else 0)
