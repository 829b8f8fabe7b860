"""How many runs are stored as about to begin before a worker is free for them. Pure.

A worker need not wait for the disk if what it is to run next was written while it was busy. After a crash nobody knows
whether that had begun: so it is no more than will begin in the time of one commit.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

SHORT: Final = 0.02  # seconds; while a run takes longer, or nobody knows, nothing is staged behind any
# Runs behind one that goes on, at most: for each worker so many may be LOST in a crash without having begun. The
# briefest runs need them where a write takes 4 ms; what a slower disk would gain by more is not worth more of them.
MOST_BEHIND: Final = 8
# Seconds that a stored run takes besides its own time, in which its worker does not wait for the disk either.
COST: Final = 0.0005


def is_short(seconds: float) -> bool:
    """Return whether something may be staged behind a run that takes so long."""
    return seconds <= SHORT


def decide_room(free: int, running: Iterable[float], commit: float) -> int:
    """Return how many runs may be staged in all.

    Args:
        free: workers that have nothing to do.
        running: seconds that each of the runs which go on takes; infinite where nobody knows.
        commit: seconds that a commit takes.
    """
    behind = 0
    for seconds in running:
        if not is_short(seconds):
            return free
        behind += min(max(math.ceil(commit / (seconds + COST)), 1), MOST_BEHIND)
    return free + behind
