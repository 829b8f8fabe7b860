"""From a failed attempt to the next one."""

from __future__ import annotations

import sys

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


@pytest.mark.parametrize("first", [5e-324, 1e-300, 1.0])
@pytest.mark.parametrize("multiplier", [1, 1.0 + 2**-52, 2, 10, 1e300, sys.float_info.max])
@pytest.mark.parametrize("most", [60.0, sys.float_info.max])
def test_no_policy_overflows(first: float, multiplier: float, most: float) -> None:
    """At the ends of what floats can say the waits are as anywhere else: they grow up to the cap."""
    policy = RetryPolicy(3, first, multiplier, most)
    attempts = [*range(1, 3000), 10**6, 10**18, 10**400]
    waits = [policy.backoff(attempt) for attempt in attempts]
    assert waits[0] == first
    assert waits == sorted(waits)
    assert waits[-1] == (first if multiplier == 1 else most)


@pytest.mark.parametrize(
    ("policy", "attempt", "wait"),
    [
        (RetryPolicy(3, 1.0, 2.0, sys.float_info.max), 1024, 2.0**1023),
        (RetryPolicy(3, 1.0, 2.0, sys.float_info.max), 1025, sys.float_info.max),
        (RetryPolicy(3, 5e-324, 2.0), 1026, 2.0**-49),
        (RetryPolicy(3, 5e-324, 2.0), 1081, 60.0),
        (RetryPolicy(3, 1.0, 2, 8.0), 4, 8.0),
    ],
)
def test_a_wait_is_right_where_its_factor_is_no_float(policy: RetryPolicy, attempt: int, wait: float) -> None:
    """It is the first one, so many times multiplied, and not the cap before that is reached."""
    assert policy.backoff(attempt) == pytest.approx(wait, rel=1e-12)


def test_jitter_lengthens_and_shortens() -> None:
    """The draw decides, within the given part, and never below zero."""
    policy = RetryPolicy(2, 10.0, jitter=0.5)
    assert [decide_retry(policy, Outcome.FAILED, 1, draw) for draw in (0.0, 0.5, 1.0)] == [5.0, 10.0, 15.0]
    assert jittered(10.0, 1.0, 0.0) == 0.0
    assert jittered(10.0, 0.0, 0.9) == 10.0
