"""What an attempt's end was, from the facts: the words and the outcome. Pure."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os

from procsched._core.models import Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STACK_HEADS = (b"Stack (most recent call first):\n", b"Fatal Python error: ", b"Current thread 0x")
_LAST_LINES = (b"  File ", b"  ...", b"Extension modules: ")
_BOTTOM = b" in <module>\n"
_ENDS = (_BOTTOM, b"  ...\n")
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
    import signal  # here, for it takes a millisecond, and the helper is on its way by then

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
    if timeout is not None and was_backstop(status, died_at, hard_at, timeout):
        return timed_out(timeout)
    return Outcome.CRASHED, f"worker died: {words}"


def was_backstop(status: int, died_at: float, hard_at: float, timeout: float | None) -> bool:
    """Return whether the kernel's own timer in the worker has ended it: the parent was too late."""
    return (
        os.WIFSIGNALED(status)
        and os.WTERMSIG(status) == _signal.SIGKILL
        and timeout is not None
        and died_at >= hard_at
    )


def stack_is_complete(data: bytes | bytearray, asked_at: int = -1) -> bool:
    """Return whether faulthandler's dump of one thread in `data` has been written to its end.

    Args:
        asked_at: where in `data` it was asked for, after which the run could go on and write more; -1 for nowhere.
    """
    if asked_at < 0:
        return data.rfind(STACK_HEADS[0]) >= 0 and data.endswith(_ENDS)
    start = data.find(STACK_HEADS[0], asked_at)
    return start >= 0 and any(data.find(end, start) >= 0 for end in _ENDS)


def split_stack(data: bytes, asked_at: int = -1) -> tuple[bytes, str | None]:
    """Cut faulthandler's dumps out of captured output; return the output and the stack, or None.

    The frames of procsched itself, below the action, are left out, and so is a line that was not written whole.

    Args:
        asked_at: where in `data` a dump was asked for, after which the run could go on and write more; -1 for
            nowhere. Of two dumps the one that was asked for counts: the other came when the grace was over.
    """
    asked = None
    start = data.find(STACK_HEADS[0], asked_at) if asked_at >= 0 else -1
    if start >= 0:
        bottom = data.find(_BOTTOM, start)
        end = len(data) if bottom < 0 else bottom + len(_BOTTOM)
        asked = _shown(data[start:end])
        data = data[:start] + data[end:]
    output, last = _split_last(data)
    return output, asked or last


def _split_last(data: bytes) -> tuple[bytes, str | None]:
    """Cut a dump off the end: that of a process that was killed or crashed, so that nothing follows it."""
    starts = [found for head in STACK_HEADS if (found := data.rfind(head)) >= 0]
    if not starts:
        return data, None
    start = max(starts)
    fatal = data.rfind(STACK_HEADS[1])
    if 0 <= fatal < start:
        start = fatal
    # faulthandler has the last word: what goes on behind a stack, or has no frame, is the run's own output.
    last = next((line for line in reversed(data[start:].splitlines()) if line.strip()), b"")
    stack = _shown(data[start:]) if last.startswith(_LAST_LINES) else None
    return (data, None) if stack is None else (data[:start], stack)


def _shown(block: bytes) -> str | None:
    """Return a dump without our own frames, or None where it has no other."""
    whole = block[: block.rfind(b"\n") + 1].decode("utf-8", "replace")
    kept: list[str] = []
    for line in whole.splitlines():
        if any(mark in line for mark in _OURS) or (line.startswith('  File "<string>"') and kept):
            continue
        kept.append(line)
    return "\n".join(kept).strip() if any(line.startswith("  File") for line in kept) else None


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
