"""What a store is refused over, and what it fails with: each says the cause, and what to do about it."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from procsched import SchedulerStateError, SqlTaskStore, StoreError, connect
from procsched.stores import files, os_lock, remedies
from procsched.testing.stores import AT
from tests import stored, support


def opened(path: Path) -> str:
    """Return why a store cannot be opened."""
    store = SqlTaskStore(f"sqlite:///{path}")
    with pytest.raises(StoreError) as caught:
        store.open(lambda: AT)
    return str(caught.value)


def test_a_missing_directory(tmp_path: Path) -> None:
    """It is to be made first."""
    assert "No such file or directory; make the directory first" in opened(tmp_path / "none" / "jobs.db")


def test_a_link_to_nowhere(tmp_path: Path) -> None:
    """SQLite would make the file, with whatever mode, where nobody has looked."""
    path = tmp_path / "jobs.db"
    path.symlink_to(tmp_path / "none" / "jobs.db")
    assert "make the directory first" in opened(path)


def test_a_link_into_a_directory_that_all_may_write(tmp_path: Path) -> None:
    """What counts is where the file is."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "jobs.db").touch(0o600)
    inside.chmod(0o777)
    path = tmp_path / "jobs.db"
    path.symlink_to(inside / "jobs.db")
    text = opened(path)
    assert f"all may write {inside}: chmod o-w it" in text
    assert "allow_shared_file=True" in text


def test_a_directory_in_its_place(tmp_path: Path) -> None:
    """It is no file."""
    assert "is no regular file: give the path of one" in opened(tmp_path)


def test_something_else_in_its_place(tmp_path: Path) -> None:
    """A text is not taken for a store."""
    path = tmp_path / "jobs.db"
    path.write_text("what is this?" * 100)
    path.chmod(0o600)
    text = opened(path)
    assert "file is not a database; the file is something else: give another path" in text


def test_tables_of_somebody_else(tmp_path: Path) -> None:
    """They are left alone."""
    path = tmp_path / "jobs.db"
    stored.execute(path, "CREATE TABLE tasks (mine TEXT)")
    path.chmod(0o600)
    assert "tables that are not procsched's" in opened(path)
    assert "of its own" in opened(path)


UNWRITABLE = """
import ctypes, os, sys
from procsched import Scheduler, SqlTaskStore, StoreError, InlinePool
# Root without the right to write what its mode forbids.
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
try:
    Scheduler(pool=InlinePool(), store=SqlTaskStore("sqlite:///" + sys.argv[1])).start()
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, and only root can become one")
@pytest.mark.parametrize("there", [False, True])
def test_an_unwritable_directory(tmp_path: Path, there: bool) -> None:
    """Of the store: nothing can be made in it. With the store in it: no lock can, and none of SQLite's files."""
    directory = tmp_path / "held"
    directory.mkdir(mode=0o755)
    os.chown(directory, 65534, 65534)
    path = directory / "jobs.db"
    if there:
        path.touch(0o600)
    done = subprocess.run(
        [sys.executable, "-c", UNWRITABLE, str(path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=support.TIMEOUT * 3,
    )
    assert done.stderr == ""
    what = "the lock" if there else "the store"
    assert done.stdout.startswith(what)
    assert "Permission denied; let user 0 write the file and its directory" in done.stdout


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.ENOLCK, "use PostgreSQL"),
        (errno.EROFS, "mount it for writing"),
    ],
)
def test_a_lock_that_cannot_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    """A full disk, a file system without locks, one that is read-only: an error of the store's, not of the system's."""

    def fail(_descriptor: int) -> bool:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("procsched.stores.file_lock.try_lock", fail)
    text = opened(tmp_path / "jobs.db")
    assert text.startswith(
        f"the lock {tmp_path}/jobs.db-owner of the store cannot be taken: {os.strerror(number)}"
    )
    assert words in text


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("PRAGMA max_page_count = 1", "database or disk is full; free some space"),
        ("PRAGMA query_only = 1", "attempt to write a readonly database; let user"),
    ],
)
def test_what_sqlite_says(tmp_path: Path, statement: str, words: str) -> None:
    """Its words, and what to do."""
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.execute("CREATE TABLE first (x)")
    connection.execute(statement)
    with pytest.raises(sqlite3.Error) as caught:
        connection.execute("CREATE TABLE second AS SELECT zeroblob(10000)")
    connection.close()
    assert words in remedies.of_database(str(caught.value), caught.value)


def test_what_postgresql_says() -> None:
    """By its code; where there is no remedy its words stand alone."""

    class Refused(Exception):
        sqlstate = "28P01"

    assert remedies.of_database("no", Refused()) == "no; see the user and the password in the URL"
    Refused.sqlstate = "XX000"
    assert remedies.of_database("no", Refused()) == "no"
    assert remedies.of_database("no", ValueError()) == "no"


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    """Looking makes none."""
    with pytest.raises(StoreError, match=r"there is no store .*see the path"):
        connect(f"sqlite:///{tmp_path}/jobs.db")
    assert list(tmp_path.iterdir()) == []


# --- a system without flock(2) ------------------------------------------------------------------------------


class Windows:
    """`msvcrt`, as far as a lock needs it: one byte at the position of the descriptor, of whoever came first."""

    LK_NBLCK, LK_UNLCK = 2, 0

    def __init__(self) -> None:
        self.locked: dict[tuple[int, int, int], int] = {}
        self.refused = 0

    def locking(self, descriptor: int, mode: int, count: int) -> None:
        """Lock or unlock."""
        found = os.fstat(descriptor)
        key = (found.st_dev, found.st_ino, os.lseek(descriptor, 0, os.SEEK_CUR))
        assert count == 1
        if mode == self.LK_UNLCK:
            assert self.locked.pop(key) == descriptor
        elif self.locked.setdefault(key, descriptor) != descriptor:
            self.refused += 1
            raise PermissionError(errno.EACCES, "Permission denied")


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Windows:
    """Let there be Windows' lock in the place of flock(2), and no poll(2)."""
    made = Windows()
    monkeypatch.setitem(sys.modules, "msvcrt", made)
    monkeypatch.setattr(os_lock, "fcntl", None)
    monkeypatch.delattr("select.poll")
    return made


def test_windows_has_a_lock_too(tmp_path: Path, windows: Windows) -> None:
    """A byte that nobody wants to read, so that whoever comes second can read who came first."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    first = SqlTaskStore(url)
    first.open(lambda: AT)
    try:
        assert [position for *_file, position in windows.locked] == [os_lock.LOCKED_BYTE]
        with pytest.raises(StoreError, match=rf"in use by the scheduler of process {os.getpid()} "):
            SqlTaskStore(url).open(lambda: AT)
    finally:
        first.close()
    assert windows.locked == {}


def test_windows_has_a_standby_that_looks(
    tmp_path: Path, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a second; and one that is shut down stops at once."""
    monkeypatch.setattr("procsched.stores.file_lock.LOOK_SECONDS", 0.01)
    url = f"sqlite:///{tmp_path}/jobs.db"
    first, second = SqlTaskStore(url), SqlTaskStore(url, standby=True)
    first.open(lambda: AT)
    with ThreadPoolExecutor(1) as threads:
        standby = threads.submit(second.open, lambda: AT)
        support.eventually(lambda: windows.refused > 2, what="the standby looks again and again")
        first.close()
        standby.result(support.TIMEOUT)
        monkeypatch.setattr("procsched.stores.file_lock.LOOK_SECONDS", 1e6)
        third = SqlTaskStore(url, standby=True)
        windows.refused = 0
        waiting = threads.submit(third.open, lambda: AT)
        support.eventually(lambda: windows.refused, what="the standby waits")
        third.stop_waiting()
        with pytest.raises(SchedulerStateError, match="shut down while it stood by"):
            waiting.result(support.TIMEOUT)
        second.close()


def test_postgresql_needs_poll(windows: Windows) -> None:
    """That is said when the store is made."""
    with pytest.raises(StoreError, match=r"poll\(2\)"):
        SqlTaskStore("postgresql+psycopg://host/name")


def test_modes_say_nothing_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There every file looks as if all might write it."""
    path = tmp_path / "jobs.db"
    path.touch()
    path.chmod(0o666)
    monkeypatch.delattr("os.geteuid")
    assert files.prepare(path, False) is False
