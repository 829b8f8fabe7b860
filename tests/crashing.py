"""Dies at every single write to a store, and looks at what is left: `python -m tests.crashing DIRECTORY`.

A life of a scheduler is made so that it does the same each time: one thread, a clock that is moved, actions that append
a line to a file when they begin. It is ended by SIGKILL before or after its commit number n, in a process of its own
that was forked from this one; a second life goes on from the file, in another. That for every n there is, so also in
the midst of making the tables, of taking the store over, and of letting it go.

What must hold then: no task is gone whose `schedule` returned, every line has exactly one record, no line is there
twice, and only what was lost may have no line.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from procsched import (
    FakeClock,
    FixedRate,
    InlinePool,
    MisfirePolicy,
    OneTime,
    RetryPolicy,
    Scheduler,
    SqlTaskStore,
    current_run,
)
from tests import stored, support

START = 1_700_000_000.0
SECOND = 300.0  # seconds from the first life to the second
_current: list[Any] = []


def begin(notes: str, failures: int = 0) -> None:
    """Append a line that names the attempt; fail in the first ones of a run."""
    scheduler = _current[0]
    call = scheduler.own_call()
    support.tell(notes, call.task_id, call.run, call.attempt)
    if call.attempt <= failures:
        raise ValueError("bad row")


def live(directory: Path, now: float) -> None:
    """Be a scheduler for a while, and then end."""
    clock = FakeClock(now)
    notes, accepted = str(directory / "starts"), str(directory / "accepted")
    store = SqlTaskStore(f"sqlite:///{directory}/jobs.db")
    scheduler = Scheduler(clock=clock, pool=InlinePool(), store=store)
    _current[:] = [scheduler]

    def add(key: str, schedule: Any, failures: int = 0, **options: Any) -> str:
        task = scheduler.schedule(key, begin, schedule, args=(notes, failures), key=key, **options)
        support.tell(accepted, task.id)
        return task.id

    add("once", OneTime(START))
    scheduler.start()
    add("flaky", OneTime(START + 1), 1, retry=RetryPolicy(2, 1.0))
    add("rate", FixedRate(2.0), misfire=MisfirePolicy.CATCH_UP, max_catch_up=3)
    held = add("held", OneTime(START + 2))
    dead = add("dead", OneTime(START), 9, retry=RetryPolicy(1))
    scheduler.pause(held)
    clock.advance(1.5)
    add("rate", FixedRate(3.0), replace=now == START)
    clock.advance(1.0)
    scheduler.resume(held)
    scheduler.revive(dead)
    assert scheduler.wait_idle(support.TIMEOUT)
    scheduler.engine.check()
    scheduler.shutdown()


def live_and_die(directory: Path, number: int, after: bool) -> None:
    """The same, ended by SIGKILL at commit `number`."""
    from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite as Dialect

    commits = 0
    real = Dialect.do_commit

    def commit(self: Any, connection: Any) -> None:
        nonlocal commits
        commits += 1
        if commits == number and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        real(self, connection)
        if commits == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Dialect.do_commit = commit  # type: ignore[method-assign]
    live(directory, START)


def in_child(function: Any, *args: Any) -> int:
    """Call a function in a fork, and return its exit code, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function(*args)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def problems_of(directory: Path) -> list[str]:
    """Return what is wrong with what two lives have left."""
    path = directory / "jobs.db"
    starts = [tuple(map(_number, line.split())) for line in _lines(directory / "starts")]
    records = {
        (task_id, run, attempt): outcome
        for task_id, run, attempt, outcome in stored.rows(
            path, "SELECT task_id, run, attempt, outcome FROM runs"
        )
    }
    tasks = {task_id for (task_id,) in stored.rows(path, "SELECT id FROM tasks")}
    found = [f"attempt {key} began {count} times" for key, count in Counter(starts).items() if count > 1]
    found += [f"attempt {key} has no record" for key in starts if key not in records]
    found += [
        f"attempt {key} is {outcome}, and never began"
        for key, outcome in records.items()
        if outcome != "lost" and key not in set(starts)
    ]
    found += [f"task {name} is gone" for name in _lines(directory / "accepted") if name not in tasks]
    if stored.rows(path, "SELECT count(*) FROM tasks WHERE live") != [(0,)]:
        found.append("a run goes on for ever")
    if stored.rows(path, "PRAGMA integrity_check") != [("ok",)]:
        found.append("the file is corrupt")
    names = Counter(
        name for (name,) in stored.rows(path, "SELECT name FROM tasks WHERE status <> 'cancelled'")
    )
    found += [f"there are {count} tasks {name}" for name, count in names.items() if count > 1]
    return found


def _number(word: str) -> int | str:
    return int(word) if word.isdigit() else word


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main(root: Path) -> int:
    """Try every point; print what was found. Return the exit code."""
    assert current_run() is None  # everything is imported before the first fork
    in_child(live, root, START)
    points, bad = 0, 0
    number = 1
    over = False
    while not over:
        for after in (False, True):
            directory = root / f"{number}-{'after' if after else 'before'}"
            directory.mkdir()
            code = in_child(live_and_die, directory, number, after)
            if code == 0:
                over = True  # there are no more commits than that
                break
            second = in_child(live, directory, START + SECOND)
            found = problems_of(directory)
            over = over or code != -signal.SIGKILL
            if over or second != 0:
                found.append(f"the lives ended with {code} and {second}")
            points += 1
            bad += bool(found)
            for problem in found:
                print(f"commit {number}, {'after' if after else 'before'} it: {problem}")
        number += 1
    print(f"{points} points, {bad} bad")
    return 1 if bad or points < 40 else 0


if __name__ == "__main__":
    import procsched.stores.migrating
    import procsched.stores.reading
    import procsched.stores.statements  # noqa: F401
    from tests import crashing  # by its name, which actions can be stored by

    sys.exit(crashing.main(Path(sys.argv[1])))
