"""How far the wall clock of a zone is ahead of UTC, and when that changes.

All times are whole UNIX seconds. Imported with the first `CronSchedule`, not before; `zoneinfo` with the
first one that is not in UTC.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from procsched.errors import ScheduleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import tzinfo
    from typing import Final

UTC: Final = "UTC"

# The years 1 to 9999, two days in from each end so that no offset leads out of them.
EARLIEST: Final = -62_135_424_000
LATEST: Final = 253_402_128_000

# Offsets are looked at in steps of this length, and a change in between is then found by halves. Two changes
# within one step that undo each other would be missed: in the whole database (2026) no two since 1970 are
# nearer than a week less an hour.
STEP: Final = timedelta(days=6)
SECOND: Final = timedelta(seconds=1)


class Zone:
    """The offsets of one zone. Immutable, safe to use from any thread."""

    __slots__ = ("_epoch",)

    def __init__(self, key: str) -> None:
        """Load the zone called `key`; UTC needs no database.

        Raises:
            ScheduleError: there is no such zone, or no database.
        """
        # 1970-01-01 00:00 labelled with the zone: what `tzinfo.fromutc` wants its UTC times to look like.
        self._epoch = datetime(1970, 1, 1, tzinfo=None if key == UTC else _load(key))

    def offset(self, instant: int) -> int:
        """Return wall clock minus UTC at `instant`, in seconds."""
        zone = self._epoch.tzinfo
        if zone is None:
            return 0
        point = self._point(instant)
        # By subtraction rather than `utcoffset`, which has to guess from the wall time what `fromutc` knows.
        return (zone.fromutc(point) - point) // SECOND

    def first_change(self, after: int, until: int) -> tuple[int, int] | None:
        """Return the first t in `after` < t <= `until` with another offset than `after`, and that offset.

        None where the offset stays the same. Costs a microsecond for each six days that are looked at.
        """
        zone = self._epoch.tzinfo
        if zone is None:
            return None
        here, end = self._point(after), self._point(until)
        offset = zone.fromutc(here) - here
        while here < end:
            there = here + STEP if end - here > STEP else end
            if zone.fromutc(there) - there != offset:
                return self._pinned((here - self._epoch) // SECOND, (there - self._epoch) // SECOND)
            here = there
        return None

    def _pinned(self, low: int, high: int) -> tuple[int, int]:
        """Return the instant of the change in `low` < t <= `high`, and the offset from there on."""
        before = self.offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            if self.offset(middle) == before:
                low = middle
            else:
                high = middle
        return high, self.offset(high)

    def _point(self, instant: int) -> datetime:
        return self._epoch + timedelta(seconds=min(max(instant, EARLIEST), LATEST))


def zone_key(tz: object) -> str:
    """Return the IANA name that `tz` gives: itself, or the key of a `zoneinfo.ZoneInfo`.

    Raises:
        ScheduleError: `tz` is something else, or a ZoneInfo without a key.
    """
    if isinstance(tz, str):
        return tz
    from zoneinfo import ZoneInfo

    # A ZoneInfo read from a file without a key has none to compare, store or send to another process.
    key = tz.key if isinstance(tz, ZoneInfo) else None
    if not isinstance(key, str):
        raise ScheduleError(
            f"tz must be an IANA name such as 'Europe/Berlin' or a ZoneInfo with a key, "
            f"not {type(tz).__name__} {tz!r}"
        )
    return key


def _load(key: str) -> tzinfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(key)
    # KeyError: not found; ValueError: not a relative path; OSError: a folder, such as "Europe".
    except (KeyError, ValueError, OSError):
        remedy = "use an IANA name such as 'Europe/Berlin'"
    try:
        ZoneInfo("Etc/UTC")
    except (KeyError, OSError):
        remedy = "this system has no time zone database: install the package tzdata (pip install tzdata)"
    raise ScheduleError(f"tz {key!r} is no zone that can be found; {remedy}")
