"""The public interface as a user writes it. Never run: mypy --strict reads it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import procsched
from procsched import (
    CronSchedule,
    EventLog,
    ExecutionRecord,
    FakeClock,
    FixedDelay,
    FixedRate,
    Health,
    InlinePool,
    Limits,
    OneTime,
    Outcome,
    OverrunPolicy,
    Priority,
    ProcessExecutor,
    ProcessFuture,
    RetryPolicy,
    Schedule,
    ScheduledTask,
    Scheduler,
    ShutdownReport,
    TaskEvent,
    TaskListener,
    current_run,
    killable,
    run,
)


def add(a: int, b: int) -> int:
    return a + b


class Every:
    """A schedule of one's own: the protocol asks for nothing but the two methods."""

    def first_run(self, now: float) -> float | None:
        return now

    def next_run(self, record: ExecutionRecord, now: float) -> float | None:
        return None if record.outcome is Outcome.FAILED else now + 1.0


class Printer:
    def on_task_event(self, event: TaskEvent) -> None:
        print(event.sequence, event.task_id, event.record and event.record.duration)


def schedules() -> list[Schedule]:
    return [
        OneTime(datetime(2030, 1, 1, tzinfo=UTC)),
        FixedDelay(timedelta(seconds=5)),
        FixedRate(1.0, OverrunPolicy.CATCH_UP, start_delay=2),
        CronSchedule("30 2 * * *", tz="Europe/Berlin"),
        Every(),
    ]


def scheduler() -> ShutdownReport:
    listener: TaskListener = Printer()
    with Scheduler(workers=2, listeners=[listener, EventLog()]) as s:
        task: ScheduledTask = s.schedule(
            "add", add, FixedRate(1.0), Priority.HIGH, RetryPolicy(2), 5.0, args=(1, 2)
        )
        s.schedule_after(add, 1.5, args=(1, 2), timeout=2.0, grace=0.5)
        s.schedule_at(add, datetime(2030, 1, 1, tzinfo=UTC), kwargs={"a": 1, "b": 2})
        s.schedule_every(add, timedelta(minutes=1), args=(1, 2), retries=3)
        record: ExecutionRecord = s.wait(task, timeout=10)
        print(record.error, record.stack)
        done: bool = (
            s.cancel(task, kill=True) or s.kill(task.id) or s.pause(task) or s.resume(task) or s.revive(task)
        )
        health: Health = s.health(stuck_after=2.0)
        print(health.ok, [part.seconds for part in health.troubled], procsched.health(timedelta(seconds=1)))
        print(done, s.dead_letter(), s.pending(), s.stats().counters, [t.summary() for t in s.tasks()])
        return s.shutdown(drain=False, timeout=1.0)


def fake() -> None:
    clock = FakeClock(0.0)
    with Scheduler(clock=clock, pool=InlinePool()) as s:
        clock.advance(timedelta(hours=12))
        idle: bool = s.wait_idle()
        print(idle)


@killable(timeout=5, limits=Limits(memory=1 << 30, cpu_seconds=2.5))
def slow(text: str) -> int:
    here = current_run()
    if here is not None:
        here.progress(1, 2, "half")
    return len(text)


def executor() -> int:
    with ProcessExecutor(max_workers=2, timeout=10) as pool:
        future: ProcessFuture[int] = pool.submit(add, 1, 2)
        total = future.result() + sum(pool.map(add, [1, 2], [3, 4]))
        counts: list[int] = list(pool.map(slow, ["a", "b"], buffersize=2, progress=True))
        limited = pool.options(timeout=2, limits=Limits(output=1 << 20, result=1000))
        both: Iterator[int | BaseException] = limited.map(slow, ["a"], return_exceptions=True, progress=show)
        counts += [each for each in both if not isinstance(each, BaseException)]
        future.cancel()
        print(pool.stats().counters, pool.health().problems)
        procsched.dump()
    return total + sum(counts) + run(add, 1, 2, timeout=5) + slow("text")


async def later(text: str) -> int:
    return len(text)


async def coroutines() -> int:
    """What an `async def` function gives is awaited in the worker; an exception may take the place of a result."""
    with ProcessExecutor(1) as pool:
        first: int = pool.submit(later, "text").result() + run(later, "text", timeout=5)
        total = first + sum(pool.map(later, ["a", "b"])) + await pool.run(later, "text")
        for each in pool.map(add, [1, 2], [3, 4], return_exceptions=True):
            total += 0 if isinstance(each, BaseException) else each
        return total


def show(done: int, total: int | None) -> None:
    print(done, total)


async def awaited() -> int:
    async with ProcessExecutor(2) as pool:
        first: int = await pool.run(add, 1, 2, timeout=5)
        return first + await pool.options(timeout=None, name="slow").run(slow, "text")
