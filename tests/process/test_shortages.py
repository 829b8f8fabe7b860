"""What is missing for a while costs nothing for good, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from procsched import ProcessExecutor, RetryPolicy, SchedulerStateError
from tests import faults, support
from tests.pools import ROOT

SHORTAGE = """
import gc, logging, os, resource, sys, threading

logging.disable()
from procsched import ProcessExecutor
import procsched._core.backoff as backoff
import procsched.workers.pool as pool

pool.check_descriptors = lambda size: None  # it would not come to a shortage

backoff.FIRST = backoff.LAST = 0.001  # many tries in little time
spare = int(sys.argv[1])
with ProcessExecutor(1) as warm:
    warm.submit(abs, 1).result()
gc.collect()
count = lambda: len(os.listdir("/proc/self/fd"))
before = count()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
executor = ProcessExecutor(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + spare, hard))
failures = 0
for _ in range(30):
    try:
        executor.submit(abs, -1).result(20)
    except Exception as error:
        assert "Too many open files" in str(error), error
        failures += 1
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
assert executor.submit(abs, -2).result(20) == 2
executor.shutdown()
assert count() == before, (count(), before)
assert threading.active_count() == 1, threading.enumerate()
print(failures)
"""
FEW, ENOUGH = 10, 24  # descriptors: some are needed whatever the system lacks, and no more whatever it has


@pytest.mark.parametrize("spare", [0, 2, 4, 6, 8, 9, FEW, 11, 12, 13, 14, 15, 16, 17, 18, ENOUGH])
def test_a_shortage_of_descriptors_passes(spare: int) -> None:
    """However many descriptors are left, calls fail for that or run; afterwards all is as before, and they run."""
    done = subprocess.run(
        [sys.executable, "-c", SHORTAGE, str(spare)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=support.TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    failures = int(done.stdout)
    if spare <= FEW:
        assert failures == 30
    elif spare >= ENOUGH:
        assert failures == 0


def test_an_executor_that_was_not_used_before_a_fork_works_in_it() -> None:
    """A server that forks after it has made its executors may use them in its children."""
    executor = ProcessExecutor(1)
    pid = os.fork()
    if pid == 0:
        try:
            code = 0 if executor.submit(abs, -3).result(support.TIMEOUT) == 3 else 1
            executor.shutdown()
        except BaseException:
            code = 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    executor.shutdown()


def test_a_fork_is_told_that_a_future_is_not_its_own() -> None:
    """In a fork of the parent a call that runs would be waited for in vain: it is an error that says so."""
    with ProcessExecutor(1) as executor:
        future = executor.submit(time.sleep, 1000)
        support.eventually(future.running)
        pid = os.fork()
        if pid == 0:
            code = 0
            for ask in (future.result, future.exception, future.wait_record, future.cancel):
                try:
                    ask()
                    code = 1
                except SchedulerStateError:
                    pass
                except BaseException:
                    code = 2
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert future.cancel()


def test_killing_the_workers_reaches_a_call_between_two_attempts(tmp_path: Path) -> None:
    """A call that waits for its next attempt is cancelled by `kill_workers`, and is not tried again."""
    executor = ProcessExecutor(1, retry=RetryPolicy(4, initial_backoff=1000.0, max_backoff=1000.0))
    future = executor.submit(faults.tell_and_fail, str(tmp_path / "told"))
    support.eventually(lambda: future.records)
    executor.kill_workers()
    executor.shutdown()
    assert future.cancelled()
    assert (tmp_path / "told").read_text() == "x"


LOW_LIMIT = """
import os, sys, threading, time
from procsched import ProcessExecutor

def depth():
    frame, count = sys._getframe(1), 0
    while frame:
        frame, count = frame.f_back, count + 1
    return count

limit = sys.getrecursionlimit()
for room in range(7, 31, 3):
    executor = ProcessExecutor(1, start_timeout=3.0)
    assert executor.submit(abs, -1).result(20) == 1
    sys.setrecursionlimit(depth() + room)
    try:
        future = executor.submit(abs, -2)
    except RecursionError:
        future = None
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass
    sys.setrecursionlimit(limit)
    if future is not None:
        future.wait_record(20)
    executor.submit(abs, -3).wait_record(20)
    assert executor.submit(abs, -4).result(20) == 4
    ending = threading.Thread(target=executor.shutdown, daemon=True)
    ending.start()
    ending.join(20)
    print(room, ending.is_alive(), flush=True)
"""


@pytest.mark.slow
def test_a_recursion_limit_that_leaves_no_room_loses_no_call(tmp_path: Path) -> None:
    """It is one for all threads, also for that of the deadlines: calls end, others begin, and a shutdown returns."""
    script = tmp_path / "script.py"
    script.write_text(LOW_LIMIT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == [f"{room} False" for room in range(7, 31, 3)], done.stderr[-2000:]
