"""Reading what a sandboxed process writes: frames of JSON, from somebody who may want to hurt us. Pure.

    4 bytes, big endian: length   that many bytes: one JSON object in UTF-8

    process is started --ready--> idle --(job is sent)--> running --done | raised | large--> over
                       --refused--> over                  progress, any number of them

Whatever does not fit this drawing is a `ViolationError`, after which nothing of the process is read. The reader says
how much it will take (`room`), so nothing is buffered beyond the cap of one frame. It raises nothing else, whatever the
bytes; and what it returns are exact builtin types.

No pickle, marshal or import by name can be reached from here: a unit test holds the import graph of this module.
"""

from __future__ import annotations

from procsched.sandbox.plain import PlainError
from procsched.sandbox.values import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    Frame = dict[str, Any]

LENGTH: Final = 4
READ_MOST: Final = 1 << 16  # bytes taken at once, so that one process that floods cannot starve the others
# Bytes of a frame beside its result: a kind, a number, some punctuation.
ENVELOPE: Final = 256
LEAST_CAP: Final = 128 << 10  # bytes of any frame: room for an exception with its traceback
PROGRESS_CAP: Final = 4 << 10  # bytes of a frame that tells of progress
# Values in a frame that is no result.
FEW_NODES: Final = 64

LONGEST_NAME: Final = 200  # characters of the name of an exception's type
LONGEST_MESSAGE: Final = 10_000
LONGEST_TRACEBACK: Final = 16 << 10
LONGEST_NOTE: Final = 500

STARTING, IDLE, RUNNING, OVER = "starting", "idle", "running", "over"

_TEXT: Final = (str,)
_NUMBER: Final = (int, float)
# kind -> the keys that it has beside its kind, no more and no fewer, and the types of their values.
_KEYS: Final[dict[str, dict[str, tuple[type, ...]]]] = {
    "ready": {"layers": (dict,), "cpu": (float,)},
    "refused": {"step": _TEXT, "error": _TEXT},
    "progress": {"done": _NUMBER, "total": (int, float, type(None)), "note": _TEXT},
    "done": {"id": (int,), "value": (object,)},
    "raised": {"id": (int,), "type": _TEXT, "message": _TEXT, "traceback": _TEXT},
    "large": {"id": (int,), "size": (int,)},
}
_MOST_CHARACTERS: Final = {
    "step": LONGEST_NAME,
    "error": LONGEST_MESSAGE,
    "note": LONGEST_NOTE,
    "type": LONGEST_NAME,
    "message": LONGEST_MESSAGE,
    "traceback": LONGEST_TRACEBACK,
}
# state -> what may come in it, and the state that follows.
_MOVES: Final = {
    STARTING: {"ready": IDLE, "refused": OVER},
    IDLE: {},
    RUNNING: {"progress": RUNNING, "done": OVER, "raised": OVER, "large": OVER},
    OVER: {},
}


class ViolationError(Exception):
    """A sandboxed process wrote what it may not write; the message says what, and holds nothing of it unescaped."""


class Reader:
    """Puts frames together from bytes, and checks them.

    Attributes:
        state: one of the states of the drawing.
        body: the bytes of the last frame.
        left: whether that was not looked into. It is an outcome, or a violation: see `read_outcome`.
    """

    def __init__(self, most_bytes: int, most_nodes: int, *, at_once: int | None = None) -> None:
        """Take results of so many bytes as JSON, and so many values.

        Args:
            at_once: bytes of a frame of a running job, `PROGRESS_CAP` or more, above which it is left to others to look
                into; None to look into every one.
        """
        self.state = STARTING
        self.left = False
        self._at_once = at_once
        self._result = most_bytes
        self._nodes = most_nodes
        self.body = b""
        self._id = 0
        self._body = bytearray()
        self._size = -1  # of the body, -1 while its length is not there

    @property
    def room(self) -> int:
        """How many bytes to read next, at most; 0 when nothing more is taken."""
        if self.state == OVER:
            return 0
        if self._size < 0:
            return LENGTH - len(self._body)
        return min(READ_MOST, self._size - len(self._body))

    @property
    def in_frame(self) -> bool:
        """Whether a frame has begun and not ended."""
        return bool(self._body) or self._size >= 0

    def expect(self, number: int) -> None:
        """The job with this number is sent: its outcome may come from now on."""
        assert self.state == IDLE
        self.state = RUNNING
        self._id = number

    def feed(self, data: bytes) -> Frame | None:
        """Take bytes, no more than there is room for; return a frame when one is whole.

        Raises:
            ViolationError: against the rules.
        """
        if len(data) > self.room:
            self.state = OVER
            raise ViolationError("more was given than there is room for")
        self._body += data
        if self._size < 0:
            if len(self._body) < LENGTH:
                return None
            self._begin()
        if len(self._body) < self._size:
            return None
        self.body = body = bytes(self._body)
        self._body.clear()
        self._size = -1
        if self._at_once is not None and len(body) > self._at_once and self.state == RUNNING:
            self.state = OVER
            self.left = True
            return None
        try:
            return self._check(body)
        except ViolationError:
            self.state = OVER
            raise

    def _begin(self) -> None:
        size = int.from_bytes(self._body, "big")
        self._body.clear()
        cap = LEAST_CAP
        if self.state == RUNNING:
            cap = max(cap, self._result + ENVELOPE)
        if not 2 <= size <= cap:
            self.state = OVER
            raise ViolationError(f"it announced a frame of {size} bytes, and {cap} at most are taken")
        self._size = size

    def _check(self, body: bytes) -> Frame:
        try:
            frame = load(body, self._nodes + FEW_NODES)
        except PlainError as error:
            raise ViolationError(f"its frame {error}") from None
        if type(frame) is not dict:
            raise ViolationError("its frame is no object")
        kind = frame.get("kind")
        if type(kind) is not str or kind not in _KEYS:
            raise ViolationError("its frame is of no known kind")
        moves = _MOVES[self.state]
        if kind not in moves:
            raise ViolationError(f"it sent {kind!r} while it was {self.state}")
        self._check_keys(kind, frame, len(body))
        if frame.get("id", self._id) != self._id:
            raise ViolationError("it answered for a job that it was not sent")
        self.state = moves[kind]
        return frame

    def _check_keys(self, kind: str, frame: Frame, size: int) -> None:
        keys = _KEYS[kind]
        if frame.keys() != {"kind", *keys}:
            raise ViolationError(f"its {kind!r} has other keys than that has")
        for key, types in keys.items():
            value = frame[key]
            if types != (object,) and type(value) not in types:
                raise ViolationError(f"its {kind!r} has a wrong type for {key!r}")
            if type(value) is str and key in _MOST_CHARACTERS and len(value) > _MOST_CHARACTERS[key]:
                raise ViolationError(f"its {kind!r} has too long a {key!r}")
            if type(value) is int and key != "value" and abs(value) >> 63:
                raise ViolationError(f"its {kind!r} has too large a {key!r}")
        if kind == "progress" and size > PROGRESS_CAP:
            raise ViolationError("it told of progress at too great a length")
        if kind == "done" and size > self._result + ENVELOPE:
            raise ViolationError(f"its result is larger than {self._result} bytes")
        if kind == "large" and frame["size"] <= self._result:
            raise ViolationError(
                f"it told of too large a result, of {frame['size']} bytes, and {self._result} are taken"
            )
        layers = frame.get("layers")
        if kind == "ready" and not all(type(value) is str for value in layers.values()):  # type: ignore[union-attr]
            raise ViolationError("its 'ready' has a wrong type for a layer")


def read_outcome(body: bytes, number: int, most_bytes: int, most_nodes: int) -> Frame:
    """Return what a frame says that a `Reader` has left, and which is large: an outcome.

    Args:
        number: of the job.
        most_bytes, most_nodes: as for the `Reader`.
    Raises:
        ViolationError: against the rules.
    """
    reader = Reader(most_bytes, most_nodes)
    reader.state = RUNNING
    reader._id = number
    frame = reader._check(body)
    if reader.state != OVER:
        raise ViolationError("it told of progress at too great a length")
    return frame
