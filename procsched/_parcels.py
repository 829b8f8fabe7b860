"""Parcels: pickles that are too large to be sent through a pipe, in memory that both sides see.

    sender: pickle -> pieces and buffers, by reference -> one copy into a memfd, sealed
            -- the descriptor alone, over a socket (unix(7), SCM_RIGHTS) -->
    receiver: maps it: arrays lie in the mapping, copied nowhere; bytes are copied once, into the bytes object

The memory has no name, so nothing is left of it when the last descriptor and mapping have gone, whoever dies; it counts
in no file system, so the size of `/dev/shm` does not matter. It is sealed before it is sent (fcntl(2), F_ADD_SEALS):
nobody can shrink it under a mapping, which would end the reader by SIGBUS, or change what another attempt is to see.
Mappings are private: what the receiver writes into its array is its own.

Where there is no memfd, or no descriptor for one, the same bytes are one `bytes` object that is sent as any payload.

Layout: HEAD, a PLACE for each buffer, the pickle, and the buffers (PEP 574), each at a multiple of `_ALIGNMENT`.
"""

from __future__ import annotations

import _pickle as pickle
import _thread
import errno
import mmap
import os
import sys
from _struct import Struct

from procsched import _system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Callable, Iterable
    from typing import Any

    Buffer = bytes | bytearray | memoryview
    Dump = Callable[["Sink", Callable[[pickle.PickleBuffer], bool]], object]

# Bytes from which on a pickle, or a buffer of one, becomes a parcel: below, a pipe is as quick.
LARGE = 1 << 18
_HUGE = 1 << 22  # bytes from which on memory is worth huge pages; numpy draws the line at the same place
_STEP = 1 << 20  # bytes that are copied without giving other threads a chance
_SLOW = 1 << 24  # bytes whose release takes so long (a third of a millisecond each) that a thread does it
_MOST_HELD = 4  # one in so many of the descriptors that this process may have is used for calls that wait
_ALIGNMENT = 64

HEAD = Struct("<QQQ")  # magic, bytes of the pickle, number of buffers
PLACE = Struct("<QQ")  # offset and bytes of a buffer
MAGIC = 0x6C65637261705350
NUMBER = Struct("<Q")  # what is sent with a descriptor: the number of the call

# Values of these types are small, or as large as they are long, which is soon seen.
_SMALL = frozenset({type(None), bool, int, float, complex})
_TEXTS = frozenset({str, bytes})
_LISTS = frozenset({list, tuple, set, frozenset, dict})
_FEW = 10  # items that are looked at

_held: set[int] = set()  # the descriptors of the parcels that may have to wait, of this process


def are_small(values: Iterable[Any], depth: int = 1) -> bool:
    """Return whether values are exact builtin data and small for certain, after no more than a look."""
    for value in values:
        kind = type(value)
        if kind in _SMALL:
            continue
        if kind in _TEXTS:
            if len(value) >= LARGE:
                return False
        elif (
            kind not in _LISTS
            or not depth
            or len(value) > _FEW
            or not are_small(value, depth - 1)
            or (kind is dict and not are_small(value.values(), depth - 1))
        ):
            return False
    return True


class Sink:
    """What a pickler writes to: keeps the pieces, large ones by reference.

    A pickler hands over bytes objects of 64 KiB and more as they are. Text it hands over as a view of its own memory:
    good for as long as the pickler.
    """

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[bytes | memoryview] = []

    def write(self, piece: Any) -> None:
        """Take a piece."""
        if type(piece) is not bytes:
            # As a view, so that it cannot be resized meanwhile; `raw`, because the buffer may be in Fortran's order.
            piece = piece.raw() if type(piece) is pickle.PickleBuffer else memoryview(piece)
        self.pieces.append(piece)

    def mentions(self, word: bytes) -> bool:
        """Return whether `word` is in what the pickler itself has written, large data left out."""
        before = b""
        for piece in self.pieces:
            size = len(piece)
            data = size >= 1 << 16 and before.endswith(
                (size.to_bytes(8, "little"), size.to_bytes(4, "little"))
            )
            before = b"" if type(piece) is not bytes else piece[-8:]
            if not data and type(piece) is bytes and word in piece:
                return True
        return False


class Parcel:
    """A large pickle on the sender's side. The memory is freed with the object, and may be sent more than once.

    Attributes:
        fd: the descriptor of the memory, or -1.
        data: the same bytes, where there is no such memory.
    """

    __slots__ = ("data", "fd", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.fd = -1
        self.data: bytes = b""

    def __len__(self) -> int:
        return self.size

    def in_band(self) -> bytes | bytearray:
        """Return its bytes, for where the descriptor cannot be sent."""
        if self.fd < 0:
            return self.data
        data = bytearray()
        while len(data) < self.size:
            data += os.pread(self.fd, _STEP, len(data))
        return data

    def load(self) -> Any:
        """Unpickle it on this side."""
        return load(open_memory(os.dup(self.fd))[0] if self.fd >= 0 else self.data)

    def __del__(self) -> None:
        fd, self.fd = self.fd, -1
        if fd in _held:
            _held.discard(fd)
            _apart(self.size, lambda: os.close(fd))
        elif fd >= 0:
            # In a worker: the parent has it by now, and a thread would look like one of the run.
            os.close(fd)


def pack(
    dump: Dump, *, limited: bool = False, check: Callable[[Sink], bool] | None = None
) -> bytes | Parcel | None:
    """Return what `dump` pickles into the sink and the callback for buffers that it is given.

    Args:
        limited: whether what is made may have to wait for long, and many of it.
        check: asked when everything is pickled and nothing copied.
    Returns:
        the pickle; a `Parcel` where it is large; None where `check` says no.
    """
    sink = Sink()
    buffers: list[memoryview] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < LARGE:
            return True
        owner = raw.obj
        while type(owner) is memoryview:
            owner = owner.obj
        # What was `bytes` or a `bytearray` stays one: only arrays are known not to care what their memory is.
        if isinstance(owner, (bytes, bytearray)):
            return True
        buffers.append(raw)
        return False

    keep = dump(sink, take)
    if check is not None and not check(sink):
        return None
    packed = _pack(sink.pieces, buffers, limited)
    del keep  # the pickler: some of the pieces lie in its memory
    return packed


def _pack(pieces: list[bytes | memoryview], buffers: list[memoryview], limited: bool) -> bytes | Parcel:
    """Copy the pieces to where they are sent from."""
    length = sum(map(len, pieces))
    if not buffers and length < LARGE:
        return pieces[0] if len(pieces) == 1 and type(pieces[0]) is bytes else b"".join(pieces)
    places = []
    end = HEAD.size + len(buffers) * PLACE.size + length
    parts: list[bytes | memoryview] = list(pieces)
    for buffer in buffers:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        parts += (bytes(start - end), buffer)
        end = start + buffer.nbytes
        places.append(PLACE.pack(start, buffer.nbytes))
    parts.insert(0, HEAD.pack(MAGIC, length, len(buffers)) + b"".join(places))
    parcel = Parcel(end)
    if not (limited and len(_held) >= _most_held()) and _fill(parcel, parts):
        if limited:
            _held.add(parcel.fd)
        return parcel
    if not buffers:
        return b"".join(pieces)
    parcel.data = b"".join(parts)
    return parcel


def _most_held() -> int:
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft // _MOST_HELD if soft > 0 else sys.maxsize


def _fill(parcel: Parcel, parts: list[bytes | memoryview]) -> bool:
    """Copy `parts` into memory for the parcel; return False where there is none to be had."""
    try:
        fd = _system.memory_file("procsched-parcel", sealable=True)
        if fd is None:
            return False
        parcel.fd = fd
        for part in parts:
            view = memoryview(part)
            while view:
                view = view[os.write(parcel.fd, view) :]
        _system.seal(parcel.fd)
    except OSError:  # no descriptor, no memory, a limit on the size of files
        if parcel.fd >= 0:
            os.close(parcel.fd)
            parcel.fd = -1
        return False
    return True


# -- on its way ----------------------------------------------------------------------------------------------------


def send(sock: socket, number: int, fd: int) -> None:
    """Send a descriptor for call `number`, ahead of the frame that says so. Never blocks.

    Raises:
        OSError: the other side is gone, or has not taken what it was sent before.
    """
    import _socket

    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))]
    sock.sendmsg([NUMBER.pack(number)], ancillary, _socket.MSG_DONTWAIT)


def receive(sock: socket, number: int) -> int:
    """Return the descriptor that was sent for call `number`. Never blocks. Those of earlier calls are closed.

    Raises:
        OSError: there is none: for want of descriptors in this process, mostly.
    """
    import _socket

    flags = getattr(_socket, "MSG_CMSG_CLOEXEC", 0) | _socket.MSG_DONTWAIT
    while True:
        try:
            data, ancillary, _flags, _address = sock.recvmsg(NUMBER.size, _socket.CMSG_SPACE(4), flags)
        except BlockingIOError as error:
            raise OSError(errno.ENOBUFS, "the descriptor of its memory could not be sent") from error
        fd = -1
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS and len(payload) >= 4:
                fd = int.from_bytes(payload[:4], sys.byteorder)
        if data == NUMBER.pack(number):
            if fd < 0:
                raise OSError(errno.EMFILE, "no descriptor is left for what was sent")
            return fd
        if fd >= 0:
            os.close(fd)
        if not data:
            raise OSError(errno.ECONNRESET, "the other side has gone")


def open_memory(fd: int, count: int = 1) -> list[mmap.mmap]:
    """Map what a descriptor stands for `count` times, and close the descriptor whatever happens.

    Raises:
        ValueError: the memory could be taken away while it is read.
        OSError: it cannot be mapped.
    """
    try:
        import fcntl

        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK:
            raise ValueError("the memory of a parcel is not sealed")
        size = os.fstat(fd).st_size
        return [_map(fd, size) for _ in range(count)]
    finally:
        os.close(fd)


def _map(fd: int, size: int) -> mmap.mmap:
    """Map a descriptor privately; the mapping keeps no descriptor of its own, for there may be thousands."""
    access = mmap.PROT_READ | mmap.PROT_WRITE
    if sys.version_info >= (3, 13):
        return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=access, trackfd=False)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=access)
    if _system.map_over(memory, fd, access):
        return memory
    return mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=access)


# -- opening -------------------------------------------------------------------------------------------------------


class Arrived:
    """A large result on the parent's side: nothing of it is read until somebody asks.

    Thread safety: open it from any thread, as often as you like; each gets objects of its own.
    """

    __slots__ = ("_fresh", "_kept", "size")

    def __init__(self, fd: int) -> None:
        """Take over a descriptor. Raises as `open_memory` does."""
        # Two mappings of the same memory: what the first to ask gets, and may write into, and what stays as it is.
        kept, fresh = open_memory(fd, 2)
        self.size = len(kept)
        self._kept = [kept]
        self._fresh = [fresh]

    def __len__(self) -> int:
        return self.size

    def load(self) -> Any:
        """Unpickle it."""
        try:
            fresh = self._fresh.pop()
        except IndexError:
            return load(self._kept[0], copies=True)
        return load(fresh)

    def __reduce__(self) -> Any:
        return InBand, (bytes(self._kept[0]),)

    def __del__(self) -> None:
        kept = getattr(self, "_kept", None)
        if kept:
            _apart(self.size, kept.clear, getattr(self, "_fresh", kept).clear)


class InBand:
    """The same for one that came through the socket."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | bytearray) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def load(self) -> Any:
        """Unpickle it."""
        return load(self.data, copies=True)


class Lost:
    """In the place of one that could not be received."""

    __slots__ = ("reason",)

    def __init__(self, reason: OSError) -> None:
        self.reason = reason

    def __len__(self) -> int:
        return 0

    def load(self) -> Any:
        """Raise what was in the way."""
        raise self.reason


def load(memory: mmap.mmap | bytes | bytearray, *, copies: bool = False) -> Any:
    """Unpickle a parcel; arrays lie in `memory` and keep it alive, unless `copies` are asked for."""
    view = memoryview(memory)
    magic, length, count = HEAD.unpack_from(view)
    if magic != MAGIC:
        raise pickle.UnpicklingError("this is no parcel")
    start = HEAD.size + count * PLACE.size
    if start + length > len(view):  # else who reads it as a file would wait for the rest
        raise pickle.UnpicklingError(f"a parcel of {len(view)} bytes announces {start + length}")
    buffers: list[Any] = []
    for index in range(count):
        offset, size = PLACE.unpack_from(view, HEAD.size + index * PLACE.size)
        buffer = view[offset : offset + size]
        buffers.append(_copy(buffer) if copies else buffer)
    if length < _HUGE:
        return pickle.loads(view[start : start + length], buffers=buffers)
    return pickle.Unpickler(_Reader(memory, start, start + length), buffers=buffers).load()


def _copy(buffer: memoryview) -> bytearray:
    made = bytearray(len(buffer))
    _spread(memoryview(made))
    for start in range(0, len(buffer), _STEP):
        made[start : start + _STEP] = buffer[start : start + _STEP]
    return made


class _Reader:
    """A file in memory, for an unpickler: large objects are copied from it once, by and by.

    What has been copied is no longer counted as ours meanwhile (madvise(2), MADV_DONTNEED), or a large `bytes` would
    be resident twice.
    """

    def __init__(self, memory: mmap.mmap | bytes | bytearray, start: int, end: int) -> None:
        self.view = memoryview(memory)
        self.forget = memory.madvise if isinstance(memory, mmap.mmap) else None
        self.at = start
        self.end = end

    def read(self, count: int) -> bytes:
        data = bytes(self.view[self.at : min(self.at + count, self.end)])
        self.at += len(data)
        return data

    def readline(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n") and self.at < self.end:
            line += self.read(1)
        return bytes(line)

    def readinto(self, target: memoryview) -> int:
        _spread(target)
        size = min(len(target), self.end - self.at)
        for done in range(0, size, _STEP):
            step = min(_STEP, size - done)
            at = self.at
            target[done : done + step] = self.view[at : at + step]
            self.at = at + step
            if self.forget is not None:
                first, last = -(-at // mmap.PAGESIZE), self.at // mmap.PAGESIZE
                if last > first:
                    self.forget(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)
        return size


def _spread(target: memoryview) -> None:
    """Have new memory that is about to be filled made of huge pages, where there are some: it takes half the time."""
    if len(target) >= _HUGE:
        _system.advise_huge_pages(target)


def _apart(size: int, *releases: Callable[[], None]) -> None:
    """Release memory; where it is much, in a thread, for the one that drops it may have deadlines to watch."""
    if size >= _SLOW:
        try:
            _thread.start_new_thread(_release, releases)
            return
        except RuntimeError:  # no thread can be started, or the interpreter is ending
            pass
    _release(*releases)


def _release(*releases: Callable[[], None]) -> None:
    for release in releases:
        release()
