"""Records that a user makes: a test of a schedule, or of what reads a history, needs some."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from procsched import ExecutionRecord, Outcome, ValidationError


def _says(record: ExecutionRecord) -> tuple[Outcome, bool, bool]:
    assert type(record.outcome) is Outcome
    return record.outcome, record.ok, record.timed_out


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("ok", [True, False])
@pytest.mark.parametrize("timed_out", [True, False])
def test_a_given_outcome_decides(outcome: Outcome, ok: bool, timed_out: bool) -> None:
    """A record is ok exactly when it SUCCEEDED, and timed out exactly when TIMED_OUT, whatever else was given."""
    expected = outcome, outcome is Outcome.SUCCEEDED, outcome is Outcome.TIMED_OUT
    for given in (outcome, outcome.value):
        assert _says(ExecutionRecord(1, 0, 1, ok, None, timed_out, outcome=cast("Any", given))) == expected
    succeeded = ExecutionRecord(1, 0, 1, ok=True)
    assert _says(replace(cast("Any", succeeded), outcome=outcome)) == expected


@pytest.mark.parametrize(
    ("ok", "timed_out", "outcome"),
    [
        (True, False, Outcome.SUCCEEDED),
        (False, False, Outcome.FAILED),
        (False, True, Outcome.TIMED_OUT),
        (True, True, Outcome.SUCCEEDED),
    ],
)
def test_an_outcome_that_is_not_given_follows(ok: bool, timed_out: bool, outcome: Outcome) -> None:
    """Who gives the classic fields alone has an outcome as well, and no contradiction."""
    expected = outcome, outcome is Outcome.SUCCEEDED, outcome is Outcome.TIMED_OUT
    assert _says(ExecutionRecord(1, 0, 1, ok, timed_out=timed_out)) == expected


def test_an_unknown_outcome_is_refused() -> None:
    """It is named, with those that there are."""
    with pytest.raises(ValidationError, match=r"outcome must be one of .*Outcome\.LOST, not 'gone'"):
        ExecutionRecord(1, 0, 1, False, outcome=cast("Any", "gone"))
