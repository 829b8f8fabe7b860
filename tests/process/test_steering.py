"""One scheduler for a store, and what other processes may ask of it: with real processes, on both kinds of database."""

from __future__ import annotations

import inspect
import json
import logging
import math
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    NO_RETRY,
    FakeClock,
    FixedRate,
    InlinePool,
    Limits,
    MisfirePolicy,
    OneTime,
    Outcome,
    Priority,
    RetryPolicy,
    Scheduler,
    SchedulerStateError,
    SqlTaskStore,
    StoreClient,
    StoreError,
    StoreInUseError,
    TaskNotFoundError,
    TaskStatus,
    ValidationError,
    connect,
)
from procsched.cli.__main__ import main
from procsched.stores import door, lease
from tests import owner, postgres, stored, support
from tests.process.test_idle import context_switches, threads_of_ours, watch_idle
from tests.unit.scheduling import Foreign

S = TaskStatus


@pytest.fixture
def file(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


def scheduler_on(url: str, **options: Any) -> Scheduler:
    return Scheduler(1, store=SqlTaskStore(url, **options), preload=("tests.stored",))


@contextmanager
def started_one(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Give a process that has the store."""
    with owner.process(url, *words) as one:
        owner.started(one)
        yield one


# --- one owner ----------------------------------------------------------------------------------------------


def test_a_second_one_is_refused_by_the_name_of_the_first(url: str) -> None:
    """Pid and host; and it has the store as soon as the first has ended."""
    with owner.process(url) as one:
        owner.started(one)
        with pytest.raises(StoreInUseError, match=f"process {one.pid} on ") as caught:
            scheduler_on(url).start()
        assert (caught.value.pid, caught.value.host) == (one.pid, os.uname().nodename)
        one.send_signal(signal.SIGTERM)
        one.wait(support.TIMEOUT)
        with scheduler_on(url) as scheduler:
            assert [task.name for task in scheduler.tasks()] == ["nightly", "rate"]


def test_a_second_one_in_the_same_process_is_refused(url: str) -> None:
    """Also one that only writes; reading is always allowed."""
    with scheduler_on(url) as scheduler:
        task = scheduler.schedule("t", stored.nothing, FixedRate(1e6, start_delay=1e6))
        with pytest.raises(StoreInUseError, match=f"process {os.getpid()} "):
            scheduler_on(url).tasks()
        with pytest.raises(StoreInUseError):
            SqlTaskStore(url).save(task.snapshot())
        assert [each.id for each in SqlTaskStore(url).load_all()] == [task.id]


def test_a_store_object_has_one_scheduler_at_a_time(url: str) -> None:
    """The claim is the object's, so it says itself who came second, whose shutdown does not close it to the first."""
    store = SqlTaskStore(url)
    with Scheduler(pool=InlinePool(), store=store) as first:
        second = Scheduler(pool=InlinePool(), store=store)
        locked, release = threading.Event(), threading.Event()

        def hang() -> None:
            with store._lock:
                locked.set()
                release.wait(support.TIMEOUT)

        thread = threading.Thread(target=hang)  # as a write to a disk that does not answer
        thread.start()
        assert locked.wait(support.TIMEOUT)
        with pytest.raises(StoreInUseError, match=f"process {os.getpid()} "):
            second.start()
        assert thread.is_alive()  # nobody waited for it
        release.set()
        thread.join(support.TIMEOUT)
        with pytest.raises(StoreInUseError):
            SqlTaskStore(url).delete("task-0")
        task = first.schedule("t", stored.nothing, OneTime(0.0))
        assert first.wait(task, support.TIMEOUT).ok
    with Scheduler(pool=InlinePool(), store=store) as third:
        assert [each.id for each in third.tasks()] == [task.id]


def test_a_standby_takes_over_when_the_owner_is_killed(url: str, tmp_path: Path) -> None:
    """What it ran is lost and said so; the standby slept until then."""
    notes = str(tmp_path / "notes")
    with started_one(url, f"hang:{notes}") as one, owner.process(url, "standby") as two:
        pid = int(support.wait_for_file(notes))
        wait_for_standby(url, two.pid)
        one.kill()
        owner.started(two)
        support.assert_gone(pid)
        client = connect(url)
        (record,) = client.history()
        assert (record.outcome, record.name) == (Outcome.LOST, "hang")
        assert f"pid {one.pid}" in (record.error or "")
        found = client.owner()
        assert found is not None
        assert (found["pid"], found["epoch"]) == (two.pid, 2)


def test_a_store_whose_standby_was_ended_stands_by_again(url: str) -> None:
    """For the next scheduler that is given it."""
    store = SqlTaskStore(url, standby=True)
    owner_of_it = Scheduler(pool=InlinePool(), store=SqlTaskStore(url))
    owner_of_it.start()
    ended = []

    def start(scheduler: Scheduler) -> None:
        try:
            scheduler.start()
        except SchedulerStateError as error:
            ended.append(str(error))

    for leaves in (True, False):
        scheduler = Scheduler(pool=InlinePool(), store=store)
        thread = threading.Thread(target=start, args=(scheduler,))
        thread.start()
        wait_for_standby(url, os.getpid())
        (scheduler if leaves else owner_of_it).shutdown()
        thread.join(30.0)
        assert not thread.is_alive()
        assert ended == ["this scheduler was shut down while it stood by for its store"]
    assert scheduler.tasks() == []
    scheduler.shutdown()


def wait_for_standby(url: str, pid: int) -> None:
    """Wait until a process does nothing any more but wait for the store."""
    if url.startswith("sqlite"):
        # It has the owner's pid descriptor only while it sleeps.
        support.eventually(
            lambda: "anon_inode:[pidfd]" in descriptors(pid), 30.0, "the standby waits for its file"
        )
        return
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        support.eventually(
            lambda: connection.execute(waiting).fetchone() == (1,), 30.0, "the standby waits in line"
        )


def descriptors(pid: int) -> set[str]:
    """Return what a process has open."""
    found = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue
    return found


def test_a_standby_takes_over_when_the_owner_ends_in_order(url: str) -> None:
    """Nothing is lost then."""
    with started_one(url) as one, owner.process(url, "standby") as two:
        wait_for_standby(url, two.pid)
        one.send_signal(signal.SIGTERM)
        owner.started(two)
        assert connect(url).history() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "how"), [("sqlite", "ends"), ("postgresql", "loses its session")], indirect=["url"]
)
def test_no_run_of_the_owner_lives_when_a_standby_starts_one(url: str, tmp_path: Path, how: str) -> None:
    """What is due at once then looks for the process of the run that went on until the store was lost."""
    notes = str(tmp_path / "notes")
    with started_one(url, f"cling:{notes}", f"look:{notes}") as one, owner.process(url, "standby") as two:
        pid = int(support.wait_for_file(notes))
        client = connect(url)
        support.eventually(lambda: pid in [row["pid"] for row in client.rows()], what="the pid is stored")
        wait_for_standby(url, two.pid)
        if how == "ends":
            # As if it were another boot: else the standby would end what it finds.
            stored.execute(str(tmp_path / "jobs.db"), "UPDATE owner SET boot_id = 'another'")
            one.send_signal(signal.SIGTERM)
        else:
            cut_off(url)
        assert support.wait_for_file(f"{notes}.looked", 30.0) == "gone\n"
        found = client.owner()
        assert found is not None
        assert found["pid"] == two.pid


def cut_off(url: str) -> None:
    """End the session of the owner of a store in PostgreSQL, as if that ran on another machine."""
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("UPDATE owner SET boot_id = 'another'")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        )


def test_a_fork_of_the_owner_keeps_nothing(url: str) -> None:
    """It lives on, and neither its parent's store nor its lock is its own."""
    with owner.process(url, "fork") as one:
        child = int(owner.started(one).split()[1])
        try:
            one.kill()
            one.wait(support.TIMEOUT)
            with scheduler_on(url, standby=True) as scheduler:
                assert len(scheduler.tasks()) == 2
        finally:
            os.kill(child, signal.SIGKILL)


# It forks while it stands by, and says so; then it says that it has the store.
FORKED_STANDBY = """
import os, sys, threading, time
from procsched import InlinePool, Scheduler, SqlTaskStore
from tests import support
store = SqlTaskStore(sys.argv[1], standby=True)
thread = threading.Thread(target=Scheduler(pool=InlinePool(), store=store).start, daemon=True)
thread.start()
waits = store._claim if hasattr(store._claim, "_waker") else store._claim._lock
support.eventually(lambda: waits._waker is not None, what="it stands by")
child = os.fork()
if not child:
    os.close(1)
    time.sleep(1000)
print(child, flush=True)
thread.join()
print("started", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("killed", ["while it waits", "as the owner"])
def test_a_fork_of_a_standby_keeps_nothing(url: str, killed: str) -> None:
    """Neither its place in the line nor, later, the lock."""
    first = scheduler_on(url)
    first.start()
    with subprocess.Popen(
        [sys.executable, "-c", FORKED_STANDBY, url], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    ) as standby:  # fmt: skip
        assert standby.stdout is not None
        child = int(standby.stdout.readline())
        try:
            if killed == "as the owner":
                first.shutdown()
                assert standby.stdout.readline() == "started\n"
            standby.kill()
            standby.wait(support.TIMEOUT)
            first.shutdown()
            with scheduler_on(url) as another:
                assert another.tasks() == []
        finally:
            standby.kill()
            os.kill(child, signal.SIGKILL)


# It forks in the midst of a transaction.
FORKED_WRITER = """
import os, sys, threading, time
from procsched import InlinePool, OneTime, Scheduler, SqlTaskStore
from tests import stored
scheduler = Scheduler(pool=InlinePool(), store=SqlTaskStore(sys.argv[1]))
scheduler.start()
print("started", flush=True)
sys.stdin.readline()
more = ("t", stored.nothing, OneTime(2e9))
threading.Thread(target=scheduler.schedule, args=more, daemon=True).start()
sys.stdin.readline()
child = os.fork()
if not child:
    os.close(1)
    time.sleep(1000)
print(child, flush=True)
time.sleep(1000)
"""


def test_a_fork_ends_no_transaction_later_than_its_parent(postgres: postgres.Server) -> None:
    """What the parent has locked in the midst of one is free when that is killed."""
    import psycopg

    url = postgres.new_database()
    with subprocess.Popen(
        [sys.executable, "-c", FORKED_WRITER, url], cwd=Path(__file__).parents[2], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    ) as writer:  # fmt: skip
        assert writer.stdout is not None
        assert writer.stdin is not None
        try:
            assert writer.stdout.readline() == "started\n"
            with psycopg.connect(url.replace("+psycopg", "")) as other:
                other.execute("LOCK TABLE tasks IN EXCLUSIVE MODE")
                writer.stdin.write("\n")
                writer.stdin.flush()
                waiting = "SELECT 1 FROM pg_locks WHERE relation = 'tasks'::regclass AND NOT granted"
                support.eventually(
                    lambda: other.execute(waiting).fetchone(), what="it is in the midst of one"
                )
                writer.stdin.write("\n")
                writer.stdin.flush()
                child = int(writer.stdout.readline())
                writer.kill()
                writer.wait(support.TIMEOUT)
            try:
                with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as other:
                    other.execute(f"SET statement_timeout = {int(1000 * support.TIMEOUT)}")
                    other.execute("SELECT * FROM owner FOR UPDATE")
            finally:
                os.kill(child, signal.SIGKILL)
        finally:
            writer.kill()


def test_a_standby_that_is_shut_down_waits_no_more(url: str) -> None:
    """`start` raises, in whatever thread."""
    with scheduler_on(url):
        standby = scheduler_on(url, standby=True)
        raised: list[BaseException] = []

        def start() -> None:
            try:
                standby.start()
            except SchedulerStateError as error:
                raised.append(error)

        before = set(os.listdir("/proc/self/task"))
        thread = threading.Thread(target=start)
        thread.start()
        (tid,) = threads_of_ours(before) & {str(thread.native_id)}
        support.eventually(lambda: context_switches(os.getpid())[tid][1] == "S", what="it waits")
        standby.shutdown()
        thread.join(support.TIMEOUT)
        assert "stood by" in str(raised[0])


def test_who_lost_the_store_ends_its_runs_and_itself(file: str, tmp_path: Path) -> None:
    """The lock's file is gone, and another scheduler has come: its epoch is newer than each write of the first."""
    notes = str(tmp_path / "notes")
    first = scheduler_on(file)
    first.start()
    run = first.schedule("hang", owner.hang, OneTime(0), args=(notes,), grace=30.0, retry=NO_RETRY)
    pid = int(support.wait_for_file(notes))
    os.unlink(tmp_path / "jobs.db-owner")
    with scheduler_on(file) as second:
        with pytest.raises((StoreError, SchedulerStateError)):
            first.schedule("late", stored.nothing, OneTime(0))
        support.assert_gone(pid)
        support.eventually(lambda: "closed" in repr(first), what="it has shut down")
        assert run.status is not S.RUNNING
        assert [task.name for task in second.tasks()] == ["hang"]
    first.shutdown()


# --- PostgreSQL: session and lease ----------------------------------------------------------------------------


def test_a_restart_of_the_server_loses_nothing(postgres: postgres.Server) -> None:
    """Under load: every attempt has one record, the owner keeps the store, and obeys again."""
    url = postgres.new_database()
    with scheduler_on(url) as scheduler:
        task = scheduler.schedule("t", stored.nothing, FixedRate(0.02), retry=NO_RETRY)
        support.eventually(lambda: len(scheduler.history(limit=5)) == 5)
        postgres.stop()
        postgres.start()
        count = task.snapshot().history[-1].run
        support.eventually(lambda: connect(url).history(limit=1)[0].run > count + 5, 30.0)
        assert connect(url, timeout=30.0).pause(task.id)
        assert scheduler.wait_idle(support.TIMEOUT)
        records = scheduler.history(limit=1000)
        assert sorted(record.run for record in records) == [*range(1, records[0].run + 1)]
        found = connect(url).owner()
        assert found is not None
        assert found["epoch"] == 1


def test_who_cannot_renew_its_lease_ends_before_another_begins(
    postgres: postgres.Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server is gone for longer than the lease: the run is ended by then, without its grace."""
    monkeypatch.setattr(lease, "LEASE", 1.0)
    monkeypatch.setattr(lease, "RENEW", 0.2)
    monkeypatch.setattr(lease, "MARGIN", 0.2)
    url, notes = postgres.new_database(), str(tmp_path / "notes")
    scheduler = scheduler_on(url)
    scheduler.start()
    scheduler.schedule("hang", owner.hang, OneTime(0), args=(notes,), grace=30.0, retry=NO_RETRY)
    pid = int(support.wait_for_file(notes))
    try:
        postgres.stop()
        support.assert_gone(pid)
        support.eventually(lambda: "closed" in repr(scheduler), what="it has shut down")
    finally:
        postgres.start()
        scheduler.shutdown()
    with scheduler_on(url) as second:
        (record,) = second.history()
        assert record.outcome in (Outcome.LOST, Outcome.KILLED)


def test_who_was_held_up_goes_on_with_its_session(
    postgres: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each renewal is late here, as after a stop of the process: nothing starts until it is done, and then it does."""
    monkeypatch.setattr(lease, "LEASE", 0.2)
    with scheduler_on(postgres.new_database()) as scheduler:
        store = scheduler.writer.store  # type: ignore[union-attr]
        for _ in range(2):
            support.eventually(lambda: not store.may_start(), what="the lease is over")
            task = scheduler.schedule("t", stored.nothing, OneTime(0))
            assert scheduler.wait(task, support.TIMEOUT).ok


# --- requests --------------------------------------------------------------------------------------------------


def test_a_live_scheduler_obeys(url: str) -> None:
    """What is asked is done there, stored when the call returns, and refused as it would be there."""
    with owner.process(url) as one:
        owner.started(one)
        client = connect(url)
        nightly, rate = client.tasks()
        assert client.pause(nightly)
        assert client.task(nightly.id).status is S.PAUSED
        assert not client.pause(nightly.id)
        assert client.resume(nightly.id)
        assert client.cancel(rate, kill=True)
        assert client.task(rate.id).status is S.CANCELLED
        assert not client.revive(rate.id)
        assert not client.kill(nightly.id)
        with pytest.raises(TaskNotFoundError, match="'task-99'"):
            client.pause("task-99")
        found = client.owner()
        assert found is not None
        assert found["epoch"] == 1


def test_scheduling_from_outside(url: str) -> None:
    """An importable function, and one that is pickled; with its settings, and a key that is there already."""
    with owner.process(url) as one:
        owner.started(one)
        client = connect(url)
        bound = 20
        ids = [
            client.schedule("sum", sum, OneTime(0), args=([1, 2],), retry=NO_RETRY, timeout=50, key="sum"),
            client.schedule("inner", lambda: bound + 1, OneTime(0), retry=NO_RETRY),
        ]
        support.eventually(lambda: len(client.history()) == 2)
        assert {record.task_id: record.outcome for record in client.history()} == dict.fromkeys(
            ids, Outcome.SUCCEEDED
        )
        assert client.task(ids[0]).task.timeout == 50
        assert client.schedule("nightly", sum, OneTime(0), key="nightly") == client.tasks()[0].id
        with pytest.raises(ValidationError, match="cannot be stored"):
            client.schedule("t", sum, Foreign(0.0))


OPTIONS: dict[str, Any] = {  # each other than its default
    "priority": Priority.HIGH,
    "retry": RetryPolicy(7, 2.0, 3.0, 40.0, jitter=0.5),
    "timeout": 50.0,
    "args": (1000,),
    "kwargs": {"a": [1.5, None]},
    "soft_timeout": 40.0,
    "grace": 2.0,
    "misfire": MisfirePolicy.CATCH_UP,
    "max_catch_up": 9,
    "on_exhausted": "continue",
    "limits": Limits(result=10),
    "capture_output": True,
    "key": "k",
    "replace": True,
}


@pytest.mark.parametrize("lives", [True, False])
def test_no_option_of_a_task_is_lost_on_the_way(url: str, lives: bool) -> None:
    """Each option of `Scheduler.schedule` is one of the client's, too, with its default, and is held: also stored."""
    there, here = (inspect.signature(each.schedule).parameters for each in (Scheduler, StoreClient))
    assert list(there) == list(here)
    assert [each.default for each in there.values()] == [each.default for each in here.values()]
    assert ["self", "name", "action", "schedule", *OPTIONS, "unknown"] == list(there)
    with scheduler_on(url) as scheduler:
        first = scheduler.schedule("first", stored.nothing, OneTime(4e9), key="k")
        client = connect(url)
        if lives:
            task_id, large = send_two(client)
    if not lives:
        task_id, large = send_two(client)
    with scheduler_on(url) as scheduler:
        task = scheduler.task(task_id).task
        for name, value in OPTIONS.items():
            if name != "replace":
                assert getattr(task, name) == value, name
        assert scheduler.task(first.id).status is S.CANCELLED
        assert scheduler.wait_idle(support.TIMEOUT)
        (record,) = scheduler.history(large)
        assert (record.outcome, record.limit) == (Outcome.LIMIT_EXCEEDED, "result=10")


def send_two(client: StoreClient) -> tuple[str, str]:
    """Schedule one task with all options, and one that exceeds its limit."""
    limits = Limits(result=10)
    large = client.schedule("large", math.factorial, OneTime(0), retry=NO_RETRY, args=(1000,), limits=limits)
    return client.schedule("t", stored.nothing, OneTime(4e9), **OPTIONS), large


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limits": 3}, "limits must be Limits"),
        ({"schedule": "* * * * *"}, r"use CronSchedule\('\* \* \* \* \*'\)"),
        ({"schedule": 60}, "use OneTime, After"),
    ],
)
def test_what_is_wrong_is_said_to_who_schedules_from_outside(
    file: str, options: dict[str, Any], words: str
) -> None:
    """As `Scheduler.schedule` says it: before anything is sent."""
    with scheduler_on(file) as scheduler:
        for where in (scheduler, connect(file)):
            with pytest.raises(ValidationError, match=words):
                where.schedule(**{"name": "t", "action": stored.nothing, "schedule": OneTime(4e9), **options})


def test_a_run_is_ended_from_outside(file: str, tmp_path: Path) -> None:
    """While the only worker is busy with it."""
    notes = str(tmp_path / "notes")
    with owner.process(file, f"hang:{notes}") as one:
        owner.started(one)
        pid = int(support.wait_for_file(notes))
        client = connect(file)
        (task,) = (task for task in client.tasks() if task.name == "hang")
        assert client.cancel(task, kill=True)
        support.assert_gone(pid)
        support.eventually(lambda: [record.outcome for record in client.history()] == [Outcome.KILLED])


def test_without_a_scheduler_the_store_is_changed(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """It takes the store for a moment, runs nothing, and does not count as the end of being down."""
    with owner.process(url) as one:
        owner.started(one)
        one.send_signal(signal.SIGTERM)
        one.wait(support.TIMEOUT)
    client = connect(url)
    before = client.owner()
    nightly, _rate = client.tasks()
    with caplog.at_level(logging.WARNING, "procsched"):
        assert client.pause(nightly)
        task_id = client.schedule("t", stored.nothing, OneTime(0))
    assert caplog.messages == []  # no shutdown, of what is due to somebody else, is told
    after = client.owner()
    assert before is not None
    assert after is not None
    assert after["closed_at"] == before["closed_at"]
    assert after["epoch"] == before["epoch"] + 2
    for name in ("pid", "host", "boot_id", "process_started", "opened_at", "seen_at"):
        assert after[name] == before[name]
    assert client.history() == []
    with scheduler_on(url) as scheduler:
        assert scheduler.task(nightly.id).status is S.PAUSED
        assert scheduler.wait(task_id, support.TIMEOUT).ok


def test_a_client_keeps_its_store_when_the_directory_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no scheduler lives: a relative path is that of the moment when it was given."""
    monkeypatch.chdir(tmp_path)
    scheduler = Scheduler(pool=InlinePool(), store=SqlTaskStore("sqlite:///jobs.db"))
    task = scheduler.schedule("t", stored.nothing, OneTime(2e9))
    scheduler.shutdown()
    client = connect("sqlite:///jobs.db")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert client.pause(task)
    assert client.task(task.id).status is S.PAUSED
    assert list(elsewhere.iterdir()) == []


def test_a_dead_owners_socket_is_no_obstacle(file: str, tmp_path: Path) -> None:
    """Nobody listens behind it, and the next owner puts its own in its place."""
    with owner.process(file) as one:
        owner.started(one)
        one.kill()
        one.wait(support.TIMEOUT)
    assert (tmp_path / "jobs.db-control").exists()
    client = connect(file)
    assert client.pause("task-1")
    with scheduler_on(file):
        assert client.resume("task-1")


# --- the socket ------------------------------------------------------------------------------------------------


@pytest.fixture
def listening(tmp_path: Path) -> Any:
    """Give a scheduler on a file, and the path of its socket."""
    with scheduler_on(f"sqlite:///{tmp_path}/jobs.db") as scheduler:
        scheduler.schedule("t", stored.nothing, FixedRate(1e6, start_delay=1e6))
        yield scheduler, str(tmp_path / "jobs.db-control")


def say(path: str, data: bytes, end: bool = True) -> bytes:
    """Send something to a socket, and return what it answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(support.TIMEOUT)
        connection.connect(path)
        try:
            connection.sendall(data)
            if end:
                connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
        except ConnectionResetError:  # it did not read all of it
            pass
        return answer


def test_the_socket_is_private(listening: tuple[Scheduler, str]) -> None:
    """Mode 0600, and gone with the scheduler."""
    scheduler, path = listening
    found = os.stat(path)
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600
    scheduler.shutdown()
    assert not os.path.exists(path)


GARBAGE = [
    b"",
    b"\n",
    b"hello\n",
    b"\xff\xfe\x00\n",
    b"[" * 100_000 + b"\n",
    b"null\n",
    b"{}\n",
    b'{"v":1}\n',
    b'{"v":1,"what":"explode","task":"task-1"}\n',
    b'{"v":1,"what":["cancel"],"task":"task-1"}\n',
    b'{"v":1,"what":"cancel","task":["task-1"]}\n',
    b'{"v":99,"what":"cancel","task":"task-1"}\n',
    b'{"v":1,"what":"schedule"}\n',
    b'{"v":1,"what":"schedule","name":"x","schedule":"{}","settings":"[]","call":{}}\n',
    b"x" * (1 << 20),
]


@pytest.mark.parametrize("data", GARBAGE, ids=lambda data: repr(data[:40]))
def test_garbage_does_no_harm(listening: tuple[Scheduler, str], data: bytes) -> None:
    """It is answered by an error, or by nothing; the next one is obeyed."""
    scheduler, path = listening
    answer = say(path, data)
    assert not answer or "error" in json.loads(answer)
    assert b'"changed": true' in say(path, b'{"v":1,"what":"pause","task":"task-1"}\n')
    assert scheduler.task("task-1").status is S.PAUSED


def test_a_request_has_a_cap(listening: tuple[Scheduler, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read to its end."""
    monkeypatch.setattr(door, "REQUEST_BYTES", 1000)
    _scheduler, path = listening
    answer = say(path, b"x" * 100_000)
    assert not answer or b"at most 1000 bytes" in answer


@pytest.mark.parametrize("word", ["\udcff", "\0"], ids=["surrogate", "zero"])
def test_an_id_that_no_database_takes_is_unknown(url: str, word: str) -> None:
    """As any other that is not there, whether a scheduler lives or not."""
    with Scheduler(pool=InlinePool(), store=SqlTaskStore(url)) as scheduler:
        scheduler.schedule("t", stored.nothing, FixedRate(1e6, start_delay=1e6))
        with pytest.raises(TaskNotFoundError, match="no task has the id"):
            connect(url).cancel(word)
    with pytest.raises(TaskNotFoundError, match="no task has the id"):
        connect(url).cancel(word)
    assert connect(url).rows(word) == []


def test_who_sends_too_large_a_call_is_told_so(
    listening: tuple[Scheduler, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the answer comes while it is still sent."""
    monkeypatch.setattr(door, "REQUEST_BYTES", 1000)
    with pytest.raises(StoreError, match="at most 1000 bytes"):
        connect(f"sqlite:///{tmp_path}/jobs.db").schedule(
            "t", stored.nothing, FixedRate(1e6), args=("x" * 4_000_000,)
        )


def test_who_says_nothing_keeps_nobody_waiting(
    listening: tuple[Scheduler, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many of them: more than are let in at once wait until those have had their time."""
    monkeypatch.setattr(door, "CLIENT_SECONDS", 0.3)
    _scheduler, path = listening
    silent = [socket.socket(socket.AF_UNIX) for _ in range(door.MOST_CLIENTS + 5)]
    try:
        for each in silent:
            each.connect(path)
        assert b'"changed": true' in say(path, b'{"v":1,"what":"pause","task":"task-1"}\n')
    finally:
        for each in silent:
            each.close()


def test_a_program_with_a_thousand_files_open_is_steered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when so many ask at once that some must wait: what is waited with takes any descriptor."""
    monkeypatch.setattr(door, "MOST_CLIENTS", 1)
    monkeypatch.setattr(door, "CLIENT_SECONDS", 0.3)
    store = SqlTaskStore(f"sqlite:///{tmp_path}/jobs.db")
    with support.high_descriptors(), Scheduler(pool=InlinePool(), store=store) as scheduler:
        scheduler.schedule("t", stored.nothing, FixedRate(1e6, start_delay=1e6))
        path = str(tmp_path / "jobs.db-control")
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(path)
            assert b'"changed": true' in say(path, b'{"v":1,"what":"pause","task":"task-1"}\n')


def test_an_answer_may_be_waited_for_for_ever(listening: tuple[Scheduler, str], tmp_path: Path) -> None:
    """With more seconds than a socket takes."""
    assert connect(f"sqlite:///{tmp_path}/jobs.db", timeout=sys.maxsize).pause("task-1")


def test_many_at_once(listening: tuple[Scheduler, str], tmp_path: Path) -> None:
    """Each gets its own answer, and exactly one of those who ask for the same is told that it did it."""
    client = connect(f"sqlite:///{tmp_path}/jobs.db")
    answers: list[bool] = []

    def ask() -> None:
        answers.append(client.pause("task-1"))

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(support.TIMEOUT)
    assert sorted(answers) == [False] * 49 + [True]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_stranger_is_not_obeyed(
    listening: tuple[Scheduler, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode keeps him out; where that is loosened, the kernel still says who he is."""
    scheduler, path = listening
    for mode, expected in ((0o600, "denied"), (0o666, "its own user only, not user 12345")):
        os.chmod(path, mode)
        for parent in (tmp_path, *tmp_path.parents):
            if parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o011)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setgroups([])
                os.setgid(12345)
                os.setuid(12345)
                said = say(path, b'{"v":1,"what":"pause","task":"task-1"}\n').decode()
            except PermissionError:
                said = "denied"
            except BaseException as error:
                said = repr(error)
            os.write(writer, said.encode())
            os._exit(0)
        os.waitpid(pid, 0)
        assert expected in os.read(reader, 10_000).decode()
        os.close(reader)
        os.close(writer)
    assert scheduler.task("task-1").status is S.SCHEDULED


def test_a_long_path_has_a_socket_too(tmp_path: Path) -> None:
    """Longer than an address may be."""
    directory = tmp_path / ("d" * 100) / ("e" * 100)
    directory.mkdir(parents=True)
    file = f"sqlite:///{directory}/{'f' * 100}.db"
    with scheduler_on(file) as scheduler:
        scheduler.schedule("t", stored.nothing, FixedRate(1e6, start_delay=1e6))
        assert connect(file).pause("task-1")
        found = connect(file).owner()
        assert found is not None
        assert found["epoch"] == 1


def test_who_has_asked_a_visitor_that_leaves_does_it_himself(url: str) -> None:
    """Several `procsched pause` at once, where no scheduler lives: one has the store, is asked by another, and ends."""
    with Scheduler(pool=InlinePool(), store=SqlTaskStore(url)) as scheduler:
        task = scheduler.schedule("t", stored.nothing, FixedRate(1e6, start_delay=1e6))
    store = SqlTaskStore(url)
    store.visit()
    visitor = Scheduler(pool=InlinePool(), store=store)
    assert [each.id for each in visitor.tasks()] == [task.id]
    leaving = threading.Thread(target=visitor.shutdown, kwargs={"drain": False})
    do = visitor._do

    def leave_first(request: Any) -> dict[str, Any]:
        leaving.start()
        support.eventually(lambda: "clos" in repr(visitor))
        return do(request)

    visitor._do = leave_first  # type: ignore[method-assign]
    assert connect(url).pause(task.id)
    leaving.join(support.TIMEOUT)
    assert [row["status"] for row in connect(url).rows()] == ["paused"]


def test_who_waits_outside_is_answered_at_the_end(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that nobody has read is not broken off, as one would be that may have been obeyed."""
    monkeypatch.setattr(door, "MOST_CLIENTS", 0)
    scheduler = Scheduler(pool=InlinePool(), store=SqlTaskStore(file))
    scheduler.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(support.TIMEOUT)
        connection.connect(file.removeprefix("sqlite:///") + "-control")
        connection.sendall(b'{"v":1,"what":"pause","task":"task-1"}\n')
        scheduler.shutdown()
        assert b"this scheduler was shut down" in connection.recv(65536)


def test_a_closing_scheduler_says_so(file: str, tmp_path: Path) -> None:
    """While it waits for a run, what is asked is refused, and the client is told why."""
    notes = str(tmp_path / "notes")
    with scheduler_on(file) as scheduler:
        scheduler.schedule("hang", owner.hang, OneTime(0), args=(notes,))
        support.wait_for_file(notes)
        thread = threading.Thread(target=scheduler.shutdown, kwargs={"timeout": 60})
        thread.start()
        support.eventually(lambda: "closing" in repr(scheduler))
        with pytest.raises(SchedulerStateError, match="shut down"):
            connect(file).pause("task-1")
        scheduler.shutdown(timeout=0)
        thread.join(support.TIMEOUT)


@pytest.mark.slow
def test_who_can_be_asked_sleeps(file: str) -> None:
    """The threads that wait for requests, and for a store to be free, make no wake-up."""
    before = set(os.listdir("/proc/self/task"))
    with scheduler_on(file) as scheduler:
        scheduler.schedule("t", stored.nothing, FixedRate(1e6, start_delay=1e6))
        assert connect(file).pause("task-1")
        with owner.process(file, "standby") as two:
            wait_for_standby(file, two.pid)
            ours = threads_of_ours(before)

            def look() -> dict[str, tuple[int, str, str]]:
                found = {tid: value for tid, value in context_switches(os.getpid()).items() if tid in ours}
                return found | context_switches(two.pid)

            watched = watch_idle(look)
            assert len(watched) >= 5


# --- the command line ----------------------------------------------------------------------------------------------


@pytest.fixture
def command(file: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Give a function that runs ``procsched`` on the file, and returns exit code, output and errors."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main([*words, "--store", file])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def test_the_commands(file: str, command: Callable[..., tuple[int, str, str]]) -> None:
    """Table and JSON, ids and keys, and the exit codes."""
    with scheduler_on(file) as scheduler:
        failed = scheduler.schedule("bad \x1b[31m[red]", stored.fail, OneTime(0), key="bad", retry=NO_RETRY)
        scheduler.wait(failed, support.TIMEOUT)
        assert scheduler.wait_idle(support.TIMEOUT)
        rate = scheduler.schedule("rate", stored.nothing, FixedRate(1e6, start_delay=1e6), key="r")
        code, out, _err = command("ps")
        assert code == 0
        assert "\x1b" not in out
        assert "bad \\x1b[31m[red]" in out
        assert f"process {os.getpid()} on" in out
        code, out, _err = command("ps", "--json")
        rows = json.loads(out)
        assert [row["status"] for row in rows] == ["failed", "scheduled"]
        assert rows[1]["next_run_at"].endswith("Z")
        code, out, _err = command("show", "bad")
        assert (code, "ValueError: bad row" in out) == (0, True)
        code, out, _err = command("history", "bad", "--json")
        assert [record["outcome"] for record in json.loads(out)] == ["failed"]
        assert command("pause", "r")[:2] == (0, f"{rate.id}: paused\n")
        assert command("pause", "r")[:2] == (1, f"{rate.id}: nothing to change: it is paused\n")
        assert command("resume", "r", "nobody")[0] == 2
        assert rate.status is S.SCHEDULED
        assert json.loads(command("cancel", "r", "--kill", "--json")[1]) == [
            {"task": rate.id, "changed": True, "status": "cancelled"}
        ]
        assert command("ps")[1].count("rate") == 0
        assert command("ps", "--all")[1].count("rate") == 1
        assert command("revive", "bad")[0] == 0


def test_a_task_may_be_named_as_ps_names_it(file: str, command: Callable[..., tuple[int, str, str]]) -> None:
    """By a name that no other has. Keys that are no names have a column; an outcome is one that there is."""
    with scheduler_on(file) as scheduler:
        report = scheduler.schedule("report", stored.nothing, OneTime(0), key="r")
        scheduler.wait(report, support.TIMEOUT)
        far = FixedRate(1e6, start_delay=1e6)
        twins = [scheduler.schedule("twin", stored.nothing, far) for _ in range(2)]
        assert scheduler.wait_idle(support.TIMEOUT)
        heads, first = command("ps", "--all")[1].splitlines()[:2]
        assert heads.split()[:4] == ["ID", "NAME", "KEY", "STATUS"]
        assert first.split()[:4] == [report.id, "report", "r", "succeeded"]
        assert "KEY" not in command("ps")[1]
        assert command("show", "report")[1].split()[:2] == ["id", report.id]
        assert report.id in command("history", "report", "--outcome", "succeeded")[1]
        nothing = f"{report.id}: nothing to change: it has ended (succeeded)\n"
        for action in ("cancel", "pause", "resume", "revive"):
            assert command(action, "report")[:2] == (1, nothing)
        scheduler.cancel(twins[1])
        code, _out, err = command("pause", "twin")
        assert (code, f"({twins[1].id}: cancelled, {twins[0].id}: scheduled)" in err) == (2, True)
        assert command("show", "nobody")[2].endswith("no task has the id, the key or the name 'nobody'\n")
        with pytest.raises(SystemExit) as refused:
            command("history", "--outcome", "bogus")
        assert refused.value.code == 2


def test_a_history_of_nobody_is_none(file: str, command: Callable[..., tuple[int, str, str]]) -> None:
    """It is refused, as by `show`; a task that is forgotten has its records, and one that never ran has none."""
    pool = InlinePool()
    with Scheduler(store=SqlTaskStore(file), keep_finished=0, pool=pool, clock=FakeClock()) as scheduler:
        gone = scheduler.schedule("gone", stored.nothing, OneTime(0), retry=NO_RETRY).id
        assert scheduler.wait_idle(support.TIMEOUT)
        scheduler.schedule("idle", stored.nothing, FixedRate(1e6, start_delay=1e6))
    for word in ("history", "show"):
        code, out, err = command(word, "nosuch")
        assert (code, out) == (2, "")
        assert "no task has the id, the key or the name 'nosuch'" in err
    code, out, _err = command("history", gone)
    assert (code, out.count(gone)) == (0, 1)
    assert command("history", gone, "--outcome", "failed")[0] == 0
    assert command("history", "idle")[0] == 0


@pytest.mark.parametrize("lives", [True, False])
def test_a_key_for_an_id_is_told_from_nothing(file: str, lives: bool) -> None:
    """What is wanted is an id; the error says whose key or name it is."""
    scheduler = scheduler_on(file)
    task = scheduler.schedule("n", stored.nothing, FixedRate(1e6, start_delay=1e6), key="k")
    if not lives:
        scheduler.shutdown()
    client = connect(file)
    for ask in (client.pause, client.resume, client.cancel, client.kill, client.revive, client.task):
        for word, what in (("k", "key"), ("n", "name")):
            with pytest.raises(
                TaskNotFoundError, match=f"'{word}'.*; it is the {what} of {task.id}: give the id"
            ):
                ask(word)
        with pytest.raises(TaskNotFoundError, match="no task has the id 'x'"):
            ask("x")
    scheduler.shutdown()


def test_ps_says_that_the_scheduler_died(file: str, command: Callable[..., tuple[int, str, str]]) -> None:
    """Killed, it could write nothing down about its end."""
    with started_one(file) as one:
        assert f"; scheduler: process {one.pid} on " in command("ps")[1]
        one.kill()
        one.wait(support.TIMEOUT)
        said = command("ps")[1]
        assert f"no scheduler lives: process {one.pid} on " in said
        assert "has died" in said


def test_the_store_may_come_from_the_environment(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without either the command says what is missing; a store that is not there is another code."""
    monkeypatch.delenv("PROCSCHED_STORE", raising=False)
    assert main(["ps"]) == 2
    assert "PROCSCHED_STORE" in capsys.readouterr().err
    assert main(["db", "upgrade"]) == 1
    assert "PROCSCHED_STORE" in capsys.readouterr().err
    monkeypatch.setenv("PROCSCHED_STORE", file)
    assert main(["ps"]) == 3
    assert "there is no store" in capsys.readouterr().err
    assert main(["db", "upgrade"]) == 0
    assert "the tables were made" in capsys.readouterr().out
    monkeypatch.setenv("PROCSCHED_STORE", "postgresql+psycopg://me:secret@127.0.0.1:1/x")
    assert main(["ps"]) == 3
    assert "secret" not in capsys.readouterr().err
