"""Cron expressions, day fields, clock changes: the hard cases, against what Debian's cron does."""

from __future__ import annotations

import argparse
import io
import math
import pickle
import re
import sys
import time
import zoneinfo
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from procsched._core.models import ExecutionRecord
from procsched.cli import cron as command
from procsched.errors import ScheduleError, ValidationError
from procsched.schedules import CronSchedule
from tests.unit.counting import steps

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
SANTIAGO, TROLL, APIA = "America/Santiago", "Antarctica/Troll", "Pacific/Apia"


def at(text: str) -> float:
    """Return UNIX seconds of an ISO time with offset."""
    instant = datetime.fromisoformat(text)
    assert instant.tzinfo is not None
    return instant.timestamp()


def due(schedule: CronSchedule, start: str, stop: str) -> list[str]:
    """Return the due times from `start` to before `stop`, as ISO times with the zone's offset.

    Steps through them one by one, and checks that `passed` and `next_times` say the same.
    """
    after, until = at(start) - 0.5, at(stop) - 0.5
    times: list[float] = []
    found = schedule.next_after(after)
    while found is not None and found <= until:
        assert found > (times[-1] if times else after)
        times.append(found)
        found = schedule.next_after(found)
    assert schedule.passed(after, until, len(times) + 1) == (times, len(times))
    assert schedule.passed(after, until, 2) == (times[-2:], len(times))
    assert schedule.next_times(len(times), after) == times
    zone = ZoneInfo(schedule.tz)
    return [datetime.fromtimestamp(moment, zone).isoformat(timespec="minutes") for moment in times]


# --- clock changes ---------------------------------------------------------------------------------------
# One row per case: what, zone, first and end of the window that is listed, due times in it.

BERLIN_GAP = (BERLIN, "2026-03-29T00:00+01:00", "2026-03-29T07:00+02:00")
NEW_YORK_GAP = (NEW_YORK, "2026-03-08T00:00-05:00", "2026-03-09T00:00-04:00")
BERLIN_OVERLAP = (BERLIN, "2026-10-25T00:00+02:00", "2026-10-25T05:00+01:00")
NEW_YORK_OVERLAP = (NEW_YORK, "2026-11-01T00:00-04:00", "2026-11-02T00:00-05:00")
LORD_HOWE_GAP = (LORD_HOWE, "2026-10-04T00:00+10:30", "2026-10-04T05:00+11:00")
LORD_HOWE_OVERLAP = (LORD_HOWE, "2026-04-05T00:00+11:00", "2026-04-05T07:00+10:30")
SANTIAGO_GAP = (SANTIAGO, "2026-09-05T12:00-04:00", "2026-09-06T12:00-03:00")
TROLL_GAP = (TROLL, "2026-03-29T00:00+00:00", "2026-03-30T00:00+02:00")
APIA_2011 = (APIA, "2011-12-29T00:00-10:00", "2012-01-01T00:00+14:00")

CLOCK_CHANGES = [
    ("30 2 * * *", BERLIN_GAP, ["2026-03-29T03:00+02:00"]),
    ("30 2 * * *", NEW_YORK_GAP, ["2026-03-08T03:00-04:00"]),
    ("0 2,3 * * *", BERLIN_GAP, ["2026-03-29T03:00+02:00"]),
    ("15,45 2 * * *", BERLIN_GAP, ["2026-03-29T03:00+02:00"]),
    ("*/15 2 * * *", BERLIN_GAP, []),
    (
        "0 */2 * * *",
        BERLIN_GAP,
        ["2026-03-29T00:00+01:00", "2026-03-29T04:00+02:00", "2026-03-29T06:00+02:00"],
    ),
    (
        "30 * * * *",
        BERLIN_GAP,
        ["2026-03-29T00:30+01:00", "2026-03-29T01:30+01:00"]
        + [f"2026-03-29T0{hour}:30+02:00" for hour in (3, 4, 5, 6)],
    ),
    ("30 2 * * *", BERLIN_OVERLAP, ["2026-10-25T02:30+02:00"]),
    ("45 1 * * *", NEW_YORK_OVERLAP, ["2026-11-01T01:45-04:00"]),
    (
        "*/15 2 * * *",
        BERLIN_OVERLAP,
        [f"2026-10-25T02:{minute:02}+0{offset}:00" for offset in (2, 1) for minute in (0, 15, 30, 45)],
    ),
    (
        "30 * * * *",
        BERLIN_OVERLAP,
        [f"2026-10-25T0{hour}:30+02:00" for hour in (0, 1, 2)]
        + [f"2026-10-25T0{hour}:30+01:00" for hour in (2, 3, 4)],
    ),
    (
        "0 1-4 * * *",
        BERLIN_OVERLAP,
        [
            "2026-10-25T01:00+02:00",
            "2026-10-25T02:00+02:00",
            "2026-10-25T03:00+01:00",
            "2026-10-25T04:00+01:00",
        ],
    ),
    ("30 2 * * *", LORD_HOWE_GAP, ["2026-10-04T02:30+11:00"]),
    (
        "30 * * * *",
        LORD_HOWE_GAP,
        ["2026-10-04T00:30+10:30", "2026-10-04T01:30+10:30"]
        + [f"2026-10-04T0{hour}:30+11:00" for hour in (2, 3, 4)],
    ),
    ("*/5 3 * * *", LORD_HOWE_GAP, [f"2026-10-04T03:{minute:02}+11:00" for minute in range(0, 60, 5)]),
    # Both passes of 01:30 to 02:00 lie before it: 02:00 to 03:00 comes once, four runs.
    ("*/15 2 * * *", LORD_HOWE_OVERLAP, [f"2026-04-05T02:{minute:02}+10:30" for minute in (0, 15, 30, 45)]),
    (
        "0 */2 * * *",
        LORD_HOWE_OVERLAP,
        ["2026-04-05T00:00+11:00"] + [f"2026-04-05T0{hour}:00+10:30" for hour in (2, 4, 6)],
    ),
    ("45 1 * * *", LORD_HOWE_OVERLAP, ["2026-04-05T01:45+11:00"]),
    ("0 0 * * *", SANTIAGO_GAP, ["2026-09-06T01:00-03:00"]),
    ("30 2 * * *", TROLL_GAP, ["2026-03-29T03:00+02:00"]),
    ("0 12 30 12 *", APIA_2011, []),
    ("0 12 * * *", APIA_2011, ["2011-12-29T12:00-10:00", "2011-12-31T12:00+14:00"]),
    # A seconds field obeys the same rule: the minute and hour fields decide, not the second.
    ("0 30 2 * * *", BERLIN_GAP, ["2026-03-29T03:00+02:00"]),
    ("* 30 2 * * *", BERLIN_GAP, ["2026-03-29T03:00+02:00"]),
    ("0 30 2 * * *", BERLIN_OVERLAP, ["2026-10-25T02:30+02:00"]),
    ("0 */30 2 * * *", BERLIN_GAP, []),
    (
        "0 */30 2 * * *",
        BERLIN_OVERLAP,
        [f"2026-10-25T02:{minute}+0{offset}:00" for offset in (2, 1) for minute in ("00", "30")],
    ),
    # Ranges do not begin with a star, so this job is fixed although it names every hour.
    (
        "0 0-23 * * *",
        BERLIN_OVERLAP,
        [f"2026-10-25T0{hour}:00+02:00" for hour in (0, 1, 2)]
        + [f"2026-10-25T0{hour}:00+01:00" for hour in (3, 4)],
    ),
    # The day of the gap does not match, or only its other hours do.
    ("30 2 28 3 *", BERLIN_GAP, []),
    ("30 2 29 3 *", BERLIN_GAP, ["2026-03-29T03:00+02:00"]),
    # Midnight that does not exist lands on the day it belongs to, also for a rule about that day.
    ("0 0 6 9 *", SANTIAGO_GAP, ["2026-09-06T01:00-03:00"]),
]


@pytest.mark.parametrize(("expression", "window", "expected"), CLOCK_CHANGES)
def test_clock_changes(expression, window, expected):
    """At a change of the zone's clock the runs are those that Debian's cron starts, merged at a gap."""
    zone, start, stop = window
    assert due(CronSchedule(expression, tz=zone), start, stop) == expected


def test_the_gap_day_has_exactly_one_run():
    """A daily job at 02:00 runs once on the day of the gap, at 01:00 UTC."""
    schedule = CronSchedule("0 2 * * *", tz=BERLIN)
    assert schedule.next_times(2, at("2026-03-28T12:00+01:00")) == [
        at("2026-03-29T01:00+00:00"),
        at("2026-03-30T02:00+02:00"),
    ]


@pytest.mark.parametrize("start", ["02:00+01:00", "02:15+01:00", "02:30+01:00", "02:59+01:00", "03:00+01:00"])
def test_from_the_second_pass_the_answer_is_never_in_the_past(start):
    """Asked in the second pass of the repeated hour, a fixed job answers with the next day."""
    schedule = CronSchedule("30 2 * * *", tz=BERLIN)
    assert schedule.next_after(at(f"2026-10-25T{start}")) == at("2026-10-26T02:30+01:00")


def test_the_instant_of_the_gap_is_strict():
    """The run at the end of the gap is found from the second before, and not from itself."""
    schedule = CronSchedule("30 2 * * *", tz=BERLIN)
    change = at("2026-03-29T03:00+02:00")
    assert schedule.next_after(change - 1) == change
    assert schedule.next_after(change - 0.001) == change
    assert schedule.next_after(change) == at("2026-03-30T02:30+02:00")


# --- syntax and calendar ---------------------------------------------------------------------------------

REFUSED = {
    "day-of-month": [
        *("0 0 31 2 *", "0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 */31 2 MON#5", "0 0 32 * *", "0 0 0 * *"),
        *("0 0 15W * *", "0 0 ? * *", "0 0 L/2 * *", "0 0 LW/2 * *", "0 0 1-L * *", "0 0 L-3 * *"),
    ],
    "day-of-week": [
        *("0 0 * * FRI-MON", "0 0 * * FRI-SUN", "0 0 * * 7-1", "0 0 * * FRIL", "0 0 * * L5", "0 0 * * 1#6"),
        *(
            "0 0 * * 1#0",
            "0 0 * * 8",
            "0 0 * * sunday",
            "0 0 * * 5#",
            "0 0 * * 1-5#2",
            "0 0 * * MON-",
            "0 0 * * L",
        ),
    ],
    "month": ["0 0 1 NOV-FEB *", "0 0 1 0 *", "0 0 1 13 *", "0 0 1 january *", "0 0 1 FEBR *"],
    "hour": ["0 22-2 * * *", "0 24 * * *", "0 1-2-3 * * *", "0 *5 * * *", "0 -1 * * *", "0 1, * * *"],
    "minute": [
        *(
            "50-10 * * * *",
            "*/0 * * * *",
            "5/0 * * * *",
            "H * * * *",
            "R * * * *",
            "0~30 * * * *",
            "** * * * *",
        ),
        *("1,,2 * * * *", "60 * * * *", "5x * * * *", "1/2/3 * * * *", "1-5/2-3 * * * *", "L * * * *"),
        *(
            "٣ * * * *",
            "１ * * * *",
            "0.5 * * * *",
            "+1 * * * *",
            "5/ * * * *",
            "/5 * * * *",
        ),
        "9" * 5000 + " * * * *",
    ],
    "second": ["60 * * * * *", "30-10 * * * * *"],
}


@pytest.mark.parametrize(
    ("field", "expression"),
    [(field, expression) for field, expressions in REFUSED.items() for expression in expressions],
)
def test_wrong_fields_are_refused_by_name(field, expression):
    """What cannot be honoured is refused when the schedule is made, with field, value and remedy."""
    with pytest.raises(ScheduleError) as caught:
        CronSchedule(expression)
    message = str(caught.value)
    assert re.search(rf"\b(?<!-){field} ", message), message
    assert ";" in message
    assert len(message) < 500


@pytest.mark.parametrize(
    ("field", "place"),
    [("second", 0), ("minute", 1), ("hour", 2), ("day-of-month", 3), ("month", 4), ("day-of-week", 5)],
)
def test_a_question_mark_is_explained_in_each_field(field, place):
    """Quartz has it for any value: it is refused by the name of the field, alone and in a list, with the remedy."""
    for value in ("?", "1,?", "?/2"):
        fields = ["0", "0", "0", "1", "1", "*"]
        fields[place] = value
        expressions = [" ".join(fields)] + [" ".join(fields[1:])] * (place > 0)
        for expression in expressions:
            with pytest.raises(ScheduleError) as caught:
                CronSchedule(expression)
            message = str(caught.value)
            assert f"{field} '{value}' holds '?'" in message, message
            assert message.endswith("write * for any value"), message


@pytest.mark.parametrize(
    "expression",
    [
        *("", "   ", "* * * *", "* * * * * * *", "0 0 * * * 2026 *", "TZ=Europe/Berlin 0 0 * * *"),
        *(
            "0\u00a00 * * *",
            "0 0\u2003* * *",
            "0 0 * *\u00a0*",
            "0 0\n* * *",
            "0 0\x1f* * * *",
            "0 0 * * \u017fun",
        ),
        *("@reboot", "@Daily", "@daily 5", "@daily * * * *", "@", "@every 5m"),
        *(None, 5, b"* * * * *", ["*"] * 5),
    ],
    ids=ascii,
)
def test_what_is_no_expression_is_refused(expression):
    """A wrong number of fields, a foreign separator, an unknown name and what is no text are refused."""
    with pytest.raises(ScheduleError, match="expression"):
        CronSchedule(expression)


@pytest.mark.parametrize(
    ("expression", "advice"),
    [("0 22-2 * * *", "22-23,0-2"), ("0 0 * * FRI-MON", "FRI-7,0-MON"), ("0 0 1 NOV-FEB *", "NOV-12,1-FEB")],
)
def test_the_remedy_for_a_reversed_range_works(expression, advice):
    """The message about a reversed range names one that is accepted and means it."""
    with pytest.raises(ScheduleError, match=re.escape(advice)):
        CronSchedule(expression)
    wrong = next(part for part in expression.split() if "-" in part)
    assert CronSchedule(expression.replace(wrong, advice)).next_after(0) is not None


def days(expression: str, year: int = 2026) -> list[str]:
    """Return the days of the year on which a daily expression is due, as MM-DD."""
    found = due(CronSchedule(expression), f"{year}-01-01T00:00Z", f"{year + 1}-01-01T00:00Z")
    assert all(text.endswith("T00:00+00:00") for text in found)
    return [text[5:10] for text in found]


SUNDAYS = [
    day.strftime("%m-%d")
    for day in (datetime.fromtimestamp(at("2026-01-01T00:00Z") + n * 86_400, UTC) for n in range(365))
    if day.weekday() == 6
]


@pytest.mark.parametrize("weekday", ["0", "7", "SUN", "sun", "Sun", "0,7", "7-7", "*/7"])
def test_sunday_has_many_names(weekday):
    """0, 7 and SUN are the same Sundays."""
    assert days(f"0 0 * * {weekday}") == SUNDAYS


@pytest.mark.parametrize("weekdays", ["0-7", "5-7", "6-7"])
def test_ranges_to_seven_end_on_sunday(weekdays):
    """A range that ends in 7 contains Sunday."""
    assert set(SUNDAYS) <= set(days(f"0 0 * * {weekdays}"))


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("0 0 */2 * MON", 26),  # both: odd days that are Mondays
        ("0 0 1-31/2 * MON", 212),  # either
        ("0 0 1-7 * */7", 12),  # both: the first Sunday of the month
        ("0 0 1,* * MON", 365),  # either: the field does not begin with a star
        ("0 0 13 * FRI", 61),  # either
        ("0 0 13 * *", 12),
        ("0 0 * * FRI", 52),
        ("0 0 * * MON-FRI", 261),
        ("0 0 * * Mon-Fri/2", 156),
        ("0 0 * * mon,wed", 104),
        ("0 0 * JAN-MAR *", 90),
        ("0 0 * jan,MAR *", 62),
        ("0 0 L * *", 12),
        ("0 0 LW * *", 12),
        ("0 0 1,L * *", 24),
        ("0 0 * * 5L", 12),
        ("0 0 * * 5#5", 4),
        ("0 0 * * FRI#2", 12),
        ("0 0 * * 0#1", 12),
        ("0 0 * * 7#1", 12),
        ("0 0 * * 1,3#2", 64),  # Mondays, and the second Wednesday
        ("0 0 */60 * *", 12),
        ("0 0 5/10 * *", 36),
        ("0 0 5-5/10 * *", 12),  # a range of one day, not from there to the end
    ],
)
def test_how_many_days_a_year(expression, count):
    """Both day fields must match where either begins with a star, else one of them."""
    assert len(days(expression)) == count


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 30 2 MON", ["02-02", "02-09", "02-16", "02-23"]),
        ("0 0 L 1-4 *", ["01-31", "02-28", "03-31", "04-30"]),
        ("0 0 LW 1-5 *", ["01-30", "02-27", "03-31", "04-30", "05-29"]),
        ("0 0 * 1-3 5L", ["01-30", "02-27", "03-27"]),
        ("0 0 * * 5#5", ["01-30", "05-29", "07-31", "10-30"]),
        ("0 0 * 1-2 FRI#2", ["01-09", "02-13"]),
        ("0 0 * 3 0#1", ["03-01"]),
        ("0 0 * 3 7#1", ["03-01"]),
    ],
)
def test_which_days(expression, expected):
    """L, LW, nL and n#k mean the last day, the last weekday, the last and the k-th of a weekday."""
    assert days(expression) == expected


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("0 0 29 2 *", "2026-01-01", ["2028-02-29"]),
        ("0 0 29 2 *", "2096-03-01", ["2104-02-29"]),
        ("0 0 29 2 */7", "2088-03-01", ["2128-02-29", "2156-02-29"]),
        ("0 0 * 2 MON#5", "2020-01-01", ["2044-02-29", "2072-02-29", "2112-02-29"]),
    ],
)
def test_rare_days_are_found(expression, start, expected):
    """Leap days are found across decades and across 2100, which has none."""
    times = CronSchedule(expression).next_times(len(expected), at(f"{start}T00:00Z"))
    assert times == [at(f"{day}T00:00Z") for day in expected]


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        ("5/15", [5, 20, 35, 50]),
        ("59/15", [59]),
        ("*/60", [0]),
        ("*/61", [0]),
        ("*/100", [0]),
        ("*/25", [0, 25, 50]),
        ("10-20/5", [10, 15, 20]),
        ("5-5/15", [5]),
        ("1,2,50-52", [1, 2, 50, 51, 52]),
        ("007", [7]),
    ],
)
def test_steps_ranges_and_lists(minutes, expected):
    """A step runs from its start to the end of its range or of the field."""
    found = due(CronSchedule(f"{minutes} 4 * * *"), "2026-01-01T00:00Z", "2026-01-02T00:00Z")
    assert found == [f"2026-01-01T04:{minute:02}+00:00" for minute in expected]


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        (" @daily\n", "0 0 * * *"),
        ("\t0  0\t* * *  ", "0 0 * * *"),
    ],
)
def test_names_and_spacing(name, same):
    """The names stand for five fields, and blanks or tabs around and between fields say nothing."""
    start = at("2026-02-03T04:05:06Z")
    assert CronSchedule(name).next_times(20, start) == CronSchedule(same).next_times(20, start)


def test_hourly_is_a_wildcard_and_daily_is_fixed():
    """@hourly runs in both passes of the repeated hour, @daily once at the end of a gap at midnight."""
    assert len(due(CronSchedule("@hourly", tz=BERLIN), *BERLIN_OVERLAP[1:])) == 6
    assert due(CronSchedule("@daily", tz=SANTIAGO), *SANTIAGO_GAP[1:]) == ["2026-09-06T01:00-03:00"]


def test_seconds_come_first():
    """With six fields the first is the second."""
    times = CronSchedule("*/20 30 4 * * *").next_times(4, at("2026-01-01T00:00Z"))
    assert times == [at(f"2026-01-01T04:30:{second}Z") for second in ("00", "20", "40")] + [
        at("2026-01-02T04:30:00Z")
    ]


def test_a_year_at_the_end_is_explained():
    """Whoever thinks of a year as the last of six fields learns what the six are."""
    with pytest.raises(
        ScheduleError, match="of six fields the first is the second; there is none for the year"
    ):
        CronSchedule("0 0 1 1 * 2030")
    with pytest.raises(ScheduleError) as caught:
        CronSchedule("0 0 1 1 8")
    assert "six" not in str(caught.value)


# --- asking ----------------------------------------------------------------------------------------------


def test_next_is_strictly_later():
    """A due time is never its own successor, and fractions of a second are no obstacle."""
    schedule = CronSchedule("* * * * *")
    assert schedule.next_after(59.999) == 60.0
    assert schedule.next_after(60) == 120.0
    assert schedule.next_after(60.001) == 120.0
    assert schedule.next_after(-30) == 0.0
    assert schedule.first_run(60.0) == 120.0
    assert isinstance(schedule.next_after(0), float)


def test_next_after_takes_an_aware_datetime():
    """An aware datetime is an instant; a naive one is refused."""
    assert CronSchedule("0 0 * * *").next_after(datetime(2026, 1, 1, 12, tzinfo=UTC)) == at(
        "2026-01-02T00:00Z"
    )
    with pytest.raises(ScheduleError, match="naive"):
        CronSchedule("0 0 * * *").next_after(datetime(2026, 1, 1))


@pytest.mark.parametrize("timestamp", [math.nan, math.inf, -math.inf, "now", None])
def test_what_is_no_instant_is_refused(timestamp):
    """A timestamp that is no finite number is refused by every question."""
    schedule = CronSchedule("* * * * *", tz=BERLIN)
    for ask in (schedule.next_after, schedule.first_run, lambda t: schedule.passed(0.0, t, 1)):
        with pytest.raises(ScheduleError):
            ask(timestamp)


@pytest.mark.parametrize("n", ["3", -1, 2.0, True, None])
def test_how_many_times_is_a_whole_number(n):
    """What is no number of due times is refused by name, and none at all is a number too."""
    schedule = CronSchedule("* * * * *")
    with pytest.raises(ValidationError, match=r"^n must be a whole number of at least 0, not"):
        schedule.next_times(n, after=0)
    assert schedule.next_times(0, after=0) == []


@pytest.mark.parametrize("moment", [math.nan, "now", datetime(2026, 1, 1)])
def test_a_wrong_instant_has_the_name_of_its_parameter(moment):
    """The error names the argument that was given, not that of a method below it."""
    schedule = CronSchedule("* * * * *")
    for name, ask in (
        ("timestamp", lambda: schedule.next_after(moment)),
        ("after", lambda: schedule.next_times(0, after=moment)),
        ("after", lambda: schedule.passed(moment, 0, 1)),
        ("until", lambda: schedule.passed(0, moment, 1)),
    ):
        with pytest.raises(ScheduleError, match=f"^{name} "):
            ask()


@pytest.mark.parametrize("zone", ["UTC", BERLIN, APIA])
def test_the_calendar_ends(zone):
    """After the last match of the year 9999 there is no next one, and none of this overflows."""
    schedule = CronSchedule("0 12 29 2 *", tz=zone)
    last = schedule.next_after(at("9995-01-01T00:00Z"))
    assert last is not None
    assert schedule.next_after(last) is None
    assert schedule.next_times(3, last - 1) == [last]
    for never in (at("9999-12-31T23:59:59Z"), 1e12, 1e300):
        assert CronSchedule("* * * * *", tz=zone).next_after(never) is None
        assert schedule.passed(last, never, 5) == ([], 0)
    assert schedule.next_after(-1e300) is not None
    assert schedule.passed(at("9992-01-01T00:00Z"), 1e300, 2) == ([last - 1461 * 86_400, last], 2)


def ran(due_at: float | None, finished: float) -> ExecutionRecord:
    """Return the record of a run that was due at `due_at` and ended at `finished`."""
    started = finished - 1 if due_at is None else due_at
    return ExecutionRecord(1, started, finished, ok=True, due_at=due_at)


def test_slots_during_the_run_are_skipped():
    """The next slot after a long run is the first one later than its end."""
    schedule = CronSchedule("*/5 * * * *")
    assert schedule.next_run(ran(at("2026-01-01T12:00Z"), 0), at("2026-01-01T12:17Z")) == at(
        "2026-01-01T12:20Z"
    )
    assert schedule.next_run(ran(None, at("2026-01-01T12:00:10Z")), at("2026-01-01T12:00:10Z")) == at(
        "2026-01-01T12:05Z"
    )


def test_a_clock_set_back_runs_no_slot_twice():
    """With the wall clock two hours back, the next slot is the first that did not run yet."""
    schedule = CronSchedule("0 * * * *")
    record = ran(at("2026-01-01T12:00Z"), at("2026-01-01T12:00:30Z"))
    assert schedule.next_run(record, at("2026-01-01T10:00:30Z")) == at("2026-01-01T13:00Z")


def test_a_clock_set_back_by_more_is_a_correction():
    """With the wall clock more than three hours back, the new time simply applies."""
    schedule = CronSchedule("0 * * * *")
    record = ran(at("2026-01-01T12:00Z"), at("2026-01-01T12:00:30Z"))
    assert schedule.next_run(record, at("2026-01-01T08:30Z")) == at("2026-01-01T09:00Z")


def test_passed_lists_the_newest():
    """A minute of a 15 s job: all are counted, the newest listed, and 0 only counts."""
    schedule = CronSchedule("*/15 * * * * *")
    assert schedule.passed(0.0, 60.0, 2) == ([45.0, 60.0], 4)
    assert schedule.passed(0.0, 60.0, 0) == ([], 4)
    assert schedule.passed(0.0, 59.9, 9) == ([15.0, 30.0, 45.0], 3)
    assert schedule.passed(60.0, 60.0, 9) == ([], 0)
    assert schedule.passed(60.0, 0.0, 9) == ([], 0)


@pytest.mark.parametrize("expression", ["* * * * * *", "30 2 29 2 *", "0 2 * * MON#5"])
@pytest.mark.parametrize("zone", ["UTC", BERLIN])
def test_ten_years_are_counted_by_the_month(expression, zone):
    """What passed in ten years is counted in some steps for each month, and agrees with the sum over the years."""
    schedule = CronSchedule(expression, tz=zone)
    start = at("2020-01-15T12:00Z")
    (listed, total), count = steps(schedule.passed, start, start + 3652 * 86_400, 100)
    assert count < 120 * 400  # months, and lines for one of them
    assert len(listed) == min(total, 100)
    assert total == sum(
        schedule.passed(start + n * 166 * 86_400, start + (n + 1) * 166 * 86_400, 0)[1] for n in range(22)
    )


# --- zones and values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tz", ["Mars/Olympus", "", "Europe", "/etc/localtime", "../zoneinfo/UTC", "Europe/Bérlin"]
)
def test_unknown_zones_are_refused_by_name(tz):
    """A zone that is not in the database is refused, naming it."""
    with pytest.raises(ScheduleError, match=re.escape(repr(tz))):
        CronSchedule("* * * * *", tz=tz)


@pytest.mark.parametrize("tz", [None, 2, UTC, b"UTC"])
def test_what_is_no_zone_is_refused(tz):
    """A tz that is neither a name nor a ZoneInfo is refused by the name of the parameter."""
    with pytest.raises(ScheduleError, match=r"^tz must be"):
        CronSchedule("* * * * *", tz=tz)


def test_a_zone_without_a_key_is_refused():
    """A ZoneInfo that has no key could not be compared or stored."""
    with pytest.raises(ScheduleError, match="key"):
        CronSchedule("* * * * *", tz=ZoneInfo.from_file(io.BytesIO(TZIF_UTC)))


# The shortest file that zoneinfo reads: version 1, one type, offset 0.
TZIF_UTC = b"TZif" + bytes(16) + bytes(4 * 4) + b"\0\0\0\1" + b"\0\0\0\4" + bytes(6) + b"UTC\0"


def test_a_system_without_a_database_is_told_what_to_install(monkeypatch):
    """Without a zone database the message names the package tzdata, and UTC works all the same."""
    for name in {"tzdata", *(name for name in sys.modules if name.startswith("tzdata."))}:
        monkeypatch.setitem(sys.modules, name, None)
    zoneinfo.ZoneInfo.clear_cache()
    zoneinfo.reset_tzpath(to=[])
    try:
        with pytest.raises(ScheduleError, match=r"'Europe/Berlin'.*pip install tzdata"):
            CronSchedule("* * * * *", tz=BERLIN)
        assert CronSchedule("* * * * *").next_after(0) == 60.0
    finally:
        zoneinfo.reset_tzpath()


def test_equal_by_expression_and_zone():
    """Two schedules are equal when text and zone are, however the zone was given."""
    one = CronSchedule("0 0 * * *", tz=BERLIN)
    assert one == CronSchedule("0 0 * * *", tz=ZoneInfo(BERLIN))
    assert hash(one) == hash(CronSchedule("0 0 * * *", tz=ZoneInfo(BERLIN)))
    assert one != CronSchedule("0 0 * * *")
    assert one != CronSchedule("0 1 * * *", tz=BERLIN)
    assert one != "0 0 * * *"
    assert (one.expression, one.tz) == ("0 0 * * *", BERLIN)
    assert repr(one) == "CronSchedule('0 0 * * *', tz='Europe/Berlin')"
    assert pickle.loads(pickle.dumps(one)).next_after(0) == one.next_after(0)


# --- the command -----------------------------------------------------------------------------------------


def call(*words: str) -> int:
    """Run ``procsched cron`` with these arguments."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["cron", *words])
    assert arguments.run is command.run
    return command.run(arguments)


def test_the_command_lists_due_times(capsys):
    """The command prints the next due times in the zone and in UTC."""
    code = call("30 2 * * *", "--tz", BERLIN, "--next", "2", "--from", "2026-03-28T12:00:00+01:00")
    assert code == 0
    assert capsys.readouterr().out.splitlines() == [
        "2026-03-29T03:00:00+02:00  2026-03-29T01:00:00Z",
        "2026-03-30T02:30:00+02:00  2026-03-30T00:30:00Z",
    ]


def test_the_command_starts_from_now(capsys):
    """Without a start the due times are in the future, and there are five."""
    before = time.time()
    assert call("* * * * *") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert at(lines[0].split()[0]) > before


def test_the_command_stops_where_the_calendar_ends(capsys):
    """Fewer due times are printed where there are no more."""
    assert call("0 0 31 12 *", "--from", "9998-12-31T12:00:00Z") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_the_command_takes_a_start_without_offset_in_the_zone(capsys):
    """A start that does not say its offset is meant in the zone of the expression."""
    words = ("0 12 * * *", "--tz", "Europe/Berlin", "--from", "2026-07-01T00:00", "--next", "1")
    assert call(*words) == 0
    assert capsys.readouterr().out.split() == ["2026-07-01T12:00:00+02:00", "2026-07-01T10:00:00Z"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["0 22-2 * * *"], "hour '22-2'"),
        (["* * * * *", "--tz", "Mars/Olympus"], "Mars/Olympus"),
        (["* * * * *", "--next", "0"], "--next"),
        (["* * * * *", "--from", "yesterday"], "--from 'yesterday'"),
    ],
)
def test_the_command_explains_what_is_wrong(capsys, words, message):
    """A wrong argument is explained on stderr and gives exit code 2."""
    assert call(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
