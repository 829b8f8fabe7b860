"""What a record may say: it follows from what has really happened to the attempt."""

from __future__ import annotations

from procsched import ExecutionRecord, Outcome
from tests.simulation.ledger import Attempted, Ledger


class Judging(Ledger):
    """Judges records."""

    def _judge(self, attempted: Attempted, record: ExecutionRecord) -> None:
        """The outcome must follow from what happened."""
        key, outcome = attempted.key, record.outcome
        truth = self.begun.get(key)
        told = self.kills.get(key)
        if told and outcome is not Outcome.KILLED:
            self.fail(f"{key} was killed by request, and its record says {outcome}")
        if outcome is Outcome.KILLED:
            forced = "could not be ended" in (record.error or "")
            if forced and not self.is_death_slow() and not self.scheduler._timer.busy:
                self.fail(f"{key} could not be ended: {record.error}")
            if not (told or key[0] in self.killing or self.scheduler._closing is not None):
                self.fail(f"{key} is KILLED, and nobody asked for that")
            return
        if outcome is Outcome.LOST:
            if not self.world.seen["helper dies"]:
                self.fail(f"{key} is LOST, and the helper lives")
            if truth is not None and truth.written is not None and not truth.behaviour.dirty:
                self.fail(f"{key} is LOST, and had answered")
            return
        if truth is None:
            late = (
                attempted.call.timeout is not None
                and self.world.mono >= attempted.mono + attempted.call.timeout
            )
            if outcome is Outcome.TIMED_OUT and late:
                self.world.seen["out of time before it is begun"] += 1
            elif outcome is not Outcome.CRASHED:
                self.fail(f"{key} is {outcome} ({record.error}), and was never begun")
            return
        hard, latest = self._hard_at(truth)
        in_time = (
            truth.written is not None
            and truth.ended is not None
            and truth.written <= hard - (1e-5 if truth.ahead else 1e-9)
        )
        soft = record.error is not None and "soft limit" in record.error
        if outcome is Outcome.SUCCEEDED:
            if truth.written is None or truth.how != "return":
                self.fail(f"{key} is SUCCEEDED, and really: {truth.how or 'it runs'}")
            if truth.ended is not None and truth.ended > latest + 1e-6:
                self.fail(f"{key} is SUCCEEDED, {truth.ended - latest:.6f} s after its deadline")
            if record.result != key:
                self.fail(f"{key} has the result of {record.result}")
        elif outcome is Outcome.FAILED:
            if truth.written is None or truth.how != "raise":
                self.fail(f"{key} is FAILED ({record.error}), and really: {truth.how or 'it runs'}")
        elif outcome is Outcome.TIMED_OUT and soft:
            if truth.how != "asked":
                self.fail(f"{key} is TIMED_OUT by its soft limit, and really: {truth.how}")
        elif outcome is Outcome.TIMED_OUT:
            if in_time:
                self.fail(
                    f"{key} is TIMED_OUT, and had answered {hard - truth.written:.6f} s before its deadline"
                )
            if self.world.mono < hard - 1e-5:
                self.fail(f"{key} is TIMED_OUT, {hard - self.world.mono:.6f} s before its deadline")
            if self._goes_on(truth):
                self.fail(f"{key} is TIMED_OUT, and goes on")
        elif outcome is Outcome.CRASHED:
            if in_time and not truth.child.broken:
                self.fail(f"{key} is CRASHED ({record.error}), and had answered")
            if truth.how not in ("exit", "signal", "crash") and not truth.child.broken:
                self.fail(f"{key} is CRASHED ({record.error}), and really: {truth.how or 'it runs'}")
        else:
            self.fail(f"{key} is {outcome}")
