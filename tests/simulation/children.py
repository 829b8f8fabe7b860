"""Simulated workers: they read and write the real frames, take real tokens, and write into the real page.

    STARTING --READY--> waits for a frame --CALL, CALLS--> runs what the script says --DONE, RAISED--> waits ...
    any of them --SIGKILL, a crash, the backstop--> dead

A child is what `child/worker.py` is, save that its actions are moments in simulated time. What it does with a call,
`World.behave` says.
"""

from __future__ import annotations

import os
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from procsched._core import wire
from procsched.child.protocol import (
    ANSWERED,
    ASK_NUMBER,
    ASK_REASON,
    DUMP_SIGNAL,
    REASON_SOFT,
    SOFT_SIGNAL,
    STARTED,
    STARTED_AT,
)
from procsched.child.worker import Worker as RealWorker
from tests.simulation.world import VIRTUAL, World

SIGKILL, SIGSEGV, SIGTERM = signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM
STACK = (
    b'Stack (most recent call first):\n  File "job.py", line 3 in job\n  File "job.py", line 9 in <module>\n'
)


class Behaviour:
    """What a child does with one call.

    Attributes:
        kind: "return", "raise", "hang", "exit", "signal", "eof", "half", "garbage", or where it dies:
            "before" (it has taken the token and not begun), "answering", "answered".
        seconds: until then.
        heed: seconds from being asked to giving way; None for never.
        progress: whether it tells of any.
        dirty: whether it leaves something behind.
        split: seconds between two halves of its answer; 0 for one piece.
    """

    __slots__ = ("dirty", "heed", "kind", "progress", "returns", "seconds", "split")

    def __init__(self, kind: str, seconds: float) -> None:
        self.kind = kind
        self.seconds = seconds
        self.heed: float | None = None
        self.returns = False  # whether it returns all the same once it was asked
        self.progress = False
        self.dirty = False
        self.split = 0.0


class Truth:
    """One beginning of an attempt in a child: what really happened, to judge the records by."""

    __slots__ = (
        "ahead",
        "attempt",
        "began",
        "behaviour",
        "child",
        "ended",
        "hard",
        "how",
        "number",
        "run",
        "task_id",
        "written",
    )

    def __init__(self, child: Child, frame: wire.Frame, began: float) -> None:
        self.child = child
        self.task_id, _zero, _name = frame.meta.decode().partition("\0")
        self.run, self.attempt = frame.third >> 32, frame.third & 0xFFFFFFFF
        self.number = frame.number
        self.ahead = bool(frame.flags & wire.AHEAD)
        self.began = began
        self.ended: float | None = None  # when it came back by itself
        self.written: float | None = None  # when its answer was whole in the socket
        self.how = ""
        self.behaviour: Behaviour
        self.hard: float | None = None

    @property
    def key(self) -> tuple[str, int, int]:
        return self.task_id, self.run, self.attempt


class Child:
    """A worker process."""

    has_token = RealWorker.has_token  # the shipped one

    def __init__(self, world: World, helper: Any, number: int, fds: tuple[int, ...], pages: Any) -> None:
        self.world = world
        self.helper = helper
        self.number = number
        sock, self.side_fd, self.token_fd, self.parcel_fd = fds
        self.sock = socket.socket(fileno=sock)
        self.sock.setblocking(False)
        self.token = 0
        self.page, self.times = pages
        self.pid = world.processes.new(self)
        self.pidfd = self.pid + VIRTUAL
        self.frames: deque[wire.Frame] = deque()
        self.decoder = wire.Decoder()
        self.started = False
        self.serving = False
        self.clean = True
        self.dead = False
        self.status = 0
        self.died_at = 0.0
        self.leaving = False
        self.noticed = False
        self.run: Truth | None = None
        self.last = 0
        self.epoch = 0  # of the run: what was planned for an earlier one is void
        self.backstop = 0.0
        self.killed_by_us = False
        self.broken = False  # it has broken its connection
        self.parent_knows = False  # that it was forked
        self.hears = True  # whether its dump handler works
        self.fd = self.sock.fileno()
        world.poll.register(self.fd, 1)
        world.processes.by_fd[self.fd] = self

    # -- hearing ---------------------------------------------------------------------------------------------

    def notice(self) -> None:
        """Something has come: it is read a moment later."""
        if not self.noticed and not self.dead:
            self.noticed = True
            self.world.later(self.world.latency(), self.read)

    def read(self) -> None:
        """Read what the parent wrote."""
        self.noticed = False
        if self.dead:
            return
        try:
            data = self.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.world.poll.unregister(self.fd)
            del self.world.processes.by_fd[self.fd]
            self.leaving = True
            self.go_on()
            return
        for frame in self.decoder.feed(data):
            if frame.kind == wire.START:
                self.begin_life()
            elif frame.kind == wire.CALLS:
                self.frames.extend(wire.open_packet(frame))
            else:
                self.frames.append(frame)
        assert self.decoder.error is None, self.decoder.error
        self.go_on()

    def begin_life(self) -> None:
        """Become ready, or not, as the script says."""
        kind, seconds = self.world.behave.start(self)
        self.world.note("start", f"{self.number} {kind}")
        if kind == "ready":
            self.world.later(seconds, self.be_ready)
        elif kind == "fails":
            payload = _failure("ValueError: bad initializer")
            self.world.later(
                seconds, lambda: self.write(b"".join(wire.encode(wire.START_FAILED, 0, payload)))
            )
        elif kind == "dies":
            self.world.later(seconds, lambda: self.die(3 << 8))
        elif kind == "garbage":
            self.world.later(seconds, lambda: self.write(b"no frame at all, this is"))

    def be_ready(self) -> None:
        """Say so."""
        if not self.dead:
            self.serving = True
            self.write(b"".join(wire.encode(wire.READY, second=0.01)))
            self.go_on()

    # -- running ---------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Take the next frame, if it is idle."""
        while self.serving and not self.dead and self.run is None:
            if not self.frames:
                self.disarm()
                if self.leaving:
                    self.world.later(self.world.latency(), lambda: self.die(0))
                    self.serving = False
                return
            frame = self.frames.popleft()
            if frame.kind != wire.CALL or frame.number <= self.page[STARTED]:
                continue
            if self.clean and (not frame.flags & wire.AHEAD or self.has_token(frame.number)):
                self.begin(frame)

    def begin(self, frame: wire.Frame) -> None:
        """Run one call."""
        world = self.world
        truth = Truth(self, frame, world.mono)
        behaviour = truth.behaviour = world.behave.call(self, truth, frame)
        if behaviour.kind == "before":
            world.seen["dies before it begins"] += 1
            self.die(SIGSEGV)
            return
        self.run = truth
        self.epoch += 1
        if frame.first:
            self.backstop = frame.first + (truth.began if truth.ahead else 0.0)
            self.plan(max(0.0, self.backstop - world.mono), self.strike)
        else:
            self.disarm()
        self.times[STARTED_AT] = truth.began
        self.page[STARTED] = frame.number
        world.note(
            "begin", f"{self.number}/{frame.number} {truth.key} {behaviour.kind} {behaviour.seconds:.6f}"
        )
        world.checker.child_began(truth)
        if behaviour.progress:
            payload = wire.progress(1.0, 2.0, "half")
            self.plan(
                behaviour.seconds / 2,
                lambda: self.write(b"".join(wire.encode(wire.PROGRESS, frame.number, payload))),
            )
        if behaviour.kind != "hang":
            self.plan(behaviour.seconds, lambda: self.finish(truth, behaviour))
        if self.page[ASK_NUMBER] == frame.number:
            self.on_soft()

    def plan(self, seconds: float, function: Callable[[], None]) -> None:
        """Do something in so many seconds, unless the run is over by then."""
        epoch = self.epoch

        def act() -> None:
            if not self.dead and self.run is not None and self.epoch == epoch:
                function()

        self.world.later(seconds, act)

    def finish(self, truth: Truth, behaviour: Behaviour) -> None:
        """The run comes to the end that the script wants."""
        kind = behaviour.kind
        truth.how = "return" if kind in ("answering", "answered") else kind
        if kind == "exit":
            self.die(5 << 8)
        elif kind == "signal":
            self.die(SIGSEGV)
        elif kind == "eof":
            self.world.note("eof", f"{self.number}")
            self.broken = True
            self.sock.shutdown(socket.SHUT_WR)
        elif kind == "garbage":
            self.world.note("garbage", f"{self.number}")
            self.broken = True
            self.write(b"\0 no frame begins like this")
        elif kind == "half":
            self.world.note("half", f"{self.number}")
            self.broken = True
            self.write(self.answer(truth, behaviour)[:30])
        else:
            self.end_run(truth, behaviour)

    def answer(self, truth: Truth, behaviour: Behaviour, flags: int = 0) -> bytes:
        """Return the frame that ends a run."""
        truth.ended = self.world.mono
        seconds = truth.ended - truth.began
        facts = wire.FACTS.pack(seconds / 2, 1 << 20) if seconds >= 1e-3 or behaviour.dirty else b""
        if behaviour.dirty or flags & wire.SOFT:
            flags |= wire.DIRTY
            self.clean = False
        if truth.how in ("raise", "asked"):
            kind, payload = (
                wire.RAISED,
                _failure("ValueError: bad row" if truth.how == "raise" else "TaskTimeoutError: out of time"),
            )
        else:
            kind, payload = wire.DONE, wire.pickle.dumps(truth.key, 5)
        return b"".join(wire.encode(kind, truth.number, payload, flags, truth.ended, truth.began, meta=facts))

    def end_run(self, truth: Truth, behaviour: Behaviour, flags: int = 0) -> None:
        """Answer, in one piece or two, and go on; or die over it."""
        data = self.answer(truth, behaviour, flags)
        self.epoch += 1  # nothing can ask it any more
        if not self.frames:
            self.disarm()
        if behaviour.kind == "answering":
            self.write(data[: len(data) // 2])
            truth.how = "crash"
            self.die(SIGSEGV)
            return
        if behaviour.split and len(data) > 1:
            self.write(data[: len(data) // 2])
            self.world.seen["answers in two pieces"] += 1
            self.plan(behaviour.split, lambda: self.answered(truth, behaviour, data[len(data) // 2 :]))
            return
        self.answered(truth, behaviour, data)

    def answered(self, truth: Truth, behaviour: Behaviour, data: bytes) -> None:
        """Write the last of an answer."""
        if not self.write(data):
            return
        truth.written = self.world.mono
        self.world.note("answer", f"{self.number}/{truth.number} {truth.key} {truth.how}")
        if behaviour.kind == "answered":
            self.world.seen["dies when it has answered"] += 1
            self.run, self.last = None, truth.number
            self.die(SIGSEGV)
            return
        self.page[ANSWERED] = truth.number
        self.run, self.last = None, truth.number
        self.go_on()

    # -- signals ---------------------------------------------------------------------------------------------

    def hear(self, signum: int) -> None:
        """A signal arrives."""
        if self.dead:
            return
        if signum == SIGKILL:
            self.killed_by_us = True
            self.world.checker.child_killed(self)
            self.die(SIGKILL)
        elif signum == DUMP_SIGNAL:
            if self.hears:
                self.world.seen["dumps its stack"] += 1
                _write(self.side_fd, STACK)
        elif signum == SOFT_SIGNAL:
            self.on_soft()
        elif signum == SIGTERM:
            self.on_term()

    def on_term(self) -> None:
        """As `child.worker.Worker.on_term`."""
        asked, reason = self.page[ASK_NUMBER], self.page[ASK_REASON]
        number = 0 if self.run is None or self.run.ended is not None else self.run.number
        if not asked or asked not in (number, self.last) or reason == REASON_SOFT:
            if self.run is not None and self.run.ended is not None and asked == self.run.number:
                return  # it is answering
            self.world.checker.stray_signal(self, asked, number)
            self.die(SIGTERM)
        elif asked == number:
            self.world.seen["asked to stop"] += 1
            self.give_way(0)

    def on_soft(self) -> None:
        """As `child.worker.Worker.on_soft`."""
        run = self.run
        if (
            run is not None
            and run.ended is None
            and self.page[ASK_NUMBER] == run.number
            and self.page[ASK_REASON] == REASON_SOFT
        ):
            self.world.seen["soft timeout raised"] += 1
            self.give_way(wire.SOFT)

    def give_way(self, flags: int) -> None:
        """The run hears that it is to stop, and does as the script says."""
        truth = self.run
        assert truth is not None
        self.world.checker.child_asked(truth, flags)
        heed = truth.behaviour.heed
        if heed is None:
            return
        behaviour = Behaviour("return", 0.0)

        def stop() -> None:
            truth.how = "return" if truth.behaviour.returns else "asked"
            self.end_run(truth, behaviour, 0 if truth.behaviour.returns else flags)

        self.epoch += 1
        if self.backstop:
            self.plan(max(0.0, self.backstop - self.world.mono), self.strike)
        self.plan(heed, stop)

    def disarm(self) -> None:
        """Take back the backstop."""
        self.backstop = 0.0

    def strike(self) -> None:
        """The kernel's timer ends the process."""
        if self.backstop and self.backstop <= self.world.mono + 1e-9:
            self.world.note("backstop", f"{self.number}")
            self.world.checker.backstop(self)
            self.die(SIGKILL)

    # -- its end ---------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> bool:
        """Write to the parent; it is gone if that cannot be done."""
        if self.dead:
            return False
        try:
            sent = self.sock.send(data)
            assert sent == len(data)
        except OSError:
            self.die(0)
            return False
        return True

    def die(self, status: int) -> None:
        """The process ends."""
        if self.dead:
            return
        self.dead = True
        self.status = status
        self.died_at = self.world.mono
        run, self.run = self.run, None
        if run is not None and run.written is None and run.how != "crash":
            run.how = "killed" if self.killed_by_us or status == SIGKILL else "crash"
        self.world.note("dies", f"{self.number} {status}")
        self.close()
        self.helper.child_died(self)

    def close(self) -> None:
        """Close its descriptors."""
        if self.world.processes.by_fd.pop(self.fd, None) is not None:
            self.world.poll.unregister(self.fd)
        self.sock.close()
        for fd in (self.side_fd, self.token_fd, self.parcel_fd):
            os.close(fd)
        self.page.release()
        self.times.release()


class Processes:
    """All simulated processes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.by_pid: dict[int, Child] = {}
        self.by_fd: dict[int, Child] = {}
        self._pids = 100

    def new(self, child: Child) -> int:
        """Return a pid."""
        self._pids += 1
        self.by_pid[self._pids] = child
        return self._pids

    def signal(self, pidfd: int, signum: int) -> None:
        """`pidfd_send_signal`."""
        child = self.by_pid[pidfd - VIRTUAL]
        if child.dead:
            raise ProcessLookupError
        self.world.note("signal", f"{child.number} {int(signum)}")
        self.world.later(2e-6, lambda: child.hear(signum))

    def is_dead(self, pidfd: int) -> bool:
        """Whether a process has ended."""
        return self.by_pid[pidfd - VIRTUAL].dead

    def answers_dump(self, pid: int) -> bool:
        """Whether it can write its stack."""
        child = self.by_pid.get(pid)
        return child is not None and not child.dead and child.hears

    @property
    def alive(self) -> list[Child]:
        """Those that have not ended."""
        return [child for child in self.by_pid.values() if not child.dead]


def _failure(text: str) -> bytes:
    return wire.pickle.dumps((text, None, None, "it is simulated"), 5)


def _write(fd: int, data: bytes) -> None:
    try:
        os.write(fd, data)
    except OSError:
        return
