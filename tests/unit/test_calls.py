"""The queues of an executor, with a pool that only notes what it is asked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from procsched import Outcome, Priority, RetryPolicy
from procsched.call_options import Options
from procsched.calls import Core
from procsched.future import ProcessFuture
from procsched.queueing import HANDED, Item
from procsched.workers.base import Ending, Pace


class Pool:
    """Takes nothing by itself; `soon` is what its loop is to call."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holds_lock = lambda: False
        self.soon: list[Callable[[], object]] = []
        self.loop = SimpleNamespace(call_soon=self.soon.append)
        self.asked: list[str] = []
        self.listened: set[object] = set()

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


def test_another_attempt_is_timed_on_the_thread_of_the_loop() -> None:
    """The end of one may be booked by a thread that waits for its result; the alarms are the loop's alone."""
    pool = Pool()
    timed: list[Callable[[], object]] = []
    pool.loop.call_at = lambda _at, function: timed.append(function)
    core = Core(pool)  # type: ignore[arg-type]
    options = Options().replace(retry=RetryPolicy(2, initial_backoff=0.0))
    item = Item(core, ProcessFuture(core, "f", None), b"", options, Pace())
    item.state = HANDED
    core.on_ended(item, Ending(Outcome.FAILED, "ValueError: no"))
    assert not timed
    (soon,) = pool.soon
    soon()
    timed[0]()
    assert core.next_call() is item
    assert item.attempt == 2
