"""A listener that keeps what it hears."""

from __future__ import annotations

import threading
from collections import deque

from procsched import _forks
from procsched._core.checks import waiting_seconds, whole_number
from procsched.clock import real_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from procsched._core.models import TaskEvent


class EventLog:
    """A listener that keeps the events it hears, for tests and for a look at what happened.

    Args:
        limit: events kept; beyond that the oldest go, counted in `dropped`.
    Raises:
        ValidationError: `limit` is no whole number of at least 1.
    Thread safety: call from anywhere.
    """

    def __init__(self, limit: int = 100_000) -> None:
        whole_number("limit", limit)
        # `_lock` guards the fields below; no user code runs while it is held but what interrupts a holder: it is
        # reentrant for that, a finalizer for one.
        self.after_fork()
        self._kept: deque[TaskEvent] = deque(maxlen=limit)  # guarded by _lock
        self._heard = 0  # changes of what is kept; guarded by _lock
        self._view: tuple[TaskEvent, ...] | None = ()  # what is kept, or None if it has to be made
        self.dropped = 0  # guarded by _lock
        _forks.note(self)

    def after_fork(self) -> None:
        """In a fork of the process: a thread that is not there may have held the lock."""
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)

    def on_task_event(self, event: TaskEvent) -> None:
        """Keep the event."""
        with self._lock:
            if len(self._kept) == self._kept.maxlen:
                self.dropped += 1
            self._kept.append(event)
            self._changed_locked()

    @property
    def events(self) -> tuple[TaskEvent, ...]:
        """The events that are kept, oldest first."""
        with self._lock:
            return self._events_locked()

    def runs(self, name: str | None = None) -> tuple[TaskEvent, ...]:
        """Return the events that carry a record, oldest first: of tasks called `name`, or of all."""
        return tuple(
            event
            for event in self.events
            if event.record is not None and (name is None or event.name == name)
        )

    def wait_for(
        self, predicate: Callable[[tuple[TaskEvent, ...]], object], timeout: float | timedelta | None = 10.0
    ) -> bool:
        """Wait until `predicate(events)` is true; it is asked at once, and whenever events have arrived.

        Args:
            predicate: called in this thread with no lock held, so it may use the log itself. What it raises
                reaches the caller.
            timeout: real seconds; None for no limit.
        Returns:
            Whether it became true; False when the time was up.
        """
        end = None if timeout is None else real_seconds() + waiting_seconds("timeout", timeout)
        while True:
            with self._lock:
                seen, events = self._heard, self._events_locked()
            if predicate(events):
                return True
            with self._lock:
                while self._heard == seen:
                    left = None if end is None else end - real_seconds()
                    if left is not None and left <= 0.0:
                        return False
                    self._arrived.wait(left)

    def clear(self) -> None:
        """Forget the events."""
        with self._lock:
            self._kept.clear()
            self._changed_locked()

    def _changed_locked(self) -> None:
        self._heard += 1
        self._view = None
        self._arrived.notify_all()

    def _events_locked(self) -> tuple[TaskEvent, ...]:
        if self._view is None:
            self._view = tuple(self._kept)
        return self._view

    def __len__(self) -> int:
        with self._lock:
            return len(self._kept)

    def __bool__(self) -> bool:
        return True  # an empty log is a log

    def __repr__(self) -> str:
        return f"<EventLog of {len(self)} events>"
