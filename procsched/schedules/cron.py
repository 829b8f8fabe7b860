"""Cron: wall-clock times of a zone, under the rule of Debian's cron for clock changes.

`wall.py` knows which wall times an expression names, `zones.py` when a zone's clock changes. Here the two
meet: time is cut into pieces of constant offset, and `_pieces` alone says what a change does.

    UTC    -------- piece --------T------- piece ---------->
    wall   ...  01:58  01:59  | (gap) |  03:00  03:01  ...      a fixed time in the gap lands on T
    wall   ...  02:58  02:59  |  02:00 ... 02:59  |  03:00      a fixed job sits out the second pass
"""

from __future__ import annotations

import math

from procsched._core.checks import unix_seconds, whole_number
from procsched._core.names import check_names
from procsched.errors import ScheduleError, ValidationError
from procsched.schedules.base import slot_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from typing import Any, Final, Never
    from zoneinfo import ZoneInfo

    from procsched._core.models import ExecutionRecord
    from procsched.schedules.wall import WallRule
    from procsched.schedules.zones import Zone

# Seconds. cron(8) NOTES: a change of the clock by more than three hours is a correction, not daylight saving.
CORRECTION: Final = 3 * 3600
DAY: Final = 86_400


class CronSchedule:
    """Due times by a cron expression, on the wall clock of a zone.

    Five fields (minute, hour, day-of-month, month, day-of-week), or six with the second first, or one of
    ``@hourly @daily @midnight @weekly @monthly @yearly @annually``. Fields take lists, ranges, steps
    (``a/s``: from a to the end of the field), JAN to DEC, SUN to SAT, 7 as Sunday, ``L``, ``LW``, ``5L`` and
    ``FRI#2``. A day must match both day fields where either begins with ``*``, else one of them. A step begins
    anew with each hour (day, month, ...), so ``*/90 * * * *`` is hourly: for every 90 minutes there is `FixedRate`.

    When the zone's clock changes by up to three hours, a job whose minute or hour field begins with ``*``
    follows the wall: nothing in the gap, both passes of a repeated hour. Any other job runs once at the end
    of the gap for all its times in it, and only in the first pass of a repeated hour. A larger change is a
    correction: the new time simply applies. Source: cron(8) NOTES and crontab(5), Debian.

    A value: immutable, equal and hashed by `expression` and `tz`, survives pickling.

    Args:
        expression: the fields, parted by blanks or tabs.
        tz: an IANA name, or a ZoneInfo, which stands for its key.
    Raises:
        ScheduleError: the expression is wrong or never matches, naming the field, the value and a remedy; or
            there is no such zone.
    """

    __slots__ = ("_rule", "_zone", "expression", "tz")
    __match_args__ = ("expression",)
    # Tells the scheduler that it answers by computing alone, so that it may be asked where nobody can wait.
    computed = True

    expression: str
    tz: str
    _rule: WallRule
    _zone: Zone

    def __init__(self, expression: str, *more: Never, tz: str | ZoneInfo = "UTC", **unknown: Never) -> None:
        if more:
            raise ValidationError(f"CronSchedule takes one expression, and the zone by name: tz={more[0]!r}")
        check_names(unknown, ("expression", "tz"), of="CronSchedule")
        # Here and not above: `datetime`, `zoneinfo` and `cronsim` would double the time to import procsched.
        from procsched.schedules.wall import wall_rule
        from procsched.schedules.zones import Zone, zone_key

        key = zone_key(tz)
        put = object.__setattr__
        put(self, "_rule", wall_rule(expression))
        put(self, "_zone", Zone(key))
        put(self, "expression", expression)
        put(self, "tz", key)

    def next_after(self, timestamp: float | datetime) -> float | None:
        """Return the first due time strictly later than `timestamp`.

        Args:
            timestamp: UNIX seconds, wall clock, or an aware datetime.
        Returns:
            UNIX seconds, whole; None when the calendar ends (year 9999) before another one.
        Raises:
            ScheduleError: `timestamp` is not finite or a naive datetime.
        Thread safety: pure, call from anywhere.
        """
        start = _whole("timestamp", timestamp) + 1
        # Behind the last year there is no match, before the first one the search begins with it.
        while True:
            offset = self._zone.offset(start)
            match = self._rule.first(start + offset)
            if match is None:
                return None
            # The clock may change before the match: then the due time lies near it, or beyond this stretch.
            stop = match - offset + DAY
            for lands, begin, end, offset in self._pieces(start, stop):
                if lands is not None:
                    return float(lands)
                match = self._rule.first(begin + offset)
                if match is not None and match < end + offset:
                    return float(match - offset)
            start = stop

    def next_times(self, n: int, after: float | datetime) -> list[float]:
        """Return the first `n` due times strictly later than `after`, rising; fewer where the calendar ends.

        Units and thread safety as in `next_after`.

        Raises:
            ValidationError: `n` is no whole number of at least 0.
            ScheduleError: `after` is not finite or a naive datetime.
        """
        whole_number("n", n, 0)
        _whole("after", after)  # refused under this name
        times: list[float] = []
        while len(times) < n:
            due = self.next_after(after)
            if due is None:
                break
            times.append(due)
            after = due
        return times

    def first_run(self, now: float) -> float | None:
        """Return the first due time strictly later than `now`, as `next_after` does."""
        return self.next_after(now)

    def next_run(self, record: ExecutionRecord, now: float) -> float | None:
        """Return the due time that follows the run of `record`, in UNIX seconds; None when there is none.

        It is strictly later than `now`, so slots that came while the run waited for a worker or went on are
        skipped, and strictly later than the run's own slot, so that a wall clock that was set back meanwhile
        runs no slot twice. A clock set back by more than three hours is a correction, as in cron(8): then only
        `now` counts.
        """
        slot = slot_of(record)
        return self.next_after(now if now < slot - CORRECTION else max(now, slot))

    def passed(self, after: float, until: float, newest: int) -> tuple[list[float], int]:
        """Return the due times d with `after` < d <= `until`: the newest ones, and how many in all.

        Args:
            after: UNIX seconds, wall clock; need not be a due time.
            until: UNIX seconds, inclusive; nothing passed where it is not later than `after`.
            newest: at most so many due times are listed; 0 only counts.
        Returns:
            The newest due times, oldest first, and the number of all, listed or not.
        Raises:
            ScheduleError: a time is not finite.
        Thread safety: pure, call from anywhere. A millisecond or two for ten years, whatever the expression.
        """
        from procsched.schedules.zones import EARLIEST, LATEST

        start, stop = max(_whole("after", after), EARLIEST) + 1, min(_whole("until", until), LATEST) + 1
        if stop <= start:
            return [], 0
        rule = self._rule
        pieces = list(self._pieces(start, stop))
        total = sum(
            (lands is not None) + (rule.count(begin + offset, end + offset) if begin < end else 0)
            for lands, begin, end, offset in pieces
        )
        times: list[float] = []
        for lands, begin, end, offset in reversed(pieces):
            wall = rule.last(end + offset - 1)
            while wall is not None and wall >= begin + offset and len(times) < newest:
                times.append(float(wall - offset))
                wall = rule.last(wall - 1)
            if lands is not None and len(times) < newest:
                times.append(float(lands))
            if len(times) >= newest:
                break
        times.reverse()
        return times, total

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[int | None, int, int, int]]:
        """Cut `start` <= t < `stop` where the zone's clock changes.

        Yields:
            (lands, begin, end, offset), in order. Due are all t in `begin` <= t < `end` whose wall time
            t + `offset` matches, and before them `lands` where it is not None: the end of a gap into which a
            fixed time fell.
        """
        zone, rule = self._zone, self._rule
        # A change that lies longer back than this has no second pass that could still go on.
        since = start - CORRECTION
        offset = zone.offset(since)
        begin = start
        lands: int | None = None
        while True:
            change = zone.first_change(since, stop - 1)
            end = stop if change is None else change[0]
            if begin < end or lands is not None:
                yield lands, begin, end, offset
            if change is None:
                return
            since, ahead = change
            shift = ahead - offset
            begin, lands = max(begin, since), None
            if not rule.wildcard and abs(shift) <= CORRECTION:
                if shift < 0:
                    begin = max(begin, since - shift)
                elif since >= start:
                    gap, over = since + offset, since + ahead
                    # A match on the end of the gap is due there by itself, and makes one run with these.
                    if rule.count(gap, over) and not rule.count(over, over + 1):
                        lands = since
            offset = ahead

    def __setattr__(self, name: str, value: object) -> None:
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"CronSchedule is frozen: {name!r} cannot be changed")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CronSchedule):
            return NotImplemented
        return (self.expression, self.tz) == (other.expression, other.tz)

    def __hash__(self) -> int:
        return hash((CronSchedule, self.expression, self.tz))

    def __repr__(self) -> str:
        return f"CronSchedule({self.expression!r}, tz={self.tz!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuilt, (self.expression, self.tz))


def _rebuilt(expression: str, tz: str) -> CronSchedule:
    return CronSchedule(expression, tz=tz)


def _whole(name: str, value: float | datetime) -> int:
    """Return the whole UNIX second at or before `value`, the argument `name`."""
    try:
        return math.floor(unix_seconds(name, value))
    except ValidationError as error:
        raise ScheduleError(str(error)) from None
