"""Kills a scheduler at random moments, and starts it again each time: `python -m tests.crashes --kills 500 --seed 1`.

The scheduler runs in a process of its own, with two workers, on a file of SQLite; it is under load while it is killed.
It brings one-time tasks as fast as they are stored, and tells which `schedule` calls returned; recurring tasks go on
under their keys. At the end one more is started, which runs until nothing is left, and then must hold: nothing that was
scheduled is lost, every attempt that began has exactly one record, none began twice, and none of which the store did
not know. Prints the seed, what was found, and exits with 1 where that is anything bad.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

from procsched import Outcome
from tests import stored, support

ROOT = Path(__file__).parents[1]
KEYED = ("rate", "delay", "flaky")
# Tasks that have not ended, those of earlier lives too; with more a life waits before it brings the next.
MOST_WAITING = 50
# Seconds in which the last life brings nothing to an end: then it hangs, however slow the machine is.
LONGEST_PAUSE = 120


# --- actions ------------------------------------------------------------------------------------------------


def work(notes: str, how: str, seconds: float) -> None:
    """Note which attempt this is, then succeed, fail in the first attempt, or die in it."""
    from procsched import current_run

    run = current_run()
    assert run is not None
    support.tell(notes, run.id, run.run, run.attempt)
    time.sleep(seconds)
    if run.attempt == 1:
        if how == "fail":
            raise ValueError("first attempt")
        if how == "die":
            os._exit(3)


# --- the victim ---------------------------------------------------------------------------------------------


def victim(directory: Path, seed: int, drain: bool) -> None:
    """Be the scheduler that is killed; with `drain` bring nothing, and leave when everything has run."""
    from procsched import FixedDelay, FixedRate, OneTime, RetryPolicy, Scheduler, SqlTaskStore

    draw = random.Random(seed)
    notes, accepted = str(directory / "starts"), str(directory / "accepted")
    scheduler = Scheduler(2, store=SqlTaskStore(f"sqlite:///{directory}/jobs.db", records_per_task=None))
    # On a busy machine twenty schedulers in a row may be killed before a run ends.
    retry = RetryPolicy(1000, 0.01, 1.0)

    def keyed(key: str, schedule: Any, how: str) -> None:
        task = scheduler.schedule(key, work, schedule, args=(notes, how, 0.002), key=key, retry=retry)
        support.tell(accepted, task.id)

    keyed("rate", FixedRate(0.05), "")
    scheduler.start()
    keyed("delay", FixedDelay(0.02), "")
    keyed("flaky", FixedRate(0.1), "fail")
    print("started", flush=True)
    if drain:
        for key in KEYED:
            scheduler.cancel(scheduler.schedule(key, work, FixedRate(1), args=(notes, "", 0.0), key=key))
        for task in scheduler.tasks():
            scheduler.resume(task)  # of one that was killed between the two
        while any(task.status.value in ("scheduled", "running", "retrying") for task in scheduler.tasks()):
            ended = _ended(scheduler)
            while not scheduler.wait_idle(LONGEST_PAUSE / 2):
                before, ended = ended, _ended(scheduler)
                assert ended > before, f"nothing ends any more: {scheduler.stats()}"
            time.sleep(0.05)
        scheduler.shutdown()
        return
    waiting = deque(task for task in scheduler.tasks() if task.name == "one" and task.is_active)
    while True:
        if len(waiting) >= MOST_WAITING:
            scheduler.wait(waiting.popleft())
        how = draw.choice(("", "", "", "fail", "die"))
        seconds = draw.choice((0.0, 0.001, 0.005))
        task = scheduler.schedule(
            "one", work, OneTime(0), draw.randrange(3), retry, args=(notes, how, seconds)
        )
        support.tell(accepted, task.id)
        waiting.append(task)
        if draw.random() < 0.1:
            scheduler.pause(task)
            scheduler.resume(task)


def _ended(scheduler: Any) -> int:
    counters = scheduler.stats().counters
    return sum(counters[outcome.value] for outcome in Outcome)


# --- the killer ---------------------------------------------------------------------------------------------


def start(directory: Path, seed: int, *more: str) -> subprocess.Popen[str]:
    """Start a victim, and return when it runs."""
    arguments = ["--victim", str(directory), "--seed", str(seed), *more]
    code = f"from tests import crashes; crashes.main({arguments!r})"
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "started\n":
        process.kill()
        raise AssertionError(f"the scheduler did not start: exit code {process.wait()}")
    return process


def run(directory: Path, kills: int, seed: int) -> list[str]:
    """Kill so many schedulers; return what is wrong then."""
    draw = random.Random(seed)
    for number in range(kills):
        process = start(directory, draw.randrange(1 << 30))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=draw.uniform(0.0, 0.5))
        if process.poll() is not None:
            return [f"scheduler {number} ended by itself: {process.returncode}"]
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(directory, 0, "--drain")
    if not _ends(process, directory / "starts"):
        process.kill()
        process.communicate()
        return [f"the last scheduler began nothing for {LONGEST_PAUSE} seconds, and did not end"]
    if process.returncode:
        return [f"the last scheduler ended with {process.returncode}"]
    return problems_of(directory)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0  # on a busy machine no attempt has begun yet


def _ends(process: subprocess.Popen[str], starts: Path) -> bool:
    """Return whether a process ends, which may take as long as attempts go on to begin."""
    size = -1
    while size != (size := _size(starts)):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=LONGEST_PAUSE)
            return True
    return False


def problems_of(directory: Path) -> list[str]:
    """Return what is wrong with what was left, and print what there is."""
    path = directory / "jobs.db"
    starts = [tuple(line.split()) for line in (directory / "starts").read_text().splitlines()]
    accepted = set((directory / "accepted").read_text().split())
    rows = stored.rows(path, "SELECT task_id, run, attempt, outcome FROM runs")
    records = Counter((task_id, str(run), str(attempt)) for task_id, run, attempt, _outcome in rows)
    outcomes = Counter(outcome for *_key, outcome in rows)
    tasks = dict(stored.rows(path, "SELECT id, status FROM tasks"))
    known = set(tasks) | {task_id for task_id, *_rest in rows}
    print(f"{len(accepted)} tasks, {len(starts)} attempts began, records: {dict(outcomes)}")
    began = set(starts)
    found = [f"attempt {key} began {count} times" for key, count in Counter(starts).items() if count > 1]
    found += [f"attempt {key} has {count} records" for key, count in records.items() if count > 1]
    found += [f"attempt {key} began, and has no record" for key in starts if key not in records]
    found += [f"task {name} is lost" for name in accepted - known]
    found += [
        f"attempt {key[:3]} is {key[3]}, and never began"
        for key in rows
        if key[3] not in ("lost", "killed") and (key[0], str(key[1]), str(key[2])) not in began
    ]
    found += [
        f"task {name} is {status}"
        for name, status in tasks.items()
        if status not in ("succeeded", "cancelled")
    ]
    if stored.rows(path, "PRAGMA integrity_check") != [("ok",)]:
        found.append("the file is corrupt")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run as a script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30))
    parser.add_argument("--victim", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--drain", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.victim is not None:
        victim(options.victim, options.seed, options.drain)
        return 0
    print(f"seed {options.seed}", flush=True)
    directory = Path(tempfile.mkdtemp(prefix="procsched-crashes-"))
    found = run(directory, options.kills, options.seed)
    for problem in found[:50]:
        print(problem)
    if found:
        print(f"what was left is in {directory}")
    else:
        shutil.rmtree(directory)
    print(f"{options.kills} kills, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
