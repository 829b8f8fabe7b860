"""The parent's side of one worker, on the shipped pool and fleet, with a socket in the place of the process.

There is no I/O thread: `turn` does what it would do. What is checked is what the parent owes to whoever waits for a
call, whatever the worker has written.
"""

from __future__ import annotations

import _socket
import contextlib
import math
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from procsched import Outcome, ProcessPool, RemoteError
from procsched._core import wire
from procsched._core.models import Sealed
from procsched.workers.base import Call, Ending, Pace
from procsched.workers.fleet import Fleet
from procsched.workers.loop import READ, Alarm
from procsched.workers.process import Worker
from procsched.workers.sending import Ends, WorkerState
from procsched.workers.tokens import Tokens

SIGKILLED = 9  # a wait status


class Loop:
    """What a pool wants of its I/O thread, without one."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.thread = threading.current_thread()
        self.alarms: set[Alarm] = set()
        self.calls: deque[Callable[[], object]] = deque()
        self.watched: set[int] = set()
        self.errors: list[BaseException] = []

    def watch(self, fd: int, events: int, callback: object) -> None:
        self.watched.add(fd)

    def change(self, fd: int, events: int) -> None:
        assert fd in self.watched

    def forget(self, fd: int) -> None:
        self.watched.discard(fd)

    def hurry(self, at: float) -> None:
        assert not math.isnan(at)

    def rearm(self) -> None: ...

    def pause(self, seconds: float) -> None: ...

    def call_soon(self, function: Callable[[], object]) -> None:
        self.calls.append(function)

    def call_at(self, at: float, function: Callable[[], object]) -> None:
        self.calls.append(function)

    def run(self, function: Callable[[], object]) -> None:
        function()

    def note(self, error: BaseException) -> None:
        self.errors.append(error)


class Launcher:
    """What a fleet wants of its helper; it does nothing."""

    closing = False
    answered = 0

    def __init__(self) -> None:
        self.kills: list[int] = []

    def kill(self, number: int) -> None:
        self.kills.append(number)

    def ask(self, number: int) -> None: ...

    def ping(self) -> int:
        return 1


class FuzzCall(Call):
    """A call that keeps what it hears."""

    def __init__(self, **options: Any) -> None:
        super().__init__(b"payload", pace=Pace(), **options)
        assert self.pace is not None
        self.pace.seconds = 1e-6  # known to be brief: others are sent ahead behind it
        self.starts = 0
        self.endings: list[Ending] = []

    def begun(self, ago: float) -> None:
        self.starts += 1

    def ended(self, ending: Ending) -> None:
        self.endings.append(ending)

    def progressed(self, done: float, total: float | None, note: str) -> None:
        assert type(done) in (int, float)
        assert total is None or type(total) in (int, float)
        assert type(note) is str


class Bench:
    """A pool whose only worker is a socket, and a source of calls."""

    def __init__(self, calls: list[FuzzCall]) -> None:
        self.all = list(calls)
        self.waiting = deque(calls)
        self.pool = pool = ProcessPool(1)
        self.loop = Loop(pool.lock)
        pool.loop = self.loop  # type: ignore[assignment]
        pool.fleet = self.fleet = Fleet(pool, None)
        self.fleet.ensure = lambda *, wanted=False: None  # type: ignore[method-assign]  # no other is started
        self.launcher = Launcher()
        self.fleet.launcher = self.launcher  # type: ignore[assignment]
        pool._source = self
        ours, self.theirs = socket.socketpair()
        parcels, self.their_parcels = socket.socketpair(type=socket.SOCK_DGRAM)
        side, self.their_side = os.pipe()
        for sock in (ours, parcels, self.theirs, self.their_parcels):
            sock.setblocking(False)
        for fd in (side, self.their_side):
            os.set_blocking(fd, False)
        ends = Ends(ours, side, Tokens(), self.fleet.pages.take(), parcels)
        self.worker = Worker(pool, self.fleet, 1, ends)
        self.fleet.workers[1] = self.worker
        self.worker.pid = -1
        for fd in (ours.fileno(), side):
            self.loop.watch(fd, READ, None)
        self.loop.alarms.add(self.worker)

    # -- as a source of calls --

    def next_call(self, *, ahead: bool = False) -> FuzzCall | None:
        if not self.waiting:
            return None
        call = self.waiting.popleft()
        if not ahead:
            call.begun(0.0)
        return call

    def take_back(self, call: Any) -> None:
        self.waiting.appendleft(call)

    def holds(self, call: Any) -> bool:
        return call in self.waiting or bool(call.endings)

    def mend(self) -> None: ...

    def pool_problem(self, text: str) -> None:
        assert text

    # -- driving --

    def write(self, data: bytes) -> None:
        """Write as the worker, and have it read."""
        with contextlib.suppress(OSError):  # it was given up
            self.theirs.send(data)
        self.turn()

    def turn(self) -> None:
        """Do what the I/O thread would do now."""
        while True:
            if self.worker.sock.fileno() in self.loop.watched and self.worker.state is not WorkerState.GONE:
                self.worker.on_socket(READ)
            if self.worker.state is not WorkerState.GONE and self.worker.output.fd in self.loop.watched:
                self.worker.on_side(READ)
            with contextlib.suppress(OSError):
                self.theirs.recv(1 << 20)  # what it was sent: its socket is never full
            if not self.loop.calls:
                break
            while self.loop.calls:
                self.loop.calls.popleft()()
        self.check()

    def check(self) -> None:
        """Assert what holds at any moment."""
        assert self.loop.errors == []
        assert not math.isnan(self.worker.alarm)
        for call in self.all:
            assert len(call.endings) <= 1, "a call has ended twice"
            assert call.pace is not None
            assert not math.isnan(call.pace.seconds)
            if call.limited and call is self.worker.call and self.worker.state is WorkerState.BUSY:
                assert not math.isnan(self.worker.hard_at)
                assert self.worker.hard_at < math.inf, "its deadline is lost"
        assert self.worker.state is not WorkerState.DYING or self.launcher.kills == [1]

    def end(self) -> None:
        """Let the worker die, and assert that every call has ended once or can be given to another worker."""
        try:
            self.theirs.close()
            self.turn()
            self.fleet.on_gone(1, SIGKILLED, 0.0, 0.0, 0, ())
            while self.loop.calls:
                self.loop.calls.popleft()()
            self.check()
            assert not self.fleet.workers
            assert self.pool.running == 0
            assert not self.pool.busy
            assert not self.pool.idle
            back = [*self.waiting, *self.pool._returned]
            for call in self.all:
                assert len(call.endings) + back.count(call) == 1, "a call is lost, or doubled"
                for ending in call.endings:
                    assert type(ending.outcome) is Outcome
                    assert ending.error is None or ending.error.strip()
                    assert ending.traceback is None or type(ending.traceback) is str
                    assert (ending.outcome is Outcome.SUCCEEDED) == (ending.error is None)
                    for value in (ending.result, ending.exception):
                        if type(value) is Sealed:
                            with contextlib.suppress(RemoteError):
                                value.open()
            self.fleet.pages.close()
        finally:
            self.their_parcels.close()
            os.close(self.their_side)

    def send_descriptor(self, data: bytes, fd: int) -> None:
        """Send a message beside the frames, with a descriptor or (negative) without."""
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(4, "little"))] if fd >= 0 else []
        with contextlib.suppress(OSError):
            self.their_parcels.sendmsg([data], ancillary)


def frame(kind: int, **fields: Any) -> bytes:
    return b"".join(bytes(part) for part in wire.encode(kind, **fields))
