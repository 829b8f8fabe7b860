"""How each of the `Limits` is held on this system: tried out, with a run that exceeds it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import procsched
from procsched import Outcome, _system

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

MIB: Final = 1 << 20
PATIENCE: Final = 10.0  # seconds for each
_LOOKS: Final = "looks at the tree of processes while such a run is alive"
_PROCESS: Final = "RLIMIT_CPU, for the run's own process alone; the worker's count at the end"


def touch(size: int) -> int:
    """Have so many bytes."""
    return len(bytearray(b"x") * size)


def burn() -> None:
    """Use CPU time, for a while."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        pass


def fork_and_wait() -> None:
    """Have two processes, for a while."""
    if os.fork() == 0:
        time.sleep(PATIENCE)
        os._exit(0)
    time.sleep(PATIENCE)


def open_many() -> None:
    """Open more files than sixteen."""
    files = [open(os.devnull, "rb") for _ in range(64)]  # noqa: SIM115
    for file in files:
        file.close()


def write_much() -> None:
    """Write a file of some bytes."""
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(b"x" * 1000)


def speak() -> None:
    """Write to standard output."""
    os.write(1, b"x" * 1000)


def answer() -> bytes:
    """Return some bytes."""
    return b"x" * 1000


# field, value, action, arguments, what holds it.
_TRIALS: Final[tuple[tuple[str, float, Callable[..., Any], tuple[Any, ...], str], ...]] = (
    ("memory", 16 * MIB, touch, (64 * MIB,), f"{_LOOKS}, and the kernel's high-water mark at the end"),
    ("cpu_seconds", 0.05, burn, (), f"{_LOOKS}, the worker's count at the end, RLIMIT_CPU"),
    ("processes", 1, fork_and_wait, (), _LOOKS),
    ("open_files", 16, open_many, (), "RLIMIT_NOFILE: the run gets EMFILE"),
    ("file_size", 100, write_much, (), "RLIMIT_FSIZE: the run gets EFBIG"),
    ("output", 100, speak, (), "the parent's count"),
    ("result", 100, answer, (), "the worker's count, before anything is sent"),
)


def examine_limits() -> dict[str, dict[str, Any]]:
    """Exceed each limit once; return for each whether it was held, by what, and what was seen."""
    found: dict[str, dict[str, Any]] = {}
    with procsched.ProcessExecutor(1, timeout=PATIENCE) as executor:
        for field, value, action, args, by in _TRIALS:
            if field == "cpu_seconds" and not _system.offers("proc"):
                by = _PROCESS
            try:
                limits = procsched.Limits(**{field: value})  # type: ignore[arg-type]
                record = executor.options(limits=limits).submit(action, *args).wait_record(2 * PATIENCE)
            except (procsched.ProcschedError, OSError, TimeoutError) as error:
                found[field] = {"held": False, "by": "nothing", "found": str(error)}
                continue
            # Those two are the run's own error, which names the limit.
            held = record.outcome is Outcome.LIMIT_EXCEEDED or f"{field} limit" in (record.error or "")
            found[field] = {"held": held, "by": by, "found": record.error or record.outcome.value}
    return found


def print_limits(found: dict[str, dict[str, Any]]) -> None:
    """Print what `examine_limits` has found."""
    print("\nLimits, for code that is trusted:")
    for field, row in found.items():
        word = "held" if row["held"] else "NOT HELD"
        print(f"  {word:<8} {field:<12} {row['by']}\n{'':<24}{row['found']}")
