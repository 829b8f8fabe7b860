"""Which wall-clock times a cron expression names, without zones: next, last, and how many, by arithmetic.

A wall time is an int: seconds since 1970-01-01 00:00 on a clock that knows no zone. The days of a month that
match depend only on its length and its first weekday, so each of the 28 kinds of month is worked out once;
a time of day is a rank among hours x minutes x seconds. Hence ten years of seconds are counted in 120 steps.
Imported with the first `CronSchedule`, not before.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from datetime import date
from functools import lru_cache

from procsched.errors import ScheduleError
from procsched.schedules.fields import never_matches, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

DAY: Final = 86_400  # seconds
EPOCH: Final = date(1970, 1, 1).toordinal()
LAST_DAY: Final = date.max.toordinal()
LAST_YEAR: Final = date.max.year


def wall_rule(expression: str) -> WallRule:
    """Return the rule of `expression`: one parse for all the tasks that have the same one.

    Raises:
        ScheduleError: it is no text, wrong, or names a date that never comes.
    """
    if not isinstance(expression, str):
        raise ScheduleError(
            "expression must be text such as '0 6 * * MON-FRI', "
            f"not {type(expression).__name__} {expression!r}"
        )
    return _known_rule(expression)


@lru_cache(maxsize=512)
def _known_rule(expression: str) -> WallRule:
    return WallRule(expression)


class WallRule:
    """The wall times of one expression. Immutable but for a memo; safe to use from any thread.

    Attributes:
        wildcard: see `Fields.wildcard`.
    """

    __slots__ = ("_fields", "_hours", "_minutes", "_months", "_patterns", "_per_day", "_seconds", "wildcard")

    def __init__(self, expression: str) -> None:
        """Parse `expression`.

        Raises:
            ScheduleError: it is wrong, or names a date that never comes.
        """
        fields = parse(expression)
        self._fields = fields.rule
        self.wildcard = fields.wildcard
        self._seconds = sorted(fields.rule.seconds)
        self._minutes = sorted(fields.rule.minutes)
        self._hours = sorted(fields.rule.hours)
        self._months = fields.rule.months
        self._per_day = len(self._hours) * len(self._minutes) * len(self._seconds)
        # Filled on demand; two threads at worst write the same value twice.
        self._patterns: dict[tuple[int, int], tuple[int, ...]] = {}
        # 28 years hold every pairing of dates and weekdays, 29 February included.
        if not any(self._days(year, month) for year in range(2000, 2028) for month in self._months):
            raise never_matches(expression, fields.parts)

    def first(self, wall: int) -> int | None:
        """Return the first match at or after `wall`, or None when the calendar ends before one."""
        ordinal, time = divmod(wall, DAY)
        ordinal += EPOCH
        rank = self._rank(time)
        if rank == self._per_day:
            ordinal, rank = ordinal + 1, 0
        day = self._day_from(ordinal)
        if day is None:
            return None
        return (day - EPOCH) * DAY + self._time(rank if day == ordinal else 0)

    def last(self, wall: int) -> int | None:
        """Return the last match at or before `wall`, or None when the calendar begins after it."""
        ordinal, time = divmod(wall, DAY)
        ordinal += EPOCH
        rank = self._rank(time + 1) - 1
        if rank < 0:
            ordinal, rank = ordinal - 1, self._per_day - 1
        day = self._day_to(ordinal)
        if day is None:
            return None
        return (day - EPOCH) * DAY + self._time(rank if day == ordinal else self._per_day - 1)

    def count(self, start: int, stop: int) -> int:
        """Return how many matches w have `start` <= w < `stop`; both within the calendar, in order."""
        first_day, before = divmod(start, DAY)
        last_day, within = divmod(stop, DAY)
        total = self._count_days(first_day + EPOCH, last_day + EPOCH) * self._per_day
        if self._day_from(first_day + EPOCH) == first_day + EPOCH:
            total -= self._rank(before)
        if self._day_from(last_day + EPOCH) == last_day + EPOCH:
            total += self._rank(within)
        return total

    def _rank(self, time: int) -> int:
        """Return how many times of day that match are earlier than `time`, in seconds from midnight."""
        hour, rest = divmod(time, 3600)
        minute, second = divmod(rest, 60)
        index = bisect_left(self._hours, hour)
        rank = index * len(self._minutes)
        if index == len(self._hours) or self._hours[index] != hour:
            return rank * len(self._seconds)
        index = bisect_left(self._minutes, minute)
        rank = (rank + index) * len(self._seconds)
        if index == len(self._minutes) or self._minutes[index] != minute:
            return rank
        return rank + bisect_left(self._seconds, second)

    def _time(self, rank: int) -> int:
        """Return the time of day with this rank, in seconds from midnight."""
        rest, second = divmod(rank, len(self._seconds))
        hour, minute = divmod(rest, len(self._minutes))
        return self._hours[hour] * 3600 + self._minutes[minute] * 60 + self._seconds[second]

    def _days(self, year: int, month: int) -> tuple[int, ...]:
        """Return the days of this month that match, rising. Source: crontab(5), both day fields."""
        if month not in self._months:
            return ()
        kind = monthrange(year, month)
        days = self._patterns.get(kind)
        if days is None:
            match = self._fields.match_day
            days = tuple(day for day in range(1, kind[1] + 1) if match(date(year, month, day)))
            self._patterns[kind] = days
        return days

    def _day_from(self, ordinal: int) -> int | None:
        """Return the first day at or after `ordinal` that matches, an ordinal; None if the calendar ends."""
        if ordinal > LAST_DAY:
            return None
        start = date.fromordinal(max(ordinal, 1))
        year, month = start.year, start.month
        days = self._days(year, month)
        index = bisect_left(days, start.day)
        while index == len(days):
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if year > LAST_YEAR:
                return None
            days = self._days(year, month)
            index = 0
        return date(year, month, days[index]).toordinal()

    def _day_to(self, ordinal: int) -> int | None:
        """Return the last day at or before `ordinal` that matches, an ordinal; None if it begins later."""
        if ordinal < 1:
            return None
        start = date.fromordinal(min(ordinal, LAST_DAY))
        year, month = start.year, start.month
        days = self._days(year, month)
        index = bisect_right(days, start.day)
        while index == 0:
            year, month = (year, month - 1) if month > 1 else (year - 1, 12)
            if year < 1:
                return None
            days = self._days(year, month)
            index = len(days)
        return date(year, month, days[index - 1]).toordinal()

    def _count_days(self, first: int, stop: int) -> int:
        """Return how many days d match with `first` <= d < `stop`, all ordinals."""
        start, end = date.fromordinal(first), date.fromordinal(stop)
        total = bisect_left(self._days(end.year, end.month), end.day)
        total -= bisect_left(self._days(start.year, start.month), start.day)
        year, month = start.year, start.month
        while (year, month) != (end.year, end.month):
            total += len(self._days(year, month))
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
        return total
