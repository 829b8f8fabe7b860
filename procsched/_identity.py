"""Which process this is, and whether one that was written down is still the same: pids are used again."""

from __future__ import annotations

import os
import signal

from procsched import _system
from procsched._system import boot_id as boot_id
from procsched._system import started_at as started_at


def host_name() -> str:
    """Return the name of this machine, for people."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    return os.environ.get("COMPUTERNAME", "")  # Windows


def end_process(pid: int, started: int) -> bool:
    """Send SIGKILL to process `pid`, if it is still the one that started at `started`. Return whether it was.

    The descriptor is opened first and the process looked at after that: so what is signalled is what was looked at,
    whoever gets the pid next.
    """
    try:
        descriptor = _system.open_process(pid)
    except OSError:  # it is gone
        return False
    if descriptor is None:
        return False  # nothing may be signalled that may be another by now
    try:
        if started_at(pid) != started:
            return False
        _system.signal_process(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
