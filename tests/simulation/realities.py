"""What children do, and what is done to them, held against what the scheduler has decided."""

from __future__ import annotations

from typing import Any

from procsched._core.entries import LENT, READY
from tests.simulation.children import Child, Truth
from tests.simulation.ledger import NEAR, Ledger


class Realities(Ledger):
    """Hears of children."""

    def child_began(self, truth: Truth) -> None:
        """A child begins an attempt."""
        key, name = truth.key, truth.task_id
        if key in self.begun:
            self.fail(f"{key} was begun twice")
        self.begun[key] = truth
        other = self.running.get(name)
        if other is not None and self._goes_on(other):
            self.fail(f"{key} overlaps {other.key}")
        self.running[name] = truth
        entry = self.entries.get(name)
        if key not in self.attempts:
            if entry is None or entry.queued != LENT:
                self.fail(f"{key} was begun, and the scheduler knows nothing of it: {entry}")
            if not truth.ahead:
                self.fail(f"{key} was begun before the scheduler said so")
            self.world.seen["begins ahead of the scheduler"] += 1
        elif self.attempts[key].record is not None:
            self.fail(f"{key} was begun when it had its record")
        if truth.ahead:
            self._check_outrun(truth)

    def _check_outrun(self, truth: Truth) -> None:
        """A call that was sent ahead may overtake a more urgent one only for a moment."""
        entry = self.entries[truth.task_id]
        if entry.queued != LENT:
            return  # its worker was asked for it, and has it
        priority = int(entry.handle.task.priority)
        limit = 0.005 + 0.002 + 6 * self.settings.slowest * bool(self.settings.slow)
        for name, (since, rank) in self.ready.items():
            other = self.entries.get(name)
            if other is not None and other.queued == READY and rank[0] < priority:
                waited = self.world.mono - since
                if waited > limit:
                    mine = self.ready[truth.task_id][1]
                    self.fail(
                        f"{truth.key} of {mine} overtook {name} of {rank}, which has waited for {waited:.4f} s"
                    )
                self.world.seen["overtaken for a moment"] += 1

    def child_killed(self, child: Child) -> None:
        """A child gets SIGKILL from the parent; what it runs must have been given up before."""
        run = child.run
        if run is None or run.ended is not None:
            return
        attempted = self.attempts.get(run.key)
        if attempted is None or attempted.record is not None:
            return  # judged by its record
        self.world.seen["killed while it runs"] += 1

    def child_asked(self, truth: Truth, soft: int) -> None:
        """A run hears that it is to stop."""
        task = self.entries[truth.task_id].handle.task
        if soft:
            limit = task.soft_timeout
            if limit is None or self.world.mono < self._handed_at(truth) + limit - NEAR:
                self.fail(f"{truth.key} heard of a soft limit that it has not")
            return
        call = self._call_of(truth)
        if call is None or call.verdict is None:
            self.fail(f"{truth.key} was asked to stop, and nobody has decided that")

    def _handed_at(self, truth: Truth) -> float:
        """When the limits of a run begin to count, as far as is known."""
        attempted = self.attempts.get(truth.key)
        return truth.began if attempted is None else min(truth.began, attempted.mono)

    def _call_of(self, truth: Truth) -> Any:
        attempted = self.attempts.get(truth.key)
        return None if attempted is None else attempted.call

    def stray_signal(self, child: Child, asked: int, number: int) -> None:
        """A SIGTERM came that names no run of the child's: it may have come before the run that it names."""
        if number:
            self.fail(f"worker {child.number} got SIGTERM for run {asked} while it is in {number}")

    def backstop(self, child: Child) -> None:
        """The kernel's timer had to end a run."""
        steady = not self.settings.slow or self.settings.slowest <= 0.001
        if steady and not self.world.seen["helper hangs"] and child.parent_knows:
            self.fail(f"the backstop of worker {child.number} struck, although the parent was there")
