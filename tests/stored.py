"""What the tests of durable stores share: a crash without dying, actions that can be stored, a look into the file.

A crash is a copy of the file, made at that moment through SQLite itself: what a process that is killed there leaves to
its successor. The scheduler in the test goes on, and is shut down in order; another one is started on the copy.
"""

from __future__ import annotations

import os
import pickle
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from procsched import EventLog, FakeClock, InlinePool, ScheduledTask, Scheduler, SqlTaskStore
from tests import support
from tests.faults import FOREVER, wait_at_gate
from tests.unit.scheduling import START


@contextmanager
def simulated(
    path: str | Path, clock: FakeClock | None = None, **options: Any
) -> Iterator[tuple[Scheduler, FakeClock, EventLog]]:
    """Give a scheduler on a stored file that runs in the calling thread on a clock that the test moves."""
    clock, log = clock or FakeClock(START), EventLog()
    store = options.pop("store", None) or SqlTaskStore(f"sqlite:///{path}")
    scheduler = Scheduler(clock=clock, pool=InlinePool(), listeners=[log], store=store, **options)
    scheduler.start()
    try:
        assert scheduler.wait_idle(support.TIMEOUT)  # what is due by now has run
        yield scheduler, clock, log
        scheduler.engine.check()
        assert scheduler.writer is not None
        assert scheduler.writer.flush(support.TIMEOUT)
    finally:
        scheduler.shutdown(drain=False)
        scheduler.engine.check()


def copy(source: str | Path, target: str | Path) -> None:
    """Copy a file with all that is committed in it, once. Also an action: then the copy has itself running."""
    if Path(target).exists():
        return
    with _opened(source) as one, _opened(target) as other:
        one.backup(other)


@contextmanager
def _opened(path: str | Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    try:
        yield connection
    finally:
        connection.close()


def rows(path: str | Path, query: str) -> list[tuple[Any, ...]]:
    """Return what a query finds in a file."""
    with _opened(path) as connection:
        return connection.execute(query).fetchall()


def execute(path: str | Path, statement: str) -> None:
    """Change a file."""
    with _opened(path) as connection, connection:
        connection.execute(statement)


class FileStore:
    """A plain store that outlives the process: a file of its pickle for each task, in the order of their numbers."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def _path(self, task_id: str) -> Path:
        return self.directory / f"{int(task_id.rpartition('-')[2]):04}.task"

    def save(self, task: ScheduledTask) -> None:
        new = self._path(task.id).with_suffix(".new")
        new.write_bytes(pickle.dumps(task))
        new.replace(self._path(task.id))

    def delete(self, task_id: str) -> None:
        self._path(task_id).unlink(missing_ok=True)

    def load_all(self) -> list[ScheduledTask]:
        return [pickle.loads(path.read_bytes()) for path in sorted(self.directory.glob("*.task"))]


# --- actions ------------------------------------------------------------------------------------------------


def nothing(*_args: object) -> None:
    """Do nothing."""


def note(path: str, *words: object) -> None:
    """Append a line to a file."""
    support.tell(path, *words)


held: list[Any] = []
"""What `hold` waits for: a `Held`. For pools in this process."""


def hold() -> None:
    """Wait until the test lets it go on."""
    held[0]()


def hang_once(path: str) -> None:
    """Tell the process, and hang; not again where one was told before."""
    first = not Path(path).exists()
    support.tell(path, os.getpid())
    if first:
        time.sleep(FOREVER)


def fail(*_args: object) -> None:
    """Fail."""
    raise ValueError("bad row")


def through(gate: str, notes: str) -> None:
    """Wait at a gate, if there is one: so it may take long although it is known to be brief."""
    if gate:
        wait_at_gate(gate, notes)


def copy_then_fail(source: str, target: str) -> None:
    """Fail, after a copy that has the attempt running."""
    copy(source, target)
    raise ValueError("bad row")


def refuse_to_load() -> None:
    """Say that it cannot be loaded, as a module may in any words."""
    from procsched.child.stored import Unloadable

    raise Unloadable("no \udc80 and no \0")
