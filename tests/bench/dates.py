"""The scheduler's own work: how late an action begins, ten thousand at once, and what adding a job costs."""

from __future__ import annotations

import datetime
import functools
import random
import sys
import threading
import time
import tracemalloc
from typing import Any

from tests.bench.actions import noop, now
from tests.bench.framework import Bar, Figures, case, percentile

ONE_SHOTS, SPREAD = 1_000, 5.0
BURST = 10_000
ADDED = 20_000
LEAD = 1.0  # seconds between the start of the adding and the first due time; more for a burst


def due_times(count: int, first: float, spread: float) -> list[float]:
    """Return the same random instants for every peer."""
    draw = random.Random(7)
    return sorted(first + draw.random() * spread for _ in range(count))


def at(timestamp: float) -> datetime.datetime:
    """Return an aware datetime for APScheduler."""
    return datetime.datetime.fromtimestamp(timestamp, datetime.UTC)


def lateness(values: list[float]) -> Figures:
    """Return the summary in milliseconds."""
    late = [1000 * value for value in values]
    return {
        "late_p50": percentile(late, 0.5),
        "late_p99": percentile(late, 0.99),
        "late_max": max(late),
        "runs": len(late),
    }


def late_procsched(kind: str, quick: bool) -> Figures:
    """Lateness of the action's first line behind its due time."""
    from procsched import EventLog, ProcessPool, Scheduler, ThreadPool

    count, spread = (100, 1.0) if quick else (ONE_SHOTS, SPREAD)
    log = EventLog()
    pool = ProcessPool(2) if kind == "processes" else ThreadPool(2)
    scheduler = Scheduler(pool=pool, listeners=[log])
    scheduler.start()
    for task in [scheduler.schedule_after(now, 0.0) for _ in range(4)]:
        scheduler.wait(task, 30.0)
    dues = due_times(count, time.time() + LEAD, spread)
    expected = {scheduler.schedule_at(now, due).id: due for due in dues}
    time.sleep(max(0.0, dues[-1] - time.time()) + 0.2)  # nobody looks at the log meanwhile
    assert scheduler.wait_idle(30.0), "not every run was reported"
    late = [
        event.record.result - expected[event.task_id] for event in log.runs() if event.task_id in expected
    ]
    scheduler.shutdown(drain=False, timeout=5.0)
    return lateness(late)


def late_apscheduler(quick: bool) -> Figures:
    """The same for APScheduler with ten threads, as is its default."""
    from apscheduler.schedulers.background import BackgroundScheduler

    count, spread = (100, 1.0) if quick else (ONE_SHOTS, SPREAD)
    scheduler = BackgroundScheduler(timezone="UTC")
    scheduler.start()
    late: list[float] = []
    dues = due_times(count, time.time() + LEAD, spread)
    for due in dues:
        scheduler.add_job(
            lambda due=due: late.append(now() - due), "date", run_date=at(due), misfire_grace_time=None
        )
    end = time.monotonic() + spread + LEAD + 30.0
    time.sleep(max(0.0, dues[-1] - time.time()))
    while len(late) < count and time.monotonic() < end:
        time.sleep(0.05)
    scheduler.shutdown(wait=False)
    return lateness(late)


# -- a burst -------------------------------------------------------------------------------------------------


def burst_procsched(kind: str, quick: bool) -> Figures:
    """Jobs due at one instant: seconds from there until the last is done."""
    from procsched import ProcessPool, Scheduler, ThreadPool

    count = 500 if quick else BURST
    pool = ProcessPool(2) if kind == "processes" else ThreadPool(2)
    scheduler = Scheduler(pool=pool)
    scheduler.start()
    for task in [scheduler.schedule_after(noop, 0.0) for _ in range(4)]:
        scheduler.wait(task, 30.0)
    due = time.time() + (1.0 if quick else 5.0)
    tasks = [scheduler.schedule_at(noop, due) for _ in range(count)]
    assert time.time() < due, "the adding took too long"
    time.sleep(due - time.time())
    assert scheduler.wait_idle(60.0), "not every job is done"
    seconds = time.time() - due
    records = [task.last_run() for task in tasks]
    assert all(record is not None and record.ok for record in records)
    scheduler.shutdown(drain=False, timeout=5.0)
    return {"burst": seconds, "per_second": count / seconds}


def burst_apscheduler(kind: str, quick: bool) -> Figures:
    """The same for APScheduler, with its pool of two processes or threads."""
    from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
    from apscheduler.executors.pool import ProcessPoolExecutor, ThreadPoolExecutor
    from apscheduler.schedulers.background import BackgroundScheduler

    count = 500 if quick else BURST
    made = ProcessPoolExecutor(2) if kind == "processes" else ThreadPoolExecutor(2)
    scheduler = BackgroundScheduler(executors={"default": made}, timezone="UTC")
    left = [count]
    done = threading.Event()
    lock = threading.Lock()

    def hear(event: Any) -> None:
        with lock:
            left[0] -= 1
            if not left[0]:
                done.set()

    scheduler.start()
    if kind == "processes":
        for future in [made._pool.submit(time.sleep, 0.2) for _ in range(2)]:
            future.result()  # its workers are up, as ours are
    scheduler.add_listener(hear, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
    due = time.time() + (1.5 if quick else 8.0)
    for _ in range(count):
        scheduler.add_job(noop, "date", run_date=at(due), misfire_grace_time=None)
    assert time.time() < due, "the adding took too long"
    assert done.wait(120.0), f"{left[0]} jobs are not done"
    seconds = time.time() - due
    scheduler.shutdown(wait=False)
    return {"burst": seconds, "per_second": count / seconds}


# -- adding --------------------------------------------------------------------------------------------------


def add_procsched(started: bool, quick: bool) -> Figures:
    """Adding a job that is due in twelve hours: time, and what the scheduler keeps of it beyond its pickle."""
    from procsched import OneTime, ProcessPool, Scheduler

    count = 1_000 if quick else ADDED
    due = time.time() + 12 * 3600.0
    names = [f"job {number}" for number in range(count)]
    pickled = sys.getsizeof(ProcessPool(1).pack(noop, (), {}))

    def make() -> Any:
        scheduler = Scheduler(2)
        if started:
            scheduler.start()
            scheduler.wait(scheduler.schedule_after(noop, 0.0), 30.0)
        for name in names[:100]:
            scheduler.schedule(name, noop, OneTime(due))
        return scheduler

    scheduler = make()
    began = time.perf_counter()
    for name in names:
        scheduler.schedule(name, noop, OneTime(due))
    seconds = time.perf_counter() - began
    scheduler.shutdown(drain=False, timeout=5.0)
    scheduler = make()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for name in names:
        scheduler.schedule(name, noop, OneTime(due))
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    scheduler.shutdown(drain=False, timeout=5.0)
    return {
        "add_us": seconds / count * 1e6,
        "bytes": kept / count - pickled,
        "pickle_bytes": pickled,
        "per_second": count / seconds,
    }


def add_apscheduler(started: bool, quick: bool) -> Figures:
    """The same for APScheduler, in its memory store."""
    from apscheduler.schedulers.background import BackgroundScheduler

    count = 1_000 if quick else ADDED
    due = at(time.time() + 12 * 3600.0)
    names = [f"job {number}" for number in range(count)]

    def make() -> Any:
        scheduler = BackgroundScheduler(timezone="UTC")
        if started:
            scheduler.start()
        for name in names[:100]:
            scheduler.add_job(noop, "date", run_date=due, name=name)
        return scheduler

    scheduler = make()
    began = time.perf_counter()
    for name in names:
        scheduler.add_job(noop, "date", run_date=due, name=name)
    seconds = time.perf_counter() - began
    scheduler = make()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for name in names:
        scheduler.add_job(noop, "date", run_date=due, name=name)
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return {"add_us": seconds / count * 1e6, "bytes": kept / count, "per_second": count / seconds}


case(
    "lateness",
    "1,000 one-shots over 5 s: the action's first line behind its due time",
    peers={
        "procsched": functools.partial(late_procsched, "processes"),
        "procsched-threads": functools.partial(late_procsched, "threads"),
        "apscheduler threads": late_apscheduler,
    },
    units={"late_p50": "ms", "late_p99": "ms", "late_max": "ms", "runs": ""},
    bars=tuple(
        Bar(f"lateness, {name}", f"late_{name}", 1.0, "apscheduler threads", ours)
        for ours in ("procsched", "procsched-threads")
        for name in ("p50", "p99")
    ),
)
case(
    "burst",
    "10,000 jobs due at once, two workers: seconds until the last is done",
    peers={
        "procsched": functools.partial(burst_procsched, "processes"),
        "procsched-threads": functools.partial(burst_procsched, "threads"),
        "apscheduler processes": functools.partial(burst_apscheduler, "processes"),
        "apscheduler threads": functools.partial(burst_apscheduler, "threads"),
    },
    units={"burst": "s", "per_second": ""},
    bars=(Bar("10,000 at once, 6 times faster", "burst", 1 / 6, "apscheduler processes"),),
)
case(
    "add",
    "adding a job that is due in 12 h, an importable function; 20,000 of them",
    peers={
        "procsched": functools.partial(add_procsched, True),
        "procsched pending": functools.partial(add_procsched, False),
        "apscheduler": functools.partial(add_apscheduler, True),
        "apscheduler pending": functools.partial(add_apscheduler, False),
    },
    units={"add_us": "", "bytes": "", "pickle_bytes": ""},
    bars=(
        Bar("adding while started, 8 times faster", "add_us", 1 / 8, "apscheduler"),
        Bar(
            "adding before the start, 8 times faster",
            "add_us",
            1 / 8,
            "apscheduler pending",
            "procsched pending",
        ),
        Bar("bytes per job without its pickle", "bytes", 1024),
    ),
)
