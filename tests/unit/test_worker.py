"""What a worker makes of what it is sent, told and asked, without a process: there, most of it ends in SIGKILL."""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from procsched import TaskKilledError, TaskTimeoutError
from procsched._core import wire
from procsched.child import worker as module
from procsched.child.protocol import (
    ASK_NUMBER,
    ASK_REASON,
    PAGE_SIZE,
    REASON_DEADLINE,
    REASON_KILL,
    REASON_SOFT,
    SOFT_SIGNAL,
    STARTED,
)
from procsched.child.worker import Worker

NOW, BEFORE, OTHER = 7, 6, 5  # numbers of the run that goes on, of the one before it, of any other


class Held(Worker):
    """A worker that only notes what it would run, and that it would end."""

    def __init__(self, *ends: Any) -> None:
        super().__init__(*ends)
        self.ran: list[int] = []
        self.ended_by: list[int] = []
        self.leaves: set[int] = set()  # numbers of the runs that leave something behind

    def run(self, frame: wire.Frame) -> bool:
        self.ran.append(frame.number)
        return frame.number not in self.leaves

    def default_effect(self, signum: int) -> None:
        self.ended_by.append(signum)


class Parent:
    """The parent's ends of a worker."""

    def __init__(self, worker: Held, sock: socket.socket, tokens: int) -> None:
        self.worker = worker
        self.sock = sock
        self.tokens = tokens

    def send(self, kind: int, number: int = 0, payload: bytes = b"", flags: int = 0) -> None:
        self.sock.sendall(b"".join(wire.encode(kind, number, payload, flags)))

    def grant(self, *numbers: int) -> None:
        os.write(self.tokens, b"".join(wire.TOKEN.pack(wire.TOKEN_MARK, number) for number in numbers))

    def serve(self) -> list[int]:
        """Have the worker serve what was sent, and then find that the parent has gone; return what it has run."""
        self.sock.shutdown(socket.SHUT_WR)
        self.worker.serve()
        return self.worker.ran


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    monkeypatch.setenv("PROCSCHED_WITHOUT", "kernel_timer")  # nothing shall end this process
    (sock, theirs), (parcels, their_parcels) = socket.socketpair(), socket.socketpair()
    token_reader, tokens = os.pipe()
    os.set_blocking(token_reader, False)
    side_reader, side = os.pipe()
    with mmap.mmap(-1, PAGE_SIZE) as memory, memoryview(memory) as page, sock, parcels:
        worker = Held(theirs.detach(), side, token_reader, their_parcels.detach(), page)
        worker.number, worker.last, worker.armed = NOW, BEFORE, True
        yield Parent(worker, sock, tokens)
        worker.channel.close()
        worker.parcels.close()
        worker.page.release()
        worker.times.release()
        for fd in (side, side_reader, token_reader, tokens):
            os.close(fd)


# --- asked to stop ---------------------------------------------------------------------------------------------------


def ask(worker: Worker, number: int, reason: int) -> None:
    worker.page[ASK_NUMBER], worker.page[ASK_REASON] = number, reason


@pytest.mark.parametrize(
    ("reason", "error"), [(REASON_KILL, TaskKilledError), (REASON_DEADLINE, TaskTimeoutError)]
)
def test_the_run_that_is_asked_to_stop_hears_why(parent: Parent, reason: int, error: type[Exception]) -> None:
    """SIGTERM raises in the action, and says whether it was cancelled or is out of time."""
    ask(parent.worker, NOW, reason)
    with pytest.raises(error):
        parent.worker.on_term(signal.SIGTERM, None)
    assert parent.worker.ended_by == []


@pytest.mark.parametrize("number", [NOW, BEFORE])
def test_a_run_that_is_over_is_not_asked(parent: Parent, number: int) -> None:
    """A signal that comes when the run has just ended raises nowhere, and ends nothing."""
    parent.worker.armed = number != NOW
    ask(parent.worker, number, REASON_KILL)
    parent.worker.on_term(signal.SIGTERM, None)
    assert parent.worker.ended_by == []


@pytest.mark.parametrize(
    ("number", "reason"), [(0, 0), (OTHER, REASON_KILL), (NOW, REASON_SOFT), (BEFORE, REASON_SOFT)]
)
def test_somebody_elses_signal_has_its_default_effect(parent: Parent, number: int, reason: int) -> None:
    """A SIGTERM that the page does not announce is not ours."""
    ask(parent.worker, number, reason)
    parent.worker.on_term(signal.SIGTERM, None)
    assert parent.worker.ended_by == [signal.SIGTERM]


def test_a_coroutine_is_cancelled_and_not_raised_in(parent: Parent) -> None:
    """What runs an event loop is asked through that."""
    cancelled: list[bool] = []
    parent.worker.cancel = lambda: cancelled.append(True)
    ask(parent.worker, NOW, REASON_KILL)
    parent.worker.on_term(signal.SIGTERM, None)
    assert cancelled == [True]


def test_a_soft_limit_raises_once(parent: Parent) -> None:
    """The soft timeout of this run raises; a second signal for it does nothing."""
    worker = parent.worker
    ask(worker, NOW, REASON_SOFT)
    with pytest.raises(TaskTimeoutError) as caught:
        worker.on_soft(SOFT_SIGNAL, None)
    assert worker.raised is caught.value
    worker.on_soft(SOFT_SIGNAL, None)


@pytest.mark.parametrize(
    ("number", "reason", "armed"),
    [(BEFORE, REASON_SOFT, True), (NOW, REASON_KILL, True), (NOW, REASON_SOFT, False)],
)
def test_a_soft_limit_of_another_run_raises_nothing(
    parent: Parent, number: int, reason: int, armed: bool
) -> None:
    """Nor one that comes while nothing of the user's runs."""
    ask(parent.worker, number, reason)
    parent.worker.armed = armed
    parent.worker.on_soft(SOFT_SIGNAL, None)
    assert parent.worker.raised is None


# --- frames and tokens -----------------------------------------------------------------------------------------------


def test_a_call_that_is_sent_twice_is_run_once(parent: Parent) -> None:
    """A signal handler of the parent's may have raised when it was just sent: it is sent again."""
    parent.worker.page[STARTED] = 8
    for number in (8, 9):
        parent.send(wire.CALL, number)
    assert parent.serve() == [9]


def test_nothing_is_run_after_a_run_that_has_left_something(parent: Parent) -> None:
    """The parent ends this process; what was sent behind is for another."""
    parent.worker.leaves = {8}
    for number in (8, 9):
        parent.send(wire.CALL, number)
    assert parent.serve() == [8]


def test_a_call_ahead_is_run_with_its_token_only(parent: Parent) -> None:
    """Tokens of calls before it, which were taken back, are passed over; without its own it is not begun."""
    parent.grant(8, 9)
    for number in (9, 10):
        parent.send(wire.CALL, number, flags=wire.AHEAD)
    assert parent.serve() == [9]


def test_a_call_whose_token_was_taken_back_is_not_run(parent: Parent) -> None:
    """The next token is that of a later call, which is kept for that."""
    parent.grant(9)
    for number in (8, 9):
        parent.send(wire.CALL, number, flags=wire.AHEAD)
    assert parent.serve() == [9]


def test_without_a_parent_there_are_no_tokens(parent: Parent) -> None:
    """The end of the pipe is no token."""
    reader, writer = os.pipe()
    os.close(writer)
    os.dup2(reader, parent.worker.token_fd)
    os.close(reader)
    assert not parent.worker.has_token(8)


@pytest.mark.parametrize("data", [b"x", b"x" * wire.TOKEN.size])
def test_what_is_no_token_is_told(parent: Parent, data: bytes) -> None:
    """The run has written into the pipe of the tokens: nobody knows any more what may be begun."""
    os.write(parent.tokens, data)
    with pytest.raises(wire.WireError, match="is no token"):
        parent.worker.has_token(8)


def test_the_path_of_the_parent_is_taken(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is imported from then on is found where the parent finds it."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    parent.send(wire.PATH, payload=pickle.dumps([*sys.path, "/new"], 5))
    parent.serve()
    assert sys.path[-1] == "/new"


def test_what_the_parent_never_sends_ends_the_worker(parent: Parent) -> None:
    """It is something else that has written into the socket."""
    parent.send(wire.READY)
    with pytest.raises(wire.WireError, match=f"no frames of kind {wire.READY}"):
        parent.serve()


# --- beside the run --------------------------------------------------------------------------------------------------


def test_progress_is_told_of_a_run_only(parent: Parent) -> None:
    """A thread that a run has left tells of nothing when that is over."""
    parent.worker.tell(1, 2.5, "half")
    parent.worker.number = 0
    parent.worker.tell(2, None, "late")
    (frame,) = wire.Decoder().feed(parent.sock.recv(1 << 16))
    assert (frame.number, wire.open_progress(frame.payload)) == (NOW, (1, 2.5, "half"))


def test_a_generator_that_cannot_be_seeded_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another module of numpy's name keeps no worker from its start."""

    def refuse() -> None:
        asked.append(True)
        raise RuntimeError("no generator")

    asked: list[bool] = []
    monkeypatch.setitem(sys.modules, "numpy.random", SimpleNamespace(seed=refuse))  # type: ignore[arg-type]
    module._reseed()
    assert asked == [True]
