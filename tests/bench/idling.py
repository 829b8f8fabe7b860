"""What costs while nothing happens: context switches over ten seconds, and memory per idle worker."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.bench.actions import noop, pid_after
from tests.bench.framework import Bar, Figures, case

WATCH = """
import json, os, sys, time
parent, seconds, settle = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
def tree(pid):
    found = [pid]
    for pid in found:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, open(f"/proc/{pid}/task/{task}/children").read().split())
    return [pid for pid in found if pid != os.getpid()]
def look():
    seen = {}
    for pid in tree(parent):
        for task in os.listdir(f"/proc/{pid}/task"):
            text = open(f"/proc/{pid}/task/{task}/status").read()
            lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            switches = int(lines["voluntary_ctxt_switches"]) + int(lines["nonvoluntary_ctxt_switches"])
            stat = open(f"/proc/{pid}/task/{task}/stat").read().rpartition(")")[2].split()
            seen[pid, task] = switches, int(stat[11]) + int(stat[12])
    return seen
time.sleep(settle)
before = look()
time.sleep(seconds)
after = look()
switches = {str(key): after[key][0] - before.get(key, (0, 0))[0] for key in after}
print(json.dumps({
    "switches": sum(switches.values()),
    "tasks": len(after),
    "came_or_went": len(before.keys() ^ after.keys()),
    "cpu_ms": sum(after[key][1] - before.get(key, (0, 0))[1] for key in after) * 1000 / os.sysconf("SC_CLK_TCK"),
}))
"""


def scheduler() -> Callable[[], None]:
    """Two workers that have worked, a one-shot in twelve hours, a nightly cron in Berlin."""
    from procsched import CronSchedule, Scheduler

    made = Scheduler(2)
    made.start()
    for task in [made.schedule_after(pid_after, 0.0, args=(0.05,)) for _ in range(4)]:
        made.wait(task, 30.0)
    made.schedule_after(noop, 12 * 3600.0)
    made.schedule("nightly", noop, CronSchedule("0 3 * * *", tz="Europe/Berlin"))
    return lambda: made.shutdown(drain=False, timeout=5.0) and None


def executor() -> Callable[[], None]:
    """Two workers that have worked."""
    from procsched import ProcessExecutor

    return _used(ProcessExecutor(2))


def library(method: str) -> Callable[[], None]:
    """`concurrent.futures.ProcessPoolExecutor`."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    return _used(ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)))


def pebble() -> Callable[[], None]:
    """`pebble.ProcessPool`."""
    import pebble

    pool = pebble.ProcessPool(max_workers=2)
    for future in [pool.schedule(pid_after, args=(0.05,)) for _ in range(4)]:
        future.result()

    def close() -> None:
        pool.stop()
        pool.join()

    return close


def apscheduler() -> Callable[[], None]:
    """APScheduler with threads, a one-shot in twelve hours and the cron."""
    import datetime

    from apscheduler.schedulers.background import BackgroundScheduler

    made = BackgroundScheduler(timezone="Europe/Berlin")
    made.start()
    made.add_job(noop, "date", run_date=datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=12))
    made.add_job(noop, "cron", hour=3)
    return made.shutdown


def _used(pool: Any) -> Callable[[], None]:
    for future in [pool.submit(pid_after, 0.05) for _ in range(4)]:
        future.result()
    return lambda: pool.shutdown()


def idle(start: Callable[[], Callable[[], None]], quick: bool) -> Figures:
    """Context switches of all threads and processes, counted from outside while the main thread waits in a read."""
    close = start()
    seconds = "1" if quick else "10"
    watcher = subprocess.Popen(
        [sys.executable, "-S", "-c", WATCH, str(os.getpid()), seconds, "1.0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    output, _ = watcher.communicate()
    found: Figures = json.loads(output)
    close()
    return found


# -- memory --------------------------------------------------------------------------------------------------


def private_bytes(pid: int) -> int:
    """Return the memory that only this process has: what its end would free (USS)."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) * 1024 for line in file if line.startswith("Private_"))


def resident(make: Callable[[], Any], quick: bool) -> Figures:
    """USS of each of four idle workers, and of the processes between them and the parent.

    `per_worker` is after calls of a builtin function; `after_import` after calls of a function whose module the worker
    has to import first, where it was not forked from the parent.
    """
    from procsched._system import process_descendants

    pool = make()
    busy = 0.1 if quick else 0.3
    for future in [pool(time.sleep, busy) for _ in range(8)]:
        future.result()
    time.sleep(0.3)
    fresh = {pid: private_bytes(pid) for pid in process_descendants(os.getpid())}
    workers: set[int] = set()
    end = time.monotonic() + 10.0
    while len(workers) < 4 and time.monotonic() < end:
        workers.update(future.result() for future in [pool(pid_after, busy) for _ in range(4)])
    time.sleep(0.3)
    below = process_descendants(os.getpid())
    idle_workers = [private_bytes(pid) for pid in below if pid in workers]
    rest = [pid for pid in below if pid not in workers]
    known = [fresh[pid] for pid in workers if pid in fresh]
    found = {
        "per_worker": sum(known) / len(known) / 1e6,
        "after_import": sum(idle_workers) / len(idle_workers) / 1e6,
        "workers": len(idle_workers),
        "others": len(rest),
        "others_MB": sum(map(private_bytes, rest)) / 1e6,
        "all_MB": (sum(idle_workers) + sum(map(private_bytes, rest))) / 1e6,
    }
    for number, pid in enumerate(rest):  # procsched: guard, helper, spare, in this order
        found[f"other{number + 1}_MB"] = private_bytes(pid) / 1e6
    return found


def make_executor() -> Any:
    """Return the `submit` of a `ProcessExecutor`."""
    from procsched import ProcessExecutor

    return ProcessExecutor(4).submit


def make_library(method: str) -> Any:
    """Return the `submit` of a `ProcessPoolExecutor`."""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(4, mp_context=multiprocessing.get_context(method)).submit


def make_pebble() -> Any:
    """Return the like of a `pebble.ProcessPool`."""
    import pebble

    pool = pebble.ProcessPool(max_workers=4)
    return lambda function, *args: pool.schedule(function, args=args)


def make_loky() -> Any:
    """Return the `submit` of a loky executor."""
    from loky import get_reusable_executor

    return get_reusable_executor(max_workers=4).submit


def make_deadpool() -> Any:
    """Return the `submit` of a `Deadpool`."""
    import deadpool

    return deadpool.Deadpool(max_workers=4).submit


case(
    "idle",
    "context switches over 10 s with nothing to do: two workers, a one-shot in 12 h, a nightly cron in Berlin",
    peers={
        "procsched": functools.partial(idle, scheduler),
        "procsched-executor": functools.partial(idle, executor),
        "ppe-fork": functools.partial(idle, functools.partial(library, "fork")),
        "pebble": functools.partial(idle, pebble),
        "apscheduler": functools.partial(idle, apscheduler),
    },
    units={"switches": "", "tasks": "", "came_or_went": "", "cpu_ms": ""},
    bars=(
        Bar("context switches of all threads and processes", "switches", 0, exactly=True),
        Bar("context switches", "switches", 0, ours="procsched-executor", exactly=True),
    ),
)
case(
    "memory",
    "USS per idle worker, four workers; `others` are the processes between them and the parent, and spares",
    peers={
        "procsched": functools.partial(resident, make_executor),
        "ppe-fork": functools.partial(resident, functools.partial(make_library, "fork")),
        "ppe-forkserver": functools.partial(resident, functools.partial(make_library, "forkserver")),
        "ppe-spawn": functools.partial(resident, functools.partial(make_library, "spawn")),
        "pebble": functools.partial(resident, make_pebble),
        "loky": functools.partial(resident, make_loky),
        "deadpool": functools.partial(resident, make_deadpool),
    },
    units={
        "per_worker": "MB",
        "after_import": "MB",
        "others": "",
        "others_MB": "",
        "all_MB": "",
        "other1_MB": "",
        "other2_MB": "",
        "other3_MB": "",
    },
    bars=(
        Bar("USS per idle worker in MB", "per_worker", 2.0),
        Bar("USS per idle worker in MB, which has imported the action's module", "after_import", 2.0),
    ),
)
