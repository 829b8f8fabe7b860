"""Limits as values: what is refused, which of two holds, how they are told."""

from __future__ import annotations

import pickle
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from procsched import Limits, Outcome, Task, ValidationError
from procsched._core import limits as words
from procsched.child.protocol import CHILD_PEAK_BEFORE, USED_BEFORE
from procsched.child.worker import Worker
from procsched.stores.codec import read_settings, settings_text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory", 0),
        ("memory", 1.5),
        ("memory", True),
        ("memory", "1G"),
        ("cpu_seconds", 0),
        ("cpu_seconds", -1),
        ("cpu_seconds", float("nan")),
        ("cpu_seconds", float("inf")),
        ("cpu_seconds", True),
        ("cpu_seconds", "1"),
        ("processes", 0),
        ("open_files", 3),
        ("file_size", -1),
        ("output", -1),
        ("result", 0.5),
    ],
)
def test_a_wrong_value_is_refused_by_name(field: str, value: Any) -> None:
    """With the field in the message."""
    with pytest.raises(ValidationError, match=field):
        Limits(**{field: value})


def test_cpu_seconds_may_be_a_timedelta() -> None:
    """As everywhere where seconds are taken."""
    assert Limits(cpu_seconds=timedelta(milliseconds=2500)) == Limits(cpu_seconds=2.5)  # type: ignore[arg-type]


def test_limits_are_values() -> None:
    """Frozen, compared by their fields, hashable; they survive pickling."""
    limits = Limits(memory=1 << 30, cpu_seconds=5)
    assert limits == Limits(memory=1 << 30, cpu_seconds=5.0) == pickle.loads(pickle.dumps(limits))
    assert len({limits, Limits(memory=1 << 30, cpu_seconds=5)}) == 1
    with pytest.raises(AttributeError):
        limits.memory = 5  # type: ignore[misc]


def test_of_two_the_tighter_one_holds_for_each_field() -> None:
    """None is no limit, on either side."""
    first, second = Limits(memory=2 << 20, output=5), Limits(memory=1 << 20, result=7)
    both = Limits(memory=1 << 20, output=5, result=7)
    assert words.tighter(first, second) == words.tighter(second, first) == both
    assert words.tighter(first, None) == words.tighter(None, first) == first
    assert words.tighter(None, None) is None


@pytest.mark.parametrize(
    ("name", "value", "used", "error", "label"),
    [
        ("memory", 512 << 20, None, "exceeded its memory limit of 512 MiB", "memory=536870912"),
        (
            "memory",
            3 << 29,
            2 << 30,
            "exceeded its memory limit of 1.5 GiB (it took 2 GiB)",
            "memory=1610612736",
        ),
        (
            "cpu_seconds",
            2.5,
            2.51,
            "exceeded its cpu_seconds limit of 2.5 s (it took 2.51 s)",
            "cpu_seconds=2.5",
        ),
        ("cpu_seconds", 86400.0, None, "exceeded its cpu_seconds limit of 86400 s", "cpu_seconds=86400"),
        ("processes", 3, 5, "exceeded its processes limit of 3 (it had 5)", "processes=3"),
        ("result", 10, 20, "exceeded its result limit of 10 bytes (it took 20 bytes)", "result=10"),
    ],
)
def test_what_is_said_of_a_limit(name: str, value: float, used: float | None, error: str, label: str) -> None:
    """Name and value, in words for a person, and in a form to look for."""
    assert words.exceeded(name, value, used) == (Outcome.LIMIT_EXCEEDED, error)
    assert words.label(name, value) == label


def test_a_worker_asks_for_its_usage_every_ten_milliseconds() -> None:
    """So that of the CPU time of short runs, which are not asked for theirs, a long one behind them has little."""
    worker: Any = Worker.__new__(Worker)
    asked: list[float] = []

    def perform(_frame: object) -> tuple[list[bytes], bool]:
        worker.began += 0.0005
        return [], True

    def usage() -> tuple[float, int]:
        asked.append(worker.began)
        return 0.0, 0

    worker.began = worker.ask_at = worker.backstop = 0.0
    worker.perform, worker.channel = perform, SimpleNamespace(write=lambda *_: None)
    worker.surroundings = SimpleNamespace(usage=usage, used=1.5, child_peak=4096)
    worker.page, worker.times = [0] * 8, [0.0] * 8
    for number in range(1, 401):
        assert worker.run(SimpleNamespace(number=number))
    assert 19 <= len(asked) <= 21
    assert (worker.times[USED_BEFORE], worker.page[CHILD_PEAK_BEFORE]) == (1.5, 4096)


@pytest.mark.parametrize("limits", [None, Limits(memory=1 << 30, cpu_seconds=2.5)])
def test_a_store_keeps_limits(limits: Limits | None) -> None:
    """A task has the same ones after a restart."""
    assert read_settings(settings_text(Task("t", "t", "action", limits=limits))).get("limits") == limits
