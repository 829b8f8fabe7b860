"""Ids for tasks."""

from __future__ import annotations

import itertools
import threading

from procsched import _forks
from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_NUMBER = 18  # digits: no counter gets beyond, and a longer text is somebody else's id


class SequentialIdGenerator:
    """Gives `task-1`, `task-2` and so on.

    Args:
        prefix: what stands before the hyphen and the number.
    Raises:
        ValidationError: `prefix` is no text, or empty.
    Thread safety: call from anywhere.
    """

    def __init__(self, prefix: str = "task") -> None:
        given: object = prefix
        if not isinstance(given, str) or not given:
            raise ValidationError(f"prefix must be a text that is not empty, not {prefix!r}")
        self._prefix = prefix
        # One step of C gives a number, so that a signal handler or a finalizer in the midst of `next_id` gets another.
        self._numbers = itertools.count(1)  # replaced with _lock, which is reentrant for the same callers
        self._lock = threading.RLock()
        _forks.note(self)

    def after_fork(self) -> None:
        """In a fork of the process: a thread that is not there may have held the lock."""
        self._lock = threading.RLock()

    def next_id(self) -> str:
        """Return an id that this generator has never given, nor been told of by `continue_after`."""
        with self._lock:
            number = next(self._numbers)
        return f"{self._prefix}-{number}"

    def continue_after(self, ids: Iterable[str]) -> None:
        """Never give any of `ids` from now on: count on after the highest number among them.

        Ids of another form are passed over, as they cannot come from here.
        """
        start = f"{self._prefix}-"
        highest = 0
        for known in ids:
            number = known[len(start) :] if known.startswith(start) else ""
            if number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER:
                highest = max(highest, int(number))
        with self._lock:
            self._numbers = itertools.count(max(next(self._numbers), highest + 1))

    def __repr__(self) -> str:
        return f"SequentialIdGenerator({self._prefix!r})"
