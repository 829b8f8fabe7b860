"""What `result` raises: the exception of the action, put together again, or one that tells how else the call ended.

A worker takes an exception apart (`child/answers.py`), because pickle would leave its cause, its context and its
traceback behind. Here the parts become one exception again that reads as if it had been raised in this process.
"""

from __future__ import annotations

import functools
import pickle
from types import CodeType, FrameType, FunctionType, TracebackType

from procsched._core import failures
from procsched._core.models import Outcome, Sealed
from procsched.errors import (
    LimitExceededError,
    RemoteError,
    TaskKilledError,
    TaskLostError,
    TaskTimeoutError,
    WorkerCrashedError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from procsched.errors import ProcschedError
    from procsched.workers.base import Ending

# Characters of a run's output that its error shows, the last; `output` has all that was kept.
OUTPUT_SHOWN = 2000

_ERRORS: dict[Outcome, type[ProcschedError]] = {
    Outcome.TIMED_OUT: TaskTimeoutError,
    Outcome.CRASHED: WorkerCrashedError,
    Outcome.LIMIT_EXCEEDED: LimitExceededError,
    Outcome.KILLED: TaskKilledError,
    Outcome.LOST: TaskLostError,
}
_SUCCEEDED = Outcome.SUCCEEDED  # looking up a member of an enum takes its time
CALL_OPTIONS = ("timeout", "soft_timeout", "grace", "priority", "retry", "limits", "capture_output")
_DETAILS = ("pid", "exit_code", "signal", "stack", "output", "peak_rss", "cpu_seconds")


class RemoteTraceback(Exception):
    """Carries a traceback as text, where the exception that it belongs to is not there: as the cause of another."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'

    def __reduce__(self) -> tuple[Any, ...]:
        return (RemoteTraceback, (self.text,))


def open_ending(ending: Ending, timeout: float | None) -> tuple[Any, BaseException | None]:
    """Return the value of an ending, or the exception that tells of it; `timeout` was the call's limit."""
    if ending.outcome is _SUCCEEDED:
        result = ending.result
        return (result.open() if type(result) is Sealed else result), None
    kind = _ERRORS.get(ending.outcome)
    if kind is None:
        error = _exception_of(ending)
        if type(error) is TypeError and error.__traceback__ is None:
            _explain_keyword(error)
        return None, error
    details = {name: getattr(ending, name) for name in _DETAILS}
    if kind is LimitExceededError:
        details["limit"] = ending.limit
    elif kind is TaskTimeoutError:
        details["timeout"] = timeout
    ended = kind(ending.error or ending.outcome.value, **details)
    # As notes, so that the message stays one line and a traceback shows them all the same.
    for note in _notes_about(ending):
        ended.add_note(note)
    if ending.exception is not None:
        ended.__cause__ = _exception_of(ending)  # what the action made of being asked to stop
    elif ending.traceback:
        ended.__cause__ = RemoteTraceback(ending.traceback)
    return None, ended


def _explain_keyword(error: TypeError) -> None:
    """Where the action itself refused a keyword that is one of our options: say where options belong."""
    message, _, name = str(error).partition(" got an unexpected keyword argument ")
    name = name.strip("'")
    if message and name in CALL_OPTIONS:
        error.add_note(
            f"{name}= was passed on to the function, as an argument of it; as an option of the call it belongs to a "
            f"ProcessExecutor: executor.options({name}=...).submit(fn, ...)"
        )


def _notes_about(ending: Ending) -> Iterator[str]:
    """Yield what a person wants to know about a run that did not come back."""
    facts = []
    if ending.signal is not None:
        facts.append(f"was ended by {ending.signal}")
    elif ending.exit_code is not None:
        facts.append(f"left with exit code {ending.exit_code}")
    if ending.peak_rss is not None:
        facts.append(f"had {ending.peak_rss / (1 << 20):.1f} MiB of memory at most")
    if ending.cpu_seconds is not None:
        facts.append(f"used {ending.cpu_seconds:.2f} s of CPU time")
    if facts:
        yield f"its process {ending.pid} {', '.join(facts)}"
    crashed = ending.outcome is Outcome.CRASHED
    if crashed and ending.signal == "SIGKILL":
        yield (
            "procsched did not send that SIGKILL: the kernel does when memory runs out (its log, `dmesg`, tells), "
            "and so can anybody with the right to"
        )
    if ending.stack:
        yield f"where it was:\n{ending.stack}"
    if ending.output:
        shown = ending.output[-OUTPUT_SHOWN:]
        less = len(shown) < len(ending.output) or ending.output_truncated
        yield f"{'the end of ' if less else ''}what it wrote to stdout and stderr:\n{shown.rstrip()}"
    elif crashed and ending.output is None and ending.pid is not None:
        yield "what it wrote went to this program's own stdout and stderr; capture_output=True shows the end of it here"


# -- the exception of the action ---------------------------------------------------------------------------------------


def _exception_of(ending: Ending) -> BaseException:
    """Return the exception that the action raised, or what stands in for it."""
    exception = ending.exception
    if isinstance(exception, BaseException):  # of a pool in this process
        return exception
    text = ending.error or "the action raised an exception that could not travel"
    if type(exception) is Sealed:
        try:
            parts, left_out = exception.open()
            return _put_together(parts, left_out, ending.traceback or "")
        except RemoteError as error:
            return _stand_in(text, str(error), ending.traceback or "")
    return _stand_in(text, ending.obstacle, ending.traceback or "")


def unfit(ending: Ending, error: Exception) -> RemoteError:
    """Return what stands in for an exception whose own class raised `error` while it was put together."""
    text = ending.error or "the action raised an exception that could not be put together"
    return _stand_in(text, f"it cannot be loaded here: {failures.describe(error)}", ending.traceback or "")


def _put_together(parts: list[failures.Part], left_out: int, traceback: str) -> BaseException:
    """Return the first of the exceptions that `parts` describe, with all the others where they hang on it."""
    made: dict[int, BaseException] = {}
    if left_out:
        made[failures.LEFT_OUT] = RemoteError(f"{left_out} more exceptions of this chain did not travel")
    for number in range(len(parts)):
        _make(number, parts, made, traceback)
    frames_made: dict[tuple[Any, ...], FrameType] = {}
    for number, (_text, frames, notes, cause, context, suppresses, *_rest) in enumerate(parts):
        error = made[number]
        # By the base class, and from its dict: the class's own ways may raise.
        put = functools.partial(BaseException.__setattr__, error)
        known = BaseException.__getattribute__(error, "__dict__").get("__notes__", ())
        missing = [note for note in notes if note not in known]  # a reduction of its own had left them out
        if missing:
            put("__notes__", [*missing, *known])
        put("__traceback__", _make_traceback(frames, frames_made))
        put("__context__", made.get(context))
        put("__cause__", made.get(cause))
        put("__suppress_context__", suppresses)
    return made[0]


def _make(
    number: int, parts: list[failures.Part], made: dict[int, BaseException], traceback: str
) -> BaseException:
    """Make one of them alone; a group with its members, among which it cannot be itself."""
    if number not in made:
        text, _frames, _notes, _cause, _context, _suppresses, members, data, obstacle = parts[number]
        inner = None if members is None else [_make(member, parts, made, traceback) for member in members]
        made[number] = _load(text, inner, data, obstacle, "" if number else traceback)
    return made[number]


def _load(
    text: str, inner: list[BaseException] | None, data: bytes | None, obstacle: str, traceback: str
) -> BaseException:
    """Return one exception, or what stands in for it."""
    if data is not None:
        try:
            value = pickle.loads(data)
            if inner is not None:
                kind, message, attributes = value
                value = kind(message, inner)
                value.__dict__.update(attributes)
            if isinstance(value, BaseException):
                return value
            obstacle = f"it is loaded as {type(value).__name__}"
        except Exception as error:
            obstacle = f"it cannot be loaded here: {failures.describe(error)}"
    if inner is None:
        return _stand_in(text, obstacle, traceback)
    group = BaseExceptionGroup(text, inner)
    group.add_note(_words_of(text, obstacle))
    return group


def _stand_in(text: str, obstacle: str, traceback: str) -> RemoteError:
    type_name, _colon, message = text.partition(": ")
    error = RemoteError(text, type_name=type_name, message=message, traceback=traceback)
    if obstacle:
        error.add_note(_words_of(text, obstacle))
    return error


def _words_of(text: str, obstacle: str) -> str:
    return (
        f"the {text.partition(': ')[0]} itself could not travel: {obstacle}; an exception whose constructor takes "
        "other arguments than its `args`, or that holds what cannot be pickled, needs a __reduce__"
    )


def _make_traceback(
    frames: list[failures.Frame], made: dict[tuple[Any, ...], FrameType]
) -> TracebackType | None:
    """Return a traceback that reads, and that tools take apart, as the one in the worker did."""
    entry = None
    for each in reversed(frames):
        place = each[1:]
        frame = made.get(place)
        if frame is None:
            frame = made[place] = _make_frame(*place)
        for _ in range(each[0]):
            entry = TracebackType(entry, frame, 0, place[4])
    return entry


# -- frames that never ran ---------------------------------------------------------------------------------------------


def _never_run() -> Iterator[None]:
    yield


def _make_frame(
    file: str,
    name: str,
    qualified: str,
    module: str,
    line: int,
    last: int | None,
    column: int | None,
    last_column: int | None,
) -> FrameType:
    """Return a frame for a traceback: that of a generator which is never started, so it has no caller and no locals."""
    code: CodeType = _never_run.__code__.replace(
        co_filename=file,
        co_name=name,
        co_qualname=qualified,
        co_firstlineno=line,
        co_linetable=_line_table(line, last, column, last_column),
    )
    frame: FrameType = FunctionType(code, {"__name__": module, "__file__": file})().gi_frame
    return frame


def _line_table(line: int, last: int | None, column: int | None, last_column: int | None) -> bytes:
    """Return the line table of a code object whose first instruction is at this place.

    Source: CPython, Objects/locations.md: entries 13 (line alone) and 14 (all four), numbers in pieces of six bits.
    """
    if last is None or column is None or last_column is None or not line <= last:
        return bytes((0x80 | 13 << 3, 0))
    data = bytearray((0x80 | 14 << 3, 0))
    for number in (last - line, column + 1, last_column + 1):
        while number > 0x3F:
            data.append(0x40 | number & 0x3F)
            number >>= 6
        data.append(number)
    return bytes(data)
