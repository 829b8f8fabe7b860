"""The scheduler against a simple model: any order of requests and moves of the clock gives the same story.

The scheduler runs in this thread (InlinePool, FakeClock), actions take no time, and all times are whole
seconds, so the model can list slots one by one where the scheduler computes.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from procsched import (
    EventLog,
    FakeClock,
    FixedDelay,
    FixedRate,
    InlinePool,
    MisfirePolicy,
    OneTime,
    OverrunPolicy,
    RetryPolicy,
    Scheduler,
    TaskStatus,
)
from tests.unit.scheduling import START

S = TaskStatus


class Model:
    """One task as the contract tells it, with times in whole seconds since the start."""

    def __init__(
        self, kind: str, number: int, options: dict[str, Any], script: list[bool], now: int, wall: int
    ) -> None:
        self.kind, self.number, self.script = kind, number, script
        self.catch_up = options["catch_up"]
        self.policy, self.limit = options["misfire"], options["max_catch_up"]
        self.attempts, self.backoff, self.goes_on = (
            options["attempts"],
            options["backoff"],
            options["goes_on"],
        )
        self.status = S.SCHEDULED
        self.slot = wall + number if kind == "once" else now
        self.queue: list[int] = []  # slots that passed and run one by one after `slot`
        self.dealt = self.slot
        self.retry_at: int | None = None
        self.attempt = self.run = self.stands_for = self.missed = self.skipped = 0
        self.owed = self.slot <= (wall if kind == "once" else now)
        self.dealt_with = False  # a misfire has said which slot waits
        self.calls = 0
        self.records: list[tuple[int, int, int, bool, int, int]] = []

    def passed(self, until: int) -> list[int]:
        """List the slots after those dealt with, up to and with `until`."""
        slots = []
        if self.kind == "rate":
            slot = self.dealt + self.number
            while slot <= until:
                slots.append(slot)
                slot += self.number
        return slots

    def take(self, slots: list[int], stands_for: int = 0) -> None:
        """Plan the first of `slots`; the others follow."""
        self.slot, *self.queue = slots
        self.dealt = slots[-1]
        self.stands_for, self.owed, self.status = stands_for, False, S.SCHEDULED

    def misfire(self, now: int) -> None:
        """Nothing could run until `now`."""
        if self.slot < now:
            self.apply_policy(now)
            self.dealt_with = self.slot <= now

    def apply_policy(self, now: int) -> None:
        """Decide about the slots up to `now`."""
        if self.policy is MisfirePolicy.SKIP:
            if self.owed:
                late = self.passed(now - 1)
                self.missed += len(late)
                self.dealt = (late or [self.dealt])[-1]
                return
            known = 1 + len(self.queue)
            late = self.passed(now - 1)
            self.missed += known + len(late)
            if self.kind == "once":
                self.status = S.SUCCEEDED if self.run else S.CANCELLED
            elif self.kind == "delay":
                self.take([now + self.number])
            else:
                self.take([(late or [self.dealt])[-1] + self.number])
            return
        slots = [self.slot, *self.queue, *self.passed(now)]
        if self.policy is MisfirePolicy.RUN_ONCE:
            self.missed += len(slots) - 1
            self.take(slots[-1:], len(slots) - 1 + self.stands_for)
        else:
            self.missed += max(0, len(slots) - self.limit)
            stood_for = self.stands_for if len(slots) <= self.limit else 0
            self.take(slots[-self.limit :], stood_for)
        self.owed = True  # dealt with up to now; it waits for the start, or runs at once

    def settle(self, now: int, wall: int) -> None:
        """Run whatever is due."""
        while True:
            here = wall if self.kind == "once" else now
            if self.status is S.SCHEDULED and self.slot <= here:
                if self.kind == "rate" and self.catch_up and not self.dealt_with:
                    late = self.passed(now)
                    slots = [self.slot, *self.queue, *late]
                    if len(slots) > self.limit:
                        self.skipped += len(slots) - self.limit
                        self.take(slots[-self.limit :])
                self.dealt_with = False
                self.run += 1
                self.attempt = 1
            elif self.status is S.RETRYING and self.retry_at is not None and self.retry_at <= now:
                self.attempt += 1
            else:
                return
            good = self.script[self.calls % len(self.script)]
            self.calls += 1
            self.records.append((self.slot, self.run, self.attempt, good, wall, self.stands_for))
            if good or self.attempt >= self.attempts:
                self.follow(good, now)
            else:
                self.status, self.retry_at = S.RETRYING, now + self.backoff

    def follow(self, good: bool, now: int) -> None:
        """Plan what comes after a run."""
        if self.kind == "once" or not (good or self.goes_on):
            self.status = S.SUCCEEDED if good else S.FAILED
        elif self.kind == "delay":
            self.take([now + self.number])
        else:
            late = self.passed(now)
            if self.catch_up:
                slots = [*self.queue, *late]
                self.skipped += max(0, len(slots) - self.limit)
                self.take(slots[-self.limit :] or [self.dealt + self.number])
            elif self.queue:
                dealt = self.dealt
                self.take(self.queue)
                self.dealt = dealt
            else:
                self.skipped += len(late)
                self.take([(late or [self.dealt])[-1] + self.number])

    def revive(self, now: int, wall: int) -> None:
        """Start anew."""
        self.status, self.attempt = S.SCHEDULED, 0
        if self.kind == "rate":
            self.take([(self.passed(now) or [self.dealt])[-1] + self.number])
        elif self.kind == "delay":
            self.take([now])
        else:
            self.take([min(self.slot, wall)])

    def due(self) -> int | None:
        """Return when the next start is planned."""
        return self.retry_at if self.status is S.RETRYING else self.slot


class SchedulerMachine(RuleBasedStateMachine):
    """Drives both."""

    tasks = Bundle("tasks")

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(START)
        self.log = EventLog()
        self.scheduler = Scheduler(clock=self.clock, pool=InlinePool(), listeners=[self.log])
        self.models: dict[str, Model] = {}
        self.now = self.offset = 0
        self.started = False

    @property
    def wall(self) -> int:
        """Wall seconds since the start."""
        return self.now + self.offset

    def teardown(self) -> None:
        """End both, and compare what was told with what was kept."""
        self.scheduler.shutdown()
        self.scheduler.engine.check()
        numbers = [event.sequence for event in self.log.events]
        assert numbers == sorted(set(numbers))
        runs = [event.record for event in self.log.events if event.record is not None]
        assert len(runs) == sum(len(model.records) for model in self.models.values())

    def settle(self) -> None:
        """Let what is due run on both sides."""
        if not self.started:
            return
        for model in self.models.values():
            model.settle(self.now, self.wall)
        assert self.scheduler.wait_idle(10)

    @precondition(lambda self: not self.started)
    @rule()
    def start(self) -> None:
        for model in self.models.values():
            if model.status is S.SCHEDULED:
                model.misfire(self.wall if model.kind == "once" else self.now)
        self.started = True
        self.scheduler.start()
        self.settle()

    @rule(
        target=tasks,
        kind=st.sampled_from(["once", "delay", "rate"]),
        number=st.integers(1, 7),
        catch_up=st.booleans(),
        misfire=st.sampled_from(MisfirePolicy),
        max_catch_up=st.integers(1, 4),
        attempts=st.integers(1, 3),
        backoff=st.integers(1, 5),
        goes_on=st.booleans(),
        script=st.lists(st.booleans(), min_size=1, max_size=4),
    )
    def schedule(self, kind: str, number: int, script: list[bool], **options: Any) -> str:
        overrun = OverrunPolicy.CATCH_UP if options["catch_up"] else OverrunPolicy.SKIP
        schedule: Any = {
            "once": lambda: OneTime(START + self.wall + number - 3),
            "delay": lambda: FixedDelay(number),
            "rate": lambda: FixedRate(number, overrun),
        }[kind]()
        calls = iter(range(1_000_000))

        def action() -> None:
            if not script[next(calls) % len(script)]:
                raise ValueError("bad row")

        model = Model(kind, number - 3 if kind == "once" else number, options, script, self.now, self.wall)
        handle = self.scheduler.schedule(
            kind,
            action,
            schedule,
            retry=RetryPolicy(options["attempts"], options["backoff"], 1.0),
            misfire=options["misfire"],
            max_catch_up=options["max_catch_up"],
            on_exhausted="continue" if options["goes_on"] else "dead_letter",
        )
        self.models[handle.id] = model
        self.settle()
        return handle.id

    @rule(seconds=st.integers(0, 30))
    def advance(self, seconds: int) -> None:
        self.now += seconds
        self.clock.advance(seconds)
        self.settle()

    @precondition(lambda self: self.started)
    @rule(seconds=st.integers(1, 30))
    def suspend(self, seconds: int) -> None:
        self.now += seconds
        for model in self.models.values():
            if model.status is S.SCHEDULED:
                model.misfire(self.wall if model.kind == "once" else self.now)
        self.clock.suspend(seconds)
        self.settle()

    @rule(seconds=st.integers(-20, 20).filter(bool))
    def step_wall(self, seconds: int) -> None:
        self.offset += seconds
        for model in self.models.values():
            if self.started and seconds > 0 and model.status is S.SCHEDULED and model.kind == "once":
                model.misfire(self.wall)
        self.clock.step_wall(seconds)
        self.settle()

    @rule(task=tasks)
    def pause(self, task: str) -> None:
        model = self.models[task]
        possible = not model.status.is_terminal and model.status is not S.PAUSED
        assert self.scheduler.pause(task) is possible
        if possible:
            if model.status is S.SCHEDULED:
                model.retry_at = None  # what is due has run, or passes before the start
            model.status = S.PAUSED

    @rule(task=tasks)
    def resume(self, task: str) -> None:
        model = self.models[task]
        possible = model.status is S.PAUSED
        if possible:
            if model.retry_at is not None:
                model.status = S.RETRYING
            else:
                model.status = S.SCHEDULED
                model.misfire(self.wall if model.kind == "once" else self.now)
        assert self.scheduler.resume(task) is possible
        self.settle()

    @rule(task=tasks)
    def cancel(self, task: str) -> None:
        model = self.models[task]
        possible = not model.status.is_terminal
        assert self.scheduler.cancel(task, kill=True) is possible
        if possible:
            model.status = S.CANCELLED

    @rule(task=tasks)
    def revive(self, task: str) -> None:
        model = self.models[task]
        possible = model.status is S.FAILED
        if possible:
            model.revive(self.now, self.wall)
        assert self.scheduler.revive(task) is possible
        self.settle()

    @invariant()
    def both_agree(self) -> None:
        engine = self.scheduler.engine
        engine.check()
        for task_id, model in self.models.items():
            handle = self.scheduler.task(task_id)
            assert handle.status is model.status, (handle, model.__dict__)
            assert handle.attempt == model.attempt
            records = [(r.run, r.attempt, r.ok, r.started_at - START, r.missed) for r in handle.history]
            assert records == [record[1:] for record in model.records]
            if model.status in (S.SCHEDULED, S.RETRYING):
                steady = model.kind != "once" or model.status is S.RETRYING
                due = model.due()
                assert due is not None
                # Before the start nobody looks at the clock, so a step is not known yet.
                if self.started:
                    assert handle.next_run_at == START + due + (self.offset if steady else 0)
        counters = engine.counters
        models = self.models.values()
        assert counters["missed"] == sum(model.missed for model in models)
        assert counters["skipped"] == sum(model.skipped for model in models)
        assert self.scheduler.dead_letter() == [
            name for name in self.scheduler.dead_letter() if self.models[name].status is S.FAILED
        ]
        assert len(self.scheduler.dead_letter()) == sum(model.status is S.FAILED for model in models)


TestSchedulerModel = pytest.mark.slow(SchedulerMachine.TestCase)
TestSchedulerModel.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow],
)
