"""What a sandboxed run has written, looked into and made fit to be shown: in a process of its own where it is large.

    parent --number, caps, outcome, output--> this process --Findings--> parent

To parse a large outcome, or to escape a hundred thousand characters, takes tens of milliseconds in which no other
thread of an interpreter gets on. In the parent that would be its I/O thread, and everybody's calls. So it is done here,
in a process that is sent nothing but these bytes. `examine` is pure, and the same in either process.
"""

from __future__ import annotations

import os
from _struct import Struct

from procsched.sandbox.frames import ViolationError, read_outcome
from procsched.sandbox.values import one_line, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from procsched.sandbox.frames import Frame

# Number of the job, most bytes, most values, bytes of the outcome, of the output.
_REQUEST: Final = Struct("=5Q")
_LENGTH: Final = Struct("=Q")
_MOST_NODES: Final = (1 << 63) - 1  # that the request has room for
ANSWER_HEADER: Final = _LENGTH.size
_READ, _WRITE = 3, 4  # descriptors of this process


class Findings:
    """What was found, as texts that can be shown.

    Attributes:
        violation: why the outcome is none, "" where it is one or there was none to look into.
        kind: "done", "raised" or "large"; "" for none.
        size: bytes of a result that was too large.
        type, message, traceback: of an exception.
        output: what the run wrote to stdout and stderr.
    """

    __slots__ = ("kind", "message", "output", "size", "traceback", "type", "violation")

    def __init__(self) -> None:
        self.violation = self.kind = self.type = self.message = self.traceback = self.output = ""
        self.size = 0


def examine(body: bytes, output: bytes, number: int, most_bytes: int, most_nodes: int) -> Findings:
    """Return what is to be said of a run.

    Args:
        body: a frame that a `Reader` has left; empty for none.
        output: what the run wrote beside.
        number: of the job.
        most_bytes, most_nodes: as for the `Reader`.
    """
    found = Findings()
    if body:
        try:
            found = findings_of(read_outcome(body, number, most_bytes, most_nodes))
        except ViolationError as error:
            found.violation = str(error)
    found.output = printable(output.decode("utf-8", "replace"))
    return found


def findings_of(frame: Frame) -> Findings:
    """Return what an outcome says."""
    found = Findings()
    found.kind = frame["kind"]
    if found.kind == "large":
        found.size = frame["size"]
    elif found.kind == "raised":
        found.type = one_line(frame["type"])
        found.message, found.traceback = printable(frame["message"]), printable(frame["traceback"])
    return found


# -- between the two processes -----------------------------------------------------------------------------------------


def pack_request(body: bytes, output: bytes, number: int, most_bytes: int, most_nodes: int) -> bytes:
    """Return what `main` is to be sent for an `examine`: this, the body, the output."""
    return _REQUEST.pack(number, most_bytes, min(most_nodes, _MOST_NODES), len(body), len(output))


def pack_findings(found: Findings) -> bytes:
    """Return findings with their length before them. None of the texts has a NUL in it: that would be escaped."""
    texts = (found.violation, found.kind, str(found.size), found.type, found.message, found.traceback)
    data = "\0".join((*texts, found.output)).encode()
    return _LENGTH.pack(len(data)) + data


def length_of(header: bytes) -> int:
    """Return how many bytes follow the first `ANSWER_HEADER`."""
    return int(_LENGTH.unpack(header)[0])


def open_findings(data: bytes) -> Findings:
    """Return the findings in what follows the header.

    Raises:
        ValueError: there are none.
    """
    found = Findings()
    violation, kind, size, name, message, traceback, output = data.decode().split("\0")
    found.violation, found.kind, found.size, found.type = violation, kind, int(size), name
    found.message, found.traceback, found.output = message, traceback, output
    return found


def main() -> Any:
    """Answer requests until there are no more. The process ends with the pipe that they come through."""
    while True:
        header = _read(_REQUEST.size)
        number, most_bytes, most_nodes, body, output = _REQUEST.unpack(header)
        found = examine(_read(body), _read(output), number, most_bytes, most_nodes)
        view = memoryview(pack_findings(found))
        while view:
            view = view[os.write(_WRITE, view) :]


def _read(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.read(_READ, min(1 << 20, size - len(data)))
        if not piece:
            os._exit(0)
        data += piece
    return bytes(data)
