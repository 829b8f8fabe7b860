"""The zone rule of cron against a brute force that was written from the rule and not from the code.

The oracle is a cron daemon: it looks at the wall clock once a minute (or second) of UTC, remembers what the
clock showed before, and knows fields as sets. It has no calendar arithmetic, no offsets and no search.
Source of the rule: cron(8) NOTES, Debian; several fixed runs missed in one gap make one.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from procsched.errors import ScheduleError
from procsched.schedules import CronSchedule

pytestmark = pytest.mark.slow

MINUTE, HOUR, DAY = 60, 3600, 86_400
CORRECTION = timedelta(hours=3)

# Without the search for which part of a failing example matters: it takes minutes.
PHASES = (Phase.generate, Phase.shrink)

# Zone and year: changes of 30 minutes, one and two hours and a day, at midnight and at other times, both
# ways, east and west, across the date line, for Ramadan, and with a winter time that is the exception.
ZONES = [
    ("Europe/Berlin", 2026),
    ("Europe/Dublin", 2026),
    ("America/New_York", 2026),
    ("America/St_Johns", 2011),  # at 00:01
    ("America/Havana", 2026),
    ("America/Nuuk", 2026),
    ("America/Santiago", 2026),
    ("Antarctica/Troll", 2026),
    ("Africa/Casablanca", 2026),
    ("Africa/Cairo", 2026),
    ("Asia/Gaza", 2040),  # four changes, two of them a week apart
    ("Australia/Lord_Howe", 2026),
    ("Pacific/Chatham", 2026),
    ("Pacific/Apia", 2011),  # 30 December did not exist
    ("Pacific/Kwajalein", 1969),  # the last day of September came twice
]


class Field(NamedTuple):
    """A field as text, and what it means."""

    text: str
    values: frozenset[int]

    @property
    def star(self) -> bool:
        return self.text.startswith("*")


def every(step: int, low: int, high: int) -> Field:
    return Field("*" if step == 1 else f"*/{step}", frozenset(range(low, high + 1, step)))


def listed(*values: int) -> Field:
    return Field(",".join(map(str, values)), frozenset(values))


def ranged(low: int, high: int, step: int = 1) -> Field:
    return Field(
        f"{low}-{high}/{step}" if step > 1 else f"{low}-{high}", frozenset(range(low, high + 1, step))
    )


class Job(NamedTuple):
    """A cron expression whose meaning is known without parsing it."""

    minute: Field
    hour: Field
    day: Field = every(1, 1, 31)
    weekday: Field = every(1, 0, 7)
    second: Field | None = None

    @property
    def expression(self) -> str:
        parts = [self.minute.text, self.hour.text, self.day.text, "*", self.weekday.text]
        return " ".join(parts if self.second is None else [self.second.text, *parts])

    @property
    def wildcard(self) -> bool:
        return self.minute.star or self.hour.star

    def matches(self, wall: datetime) -> bool:
        if wall.minute not in self.minute.values or wall.hour not in self.hour.values:
            return False
        if wall.second not in (self.second.values if self.second else {0}):
            return False
        day = wall.day in self.day.values
        weekday = bool({wall.isoweekday(), wall.isoweekday() % 7} & self.weekday.values)
        return (day and weekday) if self.day.star or self.weekday.star else (day or weekday)


@cache
def clock(zone: str, start: int, stop: int, step: int) -> list[tuple[int, datetime]]:
    """Return what the wall shows at each step from `start` to before `stop`."""
    tz = ZoneInfo(zone)
    return [(t, datetime.fromtimestamp(t, tz).replace(tzinfo=None, fold=0)) for t in range(start, stop, step)]


def daemon(job: Job, readings: list[tuple[int, datetime]], step: int = MINUTE) -> Iterator[int]:
    """Yield the instants at which a cron daemon that reads the clock each `step` seconds starts the job."""
    tick = timedelta(seconds=step)
    seen_until = datetime.min  # wall times before this have had their turn
    for (_, before), (instant, wall) in pairwise(readings):
        jump = wall - before - tick
        missed = False
        if jump and not job.wildcard:
            if abs(jump) > CORRECTION:
                seen_until = datetime.min
            elif jump < timedelta(0):
                seen_until = before + tick
            else:
                missed = any(job.matches(before + tick * n) for n in range(1, jump // tick + 1))
        if missed or (job.matches(wall) and (job.wildcard or wall >= seen_until)):
            yield instant


@cache
def changes(zone: str, year: int) -> list[int]:
    """Return the instants in `year` at which the zone's clock changes, to the minute."""
    tz = ZoneInfo(zone)
    start = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    found = []

    def offset(instant: int) -> timedelta | None:
        return datetime.fromtimestamp(instant, tz).utcoffset()

    for hour in range(start, start + 366 * DAY, HOUR):
        if offset(hour) != offset(hour + HOUR):
            found += [
                t for t in range(hour + MINUTE, hour + HOUR + 1, MINUTE) if offset(t - MINUTE) != offset(t)
            ]
    return found


def check(job: Job, zone: str, start: int, stop: int, step: int, draw: random.Random) -> None:
    """Compare the schedule with the daemon in a window: all due times, any start, any span."""
    # The daemon comes up four hours earlier, so that it remembers a change just before the window.
    expected = [t for t in daemon(job, clock(zone, start - 4 * HOUR, stop, step), step) if t >= start]
    schedule = CronSchedule(job.expression, tz=zone)
    where = (job.expression, zone)
    found: list[float] = []
    due = schedule.next_after(start - 1)
    while due is not None and due < stop:
        found.append(due)
        due = schedule.next_after(due)
    assert found == expected, where
    for _ in range(6):
        after = draw.uniform(start, stop - 1)
        index = bisect_right(expected, after)
        if index < len(expected):
            assert schedule.next_after(after) == expected[index], (*where, after)
        until = draw.uniform(after, stop - 1)
        passed = expected[index : bisect_right(expected, until)]
        newest = draw.randrange(1, 10)
        assert schedule.passed(after, until, newest) == (passed[-newest:], len(passed)), (
            *where,
            after,
            until,
        )


MINUTES = [
    every(1, 0, 59),
    every(15, 0, 59),
    every(7, 0, 59),
    listed(0),
    listed(1),
    listed(30),
    listed(15, 45),
]
HOURS = [
    every(1, 0, 23),
    every(2, 0, 23),
    listed(0),
    listed(1),
    listed(2),
    listed(0, 2, 3),
    ranged(1, 4),
    ranged(0, 23),
]


@pytest.mark.parametrize(("zone", "year"), ZONES)
def test_every_change_of_a_year(zone, year):
    """Around each change of the clock every job runs exactly when the daemon would run it."""
    draw = random.Random(f"{zone} {year}")
    instants = changes(zone, year)
    assert instants
    for change in instants:
        for minute in MINUTES:
            for hour in HOURS:
                check(Job(minute, hour), zone, change - 5 * HOUR, change + 25 * HOUR, MINUTE, draw)


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/Santiago", "Antarctica/Troll", "Australia/Lord_Howe"]
)
def test_seconds_at_every_change(zone):
    """A job with a seconds field obeys the same rule, second by second."""
    draw = random.Random(zone)
    for change in changes(zone, 2026):
        for second in (every(30, 0, 59), listed(7)):
            for minute, hour in ((MINUTES[1], HOURS[4]), (MINUTES[6], HOURS[6]), (MINUTES[5], HOURS[0])):
                job = Job(minute, hour, second=second)
                check(job, zone, change - 2 * HOUR, change + 3 * HOUR, 1, draw)


def fields(low: int, high: int) -> st.SearchStrategy[Field]:
    """Draw a field of any shape whose meaning is known."""
    value = st.integers(low, high)
    pair = st.tuples(value, value).map(sorted).filter(lambda ends: ends[0] < ends[1])
    return st.one_of(
        st.just(every(1, low, high)),
        st.integers(2, high + 5).map(lambda step: every(step, low, high)),
        st.lists(value, min_size=1, max_size=4).map(lambda values: listed(*values)),
        st.tuples(pair, st.integers(1, 5)).map(lambda drawn: ranged(*drawn[0], drawn[1])),
    )


def jobs(second: st.SearchStrategy[Field | None]) -> st.SearchStrategy[Job]:
    """Draw a job with fields of any shape, both day fields included."""
    return st.builds(Job, fields(0, 59), fields(0, 23), fields(1, 31), fields(0, 7), second)


def examples(count: int) -> settings:
    """Return settings for that many examples, the same in every run, however slow the machine."""
    return settings(max_examples=count, derandomize=True, database=None, phases=PHASES)


@examples(250)
@given(
    job=jobs(st.none()),
    window=st.sampled_from([(zone, change) for zone, year in ZONES for change in changes(zone, year)]),
    seed=st.integers(0, 1 << 30),
)
def test_any_job_at_any_change(job, window, seed):
    """Jobs of any shape, day fields included, run around a change exactly when the daemon would run them."""
    zone, change = window
    check(job, zone, change - 5 * HOUR, change + 25 * HOUR, MINUTE, random.Random(seed))


def texts(low: int, high: int, *special: str) -> st.SearchStrategy[str]:
    """Draw the text of a field, lists of lists and special values included."""
    plain = fields(low, high).map(lambda field: field.text)
    start = st.tuples(st.integers(low, high), st.integers(1, 20)).map(lambda drawn: f"{drawn[0]}/{drawn[1]}")
    item = st.one_of(plain, plain, start, st.sampled_from(special) if special else plain)
    return st.lists(item, min_size=1, max_size=3).map(",".join)


@examples(250)
@given(
    parts=st.tuples(
        texts(0, 59),
        texts(0, 59),
        texts(0, 23),
        texts(1, 31, "L", "LW"),
        texts(1, 12, "JAN", "FEB", "nov", "Dec-DEC"),
        texts(0, 7, "5L", "0L", "7L", "FRI#2", "1#5", "7#1", "SUN", "mon-fri", "Tue"),
    ),
    start=st.integers(0, 4_000_000_000),
)
def test_without_a_zone_the_times_are_those_of_cronsim(parts, start):
    """In UTC, where no clock changes, each expression means what cronsim says, in both directions."""
    expression = " ".join(parts)
    epoch = datetime(1970, 1, 1)
    try:
        wall = CronSim(expression, epoch + timedelta(seconds=start))
        expected = [(moment - epoch).total_seconds() for moment in islice(wall, 5)]
    except CronSimError:
        expected = []
    if not expected:
        with pytest.raises(ScheduleError, match="never matches"):
            CronSchedule(expression)
        return
    schedule = CronSchedule(expression)
    assert schedule.next_times(len(expected), start) == expected
    back = CronSim(expression, epoch + timedelta(seconds=expected[-1], microseconds=1), reverse=True)
    newest = [(moment - epoch).total_seconds() for moment in islice(back, 5)][::-1]
    listed_back, total = schedule.passed(newest[0] - 1, expected[-1], 5)
    assert listed_back == newest
    assert total == 5


@examples(100)
@given(
    job=jobs(st.none() | fields(0, 59)),
    zone=st.sampled_from([zone for zone, _ in ZONES]),
    cuts=st.lists(st.integers(0, 40 * 365 * DAY), min_size=3, max_size=5, unique=True).map(sorted),
)
def test_counts_add_up(job, zone, cuts):
    """However forty years are cut, the parts count what the whole does, and the newest are due times."""
    schedule = CronSchedule(job.expression, tz=zone)
    newest, total = schedule.passed(cuts[0], cuts[-1], 3)
    assert total == sum(schedule.passed(a, b, 0)[1] for a, b in pairwise(cuts))
    assert len(newest) == min(total, 3)
    if newest:
        assert schedule.next_times(len(newest), newest[0] - 1) == newest
        after_last = schedule.next_after(newest[-1])
        assert after_last is None or after_last > cuts[-1]
