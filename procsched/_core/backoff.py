"""How long the next start of a worker waits: a start that fails, or brings what dies at once, is not repeated in haste.

Pure: whoever asks says what time it is, in steady seconds.
"""

from __future__ import annotations

import math

FIRST = 0.1  # seconds before the second try to start what failed to start
LAST = 5.0
# Workers in a row that may die by themselves before they have run anything, until their successors have to wait too.
MOST_EARLY_DEATHS = 3
LONG_LIFE = 5.0  # seconds after which the death of an idle worker is no trouble with its start


class Backoff:
    """What is known of the starts of late. Other threads read its attributes without a lock.

    Attributes:
        seconds: between two starts; 0 while starts succeed.
        not_before: before which nothing is started.
        failures: starts in a row that brought no worker.
        early_deaths: workers in a row that died by themselves before they had run anything.
        since: time of the first of either.
        last: the last of them, in words.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.not_before = -math.inf
        self.failures = self.early_deaths = 0
        self.since = 0.0
        self.last = ""

    def started(self) -> None:
        """A worker is ready. Where those before it died at once, it is to run something first."""
        self.failures = 0
        if self.early_deaths < MOST_EARLY_DEATHS:
            self.seconds = 0.0

    def served(self) -> None:
        """A worker has run something, or has lived for long."""
        if self.early_deaths >= MOST_EARLY_DEATHS and not self.failures:
            self.seconds = 0.0
        self.early_deaths = 0

    def failed(self, now: float, text: str) -> str:
        """A start has brought no worker. Return what is to be told."""
        self._note(now)
        self.failures += 1
        return self._slow_down(now, text, self.failures)

    def died_early(self, now: float, text: str) -> str:
        """A worker has died before it had run anything. Return what is to be told, "" for nothing."""
        self._note(now)
        self.early_deaths += 1
        often = self.early_deaths >= MOST_EARLY_DEATHS
        return self._slow_down(now, text, self.early_deaths) if often else ""

    def helper_lost(self, now: float, text: str, *, served: bool) -> str:
        """The process that starts workers is gone, and they with it. Return what is to be told.

        Its successor waits longer from time to time, unless one of its workers has `served` somebody.
        """
        if served:
            self.served()
        else:
            self._note(now)
            self.early_deaths += 1
        return self._slow_down(now, text, self.early_deaths)

    def _note(self, now: float) -> None:
        if not (self.failures or self.early_deaths):
            self.since = now

    def _slow_down(self, now: float, text: str, times: int) -> str:
        self.seconds = min(max(FIRST, self.seconds * 2), LAST)
        self.not_before = now + self.seconds
        self.last = text
        again = f", {times} times in a row" if times > 1 else ""
        return f"{text}{again}; the next is started in {self.seconds:g} s at the earliest"
