"""Records of an earlier life of a task: the store has them, and they are read when somebody asks the task for them.

who asks --> "procsched-history" thread --history--> store
   '--------- waits for it, but not for ever
"""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched._core.models import ExecutionRecord, ScheduledTask
    from procsched.stores.changes import DurableStore

SECONDS = 2.0  # for which who asks waits for the store


class EarlierRecords:
    """Stands in `ScheduledTask._stored` for what nobody has read yet: one for all tasks of a scheduler.

    Args:
        store: asked for the records of a task.
        limit: how many records a task has.
    Thread safety: call from anywhere, with no lock of ours held.
    """

    def __init__(self, store: DurableStore, limit: int) -> None:
        self._store = store
        self._limit = limit
        self._overdue: threading.Thread | None = None  # reads, and nobody waits for it any more

    def __call__(self, handle: ScheduledTask) -> tuple[ExecutionRecord, ...]:
        """Return the records of a task; where the store does not give its own, those of this life."""
        if self._overdue is None or not self._overdue.is_alive():
            found = self._read(handle.task.id)
            if found is not None:
                known = handle._stored = _Known(found, self._limit)
                return known(handle)
        return handle._history

    def _read(self, task_id: str) -> tuple[ExecutionRecord, ...] | None:
        answers: list[tuple[ExecutionRecord, ...]] = []

        def read() -> None:
            try:
                answers.append(tuple(self._store.history(task_id, None, None, self._limit)[::-1]))
            except Exception:  # who writes to the store says what is wrong with it
                return

        thread = threading.Thread(target=read, name="procsched-history", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            return None
        thread.join(SECONDS)
        if thread.is_alive():
            self._overdue = thread
        return answers[0] if answers else None

    def __reduce__(self) -> Any:
        return type(None), ()  # a copy in another process has no store


class _Known:
    """The records that the store had when it was asked. Some of them may be of this life, of which the task has all."""

    __slots__ = ("_limit", "_records")

    def __init__(self, records: tuple[ExecutionRecord, ...], limit: int) -> None:
        self._records = records
        self._limit = limit

    def __call__(self, handle: ScheduledTask) -> tuple[ExecutionRecord, ...]:
        newer = handle._history
        known = {(record.run, record.attempt) for record in newer}
        earlier = [record for record in self._records if (record.run, record.attempt) not in known]
        return (*earlier, *newer)[-self._limit :]
