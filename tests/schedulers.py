"""What the tests of the scheduler on real children share: a scheduler whose books are checked, and actions.

`Rig` is a scheduler on a `ProcessPool` with an `EventLog`. Leaving it fails the test if an attempt has no record or
two, if a task overlapped itself, or if the invariants of the engine do not hold.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from procsched import (
    NO_RETRY,
    EventLog,
    ExecutionRecord,
    OneTime,
    Outcome,
    ScheduledTask,
    Scheduler,
    current_run,
)
from tests import faults, support

PRELOAD = ("tests.schedulers",)


class Rig(support.Scratch):
    """A scheduler on processes, with helpers, for one test."""

    def __init__(self, directory: Path, workers: int = 2, **options: Any) -> None:
        super().__init__(directory)
        self.log = EventLog()
        options.setdefault("preload", PRELOAD)  # or else a short limit ends in their import
        listeners = [self.log, *options.pop("listeners", ())]
        self.scheduler = Scheduler(workers, listeners=listeners, **options)
        self.fake = options.get("clock") is not None

    def __enter__(self) -> Rig:
        self.scheduler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.scheduler.shutdown(drain=False, timeout=0)
        if kind is None:
            check_books(self.scheduler, self.log, overlaps=not self.fake)

    def at_once(self, action: Any, *args: Any, name: str = "t", **options: Any) -> ScheduledTask:
        """Schedule a run that is due now, with no second try unless `retry=` says so."""
        options.setdefault("retry", NO_RETRY)
        return self.scheduler.schedule(name, action, OneTime(0.0), args=args, **options)

    def wait(self, task: ScheduledTask) -> ExecutionRecord:
        """Return the record that ends the task's run."""
        return self.scheduler.wait(task, support.TIMEOUT)

    def settle(self) -> None:
        """Wait until nothing is due, in flight or untold."""
        assert self.scheduler.wait_idle(support.TIMEOUT)

    def workers(self, state: str) -> list[int]:
        """Return the pids of the workers in this state."""
        return [
            worker.pid for worker in self.scheduler.stats().workers if worker.state == state and worker.pid
        ]


def check_books(scheduler: Scheduler, log: EventLog, *, overlaps: bool = True) -> None:
    """Fail unless every attempt that was started has exactly one record, told once, and no task overlapped itself."""
    scheduler.engine.check()
    counters = scheduler.stats().counters
    assert counters["started"] == sum(counters[outcome.value] for outcome in Outcome)
    events = log.events
    numbers = [event.sequence for event in events]
    assert numbers == sorted(set(numbers)), "events out of order, or told twice"
    records = [event.record for event in events if event.record is not None]
    keys = [(record.task_id, record.run, record.attempt) for record in records]
    assert len(keys) == len(set(keys)), "an attempt has two records"
    assert len(keys) == counters["started"], "an attempt has no record"
    assert all(event.task_id == event.record.task_id for event in events if event.record is not None)
    if not overlaps:
        return
    ends: dict[str, float] = {}
    for record in records:
        assert record.started_at >= ends.get(record.task_id, 0.0) - 1e-3, "a task overlapped itself"
        ends[record.task_id] = record.finished_at


# --- actions ------------------------------------------------------------------------------------------------


def hang_once(path: str, marker: str) -> str:
    """Hang where nobody has been before; else return."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return "second"
    faults.sleep(path)
    raise AssertionError


def fail_by(path: str, attempt: int, how: str) -> int:
    """Fail in one of several ways until this attempt, counted in a file; return the number of the attempt."""
    support.tell(path, os.getpid())
    run = current_run()
    assert run is not None
    if run.attempt < attempt:
        if how == "hang":
            while True:
                time.sleep(faults.FOREVER)
        if how == "crash":
            os._exit(5)
        if how == "segfault":
            faults.segfault()
        raise ValueError(f"attempt {run.attempt}")
    return run.attempt


def grow(values: list[int], *, table: dict[str, int]) -> tuple[list[int], dict[str, int]]:
    """Change the arguments, and return what they have become."""
    values.append(len(values))
    table["seen"] = table.get("seen", 0) + 1
    return values, table


def steps_and_gate(gate: str) -> None:
    """Tell of three steps, then wait at a gate."""
    run = current_run()
    assert run is not None
    for step in range(1, 4):
        run.progress(step, 3, f"step {step}")
    faults.wait_at_gate(gate)


def describe_run() -> dict[str, Any]:
    """Return all that is known of the current run, and the wall time."""
    run = current_run()
    assert run is not None
    return {
        "id": run.id,
        "name": run.name,
        "attempt": run.attempt,
        "run": run.run,
        "deadline": run.deadline,
        "remaining": run.remaining(),
        "now": time.time(),
    }


async def wait_async(value: Any) -> Any:
    import asyncio  # not with this module, which many pools preload

    await asyncio.sleep(0)
    return value


def zeros(size: int) -> bytes:
    return b"0" * size


def hold(lock: str, overlaps: str, how: int, begun: str = "") -> None:
    """Hold a lock as long as this process is in the action; tell if another one holds it. Then end somehow."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        support.tell(overlaps, lock)
    run = current_run()
    assert run is not None
    if begun:
        support.tell(begun, run.id, run.run, run.attempt)
    try:
        if how == 1 and run.attempt == 1:
            raise ValueError("first attempt")
        if how == 2 and run.attempt == 1:
            os._exit(3)
        if how == 3:
            time.sleep(0.02)
        if how == 4:
            time.sleep(faults.FOREVER)
    finally:
        os.close(descriptor)


def clean_up_slowly(path: str) -> NoReturn:
    """Hang, and when asked to stop ask for the time that a grace gives."""
    try:
        support.tell(path, os.getpid())
        while True:
            time.sleep(faults.FOREVER)
    finally:
        time.sleep(0.05)
        support.tell(path, "cleaned")


def monotonic() -> float:
    return time.monotonic()
