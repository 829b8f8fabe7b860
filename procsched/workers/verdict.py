"""What an attempt's end was, from the facts: the words and the outcome. Pure."""

from __future__ import annotations

import os
import signal

from procsched._core.models import Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STACK_HEADS = (b"Stack (most recent call first):\n", b"Fatal Python error: ", b"Current thread 0x")
_LAST_LINES = ("  File ", "  ...", "Extension modules: ")
_BOTTOM = b" in <module>\n"
_OURS = (os.sep + os.path.join("procsched", "child") + os.sep,)


def timed_out(timeout: float) -> tuple[Outcome, str]:
    """Return outcome and error of a run that was ended at its deadline."""
    return Outcome.TIMED_OUT, f"exceeded its {float(timeout)} s budget"


def soft_timed_out(timeout: float) -> tuple[Outcome, str]:
    """Return outcome and error of a run that gave way to its soft timeout."""
    return Outcome.TIMED_OUT, f"exceeded its {float(timeout)} s soft limit"


def exit_words(status: int) -> tuple[str, int | None, str | None]:
    """Turn a wait status into words, an exit code or None, and a signal's name or None."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit code {code}", code, None
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"SIG{-code}"  # a real-time signal
    return name, None, name


def decide_death(
    verdict: tuple[Outcome, str] | None,
    status: int,
    died_at: float,
    hard_at: float,
    timeout: float | None,
) -> tuple[Outcome, str]:
    """Return outcome and error of a run whose worker died without an answer.

    Args:
        verdict: what was decided about the run before, or None.
        status: wait status of the worker.
        died_at, hard_at: steady time of the death and of the deadline.
    """
    words, _code, signal_name = exit_words(status)
    if verdict is not None:
        outcome, error = verdict
        if outcome is Outcome.CRASHED and signal_name != "SIGKILL":
            return outcome, f"worker died: {words}"  # it was dying while its pipe broke
        return outcome, error
    if signal_name == "SIGKILL" and timeout is not None and died_at >= hard_at:
        return timed_out(timeout)  # the backstop: the parent was too late
    return Outcome.CRASHED, f"worker died: {words}"


def stack_is_complete(data: bytes | bytearray) -> bool:
    """Return whether faulthandler's dump of one thread in `data` has been written to its end."""
    start = data.rfind(STACK_HEADS[0])
    return start >= 0 and data.endswith((_BOTTOM, b"  ...\n"))


def split_stack(data: bytes) -> tuple[bytes, str | None]:
    """Cut faulthandler's dump off the end of captured output; return the output and the stack, or None.

    The frames of procsched itself, below the action, are left out.
    """
    starts = [found for head in STACK_HEADS if (found := data.rfind(head)) >= 0]
    if not starts:
        return data, None
    start = max(starts)
    fatal = data.rfind(STACK_HEADS[1])
    if 0 <= fatal < start:
        start = fatal
    lines = data[start:].decode("utf-8", "replace").splitlines()
    kept: list[str] = []
    for line in lines:
        if any(mark in line for mark in _OURS) or (line.startswith('  File "<string>"') and kept):
            continue
        kept.append(line)
    # faulthandler has the last word: what goes on behind a stack, or has no frame, is the run's own output.
    last = next((line for line in reversed(lines) if line.strip()), "")
    if not last.startswith(_LAST_LINES) or not any(line.startswith("  File") for line in kept):
        return data, None
    return data[:start], "\n".join(kept).strip()


def note_stuck(error: str | None, stuck: tuple[int, ...]) -> str | None:
    """Add to an error which processes of the run could not be ended."""
    if not stuck:
        return error
    note = f"could not end process {', '.join(map(str, stuck))} of this run"
    return f"{error}; {note}" if error else note


def facts_of(ending: Any, status: int | None) -> None:
    """Put exit code and signal of a wait status into an ending."""
    if status is not None:
        _words, ending.exit_code, ending.signal = exit_words(status)
