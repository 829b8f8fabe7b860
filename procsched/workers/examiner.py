"""The parent's side of the process that looks into what sandboxed runs have written, where that is much.

    ConfinedFleet --Request--> Examiner --its bytes--> examiner process
         ^                        |  ^------findings-------'
         '--the run has ended-----'

Started with the first such request, by the helper, as any worker is. A process that does not answer is ended, and the
parent does the work itself, which holds up the I/O thread but loses nothing: no ending of a run depends on it. All of
this is on the pool's I/O thread.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from collections import deque

from procsched import _system
from procsched.sandbox import examining, paths
from procsched.workers.confined import make_pipe
from procsched.workers.loop import READ, WRITE, Alarm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

    from procsched.sandbox.examining import Findings
    from procsched.workers.confined_fleet import ConfinedFleet

# Bytes of outcome and output, together, that are looked into on the I/O thread. Whatever they are, it takes no longer
# than a few other things there do; a message of ten times as many can be made to take milliseconds.
AT_ONCE: Final = 512
PIECE: Final = 1 << 18  # bytes that are offered to the pipe at once
ANSWER_SECONDS: Final = 10.0  # that the process gets for each request, beside a second for each MiB of it
AGAIN: Final = 5.0  # seconds after a failure in which no other is started
_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from procsched.sandbox.examining import main; main()"
)


class Request:
    """What a run has written, and who is to hear of it.

    Args:
        body: its outcome, as a `Reader` has left it; empty for none.
        output: what it wrote to stdout and stderr.
        number: of its job.
        done: is called with what was found, once.
    """

    __slots__ = ("body", "done", "number", "output")

    def __init__(self, body: bytes, output: bytes, number: int, done: Callable[[Findings], None]) -> None:
        self.body = body
        self.output = output
        self.number = number
        self.done = done

    @property
    def size(self) -> int:
        """Bytes of both."""
        return len(self.body) + len(self.output)


class Examiner(Alarm):
    """Has requests looked into, each in its turn.

    Attributes:
        number: by which the helper knows the process; 0 while there is none.
        waiting: what was asked and not answered, oldest first.
    """

    __slots__ = (
        "_answers",
        "_fleet",
        "_not_before",
        "_out",
        "_read",
        "_write",
        "_writing",
        "number",
        "waiting",
    )

    def __init__(self, fleet: ConfinedFleet) -> None:
        super().__init__()
        self._fleet = fleet
        self._answers = self._write = -1  # descriptors
        self._out: deque[memoryview] = deque()
        self._read = bytearray()
        self._not_before = -math.inf
        self._writing = False  # whether the loop tells when more can be written
        self.number = 0
        self.waiting: deque[Request] = deque()

    def examine(self, request: Request) -> None:
        """Have `request.done` called with what is found: at once where it is little, or nobody else can do it."""
        if request.size <= AT_ONCE or not self._is_there():
            self._examine_here(request)
            return
        policy = self._fleet.prepared.policy
        self.waiting.append(request)
        caps = (policy.result, policy.result_nodes)
        self._out.append(
            memoryview(examining.pack_request(request.body, request.output, request.number, *caps))
        )
        self._out.extend(memoryview(data) for data in (request.body, request.output) if data)
        if len(self.waiting) == 1:
            self._expect_answer()
        self._flush()

    def _examine_here(self, request: Request) -> None:
        policy = self._fleet.prepared.policy
        caps = (policy.result, policy.result_nodes)
        request.done(examining.examine(request.body, request.output, request.number, *caps))

    def _expect_answer(self) -> None:
        self.alarm = time.monotonic() + ANSWER_SECONDS + self.waiting[0].size / (1 << 20)
        self._fleet.loop.hurry(self.alarm)

    # -- the process ---------------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        """Return whether there is a process, having started one if need be."""
        if self.number:
            return True
        if self._fleet.launcher is None or time.monotonic() < self._not_before:
            return False
        try:
            self._start()
        except OSError as error:  # no descriptors
            self._fail(f"could not be started: {error}{_system.remedy(error)}")
        return bool(self.number)

    def _start(self) -> None:
        fleet = self._fleet
        assert fleet.launcher is not None
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            number = fleet.next_number()
            uid = fleet.lease(examiner=number)
            undo.callback(fleet.forget_examiner, number)
            if uid is None and fleet.prepared.policy.run_as is not None:
                return  # all are in use for the moment
            request_read, request_write = make_pipe(theirs.callback, undo.callback)
            answer_read, answer_write = make_pipe(undo.callback, theirs.callback)
            null = _system.lift(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
            theirs.callback(os.close, null)
            for fd in (request_write, answer_read):
                os.set_blocking(fd, False)
            python = fleet.prepared.python
            program = {
                "arguments": [python, "-I", "-S", "-B", "-X", "utf8", "-c", _BOOT, paths.HOME],
                "environment": {"LANG": "C.UTF-8"},
                "nice": fleet.pool.options.nice,
                "uid": uid,
            }
            fleet.launcher.spawn(number, (request_read, answer_write, null), {"program": program})
            undo.pop_all()
        self.number = number
        self._write, self._answers = request_write, answer_read
        fleet.loop.watch(answer_read, READ, self._on_answer)
        fleet.loop.alarms.add(self)

    def on_alarm(self, now: float) -> None:
        """It has not answered in time: somebody has stopped it, perhaps."""
        self.alarm = math.inf
        if self.waiting:
            self._fail("does not answer")

    def _fail(self, how: str) -> None:
        """Do without it, for a while at least."""
        self._not_before = time.monotonic() + AGAIN
        self._fleet.pool.problem(
            f"the process that looks into what sandboxed runs have written {how}; it is done in this one meanwhile"
        )
        self.end()

    def end(self) -> None:
        """End the process, and do here what it has not done."""
        number, self.number = self.number, 0
        waiting, self.waiting = self.waiting, deque()
        self.alarm = math.inf
        self._out.clear()
        self._read.clear()
        loop = self._fleet.loop
        loop.alarms.discard(self)
        self._stop_writing()
        if self._answers >= 0:
            loop.forget(self._answers)
            os.close(self._answers)
            os.close(self._write)
        self._write = self._answers = -1
        if number and self._fleet.launcher is not None:
            self._fleet.launcher.kill(number)
        for request in waiting:
            loop.run(functools.partial(self._examine_here, request))  # one that raises drops no other

    # -- talking with it -----------------------------------------------------------------------------------

    def _on_room(self, _events: int) -> None:
        self._stop_writing()
        self._flush()

    def _stop_writing(self) -> None:
        if self._writing:
            self._writing = False
            self._fleet.loop.forget(self._write)

    def _flush(self) -> None:
        out = self._out
        try:
            while out:
                view = out[0]
                sent = os.write(self._write, view[:PIECE])
                if sent == len(view):
                    out.popleft()
                else:
                    out[0] = view[sent:]
        except BlockingIOError:
            if not self._writing:
                self._writing = True
                self._fleet.loop.watch(self._write, WRITE, self._on_room)
        except OSError:  # it is gone: its end is read where the answers are
            out.clear()

    def _on_answer(self, _events: int) -> None:
        try:
            data = os.read(self._answers, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            launcher = self._fleet.launcher
            if launcher is None or launcher.closing:  # the helper takes it along
                self.end()
            else:
                self._fail("has ended")
            return
        self._read += data
        header = examining.ANSWER_HEADER
        while len(self._read) >= header:
            end = header + examining.length_of(bytes(self._read[:header]))
            if len(self._read) < end:
                return
            body = bytes(self._read[header:end])
            del self._read[:end]
            self._take(body)

    def _take(self, body: bytes) -> None:
        try:
            found = examining.open_findings(body)
        except ValueError:
            self._fail("has answered what is no answer")
            return
        if not self.waiting:
            self._fail("has answered without being asked")
            return
        request = self.waiting.popleft()
        self.alarm = math.inf
        try:
            if self.waiting:
                self._expect_answer()
        finally:
            request.done(found)
