"""`health()`: what of procsched in this process is stuck, for how long, and where.

each part, at points where it passes anyway --> since when it is in its piece of work
health() --> reads these, the frames of all threads and /proc, with no lock --> Health
"""

from __future__ import annotations

import sys

from procsched._core.checks import finite_seconds
from procsched._core.health import STUCK_AFTER, Health
from procsched._parts import Inspection

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from typing import Protocol

    class Inspected(Protocol):
        """A scheduler, or the core of an executor."""

        kind: str

        def inspect(self, inspection: Inspection) -> None:
            """Say how the parts are."""

        def recent_problems(self) -> tuple[str, ...]:
            """Return what went wrong lately."""


def health(stuck_after: float | timedelta = STUCK_AFTER) -> Health:
    """Return how every running scheduler and executor of this process is, those behind `run` and `killable` included.

    Nothing watches: it is worked out here and now from what the parts have written down, so it costs nothing until
    somebody asks. It waits for none of our locks, so it answers also while whoever holds one is stuck.

    Args:
        stuck_after: seconds in the same piece of work from which on a part counts as stuck.
    Raises:
        ValidationError: `stuck_after` is no number of seconds.
    Thread safety: call from anywhere, also from a signal handler.
    """
    return look(owners(), stuck_after)


def look(found: Sequence[Inspected], stuck_after: float | timedelta) -> Health:
    """Return how these are."""
    seconds = finite_seconds("stuck_after", stuck_after)
    frames = sys._current_frames()
    parts = []
    problems: list[str] = []
    for label, owner in labelled(found):
        inspection = Inspection(label, seconds, frames)
        owner.inspect(inspection)
        parts += inspection.parts
        problems += owner.recent_problems()
    return Health(tuple(parts), tuple(problems))


def labelled(found: Sequence[Inspected]) -> list[tuple[str, Inspected]]:
    """Return each with what it is called: its kind, with a number where there are several."""
    kinds = [owner.kind for owner in found]
    labels = []
    for index, owner in enumerate(found):
        number = kinds[: index + 1].count(owner.kind)
        labels.append((f"{owner.kind} {number}" if kinds.count(owner.kind) > 1 else owner.kind, owner))
    return labels


def owners() -> list[Inspected]:
    """Return all that run in this process. What was never imported runs nothing."""
    found: list[Inspected] = []
    for name in ("procsched.scheduler.exits", "procsched.exits"):
        module = sys.modules.get(name)
        if module is not None:
            found += module.all_running()
    return found
