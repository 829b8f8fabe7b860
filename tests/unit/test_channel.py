"""The worker's end of its socket: frames whole or not at all, and what must not be kept waiting."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from procsched._core import wire
from procsched.child import channel as channels
from procsched.child.channel import Channel
from tests import support

LARGE = 70_000  # bytes of a payload that is a part of its own


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    """Return the worker's end and the parent's."""
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours.detach())
        theirs.settimeout(support.TIMEOUT)
        yield channel, theirs
        channel.close()


def frame(number: int, size: int = 1) -> list[bytes | bytearray]:
    return wire.encode(wire.CALL, number, b"x" * size)


def read_all(sock: socket.socket) -> bytes:
    """Return what there is now."""
    sock.setblocking(False)
    data = b""
    try:
        while piece := sock.recv(1 << 20):
            data += piece
    except BlockingIOError:
        pass
    return data


def test_what_came_before_garbage_counts(ends: tuple[Channel, socket.socket]) -> None:
    """Frames are handed out in turn; then the garbage is told, again and again."""
    channel, parent = ends
    parent.sendall(b"".join([*frame(1), *frame(2), b"\xff" * 100]))
    assert [channel.read().number, channel.read().number] == [1, 2]  # type: ignore[union-attr]
    for _ in range(2):
        with pytest.raises(wire.WireError):
            channel.read()


def test_a_fork_can_close_what_a_run_has_closed() -> None:
    """It has more to let go of than this."""
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Channel(ours.detach())
        os.close(channel.fd)
        channel.close()
        assert channel.fd == -1


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_frame_that_is_not_whole_is_the_end(ends: tuple[Channel, socket.socket], size: int) -> None:
    """The parent has gone in the middle of it."""
    channel, parent = ends
    parent.sendall(b"".join(frame(1, size))[:-1])
    parent.shutdown(socket.SHUT_WR)
    assert channel.read() is None


class Backstop:
    """Stands for the kernel's timer: what is done at each change, and the times for which it is armed."""

    def __init__(self, at_end: Callable[[], None] = lambda: None) -> None:
        self.due = 7.0
        self.at_end = at_end
        self.armed_again = threading.Event()

    def disarm(self) -> float:
        self.at_end()
        due, self.due = self.due, 0.0
        return due

    def arm(self, due: float) -> None:
        self.due = due
        self.armed_again.set()


def fill(channel: Channel) -> None:
    """Write until there is no room for another thousand bytes."""
    os.set_blocking(channel.fd, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(channel.fd, b"x" * 1000)
    os.set_blocking(channel.fd, True)


def test_a_large_frame_is_whole_but_for_a_byte_before_the_backstop_is_off(
    ends: tuple[Channel, socket.socket],
) -> None:
    """The writing of it may be kept waiting, so the kernel's timer must be on; the last byte never is."""
    channel, parent = ends
    whole = b"".join(frame(1, LARGE))
    data = b""

    def read() -> None:
        nonlocal data
        while len(data) < len(whole) - 1:
            data += parent.recv(1 << 20)

    reader = threading.Thread(target=read)
    reader.start()

    def see() -> None:
        reader.join(support.TIMEOUT)
        assert data == whole[:-1]

    backstop = Backstop(see)
    channel.write(frame(1, LARGE), backstop)
    assert read_all(parent) == whole[-1:]
    assert not backstop.armed_again.is_set()


def test_a_small_frame_is_written_in_one_where_there_is_room(ends: tuple[Channel, socket.socket]) -> None:
    """Nothing of it is there before the backstop is off, however many the parent has not read."""
    channel, parent = ends
    seen: list[bytes] = []
    backstop = Backstop(lambda: seen.append(read_all(parent)))
    for number in range(3):
        channel.write(frame(number), backstop)
    assert seen == [b"", *(b"".join(frame(number)) for number in range(2))]
    assert not backstop.armed_again.is_set()
    for number in range(100):  # more than a quarter of what the kernel lets us write
        channel.write(frame(number), backstop := Backstop())
        assert not backstop.armed_again.is_set()


def test_without_room_a_small_frame_waits_with_the_backstop_on(ends: tuple[Channel, socket.socket]) -> None:
    """A parent that does not read keeps it waiting, and the timer is off for no longer than a look takes."""
    channel, parent = ends
    fill(channel)
    backstop = Backstop()
    writer = threading.Thread(target=channel.write, args=(frame(1), backstop))
    writer.start()
    assert backstop.armed_again.wait(support.TIMEOUT)
    assert backstop.due == 7.0
    data, whole = b"", b"".join(frame(1))
    while not data.endswith(whole):
        data += parent.recv(1 << 20)
    writer.join(support.TIMEOUT)
    assert backstop.due == 0.0
    assert set(data[: -len(whole)]) == set(b"x")


def test_what_fits_of_a_small_frame_is_not_written_again(
    ends: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest follows with the backstop on, but for the last byte."""
    channel, parent = ends
    sock = channel.sock

    class Narrow:
        """A socket that takes the beginning of a frame."""

        def send(self, data: bytes, flags: int) -> int:
            return sock.send(data[:20], flags)

    monkeypatch.setattr(channel, "sock", Narrow())
    seen: list[bytes] = []
    backstop = Backstop(lambda: seen.append(read_all(parent)))
    channel.write(frame(1), backstop)
    whole = b"".join(frame(1))
    assert seen == [b"", whole[:-1]]
    assert read_all(parent) == whole[-1:]
    assert (backstop.due, backstop.armed_again.is_set()) == (0.0, True)


class Looks:
    """Stands for the poll object: counts how often it is asked, each time taking a hundredth of a millisecond."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, parent: socket.socket) -> None:
        self.now = 0.0
        self.count = 0
        self.parent = parent
        self.most = 1000  # looks until a frame comes
        monkeypatch.setattr(channels, "monotonic", lambda: self.now)

    def poll(self, _timeout: int) -> bool:
        self.count += 1
        self.now += 0.00001
        if self.count == self.most:
            self.parent.sendall(b"".join(frame(1)))
        return self.count >= self.most


@pytest.fixture
def looks(ends: tuple[Channel, socket.socket], monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Return what a channel looks with, which has two processors and was just sent something."""
    channel, parent = ends
    channel.may_look = True
    looks = Looks(monkeypatch, parent)
    channel.coming = looks  # type: ignore[assignment]
    parent.sendall(b"".join(frame(1)))
    channel.read()
    assert looks.count == 0  # the first time nobody knows
    return looks


def test_a_call_that_comes_as_soon_as_the_last_is_found_by_looking(
    ends: tuple[Channel, socket.socket], looks: Looks
) -> None:
    """Again and again: each shows that the next may be worth it."""
    channel, _parent = ends
    for _ in range(3):
        looks.count, looks.most = 0, 3
        assert channel.read() is not None
        assert looks.count == 3


def test_a_worker_looks_no_longer_than_a_tenth_of_a_millisecond(
    ends: tuple[Channel, socket.socket], looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it sleeps, and does not look the next time either, until one has come soon again."""
    channel, parent = ends
    real = os.read

    def read(fd: int, size: int) -> bytes:
        if looks.count < looks.most:
            looks.now += 0.00001
            parent.sendall(b"".join(frame(1)))
        return real(fd, size)

    monkeypatch.setattr(channels.os, "read", read)
    channel.read()
    assert looks.count == pytest.approx(channels.LOOKED / 0.00001, abs=1)
    looks.count = 0
    channel.read()
    assert looks.count == 0
    looks.most = 2
    channel.read()
    assert looks.count == 2


def test_who_looks_gives_way(
    ends: tuple[Channel, socket.socket], looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two looks: where every processor is wanted, a worker that looks takes nobody's time."""
    channel, _parent = ends
    given = []
    monkeypatch.setattr(channels, "_give_way", lambda: given.append(looks.count))
    looks.most = 4
    assert channel.read() is not None
    assert given == [1, 2, 3]


def test_on_a_single_processor_nobody_looks(ends: tuple[Channel, socket.socket], looks: Looks) -> None:
    """Who is to send the call would have to wait for the one who looks."""
    channel, parent = ends
    channel.may_look = channel.soon = False
    for _ in range(3):
        parent.sendall(b"".join(frame(1)))
        channel.read()
    assert looks.count == 0


def test_the_end_of_the_stream_ends_the_looking(ends: tuple[Channel, socket.socket]) -> None:
    """By the kernel's own word: a hangup is something to read."""
    channel, parent = ends
    channel.soon = True
    parent.close()
    assert channel.read() is None
