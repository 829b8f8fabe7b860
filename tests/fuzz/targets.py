"""One function for each protocol: any bytes in, an AssertionError (or whatever else is raised) for a bug."""

from __future__ import annotations

import _pickle as pickle
import contextlib
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from procsched import _parcels
from procsched._core import wire
from procsched.child.channel import Channel
from procsched.child.control import Control
from procsched.child.worker import Worker as ChildWorker
from procsched.workers.launcher import Launcher
from procsched.workers.output import OUTPUT_KEPT, Output
from procsched.workers.sending import WorkerState
from procsched.workers.tokens import Tokens
from tests.fuzz.choices import Choices
from tests.fuzz.untrusted import outcome, plain, untrusted
from tests.fuzz.worker_bench import Bench, FuzzCall, Loop, frame

KINDS = (
    wire.DONE,
    wire.RAISED,
    wire.PROGRESS,
    wire.READY,
    wire.START_FAILED,
    wire.CALL,
    wire.START,
    0,
    99,
    255,
)
VALUES: tuple[Any, ...] = (
    (),
    ("error", None, None, ""),
    ("error", "traceback", b"carried", "obstacle"),
    (1, 2, "note"),
    (None, None, None),
    (b"", 1, "x", []),
    ("a", 3, 4, 5),
    7,
    "text",
)


def payload(choices: Choices) -> bytes:
    """Return a payload: of progress, some pickle, or neither."""
    match choices.below(4):
        case 0:
            return wire.progress(choices.float(), choices.number(), "note")
        case 1:
            return pickle.dumps(choices.pick(VALUES), 5)
        case _:
            return choices.some()


def stream(choices: Choices, numbers: Callable[[], int]) -> bytes:
    """Return bytes that a worker might write: frames, maybe wrong in places, or anything."""
    how = choices.below(8)
    if how == 0:
        return choices.some()
    meta = wire.FACTS.pack(choices.float(), choices.byte()) if how > 4 else choices.take(choices.below(24))
    data = frame(
        choices.pick(KINDS),
        number=numbers(),
        payload=payload(choices) if how > 1 else bytes(1 << 16) + choices.some(),
        flags=choices.byte() if how > 3 else 0,
        first=choices.float(),
        second=choices.float(),
        third=choices.number(),
        meta=meta if how != 6 else b"",
    )
    if how == 7:  # one byte is another one
        place = choices.number() % len(data)
        data = data[:place] + bytes([choices.byte()]) + data[place + 1 :]
    return data[: choices.number()] if how == 2 else data


def decoder(data: bytes) -> None:
    """The frame decoder gives the same, however the bytes are cut: frames, then an error, or it waits for more."""
    choices = Choices(data)
    whole = b""
    pieces: list[bytes] = []
    while choices.more:
        part = stream(choices, choices.number)
        whole += part
        pieces += choices.cut(part)
    cap = 1 << 20
    at_once, cut = wire.Decoder(cap), wire.Decoder(cap)
    expected = at_once.feed(whole) if whole else []
    found = []
    for piece in pieces:
        assert cut.error is None
        rest = memoryview(piece)
        while len(rest) and cut.target is not None:
            count = min(len(rest), len(cut.target))
            cut.target[:count] = rest[:count]
            made = cut.filled(count)
            rest = rest[count:]
            found += [] if made is None else [made]
        if len(rest):
            found += cut.feed(bytes(rest))
        if cut.error is not None:
            break
    # NaN is not equal to itself, so by the texts.
    assert [repr(each._replace(payload=bytes(each.payload))) for each in found] == [
        repr(each._replace(payload=bytes(each.payload))) for each in expected
    ]
    assert (cut.error is None) == (at_once.error is None)
    if cut.error is None:
        assert cut.in_frame == at_once.in_frame


def answers(data: bytes) -> None:
    """A worker that writes anything: each call ends once, with an ending that can be read, or is given to another."""
    choices = Choices(data)
    settings = choices.byte()
    calls = [
        FuzzCall(timeout=60.0 if settings & 1 else None, capture_output=bool(settings & 2)) for _ in range(6)
    ]
    bench = Bench(calls)
    worker = bench.worker
    if not settings & 4:
        bench.write(frame(wire.READY))
    bench.pool.pump()

    def number() -> int:
        how = choices.below(4)
        return choices.number() if how == 0 else (worker.call.number if worker.call else 0) + (how == 1)

    while choices.more and worker.state is not WorkerState.GONE:
        how = choices.below(8)
        if how == 0:
            with contextlib.suppress(BlockingIOError):
                os.write(bench.their_side, choices.some())
        elif how == 1:
            index = choices.below(3)
            value = choices.number()
            if index == 2:
                worker.times[choices.below(8)] = choices.float()
            elif worker.state is not WorkerState.GONE:
                worker.page[choices.below(8)] = value
        elif how == 2:
            fd = _some_descriptor(choices)
            bench.send_descriptor(struct.pack("<Q", number()) if choices.below(4) else choices.some(), fd)
            if fd >= 0:
                os.close(fd)
        elif how == 3:
            with contextlib.suppress(BlockingIOError):
                os.write(worker.tokens.writer, choices.take(choices.below(17)))
            bench.pool.recall()
        else:
            for piece in choices.cut(stream(choices, number)):
                bench.write(piece)
        bench.turn()
        bench.pool.pump()
    bench.end()


def _some_descriptor(choices: Choices) -> int:
    """Return a descriptor of something, or -1."""
    how = choices.below(4)
    if how == 0:
        return -1
    if how == 1:
        return os.open("/dev/null", os.O_RDONLY)
    fd = os.memfd_create("fuzz", os.MFD_ALLOW_SEALING)
    os.write(fd, _parcel_bytes(choices))
    if how == 2:
        import fcntl

        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def _parcel_bytes(choices: Choices) -> bytes:
    """Return what the memory of a parcel may hold."""
    if choices.below(2):
        return choices.some()
    head = _parcels.HEAD.pack(_parcels.MAGIC, choices.number(), choices.number())
    places = b"".join(
        _parcels.PLACE.pack(choices.number(), choices.number()) for _ in range(choices.below(4))
    )
    return head + places + payload(choices)


def parcel(data: bytes) -> None:
    """Memory that came from elsewhere: a value or an exception, and the descriptor is closed."""
    choices = Choices(data)
    lowest = _lowest_descriptor()
    fd = _some_descriptor(choices)
    if fd >= 0:
        try:
            arrived = _parcels.Arrived(fd)
        except (OSError, ValueError):
            pass
        else:
            with contextlib.suppress(Exception):
                arrived.load()
            with contextlib.suppress(Exception):
                arrived.load()
    with contextlib.suppress(Exception):
        _parcels.InBand(bytearray(_parcel_bytes(choices))).load()
    assert _lowest_descriptor() == lowest, "a descriptor is left"


def _lowest_descriptor() -> int:
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    return fd


def side(data: bytes) -> None:
    """What comes beside the answers: output and stacks out of any bytes, never more than is kept."""
    choices = Choices(data)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    output = Output(reader)
    heads = (
        b"Stack (most recent call first):\n",
        b"Fatal Python error: Aborted\n\n",
        b"Current thread 0x0001 (most recent call first):\n",
        b'  File "x.py", line 1 in f\n',
        b'  File "x.py", line 2 in <module>\n',
        b"  ...\n",
        b"\n",
    )
    try:
        while choices.more:
            how = choices.below(8)
            with contextlib.suppress(BlockingIOError):
                if how == 0:
                    output.mark()
                elif how == 1:
                    output.prepare()
                elif how == 2:
                    os.write(writer, bytes(60_000))
                elif how == 3:
                    assert type(output.stack_is_complete) is bool
                elif how == 4:
                    _check_output(*output.take())
                else:
                    os.write(writer, choices.some() if how == 5 else choices.pick(heads))
            output.read()
            assert len(output.kept) <= 2 * OUTPUT_KEPT
        _check_output(*output.take())
        assert not output.kept
    finally:
        os.close(reader)
        os.close(writer)


def _check_output(text: bytes, stack: str | None, truncated: bool) -> None:
    assert len(text) <= OUTPUT_KEPT
    assert stack is None or "File" in stack
    assert type(truncated) is bool


def tokens(data: bytes) -> None:
    """Anything in the pipe of tokens: numbers for the parent, a decision or an error that ends it for the worker."""
    choices = Choices(data)
    parent = Tokens()
    child = ChildWorker.__new__(ChildWorker)
    child.token, child.token_fd = 0, parent.reader
    number = 1
    try:
        while choices.more:
            how = choices.below(5)
            with contextlib.suppress(BlockingIOError):
                if how == 0:
                    parent.grant(number, choices.below(16))
                elif how == 1:
                    os.write(parent.writer, choices.take(choices.below(24)))
                elif how == 2:
                    assert all(0 <= each < 1 << 64 for each in parent.take_back())
                elif how == 3:
                    parent.take_back_again()
                else:
                    try:
                        child.has_token(number)
                    except wire.WireError:
                        return  # it ends
                    number += 1
    finally:
        parent.close()


class _Owner:
    """Who hears of what a helper says; each value must be what it seems."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.launcher = None
        self.lost = 0

    def on_spawned(self, number: int, pid: int, pidfd: int | None) -> None:
        assert type(number) is int
        assert type(pid) is int
        if pidfd is not None:
            os.close(pidfd)

    def went(self, way: str) -> None:
        assert way in ("start.fork", "start.exec")

    def on_spawn_failed(self, number: int, error: str, traceback: str | None) -> None:
        assert type(number) is int
        assert type(error) is str

    def on_gone(
        self, number: int, status: int, at: float, cpu: float, rss: int, stuck: tuple[int, ...]
    ) -> None:
        assert type(number) is type(status) is type(rss) is int
        assert type(at) is type(cpu) is float
        assert all(type(pid) is int for pid in stuck)

    def on_helper_lost(self, reason: str, failure: tuple[str, str | None] | None) -> None:
        self.lost += 1


MESSAGES: tuple[Any, ...] = (
    ("gone", 1, 9, 0.5, 0.5, 1000, ()),
    ("gone", 1, 9, 0.5, 0.5, 1000, (3, 4)),
    ("gone", 1),
    ("gone", "x", 9, None, 0.5, 1000, 5),
    ("gone", 1, 2**70, 0.5, 0.5, 1000, ()),
    ("spawned", 1, 77, True),
    ("spawned", "x", None),
    ("spawned",),
    ("spawn_failed", 1, "fork failed"),
    ("spawn_failed", 1, 5),
    ("pong", 1),
    ("pong", None),
    ("preload_failed", "name", "text", "traceback"),
    ("preload_failed", 1),
    ("what",),
    (),
    5,
    None,
    "hello",
)


def helper(data: bytes) -> None:
    """A helper that writes anything: its owner hears what it may hear, or it is ended; no descriptor is left."""
    import threading

    choices = Choices(data)
    lowest = _lowest_descriptor()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    loop = Loop(threading.RLock())
    owner = _Owner(loop)
    launcher = Launcher(loop, owner)  # type: ignore[arg-type]
    ends: list[str] = []
    launcher.destroy = lambda failure=None: ends.append(failure or "")  # type: ignore[method-assign]
    launcher._signal_guard = lambda signum: None  # type: ignore[method-assign]
    launcher._guard_reaped = True  # there is none
    launcher._control = Control(ours)
    loop.watch(ours.fileno(), 1, None)
    try:
        while choices.more and launcher._control is not None and not ends:
            fds = [
                os.open("/dev/null", os.O_RDONLY) for _ in range(choices.below(4) if choices.below(2) else 0)
            ]
            how = choices.below(4)
            if how == 0:
                message = choices.some()
            elif how == 1:
                message = choices.byte().to_bytes(4, "little") + payload(choices)
            else:
                body = pickle.dumps(
                    (choices.pick(MESSAGES), len(fds) if how == 2 else choices.pick((0, 9, -1, "x"))), 5
                )
                message = len(body).to_bytes(4, "little") + body
            for piece in choices.cut(message):
                with contextlib.suppress(OSError):
                    theirs.sendmsg([piece], Control.ancillary(fds))
                for fd in fds:
                    os.close(fd)
                fds = []
                launcher._on_control(1)
                while loop.calls:
                    loop.calls.popleft()()
            for fd in fds:
                os.close(fd)
        theirs.close()
        for _ in range(3):
            if launcher._control is not None:
                launcher._on_control(1)
        assert launcher._control is None
        assert loop.errors == []
        if launcher._helper_fd is not None:
            os.close(launcher._helper_fd)
    finally:
        ours.close()
        theirs.close()
    assert _lowest_descriptor() == lowest, "a descriptor is left"


def child(data: bytes) -> None:
    """The worker's end of its socket: frames, the end, or an exception, which ends the worker. Never a wait for more
    than was announced.
    """
    choices = Choices(data)
    ours, theirs = socket.socketpair()
    channel = Channel(ours.detach())
    written = 0
    try:
        while choices.more and written < 1 << 16:  # more would have to be read meanwhile
            part = stream(choices, choices.number)
            if choices.below(4) == 0:
                part = b"".join(
                    map(
                        bytes,
                        wire.packet(
                            choices.number(), [(choices.some(), 0.0, 1.0, 2, b"m")] * choices.below(3)
                        ),
                    )
                )
            theirs.sendall(part)
            written += len(part)
        theirs.close()
        with contextlib.suppress(Exception):
            while (found := channel.read()) is not None:
                assert found.kind != wire.CALLS
    finally:
        channel.close()
        theirs.close()


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each
    for each in (decoder, answers, parcel, side, tokens, helper, child, untrusted, outcome, plain)
}
