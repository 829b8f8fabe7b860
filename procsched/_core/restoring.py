"""A restart: tasks come back from a store, and what was going on when their scheduler ended is settled. Pure.

stored --restore--> not live: queued, paused or at its end, as it was; slots that passed are misfires
              '---> live: a LOST record --judge--> a retry, or the schedule from where the run was lost

Where the last scheduler was alive at a time that is yet to come, the wall clock was set back meanwhile. That is
followed as if it had been set at this moment: what is counted in seconds goes on from where it was, and the rest
follows the new time at once.
"""

from __future__ import annotations

import math

from procsched._core import planning
from procsched._core.entries import (
    AFTER_LOSS,
    CANCELLED,
    CLOCK_SET,
    FAILED,
    PAUSED,
    RETRYING,
    RUNNING,
    SCHEDULED,
    Entry,
    Question,
)
from procsched._core.following import NOTHING, judge
from procsched._core.models import ExecutionRecord, Outcome
from procsched._core.positions import LostAttempt, ended_of
from procsched._core.requests import Requests
from procsched._core.timeline import STEP_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from procsched._core.positions import Underway

NOT_BEGUN = "; it was about to start, and may not have begun"


class Restoring(Requests):
    """The rules for a restart."""

    def restore(
        self,
        entries: Iterable[Entry],
        underway: Mapping[str, Underway],
        finished: Iterable[str],
        down_at: float,
        why: str,
        wall: float,
        line: float,
    ) -> list[tuple[Entry, ExecutionRecord]]:
        """Take tasks back, before anything is promoted.

        Args:
            entries: in order of registration, with the slots of all of them as wall time. They are ours from now on.
            underway: of those that are, by id.
            finished: ids of the terminal ones among them, in the order in which they ended.
            down_at: UNIX seconds when the last scheduler was alive for certain. What ran then is lost since; what
                was due by then waited for a worker, and is owed to its task.
            why: the error of the records of what was lost.
            wall, line: this moment.
        Returns:
            What was lost, with its records. Some of these are written when a schedule has said what follows.
        """
        lost: list[tuple[Entry, Underway]] = []
        back = down_at - wall
        if not STEP_SECONDS < back < math.inf:
            back = 0.0
        for entry in entries:
            name, status = entry.handle.task.id, entry.status
            more = underway.get(name)
            owed = status is SCHEDULED and entry.slot <= down_at
            self._take_back(entry, more, back)
            if back and owed and not entry.steady:
                entry.slot = entry.dealt = min(entry.slot, wall)  # it was due, whatever the new time says
            if more is not None and more.live:
                self.counters["started"] += 1
                entry.live = LostAttempt(entry, more.started_at)
                self.running[name] = entry
                lost.append((entry, more))
            elif status is SCHEDULED:
                entry.owed = entry.owed or owed
                self.enqueue(entry, entry.steady, entry.slot)
            elif status is RETRYING:
                assert entry.ended is not None
                assert entry.ended.retry_at is not None
                self.enqueue(entry, True, entry.ended.retry_at)
        for name in finished:
            entry = self.entries[name]
            if entry.status is FAILED and not self.is_replaced(entry):
                self.add_dead(entry)
            if entry.live is None:
                self.retire(entry)
        records = [(entry, self._lose(entry, more, down_at, back, why, wall, line)) for entry, more in lost]
        if back:
            self._follow_setting_back(back, wall, line)
        return records

    def _follow_setting_back(self, back: float, wall: float, line: float) -> None:
        """Plan anew what follows the wall, and have everything stored by the new time."""
        for entry in list(self.entries.values()):
            if not self.may_go_on(entry):
                continue
            if entry.steady or entry.ended is not None:
                self.write(entry)
            elif (
                entry.kind == planning.OTHER
                and not entry.owed
                and entry.live is None
                and entry.status is not FAILED
            ):
                self._ask(Question(CLOCK_SET, entry, wall, record=self._record_of_slot(entry)), wall, line)
        text = f"the wall clock was set back by {back:.3f} s or more while no scheduler had the store"
        self.tell(None, wall, None, "clock", text)

    @staticmethod
    def _record_of_slot(entry: Entry) -> ExecutionRecord | None:
        """Return a record of the last run, which may have left no more than its slot; None where there was none."""
        return None if entry.due_wall is None else planning.record_of_slot(entry.due_wall)

    def _take_back(self, entry: Entry, underway: Underway | None, back: float) -> None:
        """Move an entry to this scheduler's steady line, and register it.

        Args:
            back: seconds by which the wall clock was set back since it was stored.
        """
        task, offset = entry.handle.task, self.timeline.offset + back
        if len(entry.handle._history) > self.history_limit:
            entry.handle._history = entry.handle._history[-self.history_limit :]
        if entry.steady:
            if back:
                if entry.due_wall is not None:
                    entry.due_wall -= back
                if entry.handle.next_run_at is not None:
                    entry.handle.next_run_at -= back
            slot = entry.slot - offset
            # What is the same number stays one: there may be a hundred thousand of them.
            entry.dealt = slot if entry.dealt == entry.slot else entry.dealt - offset
            entry.anchor = slot if entry.anchor == entry.slot else entry.anchor - offset
            entry.slot = slot
            if entry.backlog:
                entry.backlog = tuple(slot - offset for slot in entry.backlog)
        if underway is not None:
            last = entry.handle.last_run()
            if last is not None:
                entry.ended = ended_of(underway, last, offset)
        self.entries[task.id] = entry
        if task.key is not None:
            self.keys.pop(task.key, None)  # of several the last one counts: it has replaced the others
            if entry.status is not CANCELLED:
                self.keys[task.key] = entry

    def _lose(
        self,
        entry: Entry,
        underway: Underway,
        down_at: float,
        back: float,
        why: str,
        wall: float,
        line: float,
    ) -> ExecutionRecord:
        """Give a lost attempt its record, and do what follows. The record is of the time that the clock has now."""
        call, task = entry.live, entry.handle.task
        assert call is not None
        started_at = underway.started_at
        down_at -= back
        if started_at is not None:
            started_at -= back
        error = why
        if started_at is None:
            started_at = down_at
            if underway.pid is None:
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
            pid=underway.pid,
        )
        call.over = True
        entry.ended = None
        ended = judge(task, entry.attempt, record, record.finished_at - self.timeline.offset, self.draw)
        if entry.kind == planning.ONCE or entry.status is not RUNNING or not ended.asks_schedule:
            self._conclude(entry, ended, NOTHING, None, wall, line)
        else:
            self._ask(self._question_after(AFTER_LOSS, entry, ended, wall, line), wall, line)
        return record

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
