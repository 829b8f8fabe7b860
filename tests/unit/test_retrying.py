"""From a failed attempt to the next one."""

from __future__ import annotations

import pytest

from procsched import NO_RETRY, Outcome, RetryPolicy
from procsched._core.retrying import decide_retry, jittered

POLICY = RetryPolicy(3, 1.0, 2.0, 60.0)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_which_outcomes_are_retried(outcome: Outcome) -> None:
    """All failures are, a success is not, and what was killed by request is not."""
    retried = outcome not in (Outcome.SUCCEEDED, Outcome.KILLED)
    assert (decide_retry(POLICY, outcome, 1, 0.5) is not None) is retried
    assert decide_retry(NO_RETRY, outcome, 1, 0.5) is None


def test_what_a_shutdown_killed_is_retried() -> None:
    """A run that a shutdown ended goes on with its next attempt, while there is one."""
    assert decide_retry(POLICY, Outcome.KILLED, 1, 0.5, by_shutdown=True) == 1.0
    assert decide_retry(POLICY, Outcome.KILLED, 3, 0.5, by_shutdown=True) is None
    assert decide_retry(POLICY, Outcome.SUCCEEDED, 1, 0.5, by_shutdown=True) is None


def test_waits_grow_and_end() -> None:
    """One, two seconds, then the attempts are exhausted."""
    assert [decide_retry(POLICY, Outcome.FAILED, attempt, 0.5) for attempt in (1, 2, 3)] == [1.0, 2.0, None]


def test_no_attempt_number_overflows() -> None:
    """The ten thousandth attempt waits as long as the cap."""
    policy = RetryPolicy(10**6, 1.0, 10.0, 60.0)
    assert decide_retry(policy, Outcome.FAILED, 10_000, 0.5) == 60.0


def test_jitter_lengthens_and_shortens() -> None:
    """The draw decides, within the given part, and never below zero."""
    policy = RetryPolicy(2, 10.0, jitter=0.5)
    assert [decide_retry(policy, Outcome.FAILED, 1, draw) for draw in (0.0, 0.5, 1.0)] == [5.0, 10.0, 15.0]
    assert jittered(10.0, 1.0, 0.0) == 0.0
    assert jittered(10.0, 0.0, 0.9) == 10.0
