"""How many calls: submitted one by one, each with a limit, as a closure; and a map of small numbers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from tests.bench.actions import noop, square
from tests.bench.framework import Bar, Figures, case
from tests.bench.streams import PEERS, STREAMS

WORKERS = 2
CALLS = 20_000
LIMIT = 30.0  # seconds, which no call takes
ITEMS = 200_000
CHUNKS = (1_000, 5_000, 12_500, 25_000, 50_000, 100_000)  # the best is taken, for each peer its own


def call_by_call(peer: str, how: str, quick: bool) -> Figures:
    """Submit calls that do nothing one by one, then take their results one by one: microseconds for each."""
    calls = 300 if quick else CALLS
    name, _, plain = peer.partition(" ")
    stream = STREAMS[name](WORKERS)
    stream.warm()
    submit = stream.limited(LIMIT) if how == "limit" and not plain else stream.submit
    function: Callable[..., Any] = noop
    if how == "closure":
        value = len(peer)

        def function() -> int:
            return value

    for token in [submit(function) for _ in range(200)]:
        stream.take(token)
    began = time.perf_counter()
    tokens = [submit(function) for _ in range(calls)]
    for token in tokens:
        stream.take(token)
    seconds = time.perf_counter() - began
    stream.close()
    return {"us": seconds / calls * 1e6, "per_s": calls / seconds}


def mapping(peer: str, quick: bool) -> Figures:
    """Map a small function over small numbers: the time with the chunk size that suits the peer best."""
    items = 2_000 if quick else ITEMS
    values = range(items)
    expected = [value * value for value in values]
    stream = STREAMS[peer](WORKERS)
    stream.warm()
    times = {}
    for chunk in CHUNKS:
        if chunk > items // WORKERS:
            continue
        for _ in range(3):
            began = time.perf_counter()
            found = stream.map(square, values, chunk)
            seconds = time.perf_counter() - began
            assert found == expected
            times[chunk] = min(seconds, times.get(chunk, seconds))
    stream.close()
    best = min(times, key=times.__getitem__)
    return {"ms": times[best] * 1e3, "per_s": items / times[best], "chunk": best}


case(
    "calls",
    "calls that do nothing, submitted one by one, 2 workers",
    peers={peer: functools.partial(call_by_call, peer, "plain") for peer in ("procsched", *PEERS)},
    units={"us": "per call", "per_s": "calls/s"},
    bars=(
        Bar("4 times the rate of the fastest peer", "us", 1 / 4, PEERS),
        Bar("12 times the rate of ProcessPoolExecutor", "us", 1 / 12, "ppe"),
    ),
)
case(
    "calls-limited",
    "calls that do nothing, one by one, each with a limit of 30 s",
    peers={
        peer: functools.partial(call_by_call, peer, "limit")
        for peer in ("procsched", "procsched without", "billiard", "pebble", "deadpool", "mpire")
    },
    units={"us": "per call", "per_s": "calls/s"},
    bars=(Bar("5 % below the rate without limits", "us", 1 / 0.95, "procsched without"),),
)
case(
    "calls-closure",
    "calls of a closure, one by one",
    peers={peer: functools.partial(call_by_call, peer, "closure") for peer in ("procsched", "loky")},
    units={"us": "per call", "per_s": "calls/s"},
    bars=(Bar("4 times the rate of loky", "us", 1 / 4, "loky"),),
)
case(
    "map",
    "map of 200,000 small ints, the best chunk size",
    peers={
        peer: functools.partial(mapping, peer)
        for peer in ("procsched", "mp.Pool", "billiard", "ppe", "loky", "mpire")
    },
    units={"ms": "in all", "per_s": "items/s", "chunk": "items"},
    bars=(Bar("as fast as multiprocessing.Pool", "ms", 1.0, "mp.Pool"),),
)
