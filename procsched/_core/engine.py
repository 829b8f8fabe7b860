"""The decisions of the scheduler: what is due, what starts, what follows, without threads, clocks or locks.

    due times --promote--> ready order --begin--> running --end--> what follows: a slot, a retry, the end
        ^                                                              |
        '--------------------------------------------------------------'

Methods are given the time as `wall` (UNIX seconds) and `line` (the same moment on the steady line). What
has to be carried out collects in the lists of the registry. A schedule that may be slow is never asked here:
it becomes a `Question` that the driver answers with no lock held and brings back to `settle`.
"""

from __future__ import annotations

import math

from procsched._core import planning
from procsched._core.entries import (
    AFTER_LOSS,
    AFTER_RUN,
    AGAIN,
    CLOCK_SET,
    LENT,
    MISFIRE,
    NOWHERE,
    PAUSED,
    READY,
    RESUME,
    RETRYING,
    REVIVE,
    RUNNING,
    SCHEDULED,
    STEADY,
    WALL,
    Entry,
    Question,
)
from procsched._core.models import MisfirePolicy, Outcome, OverrunPolicy, ScheduledTask
from procsched._core.positions import position_of
from procsched._core.queues import ROUNDING
from procsched._core.restoring import Restoring
from procsched._core.transitions import TaskChange

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from procsched._core.entries import LiveAttempt, Waiter
    from procsched._core.models import ExecutionRecord, Task
    from procsched._core.timeline import Timeline
    from procsched.protocols import Schedule


class Engine(Restoring):
    """The whole of the rules: on top of what follows and what is asked for, time and dispatch."""

    def __init__(self, timeline: Timeline, draw: Callable[[], float], **limits: int) -> None:
        super().__init__(timeline, draw, **limits)
        self._last_line = self._last_wall = -math.inf  # at the last look

    # --- time ------------------------------------------------------------------------------------------

    def look(self, wall: float, steady: float, awake: float) -> float:
        """Compare the clocks, follow a step or a suspend, and return this moment on the steady line."""
        slept = self.timeline.asleep(steady, awake)
        step = self.timeline.notice(wall, steady)
        line = self.timeline.line(steady)
        if slept:
            self._open_window(self._last_line, self._last_wall)
        if step is not None:
            self._follow_step(step, wall, line)
        self._last_line, self._last_wall = line, wall
        return line

    def began(self) -> None:
        """The scheduler starts: slots that passed before are misfires, save those due when scheduled."""
        self.started = True
        self._open_window(-math.inf, -math.inf)

    def _open_window(self, line: float, wall: float) -> None:
        if not self.started:
            return  # all that passes before the start is dealt with then
        if self._window is not None:
            line, wall = min(line, self._window[0]), min(wall, self._window[1])
        self._window = (line, wall)

    def _follow_step(self, step: float, wall: float, line: float) -> None:
        if step > 0:
            self._open_window(math.inf, self._last_wall)
        for entry in self.entries.values():
            handle = entry.handle
            # A retry waits for a steady time, also in a pause, whatever the schedule.
            steady = entry.steady or entry.ended is not None
            if handle.next_run_at is not None and (
                entry.queued == STEADY or (steady and entry.status is PAUSED)
            ):
                handle.next_run_at += step
            elif step < 0 and entry.kind == planning.OTHER and not entry.steady and _awaits_slot(entry, wall):
                # The new time may have slots in between.
                last = handle._history[-1] if handle._history else self._record_of_slot(entry)
                self._ask(Question(CLOCK_SET, entry, wall, record=last), wall, line)
        if self.wants_writes:
            self._write_moved()
        way = "forward" if step > 0 else "back"
        self.tell(None, wall, None, "clock", f"the wall clock was set {way} by {abs(step):.3f} s")

    def _write_moved(self) -> None:
        """Have everything stored again whose times have moved with the wall clock."""
        for entry in self.entries.values():
            # A retry that waits, be it for a resume, waits for a steady time; what has failed may be revived.
            if self.may_go_on(entry) and (entry.steady or entry.ended is not None):
                self.write_again(entry)

    def write_again(self, entry: Entry) -> None:
        """Have an entry stored anew, as about to start where that was stored of it: it may start at any moment."""
        if entry.queued == LENT and self.wants_positions:
            self.intend(entry)
        else:
            self.write(entry)

    # --- in --------------------------------------------------------------------------------------------

    def add(
        self, task: Task, schedule: Schedule, kind: int, steady: bool, payload: Any, first: float, now: float
    ) -> Entry:
        """Register a task whose first slot is `first`; both it and `now` are on the schedule's line."""
        entry = Entry(ScheduledTask(task, schedule), payload, kind, steady, first)
        entry.owed = first <= now + ROUNDING
        return self._register(entry, now + self.timeline.offset if steady else now)

    def replace(
        self,
        old: Entry,
        same: bool,
        wall: float,
        line: float,
        new: tuple[Task, Schedule, int, bool, Any, float, float],
    ) -> Entry:
        """Register a task in the place of `old`, which is cancelled; a live run of that goes on.

        It stays paused where that was. With the same schedule it waits for the slot that `old` waits for, on the same
        grid, also where that slot has passed, and catches up with no more than it may; where a run of `old` goes on, or
        is not done with, for its first one.

        Args:
            same: whether both have the same schedule.
            new: as for `add`.
        """
        task, schedule, kind, steady, payload, first, now = new
        entry = Entry(ScheduledTask(task, schedule), payload, kind, steady, first)
        entry.owed = first <= now + ROUNDING
        scheduled, paused = old.status is SCHEDULED, old.status is PAUSED
        if same and old.live is None and old.ended is None and (scheduled or paused):
            queue = (old.slot, *old.backlog)
            kept = queue[-task.max_catch_up :]
            entry.slot, entry.backlog = kept[0], kept[1:]
            entry.dealt, entry.anchor = old.dealt, old.anchor
            entry.stands_for = old.stands_for if kept == queue else 0
            self.counters["skipped"] += len(queue) - len(kept)
            entry.owed = old.owed or (scheduled and self._waits_for_worker(old, wall, line))
        if same:
            entry.due_wall = (
                old.due_wall
            )  # what has run by then does not run again by a clock that is set back
        paused = paused and not old.held  # not by us, for its code could not be loaded
        asked = None
        if same and scheduled and old.queued == NOWHERE:  # it is being asked which of its slots were missed
            asked = next(each for each in self.open_questions if each.entry is old and each.why == MISFIRE)
        self.cancel(old, wall)
        self.release_key(old)
        self.dead.pop(old.handle.task.id, None)  # it is not revived beside the one that has its place
        self._register(entry, wall, paused)
        if asked is not None:  # the answer would come too late: it is asked anew, of this one
            self.withdraw(entry)
            self._ask(Question(MISFIRE, entry, asked.now, owed=asked.owed), wall, line)
        return entry

    def _register(self, entry: Entry, wall: float, paused: bool = False) -> Entry:
        task = entry.handle.task
        self.entries[task.id] = entry
        if task.key is not None:
            self.keys[task.key] = entry
        self.enqueue(entry, entry.steady, entry.slot)
        self.tell(entry, wall)
        if paused:  # with a single write: it is stored as nothing else before
            self.withdraw(entry)
            self.move(entry, TaskChange.PAUSE, wall)
        elif self.wants_writes:
            self.write(entry)
        return entry

    # --- due -> ready -> running -----------------------------------------------------------------------

    def promote(self, wall: float, line: float, limit: int) -> bool:
        """Move up to `limit` due entries to the ready order. Return whether it moved any."""
        if self.closing:
            return False
        moved = 0
        for steady, now in ((True, line), (False, wall)):
            while moved < limit:
                item = self.due.pop_due(steady, now)
                if item is None:
                    break
                moved += 1
                self._promote_one(item[4], steady, item[0], item[2], wall, line)
        if moved < limit:
            self._window = None  # all that passed in it has been dealt with
        return moved > 0

    def _promote_one(
        self, entry: Entry, steady: bool, due_at: float, sequence: int, wall: float, line: float
    ) -> None:
        entry.queued = NOWHERE
        if entry.status is SCHEDULED:
            now = line if steady else wall
            if self._window is not None:
                since = self._window[0 if steady else 1]
                if due_at <= now - ROUNDING and since < math.inf:
                    owed = entry.owed or due_at <= since
                    self._ask(Question(MISFIRE, entry, now, owed=owed), wall, line)
                    return
            if entry.kind == planning.RATE:
                schedule: Any = entry.handle.schedule
                if schedule.on_overrun is OverrunPolicy.CATCH_UP:
                    late = planning.plan_late(entry.slots(), now)
                    if late is not None:
                        self._take_plan(entry, late)
                        due_at = entry.slot
        self.make_ready(entry, steady, due_at, sequence)
        skips = entry.status is SCHEDULED and entry.handle.task.misfire is MisfirePolicy.SKIP
        if skips and self.wants_positions:
            # It was due while somebody could run it, and is no misfire, also where a crash is what it waits for.
            self.write(entry)

    def pop_ready(self) -> Entry | None:
        """Take the first entry of the ready order, to be begun at once."""
        if self.returning:
            return None
        entry: Entry | None = self.ready.pop()
        if entry is not None:
            entry.queued = NOWHERE
        return entry

    def lend(self) -> None:
        """The first of the ready order is sent ahead: it begins (`begin_lent`), or comes back (`take_back`)."""
        self.ready.lend().queued = LENT

    def take_back(self, entry: Entry) -> None:
        """An entry that was lent has not begun: it is ready as before."""
        self.ready.give_back(entry)
        entry.queued = READY

    def intend(self, entry: Entry) -> None:
        """Have the attempt with which a lent entry will begin stored, before it may.

        `take_back` does not undo that; who takes it back has the entry stored as it is.
        """
        snapshot, position = entry.handle.snapshot(), position_of(entry, self.timeline.offset)
        snapshot.attempt, position.run = self.numbers(entry)
        if entry.status is not RETRYING:
            position.due_at = position.slot
        position.after, position.ended_at, position.retry_at = "", None, None
        position.live = True
        snapshot.status = RUNNING
        snapshot.next_run_at = None
        self.writes.append((snapshot, None, position))

    def begin_lent(self, entry: Entry, call: LiveAttempt, wall: float) -> None:
        """An attempt of an entry that was lent starts as `call`."""
        self.ready.begin(entry)
        entry.queued = NOWHERE
        self.begin(entry, call, wall)

    @staticmethod
    def numbers(entry: Entry) -> tuple[int, int]:
        """Return the numbers of attempt and run with which an entry would begin now."""
        return (entry.attempt + 1, entry.run) if entry.status is RETRYING else (1, entry.run + 1)

    def begin(self, entry: Entry, call: LiveAttempt, wall: float) -> None:
        """An attempt of `entry` starts as `call`. This is where RUNNING is written."""
        handle = entry.handle
        first = entry.status is not RETRYING
        entry.attempt, entry.run = self.numbers(entry)
        if first:
            entry.due_wall = entry.slot + self.timeline.offset if entry.steady else entry.slot
        handle.attempt = entry.attempt
        handle.next_run_at = None
        entry.ended = None
        entry.live = call
        self.running[handle.task.id] = entry
        self.counters["started"] += 1
        self.move(entry, TaskChange.START, wall)

    # --- what a signal handler has torn ----------------------------------------------------------------

    def mend(self, wall: float) -> None:
        """Make every entry whole again, and the books from them. Linear in the number of tasks.

        For what was interrupted in adding, requests, lending and taking back; it is then carried out or undone.
        """
        ready, lent = self.ready.mend()
        places = (
            (LENT, lent),
            (READY, ready),
            (STEADY, self.due.steady.mend()),
            (WALL, self.due.wall.mend()),
        )
        # Who asked these was interrupted, or finds that the answer comes too late and asks again.
        self.open_questions -= {each for each in self.open_questions if each.why in (RESUME, REVIVE)}
        asked = {question.entry for question in self.open_questions}
        for name, entry in tuple(self.entries.items()):
            waits = entry.status in (SCHEDULED, RETRYING)
            entry.queued = next((place for place, entries in places if entry in entries), NOWHERE)
            if entry.queued != NOWHERE and not (waits and entry.live is None):
                self.withdraw(entry)
            if entry.live is not None:
                self.running[name] = entry
                if waits:
                    self.move(entry, TaskChange.START, wall)
            elif entry.status.is_terminal:
                if name not in self.finished:
                    self.wake_waiters(entry, None, "it was cancelled")
                    self.release_key(entry)
                    self.retire(entry)
            elif waits and entry.queued == NOWHERE and entry not in asked:
                if entry.status is RETRYING and entry.ended is not None and entry.ended.retry_at is not None:
                    self.enqueue(entry, True, entry.ended.retry_at)
                else:
                    self.enqueue(entry, entry.steady, entry.slot)
        ended = sum(self.counters[outcome.value] for outcome in Outcome)
        self.counters["started"] = ended + len(self.running)
        self.sooner = True  # the timer may not have been told

    # --- waiting and shutdown --------------------------------------------------------------------------

    def is_quiet(self, wall: float, line: float, timing: bool) -> bool:
        """Return whether nothing is due (while `timing`), waits for a worker, runs or is being planned."""
        if self.running or len(self.ready) or self.open_questions:
            return False
        return not (timing and self.due.is_due(line, wall))

    def wait_on(self, entry: Entry, waiter: Waiter) -> tuple[ExecutionRecord | None, str] | None:
        """Note who waits for the end of the current or next run, or return the answer that is there."""
        history = entry.handle._history
        if entry.live is None:
            if entry.status.is_terminal:
                return (history[-1], "") if history else (None, f"it is {entry.status.value} and never ran")
            if entry.status is PAUSED and entry.ended is not None and entry.ended.verdict != AGAIN:
                return entry.ended.record, ""
        if entry.waiters is None:
            entry.waiters = []
            self.waiting[entry.handle.task.id] = entry
        entry.waiters.append(waiter)
        return None

    def stop_waiting(self, entry: Entry, waiter: Waiter) -> None:
        """Forget a waiter whose time was up."""
        if entry.waiters and waiter in entry.waiters:
            entry.waiters.remove(waiter)
            if not entry.waiters:
                entry.waiters = None
                del self.waiting[entry.handle.task.id]

    def give_back(self, wall: float, line: float) -> list[str]:
        """Return what is due and not started to its slot, for a shutdown; counted, told and stored.

        A task that waits for its first attempt is SCHEDULED, one that waits for a further one RETRYING.
        """
        ids = []
        self.returning = True
        for entry in self.ready.live_entries():
            self.withdraw(entry)
            self.counters["returned"] += 1
            ids.append(entry.handle.task.id)
            if entry.status is RETRYING:
                assert entry.ended is not None
                assert entry.ended.retry_at is not None
                self.enqueue(entry, True, entry.ended.retry_at)
                self.tell(entry, wall, None, "status", "returned by the shutdown")
                if self.wants_writes:
                    self.write(entry)
            else:
                self.enqueue(entry, entry.steady, entry.slot)
                self.move(entry, TaskChange.SCHEDULE, wall, None, "returned by the shutdown")
        return ids

    def abandon_questions(self, wall: float, line: float) -> list[str]:
        """Go on without what no schedule has answered in time. Every attempt has its record.

        Returns:
            The ids of tasks whose slot was due; it is returned, as by `give_back`.
        """
        self.questions.clear()
        ids = []
        for question in list(self.open_questions):
            entry = question.entry
            if question.why in (AFTER_RUN, AFTER_LOSS):
                plan, error = None, "its schedule did not answer before the shutdown"
                if planning.is_computed(entry.handle.schedule):  # it stood behind one that does not answer
                    plan, error = question.answer(), ""
                self.settle(question, plan, error or None, wall, line)
            elif question.why == MISFIRE and entry.generation == question.generation:
                self.counters["returned"] += 1
                ids.append(entry.handle.task.id)
                self.enqueue(entry, entry.steady, entry.slot)
                self.move(entry, TaskChange.SCHEDULE, wall, None, "returned by the shutdown")
        self.open_questions.clear()
        return ids

    def dismiss_waiters(self, why: str) -> None:
        """Tell all who wait that no run will come."""
        for entry in list(self.waiting.values()):
            self.wake_waiters(entry, None, why)


def _awaits_slot(entry: Entry, wall: float) -> bool:
    """Return whether the task waits for a slot that is still to come, or will when it is resumed."""
    if entry.slot <= wall:
        return False
    if entry.status is SCHEDULED:
        return entry.queued == WALL
    return entry.status is PAUSED and entry.live is None and entry.ended is None
