"""What a process in a namespace reports of the one below it that ran the job: the kernel's word, in few bytes. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_WORD: Final = 8  # bytes; wait status, nanoseconds of CPU time, bytes of memory at most
SIZE: Final = 3 * _WORD
_MOST: Final = 1 << 62


def pack_report(status: int, cpu_seconds: float, peak: int) -> bytes:
    """Return a report."""
    words = (status, int(cpu_seconds * 1e9), peak)
    return b"".join(word.to_bytes(_WORD, "little", signed=True) for word in words)


def open_report(data: bytes) -> tuple[int, float, int] | None:
    """Return wait status, CPU seconds and peak memory; None where there is no report."""
    if len(data) != SIZE:
        return None
    status, cpu, peak = (
        int.from_bytes(data[at : at + _WORD], "little", signed=True) for at in range(0, SIZE, _WORD)
    )
    if not 0 <= status < 1 << 16 or not 0 <= cpu < _MOST or not 0 <= peak < _MOST:
        return None
    return status, cpu / 1e9, peak
