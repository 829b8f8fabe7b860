"""The steady line: what a step of the wall clock and a sleep look like on it."""

from __future__ import annotations

import pytest

from procsched._core.timeline import SLEEP_SECONDS, STEP_SECONDS, Timeline

WALL, STEADY = 1_700_000_000.0, 5_000.0


@pytest.fixture
def timeline() -> Timeline:
    return Timeline(WALL, STEADY, STEADY)


def test_line_starts_as_wall_time_and_counts_steady_seconds(timeline: Timeline) -> None:
    """Without a step, line and wall are the same."""
    assert timeline.line(STEADY) == WALL
    assert timeline.line(STEADY + 12.5) == WALL + 12.5
    assert timeline.offset == 0.0


def test_offset_is_exactly_zero_until_a_step(timeline: Timeline) -> None:
    """Slewing and the time between two readings are no steps."""
    assert timeline.notice(WALL + 10.0 + STEP_SECONDS * 0.9, STEADY + 10.0) is None
    assert timeline.notice(WALL + 20.0 - STEP_SECONDS * 0.9, STEADY + 20.0) is None
    assert timeline.offset == 0.0


@pytest.mark.parametrize("step", [7200.0, -7200.0, 0.5, -0.5, 315_360_000.0])
def test_a_step_is_told_once_with_its_size(timeline: Timeline, step: float) -> None:
    """A step moves the wall against the line, and the line stays where it is."""
    assert timeline.notice(WALL + 10.0 + step, STEADY + 10.0) == pytest.approx(step)
    assert timeline.offset == pytest.approx(step)
    assert timeline.notice(WALL + 11.0 + step, STEADY + 11.0) is None
    assert timeline.line(STEADY + 11.0) == WALL + 11.0


def test_steps_add_up(timeline: Timeline) -> None:
    """Forward and back again leaves no offset."""
    assert timeline.notice(WALL + 3600.0, STEADY) == 3600.0
    assert timeline.notice(WALL + 1.0, STEADY + 1.0) == -3600.0
    assert timeline.offset == 0.0


def test_slow_drift_becomes_a_step_when_it_is_large_enough(timeline: Timeline) -> None:
    """What slewing adds up to is taken up as soon as it exceeds the size of a step."""
    assert timeline.notice(WALL + STEP_SECONDS * 0.9, STEADY) is None
    assert timeline.notice(WALL + STEP_SECONDS * 1.1, STEADY) == pytest.approx(STEP_SECONDS * 1.1)


def test_sleep_is_the_gap_between_steady_and_awake(timeline: Timeline) -> None:
    """Each sleep is told once; no step comes with it."""
    assert timeline.asleep(STEADY + 10.0, STEADY + 10.0) == 0.0
    assert timeline.asleep(STEADY + 3610.0, STEADY + 10.0) == 3600.0
    assert timeline.asleep(STEADY + 3611.0, STEADY + 11.0) == 0.0
    assert timeline.asleep(STEADY + 3621.0, STEADY + 12.0) == 9.0
    assert timeline.notice(WALL + 3621.0, STEADY + 3621.0) is None


def test_short_gaps_are_no_sleep_and_are_not_forgotten(timeline: Timeline) -> None:
    """Small differences of the readings are left alone until they add up to a sleep."""
    assert timeline.asleep(STEADY + 10.0, STEADY + 10.0 - SLEEP_SECONDS) == 0.0
    assert timeline.asleep(STEADY + 20.0, STEADY + 20.0 - SLEEP_SECONDS * 2) == SLEEP_SECONDS * 2


def test_clocks_that_differ_from_the_start_have_not_slept() -> None:
    """Steady and awake time may begin at different numbers."""
    timeline = Timeline(WALL, 90_000.0, 50_000.0)
    assert timeline.asleep(90_010.0, 50_010.0) == 0.0
    assert Timeline(WALL, 90_000.0).asleep(90_010.0, 90_010.0) == 0.0
