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
        description="List the next due times of a cron expression, in its zone and in UTC.",
    )
    parser.add_argument("expression", help="five fields, six with the second first, or a name such as @daily")
    parser.add_argument(
        "--tz", default="UTC", metavar="ZONE", help="IANA zone of the wall clock (default: UTC)"
    )
    parser.add_argument("--next", type=int, default=5, metavar="N", help="how many due times (default: 5)")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="ISO",
        help="list those strictly later than this instant, with offset (default: now)",
    )
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Print one line for each due time, zone and UTC, both as ISO 8601. Return an exit code."""
    try:
        schedule = CronSchedule(arguments.expression, tz=arguments.tz)
        after = _instant(arguments.start)
        if arguments.next < 1:
            raise ScheduleError(f"--next must be at least 1, not {arguments.next}")
    except ScheduleError as error:
        print(f"procsched cron: {error}", file=sys.stderr)
        return EXIT_USAGE
    zone = UTC if schedule.tz == "UTC" else ZoneInfo(schedule.tz)
    for _ in range(arguments.next):
        due = schedule.next_after(after)
        if due is None:
            break
        instant = datetime.fromtimestamp(due, UTC)
        print(instant.astimezone(zone).isoformat(), instant.strftime("%Y-%m-%dT%H:%M:%SZ"), sep="  ")
        after = due
    return EXIT_OK


def _instant(text: str | None) -> float:
    """Return the instant that `text` names, in UNIX seconds; None is now."""
    if text is None:
        return datetime.now(UTC).timestamp()
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise ScheduleError(
            f"--from {text!r} is no ISO time; write for example 2026-03-29T01:00:00+01:00"
        ) from None
    if instant.tzinfo is None:
        raise ScheduleError(f"--from {text!r} has no offset; add one, such as {text}+01:00, or Z for UTC")
    return instant.timestamp()
