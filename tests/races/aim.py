"""Which two ends are aimed at one instant, and how it is seen to that the instant is hit. Pure."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import Counter

from procsched import Outcome

EVENTS = ("cancel", "timeout", "end", "crash", "shutdown")
PAIRS = tuple(itertools.combinations(EVENTS, 2))

STEP = 50e-6  # seconds by which a round that one side has won helps the other at first
LEAST_STEP, MOST_STEP = 5e-6, 1e-3
MOST = 0.02  # seconds by which the second event is moved at most
# Seconds by which two events of one round miss each other at random, at most; where several runs go on at once their
# own times differ by more than that.
SPREAD, POOL_SPREAD = 200e-6, 2e-3


@dataclasses.dataclass
class Aim:
    """How much later than the first the second event is to be set off, so that each wins half of the rounds.

    The ways to the worker differ in length: a deadline counts from the moment the call was handed over, a signal
    takes a system call, a return has to be pickled and read. What they differ by is found by a staircase.
    """

    dice: random.Random
    spread: float = SPREAD
    offset: float = 0.0
    step: float = STEP
    last: int = -1

    def draw(self) -> float:
        """Return the seconds for this round."""
        return self.offset + self.dice.uniform(-self.spread, self.spread)

    def correct(self, winner: int) -> None:
        """Hear which of the two has won: the other is helped. Who wins again and again, ever more."""
        self.step = min(self.step * 1.5, MOST_STEP) if winner == self.last else max(self.step / 2, LEAST_STEP)
        self.last = winner
        self.offset = max(-MOST, min(MOST, self.offset + (self.step if winner else -self.step)))


def winner_of(outcome: Outcome, error: str | None) -> str:
    """Return which event ended a run, by its record."""
    if outcome is Outcome.SUCCEEDED:
        return "end"
    if outcome is Outcome.TIMED_OUT:
        return "timeout"
    if outcome is Outcome.CRASHED:
        return "crash"
    if outcome is Outcome.KILLED and error is not None:
        return "cancel" if "cancelled" in error or "request" in error else "shutdown"
    return f"{outcome.value}: {error}"


@dataclasses.dataclass
class Balance:
    """What came of the rounds of one pair."""

    pair: tuple[str, str]
    face: str
    won: Counter[str] = dataclasses.field(default_factory=Counter)
    unstarted: int = 0  # calls that were withdrawn before they began: no race
    pools: int = 0

    @property
    def rounds(self) -> int:
        """How many races there were."""
        return self.won.total()

    def __str__(self) -> str:
        shares = ", ".join(f"{event} {self.won[event]}" for event in self.pair)
        more = f", in {self.pools} pools" if self.pools else ""
        more += f", {self.unstarted} not begun" if self.unstarted else ""
        return f"{self.face:9} {':'.join(self.pair):17} {self.rounds:6} rounds: {shares}{more}"
