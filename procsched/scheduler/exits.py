"""What must happen to running schedulers when the interpreter exits."""

from __future__ import annotations

import atexit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Exiting(Protocol):
        """What is kept alive here."""

        def end_at_exit(self) -> None:
            """Shut down at once; called at the interpreter's exit. Raises nothing."""


# A scheduler lives until its shutdown even if nobody refers to it. Changed by single operations of a dict,
# which are atomic; read as a copy.
_running: dict[int, Exiting] = {}
_hooked = False


def keep(scheduler: Exiting) -> None:
    """Keep a scheduler that starts alive, and end it with the interpreter."""
    global _hooked
    _running[id(scheduler)] = scheduler
    if not _hooked:
        _hooked = True
        # atexit runs what was registered last first, so this comes before the end of logging, whose module
        # was imported earlier. The hook of concurrent.futures has run by then; nothing here needs it.
        atexit.register(_end_all)


def release(scheduler: Exiting) -> None:
    """Let go of a scheduler that is shut down."""
    _running.pop(id(scheduler), None)


def all_running() -> list[Exiting]:
    """Return the schedulers that were started and are not shut down."""
    return list(_running.values())


def _end_all() -> None:
    for scheduler in list(_running.values()):
        scheduler.end_at_exit()
