"""A scheduler on a store, in a process of its own: `python -m tests.owner URL [WORD ...]`.

It says "started" when it has the store, and ends in order on SIGTERM. Words: "standby"; "fork": forks a child that
lives on and does nothing, and says its pid; "hang:PATH": schedules a run that says its pid in that file and hangs;
"cling:PATH": one that does not end when it is asked to, either; "look:PATH": one that says in PATH.looked whether that
process still lives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from procsched import CronSchedule, FixedRate, OneTime, RetryPolicy, Scheduler, SqlTaskStore
from tests import stored, support
from tests.faults import FOREVER


def hang(path: str) -> None:
    """Say which process this is, and never end."""
    import time

    support.tell(path, os.getpid())
    time.sleep(FOREVER)


def cling(path: str) -> None:
    """Do the same, whoever asks it to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    hang(path)


def look(path: str) -> None:
    """Say whether the process lives that has said so there."""
    (pid,) = Path(path).read_text(encoding="utf-8").split()
    support.tell(f"{path}.looked", "gone" if support.process_gone(int(pid), 0) else "alive")


@contextmanager
def process(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Give such a process; it is killed at the end, if it still lives."""
    one = subprocess.Popen(
        [sys.executable, "-m", "tests.owner", url, *words],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield one
    finally:
        one.kill()
        one.communicate()


def started(one: subprocess.Popen[str]) -> str:
    """Wait until it has the store. Return what it says."""
    assert one.stdout is not None
    line = one.stdout.readline()
    assert line.startswith("started"), one.communicate()[1]
    return line


def main(url: str, words: list[str]) -> None:
    """Be the scheduler."""
    stop = signal.sigwait
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    scheduler = Scheduler(1, store=SqlTaskStore(url, standby="standby" in words), preload=("tests.owner",))
    scheduler.start()
    scheduler.schedule("nightly", stored.nothing, CronSchedule("0 3 1 1 *"), key="nightly")
    scheduler.schedule("rate", stored.nothing, FixedRate(1e6, start_delay=1e6), key="rate")
    for word in words:
        name, _colon, path = word.partition(":")
        if path:
            from tests import owner

            action = getattr(owner, name)
            scheduler.schedule(
                name, action, OneTime(0), args=(path,), retry=RetryPolicy(1), grace=2.0, key=name
            )
    child = 0
    if "fork" in words:
        child = os.fork()
        if child == 0:
            os.close(1)
            os.close(2)
            signal.pause()
    print("started", child, flush=True)
    stop({signal.SIGTERM})
    scheduler.shutdown(drain=False, timeout=0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
