"""What a fresh interpreter pays: the import, and the first result. Each figure is the median of fresh interpreters."""

from __future__ import annotations

import functools
import statistics

from tests.bench.framework import Bar, Figures, case, fresh_interpreters

RUNS = 5  # interpreters for each (peer, round): with the five rounds that are usual, 25

IMPORTS = {
    "procsched": "from procsched import Scheduler, ProcessExecutor",
    "ppe": "from concurrent.futures import ProcessPoolExecutor",
    "pebble": "from pebble import ProcessPool",
    "loky": "import loky",
    "apscheduler": "from apscheduler.schedulers.background import BackgroundScheduler",
}
IMPORT = """
import time
began = time.perf_counter()
{statement}
print((time.perf_counter() - began) * 1000)
"""

# What is imported before the time starts, and what makes the pool.
POOLS = {
    "procsched": ("from procsched import ProcessExecutor", "ProcessExecutor(2)"),
    "procsched-scheduler": ("from procsched import Scheduler", "Scheduler(2)"),
    "ppe-spawn": (
        "import multiprocessing; from concurrent.futures import ProcessPoolExecutor",
        "ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('spawn'))",
    ),
    "ppe-forkserver": (
        "import multiprocessing; from concurrent.futures import ProcessPoolExecutor",
        "ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('forkserver'))",
    ),
    "ppe-fork": (
        "import multiprocessing; from concurrent.futures import ProcessPoolExecutor",
        "ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork'))",
    ),
    "loky": ("from loky import get_reusable_executor", "get_reusable_executor(max_workers=2)"),
    "pebble": ("from pebble import ProcessPool", "ProcessPool(max_workers=2)"),
}
FIRST = """
import os, time
{imports}
from tests.bench.actions import number
began = time.perf_counter()
pool = {pool}
{first}
print((time.perf_counter() - began) * 1000, flush=True)
{end}
"""
SUBMIT = "assert pool.submit(number, 7).result() == 7", "pool.shutdown()"
HOW = {
    "procsched-scheduler": (
        "pool.start(); assert pool.wait(pool.schedule_after(number, 0.0, args=(7,)), 30.0).result == 7",
        "pool.shutdown()",
    ),
    "pebble": ("assert pool.schedule(number, args=(7,)).result() == 7", "pool.stop(); pool.join()"),
}


def importing(peer: str, quick: bool) -> Figures:
    """Milliseconds of an import, inside the interpreter."""
    code = IMPORT.format(statement=IMPORTS[peer])
    fresh_interpreters(code, 1)  # so that there is byte code
    return {"import": statistics.median(fresh_interpreters(code, 2 if quick else RUNS))}


def first_result(peer: str, quick: bool) -> Figures:
    """Milliseconds from the constructor to the first result, imports excluded."""
    imports, pool = POOLS[peer]
    first, end = HOW.get(peer, SUBMIT)
    code = FIRST.format(imports=imports, pool=pool, first=first, end=end)
    fresh_interpreters(code, 1)
    return {"first": statistics.median(fresh_interpreters(code, 1 if quick else RUNS))}


case(
    "import",
    "import in a fresh interpreter",
    peers={peer: functools.partial(importing, peer) for peer in IMPORTS},
    units={"import": "ms"},
    bars=(Bar("import of Scheduler and ProcessExecutor", "import", 1.0, "ppe"),),
)
case(
    "first-result",
    "first result in a fresh interpreter, from the constructor, the import left out",
    peers={peer: functools.partial(first_result, peer) for peer in POOLS},
    units={"first": "ms"},
    bars=(
        Bar("first result", "first", 0.7, "ppe-spawn"),
        Bar("first result", "first", 0.9, "ppe-spawn", "procsched-scheduler"),
    ),
)
