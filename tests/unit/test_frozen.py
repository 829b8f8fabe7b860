"""Frozen value classes, and their open twins."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any, cast

import pytest

from procsched import ExecutionRecord, OneTime, Task, TaskEvent
from procsched._core.frozen import twin
from tests.unit.scheduling import START, simulated


def test_a_filled_twin_becomes_an_instance_like_any_other() -> None:
    """It compares equal to one that was made by a call, and refuses assignment."""
    made: Any = twin(OneTime)()
    made.at = START
    made.__class__ = OneTime
    assert made == OneTime(START)
    assert hash(made) == hash(OneTime(START))
    with pytest.raises(FrozenInstanceError):
        made.at = 0.0


def test_what_a_run_makes_lacks_no_field() -> None:
    """Tasks, records and events are filled by hand: each equals what a call makes of the same values."""
    with simulated() as (scheduler, _clock, log):
        task = scheduler.schedule("job", divmod, OneTime(START), args=(7, 2))
        lost = scheduler.schedule("lost", divmod, OneTime(START), args=(7, 0))
        scheduler.engine.tell(None, START, None, "health", "something is wrong")
        scheduler.wait_idle()
    records = [record for handle in (task, lost) for record in handle.history]
    made: list[tuple[type, Any]] = [(Task, task.task), (Task, lost.task)]
    made += [(ExecutionRecord, record) for record in records]
    made += [(TaskEvent, event) for event in log.events]
    assert len(made) > 8
    for cls, value in made:
        assert type(value) is cls
        assert replace(cast("Any", value)) == value
