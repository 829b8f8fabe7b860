"""What runs in the workers of the races."""

from __future__ import annotations

import os
import signal
import time

from tests import faults, support


def race(log: str, key: str, at: float, how: str) -> str:
    """Tell that it has begun, and end at steady time `at` in the way that is said."""
    support.tell(log, key)
    if how != "hang":
        left = at - time.monotonic() - 0.0005
        if left > 0:
            time.sleep(left)
        while time.monotonic() < at:
            pass
    if how == "end":
        return key
    if how == "exit":
        os._exit(5)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        time.sleep(faults.FOREVER)


def follow(log: str, key: str, seconds: float = 0.0) -> str:
    """Tell that it has begun and stay for a moment: what was meant for the run before would strike here."""
    support.tell(log, key)
    time.sleep(seconds)
    end = time.monotonic() + 0.0003
    while time.monotonic() < end:
        pass
    return key
