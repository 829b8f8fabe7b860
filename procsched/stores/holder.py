"""Who has a store to schedule from it: what is told to whoever comes second."""

from __future__ import annotations

import json
import os
import time

from procsched import _identity, _system
from procsched.errors import StoreInUseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def this_process(visiting: bool = False) -> dict[str, Any]:
    """Return what names this process for ever, and a person recognises.

    Args:
        visiting: it has the store for a moment only, to change something in it.
    """
    pid = os.getpid()
    return {
        "pid": pid,
        "host": _identity.host_name(),
        "boot_id": _identity.boot_id(),
        "process_started": _identity.started_at(pid),
        "since": time.time(),
        "visiting": visiting,
    }


def read_holder(text: bytes) -> dict[str, Any]:
    """Return what a holder has written down; empty where it is in the midst of that."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) and type(found.get("pid")) is int else {}


def is_gone(holder: Mapping[str, Any]) -> bool:
    """Return whether the process is known to have ended: it was of this boot and pid namespace, and is not there."""
    pid, started = holder.get("pid"), holder.get("process_started")
    if type(pid) is not int or type(started) is not int or not holder.get("boot_id"):
        return False
    if holder["boot_id"] != _identity.boot_id():
        return False
    # A zombie has let go of everything, whoever reaps it when.
    return _identity.started_at(pid) != started or _system.state_of(pid) == "Z"


def in_use(url: str, holder: Mapping[str, Any]) -> StoreInUseError:
    """Return the error for who comes second."""
    pid, host = holder.get("pid"), holder.get("host")
    whose = "another process" if pid is None else f"the scheduler of process {pid} on {host}"
    return StoreInUseError(
        f"{url} is in use by {whose}, and one at a time may schedule from a store: end that one, or wait until it "
        "ends with SqlTaskStore(..., standby=True); procsched.connect(url) and `procsched ps` look at it and steer it",
        pid=pid,
        host=host,
    )
