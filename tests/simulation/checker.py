"""What the contract says, as a model of its own that is compared with the scheduler after every step.

telling.py    what the scheduler says: its events, what follows what, who starts first, when
judging.py    ... and what its records may say, after what has really happened
realities.py  what children do, and what is done to them
books.py      the books, after steps and where nothing moves
ledger.py     what all of these keep
"""

from __future__ import annotations

import traceback
from typing import Any

from procsched import TaskEvent
from tests.simulation.books import Books
from tests.simulation.realities import Realities
from tests.simulation.telling import Telling
from tests.simulation.world import Violation, World


class Checker(Telling, Realities, Books):
    """Raises `Violation` where the contract is broken; see the module."""

    def __init__(self, world: World, scheduler: Any, settings: Any) -> None:
        super().__init__(world, scheduler, settings)
        self._spy()
        world.checker = self
        world.after_step.append(self.look)
        world.before_gap = self.at_rest
        world.locks += [scheduler._holds_own, self.pool.holds_lock, scheduler.delivery.holds_lock]

    def _spy(self) -> None:
        publish, make_ready = self.scheduler.delivery.publish, self.engine.make_ready
        settle_revive = self.engine._settle_revive

        def spy_publish(event: TaskEvent) -> None:
            try:
                self.on_event(event)
            except Violation:
                raise
            except Exception as error:  # of this file: the shipped code would go on over it
                self.fail(f"{traceback.format_exc()}: {error}")
            publish(event)

        def spy_make_ready(entry: Any, steady: bool, due_at: float, sequence: int) -> None:
            wall = due_at + self.engine.timeline.offset if steady else due_at
            early = due_at - (self.line() if steady else self.world.wall())
            if early > 1e-5:
                self.fail(f"{entry.handle.task.id} is ready {early:.6f} s before its time")
            rank = int(entry.handle.task.priority), wall, sequence
            self.ready[entry.handle.task.id] = self.world.mono, rank
            by_timer = self.world.current is self.scheduler._timer
            (self.of_a_pass.add if by_timer else self.of_a_pass.discard)(entry.handle.task.id)
            make_ready(entry, steady, due_at, sequence)

        def spy_revive(entry: Any, plan: Any, wall: float, line: float) -> None:
            before, lost = self._index(entry, entry.dealt), len(entry.backlog)
            settle_revive(entry, plan, wall, line)
            if plan.due_at is not None:
                self.revived.add(entry.handle.task.id)
            if before is not None and plan.due_at is not None:
                name = entry.handle.task.id
                passed_over = self._index(entry, entry.slot) - before - 1
                self.bases[name] = self.bases.get(name, 0) + passed_over + lost

        replace = self.engine.replace

        def spy_replace(old: Any, *rest: Any) -> Any:
            before = self._index(old, old.dealt), old.anchor
            skipped = self.engine.counters["skipped"]
            entry = replace(old, *rest)
            skipped = self.engine.counters["skipped"] - skipped
            if before[0] is None:
                self.skipped_by_cron += skipped
            elif before == (self._index(entry, entry.dealt), entry.anchor):
                # The slots before the one that waits, and those to catch up with, are in the account of the old one.
                self.world.seen["slots taken over"] += 1
                self.bases[entry.handle.task.id] = before[0] - len(entry.backlog) - skipped
            return entry

        take_back = self.engine.take_back

        def spy_take_back(entry: Any) -> None:
            name = entry.handle.task.id
            self.ready[name] = self.world.mono, self.ready[name][1]
            self.world.seen["taken back"] += 1
            take_back(entry)

        self.engine.take_back = spy_take_back
        self.scheduler.delivery.publish = spy_publish
        self.engine.make_ready = spy_make_ready
        self.engine._settle_revive = spy_revive
        self.engine.replace = spy_replace
