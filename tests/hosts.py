"""What programs do that host procsched in odd surroundings: use all of a pool once, and say how it went.

The scripts of `tests/process/test_surroundings*.py` import this module in parents of their own.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from procsched import NO_RETRY, OneTime, ProcessExecutor, Scheduler, TaskTimeoutError, WorkerCrashedError
from procsched.cli.quiet import only_errors_logged
from tests import faults, support

USED = "succeeded failed timed_out crashed"
"""What a full use ends with."""


def use_executor(executor: ProcessExecutor | None = None) -> str:
    """Make calls that return, raise, hang and crash; then shut down. Return their outcomes."""
    executor = executor or ProcessExecutor(2)
    with only_errors_logged(), executor:
        futures = [
            executor.submit(faults.add, 1, 2),
            executor.submit(faults.raise_it, ValueError),
            executor.options(timeout=0.1).submit(faults.nap, faults.FOREVER),
            executor.submit(faults.exit_hard, 7),
        ]
        assert futures[0].result(support.TIMEOUT * 2) == 3
        assert isinstance(futures[1].exception(support.TIMEOUT * 2), ValueError)
        assert isinstance(futures[2].exception(support.TIMEOUT * 2), TaskTimeoutError)
        crash = futures[3].exception(support.TIMEOUT * 2)
        assert isinstance(crash, WorkerCrashedError)
        assert crash.exit_code == 7, crash
        return " ".join(future.wait_record(support.TIMEOUT).outcome for future in futures)


def use_scheduler(scheduler: Scheduler | None = None) -> str:
    """Run tasks that return, raise, hang and crash; then shut down. Return their outcomes."""
    scheduler = scheduler or Scheduler(2)
    with only_errors_logged(), scheduler:

        def at_once(action: Callable[..., object], *args: object, timeout: float | None = None) -> str:
            task = scheduler.schedule("t", action, OneTime(0), args=args, retry=NO_RETRY, timeout=timeout)
            return task.id

        tasks = [
            at_once(faults.add, 1, 2),
            at_once(faults.raise_it, ValueError),
            at_once(faults.nap, faults.FOREVER, timeout=0.1),
            at_once(faults.exit_hard, 7),
        ]
        records = [scheduler.wait(task, support.TIMEOUT * 2) for task in tasks]
        assert records[0].result == 3
        assert records[3].exit_code == 7, records[3]
        return " ".join(record.outcome for record in records)


USES = {"executor": use_executor, "scheduler": use_scheduler}


def use(kind: str) -> str:
    """Use an executor or a scheduler; afterwards no child of this process is left that is ours."""
    return USES[kind]()


def no_children() -> bool:
    """Return whether this process has no child, not even a zombie."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def ignore(_signum: int, _frame: object) -> None:
    """Be a signal handler that does nothing."""


def reap_all(reaped: list[tuple[int, int]]) -> None:
    """Reap whatever has ended, as servers do in their handler of SIGCHLD."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        reaped.append((pid, os.waitstatus_to_exitcode(status)))


def reap_by_handler() -> list[tuple[int, int]]:
    """Install a handler of SIGCHLD that reaps everybody; return the list that it fills."""
    reaped: list[tuple[int, int]] = []
    signal.signal(signal.SIGCHLD, lambda _signum, _frame: reap_all(reaped))
    return reaped
