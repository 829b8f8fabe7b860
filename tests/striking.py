"""Striking in the midst of our code, as a signal handler does: at the n-th point where it may run.

Python runs handlers in the main thread where a function begins, where a loop goes on, and behind a call. `Strike` does
something at the n-th of these points within the package; a test goes through them one after the other.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import procsched

PACKAGE = str(Path(procsched.__file__).parent)
LEFT_OUT = {
    *("mend_locked", "_mend_locked", "_drop_locked", "mend"),  # one handler at a time
    # They change nothing.
    *("options", "replace", "_check", "checked_times", "checked_priority", "check_retry", "check_flag"),
}


@functools.cache
def points(code: CodeType) -> dict[int, bool]:
    """Return the offsets of the instructions before which a handler may run, and which of them are behind a call.

    The interpreter looks for signals within a call or a jump, so what a handler raises there belongs to that
    instruction, and what a trace function raises to the one behind: left out where another `except` or `with` applies.
    """
    ranges = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    def target(offset: int) -> int:
        return next((each.target for each in ranges if each.start <= offset < each.end), -1)

    found: dict[int, bool] = {}
    call = -1
    for instruction in dis.get_instructions(code):
        here = instruction.offset
        if instruction.opname == "RESUME" or (call >= 0 and target(call) == target(here)):
            found[here] = call >= 0
        call = here if instruction.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX") else -1
        if instruction.opname.startswith("JUMP_BACKWARD") and target(here) == target(instruction.argval):
            found[instruction.argval] = False
    return found


class Strike:
    """Calls `handler` at the `number`-th point within the package that the calling thread comes to, from 1.

    Args:
        beyond: a file whose points count, too.
    """

    def __init__(self, number: int, handler: Callable[[], object], beyond: str = PACKAGE) -> None:
        self.left = number
        self.handler = handler
        self.files = PACKAGE, beyond
        self.where = ""
        self.callers: set[int] = set()  # frames whose last instruction has called something in Python

    def __enter__(self) -> Strike:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *_exc: object) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        code = frame.f_code
        if event == "call":
            self.callers.add(id(frame.f_back))
        if not code.co_filename.startswith(self.files) or code.co_name in LEFT_OUT:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        if event != "opcode":
            return self.trace
        returned = id(frame) in self.callers
        self.callers.discard(id(frame))
        # Nobody looks for signals where a function in Python returns to one in Python.
        behind_call = points(code).get(frame.f_lasti)
        if behind_call is not None and not (behind_call and returned):
            self.left -= 1
            if self.left == 0:
                self.where = f"{code.co_qualname}:{frame.f_lineno} +{frame.f_lasti}"
                sys.settrace(None)
                self.handler()
        return self.trace


@contextlib.contextmanager
def blaming(strike: Strike) -> Iterator[None]:
    """Say in a failure where the handler came."""
    try:
        yield
    except AssertionError as error:
        error.add_note(f"the handler came at {strike.where}")
        raise


def interrupt() -> None:
    raise KeyboardInterrupt
