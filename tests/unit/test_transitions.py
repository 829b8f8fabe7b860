"""The table of transitions, pair by pair."""

from __future__ import annotations

import itertools

import pytest

from procsched import SchedulerStateError, TaskStatus
from procsched._core.transitions import TRANSITIONS, TaskChange, next_status

S, C = TaskStatus, TaskChange

# Written down once more, from the contract: what is not here must be refused.
EXPECTED = {
    (S.SCHEDULED, C.START): S.RUNNING,
    (S.SCHEDULED, C.PAUSE): S.PAUSED,
    (S.SCHEDULED, C.CANCEL): S.CANCELLED,
    (S.SCHEDULED, C.FAIL): S.FAILED,
    (S.SCHEDULED, C.FINISH): S.SUCCEEDED,
    (S.SCHEDULED, C.SCHEDULE): S.SCHEDULED,
    (S.RUNNING, C.NEXT): S.SCHEDULED,
    (S.RUNNING, C.FINISH): S.SUCCEEDED,
    (S.RUNNING, C.RETRY): S.RETRYING,
    (S.RUNNING, C.FAIL): S.FAILED,
    (S.RUNNING, C.PAUSE): S.PAUSED,
    (S.RUNNING, C.CANCEL): S.CANCELLED,
    (S.RETRYING, C.START): S.RUNNING,
    (S.RETRYING, C.PAUSE): S.PAUSED,
    (S.RETRYING, C.CANCEL): S.CANCELLED,
    (S.PAUSED, C.SCHEDULE): S.SCHEDULED,
    (S.PAUSED, C.REJOIN): S.RUNNING,
    (S.PAUSED, C.RETRY): S.RETRYING,
    (S.PAUSED, C.FINISH): S.SUCCEEDED,
    (S.PAUSED, C.FAIL): S.FAILED,
    (S.PAUSED, C.CANCEL): S.CANCELLED,
    (S.PAUSED, C.RECORD): S.PAUSED,
    (S.FAILED, C.REVIVE): S.SCHEDULED,
    (S.CANCELLED, C.RECORD): S.CANCELLED,
}


@pytest.mark.parametrize(("status", "change"), list(itertools.product(TaskStatus, TaskChange)))
def test_every_pair(status: TaskStatus, change: TaskChange) -> None:
    """Each pair leads where the contract says, or is refused."""
    expected = EXPECTED.get((status, change))
    if expected is not None:
        assert next_status(status, change) is expected
    else:
        with pytest.raises(SchedulerStateError, match=status.value):
            next_status(status, change)


def test_every_status_has_a_row_and_terminal_ones_do_not_start() -> None:
    """The table is whole; nothing starts, pauses or cancels from a terminal status."""
    assert set(TRANSITIONS) == set(TaskStatus)
    for status in TaskStatus:
        if status.is_terminal:
            assert set(TRANSITIONS[status]) <= {C.REVIVE, C.RECORD}
