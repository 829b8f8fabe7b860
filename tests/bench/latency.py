"""How long one call takes from submit to result, one at a time: on a quiet host, and beside a thread that burns CPU."""

from __future__ import annotations

import functools
import threading
import time

from tests.bench.actions import noop
from tests.bench.framework import Bar, Figures, case, percentile
from tests.bench.streams import STREAMS

WORKERS = 2
CALLS = 3_000
CALLS_BESIDE = 400  # some peers take twenty milliseconds for each


def round_trips(peer: str, beside: bool, quick: bool) -> Figures:
    """Microseconds from `submit` to the result, one call after another."""
    calls = 30 if quick else CALLS_BESIDE if beside else CALLS
    stream = STREAMS[peer](WORKERS)
    stream.warm()
    over = threading.Event()
    burner = threading.Thread(target=burn, args=(over,), daemon=True)
    if beside:
        burner.start()
    times = []
    for number in range(calls + calls // 10):
        began = time.perf_counter()
        stream.take(stream.submit(noop))
        if number >= calls // 10:
            times.append((time.perf_counter() - began) * 1e6)
    over.set()
    stream.close()
    return {"p50": percentile(times, 0.5), "p99": percentile(times, 0.99), "mean": sum(times) / len(times)}


def burn(over: threading.Event) -> None:
    """Compute in Python until `over`, with the switch interval that is usual."""
    value = 0
    while not over.is_set():
        for _ in range(10_000):
            value = (value * 31 + 7) % 1_000_003


case(
    "round-trip",
    "round trip of a call that does nothing, one at a time",
    peers={
        peer: functools.partial(round_trips, peer, False)
        for peer in (
            "procsched",
            "procsched-spin",
            "mp.Pool",
            "ppe",
            "pebble",
            "billiard",
            "deadpool",
            "loky",
        )
    },
    units={"p50": "us", "p99": "us", "mean": "us"},
    bars=(Bar("round trip p50", "p50", 0.5, "ppe"), Bar("round trip p99", "p99", 0.5, "ppe")),
)
case(
    "round-trip-beside",
    "round trip beside a Python thread that burns CPU",
    peers={
        peer: functools.partial(round_trips, peer, True)
        for peer in ("procsched", "procsched-spin", "mp.Pool", "ppe")
    },
    units={"p50": "us", "p99": "us", "mean": "us"},
    bars=(
        Bar("beside a busy thread, p50", "p50", 0.55, "mp.Pool"),
        Bar("beside a busy thread, p99", "p99", 0.5, "mp.Pool"),
        Bar("beside a busy thread, p50", "p50", 0.05, "mp.Pool", "procsched-spin"),
        Bar("beside a busy thread, p99", "p99", 0.05, "mp.Pool", "procsched-spin"),
    ),
)
