"""Which slots become runs, as pure functions."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsched import (
    After,
    CronSchedule,
    ExecutionRecord,
    FixedDelay,
    FixedRate,
    MisfirePolicy,
    OneTime,
    OverrunPolicy,
    ScheduleError,
)
from procsched._core import planning
from procsched._core.planning import Plan, Slots
from tests.unit.counting import steps

SKIP, RUN_ONCE, CATCH_UP = MisfirePolicy.SKIP, MisfirePolicy.RUN_ONCE, MisfirePolicy.CATCH_UP
TEN = FixedRate(10)
TEN_CATCH_UP = FixedRate(10, OverrunPolicy.CATCH_UP)


class Listed:
    """A foreign schedule that knows only the next of its slots."""

    def __init__(self, *slots: float) -> None:
        self.slots = slots

    def first_run(self, now: float) -> float | None:
        return self.slots[0]

    def next_run(self, record: ExecutionRecord, now: float) -> float | None:
        slot = record.due_at if record.due_at is not None else record.started_at
        return next((due for due in self.slots if due > slot), None)


def record(due: float, ended: float) -> ExecutionRecord:
    return ExecutionRecord(1, due, ended, True, due_at=due)


def shown(plan: Plan) -> tuple[Any, ...]:
    return plan.due_at, plan.backlog, plan.stands_for, plan.missed, plan.skipped


@pytest.mark.parametrize(
    ("slots", "now", "expected"),
    [
        (Slots(OneTime(0), 0.0), 5.0, (None, (), 0, 0, 0)),
        (Slots(After(3), 0.0), 5.0, (None, (), 0, 0, 0)),
        (Slots(FixedDelay(4), 0.0), 5.0, (9.0, (), 0, 0, 0)),
        (Slots(TEN, 0.0), 5.0, (10.0, (), 0, 0, 0)),
        (Slots(TEN, 0.0), 10.0, (20.0, (), 0, 0, 1)),
        (Slots(TEN, 0.0), 35.0, (40.0, (), 0, 0, 3)),
        (Slots(TEN, 0.0, backlog=(10.0, 20.0), dealt=20.0), 35.0, (10.0, (20.0,), 0, 0, 0)),
        (Slots(TEN, 20.0, anchor=0.0, dealt=20.0), 35.0, (40.0, (), 0, 0, 1)),
        (Slots(TEN_CATCH_UP, 0.0), 5.0, (10.0, (), 0, 0, 0)),
        (Slots(TEN_CATCH_UP, 0.0), 35.0, (10.0, (20.0, 30.0), 0, 0, 0)),
        (Slots(TEN_CATCH_UP, 0.0, limit=2), 35.0, (20.0, (30.0,), 0, 0, 1)),
        (Slots(TEN_CATCH_UP, 0.0, dealt=20.0, backlog=(20.0,), limit=2), 45.0, (30.0, (40.0,), 0, 0, 1)),
        (Slots(Listed(0, 3, 7), 0.0), 5.0, (3.0, (), 0, 0, 0)),
        (Slots(Listed(0), 0.0), 5.0, (None, (), 0, 0, 0)),
        (Slots(Listed(0, 3, 7), 0.0, backlog=(3.0,), dealt=3.0), 5.0, (3.0, (), 0, 0, 0)),
    ],
)
def test_what_follows_a_run(slots: Slots, now: float, expected: tuple[Any, ...]) -> None:
    """The schedule's own rule decides about slots that passed during the run."""
    assert shown(planning.plan_next(slots, record(slots.slot, now), now, now)) == expected


@pytest.mark.parametrize(
    ("policy", "owed", "now", "expected"),
    [
        (RUN_ONCE, False, 0.0, (0.0, (), 0, 0, 0)),
        (RUN_ONCE, False, 5.0, (0.0, (), 0, 0, 0)),
        (RUN_ONCE, False, 10.0, (10.0, (), 1, 1, 0)),
        (RUN_ONCE, True, 35.0, (30.0, (), 3, 3, 0)),
        (SKIP, False, 0.0, (0.0, (), 0, 0, 0)),
        (SKIP, False, 5.0, (10.0, (), 0, 1, 0)),
        (SKIP, False, 10.0, (10.0, (), 0, 1, 0)),
        (SKIP, False, 35.0, (40.0, (), 0, 4, 0)),
        (SKIP, True, 35.0, (0.0, (), 0, 3, 0)),
        (CATCH_UP, False, 5.0, (0.0, (), 0, 0, 0)),
        (CATCH_UP, False, 35.0, (10.0, (20.0, 30.0), 0, 1, 0)),
    ],
)
def test_misfire_of_a_rate(policy: MisfirePolicy, owed: bool, now: float, expected: tuple[Any, ...]) -> None:
    """The task's policy decides about slots that nothing could run."""
    slots = Slots(TEN, 0.0, limit=3, policy=policy)
    assert shown(planning.plan_misfire(slots, now, owed)) == expected


@pytest.mark.parametrize(
    ("schedule", "policy", "expected"),
    [
        (OneTime(0), RUN_ONCE, (0.0, (), 0, 0, 0)),
        (OneTime(0), CATCH_UP, (0.0, (), 0, 0, 0)),
        (OneTime(0), SKIP, (None, (), 0, 1, 0)),
        (FixedDelay(7), RUN_ONCE, (0.0, (), 0, 0, 0)),
        (FixedDelay(7), SKIP, (27.0, (), 0, 1, 0)),
        (Listed(0, 5, 15, 25), RUN_ONCE, (15.0, (), 2, 2, 0)),
        (Listed(0, 5, 15, 25), CATCH_UP, (5.0, (15.0,), 0, 1, 0)),
        (Listed(0, 5, 15, 25), SKIP, (25.0, (), 0, 3, 0)),
        (Listed(0, 5), SKIP, (None, (), 0, 2, 0)),
    ],
)
def test_misfire_of_other_schedules(schedule: Any, policy: MisfirePolicy, expected: tuple[Any, ...]) -> None:
    """Schedules with one slot at a time, or only the next one known, follow the same policies."""
    slots = Slots(schedule, 0.0, limit=2, policy=policy)
    assert shown(planning.plan_misfire(slots, 20.0, False)) == expected


def test_an_attribute_of_the_users_is_no_answer() -> None:
    """A schedule of a user's own may have something else under the name of a method that ours have."""
    schedule = Listed(0, 3, 7)
    schedule.passed = 1  # type: ignore[attr-defined]
    assert shown(planning.plan_next(Slots(schedule, 0.0), record(0.0, 5.0), 5.0, 5.0)) == (3.0, (), 0, 0, 0)
    assert shown(planning.plan_misfire(Slots(schedule, 0.0), 5.0, owed=False)) == (3.0, (), 1, 1, 0)


@pytest.mark.parametrize("policy", MisfirePolicy)
def test_what_waits_for_its_turn_is_no_misfire(policy: MisfirePolicy) -> None:
    """Whatever the policy, as long as no other slot has passed."""
    slots = Slots(TEN_CATCH_UP, 0.0, dealt=20.0, backlog=(10.0, 20.0), policy=policy)
    assert shown(planning.plan_misfire(slots, 25.0, owed=True)) == (0.0, (10.0, 20.0), 0, 0, 0)


def test_slots_missed_beside_an_owed_one_are_not_counted_again() -> None:
    """What an owed run leaves behind as missed is not skipped once more when that run is over."""
    slots = Slots(TEN, 0.0, policy=SKIP)
    plan = planning.plan_misfire(slots, 35.0, owed=True)
    after = planning.plan_next(slots.after(plan), record(0.0, 36.0), 36.0, 36.0)
    assert shown(after) == (40.0, (), 0, 0, 0)


def test_resume_after_a_run_applies_each_rule_to_its_part() -> None:
    """Slots up to the end of the run follow the schedule, those after it the misfire policy."""
    slots = Slots(TEN, 0.0, policy=RUN_ONCE)
    plan = planning.plan_resumed(slots, record(0.0, 25.0), 25.0, 65.0)
    assert shown(plan) == (60.0, (), 3, 3, 2)


def test_late_catch_up_keeps_the_newest() -> None:
    """A timer that is far too late catches up at most as many slots as allowed, the first included."""
    slots = Slots(TEN_CATCH_UP, 0.0, limit=3)
    assert planning.plan_late(slots, 25.0) is None
    late = planning.plan_late(slots, 65.0)
    assert late is not None
    assert shown(late) == (40.0, (50.0, 60.0), 0, 0, 4)


def test_revived_rate_keeps_its_grid() -> None:
    """The next slot from now on lies on the old grid; what has one slot is due at once."""
    assert planning.plan_revived(Slots(TEN, 20.0, anchor=0.0), 95.0).due_at == 100.0
    assert planning.plan_revived(Slots(OneTime(5), 5.0), 95.0).due_at == 5.0
    assert planning.plan_revived(Slots(FixedDelay(5, 2), 5.0), 95.0).due_at == 97.0


def test_revived_after_the_clock_was_set_back_runs_no_slot_twice() -> None:
    """A clock set back by more than three hours is a correction: then only the new time counts."""
    cron = CronSchedule("* * * * *")
    day = 1_700_006_400.0
    for back, due in ((30.0, day + 60), (3600.0, day + 60), (4 * 3600.0, day - 4 * 3600 + 60)):
        assert planning.plan_revived(Slots(cron, day), day - back).due_at == due
    assert planning.plan_revived(Slots(cron, day), day + 90).due_at == day + 120


@pytest.mark.parametrize("schedule", [FixedRate(1), TEN_CATCH_UP, CronSchedule("* * * * * *")])
@pytest.mark.parametrize("policy", list(MisfirePolicy))
def test_ten_years_cost_some_thousand_steps(schedule: Any, policy: MisfirePolicy) -> None:
    """Ten years of slots are counted, not listed (apscheduler 526)."""
    start = 1_700_000_000.0
    slots = Slots(schedule, start, policy=policy)
    now = start + 10 * 365 * 86_400
    planning.plan_misfire(slots, now, False)  # loads what cron needs
    plan, misfire = steps(planning.plan_misfire, slots, now, False)
    _, following = steps(planning.plan_next, slots, record(start, now), now, now)
    assert misfire + following < 10_000
    assert len(plan.backlog) < 100
    assert plan.due_at is not None
    assert plan.due_at >= now - 1000


def test_foreign_schedule_that_never_ends_is_left_after_a_bound() -> None:
    """Stepping through a schedule that yields a slot every microsecond ends."""

    class Endless:
        def first_run(self, now: float) -> float:
            return now

        def next_run(self, record: ExecutionRecord, now: float) -> float:
            return (record.due_at or 0.0) + 1e-3

    plan = planning.plan_misfire(Slots(Endless(), 0.0, limit=5, policy=CATCH_UP), 1e6, False)
    assert len(plan.backlog) == 4


@pytest.mark.parametrize("due", [math.nan, math.inf, -math.inf, True, "5", object()])
def test_senseless_answers_are_refused(due: object) -> None:
    """What is no finite number of seconds is an error that names the method and the value."""
    with pytest.raises(ScheduleError, match="next_run"):
        planning.checked_due(TEN, "next_run", due)


def test_whole_numbers_are_taken() -> None:
    """An int is as good as a float; None means none."""
    assert planning.checked_due(TEN, "next_run", 5) == 5.0
    assert planning.checked_due(TEN, "next_run", None) is None


@pytest.mark.parametrize(
    ("steady", "wall", "seconds"),
    [
        (None, None, None),
        (3.0, None, 3.0),
        (None, 3.0, 3.0),
        (3.0, 2.0, 2.0),
        (-1.0, None, 0.0),
        (None, 1000.0, 999.0),
        (999.5, 1000.0, 999.0),
    ],
)
def test_how_long_the_timer_waits(steady: float | None, wall: float | None, seconds: float | None) -> None:
    """The nearer of both lines; a long way to a wall time is not gone in one piece."""
    assert planning.wait_seconds(steady, wall) == seconds


def test_twelve_hours_to_a_wall_time_are_a_few_waits() -> None:
    """A one-shot in twelve hours costs two or three wake-ups, not polling."""
    left, waits = 43_200.0, 0
    while left > 0.0:
        left -= planning.wait_seconds(None, left) or left
        waits += 1
    assert waits <= 3


@given(
    period=st.integers(1, 20),
    now=st.integers(0, 200),
    limit=st.integers(1, 6),
    policy=st.sampled_from(MisfirePolicy),
    owed=st.booleans(),
)
def test_every_slot_is_accounted_for(
    period: int, now: int, limit: int, policy: MisfirePolicy, owed: bool
) -> None:
    """Whatever the policy, each slot that passed is run, stood for, or counted as missed: once."""
    slots = Slots(FixedRate(period), 0.0, limit=limit, policy=policy)
    plan = planning.plan_misfire(slots, float(now), owed)
    passed = list(range(0, now + 1, period))
    assert plan.due_at is not None
    runs = [due for due in (plan.due_at, *plan.backlog) if due <= now]
    assert len(set(runs)) == len(runs) <= max(1, limit)
    assert set(runs) <= set(passed)
    if policy is not SKIP or now % period:
        assert len(runs) + plan.missed == len(passed)
    assert plan.skipped == 0
