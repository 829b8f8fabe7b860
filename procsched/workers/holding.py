"""Socket calls that hold the GIL, for callers that spin.

Python releases it around each system call. Beside a thread that computes, that costs the switch interval, five
milliseconds (sys.setswitchinterval), until the caller has it again. These calls never wait, so nobody is held up for
longer than they take: about a microsecond.
"""

from __future__ import annotations

import ctypes
import functools
import os
import socket
import threading

_library = ctypes.PyDLL(None, use_errno=True)  # what is called through it keeps the GIL
_send = _library.send
_send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_send.restype = ctypes.c_ssize_t
_recv = _library.recv
_recv.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_recv.restype = ctypes.c_ssize_t
_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)


def send(fd: int, data: memoryview) -> int:
    """Send what the socket takes; return how much that is.

    Raises:
        OSError: as `socket.send`.
    """
    return _checked(_send(fd, bytes(data), len(data), _FLAGS))


def receive(fd: int, size: int, flags: int = 0) -> bytes:
    """Return what has come, at most `size` bytes.

    Raises:
        OSError: as `socket.recv`.
    """
    buffer = _buffer(threading.get_ident(), size)
    return ctypes.string_at(buffer, _checked(_recv(fd, buffer, size, _FLAGS | flags)))


def _checked(count: int) -> int:
    if count < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return count


@functools.lru_cache(maxsize=16)
def _buffer(_thread: int, size: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(size)
