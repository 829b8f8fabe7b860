"""Delivery of events: in order, bounded, and without harm from any listener; and the log of events."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from procsched._core.models import ExecutionRecord, TaskEvent, TaskStatus
from procsched._core.outbox import Outbox
from procsched.clock import real_seconds
from procsched.errors import ValidationError
from procsched.event_log import EventLog
from procsched.listeners import STUCK_AFTER, EventDelivery
from tests import support
from tests.support import TIMEOUT


def event(number: int, kind: str = "status", *, record: bool = False, name: str = "job") -> TaskEvent:
    done = ExecutionRecord(1, 1.0, 2.0, True) if record else None
    return TaskEvent(f"task-{number}", name, TaskStatus.RUNNING, done, sequence=number, kind=kind)


def progress(number: int) -> TaskEvent:
    return event(number, "progress")


def with_record(number: int) -> TaskEvent:
    return event(number, record=True)


def numbers(events: Any) -> list[int]:
    return [each.sequence for each in events]


def listener_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("procsched-listener-")]


def finish(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()


class Gated:
    """A listener that stays in each call until the test lets it go on."""

    def __init__(self) -> None:
        self.heard: list[TaskEvent] = []
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()

    def on_task_event(self, event: TaskEvent) -> None:
        self.entered.release()
        self.gate.wait(TIMEOUT)
        self.heard.append(event)


class Calling:
    """A listener that calls a function, and can tell when it was called."""

    def __init__(self, function: Callable[[TaskEvent], object]) -> None:
        self.function = function
        self.called = threading.Semaphore(0)

    def on_task_event(self, event: TaskEvent) -> None:
        try:
            self.function(event)
        finally:
            self.called.release()


class Rig:
    """Makes deliveries, and closes them."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.made: list[EventDelivery] = []
        self.gated = Gated()

    def deliver(self, *listeners: Any, limit: int = 1000) -> EventDelivery:
        delivery = EventDelivery(listeners, limit, self.problems.append)
        self.made.append(delivery)
        return delivery

    def stuck(self, delivery: EventDelivery) -> None:
        """Let the gated listener enter a call, with event 0."""
        delivery.publish(event(0))
        assert self.gated.entered.acquire(timeout=TIMEOUT)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.gated.gate.set()
    for delivery in rig.made:
        delivery.close(TIMEOUT)
    finish(*listener_threads())


# --- the queue -----------------------------------------------------------------------------------------


def drain(outbox: Outbox) -> list[int]:
    found = []
    while (entry := outbox.pop()) is not None:
        found.append(entry[1].sequence)
        outbox.check()
    return found


def fill(limit: int, *events: TaskEvent) -> Outbox:
    outbox = Outbox(limit)
    for each in events:
        outbox.push(each)
        outbox.check()
    return outbox


def test_the_queue_keeps_the_order_across_ranks() -> None:
    """What matters more does not overtake."""
    events = [progress(1), with_record(2), event(3), progress(4), event(5, "missed"), with_record(6)]
    outbox = fill(10, *events)
    assert outbox.oldest() == 1
    assert drain(outbox) == [1, 2, 3, 4, 5, 6]
    assert (outbox.oldest(), outbox.lost, outbox.published, outbox.pop()) == (None, 0, 6, None)


@pytest.mark.parametrize(
    ("events", "kept"),
    [
        ([progress(1), event(2), with_record(3), event(4)], [2, 3, 4]),
        ([event(1), progress(2), progress(3), progress(4)], [1, 3, 4]),
        ([event(1), event(2), with_record(3), with_record(4)], [2, 3, 4]),
        ([with_record(1), with_record(2), with_record(3), with_record(4)], [2, 3, 4]),
        ([with_record(1), with_record(2), with_record(3), event(4)], [1, 2, 3]),
        ([with_record(1), event(2), event(3), progress(4)], [1, 2, 3]),
    ],
)
def test_a_full_queue_gives_up_what_matters_least(events: list[TaskEvent], kept: list[int]) -> None:
    """Progress first, events with a record last, the oldest of a kind first; each loss is counted."""
    outbox = fill(3, *events)
    assert drain(outbox) == kept
    assert outbox.lost == 1


def test_a_dropped_queue_is_counted() -> None:
    """Everything in it is lost."""
    outbox = fill(3, event(1), with_record(2))
    assert outbox.drop_all() == 2
    assert (outbox.size, outbox.lost, outbox.pop()) == (0, 2, None)


# --- delivery ------------------------------------------------------------------------------------------


def test_events_arrive_in_order_at_every_listener(rig: Rig) -> None:
    """Each on a thread of its own, which starts with the first event."""
    names: set[str] = set()
    logs = [EventLog(), EventLog()]
    delivery = rig.deliver(*logs, Calling(lambda event: names.add(threading.current_thread().name)))
    assert listener_threads() == []
    for number in range(500):
        delivery.publish(event(number))
    assert delivery.wait_idle(real_seconds() + TIMEOUT)
    assert delivery.wait_idle(0.0)
    assert [numbers(log.events) for log in logs] == [list(range(500))] * 2
    assert names == {"procsched-listener-3"}
    assert len(listener_threads()) == 3
    assert delivery.close(TIMEOUT)
    assert listener_threads() == []


def test_nobody_listening_costs_nothing(rig: Rig) -> None:
    """No thread, nothing to wait for."""
    delivery = rig.deliver()
    delivery.publish(event(1))
    assert delivery.wait_idle(0.0)
    assert delivery.wait_idle(0.0)
    assert delivery.close(0.0)
    assert listener_threads() == []


def test_a_listener_that_hangs_delays_only_itself(rig: Rig) -> None:
    """The others hear everything, and waiting for the whole ends at its deadline."""
    log = EventLog()
    delivery = rig.deliver(rig.gated, log)
    rig.stuck(delivery)
    for number in range(1, 100):
        delivery.publish(event(number))
    assert log.wait_for(lambda events: len(events) == 100, TIMEOUT)
    assert not delivery.wait_idle(0.0)
    assert not delivery.wait_idle(real_seconds())
    rig.gated.gate.set()
    assert delivery.wait_idle(None)
    assert numbers(rig.gated.heard) == list(range(100))


def test_a_full_queue_loses_and_says_so(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """The records arrive; the loss is counted under the listener's name, logged and reported."""
    delivery = rig.deliver(rig.gated, limit=3)
    rig.stuck(delivery)
    for number in range(1, 5):
        delivery.publish(with_record(number))
        delivery.publish(progress(number + 10))
    assert delivery.lost() == {"Gated": 5}
    rig.gated.gate.set()
    assert delivery.wait_idle(None)
    assert numbers(rig.gated.heard) == [0, 2, 3, 4]
    assert delivery.close(TIMEOUT)
    assert delivery.lost() == {"Gated": 5}
    assert rig.problems == ["listener Gated is too slow: 5 events lost so far"]
    assert "5 events lost" in caplog.text


def test_losses_are_counted_once(rig: Rig) -> None:
    """Also where the listener's thread finds the end by itself, while the close waits for what is queued."""
    delivery = rig.deliver(rig.gated, limit=1)
    rig.stuck(delivery)
    for number in range(1, 5):
        delivery.publish(event(number))
    closer = threading.Thread(target=delivery.close, args=(TIMEOUT,))
    closer.start()
    support.eventually(lambda: delivery._waiting, what="the close waits")
    rig.gated.gate.set()
    finish(closer)
    assert numbers(rig.gated.heard) == [0, 4]
    assert delivery.lost() == {"Gated": 3}


def test_waiting_is_for_what_was_published_before(rig: Rig) -> None:
    """Later losses do not end the wait, later events do not prolong it."""
    delivery = rig.deliver(rig.gated, limit=2)
    rig.stuck(delivery)
    delivery.publish(with_record(1))
    delivery.publish(with_record(2))
    for number in range(10):
        delivery.publish(progress(number))
    assert not delivery.wait_idle(real_seconds())
    rig.gated.gate.set()
    assert delivery.wait_idle(None)
    assert numbers(rig.gated.heard) == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_a_listener_that_raises_goes_on_hearing(
    rig: Rig, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises; the same error is told the first, second, fourth, eighth time."""

    def fail(event: TaskEvent) -> None:
        raise error

    failing, log = Calling(fail), EventLog()
    delivery = rig.deliver(failing, log)
    for number in range(10):
        delivery.publish(event(number))
    assert delivery.wait_idle(None)
    assert len(log) == 10
    for _ in range(10):
        assert failing.called.acquire(blocking=False)
    assert len(rig.problems) == 4
    assert type(error).__name__ in rig.problems[0]
    records = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.task_id for record in records] == ["task-0", "task-1", "task-3", "task-7"]  # type: ignore[attr-defined]


def test_different_errors_are_told_apart(rig: Rig) -> None:
    """By type and place, not by text, and not without bound."""
    types = [type(f"Error{number}", (Exception,), {}) for number in range(150)]

    def fail(event: TaskEvent) -> None:
        raise types[event.sequence](f"at {event.sequence}")

    delivery = rig.deliver(Calling(fail))
    for number in (0, 0, 0, *range(150)):
        delivery.publish(event(number))
    assert delivery.wait_idle(None)
    assert rig.problems[0] == (
        "listener Calling raised Error0: at 0 (time 1); should it do so again, times 2, 4, 8 and so on are told"
    )
    assert len(rig.problems) == 2 + 1 + 99 + 6  # Error0 thrice, 99 more kinds, and 1, 2, 4 ... 32 of the rest


def test_a_listener_may_use_the_delivery(rig: Rig) -> None:
    """It publishes, adds and removes listeners, and is known as a listener's thread."""
    log = EventLog()
    seen: list[bool] = []

    def act(got: TaskEvent) -> None:
        seen.append(delivery.is_listener_thread())
        if got.sequence == 0:
            delivery.add(log)
            delivery.publish(event(1))
            delivery.remove(acting)

    acting = Calling(act)
    delivery = rig.deliver(acting)
    delivery.publish(event(0))
    assert acting.called.acquire(timeout=TIMEOUT)
    assert log.wait_for(lambda events: numbers(events) == [1], TIMEOUT)
    assert seen == [True]
    assert not delivery.is_listener_thread()


def test_listeners_come_and_go(rig: Rig) -> None:
    """One that was added hears from then on; one that was removed loses what was queued, and ends."""
    log = EventLog()
    delivery = rig.deliver(rig.gated)
    rig.stuck(delivery)
    delivery.add(log)
    delivery.add(log)
    delivery.publish(event(1))
    assert log.wait_for(lambda events: numbers(events) == [1], TIMEOUT)
    assert delivery.remove(rig.gated)
    assert not delivery.remove(rig.gated)
    assert delivery.wait_idle(None)
    assert delivery.lost() == {"Gated": 1}
    rig.gated.gate.set()
    assert delivery.remove(log)
    finish(*listener_threads())
    assert numbers(rig.gated.heard) == [0]


def test_removing_a_listener_ends_the_wait_for_it(rig: Rig) -> None:
    """A hanging listener that is taken away holds up nobody."""
    delivery = rig.deliver(rig.gated)
    rig.stuck(delivery)
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(delivery.wait_idle(None)))
    waiter.start()
    delivery.remove(rig.gated)
    finish(waiter)
    assert answers == [True]


def test_closing_delivers_what_is_queued(rig: Rig) -> None:
    """Events after that are not delivered."""
    log = EventLog()
    delivery = rig.deliver(log)
    for number in range(200):
        delivery.publish(event(number))
    assert delivery.close(TIMEOUT)
    delivery.publish(event(200))
    assert numbers(log.events) == list(range(200))
    assert delivery.close(0.0)
    assert delivery.wait_idle(0.0)


def test_closing_does_not_wait_for_ever(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A listener that hangs is left behind at the timeout, with what it did not hear counted and told."""
    delivery = rig.deliver(rig.gated)
    rig.stuck(delivery)
    delivery.publish(event(1))
    assert not delivery.close(0.0)
    assert delivery.lost() == {"Gated": 1}
    assert "listener Gated did not finish in time: 1 events are not delivered" in caplog.text
    rig.gated.gate.set()
    finish(*listener_threads())
    assert numbers(rig.gated.heard) == [0]


def test_a_listener_may_close(rig: Rig) -> None:
    """It waits for the others, not for itself, and hears the rest of its own events."""
    log, answers = EventLog(), []
    ready = threading.Event()
    heard: list[int] = []

    def act(got: TaskEvent) -> None:
        heard.append(got.sequence)
        if got.sequence == 0:
            ready.wait(TIMEOUT)
            answers.append(delivery.close(TIMEOUT))

    delivery = rig.deliver(Calling(act), log)
    for number in range(5):
        delivery.publish(event(number))
    ready.set()
    finish(*listener_threads())
    assert answers == [True]
    assert heard == numbers(log.events) == [0, 1, 2, 3, 4]
    delivery.publish(event(5))
    assert delivery.wait_idle(0.0)


def test_who_is_stuck_is_known(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """By name, with the seconds that the call has taken so far."""
    now = real_seconds()
    monkeypatch.setattr("procsched.listeners.real_seconds", lambda: now)
    delivery = rig.deliver(rig.gated, EventLog())
    rig.stuck(delivery)
    assert delivery.stuck() == []
    now += STUCK_AFTER
    # The other listener may be at its event still, on a machine that has much to do.
    support.eventually(lambda: [name for name, _seconds in delivery.stuck()] == ["Gated"])
    assert dict(delivery.stuck())["Gated"] >= STUCK_AFTER


def test_publishing_from_many_threads_loses_nothing(rig: Rig) -> None:
    """Each publisher's events arrive once and in its order, with idle moments between."""
    log = EventLog()
    delivery = rig.deliver(log)

    def publish(first: int) -> None:
        for number in range(first, first + 300):
            delivery.publish(event(number))
            if number % 50 == 0:
                assert delivery.wait_idle(real_seconds() + TIMEOUT)

    threads = [threading.Thread(target=publish, args=(first,)) for first in (0, 1000, 2000)]
    for thread in threads:
        thread.start()
    finish(*threads)
    assert delivery.close(TIMEOUT)
    for first in (0, 1000, 2000):
        mine = [number for number in numbers(log.events) if first <= number < first + 1000]
        assert mine == list(range(first, first + 300))


@pytest.mark.parametrize("listener", [print, None, 5, EventLog, object()])
def test_what_is_no_listener_is_refused_by_name(rig: Rig, listener: Any) -> None:
    """The message names the parameter and the method."""
    with pytest.raises(ValidationError, match=r"listeners must have a method on_task_event"):
        rig.deliver(listener)


def test_one_listener_is_no_sequence() -> None:
    """It is told what to write instead."""
    with pytest.raises(ValidationError, match="put the one listener into a list"):
        EventDelivery(EventLog(), 5, print)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="listeners must be a sequence"):
        EventDelivery(print, 5, print)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1, 1.5, None, True])
def test_limits_are_whole_numbers(limit: Any) -> None:
    """Of at least one."""
    with pytest.raises(ValidationError, match="event_limit"):
        EventDelivery([], limit, print)
    with pytest.raises(ValidationError, match="limit"):
        EventLog(limit)


# --- the log of events ---------------------------------------------------------------------------------


def test_the_log_keeps_events() -> None:
    """As a tuple that later events do not change; an empty log counts as a log."""
    log = EventLog()
    assert log
    assert len(log) == 0
    log.on_task_event(event(1))
    events = log.events
    log.on_task_event(event(2))
    assert (numbers(events), numbers(log.events), len(log)) == ([1], [1, 2], 2)
    log.clear()
    assert (log.events, len(log)) == ((), 0)


def test_the_log_finds_runs() -> None:
    """Those are the events with a record, of one name or of all."""
    log = EventLog()
    for each in (event(1), event(2, record=True), event(3, record=True, name="other"), progress(4)):
        log.on_task_event(each)
    assert numbers(log.runs()) == [2, 3]
    assert numbers(log.runs("other")) == [3]
    assert log.runs("nobody") == ()


def test_a_full_log_forgets_the_oldest() -> None:
    """And counts them."""
    log = EventLog(2)
    for number in range(5):
        log.on_task_event(event(number))
    assert (numbers(log.events), log.dropped) == ([3, 4], 3)


def test_wait_for_asks_at_once_and_whenever_something_arrives() -> None:
    """With the events as a tuple and no lock held, so the predicate may use the log."""
    log = EventLog()
    asked: list[int] = []
    waiting = threading.Event()

    def predicate(events: tuple[TaskEvent, ...]) -> bool:
        asked.append(len(events))
        waiting.set()
        return len(log.runs("job")) == 2

    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(log.wait_for(predicate, None)))
    waiter.start()
    assert waiting.wait(TIMEOUT)
    for number in range(2):
        log.on_task_event(with_record(number))
    finish(waiter)
    assert answers == [True]
    assert (asked[0], asked[-1]) == (0, 2)
    assert log.wait_for(predicate, 0.0)


def test_wait_for_gives_up_at_its_timeout() -> None:
    """Also at zero, and with what never becomes true."""
    log = EventLog()
    log.on_task_event(event(1))
    assert not log.wait_for(lambda events: False, 0.0)
    assert not log.wait_for(lambda events: len(events) > 1, 0.001)
    assert not log.wait_for(lambda events: False, timedelta(milliseconds=1))
    with pytest.raises(ValidationError, match="timeout must be a number of seconds or a timedelta"):
        log.wait_for(lambda events: False, "1")  # type: ignore[arg-type]


def test_wait_for_passes_on_what_the_predicate_raises() -> None:
    """To its caller, and the log stays usable."""
    log = EventLog()
    with pytest.raises(ZeroDivisionError):
        log.wait_for(lambda events: 1 / 0, 0.0)
    log.on_task_event(event(1))
    assert len(log) == 1


class _RaisingGate:
    """A gate whose first release is interrupted, as by a signal handler that raises."""

    def __init__(self, gate: threading.Lock) -> None:
        self.gate = gate
        self.armed = True

    def __getattr__(self, name: str) -> object:
        return getattr(self.gate, name)

    def release(self) -> None:
        """Open the gate, but not the first time."""
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        self.gate.release()


def test_an_interrupt_while_a_listener_is_woken_does_not_put_it_to_sleep() -> None:
    """A KeyboardInterrupt between noticing that a listener sleeps and waking it delays it to the next event."""
    heard = EventLog()
    delivery = EventDelivery([heard], 100, lambda text: None)
    delivery.publish(event(0))
    assert delivery.wait_idle(real_seconds() + TIMEOUT)
    outlet = delivery._outlets[0]
    while not outlet.parked:
        threading.Event().wait(0.001)
    outlet.gate = _RaisingGate(outlet.gate)
    with pytest.raises(KeyboardInterrupt):
        delivery.publish(event(1))
    delivery.publish(event(2))
    assert delivery.wait_idle(real_seconds() + TIMEOUT)
    assert len(heard) == 3
    assert delivery.close(TIMEOUT)
