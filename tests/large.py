"""What the tests of large data run in workers, and what they look at."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import zlib
from typing import Any

from tests import support

MEGABYTE = 1 << 20


class Packed:
    """An object of ours with a buffer of its own, which it gives away out of band."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __reduce_ex__(self, protocol: int) -> Any:
        return Packed, (pickle.PickleBuffer(self.data),)


class Text(bytearray):
    """A bytearray with a method; what unpickles it relies on getting one."""

    def __reduce_ex__(self, protocol: int) -> Any:
        return _text, (pickle.PickleBuffer(self),)


def _text(data: bytearray) -> Text:
    assert type(data) is bytearray
    return Text(data)


def facts(value: Any) -> Any:
    """Return everything about a value that its receiver can tell."""
    kind = type(value)
    if isinstance(value, (list, tuple)):
        return kind.__name__, [facts(each) for each in value]
    if isinstance(value, dict):
        return kind.__name__, [(key, facts(each)) for key, each in value.items()]
    if isinstance(value, Packed):
        view = memoryview(value.data)
        return kind.__name__, view.readonly, view.tobytes()
    if isinstance(value, (bytes, bytearray, str)):
        data = value.encode() if isinstance(value, str) else bytes(value)
        return kind.__name__, len(value), zlib.crc32(data)
    if hasattr(value, "flags"):
        flags = value.flags
        order = (flags.c_contiguous, flags.f_contiguous, flags.writeable, flags.aligned)
        items = facts(value.tolist()) if value.dtype == object else value.tolist()
        return kind.__name__, str(value.dtype), value.shape, value.strides, order, items
    return kind.__name__, repr(value)


def echo(value: Any) -> Any:
    """Return the argument."""
    return value


def size_of(*values: Any) -> int:
    """Return how long the arguments are together."""
    return sum(map(len, values))


def zeros(size: int) -> Any:
    """Return an array of so many bytes."""
    import numpy

    return numpy.zeros(size, numpy.uint8)


def text(size: int) -> bytes:
    """Return so many bytes."""
    return b"x" * size


def spoil(array: Any, path: str) -> tuple[float, float]:
    """Write into the argument and fail at first; return what was there before and is there now."""
    before = float(array[0])
    array += 1
    if not os.path.exists(path):
        support.tell(path, "failed")
        raise ValueError("the first attempt fails")
    return before, float(array[0])


def told_size(value: Any, path: str, gate: str) -> int:
    """Tell that the argument is there, wait at a gate, and return its length."""
    support.tell(path, os.getpid())
    with open(gate, "rb"):
        return len(value)


def killed_while_answering(size: int) -> bytes:
    """Return so many bytes, and be killed when a third of them is written."""
    threading.Thread(target=_kill_at, args=(memory_written, size // 3), daemon=True).start()
    return b"x" * size


def killed_soon(size: int) -> bytes:
    """Return so many bytes, and be killed when the answer has been in the socket for a while."""
    threading.Thread(target=_kill_when_blocked, daemon=True).start()
    return b"x" * size


def _kill_when_blocked() -> None:
    """Wait until the main thread has written for a while: it has copied the bytes for that."""
    begin = resident()
    while resident() < begin + MEGABYTE:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def told_zeros(told: str, gate: str) -> Any:
    """Tell the pid, wait for a word at a gate, and return an array."""
    support.tell(told, os.getpid())
    with open(gate, "rb") as file:
        file.read(2)
    return zeros(MEGABYTE)


class KilledWhileReading:
    """Kills whoever unpickles it, when so much more is resident."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __reduce__(self) -> Any:
        return _kill_soon, (self.size,)


def _kill_soon(size: int) -> None:
    begin = resident()
    threading.Thread(target=_kill_at, args=(lambda: resident() - begin, size), daemon=True).start()


def _kill_at(measure: Any, size: int) -> None:
    while measure() < size:
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def memory_written() -> int:
    """Return the bytes in the memory that this process has for parcels."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:procsched-parcel"):
                found += os.stat(f"/proc/self/fd/{name}").st_size
    return found


def resident() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def parcels_open() -> list[str]:
    """Return the descriptors of parcels that this process has."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:procsched-parcel "):
                found.append(name)
    return found


def parcels_mapped() -> list[str]:
    """Return the mappings of parcels that this process has."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        return [line for line in file if "/memfd:procsched-parcel " in line]


def answer_unsealed(size: int) -> bytes:
    """Return so many bytes in memory that is not sealed, and take that away at once."""
    from procsched import _parcels

    send = _parcels.send

    def send_unsealed(sock: Any, number: int, fd: int) -> None:
        other = os.memfd_create("procsched")
        os.ftruncate(other, size)
        send(sock, number, other)
        os.ftruncate(other, 0)

    _parcels.send = send_unsealed
    return b"x" * size


def fill_parcels(*, blocking: bool) -> bytes:
    """Fill the sockets that descriptors travel on, and return something large."""
    import socket
    import stat

    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            fd = int(name)
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                continue
            sock = socket.socket(fileno=os.dup(fd))
            if sock.type == socket.SOCK_DGRAM:
                sock.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        sock.send(b"garbage!")
                sock.setblocking(blocking)
            sock.close()
    return b"x" * MEGABYTE
