"""A durable store on a disk that is really full, a file that really cannot be written, and processes that were left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from procsched import InlinePool, Outcome, Scheduler, SqlTaskStore, TaskStatus, _identity
from procsched.testing.stores import AT, change, position, record_of
from tests import stored, support

ROOT = Path(__file__).parents[2]

# Both have a scheduler meet a store that cannot be written, let go of what it waits for, and see it catch up.
DISK_FULL = """
    from tests.unit.test_store_failures import is_told, scheduler_on
    from tests import stored, support
    from procsched import OneTime, SqlTaskStore

    directory = sys.argv[1]
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", directory], check=True)
    path = directory + "/jobs.db"
    scheduler, log = scheduler_on(SqlTaskStore("sqlite:///" + path))
    with scheduler:
        first = scheduler.schedule("first", stored.nothing, OneTime(0))
        assert scheduler.wait(first, support.TIMEOUT).ok
        second = scheduler.schedule("second", stored.nothing, OneTime(scheduler.clock.now() + 1e6))
        with open(directory + "/ballast", "wb", 0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError as error:
                assert error.errno == 28, error
        # What does not fit into the file as it is, so that it has to grow.
        change = threading.Thread(target=scheduler.schedule, args=("x" * 200_000, stored.nothing, OneTime(0)))
        change.start()
        assert is_told(log, "disk is full"), log.events
        os.unlink(directory + "/ballast")
        assert is_told(log, "works again")
        change.join(support.TIMEOUT)
        assert scheduler.wait_idle(support.TIMEOUT)
        assert scheduler.pause(second)
    found = stored.rows(path, "SELECT length(name), status FROM tasks ORDER BY seq")
    assert found == [(5, "succeeded"), (6, "paused"), (200_000, "succeeded")], found
    assert stored.rows(path, "SELECT length(name), outcome FROM runs") == [(5, "succeeded"), (200_000, "succeeded")]
    assert stored.rows(path, "PRAGMA integrity_check") == [("ok",)]
"""

READ_ONLY = """
    import ctypes
    from tests.unit.test_store_failures import is_told, scheduler_on
    from tests import stored, support
    from procsched import OneTime, SqlTaskStore

    if os.geteuid() == 0:
        # Root without the right to write what its mode forbids; threads that start from now on have it neither.
        libc = ctypes.CDLL(None, use_errno=True)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        sets = (ctypes.c_uint32 * 6)()
        assert libc.capset(header, sets) == 0
    directory = sys.argv[1]
    path = directory + "/jobs.db"
    store = SqlTaskStore("sqlite:///" + path)
    scheduler, log = scheduler_on(store)
    with scheduler:
        first = scheduler.schedule("first", stored.nothing, OneTime(0))
        assert scheduler.wait(first, support.TIMEOUT).ok
        os.chmod(path, 0o400)
        with store._lock:
            store._drop_connection()  # one that is open can write on
        change = threading.Thread(target=scheduler.schedule, args=("second", stored.nothing, OneTime(0)))
        change.start()
        assert is_told(log, "readonly database"), log.events
        assert any("readonly" in text for text in scheduler.stats().problems)
        os.chmod(path, 0o600)
        assert is_told(log, "works again")
        change.join(support.TIMEOUT)
        assert scheduler.wait_idle(support.TIMEOUT)
    assert stored.rows(path, "SELECT name, outcome FROM runs") == [("first", "succeeded"), ("second", "succeeded")]
"""


def run_script(text: str, directory: Path, *before: str) -> None:
    """Run a script in a process of its own, and show what it says where it fails."""
    head = "import os, subprocess, sys, threading\nfrom procsched.scheduler import staging\n"
    head += "from tests import support\nstaging.STORE_SECONDS = support.TIMEOUT\n"
    body = "\n".join(line[4:] for line in text.splitlines())
    process = subprocess.run(
        [*before, sys.executable, "-c", head + body, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * support.TIMEOUT,
    )
    assert process.returncode == 0, process.stdout + process.stderr


def can_mount() -> bool:
    """Return whether a mount of our own can be made here."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    """What could not be written waits; with room again all of it is, and the file is sound."""
    if not can_mount():
        pytest.skip("no mount of its own can be made here: that needs root and util-linux")
    run_script(DISK_FULL, tmp_path, "unshare", "--mount")


def test_a_file_that_turns_read_only_is_waited_for(tmp_path: Path) -> None:
    """Writable again, it has everything."""
    run_script(READ_ONLY, tmp_path)


# --- processes that outlived their scheduler ----------------------------------------------------------------


@pytest.fixture
def left() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def store_with_run_of(path: Path, pid: int, started: int | None) -> SqlTaskStore:
    """Return a store whose scheduler is gone, and left a run in a process."""
    url = f"sqlite:///{path}"
    store = SqlTaskStore(url)
    store.open(time.time)
    place = position(live=True, started_at=time.time())
    store.write([change(1, place, new=True, status=TaskStatus.RUNNING)])
    store.close()
    stored.execute(path, f"UPDATE tasks SET pid = {pid}, process_started = {started}")
    return SqlTaskStore(url)


def test_a_process_that_was_left_is_ended(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    """Before anything of its task runs again; its record says in which process it was."""
    store = store_with_run_of(tmp_path / "jobs.db", left.pid, _identity.started_at(left.pid))
    with Scheduler(pool=InlinePool(), store=store) as scheduler:
        assert left.wait(support.TIMEOUT) == -signal.SIGKILL
        (record,) = scheduler.history(outcome=Outcome.LOST)
        assert record.pid == left.pid
        scheduler.cancel("job-1")


def test_another_process_with_the_same_pid_is_left_alone(
    tmp_path: Path, left: subprocess.Popen[bytes]
) -> None:
    """Its start tells it from the one that was written down."""
    started = _identity.started_at(left.pid)
    assert started is not None
    store = store_with_run_of(tmp_path / "jobs.db", left.pid, started - 1)
    with Scheduler(pool=InlinePool(), store=store) as scheduler:
        assert len(scheduler.history(outcome=Outcome.LOST)) == 1
        scheduler.cancel("job-1")
    assert left.poll() is None
    left.communicate(b"\n", timeout=support.TIMEOUT)
    assert left.returncode == 0


def test_a_process_of_another_boot_is_left_alone(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    """After a boot the numbers say nothing."""
    path = tmp_path / "jobs.db"
    store = store_with_run_of(path, left.pid, _identity.started_at(left.pid))
    stored.execute(path, "UPDATE owner SET boot_id = 'another'")
    with Scheduler(pool=InlinePool(), store=store) as scheduler:
        assert len(scheduler.history(outcome=Outcome.LOST)) == 1
        scheduler.cancel("job-1")
    left.communicate(b"\n", timeout=support.TIMEOUT)
    assert left.returncode == 0


@pytest.mark.parametrize("alive", [True, False])
def test_the_runs_of_who_has_the_original_are_left_alone(
    tmp_path: Path, left: subprocess.Popen[bytes], alive: bool
) -> None:
    """A scheduler on a copy of a file that is in use ends nothing; where the owner has died, it does."""
    path = tmp_path / "jobs.db"
    store_with_run_of(path, left.pid, _identity.started_at(left.pid))
    if not alive:
        stored.execute(path, "UPDATE owner SET process_started = process_started + 1")
    stored.copy(path, tmp_path / "copy.db")
    (tmp_path / "copy.db").chmod(0o600)
    with Scheduler(pool=InlinePool(), store=SqlTaskStore(f"sqlite:///{tmp_path}/copy.db")) as scheduler:
        assert len(scheduler.history(outcome=Outcome.LOST)) == 1
        scheduler.cancel("job-1")
    if alive:
        left.communicate(b"\n", timeout=support.TIMEOUT)
        assert left.returncode == 0
    else:
        assert left.wait(support.TIMEOUT) == -signal.SIGKILL


def test_only_the_process_that_is_meant_is_ended(left: subprocess.Popen[bytes]) -> None:
    """And one that is gone is no error."""
    started = _identity.started_at(left.pid)
    assert started is not None
    assert not _identity.end_process(left.pid, started + 1)
    assert left.poll() is None
    assert _identity.end_process(left.pid, started)
    assert left.wait(support.TIMEOUT) == -signal.SIGKILL
    assert not _identity.end_process(left.pid, started)


# --- forks --------------------------------------------------------------------------------------------------


def in_fork(function: Callable[[], None]) -> int:
    """Run a function in a fork of this process; return its exit code: 0 where it returns."""
    pid = os.fork()
    if not pid:
        code = 1
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(support.TIMEOUT))  # ends it, if it waits for a lock that is nobody's
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_store_may_be_used_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    """The child has its own connections, whatever the parent's threads were at, and takes nothing from the parent."""
    path = tmp_path / "jobs.db"
    store = SqlTaskStore(f"sqlite:///{path}")
    store.open(lambda: AT)
    store.write([change(1, new=True, record=record_of(1))])
    held, release = threading.Event(), threading.Event()

    def write_for_long() -> None:
        with store._lock:
            held.set()
            release.wait(support.TIMEOUT)

    def child() -> None:
        assert [record.run for record in store.history()] == [1]
        assert [task.id for task in store.load_all()] == ["job-1"]
        store.close()  # which is not the parent's end

    thread = threading.Thread(target=write_for_long)
    thread.start()
    assert held.wait(support.TIMEOUT)
    code = in_fork(child)
    release.set()
    thread.join(support.TIMEOUT)
    assert code == 0
    assert stored.rows(path, "SELECT closed_at FROM owner") == [(None,)]
    store.write([change(1, record=record_of(1, 2)), change(2, new=True)])
    assert [record.run for record in store.history()] == [2, 1]
    store.close()
    assert stored.rows(path, "SELECT id FROM tasks ORDER BY seq") == [("job-1",), ("job-2",)]
    assert stored.rows(path, "PRAGMA integrity_check") == [("ok",)]
