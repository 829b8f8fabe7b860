"""A sandboxed process leaves the first of its processors to others, where it can."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from procsched import Sandbox
from procsched.sandbox import inside
from procsched.sandbox.prepare import Prepared

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
    assert inside.leave_one_processor() is bool(asked)
    assert found == asked


def test_a_refusal_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A filter around the program may refuse it: the job runs on all of them then."""

    def refuse(_pid: int, _wanted: list[int]) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    assert not inside.leave_one_processor()


@pytest.mark.parametrize(
    ("layers", "leaves_one"), [({"processors": "all but one"}, True), ({}, False)], ids=str
)
def test_the_report_says_what_the_process_says(layers: dict[str, str], leaves_one: bool) -> None:
    """Not what it was asked for: that may have been refused, or there is but one processor."""
    plan: Any = SimpleNamespace(kept={}, given_up={})
    found: Any = SimpleNamespace(python="", reads=(), search=())
    program: Any = None
    report = Prepared(Sandbox(), plan, program, found, layers, None).report
    assert report.leaves_one is leaves_one
    assert ("on all processors but one" in str(report)) is leaves_one
