"""How a sandboxed run ended: from what the kernel says, what we counted, and what the job claims. Pure.

Only the first two decide about limits. What the job claims is its result or its exception, is marked as a claim, and is
escaped before anybody shows it.
"""

from __future__ import annotations

import os
import signal

from procsched._core.models import Outcome
from procsched.errors import RemoteError
from procsched.sandbox.values import load, on_one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from procsched.sandbox.examining import Findings
    from procsched.sandbox.policy import Sandbox

CLAIM: Final = "the job says"
# Part of the CPU limit at which SIGKILL means that: the limit counts ticks, what was used is measured otherwise.
CPU_PART: Final = 0.75
# What is raised where memory has run out. Nobody else interrupts a job, but OpenBLAS raises SIGINT where it gets no
# memory for its threads.
_OUT_OF_MEMORY: Final = ("MemoryError", "KeyboardInterrupt")
_MEMORY_SIGNS: Final = (
    "Cannot allocate memory",
    "failed to map segment",
)  # of the C library, and of its loader
_EXECUTING: Final = ("in _execute_child", "os.exec", "os.posix_spawn")  # lines of a traceback
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


def failure_of(told: Findings, policy: Sandbox) -> tuple[str, RemoteError]:
    """Return the error of a job that says it raised, in one line, and what stands for the exception."""
    kind, message = told.type, told.message
    text = f"{CLAIM}: {kind}: {on_one_line(message)}" if message else f"{CLAIM}: {kind}"
    if kind in _OUT_OF_MEMORY or any(sign in message for sign in _MEMORY_SIGNS):
        text = name_memory(text, policy)
    if kind == "PermissionError" and any(sign in told.traceback for sign in _EXECUTING):
        text += " (no program can be executed in a sandbox, whatever processes= is)"
    error = RemoteError(text, type_name=kind, message=message, traceback=told.traceback)
    error.add_note("all of this is what untrusted code wrote about itself")
    return text, error


def name_memory(error: str, policy: Sandbox) -> str:
    """Return an error of a job that may have run out of memory, with the limit."""
    return f"{error} (memory={policy.memory} is its limit)"


def too_large(told: Findings, policy: Sandbox) -> tuple[str, str]:
    """Return error and limit of a job whose result is too large to be sent."""
    limit = f"result={policy.result}"
    return f"its result takes {told.size} bytes, above the limit {limit}", limit


def limit_of_death(status: int, cpu_seconds: float, policy: Sandbox) -> str | None:
    """Return the limit that a process which died by itself had exceeded, by what the kernel says; else None.

    Args:
        status: wait status.
        cpu_seconds: of its whole life, as the kernel counted them.
    """
    signum = -os.waitstatus_to_exitcode(status)
    # No process in a sandbox can send either of these, the filter sees to that.
    at_limit = signum == signal.SIGKILL and cpu_seconds >= CPU_PART * policy.cpu_seconds
    if signum == signal.SIGXCPU or at_limit:
        return f"cpu_seconds={policy.cpu_seconds}"
    return None


def outcome_of_limit(limit: str) -> tuple[Outcome, str]:
    """Return outcome and error of a run that exceeded a limit."""
    return Outcome.LIMIT_EXCEEDED, f"exceeded its limit {limit}"
