"""What the checker keeps: what has really happened, what was told, and what was promised to whom."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from procsched import ExecutionRecord, Outcome, TaskStatus
from tests.simulation.children import Truth
from tests.simulation.world import STEADY, WALL, Violation, World

Key = tuple[str, int, int]
NEAR = 1e-3  # seconds between a decision and its event


class Attempted:
    """An attempt that the scheduler says has started."""

    __slots__ = ("ahead", "call", "key", "line", "mono", "record")

    def __init__(self, key: Key, call: Any, mono: float, line: float) -> None:
        self.key = key
        self.call = call
        self.ahead = getattr(call, "sent_ahead", False)  # it is set when the call is sent
        self.mono = mono
        self.line = line
        self.record: ExecutionRecord | None = None


class Ledger:
    """The books of the checker itself."""

    def __init__(self, world: World, scheduler: Any, settings: Any) -> None:
        self.world = world
        self.scheduler = scheduler
        self.engine = scheduler.engine
        self.pool = scheduler.pool
        self.settings = settings
        self.sequence = 0
        self.entries: dict[str, Any] = {}  # also of tasks that the scheduler has forgotten
        self.status: dict[str, TaskStatus] = {}
        self.attempts: dict[Key, Attempted] = {}
        self.last: dict[str, Attempted] = {}
        self.begun: dict[Key, Truth] = {}
        self.ready: dict[str, tuple[float, tuple[int, float, int]]] = {}  # since when, and its rank
        self.of_a_pass: set[str] = set()  # those that the timer has made ready
        self.running: dict[str, Truth] = {}  # what really runs, by task
        self.kills: dict[Key, bool] = {}  # attempts that somebody was told are being ended
        self.killing: set[str] = set()  # tasks for which somebody has asked, however it went
        self.missed = self.missed_others = 0
        self.skipped_by_cron = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.bases: dict[
            str, int
        ] = {}  # slots of a rate that a revival has passed over, or another task had before
        self.revived: set[str] = set()
        self.last_slot: dict[str, float] = {}
        self.slots_of: dict[str, set[float]] = {}
        self.slots_run: Counter[str] = Counter()
        self.given_back: set[str] = set()
        self.returned = 0
        self.ended_in_closing: dict[bool, set[str]] = {
            False: set(),
            True: set(),
        }  # by whether the shutdown did it

    def line(self) -> float:
        """This moment on the steady line."""
        return WALL + (self.world.mono + self.world.asleep - STEADY)

    def live_key(self, task_id: str) -> Key | None:
        """The attempt that runs, as the scheduler sees it."""
        entry = self.engine.entries.get(task_id)
        return None if entry is None or entry.live is None else self._key_of(entry.live)

    @staticmethod
    def _key_of(call: Any) -> Key:
        return call.task_id, call.run, call.attempt

    @staticmethod
    def _goes_on(truth: Truth) -> bool:
        return not truth.child.dead and truth.child.run is truth and truth.ended is None

    def _hard_at(self, truth: Truth) -> tuple[float, float]:
        """When the deadline of a run is: at the earliest, and at the latest.

        That of a call which was sent ahead counts from when the parent saw it as the one that runs, or from its
        start. One that was handed over while the child had calls to look for that were taken back is like that.
        """
        hard = truth.hard
        if hard is None:
            return math.inf, math.inf
        attempted = self.attempts.get(truth.key)
        if attempted is None or not truth.ahead:
            return hard, hard
        return min(hard, attempted.mono + hard - truth.began), hard

    def is_death_slow(self) -> bool:
        """Whether it may take seconds in this seed until the parent hears of a death."""
        return bool(self.settings.chances["slow reap"]) or bool(self.world.seen["helper hangs"])

    def _helper_is_busy(self) -> bool:
        helper = self.world.helper
        return helper is not None and (
            bool(helper.said) or helper.hung_until > self.world.mono or not helper.alive
        )

    def fail(self, text: str) -> Any:
        """Raise."""
        if not self.world.broken:
            self.world.note("VIOLATION", text)
            self.world.broken = text
        raise Violation(text)
