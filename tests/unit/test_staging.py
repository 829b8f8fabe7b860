"""How many runs are stored ahead of a free worker."""

from __future__ import annotations

import math

import pytest

from procsched._core.staging import MOST_BEHIND, SHORT, decide_room, is_short


@pytest.mark.parametrize(
    ("free", "running", "commit", "room"),
    [
        (2, [], 0.1, 2),
        (0, [0.002, 0.002], 0.0, 2),  # nothing was written yet
        (0, [0.002, 0.002], 0.0003, 2),  # a fast disk
        (1, [0.00001], 0.0004, 2),  # a run of a microsecond takes more than that
        (0, [0.002, 0.002], 0.0027, 4),  # an ordinary disk
        (0, [0.00001, 0.002], 0.0027, 8),
        (1, [0.015], 0.01, 2),
        (0, [0.0, 0.0], 1.0, 2 * MOST_BEHIND),  # one that hangs
        (1, [0.0, SHORT * 1.01], 1.0, 1),
        (0, [0.0, math.inf], 1.0, 0),  # nobody knows
        (0, [0.0, math.nan], 1.0, 0),
    ],
)
def test_room_is_what_begins_during_a_commit(
    free: int, running: list[float], commit: float, room: int
) -> None:
    """One for each free worker; behind runs that are all short as many as begin while one commit is under way."""
    assert decide_room(free, running, commit) == room


def test_short_is_what_is_known_to_be() -> None:
    """Not what nobody knows."""
    assert [is_short(seconds) for seconds in (0.0, SHORT, SHORT * 1.01, math.inf)] == [
        True,
        True,
        False,
        False,
    ]
