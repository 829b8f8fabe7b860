"""Messages with descriptors between parent and helper: each keeps its own, whatever is missing or does not belong."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator

import pytest

from procsched.child.control import Control
from procsched.child.helper import Helper

LARGE = "x" * 20_000  # not read at once


@pytest.fixture
def ends() -> Iterator[tuple[Control, Control]]:
    """Return what sends, and what receives without blocking."""
    sender, receiver = map(Control, socket.socketpair())
    receiver.sock.setblocking(False)
    yield sender, receiver
    sender.close()
    receiver.forget()


def receive(control: Control, count: int) -> list[tuple[object, list[int]]]:
    """Return so many messages."""
    found: list[tuple[object, list[int]]] = []
    for _ in range(100):
        found += control.receive_available()
        if len(found) >= count:
            break
    return found


def test_messages_keep_their_descriptors(ends: tuple[Control, Control]) -> None:
    """Large and small, with and without: each message comes with those that were sent with it."""
    sender, receiver = ends
    with open(os.devnull, "rb") as file:
        sizes = (0, 1, 0, 2, 1)
        for number, size in enumerate(sizes):
            sender.send((number, LARGE[: number * 5000]), [file.fileno()] * size)
        found = receive(receiver, len(sizes))
    assert [len(fds) for _, fds in found] == list(sizes)
    for _, fds in found:
        for fd in fds:
            os.close(fd)


def test_a_shortage_of_descriptors_gives_a_message_none_of_another(ends: tuple[Control, Control]) -> None:
    """A descriptor for which there is no room is missing in its own message, not in the next."""
    sender, receiver = ends
    with open(os.devnull, "rb") as file:
        sender.send(("first", LARGE), [file.fileno()])
        free = os.dup(file.fileno())
        os.close(free)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
        try:
            assert receiver.receive_available() == []  # the beginning of the message
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        sender.send(("second",), [file.fileno()])
        (first, nothing), (second, fds) = receive(receiver, 2)
    assert (first, nothing) == (("first", LARGE), [])
    assert second == ("second",)
    (fd,) = fds
    assert os.path.samestat(os.fstat(fd), os.stat(os.devnull))
    os.close(fd)


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 100, b"\x10\0\0\0" + b"no pickle at all" * 2], ids=["length", "pickle"]
)
def test_what_is_no_message_is_the_end(ends: tuple[Control, Control], garbage: bytes) -> None:
    """What came before it counts; nothing is waited for, and what came along is closed."""
    sender, receiver = ends
    before = set(os.listdir("/proc/self/fd"))
    with open(os.devnull, "rb") as file:
        sender.send("good")
        sender.sock.send(garbage)
        sender.send("lost", [file.fileno()])
        assert receive(receiver, 2)[:2] == [("good", []), (None, [])]
    receiver.forget()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_helper_whose_parent_goes_before_it_is_ready_has_nothing_to_complain_of() -> None:
    """No traceback on the terminal of who was killed: what sees to its end comes next."""
    ours, theirs = socket.socketpair()
    helper = Helper.__new__(Helper)
    helper.control = Control(ours)
    theirs.close()
    helper.say(("hello", 1))
    with pytest.raises(OSError):
        helper.control.send(("hello", 1))
    ours.close()
