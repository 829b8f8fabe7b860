"""When the next worker may be started: what fails is not repeated in haste, and what works is not punished."""

from __future__ import annotations

import pytest

from procsched._core.backoff import FIRST, LAST, MOST_EARLY_DEATHS, Backoff


def test_each_failure_doubles_the_wait_up_to_its_most() -> None:
    """From the second on the text says how many there were; the first is remembered with its time."""
    backoff = Backoff()
    waits = []
    for number in range(8):
        text = backoff.failed(100.0 + number, "no memory")
        waits.append(backoff.not_before - (100.0 + number))
        assert ("times in a row" in text) == (number > 0)
        assert f"started in {backoff.seconds:g} s" in text
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, LAST, LAST])
    assert (backoff.since, backoff.last, backoff.failures) == (100.0, "no memory", 8)


def test_a_worker_that_is_ready_ends_the_wait() -> None:
    """The next failure is a first one again."""
    backoff = Backoff()
    backoff.failed(1.0, "why")
    backoff.failed(2.0, "why")
    backoff.started()
    assert (backoff.seconds, backoff.failures) == (0.0, 0)
    backoff.failed(50.0, "again")
    assert (backoff.seconds, backoff.since) == (FIRST, 50.0)


def test_early_deaths_count_from_the_third_on() -> None:
    """Being ready does not end that: a worker has to run something first."""
    backoff = Backoff()
    told = [backoff.died_early(float(number), "a worker died") for number in range(MOST_EARLY_DEATHS)]
    assert told[:-1] == [""] * (MOST_EARLY_DEATHS - 1)
    assert told[-1] == "a worker died, 3 times in a row; the next is started in 0.1 s at the earliest"
    backoff.started()
    assert backoff.seconds == FIRST
    backoff.served()
    assert (backoff.seconds, backoff.early_deaths) == (0.0, 0)


def test_a_death_beside_a_failure_is_no_trouble_of_its_own() -> None:
    """One of each is not told twice, and the wait after the failure stays as it is."""
    backoff = Backoff()
    backoff.failed(1.0, "why")
    assert backoff.died_early(2.0, "a worker died") == ""
    assert (backoff.seconds, backoff.since) == (FIRST, 1.0)
    backoff.served()  # what ran something does not make the start that failed succeed
    assert backoff.seconds == FIRST


@pytest.mark.parametrize("served", [True, False])
def test_a_helper_that_is_lost_has_its_successor_wait(served: bool) -> None:
    """Longer from time to time, unless a worker of it has run something in between."""
    backoff = Backoff()
    for number in range(4):
        text = backoff.helper_lost(10.0 * number, "the helper has ended", served=served)
        backoff.started()
    assert ("4 times in a row" in text) == (not served)
    assert backoff.seconds == (0.0 if served else pytest.approx(2 * FIRST))
    assert backoff.early_deaths == (0 if served else 4)
