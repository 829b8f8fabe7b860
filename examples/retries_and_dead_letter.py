"""Try again what fails, keep what fails for good in the dead letter, and revive it."""

import tempfile
from pathlib import Path

from procsched import RetryPolicy, Scheduler, current_run

with tempfile.TemporaryDirectory() as directory, Scheduler(workers=2) as scheduler:
    mended = Path(directory, "mended")

    def flaky():
        attempt = current_run().attempt  # what an action may know of its own run
        if attempt < 3:
            raise ConnectionError(f"no answer at attempt {attempt}")
        return "answered"

    def broken():
        if not mended.exists():
            raise FileNotFoundError("nobody has mended it yet")
        return "works now"

    policy = RetryPolicy(max_attempts=3, initial_backoff=0.1, multiplier=2.0)
    first = scheduler.schedule_after(flaky, 0, retry=policy)
    second = scheduler.schedule_after(broken, 0, retry=policy)

    for task in (first, second):
        scheduler.wait(task)  # for the attempt that ends the run
        print(task.name, task.status)
        for record in task.history:
            print("  attempt", record.attempt, record.outcome, record.error or record.result)

    assert scheduler.dead_letter() == [second.id]
    mended.touch()
    scheduler.revive(second)
    print("revived:", scheduler.wait(second).result)
    assert scheduler.dead_letter() == []
