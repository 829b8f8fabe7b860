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
# How a process ends where the address space has run out, and nobody makes an exception of that. By a signal: what
# follows from a null pointer or from a stack that cannot grow, `abort`, a trap, and that of OpenBLAS. By an exit code:
# those with which C libraries and runtimes of other languages give up (1, 2, 255), the interpreter (1, and 120 where it
# cannot even flush), and the loader (127). SIGKILL is none of these: the limit refuses memory, it kills nobody.
_MEMORY_SIGNALS: Final = (
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGABRT,
    signal.SIGILL,
    signal.SIGTRAP,
    signal.SIGINT,
)
_MEMORY_CODES: Final = (1, 2, 120, 127, 255)
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
        text += f" (memory={policy.memory} is its limit)"
    if kind == "PermissionError" and any(sign in told.traceback for sign in _EXECUTING):
        text += " (no program can be executed in a sandbox, whatever processes= is)"
    error = RemoteError(text, type_name=kind, message=message, traceback=told.traceback)
    error.add_note("all of this is what untrusted code wrote about itself")
    return text, error


def hint_of_memory(status: int, peak_rss: int, policy: Sandbox) -> str:
    """Return what is to be added to the error of a job that died without a word: that memory may have run out, or "".

    A low peak rules nothing out. It is of what was resident, and the limit is of address space: libraries and stacks of
    threads map several times what they touch, and one request for a gigabyte that is refused leaves no trace in it. So
    the figure is told, for the reader to judge by.

    Args:
        status: wait status.
        peak_rss: bytes; 0 where unknown.
    """
    code = os.waitstatus_to_exitcode(status)
    if code not in _MEMORY_CODES and -code not in _MEMORY_SIGNALS:
        return ""
    held = f"; at most {peak_rss} bytes were resident" if peak_rss else ""
    return f" (it may have run out of memory: memory={policy.memory} of address space is its limit{held})"


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
