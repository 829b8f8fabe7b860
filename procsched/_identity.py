"""Which process this is, and whether one that was written down is still the same: pids are used again."""

from __future__ import annotations

import os
import signal

STAT_FIELDS_BEFORE_START = 19  # behind the closing parenthesis of the name; proc(5), /proc/pid/stat, field 22


def host_name() -> str:
    """Return the name of this machine, for people."""
    if hasattr(os, "uname"):
        return os.uname().nodename
    return os.environ.get("COMPUTERNAME", "")  # Windows


def boot_id() -> str:
    """Return what pids are unique within: this boot of this machine, and this process's pid namespace; "" unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def started_at(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since the boot; None where it is gone, or nobody can say.

    Together with the pid and `boot_id` this names a process for ever.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[STAT_FIELDS_BEFORE_START]) if len(fields) > STAT_FIELDS_BEFORE_START else None


def end_process(pid: int, started: int) -> bool:
    """Send SIGKILL to process `pid`, if it is still the one that started at `started`. Return whether it was.

    The descriptor is opened first and the process looked at after that: so what is signalled is what was looked at,
    whoever gets the pid next.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except (
        AttributeError,
        OSError,
    ):  # it is gone; or this system has no such descriptors, and nothing may be signalled
        return False
    try:
        if started_at(pid) != started:
            return False
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
