"""What calls cost in memory: while they wait, and after a million of them."""

from __future__ import annotations

import functools
import gc
import os
from typing import Any

from tests.bench.actions import noop, number, pid_after
from tests.bench.framework import Bar, Figures, case
from tests.bench.streams import STREAMS

WORKERS = 2
PENDING = 1_000_000
CALLS = 1_000_000
BATCH = 1_000  # calls that are open at once in the long run
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident(pid: int) -> int:
    """Return the resident bytes of a process."""
    with open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * PAGE


def pending(peer: str, quick: bool) -> Figures:
    """Bytes for each call that waits, its future included, its argument (a small int of its own) not."""
    calls = 10_000 if quick else PENDING
    stream = STREAMS[peer](WORKERS)
    stream.warm()
    hold = [stream.submit(pid_after, 3600.0) for _ in range(WORKERS)]
    arguments = list(range(10_000, 10_000 + calls))
    tokens: list[Any] = [None] * calls
    gc.collect()
    before = resident(os.getpid())
    for index, value in enumerate(arguments):
        tokens[index] = stream.submit(number, value)
    grown = resident(os.getpid()) - before
    assert len(hold) + len(tokens) == WORKERS + calls
    return {"bytes": grown / calls}


def long_run(peer: str, quick: bool) -> Figures:
    """Megabytes by which parent and workers grow over a million calls, after a tenth as many."""
    calls = 5_000 if quick else CALLS
    stream = STREAMS[peer](WORKERS)
    stream.warm()

    def run(count: int) -> None:
        for _ in range(count // BATCH):
            for token in [stream.submit(number, value) for value in range(BATCH)]:
                stream.take(token)

    def sizes() -> tuple[int, dict[int, int]]:
        gc.collect()
        pids = {stream.take(token) for token in [stream.submit(pid_after, 0.02) for _ in range(4 * WORKERS)]}
        return resident(os.getpid()), {pid: resident(pid) for pid in pids}

    run(calls // 10)
    stream.take(stream.submit(noop))
    parent, workers = sizes()
    run(calls)
    parent_after, workers_after = sizes()
    stream.close()
    kept = workers.keys() & workers_after.keys()
    grown = max((workers_after[pid] - workers[pid] for pid in kept), default=0)
    return {
        "parent": (parent_after - parent) / 1e6,
        "worker": grown / 1e6,
        "replaced": len(workers) - len(kept),
    }


case(
    "pending",
    "memory of a call that waits, of a million",
    peers={peer: functools.partial(pending, peer) for peer in ("procsched", "ppe", "mp.Pool", "pebble")},
    units={"bytes": "per call"},
    bars=(Bar("bytes of a pending call", "bytes", 1024),),
)
case(
    "long-run",
    "growth over 1,000,000 calls, after 100,000",
    peers={peer: functools.partial(long_run, peer) for peer in ("procsched", "mp.Pool")},
    units={"parent": "MB", "worker": "MB, the one that grew most", "replaced": "workers"},
    bars=(
        Bar("growth of the parent in MB", "parent", 1.0),
        Bar("growth of a worker in MB", "worker", 1.0),
    ),
)
