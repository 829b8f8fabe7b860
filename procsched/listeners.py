"""How listeners hear of events: in order, each on a thread of its own, at no risk for anybody else.

    scheduler, under its lock --publish--> queue of a listener --its thread--> on_task_event
                                      '--> queue of the next one, and so on

A listener that is slow, raises or hangs delays and loses only its own events, and the losses are counted.
"""

from __future__ import annotations

import logging
import threading

from procsched._core.checks import whole_number
from procsched._core.failures import describe
from procsched._core.health import STUCK_AFTER
from procsched._core.outbox import Outbox
from procsched._interrupts import owner_check
from procsched._logs import say
from procsched.clock import real_seconds
from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from procsched._core.models import TaskEvent
    from procsched._parts import Inspection
    from procsched.protocols import TaskListener

KINDS_OF_ERROR = 100  # so many different errors of a listener are told apart


class _Outlet:
    """One listener with its queue and its thread. What changes is guarded by the delivery's `lock`."""

    def __init__(self, listener: TaskListener, number: int, limit: int) -> None:
        self.listener = listener
        self.name = type(listener).__qualname__
        self.number = number
        self.outbox = Outbox(limit)
        self.handling = 0  # number of the event that the listener has now; 0 for none
        self.since = 0.0  # real steady seconds: when it got it
        self.removed = False
        self.parked = False
        self.thread: threading.Thread | None = None
        # Closed while there is nothing to do. A bare lock wakes a thread at a third of a condition's cost.
        self.gate = threading.Lock()
        self.gate.acquire()
        self.loss_told = 0  # touched by the outlet's thread only, as is the next one
        self.errors: dict[object, int] = {}

    def begin_anew(self) -> None:
        """There is no thread any more. The event that it was handling is the parent's."""
        self.handling = 0
        self.parked = False
        self.thread = None
        self.gate = threading.Lock()
        self.gate.acquire()

    def wake(self) -> None:
        """Let the thread look again. One step, so that a signal handler that raises cannot come in between."""
        if self.parked and self.gate.locked():
            self.gate.release()

    def is_past(self, number: int) -> bool:
        """Return whether event `number` and all before it are handled or lost."""
        if self.removed or 0 < self.handling <= number:
            return self.removed
        oldest = self.outbox.oldest()
        return oldest is None or oldest > number


class EventDelivery:
    """Hands events to the listeners of one scheduler.

    Args:
        listeners: objects with `on_task_event(event)`.
        limit: events queued for one listener before some are lost: progress first, those with a record
            last.
        on_problem: hears in words that a listener raised or lost events; called from the listener's thread,
            with no lock held.
    Raises:
        ValidationError: one of `listeners` has no `on_task_event`, or `limit` is below 1.
    Thread safety: call from anywhere. `publish` is in order if its callers are.
    """

    def __init__(
        self, listeners: Iterable[TaskListener], limit: int, on_problem: Callable[[str], None]
    ) -> None:
        self._limit = whole_number("event_limit", limit)
        self._on_problem = on_problem
        # `lock` guards the fields below and those of the outlets. `publish` takes it with the scheduler's
        # lock held, so under it nothing is called that could wait: no listener, no logging, no `on_problem`.
        # Reentrant only so that a signal handler can tell that it interrupted a holder.
        self._outlets: tuple[_Outlet, ...] = ()  # replaced as a whole; guarded by lock
        self.after_fork()
        self._waiting = 0  # how many do; guarded by lock
        self._lost_before: dict[str, int] = {}  # by listeners that are gone; guarded by lock
        self._started = 0  # numbers for thread names; guarded by lock
        self._closed = False  # guarded by lock
        if callable(getattr(listeners, "on_task_event", None)):
            raise ValidationError("listeners must be a sequence: put the one listener into a list")
        if not hasattr(listeners, "__iter__"):
            raise ValidationError(f"listeners must be a sequence of listeners, not {listeners!r}")
        for listener in listeners:
            self.add(listener)

    def after_fork(self) -> None:
        """In a fork of the process: a thread that is not there may have held the lock, and no listener has one."""
        self.lock = threading.RLock()
        self.holds_lock = owner_check(self.lock)
        self._handled = threading.Condition(self.lock)  # wait_idle and close wait here
        for outlet in self._outlets:
            outlet.begin_anew()

    def add(self, listener: TaskListener) -> None:
        """Tell `listener` of every event from now on. One that is there already is not added again.

        Raises:
            ValidationError: it has no `on_task_event`.
        """
        if isinstance(listener, type) or not callable(getattr(listener, "on_task_event", None)):
            raise ValidationError(
                f"listeners must have a method on_task_event(event); {listener!r} has none: "
                "write a small class around a function, or use EventLog()"
            )
        with self.lock:
            if any(outlet.listener is listener for outlet in self._outlets):
                return
            self._started += 1
            outlet = _Outlet(listener, self._started, self._limit)
            self._outlets = (*self._outlets, outlet)

    def remove(self, listener: TaskListener) -> bool:
        """Tell `listener` nothing more. Return False if it was not there.

        What is queued for it is lost; a call that is going on is not waited for.
        """
        with self.lock:
            outlet = next((outlet for outlet in self._outlets if outlet.listener is listener), None)
            if outlet is None:
                return False
            self._retire_locked(outlet)
            return True

    def publish(self, event: TaskEvent) -> None:
        """Queue `event` for every listener. Never blocks; costs nothing where nobody listens."""
        if not self._outlets:
            return
        with self.lock:
            for outlet in self._outlets:
                outlet.outbox.push(event)
                if outlet.parked:
                    outlet.wake()
                elif outlet.thread is None:
                    self._start_locked(outlet)

    def wait_idle(self, deadline: float | None) -> bool:
        """Wait until what has been published before is handled or lost.

        Args:
            deadline: `procsched.clock.real_seconds` at which to give up; None for never.
        Returns:
            False when the deadline came first. Never call it from a listener: see `is_listener_thread`.
        """
        with self.lock:
            return self._wait_locked(self._outlets, deadline)

    def is_listener_thread(self) -> bool:
        """Return whether the calling thread is that of a listener, which must not wait for itself."""
        thread = threading.current_thread()
        return any(outlet.thread is thread for outlet in self._outlets)

    def lost(self) -> dict[str, int]:
        """Return how many events each listener has lost, by its name; those that lost none are left out."""
        with self.lock:
            counts = dict(self._lost_before)
            for outlet in self._outlets:
                if outlet.outbox.lost:
                    counts[outlet.name] = counts.get(outlet.name, 0) + outlet.outbox.lost
        return counts

    def stuck(self) -> list[tuple[str, float]]:
        """Return the listeners that have been in one call for a second or more, with its seconds so far."""
        now = real_seconds()
        with self.lock:
            busy = [(outlet.name, now - outlet.since) for outlet in self._outlets if outlet.handling]
        return [(name, seconds) for name, seconds in busy if seconds >= STUCK_AFTER]

    def inspect(self, inspection: Inspection) -> None:
        """Say how each listener is. Takes no lock."""
        for outlet in self._outlets:
            since = outlet.since if outlet.handling else 0.0
            inspection.add_thread(f"listener {outlet.name}", outlet.thread, since)

    def close(self, timeout: float) -> bool:
        """Deliver what is queued, and end the threads. Later events are not delivered.

        What is left at `timeout` is lost, and said in the log. From a listener, its own thread is not waited
        for: it delivers the rest by itself, and ends.

        Args:
            timeout: real seconds.
        Returns:
            True when everything was delivered and all threads but the calling one have ended.
        """
        end = real_seconds() + timeout
        current = threading.current_thread()
        unfinished: list[tuple[str, int]] = []
        with self.lock:
            self._closed = True
            others = [outlet for outlet in self._outlets if outlet.thread is not current]
            done = self._wait_locked(others, end)
            for outlet in others:
                lost = self._retire_locked(outlet)
                if lost or outlet.handling:
                    unfinished.append((outlet.name, lost))
        for name, lost in unfinished:
            say(
                logging.WARNING, "listener %s did not finish in time: %d events are not delivered", name, lost
            )
        for outlet in others:
            if outlet.thread is not None:
                outlet.thread.join(max(0.0, end - real_seconds()))
                done = done and not outlet.thread.is_alive()
        return done

    def _wait_locked(self, outlets: Sequence[_Outlet], end: float | None) -> bool:
        targets = [(outlet, outlet.outbox.published) for outlet in outlets]
        for outlet, number in targets:
            if outlet.thread is None and not outlet.is_past(number):
                self._start_locked(outlet)  # there was none left for it, or this is a fork
        self._waiting += 1
        try:
            while not all(outlet.is_past(number) for outlet, number in targets):
                left = None if end is None else end - real_seconds()
                if left is not None and left <= 0.0:
                    return False
                self._handled.wait(left)
            return True
        finally:
            self._waiting -= 1

    def _retire_locked(self, outlet: _Outlet) -> int:
        """Forget the outlet; its thread ends after the call it is in. Return how many events that loses."""
        if outlet not in self._outlets:
            return 0  # its losses are counted
        # First: where a signal handler raises before it is forgotten, the next one to close does it again.
        outlet.removed = True
        outlet.wake()
        self._outlets = tuple(other for other in self._outlets if other is not outlet)
        dropped = outlet.outbox.drop_all()
        if outlet.outbox.lost:
            self._lost_before[outlet.name] = self._lost_before.get(outlet.name, 0) + outlet.outbox.lost
        if self._waiting:
            self._handled.notify_all()
        return dropped

    def _start_locked(self, outlet: _Outlet) -> None:
        thread = threading.Thread(
            target=self._run, args=(outlet,), name=f"procsched-listener-{outlet.number}", daemon=True
        )
        outlet.thread = thread
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left; tried again at the next event
            outlet.thread = None

    def _run(self, outlet: _Outlet) -> None:
        while True:
            with self.lock:
                outlet.parked = False
                if outlet.handling:
                    outlet.handling = 0
                    if self._waiting:
                        self._handled.notify_all()
                entry = outlet.outbox.pop()
                if entry is not None:
                    outlet.since = real_seconds()  # first: `inspect` reads both without the lock
                    outlet.handling = entry[0]
                elif outlet.removed or self._closed:
                    if not outlet.removed:
                        self._retire_locked(outlet)
                    return
                else:
                    outlet.parked = True
            if entry is None:
                outlet.gate.acquire()
                continue
            try:
                outlet.listener.on_task_event(entry[1])
            except BaseException as error:  # whatever user code raises, this thread goes on
                self._note_error(outlet, entry[1], error)
            if outlet.outbox.lost != outlet.loss_told and not outlet.removed:
                self._note_loss(outlet)

    def _note_error(self, outlet: _Outlet, event: TaskEvent, error: BaseException) -> None:
        """Log an error the first, second, fourth, eighth time that this listener raises it."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        # The text is no part of it: where it carries an id or a time, each would be a new error.
        key = (type(error), trace and trace.tb_frame.f_code, trace and trace.tb_lineno)
        if key not in outlet.errors and len(outlet.errors) >= KINDS_OF_ERROR:
            key = (BaseException, None, None)
        count = outlet.errors[key] = outlet.errors.get(key, 0) + 1
        if count & (count - 1):
            return
        rest = "; should it do so again, times 2, 4, 8 and so on are told" if count == 1 else ""
        text = f"listener {outlet.name} raised {describe(error)} (time {count}){rest}"
        say(
            logging.ERROR, "%s", text, error=error, fields={"task_id": event.task_id, "task_name": event.name}
        )
        self._report(text)

    def _note_loss(self, outlet: _Outlet) -> None:
        """Log losses, and again whenever they have doubled."""
        lost = outlet.outbox.lost
        if lost < 2 * outlet.loss_told:
            return
        outlet.loss_told = lost
        text = f"listener {outlet.name} is too slow: {lost} events lost so far"
        say(logging.WARNING, "%s (at most %d are queued)", text, self._limit)
        self._report(text)

    def _report(self, text: str) -> None:
        try:
            self._on_problem(text)
        except BaseException as error:
            say(logging.ERROR, "a listener's problem could not be reported", error=error)
