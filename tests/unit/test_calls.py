"""The queues of an executor, with a pool that only notes what it is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from procsched import Priority
from procsched.call_options import Options
from procsched.calls import Core
from procsched.future import ProcessFuture
from procsched.queueing import Item
from procsched.workers.base import Pace


class Pool:
    """Takes nothing by itself; `soon` is what its loop is to call."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holds_lock = lambda: False
        self.soon: list[Callable[[], object]] = []
        self.loop = SimpleNamespace(call_soon=self.soon.append)
        self.asked: list[str] = []

    def recall_locked(self) -> None:
        self.asked.append("recall")

    def pump_locked(self) -> None:
        self.asked.append("pump")


def waiting(core: Core, priority: Priority) -> Any:
    """Return a call that waits in its queue, of a function that is known to be brief."""
    options = Options().replace(priority=priority)
    future: ProcessFuture[Any] = ProcessFuture(core, "f", None)
    item = Item(core, future, b"", options, Pace())
    core._queue_locked(item)
    return item


def test_what_goes_behind_a_call_that_comes_back_is_had_back_too() -> None:
    """Of two workers one dies, with an urgent call that was sent ahead: the other is not to go on with a later one."""
    pool = Pool()
    core = Core(pool)  # type: ignore[arg-type]
    urgent, low = waiting(core, Priority.NORMAL), waiting(core, Priority.LOW)
    assert core.next_call(ahead=True) is urgent
    assert core.next_call(ahead=True) is low
    core.take_back(low)
    assert not pool.soon
    assert core.next_call(ahead=True) is low
    core.take_back(urgent)
    (look,) = pool.soon
    look()
    look()  # it may be asked for several at once
    assert pool.asked == ["recall", "pump"]
