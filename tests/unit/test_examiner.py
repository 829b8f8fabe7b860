"""What looks into the writings of sandboxed runs, and the parent's side of it, where this test is the process."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from procsched import Sandbox
from procsched.sandbox import examining
from procsched.sandbox.examining import Findings, examine
from procsched.sandbox.frames import PROGRESS_CAP, Reader
from procsched.workers import examiner as module
from procsched.workers.confined import Confined, Pipes
from procsched.workers.confined_fleet import ConfinedFleet
from procsched.workers.examiner import AT_ONCE, Examiner, Request
from procsched.workers.fleet import Fleet

POLICY = Sandbox(result=1 << 20, result_nodes=1000)


def done(value: Any) -> bytes:
    return json.dumps({"kind": "done", "id": 1, "value": value}).encode()


LARGE = done("x" * 10_000)


class FakeLoop:
    """Remembers what is watched."""

    def __init__(self) -> None:
        self.watched: dict[int, Any] = {}
        self.alarms: set[Any] = set()

    def watch(self, fd: int, _events: int, callback: Any) -> None:
        assert fd not in self.watched
        self.watched[fd] = callback

    def forget(self, fd: int) -> None:
        self.watched.pop(fd, None)

    def hurry(self, _at: float) -> None: ...

    def run(self, function: Any) -> None:
        with contextlib.suppress(RuntimeError):
            function()


class Bench:
    """A fleet with an examiner, in the place of whose process there is the test."""

    def __init__(self) -> None:
        self.loop = FakeLoop()
        self.launcher: Any = SimpleNamespace(
            spawn=self.spawn, kill=lambda number: self.killed.append(number), closing=False
        )
        self.prepared = SimpleNamespace(policy=POLICY, python="/python")
        self.problems: list[str] = []
        self.pool = SimpleNamespace(problem=self.problems.append, options=SimpleNamespace(nice=0))
        self.killed: list[int] = []
        self.spawned: list[tuple[int, ...]] = []
        self.found: list[Findings] = []
        self.numbers = 0
        self.examiner = Examiner(self)  # type: ignore[arg-type]

    def spawn(self, _number: int, fds: tuple[int, ...], _options: Any) -> None:
        self.spawned.append(tuple(map(os.dup, fds)))

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def lease(self, *, examiner: int) -> None: ...

    def forget_examiner(self, number: int) -> None: ...

    def ask(self, body: bytes = LARGE, output: bytes = b"") -> None:
        self.examiner.examine(Request(body, output, 1, self.found.append))

    def play(self) -> None:
        """Take one request as the process does, and answer it."""
        requests, answers, _null = self.spawned[-1]
        number, most_bytes, most_nodes, body, output = examining._REQUEST.unpack(self.read(requests, 40))
        texts = self.read(requests, body), self.read(requests, output)
        self.answer(answers, examining.pack_findings(examine(*texts, number, most_bytes, most_nodes)))

    def read(self, fd: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += os.read(fd, size - len(data))
            self.turn()
        return data

    def answer(self, fd: int, data: bytes) -> None:
        while data:
            data = data[os.write(fd, data[: 1 << 15]) :]
            self.turn()

    def turn(self) -> None:
        """Call whatever waits, as the loop would: both sorts do nothing where there is nothing to do."""
        for callback in list(self.loop.watched.values()):
            callback(1)

    def close(self) -> None:
        for fds in self.spawned:
            for fd in fds:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self.examiner.end()


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_a_reader_leaves_what_is_large() -> None:
    """Of a running job, and nothing comes behind it; what is small it looks into."""
    for size, left in ((PROGRESS_CAP - 100, False), (PROGRESS_CAP + 1, True)):
        reader = Reader(1 << 20, 1000, at_once=PROGRESS_CAP)
        for frame in ({"kind": "ready", "layers": {}, "cpu": 0.0}, None):
            body = done("x" * size) if frame is None else json.dumps(frame).encode()
            for part in (len(body).to_bytes(4, "big"), body):
                while part:
                    found = reader.feed(part[: reader.room])
                    part = part[1 << 16 :]
            if frame is not None:
                reader.expect(1)
        assert (found is None, reader.left, reader.room) == (left, left, 0)
        assert reader.body == body


def test_nothing_is_heard_behind_the_last_frame() -> None:
    """Its pipe is readable until the process is gone; who watched it would do nothing else meanwhile."""
    answers, theirs = os.pipe()
    os.set_blocking(answers, False)
    worker: Any = object.__new__(Confined)
    worker.pool, worker.policy, worker.paused = SimpleNamespace(loop=FakeLoop()), POLICY, False
    worker.reader, worker.pipes, worker.call = Reader(1 << 20, 1000), Pipes(-1, answers), None
    worker.pool.loop.watch(answers, 1, None)
    try:
        worker._read(False)
        assert answers in worker.pool.loop.watched
        body = json.dumps({"kind": "ready", "layers": {}, "cpu": 0.0}).encode()
        for part in (len(body).to_bytes(4, "big"), body):
            worker.reader.feed(part)
        worker.reader.expect(1)
        os.write(theirs, len(done(1)).to_bytes(4, "big") + done(1) + b"more")
        worker._read(False)
        assert worker.pool.loop.watched == {}
    finally:
        os.close(answers)
        os.close(theirs)


def test_little_is_looked_into_here(bench: Bench) -> None:
    """No process is started for it."""
    bench.ask(b"", b"\x1b" * AT_ONCE)
    assert bench.found[0].output == "\\x1b" * AT_ONCE
    assert not bench.spawned


@pytest.mark.parametrize(
    ("body", "kind", "violation"),
    [
        (LARGE, "done", ""),
        (done([0, 1] * 490 + ["x" * 5000]), "done", ""),
        (done([[]] * 2000), "", "values"),
        (b"[" * 500 + b" " * 5000, "", "levels"),
        (b"\xff" * 5000, "", "UnicodeDecodeError"),
        (LARGE.replace(b'"id": 1', b'"id": 2'), "", "not sent"),
        (json.dumps({"kind": "large", "id": 1, "size": 77 << 20}).encode() + b" " * 5000, "large", ""),
        (
            json.dumps(
                {"kind": "raised", "id": 1, "type": "E\x1b", "message": "m" * 9000, "traceback": "\0t"}
            ).encode(),
            "raised",
            "",
        ),
    ],
)
def test_the_process_says_what_this_one_would(bench: Bench, body: bytes, kind: str, violation: str) -> None:
    """Each kind of outcome, each sort of violation; and the output, with what could mislead escaped."""
    output = b"a\0\x1b\xff" * 20_000
    bench.ask(body, output)
    assert not bench.found
    bench.play()
    (found,) = bench.found
    here = examine(body, output, 1, POLICY.result, POLICY.result_nodes)
    assert all(getattr(found, name) == getattr(here, name) for name in Findings.__slots__)
    assert (found.kind, violation in found.violation, bool(found.violation)) == (kind, True, bool(violation))
    assert found.output == "a\\x00\\x1b\ufffd" * 20_000
    assert bench.examiner.alarm == math.inf


def test_requests_are_answered_in_turn(bench: Bench) -> None:
    """By one process, also where they do not fit into the pipe; its time begins with its turn."""
    for number in range(3):
        bench.ask(done("x" * 200_000), b"%d" % number)
    first = bench.examiner.alarm
    assert first > time.monotonic()
    for _ in range(3):
        bench.play()
    assert [found.output for found in bench.found] == ["0", "1", "2"]
    assert len(bench.spawned) == 1
    assert not bench.problems


def _hang_up(bench: Bench) -> None:
    for fd in bench.spawned[-1]:
        os.close(fd)
    bench.spawned[-1] = ()
    bench.turn()


def _say_nothing(bench: Bench) -> None:
    bench.examiner.on_alarm(bench.examiner.alarm)


def _babble(bench: Bench) -> None:
    os.write(bench.spawned[-1][1], (3).to_bytes(8, "little") + b"abc")
    bench.turn()


def _answer_twice(bench: Bench) -> None:
    bench.play()
    bench.play()
    bench.answer(bench.spawned[-1][1], examining.pack_findings(Findings()))


@pytest.mark.parametrize("fail", [_hang_up, _say_nothing, _babble, _answer_twice])
def test_no_ending_depends_on_the_process(bench: Bench, fail: Any) -> None:
    """Whatever becomes of it: what it was asked is done here, in turn, once, and it is told."""
    bench.ask(LARGE, b"first")
    bench.ask(LARGE, b"second")
    fail(bench)
    assert [found.output for found in bench.found] == ["first", "second"]
    assert all(found.kind == "done" for found in bench.found)
    assert len(bench.problems) == 1
    assert not bench.loop.watched
    assert bench.killed == [1]
    bench.ask(LARGE, b"third")  # for a while none is started
    assert len(bench.found) == 3
    assert len(bench.spawned) == 1


def test_one_that_cannot_be_done_here_drops_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the process has failed, an error of ours over one request is no reason to forget those behind it."""

    def fail(body: bytes, output: bytes, *rest: int) -> Findings:
        if output == b"first":
            raise RuntimeError("injected")
        return examine(body, output, *rest)

    monkeypatch.setattr(examining, "examine", fail)
    bench.ask(LARGE, b"first")
    bench.ask(LARGE, b"second")
    _hang_up(bench)
    assert [found.output for found in bench.found] == ["second"]


def test_an_answer_is_told_whatever_becomes_of_the_next(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows of a request any more that was answered; waiting for the next answer may fail."""

    def fail(_at: float) -> None:
        raise RuntimeError("injected")

    bench.ask(LARGE, b"first")
    bench.ask(LARGE, b"second")
    monkeypatch.setattr(bench.loop, "hurry", fail)
    with pytest.raises(RuntimeError):
        bench.play()
    assert [found.output for found in bench.found] == ["first"]


def test_it_ends_with_the_helper_and_nobody_is_told(bench: Bench) -> None:
    """At the end of the pool that is as it should be; what it was asked is done all the same."""
    bench.ask()
    bench.launcher.closing = True
    _hang_up(bench)
    assert [found.kind for found in bench.found] == ["done"]
    assert not bench.problems


def test_another_one_is_started_in_the_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time after a failure is over."""
    bench.ask()
    _hang_up(bench)
    monkeypatch.setattr(module.time, "monotonic", lambda: time.perf_counter() + 1e6)
    bench.ask()
    bench.play()
    assert [found.kind for found in bench.found] == ["done", "done"]
    assert len(bench.spawned) == 2


def test_without_a_helper_it_is_done_here(bench: Bench) -> None:
    """It has just been lost, say."""
    bench.launcher = None
    bench.ask()
    assert bench.found[0].kind == "done"


def test_workers_wait_for_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is started while more than a pool full of outcomes waits to be looked into."""
    started: list[bool] = []
    monkeypatch.setattr(Fleet, "ensure", lambda _self, *, wanted=False: started.append(wanted))
    fleet: Any = object.__new__(ConfinedFleet)
    fleet.pool = SimpleNamespace(size=2)
    fleet.examiner = SimpleNamespace(waiting=[1, 2, 3])
    fleet.ensure(wanted=True)
    assert not started
    fleet.examiner.waiting.pop()
    fleet.ensure(wanted=True)
    assert started == [True]
