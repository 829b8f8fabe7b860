"""A job that kills its process, one that exits, one that segfaults: each is blamed alone, and the rest goes on."""

import ctypes
import os
import resource
import signal

from procsched import Outcome, Scheduler


def segfault():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # this example leaves no core file behind
    ctypes.string_at(0)


with Scheduler(workers=2) as scheduler:
    bad = [
        scheduler.schedule_after(segfault, 0),
        scheduler.schedule_after(os._exit, 0, args=(5,), name="exit"),
        scheduler.schedule_after(lambda: os.kill(os.getpid(), signal.SIGKILL), 0, name="kill"),
    ]
    good = [scheduler.schedule_after(pow, 0, args=(2, n), name=f"2**{n}") for n in range(8)]

    for task in bad:
        record = scheduler.wait(task)
        print(f"{task.name:<9} {record.outcome}: {record.error}")
        assert record.outcome is Outcome.CRASHED
    print([scheduler.wait(task).result for task in good])
