"""Helpers for the tests of the scheduler: a deterministic one, schedules of a user's own, gates for threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from procsched import (
    After,
    CronSchedule,
    EventLog,
    ExecutionRecord,
    FakeClock,
    FixedDelay,
    FixedRate,
    InlinePool,
    OneTime,
    OverrunPolicy,
    Scheduler,
    ThreadPool,
)
from tests import support

START = 1_700_000_000.0  # UNIX seconds, a Tuesday; whole, so that grids are exact
SCHEDULES = (  # one of each kind, none due at once
    OneTime(START + 100),
    After(100),
    FixedDelay(50, 100),
    FixedRate(7.25, OverrunPolicy.CATCH_UP, 100),
    CronSchedule("30 3 * * MON-FRI", tz="Europe/Berlin"),
)


@contextmanager
def simulated(*, start: float = START, **options: Any) -> Iterator[tuple[Scheduler, FakeClock, EventLog]]:
    """Give a scheduler that runs in the calling thread on a clock that the test moves, and check it."""
    clock, log = FakeClock(start), EventLog()
    scheduler = Scheduler(
        clock=clock, pool=InlinePool(), listeners=[log, *options.pop("listeners", ())], **options
    )
    scheduler.start()
    try:
        yield scheduler, clock, log
        scheduler.engine.check()
    finally:
        scheduler.shutdown()
        scheduler.engine.check()


class Held:
    """An action that tells when it is running, and goes on until it is released."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.release = threading.Event()

    def __call__(self) -> str:
        self.started.set()
        assert self.release.wait(support.TIMEOUT)
        return "released"


@contextmanager
def threaded(workers: int = 1, **options: Any) -> Iterator[tuple[Scheduler, FakeClock, EventLog]]:
    """Give a scheduler on threads and a fake clock."""
    clock, log = FakeClock(START), EventLog()
    scheduler = Scheduler(clock=clock, pool=ThreadPool(workers), listeners=[log], **options)
    scheduler.start()
    try:
        yield scheduler, clock, log
        scheduler.engine.check()
    finally:
        scheduler.shutdown(timeout=support.TIMEOUT)
        scheduler.engine.check()


class Foreign:
    """A schedule of a user's own: the slots are listed, or answered by functions."""

    def __init__(
        self,
        first: float | Callable[[float], Any] | None,
        following: Callable[[ExecutionRecord, float], Any] = lambda record, now: None,
        steady: bool = False,
    ) -> None:
        self.first = first
        self.following = following
        self.steady = steady
        self.threads: list[str] = []

    def first_run(self, now: float) -> Any:
        self.threads.append(threading.current_thread().name)
        return self.first(now) if callable(self.first) else self.first

    def next_run(self, record: ExecutionRecord, now: float) -> Any:
        self.threads.append(threading.current_thread().name)
        return self.following(record, now)


class Fails:
    """An action that fails a number of times, then succeeds."""

    def __init__(self, times: int, clock: FakeClock | None = None, lasts: float = 0.0) -> None:
        self.left = times
        self.clock = clock
        self.lasts = lasts

    def __call__(self) -> str:
        if self.clock is not None:
            self.clock.advance(self.lasts)
        if self.left:
            self.left -= 1
            raise ValueError("bad row")
        return "good"


def offsets(records: list[ExecutionRecord]) -> list[float]:
    """Return the slots of records in seconds since the start of the test."""
    return [record.due_at - START for record in records if record.due_at is not None]
