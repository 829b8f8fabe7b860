"""Where a thread waits for something that another one brings."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._core.models import ExecutionRecord


class Gate:
    """Where one thread waits for an answer that another one brings."""

    __slots__ = ("_lock", "record", "why")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.record: ExecutionRecord | None = None
        self.why = ""

    def open(self, record: ExecutionRecord | None = None, why: str = "") -> None:
        """Bring the answer. Once more, by whom a signal handler has interrupted, changes nothing."""
        self.record = record
        self.why = why
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it is open, and nobody has come through yet

    def wait(self, seconds: float | None) -> bool:
        """Wait for it, at most so many real seconds. False when the time was up."""
        if seconds is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(0.0, seconds), threading.TIMEOUT_MAX))
