"""What follows: the end of an attempt, the answer of a schedule, slots that passed. Pure.

end --> judge --> ask the schedule? --no--------------------> conclude --> a slot, a retry, or the end
                         '--yes--> Question --> settle ----------^
          (a fast schedule answers at once, a slow one by way of the driver)
"""

from __future__ import annotations

import math

from procsched._core import planning
from procsched._core.entries import (
    AFTER_LOSS,
    AFTER_RUN,
    AGAIN,
    BAD,
    BY_SHUTDOWN,
    CANCELLED,
    CLOCK_SET,
    ENDED,
    FAILED,
    GOOD,
    MISFIRE,
    PAUSED,
    READY,
    REVIVE,
    RUNNING,
    SCHEDULED,
    UNLOADABLE,
    WALL,
    Ended,
    Entry,
    Question,
)
from procsched._core.models import Outcome
from procsched._core.queues import ROUNDING
from procsched._core.registry import Registry
from procsched._core.retrying import decide_retry
from procsched._core.transitions import TaskChange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from procsched._core.entries import LiveAttempt
    from procsched._core.models import ExecutionRecord, Task
    from procsched._core.planning import Plan
    from procsched._core.timeline import Timeline

NOTHING = planning.Plan(None)


def ended_by_shutdown(record: ExecutionRecord) -> bool:
    """Whether it was the shutdown that ended an attempt, and nobody who asked for that: such a one is tried again."""
    return record.outcome is Outcome.KILLED and (record.error or "").startswith(BY_SHUTDOWN)


def judge(task: Task, attempt: int, record: ExecutionRecord, at: float, draw: Callable[[], float]) -> Ended:
    """Return what the end of attempt number `attempt` means, which left `record` and ended `at`.

    Args:
        draw: see `Following`; asked where the task's retry policy has jitter.
    """
    if record.ok:
        return Ended(record, GOOD, at, None, False)
    outcome = record.outcome
    by_shutdown = ended_by_shutdown(record)
    drawn = draw() if task.retry.jitter else 0.5
    seconds = decide_retry(task.retry, outcome, attempt, drawn, by_shutdown=by_shutdown)
    if seconds is not None:
        return Ended(record, AGAIN, at, at + seconds, False)
    if outcome is Outcome.KILLED and not by_shutdown:
        return Ended(record, ENDED, at, None, False)
    return Ended(record, BAD, at, None, by_shutdown or task.on_exhausted == "continue")


class Following(Registry):
    """The registry with the rules for what follows.

    Args:
        timeline, limits: see `Registry`.
        draw: gives a random number from 0 to 1, for jitter.
    Attributes:
        questions: for the driver to answer, oldest first.
        open_questions: all that are not settled, those the driver is about to answer included.
        started: things are being promoted; before that, what passes is a misfire.
        closing: a shutdown has begun; nothing is promoted from now on, but what was due by then follows its run.
        returning: nor is anything begun; what is due goes back to its slot.
        ended_in_closing: (task id, whether the shutdown killed it) since then.
        doubtful: ids of tasks whose code could not be loaded in an earlier life, and nobody has tried it in this one.
    """

    def __init__(self, timeline: Timeline, draw: Callable[[], float], **limits: int) -> None:
        super().__init__(timeline, **limits)
        self.draw = draw
        self.questions: list[Question] = []
        self.open_questions: set[Question] = set()
        self.started = False
        self.closing = self.returning = False
        self._closed_at = (-math.inf, -math.inf)  # when the shutdown began: (on the steady line, wall time)
        self.ended_in_closing: list[tuple[str, bool]] = []
        self.doubtful: set[str] = set()
        # Slots later than these instants, and due by now, are misfires: (on the steady line, wall time),
        # infinite where nothing is. None while no window is open.
        self._window: tuple[float, float] | None = None

    def close(self, wall: float, line: float) -> None:
        """A shutdown begins: what is due by now runs or is returned, all else waits for another scheduler."""
        self.closing = True
        self._closed_at = (line, wall)

    # --- the end of an attempt -------------------------------------------------------------------------

    def end(
        self, call: LiveAttempt, record: ExecutionRecord, wall: float, line: float, unloadable: bool = False
    ) -> bool:
        """An attempt has ended. Return False for one that is not expected (any more): it changes nothing.

        Args:
            unloadable: its code could not be loaded, so nothing of it ran: the record's error says why.
        """
        entry = call.entry
        if entry.live is not call or call.over:
            self.counters["late_results"] += 1
            return False
        call.over = True
        if unloadable:
            ended = Ended(record, UNLOADABLE, line, None, False)
        else:
            ended = judge(entry.handle.task, entry.attempt, record, line, self.draw)
        if unloadable or entry.handle.unloadable is not None:
            self._note_loading(entry, record.error if unloadable else None, wall)
        if entry.kind == planning.ONCE or entry.status is not RUNNING or not ended.asks_schedule:
            self._conclude(entry, ended, NOTHING, None, wall, line)
        else:
            self._ask(self._question_after(AFTER_RUN, entry, ended, wall, line), wall, line)
        return True

    def _note_loading(self, entry: Entry, reason: str | None, wall: float) -> None:
        """Note whether the code of a task can be loaded. A task keeps its schedule, and its attempts, either way."""
        handle = entry.handle
        was, handle.unloadable = handle.unloadable, reason
        news = reason != was or handle.task.id in self.doubtful
        self.doubtful.discard(handle.task.id)
        if reason is not None and news:
            text = f"its code cannot be loaded: {reason}"
            self.problems.append((entry, text))
            self.tell(entry, wall, None, "store", text)
        elif reason is None:
            self.tell(entry, wall, None, "store", "its code can be loaded again")

    def _question_after(self, why: int, entry: Entry, ended: Ended, wall: float, line: float) -> Question:
        """Ask what follows a run that is over, with all times on the schedule's line."""
        record, offset = ended.record, self.timeline.offset
        if not entry.steady:
            # What was found due within a float's rounding before its slot must not get that slot again.
            now = entry.slot if 0.0 < entry.slot - wall <= ROUNDING else wall
            return Question(why, entry, now, ended=ended, record=record, at=record.finished_at)
        if offset and entry.kind == planning.OTHER:
            record = record.__replace__(  # type: ignore[attr-defined]
                due_at=entry.slot, started_at=ended.at - record.duration, finished_at=ended.at
            )
        return Question(why, entry, line, ended=ended, record=record, at=ended.at)

    def _conclude(
        self, entry: Entry, ended: Ended, plan: Plan, error: str | None, wall: float, line: float
    ) -> None:
        """Record an attempt, and do what follows. This is where its end is written, record and all."""
        record, verdict, handle = ended.record, ended.verdict, entry.handle
        entry.live = None
        del self.running[handle.task.id]
        self.counters[record.outcome] += 1  # an outcome is the text that names its counter
        handle._history = (*handle._history, record)[-self.history_limit :]
        if self.closing:
            self.ended_in_closing.append((handle.task.id, ended_by_shutdown(record)))
        if verdict == AGAIN and entry.status is not CANCELLED:
            self.counters["retried"] += 1
        if entry.status is PAUSED:
            entry.ended = ended
            self.move(entry, TaskChange.RECORD, wall, record)
        elif entry.status is CANCELLED:
            self.move(entry, TaskChange.RECORD, wall, record)
            self.retire(entry)
        elif verdict == AGAIN:
            assert ended.retry_at is not None
            entry.ended = ended
            self.enqueue(entry, True, ended.retry_at)
            self.move(entry, TaskChange.RETRY, wall, record)
            return  # whoever waits for the run goes on waiting
        else:
            self._follow(entry, ended, plan, error, wall, line, record)
        if verdict != AGAIN or entry.status is CANCELLED:
            self.wake_waiters(entry, record)

    def _follow(
        self,
        entry: Entry,
        ended: Ended | None,
        plan: Plan,
        error: str | None,
        wall: float,
        line: float,
        record: ExecutionRecord | None = None,
    ) -> None:
        """Do what follows a run that is over, or (without one) slots that passed: a slot, or the end."""
        verdict = None if ended is None else ended.verdict
        entry.ended = None
        if error is not None:
            self._fail(entry, error, wall, record)
        elif plan.due_at is not None and (ended is None or ended.asks_schedule):
            text = self._take_plan(entry, plan, goes_on=ended is None)
            if entry.status is RUNNING:
                if self._was_due(entry, plan.due_at):
                    self._place(entry, plan.due_at, wall, line, was_due=True)
                    self.sooner = True  # the timer lets the pool look
                else:
                    # By way of the heap, also when it is due: a task must not keep a worker to itself.
                    self.enqueue(entry, entry.steady, plan.due_at)
                self.move(entry, TaskChange.NEXT, wall, record, text)
            else:
                self._place(entry, plan.due_at, wall, line)
                self.move(entry, TaskChange.SCHEDULE, wall, record, text)
            self.count_missed(entry, plan.missed, wall)
        else:
            entry.handle.next_run_at = None
            self.counters["skipped"] += plan.skipped
            self.count_missed(entry, plan.missed, wall)
            if verdict == BAD:
                self._fail(entry, None, wall, record)
            elif verdict == UNLOADABLE:
                self._hold(entry, wall, record)
            else:
                good = verdict == GOOD or (verdict is None and entry.run > 0)
                self.move(entry, TaskChange.FINISH if good else TaskChange.CANCEL, wall, record)
                self._ended_without_run(entry, verdict)
                self.retire(entry)

    def _was_due(self, entry: Entry, due_at: float) -> bool:
        """Return whether a slot was due when the shutdown began, if one has.

        One that the end of its run brings was not, also where a fake clock has stood still since: with FixedDelay(0)
        there would be no end.
        """
        moment = self._closed_at[0 if entry.steady else 1]
        return due_at < moment or (entry.kind == planning.RATE and due_at <= moment + ROUNDING)

    def _hold(self, entry: Entry, wall: float, record: ExecutionRecord | None) -> None:
        """Keep a task whose last slot could not run because its code cannot be loaded: paused, and owed that slot."""
        entry.held = entry.owed = True
        if entry.status is PAUSED:
            self.write(entry, record)
        else:
            self.move(entry, TaskChange.PAUSE, wall, record, "paused: its code cannot be loaded")

    def _ended_without_run(self, entry: Entry, verdict: int | None) -> None:
        if verdict is None:
            self.wake_waiters(entry, None, "its last slots were missed")
        if entry.status is CANCELLED:
            self.release_key(entry)

    def _take_plan(self, entry: Entry, plan: Plan, goes_on: bool = False) -> str | None:
        """Note what a plan says of slots. Return what is to be said of it.

        Args:
            goes_on: the run that waited is planned anew, so what it stood for is not forgotten.
        """
        assert plan.due_at is not None
        assert plan.dealt is not None
        stands_for = plan.stands_for
        if goes_on and (stands_for or plan.due_at == entry.slot):
            stands_for += entry.stands_for
        # A slot that waited still does where the clock was set back before it.
        entry.owed = entry.owed and goes_on and plan.due_at == entry.slot
        entry.slot = plan.due_at
        entry.dealt = plan.dealt
        entry.backlog = plan.backlog
        entry.stands_for = stands_for
        if not plan.skipped:
            return None
        self.counters["skipped"] += plan.skipped
        return f"{plan.skipped} slot{'s' if plan.skipped > 1 else ''} skipped"

    def _fail(self, entry: Entry, error: str | None, wall: float, record: ExecutionRecord | None) -> None:
        """A run's attempts are exhausted, or (with `error`) the schedule itself failed."""
        entry.handle.next_run_at = None
        self.add_dead(entry)
        self.move(entry, TaskChange.FAIL, wall, record, error)
        if error is not None:
            self.counters["schedule_errors"] += 1
            self.problems.append((entry, error))
            self.tell(entry, wall, None, "health", error)
            self.wake_waiters(entry, record, error)
        self.retire(entry)

    # --- slow schedules --------------------------------------------------------------------------------

    def _ask(self, question: Question, wall: float, line: float) -> None:
        """Have a question answered: at once where that is a matter of arithmetic, else by the driver."""
        self.open_questions.add(question)
        if question.entry.kind == planning.OTHER:
            self.questions.append(question)
        else:
            self.settle(question, question.answer(), None, wall, line)

    def settle(
        self, question: Question, plan: Plan | None, error: str | None, wall: float, line: float
    ) -> bool:
        """Bring the answer to a question: a plan, or why there is none. Return False if it came too late."""
        if question not in self.open_questions:
            return False  # a shutdown did not wait for it
        self.open_questions.remove(question)
        entry, why = question.entry, question.why
        answer = plan or NOTHING
        if why in (AFTER_RUN, AFTER_LOSS):
            assert question.ended is not None
            self._conclude(entry, question.ended, answer, error, wall, line)
            return True
        if entry.generation != question.generation:
            return False
        if self.entries.get(entry.handle.task.id) is not entry:
            return False  # it ended long ago, and was dropped meanwhile
        if why == REVIVE and self.is_replaced(entry):
            return False
        if why == CLOCK_SET:
            self._settle_clock_set(entry, answer, error, wall, line)
        elif why == MISFIRE and error is None and answer.due_at is not None:
            text = self._take_plan(entry, answer, goes_on=True)
            self._place(entry, answer.due_at, wall, line, was_due=True)
            if entry.queued != READY:
                self.move(entry, TaskChange.SCHEDULE, wall, None, text)
            self.count_missed(entry, answer.missed, wall)
        elif why == REVIVE:
            self._settle_revive(entry, answer, wall, line)
        else:
            entry.held = False
            self._follow(entry, question.ended, answer, error, wall, line)
        return True

    def ask_again(self, questions: list[Question]) -> None:
        """Put back questions that were taken and not settled: whoever took them was interrupted."""
        left = [each for each in questions if each in self.open_questions]
        self.questions[:0] = [each for each in left if each not in self.questions]

    def forget_questions(self, answers: list[bool | Question]) -> None:
        """Forget what was to be asked for a request that was interrupted: its task stays as it is."""
        for each in answers:
            if isinstance(each, Question):
                self.open_questions.discard(each)

    def _place(self, entry: Entry, due_at: float, wall: float, line: float, *, was_due: bool = False) -> None:
        """Queue a planned slot, as ready where it is due: in the heap an open window would plan it anew.

        Args:
            was_due: it was before a shutdown began, if one has, and is to run, or to be returned, by that.
        """
        steady = entry.steady
        due = due_at <= (line if steady else wall) + ROUNDING
        if not due or (self.closing and not was_due) or not self.started:
            entry.owed = entry.owed or due  # before the start it waits, and has been dealt with up to now
            self.enqueue(entry, steady, due_at)
        else:
            entry.handle.next_run_at = due_at + self.timeline.offset if steady else due_at
            self.make_ready(entry, steady, due_at, self.due.next_sequence())

    def _settle_clock_set(
        self, entry: Entry, plan: Plan, error: str | None, wall: float, line: float
    ) -> None:
        if entry.queued == WALL and entry.status is SCHEDULED:
            self.withdraw(entry)
            if error is not None or plan.due_at is None:
                self._follow(entry, None, plan, error, wall, line)
                return
            self._take_plan(entry, plan)
            self._place(entry, plan.due_at, wall, line)
            if self.wants_writes:
                self.write(entry)
        elif entry.status is PAUSED and entry.live is None and plan.due_at is not None:
            self._take_plan(entry, plan)
            entry.handle.next_run_at = plan.due_at
            if self.wants_writes:
                self.write(entry)

    def _settle_revive(self, entry: Entry, plan: Plan, wall: float, line: float) -> None:
        if plan.due_at is None or entry.status is not FAILED:
            return
        self.dead.pop(entry.handle.task.id, None)
        self.finished.pop(entry.handle.task.id, None)
        self.withdraw(entry)
        entry.attempt = entry.handle.attempt = 0
        self._take_plan(entry, plan)
        self._place(entry, plan.due_at, wall, line)
        self.move(entry, TaskChange.REVIVE, wall)
