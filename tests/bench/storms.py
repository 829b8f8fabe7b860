"""Many kills and many crashes at once: 200 jobs that hang, and 200 of which 50 kill themselves."""

from __future__ import annotations

import functools
import time

from tests.bench.actions import die_or, hang
from tests.bench.framework import Bar, Figures, case
from tests.bench.peers import CRASHED, OK, POOLS, TIMED_OUT, Board

WORKERS = 2
LIMIT = 0.05  # seconds
JOBS = 200
CULPRIT = 4  # every fourth kills itself


def kill_storm(peer: str, how: str, quick: bool) -> Figures:
    """Jobs that hang: wall time over jobs x limit / workers, the pool being warm."""
    jobs = 20 if quick else JOBS
    board = Board(jobs)
    pool = POOLS[peer](WORKERS)
    pool.warm(2 * WORKERS)
    began = time.monotonic()
    tokens = [pool.submit(hang, board.path, slot, how, timeout=LIMIT) for slot in range(jobs)]
    ended = [pool.wait(token)[0] for token in tokens]
    seconds = time.monotonic() - began
    pool.close()
    ideal = jobs * LIMIT / WORKERS
    return {"wall_ideal": seconds / ideal, "wall": seconds, "timed_out": ended.count(TIMED_OUT)}


def crash_storm(peer: str, quick: bool) -> Figures:
    """Jobs of which a quarter kill themselves: wall time, who was right and who was blamed."""
    jobs = 20 if quick else JOBS
    pool = POOLS[peer](WORKERS)
    pool.warm(2 * WORKERS)
    began = time.monotonic()
    tokens = [pool.submit(die_or, value, value % CULPRIT == 0) for value in range(jobs)]
    ended = [pool.wait(token)[:2] for token in tokens]
    seconds = time.monotonic() - began
    pool.close()
    right = sum(end == (OK, value) for value, end in enumerate(ended) if value % CULPRIT)
    blamed = sum(end[0] == CRASHED for value, end in enumerate(ended) if not value % CULPRIT)
    wrong = jobs - right - blamed
    return {"wall": seconds, "right": right, "blamed": blamed, "wrong": wrong}


OURS = ("procsched", "procsched-scheduler")
for _how, _words in (("sleep", "sleep for ever"), ("loop", "loop in Python")):
    _peers = (*OURS, "pebble", "pebble-2ms", "deadpool", "by hand")
    case(
        f"kill-storm-{_how}",
        f"200 jobs that {_words}, 50 ms limit, 2 workers: wall time / ideal",
        peers={peer: functools.partial(kill_storm, peer, _how) for peer in _peers},
        units={"wall_ideal": "", "wall": "s", "timed_out": ""},
        bars=tuple(Bar("wall / ideal", "wall_ideal", 1.05, ours=ours) for ours in OURS),
    )
case(
    "crash-storm",
    "200 jobs of which 50 kill themselves, 2 workers",
    peers={peer: functools.partial(crash_storm, peer) for peer in (*OURS, "pebble", "deadpool", "by hand")},
    units={"wall": "s", "right": "", "blamed": "", "wrong": ""},
    bars=tuple(
        bar
        for ours in OURS
        for bar in (
            Bar("wall in s", "wall", 0.15, "pebble", ours),
            Bar("jobs wrong", "wrong", 0, ours=ours, exactly=True),
        )
    ),
)
