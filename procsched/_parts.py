"""What the parts of schedulers and executors say of themselves when `health()` asks.

Each writes down since when it is in the same piece of work, at points where it passes anyway; whoever asks reads that,
without a lock. So nobody is watched, an idle part costs nothing, and one that is stuck with a lock cannot hang who
wants to know.
"""

from __future__ import annotations

import threading

from procsched import _frames
from procsched._core.health import PartHealth, decide_state
from procsched.clock import real_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType
    from typing import Any


class Inspection:
    """One look at the parts of one owner.

    Args:
        owner: what it is called.
        stuck_after: seconds in the same piece of work from which on a part is stuck.
        frames: those of all threads, at this moment.
    Attributes:
        parts: what was found.
        now: real steady seconds.
    """

    def __init__(self, owner: str, stuck_after: float, frames: dict[int, FrameType]) -> None:
        self.owner = owner
        self.stuck_after = stuck_after
        self.frames = frames
        self.parts: list[PartHealth] = []
        self.now = real_seconds()

    def add(
        self, name: str, state: str, seconds: float = 0.0, where: str | None = None, detail: str = ""
    ) -> None:
        """Note how a part is."""
        self.parts.append(PartHealth(self.owner, name, state, seconds, where, detail))

    def add_thread(
        self,
        name: str,
        thread: threading.Thread | None,
        since: float,
        failing: str | None = None,
        failing_since: float = 0.0,
        *,
        detail: str = "",
    ) -> None:
        """Note how a thread is, if it was started.

        Args:
            since: steady seconds since when it is in the same piece of work; 0.0 while it waits.
            failing: what is wrong with what it does, in words; None for nothing.
            failing_since: steady seconds since when.
            detail: what else there is to say.
        """
        if thread is None or thread.ident is None:
            return
        if not thread.is_alive():
            self.add(name, "gone", detail=detail)
            return
        state, seconds = decide_state(since, self.now, self.stuck_after)
        place = None if state == "idle" else _frames.where(thread.ident, self.frames)
        if failing is not None and state != "stuck":
            state, seconds, place = "failing", self.now - failing_since, None
        self.add(name, state, seconds, place, "; ".join(filter(None, (failing, detail))))

    def add_locks(self, locks: Iterable[tuple[str, Any]]) -> None:
        """Where a part is in trouble, note which locks another thread holds: it may wait for that."""
        if all(part.ok for part in self.parts):
            return
        for name, lock in locks:
            ident = _frames.holder(lock)
            if ident is not None and ident != threading.get_ident():
                who = _frames.names().get(ident, f"with ident {ident}")
                self.add(
                    f"lock of the {name}", "held", 0.0, _frames.where(ident, self.frames), f"by thread {who}"
                )
