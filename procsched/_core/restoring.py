"""A restart: tasks come back from a store, and what was going on when their scheduler ended is settled. Pure.

stored --restore--> not live: queued, paused or at its end, as it was; slots that passed are misfires
              '---> live: a LOST record --judge--> a retry, or the schedule from where the run was lost
"""

from __future__ import annotations

from procsched._core import planning
from procsched._core.entries import (
    AFTER_LOSS,
    CANCELLED,
    FAILED,
    PAUSED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    Entry,
)
from procsched._core.following import NOTHING
from procsched._core.models import ExecutionRecord, Outcome
from procsched._core.positions import LostAttempt, ended_of
from procsched._core.requests import Requests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from procsched._core.positions import Stored

NOT_BEGUN = "; it was about to start, and may not have begun"


class Restoring(Requests):
    """The rules for a restart."""

    def restore(
        self,
        stored: Iterable[Stored],
        finished: Iterable[str],
        down_at: float,
        why: str,
        wall: float,
        line: float,
    ) -> None:
        """Take tasks back, before anything is promoted.

        Args:
            stored: in order of registration. Their handles are ours from now on.
            finished: ids of the terminal ones among them, in the order in which they ended.
            down_at: UNIX seconds when the last scheduler was alive for certain. What ran then is lost since; what
                was due by then waited for a worker, and is owed to its task.
            why: the error of the records of what was lost.
            wall, line: this moment.
        """
        lost: list[tuple[Entry, Stored]] = []
        for each in stored:
            entry = self._entry_of(each)
            if each.position.live:
                self.counters["started"] += 1
                entry.live = LostAttempt(entry, each.position.started_at)
                self.running[entry.handle.task.id] = entry
                lost.append((entry, each))
            elif entry.status is SCHEDULED:
                entry.owed = entry.owed or each.position.slot <= down_at
                self.enqueue(entry, entry.steady, entry.slot)
            elif entry.status is RETRYING:
                assert entry.ended is not None
                assert entry.ended.retry_at is not None
                self.enqueue(entry, True, entry.ended.retry_at)
        for name in finished:
            entry = self.entries[name]
            if entry.status is FAILED:
                self.add_dead(entry)
            if entry.live is None:
                self.retire(entry)
        for entry, each in lost:
            self._lose(entry, each, down_at, why, wall, line)

    def _entry_of(self, stored: Stored) -> Entry:
        handle, position = stored.handle, stored.position
        task, schedule = handle.task, handle.schedule
        steady = bool(getattr(schedule, "steady", False))
        shift = self.timeline.offset if steady else 0.0
        entry = Entry(handle, stored.payload, planning.kind_of(schedule), steady, position.slot - shift)
        entry.status = handle.status
        entry.generation = handle.generation
        entry.attempt = handle.attempt
        if position.dealt != position.slot:  # else it stays one number for all of them
            entry.dealt = position.dealt - shift
        if position.anchor != position.slot:
            entry.anchor = position.anchor - shift
        entry.backlog = tuple(slot - shift for slot in position.backlog)
        entry.due_wall = position.due_at
        entry.run = position.run
        entry.stands_for = position.stands_for
        entry.owed = position.owed
        entry.held = position.held
        last = handle.last_run()
        if last is not None:
            entry.ended = ended_of(position, entry, last, self.timeline.offset)
        self.entries[task.id] = entry
        if task.key is not None and entry.status is not CANCELLED:
            self.keys[task.key] = entry  # of several the last one: it has replaced the others
        return entry

    def _lose(self, entry: Entry, stored: Stored, down_at: float, why: str, wall: float, line: float) -> None:
        """Give a lost attempt its record, and do what follows."""
        call, task = entry.live, entry.handle.task
        assert call is not None
        started_at = stored.position.started_at
        error = why
        if started_at is None:
            started_at = down_at
            if stored.pid is None:
                error += NOT_BEGUN
        record = ExecutionRecord(
            entry.attempt,
            started_at,
            max(started_at, down_at),
            False,
            error,
            outcome=Outcome.LOST,
            task_id=task.id,
            name=task.name,
            run=entry.run,
            due_at=entry.due_wall,
            missed=entry.stands_for,
            pid=stored.pid,
        )
        call.over = True
        entry.ended = None
        ended = self._judge(entry, call, record, record.finished_at - self.timeline.offset)
        if entry.kind == planning.ONCE or entry.status is not RUNNING or not ended.asks_schedule:
            self._conclude(entry, ended, NOTHING, None, wall, line)
        else:
            self._ask(self._question_after(AFTER_LOSS, entry, ended, wall, line), wall, line)

    def release_held(self, wall: float, line: float) -> None:
        """Try again what was paused because its code could not be loaded."""
        for entry in list(self.entries.values()):
            if entry.held and entry.status is PAUSED and not self.is_unreadable(entry):
                question = self.resume(entry, wall, line)
                if not isinstance(question, bool):
                    self.questions.append(question)

    @staticmethod
    def is_unreadable(entry: Entry) -> bool:
        """Return whether the schedule itself could not be loaded, so that nothing can be planned."""
        return bool(getattr(entry.handle.schedule, "unreadable", False))

    def rewrite_steady(self) -> None:
        """Have everything stored again whose times have moved with the wall clock."""
        if not self.wants_positions:
            return
        for entry in self.entries.values():
            if not entry.status.is_terminal and (entry.steady or entry.status is RETRYING):
                self.write(entry)
