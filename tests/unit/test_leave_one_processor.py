"""A sandboxed process leaves the first of its processors to others, where it can."""

from __future__ import annotations

import os

import pytest

from procsched.sandbox import inside

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="there are sandboxes on Linux alone"
)


@pytest.mark.parametrize(
    ("mine", "asked"), [({5, 2, 3}, [(0, [3, 5])]), ({0, 1}, [(0, [1])]), ({7}, [])], ids=str
)
def test_the_first_is_left(
    monkeypatch: pytest.MonkeyPatch, mine: set[int], asked: list[tuple[int, list[int]]]
) -> None:
    """Of those that the process may use itself, and never the last one that it has."""
    found: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: mine)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, wanted: found.append((pid, wanted)))
    inside.leave_one_processor()
    assert found == asked


def test_a_refusal_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter around the program may refuse it: the job runs on all of them then."""

    def refuse(_pid: int, _wanted: list[int]) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    inside.leave_one_processor()
