"""``procsched cron "EXPR" --tz ZONE --next N``: list the next due times of a cron expression."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from procsched.errors import ScheduleError
from procsched.schedules.cron import CronSchedule

if TYPE_CHECKING:
    import argparse
    from datetime import tzinfo
    from typing import Any, Final

# Every due time asked for was printed, or the calendar ended before.
EXIT_OK: Final = 0
# The expression, the zone or an option is wrong; the reason is on stderr. argparse uses the same code.
EXIT_USAGE: Final = 2


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the command ``cron``; the parsed arguments carry `run` as ``arguments.run``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "cron",
        help="list the next due times of a cron expression",
        usage='%(prog)s [-h] [--tz ZONE] [--next N] [--from ISO] "EXPRESSION"',
        description="List the next due times of a cron expression, in its zone and in UTC.",
    )
    parser.add_argument(
        "expression",
        nargs="+",  # more than one is a mistake that deserves a better word than "unrecognized arguments"
        metavar="EXPRESSION",
        help="in quotes: five fields, six with the second first, or a name such as @daily",
    )
    parser.add_argument(
        "--tz", default="UTC", metavar="ZONE", help="IANA zone of the wall clock (default: UTC)"
    )
    parser.add_argument("--next", type=int, default=5, metavar="N", help="how many due times (default: 5)")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="ISO",
        help="list those strictly later than this time, in ZONE unless it has an offset (default: now)",
    )
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each due time, zone and UTC, both as ISO 8601. Return an exit code."""
    try:
        schedule = CronSchedule(_expression(arguments.expression), tz=arguments.tz)
        zone = UTC if schedule.tz == "UTC" else ZoneInfo(schedule.tz)
        after = _instant(arguments.start, zone)
        if arguments.next < 1:
            raise ScheduleError(f"--next must be at least 1, not {arguments.next}")
    except ScheduleError as error:
        print(f"procsched cron: {error}", file=sys.stderr)
        return EXIT_USAGE
    for _ in range(arguments.next):
        due = schedule.next_after(after)
        if due is None:
            break
        instant = datetime.fromtimestamp(due, UTC)
        print(instant.astimezone(zone).isoformat(), instant.strftime("%Y-%m-%dT%H:%M:%SZ"), sep="  ")
        after = due
    return EXIT_OK


def _expression(words: list[str]) -> str:
    """Return the one word that holds the expression.

    Raises:
        ScheduleError: the shell has taken it apart, and put the names of files where a ``*`` was.
    """
    if len(words) == 1 and (len(words[0].split()) > 1 or words[0].strip().startswith("@")):
        return words[0]
    quoted = """put all fields between quotes, for example: procsched cron "30 2 * * *\""""
    if len(words) == 1:
        raise ScheduleError(f"{words[0]!r} is no cron expression; {quoted}")
    raise ScheduleError(f"the expression is in {len(words)} words; {quoted}")


def _instant(text: str | None, zone: tzinfo) -> float:
    """Return the instant that `text` names, in UNIX seconds; None is now.

    Args:
        zone: where the clock on the wall shows what `text` says, unless it says an offset. A time that comes
            twice there is the first of the two.
    """
    if text is None:
        return datetime.now(UTC).timestamp()
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ScheduleError(
            f"--from {text!r} is no ISO date or time; write for example 2026-03-29, 2026-03-29T01:00 "
            "or 2026-03-29T01:00+01:00"
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=zone)
    return instant.timestamp()
