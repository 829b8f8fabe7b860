"""A nightly backup that survives a reboot: `nightly.py DIRECTORY` is what `nightly.service` has systemd run."""

import shutil
import signal
import sys
import tempfile
from pathlib import Path

from procsched import CronSchedule, OneTime, RetryPolicy, Scheduler, SqlTaskStore

STOP = {signal.SIGINT, signal.SIGTERM}


def live(directory: Path, serve: bool) -> None:
    if serve:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # before the scheduler starts: its threads inherit it
    what = (f"{directory}/backup", "gztar", f"{directory}/data")
    with Scheduler(workers=2, store=SqlTaskStore(f"sqlite:///{directory}/jobs.db")) as scheduler:
        # The same at every start: by its key the task that is there already is found. Its function is in a module, so
        # the store keeps its name; your own belongs into one, too.
        task = scheduler.schedule(
            "backup",
            shutil.make_archive,
            CronSchedule("30 3 * * *", tz="Europe/Berlin"),
            args=what,
            retry=RetryPolicy(max_attempts=3, initial_backoff=60),
            timeout=3600,
            key="backup",
        )
        print(task.id, "runs", task.task.action)
        if serve:
            signal.sigwait(STOP)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)  # a second one ends the program at once
        else:
            now = scheduler.schedule("backup now", shutil.make_archive, OneTime(0), args=what)
            print(scheduler.wait(now).outcome, "and", len(scheduler.history()), "records so far")
    # Leaving the block has waited for what ran, up to 30 seconds.


if len(sys.argv) > 1:
    live(Path(sys.argv[1]), serve=True)
else:
    with tempfile.TemporaryDirectory() as name:
        Path(name, "data").mkdir()
        live(Path(name), serve=False)
        live(Path(name), serve=False)  # a second life: it goes on from the file
