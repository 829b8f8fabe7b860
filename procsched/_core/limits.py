"""What a run of trusted code may use beside time: `Limits`, and how it is said that one was exceeded. Pure.

They are for accidents, and no boundary for code that nobody trusts: that is what `Sandbox` is for.
"""

from __future__ import annotations

from procsched._core.checks import finite_seconds, whole_number
from procsched._core.frozen import frozen
from procsched._core.models import Outcome
from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import KW_ONLY
    from typing import Final

LEAST_MEMORY: Final = 1 << 20  # bytes: an import or two
LEAST_FILES: Final = 16  # descriptors: some are open from the start, and an import opens some


@frozen
class Limits:
    """What one run may use at most. None, the default of each, means no limit.

    A run that exceeds one ends as LIMIT_EXCEEDED, without a grace and with everything it started; `record.limit` has
    the name and the value, such as ``"memory=536870912"``, and `result()` raises `LimitExceededError`. Of two limits, a
    pool's and a call's, the tighter one holds. `open_files` and `file_size` are different: the kernel refuses the call
    that would go beyond, so the run gets an OSError (EMFILE, EFBIG) that it may handle. Where that leaves the action it
    is LIMIT_EXCEEDED as well, the OSError the cause of what `result()` raises, and what the run started goes with it.

    Args:
        memory: bytes of resident memory that the run's process and all below it have together, beyond what the worker
            had before; at least 1 MiB. Looked at while such a run is alive, more often the closer it is, and once more
            at its end.
        cpu_seconds: seconds of CPU time, or a timedelta, of the process and all below it, from the start of this run.
        processes: how many there may be at once, the run's own included. Looked at fifty times a second.
        open_files: descriptors in each process, at least 16.
        file_size: bytes of each file that is written.
        output: bytes written to stdout and stderr. To be counted they are captured, as with `capture_output`: the end
            of them is in `record.output`, however the run ends, and they do not go to those of the program.
        result: bytes of the result, pickled.
    Raises:
        ValidationError: naming the field.
    """

    _: KW_ONLY
    memory: int | None = None
    cpu_seconds: float | None = None
    processes: int | None = None
    open_files: int | None = None
    file_size: int | None = None
    output: int | None = None
    result: int | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None:
                whole_number(name, value, least)
        if self.cpu_seconds is not None:
            seconds = finite_seconds("cpu_seconds", self.cpu_seconds, above=True)
            object.__setattr__(self, "cpu_seconds", seconds)


_LEAST: Final = {
    "memory": LEAST_MEMORY,
    "processes": 1,
    "open_files": LEAST_FILES,
    "file_size": 0,
    "output": 0,
    "result": 0,
}
_FIELDS: Final[tuple[str, ...]] = Limits.__slots__  # type: ignore[attr-defined]
_BYTES: Final = frozenset({"memory", "file_size", "output", "result"})


def check_limits(name: str, value: object, *, trees_known: bool = True) -> None:
    """Refuse what is neither None nor `Limits`, and limits that nothing holds here.

    Args:
        trees_known: whether this system can say what a tree of processes uses.
    Raises:
        ValidationError: naming the parameter, or the field.
    """
    if value is not None and not isinstance(value, Limits):
        raise ValidationError(
            f"{name} must be Limits(memory=..., ...) or None, not {type(value).__name__} {value!r}"
        )
    for field in () if trees_known else ("memory", "processes"):
        if getattr(value, field, None) is not None:
            raise ValidationError(
                f"{field} cannot be limited on this system, where nobody can say what a tree of processes uses: leave "
                "it out, or run this on Linux"
            )


def tighter(first: Limits | None, second: Limits | None) -> Limits | None:
    """Return the smaller of the two for each field."""
    if first is None or second is None or first == second:
        return second if first is None else first
    merged = {}
    for name in _FIELDS:
        given = [value for each in (first, second) if (value := getattr(each, name)) is not None]
        merged[name] = min(given, default=None)
    return Limits(**merged)


def as_data(limits: Limits | None) -> dict[str, float] | None:
    """Return what is limited, by name, as plain data."""
    if limits is None:
        return None
    return {name: value for name in _FIELDS if (value := getattr(limits, name)) is not None}


def words_of(name: str, value: float) -> str:
    """Return a limit in words, such as ``its memory limit is 512 MiB``."""
    return f"its {name} limit is {_amount(name, value)}"


def exceeded(name: str, value: float, used: float | None = None) -> tuple[Outcome, str]:
    """Return outcome and error of a run that went beyond a limit; `used` is how much that was, where it was counted."""
    told = ""
    if used is not None:
        told = f" (it {'had' if name == 'processes' else 'took'} {_amount(name, used)})"
    return Outcome.LIMIT_EXCEEDED, f"exceeded its {name} limit of {_amount(name, value)}{told}"


def label(name: str, value: float) -> str:
    """Return what `record.limit` says of a limit."""
    return f"{name}={value:g}" if name == "cpu_seconds" else f"{name}={value}"


def _amount(name: str, value: float) -> str:
    if name == "cpu_seconds":
        return f"{value:.6g} s"
    if name not in _BYTES:
        return str(value)
    for size, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= size:
            return f"{value / size:.4g} {unit}"
    return f"{value} bytes"
