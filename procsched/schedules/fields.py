"""From the text of a cron expression to its fields: cronsim parses, this file says what is wrong and why.

Imported with the first `CronSchedule`, not before.
"""

from __future__ import annotations

import string
from datetime import datetime

from cronsim.cronsim import CronSim, CronSimError, Field

from procsched.errors import ScheduleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

# crontab(5), Debian: "@hourly" and its like; like there, in lower case only.
NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

NAMES: Final = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
LIMITS: Final = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
ALLOWED: Final = (
    "0 to 59",
    "0 to 59",
    "0 to 23",
    "1 to 31, L (last day) and LW (last weekday of the month)",
    "1 to 12 and JAN to DEC",
    "0 to 7 (both 0 and 7 are Sunday), SUN to SAT, such as 5L (last Friday) and FRI#2 (second Friday)",
)
# Checked before anything is parsed: `str.upper` and `str.isdigit` know letters and digits that cron does not.
CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "*,-/#")
# cronsim wants a start; without a zone, so that it stays out of the matter of zones.
_NAIVE: Final = datetime(2000, 1, 1)  # noqa: DTZ001


class Fields:
    """A parsed expression.

    Attributes:
        parts: the six fields as text, seconds first.
        rule: cronsim's parse of them, used for its sets and its `match_day`, never iterated.
        wildcard: the minute or hour field begins with ``*``. Source: cron(8) NOTES, Debian's `cron.c`.
    """

    __slots__ = ("parts", "rule", "wildcard")

    def __init__(self, parts: list[str], rule: CronSim) -> None:
        self.parts = parts
        self.rule = rule
        self.wildcard = parts[1].startswith("*") or parts[2].startswith("*")


def parse(expression: str) -> Fields:
    """Parse five fields, six with the seconds first, or an ``@`` name.

    Raises:
        ScheduleError: the expression is not one, naming the field, the value and a remedy.
    """
    text = expression.strip(" \t\r\n")
    if text.startswith("@"):
        if text not in NICKNAMES:
            raise ScheduleError(
                f"{_named(expression)}: there is no such name; use one of {', '.join(NICKNAMES)}"
            )
        text = NICKNAMES[text]
    parts = text.replace("\t", " ").split(" ")
    parts = [part for part in parts if part]
    _check_characters(expression, parts)
    if len(parts) not in (5, 6):
        raise ScheduleError(
            f"{_named(expression)} has {len(parts)} field{'' if len(parts) == 1 else 's'}; write five "
            "(minute, hour, day-of-month, month, day-of-week) or six with the second first"
        )
    six = len(parts) == 6
    if not six:
        parts.insert(0, "0")
    try:
        parts = [
            ",".join(_checked_item(expression, field, item) for item in part.split(","))
            for field, part in zip(Field, parts, strict=True)
        ]
    except ScheduleError as error:
        if six:  # some think of a year at the end
            raise ScheduleError(
                f"{error} (of six fields the first is the second; there is none for the year)"
            ) from None
        raise
    try:
        return Fields(parts, CronSim(" ".join(parts), _NAIVE))
    except CronSimError:
        # Each field is right by itself: what cronsim still refuses is a date such as 31 February.
        raise never_matches(expression, parts) from None


def never_matches(expression: str, parts: list[str]) -> ScheduleError:
    """Return the error for an expression whose days never come."""
    return ScheduleError(
        f"{_named(expression)} never matches: day-of-month {parts[3]!r} with day-of-week {parts[5]!r} "
        f"never comes in month {parts[4]!r}; choose a day that the month has, or L for its last"
    )


def _named(expression: str) -> str:
    return f"cron expression {_shown(expression)}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


def _check_characters(expression: str, parts: list[str]) -> None:
    for index, part in enumerate(parts):
        for character in part:
            if character in CHARACTERS:
                continue
            place = NAMES[index - len(parts)] if len(parts) in (5, 6) else "field"
            remedy = "fields hold ASCII letters, digits and * , - / # only, and blanks or tabs part them"
            if character == "=":
                place = "field"
                remedy = "give the zone by tz=, for example CronSchedule('0 0 * * *', tz='Europe/Berlin')"
            elif character == "?":
                remedy = "write * for any value"
            raise ScheduleError(
                f"{_named(expression)}: {place} {_shown(part)} holds {character!a}, "
                f"which is not allowed; {remedy}"
            )


def _checked_item(expression: str, field: Field, item: str) -> str:
    """Return one item of a list as cronsim should read it, in capitals.

    Raises:
        ScheduleError: it is not one.
    """
    given, item = item, item.upper()
    term, slash, _step = item.partition("/")
    try:
        # A step on L or LW says nothing; cronsim would drop it unread.
        if slash and field is Field.DAY and "L" in term:
            raise CronSimError
        field.parse(item)
    except (CronSimError, ValueError):  # ValueError: more digits than int() takes
        raise ScheduleError(
            f"{_named(expression)}: {NAMES[field]} {_shown(given)} is wrong; {_remedy(field, item)}"
        ) from None
    # cronsim reads 5-5/15 as 5/15, to the end of the field; crontab(5) means the range 5-5.
    start, dash, end = term.partition("-")
    if slash and dash and field.int(start) == field.int(end):
        return start
    return item


def _remedy(field: Field, item: str) -> str:
    term, _slash, step = item.partition("/")
    start, dash, end = term.partition("-")
    allowed = f"allowed are {ALLOWED[field]}, *, lists, ranges and steps"
    try:
        if step and not int(step):
            return "a step is at least 1"
        low, high = field.int(start), field.int(end)
    except (CronSimError, ValueError):
        if field is Field.DOW and term.endswith("L"):
            return f"write the weekday as a number before the L, such as 5L for the last Friday; {allowed}"
        return allowed
    if dash and high < low:
        least, most = LIMITS[field]
        return f"a range must rise: write {start}-{most},{least}-{end}"
    return allowed
