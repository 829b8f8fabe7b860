"""Actions that are scheduled: never run here, only packed and named. The pool learns how long each kind takes."""

from __future__ import annotations

import math

from procsched import ExecutionRecord
from tests.simulation.world import World


def brief() -> None:
    """Takes microseconds, so that calls of it are sent ahead."""


def other_brief() -> None:
    """Likewise, with a pace of its own."""


def long() -> None:
    """Takes what the script says."""


class Foreign:
    """A schedule of a user's own: it may be slow, raise, or end.

    Args:
        seconds: from now to the next slot; 0 for the next whole second, as a cron's.
        fails: how likely an answer raises.
    """

    def __init__(self, world: World, seconds: float, fails: float) -> None:
        self.world, self.seconds, self.fails = world, seconds, fails

    def first_run(self, now: float) -> float:
        return now + self.seconds if self.seconds else math.floor(now) + 1.0

    def next_run(self, _record: ExecutionRecord, now: float) -> float | None:
        rng, calm = self.world.rng, self.world.behave.calm
        if rng.random() < 0.3 and not calm:
            self.world.seen["a schedule is slow"] += 1
            seconds = rng.choice((1e-4, 0.01, 0.2) if self.seconds else (0.2, 2.5))
            self.world.slept += seconds
            self.world.sleep(seconds)
        if rng.random() < self.fails and not calm:
            raise ValueError("no slot")
        return self.first_run(now) if rng.random() < 0.9 else None
