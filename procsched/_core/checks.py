"""Checks of the plain values that users pass: each names the parameter, the value and what it must be. Pure."""

from __future__ import annotations

import math

from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import StrEnum
    from typing import Final, TypeVar

    Member = TypeVar("Member", bound=StrEnum)

# UNIX seconds, in the year 5138. In milliseconds it is 1973: what is later is in another unit, whatever the clock.
LATEST: Final = 1e11

# Seconds, 285 years: with the age of a system added it still fits into a time of the kernel's, which counts nanoseconds
# in 63 bits. Who gives more, such as `sys.maxsize`, means for ever.
LONGEST_WAIT: Final = 9e9


def finite_seconds(name: str, value: object, *, minimum: float = 0.0, above: bool = False) -> float:
    """Return `value` as float seconds, or refuse it with the parameter's name.

    Accepts a number or a `datetime.timedelta`. With `above` the value must be greater than `minimum`.

    Raises:
        ValidationError: not a number, NaN, infinite or out of range.
    """
    total = getattr(value, "total_seconds", None)
    if total is not None:
        value = total()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValidationError(
            f"{name} must be a number of seconds or a timedelta, not {type(value).__name__} {value!r}"
        )
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise ValidationError(f"{name} must be finite, not {value!r}")
    if seconds < minimum or (above and seconds == minimum):
        word = "greater than" if above else "at least"
        raise ValidationError(f"{name} must be {word} {minimum:g} seconds, not {value!r}")
    return seconds


def waiting_seconds(name: str, value: object, *, above: bool = False) -> float:
    """Return `value` as `finite_seconds` does, for somebody who waits so long: at most `LONGEST_WAIT`.

    Raises:
        ValidationError: as there.
    """
    return min(finite_seconds(name, value, above=above), LONGEST_WAIT)


def unix_seconds(name: str, value: object, other: str = "") -> float:
    """Return `value` as UNIX seconds. Accepts a finite number or an aware `datetime.datetime`.

    Args:
        other: what else the caller accepts, for the error.

    Raises:
        ValidationError: anything else; a naive datetime is refused by name.
    """
    if type(value) is float and -math.inf < value < math.inf:
        return value  # the usual case, and part of what adding a task costs
    stamp = getattr(value, "timestamp", None)
    if stamp is not None:
        if getattr(value, "utcoffset", lambda: None)() is None:
            raise ValidationError(
                f"{name} is a naive datetime ({value}): it does not say which instant it means; "
                "give it a zone, for example datetime(..., tzinfo=timezone.utc) or .astimezone()"
            )
        return float(stamp())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValidationError(
            f"{name} must be UNIX seconds{other} or an aware datetime, not {type(value).__name__} {value!r}"
        )
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise ValidationError(f"{name} must be finite, not {value!r}")
    return seconds


def instant(name: str, value: object) -> float:
    """Return when something is to be done, as `unix_seconds` does. Any time in the past is one.

    Raises:
        ValidationError: also where it is so late that another unit was meant.
    """
    if type(value) is float and -math.inf < value <= LATEST:
        return value  # as there
    at = unix_seconds(name, value)
    if at <= LATEST:
        return at
    meant = ""
    if not hasattr(value, "timestamp"):  # that of a datetime is known
        small = at > LATEST * 1e3
        meant = (
            ": these are micro- or nanoseconds" if small else ": these are milliseconds, divide them by 1000"
        )
    raise ValidationError(f"{name} must be UNIX seconds not after the year 5138, not {value!r}{meant}")


def whole_number(name: str, value: object, minimum: int = 1) -> int:
    """Return `value` where it is a whole number of at least `minimum`.

    Raises:
        ValidationError: it is not; True and False are none either.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ValidationError(f"{name} must be a whole number of at least {minimum}, not {value!r}")
    return value


def member_of(kind: type[Member], name: str, value: object) -> Member:
    """Return a member of an enum that is given as itself or as its value.

    Raises:
        ValidationError: there is no such member; names those that there are.
    """
    try:
        return kind(value)  # type: ignore[arg-type]
    except ValueError:
        names = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ValidationError(f"{name} must be one of {names}, not {value!r}") from None


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False.

    Raises:
        ValidationError: naming the parameter.
    """
    if value is not True and value is not False:
        raise ValidationError(f"{name} must be True or False, not {value!r}")


def check_text(name: str, value: object) -> None:
    """Refuse what is no text, or empty.

    Raises:
        ValidationError: naming the parameter.
    """
    if not isinstance(value, str) or not value:
        raise ValidationError(f"{name} must be a text that is not empty, not {value!r}")
