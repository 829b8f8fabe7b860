"""System calls that hold the GIL: those between a caller and the result that it waits for, and the reading of answers.

Python releases it around each system call. Beside a thread that computes, or submits, that costs the switch interval,
five milliseconds (sys.setswitchinterval), until the caller has it again. These calls never wait, so nobody is held up
for longer than they take: some microseconds.
"""

from __future__ import annotations

import os
import select
from _socket import MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK  # importing `socket` takes milliseconds
from _struct import Struct

from procsched._libc import Library, c_type

PEEKED = 1 << 13  # bytes of an answer, at most, that are looked at
RECEIVED = 1 << 16  # bytes, at most, that are taken at once
_FLAGS = MSG_DONTWAIT | MSG_NOSIGNAL
_EPOLL_CTL_MOD = 3  # linux/eventpoll.h
# struct epoll_event: packed on x86-64 alone. The data is a union, into which Python puts the descriptor.
_EVENT = Struct("=Ii4x" if os.uname().machine == "x86_64" else "@I0QI4x")


class Holding:
    """The calls. Thread safety: call from anywhere, but `peek` and `receive` from one thread at a time.

    Raises:
        OSError, AttributeError: they cannot be made here.
    """

    def __init__(self) -> None:
        import _ctypes

        library = Library(None, holding=True)
        self._send, self._recv, self._epoll_ctl = library.send, library.recv, library.epoll_ctl
        self._sched_yield = library.sched_yield
        self._get_errno = _ctypes.get_errno
        self._received, self._dropped = (
            type("Bytes", (_ctypes.Array,), {"_type_": c_type("c"), "_length_": length})()
            for length in (RECEIVED, PEEKED)
        )
        self._view = memoryview(self._received).cast("B")

    def send(self, fd: int, data: memoryview) -> int:
        """Send what the socket takes; return how much that is.

        Raises:
            OSError: as `socket.send`.
        """
        return self._checked(self._send(fd, bytes(data), len(data), _FLAGS))

    def peek(self, fd: int) -> bytes:
        """Return what has come on a socket, and leave it there.

        Raises:
            OSError: as `socket.recv`.
        """
        count = self._checked(self._recv(fd, self._received, PEEKED, _FLAGS | MSG_PEEK))
        return self._view[:count].tobytes()

    def receive(self, fd: int) -> bytes:
        """Take from a socket what has come, at most `RECEIVED` bytes; b"" where nothing will come any more.

        Raises:
            OSError: as `socket.recv`.
        """
        count = self._checked(self._recv(fd, self._received, RECEIVED, _FLAGS))
        return self._view[:count].tobytes()

    def drop(self, fd: int, size: int) -> None:
        """Take from a socket `size` bytes, at most `PEEKED`, that were looked at before.

        Raises:
            OSError: as `socket.recv`.
        """
        self._checked(self._recv(fd, self._dropped, size, _FLAGS))

    def change(self, epoll: int, fd: int, events: int) -> None:
        """Have an epoll wait for other events of `fd`, as `select.epoll.modify`.

        Raises:
            OSError: it does not know `fd`.
        """
        self._checked(self._epoll_ctl(epoll, _EPOLL_CTL_MOD, fd, _EVENT.pack(events, fd)))

    def give_way(self) -> None:
        """Let another process have this processor, if one waits for it: as the kernel may at any time."""
        self._sched_yield()

    def _checked(self, count: int) -> int:
        if count < 0:
            number = self._get_errno()
            raise OSError(number, os.strerror(number))
        return count


def found() -> Holding | None:
    """Return the calls, or None where they cannot be made: without ctypes, or by another C library."""
    try:
        # A program may have either monkeypatched away.
        return Holding() if hasattr(select, "poll") and hasattr(select, "epoll") else None
    except (OSError, AttributeError, ImportError):
        return None
