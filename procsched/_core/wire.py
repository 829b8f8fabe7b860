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
        payload: Any  # bytes; the pool puts an object in its place where it is a parcel
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
# CALL: payload: the call; first: steady time of the backstop, with AHEAD in seconds from the start, 0 for none; second:
# its timeout or -1; third: run and attempt, 32 bits each; meta: id and name of its task, with a zero byte between.
CALL = 2
PATH = 3  # payload: pickled sys.path
# CALLS: a packet of small calls that are all AHEAD; number: of the first, the others follow; payload: see `packet`.
CALLS = 4
# LIMITS: of the call with this number, which comes next; payload: a pickled tuple, see `child/limiting.py`.
LIMITS = 5

# Worker to parent.
READY = 16
START_FAILED = 17  # payload: pickled `Failure`
# DONE: payload: the pickled result; first and second: steady time of end and beginning; meta: FACTS and what the run
# left behind, where it was long enough to ask or left something.
DONE = 18
RAISED = 19  # payload: pickled `Failure`; numbers as in DONE
PROGRESS = 20  # payload: see `progress`

# Flags of CALL.
CAPTURE = 1
AHEAD = 2  # the call is to be begun only with a token

# Flags of DONE and RAISED.
DIRTY = 1  # the run left something behind: meta says what, and the worker is not used again
SOFT = 2  # the exception that left the action is the soft timeout's own
UNLOADABLE = 16  # the call, which a store kept, could not be opened: nothing of it has run
LARGE = 32  # RAISED: the result takes more bytes than its limit; third says how many
REFUSED = 64  # RAISED: the kernel refused what is beyond a limit; third says which, as a place in the next
REFUSED_LIMITS = ("open_files", "file_size")

# Flags of CALL and DONE: the payload is no pickle but a parcel, see `_parcels.py`.
APART = 4  # ... whose descriptor was sent through the other socket; the payload is empty
WHOLE = 8  # ... as it is
PARCEL = APART | WHOLE

# What allows a worker to begin a call that was sent AHEAD, through a pipe: a mark, by which something else that was
# written there is noticed, and the number of the call.
TOKEN = Struct("<HQ")
TOKEN_MARK = 0x70C7
FACTS = Struct("<dQ")  # CPU seconds or -1, peak rss in bytes or 0

_HEADER_SIZE = HEADER.size
_unpack = HEADER.unpack_from
_new = tuple.__new__  # what a namedtuple does in the end
_MAGIC_BYTES = MAGIC.to_bytes(2, "little")
_SMALL = 1 << 16
# Bytes that are set aside for a payload because its header says so; more when so many have come.
_TRUSTED = 64 << 20
_TEXT, _BYTES = (str, type(None)), (bytes, type(None))
_GROWTH = 8


class WireError(ValueError):
    """The other side wrote something that is no frame."""


def encode(
    kind: int,
    number: int = 0,
    payload: bytes | bytearray = b"",
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


def packet(first: int, calls: list[tuple[bytes, float, float, int, bytes]]) -> list[bytes | bytearray]:
    """Return a frame of several calls, as `encode` does; a tenth of the work of one for each.

    Args:
        first: number of the first call.
        calls: payload, first, second, third and meta of each, as in a CALL.
    """
    return encode(CALLS, first, pickle.dumps(calls, 5))


def open_packet(frame: Frame) -> list[Frame]:
    """Return the calls of a packet that the parent wrote, as frames."""
    calls = enumerate(pickle.loads(frame.payload), frame.number)
    return [
        _new(Frame, (CALL, AHEAD, number, first, second, third, meta, payload))
        for number, (payload, first, second, third, meta) in calls
    ]


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


def open_failure(payload: bytes | bytearray) -> tuple[str, str | None, bytes | None, str]:
    """Return what a worker says of a failure: its text, traceback, exception, and why that cannot travel.

    Raises:
        WireError: it is none.
    """
    text, traceback, carried, obstacle = unpack(payload, 4)
    right = type(text) is type(obstacle) is str and type(traceback) in _TEXT and type(carried) in _BYTES
    if not right:
        raise WireError(f"a payload of {len(payload)} bytes tells of no failure")
    return text, traceback, carried, obstacle


def progress(done: float, total: float | None, note: str) -> bytes:
    """Return the payload that tells how far a run is, from exact numbers and an exact text.

    No pickle: it is opened in the thread that watches the deadlines.
    """
    wanted = "" if total is None else _digits(total)
    return f"{_digits(done)} {wanted} {note}".encode("utf-8", "surrogatepass")


def _digits(number: float) -> str:
    """Return a number in hexadecimal: exact, and for an int of any length in no more than linear time."""
    return f"={number:x}" if type(number) is int else float.hex(number)


def _number(digits: str) -> float:
    return int(digits[1:], 16) if digits.startswith("=") else float.fromhex(digits)


def open_progress(payload: bytes | bytearray) -> tuple[float, float | None, str]:
    """Return how far a run says it is.

    Raises:
        WireError: it says nothing of the kind.
    """
    try:
        done, total, note = str(payload, "utf-8", "surrogatepass").split(" ", 2)
        return _number(done), None if not total else _number(total), note
    except (ValueError, OverflowError) as error:
        raise WireError(f"a payload of {len(payload)} bytes tells of no progress") from error


def open_facts(meta: bytes) -> tuple[float, int]:
    """Return CPU seconds or -1, and peak rss or 0, as an answer has them.

    Raises:
        WireError: there is less than that.
    """
    if len(meta) < FACTS.size:
        raise WireError(f"{len(meta)} bytes are no facts of a run")
    cpu, peak = FACTS.unpack_from(meta)
    return cpu, peak


def only_frame(data: bytes) -> Frame | None:
    """Return the one frame that `data` is, or None where it is anything else."""
    if len(data) < _HEADER_SIZE:
        return None
    magic, kind, flags, meta_size, size, number, first, second, third = _unpack(data)
    body = _HEADER_SIZE + meta_size
    if magic != MAGIC or len(data) != body + size:
        return None
    return _new(Frame, (kind, flags, number, first, second, third, data[_HEADER_SIZE:body], data[body:]))


class Decoder:
    """Turns bytes, however they are cut, into frames.

    Small frames come out of `feed`. While the payload of a large one is missing, `target` is the memory where
    its next bytes belong: read straight into it and report with `filled`, and nothing is copied.
    """

    def __init__(self, cap: int = CAP) -> None:
        self.cap = cap
        self.target: memoryview | None = None
        self.error: WireError | None = None  # why nothing more can be read
        self._pending = b""  # the beginning of a frame
        self._large: bytearray | None = None
        self._size = 0  # of the payload that `_large` is, or will be
        self._head: tuple[int, int, int, float, float, int, bytes] | None = None

    @property
    def in_frame(self) -> bool:
        """True while a frame has begun and not ended."""
        return bool(self._pending) or self._large is not None

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that end within `data`, keeping what is left over.

        On a wrong magic, or a length over the cap, `error` is set: what came before it is returned all the same.
        """
        frames: list[Frame] = []
        while self.target is not None and data:
            piece = data[: len(self.target)]
            self.target[: len(piece)] = piece
            frame = self.filled(len(piece))
            data = data[len(piece) :]
            if frame is not None:
                frames.append(frame)
        if self._pending:
            data = self._pending + data
        start, end = 0, len(data)
        while end - start >= _HEADER_SIZE:
            magic, kind, flags, meta_size, size, number, first, second, third = _unpack(data, start)
            if magic != MAGIC or size > self.cap or meta_size > META_CAP:
                break
            body = start + _HEADER_SIZE + meta_size
            if end >= body + size:
                meta = data[start + _HEADER_SIZE : body]
                start = body + size
                frames.append(
                    _new(Frame, (kind, flags, number, first, second, third, meta, data[body:start]))
                )
            elif size >= _SMALL and end >= body:
                self._head = (kind, flags, number, first, second, third, data[start + _HEADER_SIZE : body])
                have = end - body
                self._size = size
                self._large = bytearray(min(size, max(_TRUSTED, 2 * have)))
                self._large[:have] = data[body:]
                self.target = memoryview(self._large)[have:]
                start = end
            else:
                break
        self._pending = data[start:]
        self.error = self._look_at_pending()
        return frames

    def _look_at_pending(self) -> WireError | None:
        """Return what is wrong with what is no frame yet, or None."""
        pending = self._pending
        if pending and pending[:2] != _MAGIC_BYTES[: len(pending)]:
            return WireError(f"no frame begins with {pending[:16]!r}")
        if len(pending) >= _HEADER_SIZE:
            _magic, _kind, _flags, meta_size, size, *_ = _unpack(pending)
            if size > self.cap or meta_size > META_CAP:
                return WireError(
                    f"a frame of {size} bytes ({meta_size} of meta data) is over the cap of {self.cap}"
                )
        return None

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
