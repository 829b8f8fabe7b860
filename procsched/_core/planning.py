"""Which slots become runs: what follows a run, and what becomes of slots that passed. Pure.

Two rules meet here and never mix. *Overrun*: slots that passed while the task's own run was alive or waiting
for a worker, or because the timer was late, follow the schedule. *Misfire*: slots that passed while nothing
could have run them (paused, asleep, before the start, a wall clock set forward) follow the task's policy.

All times of one call are seconds on one line: the steady line for steady schedules, else the wall clock.
"""

from __future__ import annotations

import math

from procsched._core.models import ExecutionRecord, MisfirePolicy, OverrunPolicy
from procsched._core.queues import ROUNDING
from procsched.errors import ScheduleError, ValidationError
from procsched.schedules import After, FixedDelay, FixedRate, OneTime
from procsched.schedules.cron import CORRECTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from procsched.protocols import Schedule

ONCE, DELAY, RATE, OTHER = range(4)
"""Kinds of schedules. The first three are planned in a microsecond; `OTHER` may be slow, raise, or hang."""

_KINDS: Final[dict[type, int]] = {OneTime: ONCE, After: ONCE, FixedDelay: DELAY, FixedRate: RATE}

# How many passed slots of a foreign schedule are stepped through, beyond those that may become runs.
STEPS: Final = 1000

# A wall clock that is slewed runs up to 0.05 % fast or slow (adjtimex(2): 500 ppm); twice that is kept as a
# margin of waits for a wall time, from waits on where it is more than the timer's own latency.
SLEW: Final = 0.001
LONG_WAIT: Final = 5.0  # seconds


def kind_of(schedule: object) -> int:
    """Return the kind of a schedule; a subclass of a given one is foreign, since it may answer anything."""
    return _KINDS.get(type(schedule), OTHER)


def is_computed(schedule: object) -> bool:
    """Return whether a schedule may take milliseconds, but runs no code of a user's. A subclass may do anything."""
    return "computed" in type(schedule).__dict__ or kind_of(schedule) != OTHER


def check_schedule(schedule: object) -> None:
    """Refuse what is no schedule."""
    if isinstance(schedule, type):
        raise ValidationError(f"schedule must be an object, not the class {schedule.__name__}: call it first")
    if isinstance(schedule, str):
        raise ValidationError(f"schedule must be an object, not {schedule!r}: use CronSchedule({schedule!r})")
    for method in ("first_run", "next_run"):
        if not callable(getattr(schedule, method, None)):
            raise ValidationError(
                f"schedule must have first_run(now) and next_run(record, now); {type(schedule).__name__} "
                f"{schedule!r} has no {method}: use OneTime, After, FixedDelay, FixedRate or CronSchedule"
            )


class Plan:
    """What becomes of a task's slots.

    Attributes:
        due_at: the slot of the next run, or None where there is none.
        dealt: the newest slot that is accounted for: by this run, the backlog, or as missed.
        backlog: further slots that passed and become runs of their own, one after another, oldest first.
        stands_for: how many slots the run stands for beyond its own.
        missed: slots that a misfire took away, those of `stands_for` included.
        skipped: slots that an overrun took away.
    """

    __slots__ = ("backlog", "dealt", "due_at", "missed", "skipped", "stands_for")

    def __init__(
        self,
        due_at: float | None,
        dealt: float | None = None,
        backlog: tuple[float, ...] = (),
        stands_for: int = 0,
        missed: int = 0,
        skipped: int = 0,
    ) -> None:
        self.due_at = due_at
        self.dealt = due_at if dealt is None else dealt
        self.backlog = backlog
        self.stands_for = stands_for
        self.missed = missed
        self.skipped = skipped

    def __repr__(self) -> str:
        return f"Plan({', '.join(f'{name}={getattr(self, name)!r}' for name in sorted(self.__slots__))})"


class Slots:
    """Where a task stands in its schedule: the input of a plan, taken as a copy.

    Attributes:
        schedule, anchor: the rule, and the first slot of its grid (rates only).
        slot: the slot of the run that ended or waits.
        dealt, backlog: as in `Plan`.
        limit: the task's `max_catch_up`.
        policy: its misfire policy.
    """

    __slots__ = ("anchor", "backlog", "dealt", "limit", "policy", "schedule", "slot")

    def __init__(
        self,
        schedule: Schedule,
        slot: float,
        *,
        anchor: float | None = None,
        dealt: float | None = None,
        backlog: tuple[float, ...] = (),
        limit: int = 100,
        policy: MisfirePolicy = MisfirePolicy.RUN_ONCE,
    ) -> None:
        self.schedule = schedule
        self.anchor = slot if anchor is None else anchor
        self.slot = slot
        self.dealt = slot if dealt is None else dealt
        self.backlog = backlog
        self.limit = limit
        self.policy = policy

    def after(self, plan: Plan) -> Slots:
        """Return where the task stands once it follows `plan`, which has a due time."""
        assert plan.due_at is not None
        return Slots(
            self.schedule,
            plan.due_at,
            anchor=self.anchor,
            dealt=plan.dealt,
            backlog=plan.backlog,
            limit=self.limit,
            policy=self.policy,
        )


def plan_first(schedule: Schedule, now: float) -> float | None:
    """Return the first slot of a task that is scheduled at `now`; None for never.

    Raises:
        ScheduleError: the schedule gave something that is no time. What it raises itself passes through.
    """
    return checked_due(schedule, "first_run", schedule.first_run(now))


def plan_next(slots: Slots, record: ExecutionRecord, ended: float, now: float) -> Plan:
    """Return what follows a run that is over: the schedule's own rule for overruns.

    Args:
        slots: the slot it stood for, and what is known of others.
        record: of its last attempt, with times on the schedule's line.
        ended: when it ended.
        now: slots up to here have passed.
    Raises:
        ScheduleError: the schedule gave something that is no time. What it raises itself passes through.
    """
    schedule = slots.schedule
    kind = kind_of(schedule)
    if kind == RATE:
        return _next_of_rate(slots, now)
    if kind == ONCE:
        return Plan(None)
    if kind == DELAY:
        return Plan(ended + schedule.delay)  # type: ignore[attr-defined]
    if slots.backlog:
        return Plan(slots.backlog[0], slots.dealt, slots.backlog[1:])
    due = checked_due(schedule, "next_run", schedule.next_run(record, now))
    passed = getattr(schedule, "passed", None)
    skipped = 0
    if callable(passed) and due is not None and slots.dealt < now:
        skipped = passed(slots.dealt, min(now, due - ROUNDING), 0)[1]
    return Plan(due, skipped=skipped)


def _next_of_rate(slots: Slots, now: float) -> Plan:
    schedule: Any = slots.schedule
    backlog, limit, dealt = slots.backlog, slots.limit, slots.dealt
    until = now + ROUNDING
    if dealt + schedule.period > until:  # nothing has passed: the usual case
        if backlog:
            return Plan(backlog[0], dealt, backlog[1:])
        return Plan(schedule.aligned(slots.anchor, dealt + schedule.period))
    if schedule.on_overrun is OverrunPolicy.CATCH_UP:
        times, total = _passed(slots, until, limit)
        queue = (*backlog, *times)
        skipped = total - len(times) + max(0, len(queue) - limit)
        queue = queue[-limit:]
        return Plan(queue[0], queue[-1], queue[1:], skipped=skipped)
    if backlog:  # a misfire's slots still run one by one; what passes meanwhile is counted behind the last
        return Plan(backlog[0], dealt, backlog[1:])
    total = schedule.passed(dealt, until, 0)[1]
    return Plan(schedule.aligned(slots.anchor, dealt + (total + 1) * schedule.period), skipped=total)


def plan_late(slots: Slots, now: float) -> Plan | None:
    """Return what a rate that catches up does where more slots passed than it may run, or None.

    For a slot that was found due far too late by the timer, before its run.
    """
    schedule: Any = slots.schedule
    if now + ROUNDING < slots.dealt + (slots.limit - len(slots.backlog)) * schedule.period:
        return None
    return _caught_up(slots, now)


def plan_paused(slots: Slots, now: float) -> Plan:
    """Return what a pause leaves of a rate whose slot waits for a worker: slots up to `now` are no misfires."""
    schedule: Any = slots.schedule
    if schedule.on_overrun is OverrunPolicy.CATCH_UP:
        return _caught_up(slots, now)
    times, total = _passed(slots, now + ROUNDING, 1)
    return Plan(slots.slot, times[-1] if times else slots.dealt, slots.backlog, skipped=total)


def _caught_up(slots: Slots, now: float) -> Plan:
    times, total = _passed(slots, now + ROUNDING, slots.limit)
    queue = (slots.slot, *slots.backlog, *times)
    skipped = total - len(times) + max(0, len(queue) - slots.limit)
    queue = queue[-slots.limit :]
    # Where nothing passed that stays as it is: a run that stands for missed slots may have an older one of its own.
    dealt = times[-1] if times else slots.dealt
    return Plan(queue[0], dealt, queue[1:], skipped=skipped)


def plan_misfire(slots: Slots, now: float, owed: bool) -> Plan:
    """Return what becomes of a waiting slot, and of those after it, that nothing could run until `now`.

    Args:
        slots: the first slot that may have passed, with what is known of others.
        owed: the slot was due before, and waited for a worker (and the backlog for its run): that is no misfire,
            so it runs in any case.
    Raises:
        ScheduleError: the schedule gave something that is no time. What it raises itself passes through.
    """
    if slots.slot > now - ROUNDING:
        return Plan(slots.slot, slots.dealt, slots.backlog)
    if slots.policy is MisfirePolicy.SKIP:
        return _skip_missed(slots, now - ROUNDING, owed)
    keep = slots.limit if slots.policy is MisfirePolicy.CATCH_UP else 1
    times, total = _passed(slots, now + ROUNDING, keep)
    if owed and not total:
        return Plan(slots.slot, slots.dealt, slots.backlog)  # nothing was missed: all of it waited
    queue = (slots.slot, *slots.backlog, *times)
    others = len(queue) - len(times) + total - 1
    if slots.policy is MisfirePolicy.RUN_ONCE:
        return Plan(queue[-1], stands_for=others, missed=others)
    kept = queue[-slots.limit :]
    return Plan(kept[0], kept[-1], kept[1:], missed=others + 1 - len(kept))


def _skip_missed(slots: Slots, until: float, owed: bool) -> Plan:
    """Return the next slot later than `until`; one that is owed comes first."""
    schedule: Any = slots.schedule
    if owed:
        times, total = _passed(slots, until, 1)
        return Plan(slots.slot, times[-1] if times else slots.dealt, slots.backlog, missed=total)
    known = 1 + len(slots.backlog)
    kind = kind_of(schedule)
    if kind == ONCE:
        return Plan(None, missed=known)
    if kind == DELAY:
        return Plan(until + ROUNDING + schedule.delay, missed=known)
    if kind == RATE:
        total = schedule.passed(slots.dealt, until, 0)[1]
        following = schedule.aligned(slots.anchor, slots.dealt + (total + 1) * schedule.period)
        return Plan(following, missed=known + total)
    times, total = _passed(slots, until, 1)
    last = times[-1] if times else slots.dealt
    due = checked_due(schedule, "next_run", schedule.next_run(record_of_slot(last), until))
    return Plan(due, missed=known + total)


def _passed(slots: Slots, until: float, newest: int) -> tuple[list[float], int]:
    """Return the slots after those dealt with, up to `until`: the newest, and how many in all."""
    schedule: Any = slots.schedule
    if kind_of(schedule) == RATE:
        times, total = schedule.passed(slots.dealt, until, newest)
        return [schedule.aligned(slots.anchor, at) for at in times], total
    passed = getattr(schedule, "passed", None)
    if callable(passed):  # else an attribute of the user's that means something else
        answer: tuple[list[float], int] = passed(slots.dealt, until, newest)
        return answer
    return _stepped(schedule, slots.dealt, until, newest)


def _stepped(schedule: Schedule, after: float, until: float, newest: int) -> tuple[list[float], int]:
    """Find passed slots of a schedule that only knows the next one, by made-up runs of no length.

    Stops after `newest` + `STEPS` slots: then those found are the oldest, and the rest is not counted.
    """
    times: list[float] = []
    for _ in range(newest + STEPS):
        due = checked_due(schedule, "next_run", schedule.next_run(record_of_slot(after), after))
        if due is None or due > until or due <= after:
            break
        times.append(due)
        after = due
    return times[-newest:] if newest else [], len(times)


def plan_resumed(slots: Slots, record: ExecutionRecord, ended: float, now: float) -> Plan:
    """Return what follows at a resume from a run that ended while its task was paused.

    Slots up to the end of the run follow the schedule, those between it and `now` the misfire policy. Where the
    clock was set back since, the end of the run is yet to come, and only `now` counts.
    """
    plan = plan_next(slots, record, ended, min(ended, now))
    if plan.due_at is None:
        return plan
    resumed = plan_misfire(slots.after(plan), now, owed=plan.due_at <= ended + ROUNDING)
    resumed.skipped += plan.skipped
    return resumed


def plan_revived(slots: Slots, now: float) -> Plan:
    """Return the next slot from `now` on: of the same grid for a rate, at once for what has but one.

    Where the clock was set back meanwhile, a slot that has run is not run again (see `CronSchedule.next_run`).
    """
    schedule: Any = slots.schedule
    kind = kind_of(schedule)
    if kind == ONCE:
        return Plan(min(slots.slot, now))  # also where the clock was set back
    if kind == RATE:
        total = schedule.passed(slots.dealt, now + ROUNDING, 0)[1]
        return Plan(schedule.aligned(slots.anchor, slots.dealt + (total + 1) * schedule.period))
    due = plan_first(schedule, now)
    if due is not None and due <= slots.dealt <= now + CORRECTION:
        due = plan_first(schedule, slots.dealt)
    return Plan(due)


def plan_again(slots: Slots, last: ExecutionRecord | None, now: float) -> Plan:
    """Return the next slot after the wall clock was set back, for a task that waits for one.

    A slot that has run is not run again (see `CronSchedule.next_run`); others follow the new time at once.
    """
    schedule = slots.schedule
    if last is None:
        return Plan(plan_first(schedule, now))
    return Plan(checked_due(schedule, "next_run", schedule.next_run(last, now)))


def checked_due(schedule: object, method: str, due: Any) -> float | None:
    """Return what a schedule answered as a float, or None.

    Raises:
        ScheduleError: it is neither None nor a finite number of seconds.
    """
    if (type(due) is float and math.isfinite(due)) or due is None:
        return due
    if isinstance(due, bool) or not isinstance(due, (int, float)) or not math.isfinite(due):
        raise ScheduleError(
            f"{type(schedule).__name__}.{method} must return UNIX seconds or None, not {due!r}"
            f" ({type(due).__name__})"
        )
    return float(due)


def record_of_slot(slot: float) -> ExecutionRecord:
    """Return the record of a made-up run that took no time at `slot`."""
    return ExecutionRecord(1, slot, slot, True, due_at=slot)


def wait_seconds(steady: float | None, wall: float | None) -> float | None:
    """Return how long the timer may wait, or None for ever.

    Args:
        steady, wall: seconds until the next due time of each line, or None where there is none.
    Returns:
        Seconds. A long way to a wall time is gone in pieces of 99.9 %, because the wall clock may be slewed
        and then comes sooner than steady seconds say: two or three wake-ups in twelve hours.
    """
    if wall is not None and wall > LONG_WAIT:
        wall *= 1.0 - SLEW
    if steady is None or wall is None:
        seconds = wall if steady is None else steady
    else:
        seconds = min(steady, wall)
    return None if seconds is None else max(0.0, seconds)
