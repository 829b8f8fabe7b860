"""What users ask for: cancel, kill, pause, resume, revive. Pure."""

from __future__ import annotations

from procsched._core import planning
from procsched._core.entries import (
    AGAIN,
    FAILED,
    LENT,
    NOWHERE,
    PAUSED,
    READY,
    RESUME,
    REVIVE,
    SCHEDULED,
    UNLOADABLE,
    Question,
)
from procsched._core.following import NOTHING, Following
from procsched._core.queues import ROUNDING
from procsched._core.transitions import TaskChange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._core.entries import Entry, LiveAttempt


class Requests(Following):
    """The rules for requests. Each says whether it changed anything; illegal ones change nothing."""

    def cancel(self, entry: Entry, wall: float) -> bool:
        """Withdraw the task; a live run goes on. Return False for a terminal one."""
        if entry.status.is_terminal:
            return False
        self.withdraw(entry)
        ended, entry.ended = entry.ended, None
        entry.handle.next_run_at = None
        self.move(entry, TaskChange.CANCEL, wall)
        self.release_key(entry)
        if entry.live is None:
            self.wake_waiters(entry, None if ended is None else ended.record, "it was cancelled")
            self.retire(entry)
        return True

    def killable(self, entry: Entry) -> LiveAttempt | None:
        """Return the live attempt, or None where there is nothing to end."""
        call = entry.live
        return None if call is None or call.over else call

    def pause(self, entry: Entry, wall: float, line: float) -> bool:
        """Stop the schedule; a live run goes on. Return False for a terminal or paused task."""
        if entry.status.is_terminal or entry.status is PAUSED:
            return False
        text = None
        if entry.status is SCHEDULED and self._waits_for_worker(entry, wall, line):
            if entry.kind == planning.RATE:
                text = self._take_plan(entry, planning.plan_paused(entry.slots(), line), goes_on=True)
                entry.handle.next_run_at = entry.slot + self.timeline.offset
            entry.owed = True
        self.withdraw(entry)
        self.move(entry, TaskChange.PAUSE, wall, None, text)
        return True

    def _waits_for_worker(self, entry: Entry, wall: float, line: float) -> bool:
        """Return whether a slot is due, and waits for nothing but a worker: then it is no misfire."""
        if entry.queued in (READY, LENT):
            return True
        # What passed before the start, or while the system slept, may be one.
        known = self.started and self._window is None and entry.queued != NOWHERE
        return known and entry.slot <= (line if entry.steady else wall) + ROUNDING

    def resume(self, entry: Entry, wall: float, line: float) -> bool | Question:
        """Let a paused task go on. Return False for one that is not paused, or what to ask its schedule.

        The caller answers the question, settles it, and asks again where the answer came too late.
        """
        if entry.status is not PAUSED:
            return False
        self.withdraw(entry)
        ended = entry.ended
        if ended is not None and ended.verdict == UNLOADABLE and entry.kind == planning.ONCE:
            ended = entry.ended = None  # its only slot has not run
            entry.owed = True
        if entry.live is not None:
            self.move(entry, TaskChange.REJOIN, wall)
        elif ended is not None and ended.verdict == AGAIN:
            assert ended.retry_at is not None
            self.enqueue(entry, True, ended.retry_at)
            self.move(entry, TaskChange.RETRY, wall)
        elif ended is not None and (not ended.asks_schedule or entry.kind == planning.ONCE):
            self._follow(entry, ended, NOTHING, None, wall, line)
        else:
            now = line if entry.steady else wall
            if ended is not None:
                question = self._question_after(RESUME, entry, ended, wall, line)
            else:
                question = Question(RESUME, entry, now, owed=entry.owed)
            self.open_questions.add(question)
            if entry.kind == planning.OTHER:
                return question
            self.settle(question, question.answer(), None, wall, line)
        return True

    def revive(self, entry: Entry, wall: float, line: float) -> bool | Question:
        """Give a failed task, which is not replaced, a new start. Return False for others, or what to ask its schedule.

        One that was paused because its code could not be loaded is resumed.
        """
        if entry.held:
            return self.resume(entry, wall, line)
        if entry.status is not FAILED or self.is_replaced(entry):
            return False
        question = Question(REVIVE, entry, line if entry.steady else wall)
        self.open_questions.add(question)
        if entry.kind == planning.OTHER:
            return question
        return self.settle(question, question.answer(), None, wall, line)
