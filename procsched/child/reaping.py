"""Ending everything below a process that is a child subreaper.

Whatever a dead process leaves is re-parented to the nearest living subreaper above it. So a subreaper that
kills its unknown children, reaps them, and looks again until there are none has ended the whole tree: no scan of
the process table, no race with processes that left their group or session.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import os
import time

from procsched import _system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container

UNKILLABLE_SECONDS = 5.0  # a process that has not ended this long after SIGKILL is stuck in the kernel
WALKS = 5  # over the process table, in case something is started meanwhile; what is dead and not reaped is still in it


def kill_unknown(children: _system.OwnChildren, known: Container[int], refused: set[int]) -> bool:
    """Send SIGKILL to each child of this process that is not in `known`; return whether any is left alive.

    The children are this process's own and only it reaps them, so none of the pids can be somebody else's. One
    that may not be signalled (a set-user-id program) is put into `refused` and no longer counts.
    """
    alive = False
    for pid in children.list():
        if pid in known or pid in refused:
            continue
        try:
            os.kill(pid, signal.SIGKILL)
            alive = True
        except ProcessLookupError:
            continue
        except PermissionError:
            refused.add(pid)
    return alive


def kill_found() -> None:
    """Where orphans do not come to us: kill what a walk finds below us, while it is still below us."""
    if _system.offers("subreaper"):
        return
    for _ in range(WALKS):
        if not _system.signal_descendants(os.getpid(), signal.SIGKILL):
            return


def end_all_children(wait: Callable[[float], object]) -> set[int]:
    """Kill and reap every child and what they leave, until there is none. Return those that would not go.

    `wait(seconds)` is called to wait for the next SIGCHLD.
    """
    kill_found()
    refused: set[int] = set()
    children = _system.OwnChildren()
    end = time.monotonic() + UNKILLABLE_SECONDS
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return set()
        left = end - time.monotonic()
        if not kill_unknown(children, (), refused) or left <= 0:
            return refused or set(children.list())
        wait(left)
