"""`current_run()`: what an action may know of its own run, and say of its progress."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_make: Callable[[], CurrentRun] | None = None  # while a run is going on
_current: CurrentRun | None = None  # made when somebody asks


class CurrentRun:
    """The run that this process is in. Made by the worker; safe to use from any thread of the action.

    Attributes:
        id: the task's id ("" for a call of an executor that has none).
        name: the task's name, or that of the call: the function's, where it was given none.
        attempt: number of the attempt, from 1.
        run: number of the run, from 1.
        deadline: UNIX seconds at which the run is ended, or None where it has no limit.
    """

    __slots__ = ("_end_mono", "_tell", "attempt", "deadline", "id", "name", "run")

    def __init__(
        self,
        task_id: str,
        name: str,
        attempt: int,
        run: int,
        timeout: float | None,
        began: float,
        tell: Callable[[float, float | None, str], None],
    ) -> None:
        self.id = task_id
        self.name = name
        self.attempt = attempt
        self.run = run
        self._end_mono = None if timeout is None else began + timeout
        self.deadline = None if timeout is None else time.time() + began + timeout - time.monotonic()
        self._tell = tell

    def remaining(self) -> float | None:
        """Return the seconds left before the deadline, never below 0; None where there is no limit."""
        return None if self._end_mono is None else max(0.0, self._end_mono - time.monotonic())

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Tell the parent how far the run is: an event there, and `future.progress`.

        Args:
            done: how much is done, in any unit.
            total: how much there is, or None where unknown.
            note: a short text.
        """
        self._tell(done, total, note)

    def __repr__(self) -> str:
        return f"<CurrentRun {self.name or self.id!r} attempt {self.attempt}>"


def current_run() -> CurrentRun | None:
    """Return the run that the calling code belongs to, or None outside a worker process.

    Thread safety: call from any thread of the action. In the parent's own process, also under `ThreadPool` and
    `InlinePool`, and in a process that the action started, the answer is None.
    """
    global _current
    if _current is None and _make is not None:
        _current = _make()
    return _current


def _begin(make: Callable[[], CurrentRun]) -> None:
    """A run begins; most actions never ask about it, so `make` is called when one does."""
    global _make
    _make = make


def _end() -> None:
    """The run is over."""
    global _make, _current
    _make = _current = None
