"""How a sandboxed run ended: from what the kernel says, what we counted, and what the job claims. Pure.

Only the first two decide about limits. What the job claims is its result or its exception, is marked as a claim, and is
escaped before anybody shows it.
"""

from __future__ import annotations

import os
import signal

from procsched._core.models import Outcome
from procsched.errors import RemoteError
from procsched.sandbox.values import load, one_line, printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from procsched.sandbox.frames import Frame
    from procsched.sandbox.policy import Sandbox

CLAIM: Final = "the job says"
SHELL: Final = 128  # added to a signal's number by an init, in the exit code with which it tells of it
CPU_SLACK: Final = 0.1  # seconds: the kernel checks the limit at its ticks
_FEW: Final = 64  # values around a result


class Plain:
    """A result as it came, to be opened by whoever asks for it. It was checked when it came."""

    __slots__ = ("body", "nodes")

    def __init__(self, body: bytes, nodes: int) -> None:
        self.body = body
        self.nodes = nodes

    def __len__(self) -> int:
        return len(self.body)

    def load(self) -> Any:
        """Return the value, made anew at each call."""
        return load(self.body, self.nodes + _FEW)["value"]


def failure_of(frame: Frame, policy: Sandbox) -> tuple[str, RemoteError]:
    """Return the error of a job that says it raised, in one line, and what stands for the exception."""
    kind, message = one_line(frame["type"]), printable(frame["message"])
    text = f"{CLAIM}: {kind}: {one_line(frame['message'])}" if message else f"{CLAIM}: {kind}"
    if kind == "MemoryError":
        text += f" (memory={policy.memory} is its limit)"
    error = RemoteError(text, type_name=kind, message=message, traceback=printable(frame["traceback"]))
    error.add_note("all of this is what untrusted code wrote about itself")
    return text, error


def too_large(frame: Frame, policy: Sandbox) -> tuple[str, str]:
    """Return error and limit of a job whose result is too large to be sent."""
    limit = f"result={policy.result}"
    return f"its result takes {frame['size']} bytes, above the limit {limit}", limit


def limit_of_death(status: int, cpu_seconds: float, policy: Sandbox, *, namespaced: bool) -> str | None:
    """Return the limit that a process which died by itself had exceeded, by what the kernel says; else None.

    Args:
        status: wait status.
        cpu_seconds: of its whole life, as the kernel counted them.
        namespaced: whether the status is that of an init, which tells of signals in its exit code.
    """
    code = os.waitstatus_to_exitcode(status)
    signum = -code if code < 0 else code - SHELL if namespaced else 0
    if signum in (signal.SIGXCPU, signal.SIGKILL) and cpu_seconds >= policy.cpu_seconds - CPU_SLACK:
        return f"cpu_seconds={policy.cpu_seconds}"
    return None


def words_of_exit(error: str, status: int, *, namespaced: bool) -> str:
    """Return the error of a death, with the signal that an init tells of."""
    code = os.waitstatus_to_exitcode(status)
    if not namespaced or code <= SHELL:
        return error
    try:
        return f"{error} (128 + {signal.Signals(code - SHELL).name}, or a number of its own)"
    except ValueError:
        return error


def outcome_of_limit(limit: str) -> tuple[Outcome, str]:
    """Return outcome and error of a run that exceeded a limit."""
    return Outcome.LIMIT_EXCEEDED, f"exceeded its limit {limit}"
