"""Looking at processes that are nobody's children any more, as the demo and the doctor have to."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

LOOK_AGAIN: Final = 0.0005  # seconds between two looks: how long an end took is told in milliseconds


def wait_ended(pids: Iterable[int], limit: float) -> list[int]:
    """Wait until all processes have ended, at most `limit` seconds; return those that have not.

    A zombie has ended: when it is reaped is up to whoever is its parent by now.
    """
    until = time.monotonic() + limit
    alive = [pid for pid in pids if not has_ended(pid)]
    while alive and time.monotonic() < until:
        time.sleep(LOOK_AGAIN)
        alive = [pid for pid in alive if not has_ended(pid)]
    return alive


def end_survivors(pids: Iterable[int]) -> None:
    """Kill processes of ours that should have ended and have not: who found them out cleans up after them."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def has_ended(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True
