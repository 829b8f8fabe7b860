"""What a process in a namespace reports of the one below it that ran the job: the kernel's word, in few bytes. Pure."""

from __future__ import annotations

from _struct import Struct

_REPORT = Struct("=qdq")  # wait status, seconds of CPU time, bytes of memory at most
SIZE = _REPORT.size


def pack_report(status: int, cpu_seconds: float, peak: int) -> bytes:
    """Return a report."""
    return _REPORT.pack(status, cpu_seconds, peak)


def open_report(data: bytes) -> tuple[int, float, int] | None:
    """Return wait status, CPU seconds and peak memory; None where there is no report."""
    if len(data) != SIZE:
        return None
    status, cpu_seconds, peak = _REPORT.unpack(data)
    if not 0 <= status < 1 << 16 or not 0.0 <= cpu_seconds < 1e9 or peak < 0:
        return None
    return status, cpu_seconds, peak
