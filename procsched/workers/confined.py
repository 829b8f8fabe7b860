"""A worker that is a sandboxed process: three pipes, one job, and a reader that believes nothing.

    STARTING --ready--> IDLE --job--> BUSY --outcome, violation, deadline, kill--> DYING --reaped--> GONE
                                       |
                                  progress, as much as the bucket holds

It is told from other workers by what is written to it and by how its answers are read; how it is timed, killed, reaped
and booked is what `process.py` and `fleet.py` do for all. It is killed after its first outcome, whatever that was.
"""

from __future__ import annotations

import contextlib
import os
import time

from procsched import _system
from procsched._core.models import Outcome, Sealed
from procsched.child.protocol import STARTED
from procsched.sandbox import judging
from procsched.sandbox.examining import findings_of
from procsched.sandbox.frames import LENGTH, PROGRESS_CAP, READ_MOST, Reader, ViolationError
from procsched.sandbox.packing import order
from procsched.sandbox.reports import SIZE, open_report
from procsched.sandbox.values import one_line, printable
from procsched.workers import verdict as verdicts
from procsched.workers.base import Ending
from procsched.workers.hearing import CLOSED
from procsched.workers.loop import READ, WRITE
from procsched.workers.output import Output
from procsched.workers.process import Worker
from procsched.workers.sending import BACKSTOP_MARGIN, BUSY, PIECE, Ends

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched.sandbox.examining import Findings
    from procsched.sandbox.frames import Frame
    from procsched.sandbox.prepare import Prepared
    from procsched.workers.base import Call
    from procsched.workers.confined_fleet import ConfinedFleet
    from procsched.workers.pool import ProcessPool

# Messages about progress that are taken at once, and each second. Who sends more is read more slowly.
PROGRESS_BURST, PROGRESS_RATE = 40.0, 25.0
VIOLATION = "protocol violation: "


class Pipes:
    """The two pipes of the wire, where other workers have a socket."""

    def __init__(self, task: int, answers: int) -> None:
        self.task = task
        self.answers = answers

    def fileno(self) -> int:
        """Return the descriptor that is read from."""
        return self.answers

    def send(self, data: Any) -> int:
        """Write what the pipe takes."""
        return os.write(self.task, data)

    def recv(self, most: int) -> bytes:
        """Read what there is."""
        return os.read(self.answers, most)

    def shutdown(self, _how: int) -> None:
        """Send no more: the process reads the end of the stream."""
        task, self.task = self.task, -1
        if task >= 0:
            os.close(task)

    def close(self) -> None:
        """Close both."""
        self.shutdown(1)
        answers, self.answers = self.answers, -1
        if answers >= 0:
            os.close(answers)


def make_pipe(reader_undo: Any, writer_undo: Any) -> tuple[int, int]:
    """Return a pipe whose ends two stacks close on the way out."""
    reader, writer = _system.pipe()
    reader_undo(os.close, reader)
    writer_undo(os.close, writer)
    return reader, writer


class Nothing:
    """What a sandboxed process does not share: tokens of calls sent ahead, a socket for parcels."""

    broken = False

    def take_back(self) -> set[int]:
        """Return the numbers of the calls that were not begun."""
        return set()

    take_back_again = take_back

    def close(self) -> None:
        """Have nothing to close."""


class FirstOutput(Output):
    """The first of what a process writes to stdout and stderr. When that is enough, the pipe is closed."""

    def __init__(self, fd: int, most: int) -> None:
        super().__init__(fd)
        self.most = most

    def read(self) -> None:
        """Read a part of what there is room for, and in the end a byte more, to see whether there is more."""
        if self.ended or self.fd < 0:
            return
        try:
            data = os.read(self.fd, min(READ_MOST, self.most + 1 - len(self.kept)))
        except BlockingIOError:
            return
        self.kept += data
        self.truncated = len(self.kept) > self.most
        self.ended = not data or self.truncated

    def prepare(self) -> None:
        """Read what is there: there is nothing to prepare."""
        self.read()

    def take(self) -> tuple[bytes, str | None, bool]:
        """Return it, without a stack, and whether there was more. Nobody writes any more, or it does not matter."""
        size = -1
        while size < len(self.kept):
            size = len(self.kept)
            self.read()
        return bytes(self.kept[: self.most]), None, self.truncated


class Confined(Worker):
    """A sandboxed process with its handle in the parent. Untrusted from the moment at which it is sent its job."""

    __slots__ = (
        "budget",
        "checked_at",
        "left",
        "paused",
        "pipes",
        "policy",
        "prepared",
        "reader",
        "report",
        "seen",
        "uid",
        "writing",
    )

    def __init__(
        self,
        pool: ProcessPool,
        fleet: ConfinedFleet,
        number: int,
        pipes: Pipes,
        side: int,
        page_index: int,
        uid: int | None,
        report: int,
    ) -> None:
        nothing: Any = Nothing()
        wire: Any = pipes
        super().__init__(pool, fleet, number, Ends(wire, side, nothing, page_index, nothing))
        self.pipes = pipes
        self.uid = uid
        self.report = report  # of the process that waits for it in its namespace; -1 where there is none
        self.prepared: Prepared = fleet.prepared
        self.policy = self.prepared.policy
        self.reader = Reader(self.policy.result, self.policy.result_nodes, at_once=PROGRESS_CAP)
        self.output = FirstOutput(side, self.policy.output)
        self.left = False  # whether its outcome is yet to be looked into
        self.writing = False  # whether the loop tells when more can be written
        self.paused = False  # whether it is not read for a moment
        self.budget, self.checked_at = PROGRESS_BURST, time.monotonic()
        self.seen: tuple[float, int] | None = None  # CPU time and memory just before it was killed

    # -- what it is sent -----------------------------------------------------------------------------------

    def send_settings(self) -> None:
        """Send the first message: how it is to confine itself."""
        with self.pool.lock:
            self.out.append(memoryview(self.prepared.program.settings))
            self.flush_locked()

    def assign_locked(self, call: Call) -> None:
        """Take the one call that it gets, and send it."""
        self.pool.touched = self
        self.enter_locked(BUSY)
        self._number_locked(call)
        call.sent_ahead, call.told = False, True
        self.turned_at = now = time.monotonic()
        self._begin_locked(call, now)
        self.reader.expect(call.number)
        facts = [call.task_id, call.name, call.attempt, call.run, call.timeout]
        self.out.append(memoryview(order(call.number, call.payload, facts)))
        self.flush_locked()
        self.pool.touched = None
        if self.pool.real_clock and call.timeout is not None:
            at = self.hard_at + BACKSTOP_MARGIN
            self.pool.loop.call_soon(lambda: self.fleet.limit(self, at))

    def flush_locked(self) -> None:
        """Write what the pipe takes. It has begun its call only when it has the whole of it."""
        out = self.out
        try:
            while out:
                view = out[0]
                sent = self.pipes.send(view[:PIECE])
                if sent == len(view):
                    out.popleft()
                else:
                    out[0] = view[sent:]
        except BlockingIOError:
            if not self.writing:
                self.writing = True
                self.pool.loop.watch(self.pipes.task, WRITE, self.on_room)
            return
        except OSError:
            out.clear()  # its end is gone: its death follows
            return
        if self.call is not None:
            self.page[STARTED] = self.call.number

    def on_room(self, _events: int) -> None:
        """The pipe takes more, or has no reader any more."""
        with self.pool.lock:
            self.stop_writing()
            self.flush_locked()

    def stop_writing(self) -> None:
        """Have the loop tell no more of room in the pipe."""
        if self.writing:
            self.writing = False
            self.pool.loop.forget(self.pipes.task)

    def has_room_locked(self) -> bool:
        """Return False: one process runs one job."""
        return False

    def leave_locked(self) -> None:
        """Let it exit, should it be idle."""
        self.stop_writing()
        super().leave_locked()

    def part_locked(self) -> None:
        """Give it nothing more."""
        self.stop_writing()
        super().part_locked()

    def captures(self, call: Call) -> bool:
        """Return True: what it writes goes nowhere else."""
        return True

    # -- what it answers -----------------------------------------------------------------------------------

    def _read(self, thorough: bool) -> None:
        """Read and handle frames until there is nothing, or so much that others are to have their turn."""
        self._read_frames(thorough)
        if not self.reader.room:  # what comes behind the last one, its end among it, is of no interest
            self.pool.loop.forget(self.pipes.fileno())

    def _read_frames(self, thorough: bool) -> None:
        reader = self.reader
        # A dozen messages about progress, or one part of an outcome, so that one that floods cannot starve the others.
        most = self.policy.result + LENGTH + READ_MOST if thorough else PROGRESS_CAP
        try:
            while reader.room and most > 0 and not self.paused:
                data = self.pipes.recv(reader.room)
                if not data:
                    self.on_hangup()
                    return
                most -= len(data)
                frame = reader.feed(data)
                if frame is not None:
                    self.on_message(frame)
                elif reader.left and self.call is not None:
                    self.on_outcome(self.call, None)
        except BlockingIOError:
            return
        except OSError:
            self.on_hangup()
        except ViolationError as error:
            self.break_off(f"{VIOLATION}{error}")
        except Exception as error:  # a fault of ours, as in `Worker._read`
            self.pool.loop.note(error)
            self.break_off(f"an error in the pool: {type(error).__name__}: {error}")

    def on_message(self, frame: Frame) -> None:
        """Handle a frame that is as it should be; what it says is a claim."""
        kind = frame["kind"]
        if kind == "ready":
            self.ready = True
            self.cpu_base = max(0.0, frame["cpu"])
            self.fleet.on_ready(self)
        elif kind == "refused":
            step, error = one_line(frame["step"]), one_line(frame["error"])
            self.start_error = (f"the sandbox could not be set up: step {step!r} failed: {error}", None)
            self.kill()
        elif kind == "progress":
            self.on_progress(frame)
        elif self.call is not None:
            self.on_outcome(self.call, frame)

    def on_progress(self, frame: Frame) -> None:
        """Pass progress on, and read no more for a moment from one who tells too much."""
        now = time.monotonic()
        self.budget = min(PROGRESS_BURST, self.budget + (now - self.checked_at) * PROGRESS_RATE) - 1.0
        self.checked_at = now
        if self.budget < 1.0:
            self.paused = True
            self.pool.loop.forget(self.pipes.fileno())
            self.pool.loop.call_at(now + 1.0 / PROGRESS_RATE, self.go_on)
        call = self.call
        if call is not None:
            try:
                call.progressed(frame["done"], frame["total"], printable(frame["note"]))
            except BaseException as error:
                self.pool.loop.note(error)

    def go_on(self) -> None:
        """Read on after a pause."""
        if self.paused and self.pipes.fileno() >= 0 and not self.dead:
            self.paused = False
            self.pool.loop.watch(self.pipes.fileno(), READ, self.on_socket)

    def settle(self) -> Call | None:
        """Read what it has answered by now, also from one that is not read for a moment."""
        paused, self.paused = self.paused, False
        call = super().settle()
        self.paused = self.paused or paused
        return call

    def on_outcome(self, call: Call, frame: Frame | None) -> None:
        """The job is over, as it says. Nothing that comes behind it counts.

        Args:
            frame: None for one that is too large to be looked into here.
        """
        if call.verdict is None and time.monotonic() > self.hard_at and call.timeout is not None:
            call.verdict = verdicts.timed_out(call.timeout)
        if call.verdict is None:
            self.left = frame is None
            self.held = Ending(Outcome.CRASHED, pid=self.pid)  # where it turns out to be none
            if frame is not None:
                self.held = self.ending_that_says(findings_of(frame))
        self.runs += 1
        self.kill()

    def ending_that_says(self, found: Findings) -> Ending:
        """Return the ending that an outcome stands for."""
        policy = self.policy
        if found.kind == "done":
            plain = judging.Plain(self.reader.body, policy.result_nodes)
            return Ending(Outcome.SUCCEEDED, None, Sealed(plain), pid=self.pid)
        if found.kind == "large":
            error, limit = judging.too_large(found, policy)
            ending = Ending(Outcome.LIMIT_EXCEEDED, error, pid=self.pid)
            ending.limit = limit
            return ending
        text, exception = judging.failure_of(found, policy)
        ending = Ending(Outcome.FAILED, text, pid=self.pid)
        ending.exception, ending.traceback = exception, exception.traceback
        return ending

    def outcome_left(self) -> bytes:
        """Return the outcome that is to be looked into; empty for none."""
        return self.reader.body if self.left else b""

    def ending_found(self, ending: Ending, found: Findings) -> Ending:
        """Return the ending of a run whose outcome was left, once it is known what that says.

        Args:
            ending: what the kernel says of it.
        """
        if found.violation:
            ending.error = VIOLATION + found.violation
            return ending
        told = self.ending_that_says(found)
        told.cpu_seconds, told.peak_rss = ending.cpu_seconds, ending.peak_rss
        told.output_truncated = ending.output_truncated
        return told

    # -- its end -------------------------------------------------------------------------------------------

    def ask_stack(self, call: Call) -> None:
        """Ask nothing: what a sandboxed process says of its stack is no fact."""

    def _dump_at(self, call: Call) -> float:
        return self.hard_at

    def dump_or_kill(self) -> None:
        """Kill it."""
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to it, and to bubblewrap where that is between."""
        if (
            self.prepared.program.namespaced
            and self.call is not None
            and self.pid is not None
            and self.seen is None
        ):
            # The kernel adds up what the tree has used only where each parent reaps its child; these die at once. What
            # init and who reports have used is not the job's: that was its start.
            self.seen = _system.usage_below(self.pid, starters=2)
        super().kill()

    def ending_of(self, call: Call, status: int, at: float, cpu: float, rss: int) -> Ending:
        """Return how its job ended: as it said, as was decided, or as the kernel says of its death."""
        if self.prepared.program.namespaced:
            # What was waited for here is bubblewrap: of the job the process between the two knows, if it lived.
            status, cpu, rss = self.read_report() or (status, *(self.seen or (0.0, 0)))
        limit = None
        if self.held is not None:
            ending: Ending = self.held
            if self.left:
                verdicts.facts_of(ending, status)
        else:
            if call.verdict is None:
                limit = judging.limit_of_death(status, cpu, self.policy)
            if limit is not None:
                ending = Ending(*judging.outcome_of_limit(limit), pid=self.pid)
                ending.limit = limit
            elif call.verdict is not None:
                ending = Ending(*call.verdict, pid=self.pid)
            else:
                ending = Ending(
                    *verdicts.decide_death(None, status, at, self.hard_at, call.timeout), pid=self.pid
                )
            verdicts.facts_of(ending, status)
            # C code that gets no memory ends its process in any way that it likes.
            if call.verdict in (None, (Outcome.CRASHED, CLOSED)) and ending.outcome is Outcome.CRASHED:
                ending.error = (ending.error or "") + judging.hint_of_memory(status, rss, self.policy)
        ending.cpu_seconds = max(0.0, cpu - self.cpu_base)
        ending.peak_rss = rss or None
        return ending

    def read_report(self) -> tuple[int, float, int] | None:
        """Return wait status, CPU seconds and peak memory of a process in a namespace, None where nobody reported."""
        try:
            return open_report(os.read(self.report, SIZE + 1))
        except OSError:
            return None

    def on_side(self, _events: int) -> None:
        """Output has come. When that is enough, the pipe is closed: who writes on gets EPIPE."""
        self.output.read()
        if self.output.ended:
            self.pool.loop.forget(self.output.fd)
            with contextlib.suppress(OSError):
                os.close(self.output.fd)
            self.output.fd = -1

    def close(self) -> None:
        """Close the parent's ends."""
        loop = self.pool.loop
        self.stop_writing()
        for fd in (self.pipes.fileno(), self.output.fd, self.pidfd):
            if fd is not None and fd >= 0:
                loop.forget(fd)
        self.pipes.close()
        for fd in (self.output.fd, self.pidfd, self.report):
            if fd is not None and fd >= 0:
                os.close(fd)
        self.pidfd = None
        self.report = -1
        self.output.fd = -1
        loop.alarms.discard(self)
        self.page.release()
        self.times.release()

    def may_be_idle_locked(self) -> bool:
        """Return whether it waits for a call: it has had none."""
        return not self.last_number and super().may_be_idle_locked()
