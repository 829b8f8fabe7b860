"""OneTime, After, FixedDelay and FixedRate: pure values that answer with instants."""

from __future__ import annotations

import dataclasses
import math
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import pytest

from procsched._core.models import ExecutionRecord, OverrunPolicy
from procsched.errors import ValidationError
from procsched.schedules import After, CronSchedule, FixedDelay, FixedRate, OneTime
from tests.unit.counting import steps

NOW = 1_774_742_400.371  # an instant in 2026 with a fraction
TEN_YEARS = 3652 * 86_400.0


def ran(due_at: float | None, *, started: float | None = None, took: float = 1.0) -> ExecutionRecord:
    """Return the record of a run that started at `started` (default: on time)."""
    start = started if started is not None else due_at
    assert start is not None
    return ExecutionRecord(1, start, start + took, ok=True, due_at=due_at)


ALL = [
    OneTime(NOW),
    After(5.0),
    FixedDelay(5.0),
    FixedRate(5.0),
    CronSchedule("30 2 * * *", tz="Europe/Berlin"),
]


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_schedules_are_values(schedule):
    """A schedule survives pickling as an equal value with an equal hash."""
    copy = pickle.loads(pickle.dumps(schedule))
    assert copy == schedule
    assert hash(copy) == hash(schedule)
    assert repr(copy) == repr(schedule)


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_schedules_are_frozen(schedule):
    """No attribute of a schedule can be assigned or deleted, nor a new one added."""
    for name in (*[slot for slot in type(schedule).__slots__ if slot[0] != "_"], "extra"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(schedule, name, 1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(schedule, name)


@pytest.mark.parametrize("schedule", ALL, ids=repr)
def test_which_line_a_schedule_is_given(schedule):
    """Delays and rates follow the steady clock; one-time and cron follow the wall."""
    assert getattr(schedule, "steady", False) is not isinstance(schedule, OneTime | CronSchedule)


def test_import_is_lean():
    """Importing the schedules loads none of the modules that only some schedules need."""
    heavy = {"dataclasses", "inspect", "typing", "datetime", "zoneinfo", "cronsim"}
    code = f"import sys; before = set(sys.modules); import procsched.schedules; \
        print(sorted((set(sys.modules) - before) & {heavy!r}))"
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- one run ---------------------------------------------------------------------------------------------


def test_one_time_is_due_at_its_instant():
    """OneTime is due at `at`, also where that has passed, and never again."""
    assert OneTime(NOW).first_run(NOW - 10) == NOW
    assert OneTime(NOW).first_run(NOW + 10) == NOW
    assert OneTime(NOW).next_run(ran(NOW), NOW + 1) is None
    assert OneTime(NOW).passed(0.0, NOW + 10, 5) == ([], 0)


def test_one_time_takes_an_aware_datetime():
    """An aware datetime is converted to UNIX seconds at the border."""
    at = datetime(2026, 3, 29, 3, 30, tzinfo=timezone(timedelta(hours=2)))
    assert OneTime(at).at == datetime(2026, 3, 29, 1, 30, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("at", [datetime(2026, 1, 1), math.nan, math.inf, "2026-01-01", None, True])
def test_one_time_refuses_what_is_no_instant(at):
    """A naive datetime and other non-instants are refused by the name of the parameter."""
    with pytest.raises(ValidationError, match=r"^at "):
        OneTime(at)


def test_after_is_due_once():
    """After is due `delay` seconds from now, and never again."""
    assert After(2.5).first_run(NOW) == NOW + 2.5
    assert After(timedelta(minutes=1)).delay == 60.0
    assert After(0).first_run(NOW) == NOW
    assert After(2.5).next_run(ran(NOW), NOW) is None
    assert After(2.5).passed(NOW, NOW + 100, 5) == ([], 0)


# --- a pause between runs --------------------------------------------------------------------------------


def test_fixed_delay_counts_from_the_end():
    """The pause begins when the run ended, whenever it was due and however long it took."""
    schedule = FixedDelay(10.0, 3.0)
    assert schedule.first_run(NOW) == NOW + 3.0
    record = ran(NOW, started=NOW + 2, took=7)
    assert schedule.next_run(record, NOW + 9.5) == record.finished_at + 10.0
    assert schedule.passed(NOW, NOW + 1000, 5) == ([], 0)


def test_fixed_delay_of_zero_is_legal():
    """With a delay of 0 the next run is due at the end of the last."""
    record = ran(NOW)
    assert FixedDelay(0).next_run(record, NOW + 1) == record.finished_at


# --- a grid of slots -------------------------------------------------------------------------------------


def test_fixed_rate_starts_its_grid_after_the_start_delay():
    """The anchor is now, or `start_delay` later."""
    assert FixedRate(5.0).first_run(NOW) == NOW
    assert FixedRate(5.0, start_delay=timedelta(seconds=2)).first_run(NOW) == NOW + 2.0


@pytest.mark.parametrize("policy", list(OverrunPolicy))
def test_fixed_rate_does_not_drift(policy):
    """A thousand slots with 300 ms of latency each stay on start + k * 60 exactly."""
    schedule = FixedRate(60.0, policy)
    due = schedule.first_run(NOW)
    for k in range(1, 1001):
        due = schedule.next_run(ran(due, started=due + 0.3), due + 1.3)
        assert due == NOW + k * 60.0


def test_fixed_rate_with_a_fraction_is_aligned_to_its_anchor():
    """A period that floats cannot hold stays on the grid to the last bit for whoever knows the anchor."""
    schedule = FixedRate(0.1)
    due = NOW
    for k in range(1, 20_001):
        due = schedule.aligned(NOW, schedule.next_run(ran(due, took=0.01), due + 0.01))
        assert due == NOW + k * 0.1


def test_fixed_rate_counts_from_the_start_without_a_slot():
    """A record without a slot counts from where it started."""
    assert FixedRate(5.0).next_run(ran(None, started=NOW), NOW + 1) == NOW + 5


@pytest.mark.parametrize(
    ("took", "k"), [(0.0, 1), (4.999, 1), (5.0, 2), (5.001, 2), (12.0, 3), (15.0, 4), (3600.0, 721)]
)
def test_skip_goes_to_the_next_slot_in_the_future(took, k):
    """SKIP takes the first slot strictly later than the end of the run."""
    start = 1_774_742_400.0
    assert FixedRate(5.0).next_run(ran(start, took=took), start + took) == start + k * 5.0


def test_catch_up_takes_every_slot():
    """CATCH_UP goes to the very next slot although it has passed, and `passed` lists them all."""
    schedule = FixedRate(5.0, "catch_up")
    assert schedule.on_overrun is OverrunPolicy.CATCH_UP
    assert schedule.next_run(ran(100.0, took=17.0), 117.0) == 105.0
    assert schedule.passed(100.0, 117.0, 10) == ([105.0, 110.0, 115.0], 3)


def test_passed_keeps_the_newest_and_counts_the_rest():
    """An hour asleep under a 5 s rate: three slots are listed, 717 more only counted."""
    slots, total = FixedRate(5.0).passed(1000.0, 4600.0, 3)
    assert slots == [4590.0, 4595.0, 4600.0]
    assert total - len(slots) == 717


def test_passed_bounds():
    """`after` itself is no slot that passed, `until` may be one, and an empty span has none."""
    schedule = FixedRate(5.0)
    assert schedule.passed(100.0, 104.9, 9) == ([], 0)
    assert schedule.passed(100.0, 105.0, 9) == ([105.0], 1)
    assert schedule.passed(100.0, 100.0, 9) == ([], 0)
    assert schedule.passed(100.0, 50.0, 9) == ([], 0)
    assert schedule.passed(100.0, 117.0, 0) == ([], 3)


@pytest.mark.parametrize("period", [0.1, 1 / 3, 0.7, 1.0, 2.5, 86_400.0, 1e-6])
@pytest.mark.parametrize("span", [0.05, 0.3, 1.0, 7.77, 3600.0])
def test_passed_agrees_with_next_run(period, span):
    """What `passed` counts is bounded by exactly the slots on both sides of `until`."""
    schedule, until = FixedRate(period), NOW + span
    slots, total = schedule.passed(NOW, until, 2)
    assert NOW + total * period <= until < NOW + (total + 1) * period
    assert slots == [NOW + k * period for k in range(max(1, total - 1), total + 1)]
    later = schedule.next_run(ran(NOW), until)
    assert later > until
    assert later == NOW + (total + 1) * period


def test_a_jump_of_ten_years_costs_nothing():
    """Ten years of a 1 s rate are planned in as many steps as slots are asked for."""
    schedule = FixedRate(1.0, "catch_up")
    (slots, total), count = steps(schedule.passed, NOW, NOW + TEN_YEARS, 100)
    assert (len(slots), total) == (100, int(TEN_YEARS))
    assert count < 200


def test_a_slot_too_far_for_floats_is_still_later():
    """Where a float cannot tell one period from the next, the next run is still in the future."""
    schedule = FixedRate(0.001)
    assert schedule.next_run(ran(0.0), 1e15) > 1e15


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda value: After(value), "delay"),
        (lambda value: FixedDelay(value), "delay"),
        (lambda value: FixedDelay(1, value), "start_delay"),
        (lambda value: FixedRate(value), "period"),
        (lambda value: FixedRate(1, start_delay=value), "start_delay"),
    ],
)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "5", None, True, timedelta(seconds=-1)])
def test_a_wrong_duration_is_refused_by_name(make, name, value):
    """A duration that is negative, not finite or no number is refused, naming the parameter."""
    with pytest.raises(ValidationError, match=rf"^{name} "):
        make(value)


@pytest.mark.parametrize("period", [0, 0.0, 1e-7])
def test_a_period_must_be_long_enough_to_tell(period):
    """A period of zero, or shorter than a microsecond, is refused."""
    with pytest.raises(ValidationError, match=r"^period "):
        FixedRate(period)


@pytest.mark.parametrize("policy", ["SKIP", "wait", None, 1, []])
def test_a_wrong_overrun_policy_is_refused(policy):
    """What is no overrun policy is refused, listing those there are."""
    with pytest.raises(ValidationError, match=r"^on_overrun .*OverrunPolicy\.SKIP, OverrunPolicy\.CATCH_UP"):
        FixedRate(1, policy)
