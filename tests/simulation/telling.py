"""What the scheduler tells: the order of its events, what may follow what, and when an attempt may start."""

from __future__ import annotations

import math
from typing import Any

from procsched import (
    CronSchedule,
    FixedDelay,
    FixedRate,
    MisfirePolicy,
    OneTime,
    Outcome,
    OverrunPolicy,
    TaskEvent,
    TaskStatus,
)
from procsched._core.entries import BY_SHUTDOWN, READY
from procsched.schedules.once import After
from tests.simulation.judging import Judging
from tests.simulation.ledger import NEAR, Attempted, Key

S = TaskStatus

# The drawing in the contract, as pairs: what may follow what.
MOVES = {
    S.SCHEDULED: {S.RUNNING, S.FAILED, S.PAUSED, S.CANCELLED, S.SCHEDULED, S.SUCCEEDED},
    S.RUNNING: {S.SCHEDULED, S.SUCCEEDED, S.RETRYING, S.FAILED, S.PAUSED, S.CANCELLED},
    S.RETRYING: {S.RUNNING, S.PAUSED, S.CANCELLED},
    S.PAUSED: {S.SCHEDULED, S.RUNNING, S.RETRYING, S.SUCCEEDED, S.FAILED, S.CANCELLED},
    S.FAILED: {S.SCHEDULED},
    S.CANCELLED: set(),
    S.SUCCEEDED: set(),
}


class Telling(Judging):
    """Hears events as they are published."""

    def on_event(self, event: TaskEvent) -> None:
        """Hear an event as it is published."""
        if event.sequence != self.sequence + 1:
            self.fail(f"event {event.sequence} follows {self.sequence}")
        self.sequence = event.sequence
        name = event.task_id
        text = "" if event.progress is None or event.kind == "progress" else str(event.progress)
        self.world.note(f"event {event.kind}", f"{name} {event.status or ''} {text}")
        if name and name not in self.entries:
            self.entries[name] = self.engine.entries[name]
        if event.kind == "missed":
            self.missed += int(text.split()[0])
            if not isinstance(self.entries[name].handle.schedule, FixedRate):
                self.missed_others += int(text.split()[0])
        if event.kind != "status" or event.status is None:
            return
        self.world.seen[f"to {event.status.value}"] += 1
        before = self.status.get(name)
        entry = self.entries[name]
        self.status[name] = event.status
        if text.endswith("skipped") and not isinstance(entry.handle.schedule, FixedRate):
            self.skipped_by_cron += int(text.split()[0])
        if before is None:
            if event.status is not S.SCHEDULED:
                self.fail(f"{name} begins as {event.status}")
            return
        same = event.status is before
        if event.record is None and not (same and text == "returned by the shutdown"):
            if event.status not in MOVES[before]:
                self.fail(f"{name} went from {before} to {event.status}")
        elif event.record is not None and before is not S.RUNNING and not same:
            self.fail(f"{name} went from {before} to {event.status} with a record")
        if event.record is not None:
            self._on_record(entry, before, event)
        elif event.status is S.RUNNING:
            self._on_start(entry, before)
        if text == "returned by the shutdown":
            self.given_back.add(name)
            self.returned += 1

    def _on_start(self, entry: Any, before: TaskStatus) -> None:
        call = entry.live
        key = self._key_of(call)
        if key in self.attempts:
            if before is not S.PAUSED:
                self.fail(f"{key} started twice")
            return  # resumed while it ran
        if before not in (S.SCHEDULED, S.RETRYING):
            self.fail(f"{key} started while its task was {before}")
        attempted = Attempted(key, call, self.world.mono, self.line())
        self.attempts[key] = attempted
        self._check_numbers(entry, attempted)
        self.last[entry.handle.task.id] = attempted
        if not attempted.ahead:
            self._check_first(entry, key)
        self.world.seen["sent ahead" if attempted.ahead else "handed over"] += 1

    def _check_first(self, entry: Any, key: Key) -> None:
        """What starts is the first of those that are ready."""
        name = entry.handle.task.id
        rank = self.ready[name][1]
        for other, (_since, theirs) in self.ready.items():
            if other != name and theirs < rank:
                waits = self.entries.get(other)
                if waits is not None and waits.queued == READY:
                    self.fail(f"{key} of rank {rank} started before {other} of rank {theirs}")

    def _check_numbers(self, entry: Any, attempted: Attempted) -> None:
        name, run, attempt = attempted.key
        task, last = entry.handle.task, self.last.get(name)
        when = self.line()
        if last is not None and last.record is None:
            self.fail(f"{attempted.key} started while {last.key} runs")
        if attempt > task.retry.max_attempts:
            self.fail(f"{attempted.key} is more than {task.retry.max_attempts} attempts")
        if last is None:
            if (run, attempt) != (1, 1):
                self.fail(f"the first attempt is {attempted.key}")
        elif attempt > 1:
            if last.key != (name, run, attempt - 1):
                self.fail(f"{attempted.key} follows {last.key}")
            least = _backoff(task.retry, attempt - 1)
            if when < last.line + least - NEAR:
                self.fail(f"{attempted.key} came {when - last.line:.4f} s after {last.key}, not {least}")
        elif last.key[1] != run - 1:
            self.fail(f"{attempted.key} follows {last.key}")
        if attempt > 1:
            return
        schedule = entry.handle.schedule
        self.slots_run[name] += 1
        if isinstance(schedule, FixedRate):
            index = (entry.slot - entry.anchor) / schedule.period
            if abs(index - round(index)) > 1e-4:
                self.fail(f"{attempted.key} is off its grid: slot {index}")
        again = entry.slot <= self.last_slot.get(name, -math.inf)
        if isinstance(schedule, CronSchedule):  # it follows the wall clock, also back
            again = entry.slot in self.slots_of.setdefault(name, set())
            self.slots_of[name].add(entry.slot)
        if again and isinstance(schedule, (FixedRate, FixedDelay, CronSchedule)):
            self.fail(f"{attempted.key} runs the slot {entry.slot}, after {self.last_slot[name]}")
        follows = isinstance(schedule, FixedDelay) and last is not None and name not in self.revived
        if follows and entry.slot < last.line + schedule.delay - NEAR:
            self.fail(f"{attempted.key} came {entry.slot - last.line:.4f} s after the run before it")
        self.last_slot[name] = entry.slot

    @staticmethod
    def _comes_from_backlog(entry: Any) -> bool:
        """Whether the slot that is planned is one of those that a misfire has left to be run one by one."""
        return bool(entry.dealt > entry.slot) or entry.handle.task.misfire is MisfirePolicy.CATCH_UP

    def _on_record(self, entry: Any, before: TaskStatus, event: TaskEvent) -> None:
        record, name = event.record, event.task_id
        assert record is not None
        key = (record.task_id, record.run, record.attempt)
        attempted = self.attempts.get(key)
        if record.task_id != name or attempted is None:
            self.fail(f"a record of {key} for {name}, which has not started")
        if attempted.record is not None:
            self.fail(f"a second record of {key}")
        attempted.record = record
        attempted.line = self.line()
        outcome = record.outcome
        self.outcomes[outcome] += 1
        self.world.seen[f"outcome {outcome.value}"] += 1
        if record.ok != (outcome is Outcome.SUCCEEDED) or record.timed_out != (outcome is Outcome.TIMED_OUT):
            self.fail(f"the record of {key} contradicts itself")
        if record.finished_at < record.started_at:
            self.fail(f"the record of {key} ends before it begins")
        self._judge(attempted, record)
        if self.engine.closing:
            killed = outcome is Outcome.KILLED and record.error.startswith(BY_SHUTDOWN)
            self.ended_in_closing[killed].add(name)
        if len(entry.backlog) >= entry.handle.task.max_catch_up:
            self.fail(
                f"{name} has {len(entry.backlog)} slots to catch up, and may have {entry.handle.task.max_catch_up}"
            )
        if before is S.RUNNING:
            self._check_following(entry, event, record, attempted)

    def _check_following(self, entry: Any, event: TaskEvent, record: Any, attempted: Attempted) -> None:
        """What follows a run that has ended."""
        task, status = entry.handle.task, event.status
        once = isinstance(entry.handle.schedule, (OneTime, After))
        killed = record.outcome is Outcome.KILLED
        by_shutdown = killed and record.error.startswith(BY_SHUTDOWN)
        again = not record.ok and (not killed or by_shutdown) and record.attempt < task.retry.max_attempts
        foreign = type(entry.handle.schedule).__name__ == "Foreign"
        if again:
            expected = {S.RETRYING}
        elif record.ok:
            expected = {S.SUCCEEDED} if once else {S.SCHEDULED}
        elif killed and not by_shutdown:
            expected = {S.CANCELLED} if once else {S.SCHEDULED}
        elif by_shutdown or task.on_exhausted == "continue":
            expected = {S.FAILED} if once else {S.SCHEDULED}
        else:
            expected = {S.FAILED}
        if foreign and not again:
            expected = {S.SCHEDULED, S.SUCCEEDED, S.FAILED, S.CANCELLED}
        if status not in expected:
            self.fail(f"{attempted.key} ended as {record.outcome} and its task is {status}, not {expected}")
        schedule, slack = entry.handle.schedule, NEAR + 8 * self.settings.slowest
        if status is S.SCHEDULED and isinstance(schedule, FixedDelay):
            planned = entry.slot - self.line()
            if abs(planned - schedule.delay) > slack:
                self.fail(
                    f"the run after {attempted.key} is planned in {planned:.4f} s, not {schedule.delay}"
                )
        skips = isinstance(schedule, FixedRate) and schedule.on_overrun is OverrunPolicy.SKIP
        if status is S.SCHEDULED and skips and not entry.backlog and not self._comes_from_backlog(entry):
            planned = entry.slot - self.line()
            if not -slack < planned <= schedule.period + NEAR:
                self.fail(
                    f"the slot after {attempted.key} is in {planned:.4f} s, of a period of {schedule.period}"
                )
        if again:
            wait = _backoff(task.retry, record.attempt)
            planned = entry.ended.retry_at - self.line()
            if abs(planned - wait) > slack:
                self.fail(f"the retry of {attempted.key} is planned in {planned:.4f} s, not {wait}")


def _backoff(retry: Any, attempt: int) -> float:
    """The contract's: 1 s, 2 s, 4 s ... capped."""
    seconds = retry.initial_backoff
    for _ in range(attempt - 1):
        seconds = min(seconds * retry.multiplier, retry.max_backoff)
    return float(min(seconds, retry.max_backoff))
