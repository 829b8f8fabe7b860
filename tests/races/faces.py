"""The two faces of the pool, as far as a race needs them: begin a run, end it, ask how it ended."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from concurrent.futures import CancelledError
from typing import Any, Protocol

from procsched import (
    NO_RETRY,
    ExecutionRecord,
    OneTime,
    Outcome,
    ProcessExecutor,
    ScheduledTask,
    Scheduler,
    SchedulerStateError,
    TaskEvent,
    TaskKilledError,
    TaskStatus,
    TaskTimeoutError,
    WorkerCrashedError,
)
from procsched.future import ProcessFuture
from tests import support

PRELOAD = ("tests.races.actions",)


class Face(Protocol):
    """What a race asks of a scheduler or an executor."""

    def begin(self, key: str, function: Any, *args: Any, **options: Any) -> Any:
        """Have a function called as soon as a worker is free."""

    def cancel(self, run: Any) -> bool:
        """End a run; return whether that was promised."""

    def shutdown(self) -> None:
        """End everything now, and return when nothing is left."""

    def records(self, run: Any) -> list[ExecutionRecord]:
        """Wait for the end of a run, and return its records: none where it was withdrawn."""

    def check(self, run: Any, record: ExecutionRecord | None, cancelled: bool) -> None:
        """Fail unless whoever waits for the run is told the same as the record says."""

    def pids(self) -> list[int]:
        """Return the pids of the workers that run something."""

    def check_told(self, records: Counter[str]) -> None:
        """After the shutdown: fail unless listeners were told of each record once."""


class ExecutorFace:
    """An executor. For every other call a thread waits from its beginning, and maybe takes its result itself."""

    name = "executor"

    def __init__(self, workers: int) -> None:
        self.executor = ProcessExecutor(workers, preload=PRELOAD)
        self.begun = 0
        self.waiting: dict[ProcessFuture[Any], tuple[threading.Thread, list[BaseException | None]]] = {}

    def begin(self, key: str, function: Any, *args: Any, **options: Any) -> ProcessFuture[Any]:
        run = self.executor.options(name=key, **options).submit(function, *args)
        self.begun += 1
        if self.begun % 2:
            told: list[BaseException | None] = []
            thread = threading.Thread(target=self._wait, args=(run, told))
            thread.start()
            self.waiting[run] = thread, told
        return run

    @staticmethod
    def _wait(run: ProcessFuture[Any], told: list[BaseException | None]) -> None:
        try:
            told.append(run.exception(support.TIMEOUT))
        except (CancelledError, TimeoutError) as error:
            told.append(error)

    def cancel(self, run: ProcessFuture[Any]) -> bool:
        return run.cancel()

    def shutdown(self) -> None:
        self.executor.kill_workers()
        self.executor.shutdown()

    def records(self, run: ProcessFuture[Any]) -> list[ExecutionRecord]:
        try:
            run.wait_record(support.TIMEOUT)
        except CancelledError:  # it has none: it was withdrawn
            assert run.cancelled()
        if run in self.waiting:
            thread, told = self.waiting.pop(run)
            thread.join(support.TIMEOUT)
            assert len(told) == 1
            assert isinstance(told[0], CancelledError) if run.cancelled() else told[0] is run.exception(0)
        return run.records

    def check(self, run: ProcessFuture[Any], record: ExecutionRecord | None, cancelled: bool) -> None:
        if record is None or cancelled:
            assert run.cancelled(), record
            assert record is None or record.outcome is Outcome.KILLED, record
            return
        assert not run.cancelled(), record
        error = run.exception(0)
        expected: tuple[type[BaseException], ...] = {
            Outcome.TIMED_OUT: (TaskTimeoutError,),
            Outcome.CRASHED: (WorkerCrashedError,),
            Outcome.KILLED: (TaskKilledError,),
        }.get(record.outcome, (type(None),))
        assert isinstance(error, expected), (error, record)
        if record.ok:
            assert run.result(0) == record.name

    def pids(self) -> list[int]:
        workers = self.executor._core.pool.stats()[0]
        return [worker.pid for worker in workers if worker.state == "busy" and worker.pid]

    def check_told(self, records: Counter[str]) -> None:
        pass  # an executor has none


class Told:
    """A listener that counts the records of which it hears, by the name of their task."""

    def __init__(self) -> None:
        self.records: Counter[str] = Counter()

    def on_task_event(self, event: TaskEvent) -> None:
        if event.record is not None:
            self.records[event.name] += 1


class SchedulerFace:
    """A scheduler; each run is a task of its own."""

    name = "scheduler"

    def __init__(self, workers: int) -> None:
        self.told = Told()
        self.scheduler = Scheduler(workers, listeners=[self.told], preload=PRELOAD, keep_finished=1000)
        self.scheduler.start()
        self.report: Any = None

    def begin(self, key: str, function: Any, *args: Any, **options: Any) -> ScheduledTask:
        return self.scheduler.schedule(key, function, OneTime(0.0), args=args, retry=NO_RETRY, **options)

    def cancel(self, run: ScheduledTask) -> bool:
        try:
            return self.scheduler.kill(run)
        except SchedulerStateError:  # the shutdown is over
            return False

    def shutdown(self) -> None:
        self.report = self.scheduler.shutdown(drain=False, timeout=0)

    def records(self, run: ScheduledTask) -> list[ExecutionRecord]:
        if self.report is None:
            record = self.scheduler.wait(run, support.TIMEOUT)
            assert run.history[-1:] == [record], (run.history, record)
        return run.history

    def check(self, run: ScheduledTask, record: ExecutionRecord | None, cancelled: bool) -> None:
        killed = record is not None and record.outcome is Outcome.KILLED
        assert cancelled == (killed and "request" in str(record and record.error)), (cancelled, record)
        if record is None:
            assert self.report is not None
            assert run.id in self.report.returned, self.report
            assert run.status is TaskStatus.SCHEDULED, run
            return
        if record.ok:
            assert record.result == record.name
        status = {Outcome.SUCCEEDED: TaskStatus.SUCCEEDED}.get(record.outcome, TaskStatus.FAILED)
        if cancelled:
            status = TaskStatus.CANCELLED
        assert run.status is status, (run, record)

    def pids(self) -> list[int]:
        return [
            worker.pid for worker in self.scheduler.stats().workers if worker.state == "busy" and worker.pid
        ]

    def check_told(self, records: Counter[str]) -> None:
        assert self.told.records == +records


def signal_worker(pid: int) -> Any:
    """Return a function that kills this worker, and no other process that may have its pid by then."""
    descriptor = os.pidfd_open(pid)

    def kill() -> None:
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)

    return kill
