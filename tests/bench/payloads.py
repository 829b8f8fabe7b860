"""Large data: 100 MB as an argument and as a result, by time and by what the parent needs for it beyond the data."""

from __future__ import annotations

import functools
import gc
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from tests.bench.actions import look, made, pid_after
from tests.bench.framework import Bar, Figures, case
from tests.bench.streams import STREAMS

WORKERS = 2
SIZE = 100_000_000
REPEATS = 7
PEERS = ("procsched", "loky", "ppe", "mp.Pool", "deadpool")


def large(kind: str, way: str, peer: str, quick: bool) -> Figures:
    """Milliseconds from the call until whoever gets the data has looked at every page of it, one call at a time."""
    import numpy

    size = SIZE // 10 if quick else SIZE
    stream = STREAMS[peer](WORKERS)
    stream.warm()
    value = made(kind, size)
    right = look(value)
    run: Callable[[], Any]
    if way == "argument":

        def run() -> None:
            assert stream.take(stream.submit(look, value)) == right

    else:
        del value  # so that the parent has no other than what comes

        def run() -> None:
            assert look(stream.take(stream.submit(made, kind, size))) == right

    made.cache_clear()
    for _ in range(2):  # whatever is made or imported at the first time, in every worker
        pids = [stream.submit(pid_after, 0.05) for _ in range(WORKERS)]
        tokens = [
            stream.submit(look, numpy.zeros(1000)),
            *(stream.submit(made, kind, size) for _ in range(WORKERS)),
        ]
        for token in pids + tokens:
            stream.take(token)
        del token, tokens
        run()
    gc.collect()
    reset_peak()
    before = resident()
    times = []
    for _ in range(2 if quick else REPEATS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    extra = peak() - before
    stream.close()
    middle = statistics.median(times)
    return {"ms": middle * 1000, "rate": size / 1e6 / middle, "extra": extra / 1e6}


def resident() -> int:
    """Return the resident bytes of this process."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def reset_peak() -> None:
    """Have the highest resident size counted anew (proc(5), clear_refs)."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def peak() -> int:
    """Return the highest resident size since then."""
    with open("/proc/self/status", encoding="ascii") as file:
        return int(file.read().partition("VmHWM:")[2].split()[0]) * 1024


for _kind, _ratio in (("array", 1 / 4), ("bytes", 1 / 2.3)):
    for _way, _room in (("argument", 10.0), ("result", 110.0)):
        case(
            f"large-{_kind}-{_way}",
            f"{SIZE // 1_000_000} MB of {_kind} as {_way}",
            peers={peer: functools.partial(large, _kind, _way, peer) for peer in PEERS},
            units={"ms": "a call", "rate": "MB/s", "extra": "MB in the parent"},
            bars=(
                Bar(f"{_kind} as {_way}: time of a call", "ms", round(_ratio, 3), "loky"),
                Bar(f"{_kind} as {_way}: MB in the parent", "extra", _room),
            ),
        )
