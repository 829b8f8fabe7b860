"""Frames between the parent and a worker: bytes in, messages out.

Every message is one frame: a header of fixed size, a little meta data, a payload. The header begins with a
magic number so that bytes which are no frame are noticed at once, and lengths are checked against a cap before
anything is allocated. Pure: who reads and writes the bytes is somebody else's business.
"""

from __future__ import annotations

import _pickle as pickle
from _struct import Struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NamedTuple

    class Frame(NamedTuple):
        """One message; what the fields mean depends on the kind, see the constants."""

        kind: int
        flags: int
        number: int
        first: float
        second: float
        third: int
        meta: bytes
        payload: bytes | bytearray
else:
    from collections import namedtuple

    Frame = namedtuple("Frame", "kind flags number first second third meta payload")

# magic, kind, flags, bytes of meta, bytes of payload, number of the call, two floats, one count
HEADER = Struct("<HBBIQQddQ")
MAGIC = 0x70C5
CAP = 1 << 40  # no frame is larger than a tebibyte; memory ends long before
META_CAP = 1 << 20

# Parent to worker.
START = 1  # payload: a pickled dict, how to begin; answered by READY or START_FAILED
# CALL: payload: the call; first: steady deadline of the backstop, 0 for none; second: its timeout or -1; third: run and
# attempt, 32 bits each; meta: id and name of its task, with a zero byte between.
CALL = 2
PATH = 3  # payload: pickled sys.path

# Worker to parent.
READY = 16
START_FAILED = 17  # payload: pickled `Failure`
DONE = 18  # payload: the pickled result; first: steady time of the end, second: CPU s or -1, third: peak rss or 0
RAISED = 19  # payload: pickled `Failure`; numbers as in DONE
PROGRESS = 20  # payload: pickled (done, total, note)

# Flags of CALL.
CAPTURE = 1

# Flags of DONE and RAISED.
DIRTY = 1  # the run left something behind: meta says what, and the worker is not used again
SOFT = 2  # the exception that left the action is the soft timeout's own

_HEADER_SIZE = HEADER.size
_SMALL = 1 << 16
_TRUSTED = (
    64 << 20
)  # bytes that are set aside for a payload because its header says so; more when so many have come
_GROWTH = 8


class WireError(ValueError):
    """The other side wrote something that is no frame."""


def encode(
    kind: int,
    number: int = 0,
    payload: bytes | bytearray = b"",
    *,
    flags: int = 0,
    first: float = 0.0,
    second: float = 0.0,
    third: int = 0,
    meta: bytes = b"",
) -> list[bytes | bytearray]:
    """Return a frame as parts to be written one after another; a large payload is not copied."""
    head = HEADER.pack(MAGIC, kind, flags, len(meta), len(payload), number, first, second, third) + meta
    if len(payload) < _SMALL:
        return [head + payload]
    return [head, payload]


def unpack(payload: bytes | bytearray, count: int) -> tuple[Any, ...]:
    """Return the tuple of `count` values in a frame that a trusted worker wrote.

    Raises:
        WireError: it is no such pickle. Something has written into the worker's pipe.
    """
    try:
        values = pickle.loads(payload)
    except Exception as error:
        raise WireError(f"a payload of {len(payload)} bytes cannot be read: {error}") from error
    if type(values) is not tuple or len(values) != count:
        raise WireError(f"a payload of {len(payload)} bytes does not hold {count} values")
    return values


class Decoder:
    """Turns bytes, however they are cut, into frames.

    Small frames come out of `feed`. While the payload of a large one is missing, `target` is the memory where
    its next bytes belong: read straight into it and report with `filled`, and nothing is copied.
    """

    def __init__(self, cap: int = CAP) -> None:
        self.cap = cap
        self.target: memoryview | None = None
        self._pending = bytearray()
        self._large: bytearray | None = None
        self._size = 0  # of the payload that `_large` is, or will be
        self._head: tuple[int, int, int, float, float, int, bytes] | None = None

    @property
    def in_frame(self) -> bool:
        """True while a frame has begun and not ended."""
        return bool(self._pending) or self._large is not None

    def whole(self, data: bytes) -> Frame | None:
        """Return the frame if `data` is exactly one, as it mostly is; else None, and it has to be fed."""
        if self._pending or self.target is not None or len(data) < _HEADER_SIZE:
            return None
        magic, kind, flags, meta_size, size, number, first, second, third = HEADER.unpack_from(data)
        body = _HEADER_SIZE + meta_size
        if magic != MAGIC or len(data) != body + size:
            return None
        return Frame(kind, flags, number, first, second, third, data[_HEADER_SIZE:body], data[body:])

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """Yield the frames that end within `data`, keeping what is left over.

        Raises:
            WireError: wrong magic, or a length over the cap. Nothing more can be read after that.
        """
        while self.target is not None and len(data):
            room = len(self.target)
            piece = data[:room]
            self.target[: len(piece)] = piece
            frame = self.filled(len(piece))
            data = data[room:]
            if frame is not None:
                yield frame
        self._pending += data
        while True:
            pending = self._pending
            if len(pending) < HEADER.size:
                if pending and pending[:2] != MAGIC.to_bytes(2, "little")[: len(pending)]:
                    raise WireError(f"no frame begins with {bytes(pending[:16])!r}")
                return
            magic, kind, flags, meta_size, size, number, first, second, third = HEADER.unpack_from(pending)
            if magic != MAGIC:
                raise WireError(f"no frame begins with {bytes(pending[:16])!r}")
            if size > self.cap or meta_size > META_CAP:
                raise WireError(
                    f"a frame of {size} bytes ({meta_size} of meta data) is over the cap of {self.cap}"
                )
            body = HEADER.size + meta_size
            if len(pending) >= body + size:
                meta = bytes(pending[HEADER.size : body])
                payload = bytes(pending[body : body + size])
                del pending[: body + size]
                yield Frame(kind, flags, number, first, second, third, meta, payload)
            elif size >= _SMALL and len(pending) >= body:
                self._head = (kind, flags, number, first, second, third, bytes(pending[HEADER.size : body]))
                have = len(pending) - body
                self._size = size
                self._large = bytearray(min(size, max(_TRUSTED, 2 * have)))
                self._large[:have] = pending[body:]
                pending.clear()
                self.target = memoryview(self._large)[have:]
                return
            else:
                return

    def filled(self, count: int) -> Frame | None:
        """Say that `count` bytes were read into `target`; return the frame if that ended it."""
        assert self.target is not None
        assert self._large is not None
        assert self._head is not None
        self.target = self.target[count:]
        if len(self.target):
            return None
        have = len(self._large)
        if have < self._size:
            larger = bytearray(min(self._size, have * _GROWTH))
            larger[:have] = self._large
            self._large = larger
            self.target = memoryview(larger)[have:]
            return None
        frame = Frame(*self._head, self._large)
        self.target = self._large = self._head = None
        return frame
