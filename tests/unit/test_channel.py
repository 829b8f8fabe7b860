"""The worker's end of its socket: frames whole or not at all, and what must not be kept waiting."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from procsched._core import wire
from procsched.child.channel import SURE, Channel
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
        os.close(channel.fd)


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


@pytest.mark.parametrize("size", [1, LARGE])
def test_a_frame_that_is_not_whole_is_the_end(ends: tuple[Channel, socket.socket], size: int) -> None:
    """The parent has gone in the middle of it."""
    channel, parent = ends
    parent.sendall(b"".join(frame(1, size))[:-1])
    parent.shutdown(socket.SHUT_WR)
    assert channel.read() is None


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

    channel.write(frame(1, LARGE), see)
    assert read_all(parent) == whole[-1:]


def test_a_small_frame_is_written_in_one_where_there_is_room(ends: tuple[Channel, socket.socket]) -> None:
    """Nothing of it is there before; and it is not looked for room again for a while."""
    channel, parent = ends
    seen: list[bytes] = []
    for number in range(SURE + 2):
        channel.write(frame(number), lambda: seen.append(read_all(parent)))
        assert channel.sure == (SURE - number if number <= SURE else SURE)
    assert seen == [b"", *(b"".join(frame(number)) for number in range(SURE + 1))]


def test_without_room_a_small_frame_waits_with_the_backstop_on(ends: tuple[Channel, socket.socket]) -> None:
    """A parent that does not read keeps it waiting, and nothing is called before it reads."""
    channel, parent = ends
    os.set_blocking(channel.fd, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(channel.fd, b"x" * 1000)
    os.set_blocking(channel.fd, True)
    called = threading.Event()
    writer = threading.Thread(target=channel.write, args=(frame(1), called.set))
    writer.start()
    assert not called.is_set()
    data, whole = b"", b"".join(frame(1))
    while not data.endswith(whole):
        data += parent.recv(1 << 20)
    writer.join(support.TIMEOUT)
    assert called.is_set()
    assert set(data[: -len(whole)]) == set(b"x")
