"""Let a job clean up when its time is over: first it is asked, then its grace passes, then it is killed.

`soft_timeout` asks while there is still time to hand in what there is. `grace` asks at the deadline itself, so that
`finally` blocks run; what the job returns after that no longer counts.
"""

import tempfile
import time
from pathlib import Path

from procsched import Outcome, Scheduler, TaskTimeoutError


def collect():
    pages = []
    try:
        while True:
            time.sleep(0.05)
            pages.append(len(pages))
    except TaskTimeoutError:
        return pages  # the soft limit: hand in what there is


def hold(path):
    lock = Path(path)
    lock.touch()
    try:
        time.sleep(60)
    finally:
        lock.unlink()


def deaf():
    while True:
        try:
            time.sleep(60)
        except TaskTimeoutError:
            pass  # it does not listen: the kill that follows does not ask


with tempfile.TemporaryDirectory() as directory, Scheduler(workers=3) as scheduler:
    path = Path(directory, "lock")
    soft = scheduler.schedule_after(collect, 0, soft_timeout=0.4, timeout=2)
    tidy = scheduler.schedule_after(hold, 0, args=(str(path),), timeout=0.4, grace=1)
    hard = scheduler.schedule_after(deaf, 0, timeout=0.4, grace=0.3)

    record = scheduler.wait(soft)
    print(f"collect: {record.outcome}, {len(record.result)} pages")
    assert record.outcome is Outcome.SUCCEEDED

    record = scheduler.wait(tidy)
    print(f"hold: {record.outcome} after {record.duration:.2f} s")
    assert record.outcome is Outcome.TIMED_OUT
    assert not path.exists()  # its `finally` has run

    record = scheduler.wait(hard)
    print(f"deaf: {record.outcome} after {record.duration:.2f} s, by {record.signal}")
    assert record.signal == "SIGKILL"
