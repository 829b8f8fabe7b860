"""A store on the disk: what it costs a run, how long a start with many tasks takes, and a look into many records."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests import preloaded
from tests.bench.actions import nap
from tests.bench.framework import Bar, Figures, case

WORKERS = 2
JOBS = 10_000
SECONDS = 0.002  # that a job takes
TASKS = 100_000
RECORDS = 1_000_000
# Who schedules from one thread waits for each task until it is on the disk; a server schedules from many.
MANY = ", from 8 threads"
SLOW = ", ordinary disk"
SLOW_PEERS = ("SQLite", "APScheduler", f"SQLite{MANY}", f"APScheduler{MANY}")
JOB_PEERS = ("memory", "APScheduler, threads", *SLOW_PEERS)
# What is preloaded where a disk is to take two milliseconds more to have written everything: that is about an ordinary
# SSD. A virtual disk may take a tenth of that, and is then no test of who waits for it.
ORDINARY_DISK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

static int late(const char *name, int fd) {
    struct timespec two = {0, 2000000};
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    nanosleep(&two, 0);
    return real(fd);
}

int fsync(int fd) { return late("fsync", fd); }
int fdatasync(int fd) { return late("fdatasync", fd); }
"""


def jobs(peer: str, quick: bool) -> Figures:
    """Schedule jobs that are due at once, and wait until all have run: milliseconds for each.

    Two workers cannot take less than half of a job's time for each: so nobody can be faster than a peer by more than
    the peer's figure divided by that.
    """
    count = 200 if quick else JOBS
    threads = 8 if peer.endswith(MANY) else 1
    peer = peer.removesuffix(MANY)
    if peer.startswith("APScheduler"):
        count = min(count, 1000)  # more would take minutes, and as long for each
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "jobs.db"
        if peer.startswith("APScheduler"):
            seconds = _apscheduler(path, count, threads, peer.endswith("threads"))
        else:
            seconds = _procsched(peer, path, count, threads)
    return {
        "ms": seconds / count * 1e3,
        "per_s": count / seconds,
        "ideal": seconds / count * WORKERS / SECONDS,
    }


def jobs_on_ordinary_disk(peer: str, quick: bool) -> Figures:
    """Do as `jobs` in a process for which the disk is slower."""
    with tempfile.TemporaryDirectory() as directory:
        library = preloaded.build(ORDINARY_DISK, Path(directory))
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.bench.child",
                "stores",
                "stored-jobs",
                peer,
                "quick" if quick else "full",
            ],
            env={**os.environ, "LD_PRELOAD": library},
            stdout=subprocess.PIPE,
            check=True,
        )
    answer: dict[str, Any] = json.loads(done.stdout)
    if "figures" not in answer:
        raise RuntimeError(answer)
    figures: Figures = answer["figures"]
    return figures


def _times(count: int, threads: int, schedule: Callable[[], object]) -> None:
    """Schedule so many times, from so many threads."""
    if threads == 1:
        for _ in range(count):
            schedule()
        return
    with ThreadPoolExecutor(threads) as those:
        for done in [those.submit(schedule) for _ in range(count)]:
            done.result()


def _procsched(peer: str, path: Path, count: int, threads: int) -> float:
    from procsched import NO_RETRY, InMemoryTaskStore, OneTime, Scheduler, SqlTaskStore

    store: Any = SqlTaskStore(f"sqlite:///{path}") if peer == "SQLite" else InMemoryTaskStore()
    with Scheduler(
        WORKERS, store=store, preload=["tests.bench.actions"], keep_finished=2 * count
    ) as scheduler:
        for task in [scheduler.schedule("t", nap, OneTime(0), args=(SECONDS,)) for _ in range(20)]:
            scheduler.wait(task)
        began = time.perf_counter()
        _times(
            count,
            threads,
            lambda: scheduler.schedule("t", nap, OneTime(0), retry=NO_RETRY, args=(SECONDS,)),
        )
        assert scheduler.wait_idle()
        seconds = time.perf_counter() - began
        assert scheduler.stats().counters["succeeded"] == count + 20
    return seconds


def _apscheduler(path: Path, count: int, threads: int, in_threads: bool) -> float:
    """Its jobs are gone from the file before they run, and a crash loses them.

    Args:
        threads: that schedule.
        in_threads: run them as it comes, in ten threads, where nothing can be ended; else in two processes of its own.
    """
    import threading

    from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
    from apscheduler.executors.pool import ProcessPoolExecutor
    from apscheduler.executors.pool import ThreadPoolExecutor as Threads
    from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
    from apscheduler.schedulers.background import BackgroundScheduler

    left = count
    done = threading.Event()

    def ended(_event: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            done.set()

    scheduler = BackgroundScheduler(
        jobstores={"default": SQLAlchemyJobStore(f"sqlite:///{path}")},
        executors={"default": Threads(10) if in_threads else ProcessPoolExecutor(WORKERS)},
        job_defaults={"misfire_grace_time": None},
    )
    scheduler.add_listener(ended, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED)
    scheduler.start()
    began = time.perf_counter()
    _times(count, threads, lambda: scheduler.add_job(nap, args=(SECONDS,)))
    done.wait()
    seconds = time.perf_counter() - began
    scheduler.shutdown()
    return seconds


def start(peer: str, quick: bool) -> Figures:
    """Start a scheduler on a file with many tasks: seconds until it runs, and bytes of memory for each task."""
    from procsched import FixedRate, InlinePool, Scheduler, SqlTaskStore
    from procsched.testing.stores import AT, change

    count = 1_000 if quick else TASKS
    with tempfile.TemporaryDirectory() as directory:
        url = f"sqlite:///{directory}/jobs.db"
        store = SqlTaskStore(url)
        store.open(lambda: AT)
        for first in range(0, count, 1000):
            batch = [change(number, new=True) for number in range(first, first + 1000)]
            for each in batch:
                each.call = batch[0].call  # equal calls are kept once, also in memory
                assert each.snapshot is not None
                each.snapshot.schedule = FixedRate(60.0)
                assert each.position is not None
                each.position.slot = each.position.dealt = time.time() + 3600
                each.position.backlog = ()  # of the contract's tests; few tasks are that far behind
            store.write(batch)
        store.close()
        before = _resident()
        began = time.perf_counter()
        scheduler = Scheduler(store=SqlTaskStore(url), pool=InlinePool())
        scheduler.start()
        seconds = time.perf_counter() - began
        assert len(scheduler.tasks()) == count
        grown = _resident() - before
        scheduler.shutdown(drain=False)
    return {"s": seconds, "bytes": grown / count}


def _resident() -> int:
    import gc

    import psutil

    gc.collect()
    return int(psutil.Process().memory_info().rss)


def history(peer: str, quick: bool) -> Figures:
    """List the last 50 of many records, of all tasks and of one: milliseconds, the longer of the two."""
    from procsched import SqlTaskStore
    from procsched.testing.stores import AT, change, record_of

    count = 10_000 if quick else RECORDS
    tasks = 100
    with tempfile.TemporaryDirectory() as directory:
        store = SqlTaskStore(f"sqlite:///{directory}/jobs.db", keep_records=None, records_per_task=None)
        store.open(lambda: AT)
        store.write([change(number, new=True) for number in range(tasks)])
        for first in range(0, count, 10_000):
            store.write(
                [
                    change(run % tasks, record=record_of(run % tasks, run))
                    for run in range(first, first + 10_000)
                ]
            )
        times = []
        for question in ((), ("job-7",), (None, None, AT + count - 100)):
            best = min(_seconds(functools.partial(store.history, *question, limit=50)) for _ in range(5))
            times.append(best)
        store.close()
    return {"ms": max(times) * 1e3}


def _seconds(function: Any) -> float:
    began = time.perf_counter()
    assert function()
    return time.perf_counter() - began


case(
    "stored-jobs",
    f"{JOBS} jobs of {SECONDS * 1e3:g} ms, {WORKERS} workers",
    peers={
        **{name: functools.partial(jobs, name) for name in JOB_PEERS},
        **{name + SLOW: functools.partial(jobs_on_ordinary_disk, name) for name in SLOW_PEERS},
    },
    bars=(
        Bar("on a disk at most 1.5 times as long as in memory", "ms", 1.5, "memory", "SQLite"),
        Bar("at most a tenth of APScheduler's SQLAlchemyJobStore", "ms", 0.1, "APScheduler", "SQLite"),
        Bar(
            "the same where the disk takes 2 ms more to write everything",
            "ms",
            0.1,
            "APScheduler" + SLOW,
            "SQLite" + SLOW,
        ),
        Bar(
            "the same, scheduled from 8 threads",
            "ms",
            0.1,
            "APScheduler" + MANY + SLOW,
            "SQLite" + MANY + SLOW,
        ),
    ),
    units={"ms": "ms", "per_s": "/s", "ideal": "x"},
)
case(
    "stored-start",
    f"start with {TASKS} stored tasks",
    peers={"SQLite": functools.partial(start, "SQLite")},
    bars=(
        Bar("within 5 s", "s", 5.0, None, "SQLite"),
        Bar("at most 1 KiB of memory for each", "bytes", 1024, None, "SQLite"),
    ),
    units={"s": "s", "bytes": "B"},
)
case(
    "stored-history",
    f"the last 50 of {RECORDS} records",
    peers={"SQLite": functools.partial(history, "SQLite")},
    bars=(Bar("within 10 ms", "ms", 10.0, None, "SQLite"),),
    units={"ms": "ms"},
)
