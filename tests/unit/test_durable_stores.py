"""`SqlTaskStore` on SQLite and on PostgreSQL: the contracts, and what only one of them has."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.dialects import sqlite

from procsched import OneTime, Outcome, Scheduler, SqlTaskStore, StoreError, ValidationError, connect
from procsched.stores.changes import Change
from procsched.stores.reading import select_history
from procsched.stores.schema import runs
from procsched.testing.stores import AT, DurableStoreContract, StoreContract, change, position, record_of
from tests import faults, stored, support
from tests import postgres as pg

Make = Callable[..., SqlTaskStore]


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """Give the same store, opened anew, at each call."""
    made: list[SqlTaskStore] = []

    def once_more(**options: Any) -> SqlTaskStore:
        for store in made:
            store._claim.release()  # what is left of it when its process is dead
        made.append(SqlTaskStore(url, **options))
        return made[-1]

    yield once_more
    for store in made:
        store.close()


class TestSqlTaskStore(StoreContract):
    """As any other store."""

    @pytest.fixture
    def store(self, make: Make) -> SqlTaskStore:
        return make()


class TestDurableSqlTaskStore(DurableStoreContract):
    """As one that outlives its process."""


RECORDS = 20_000
STEPS = 3 * 24
"""Of SQLite's machine for a record: one for each of its columns, and as much again for finding it."""


def test_results_are_kept_if_asked_for(make: Make) -> None:
    """And opened by who asks."""
    import pickle

    from procsched._core.models import Sealed

    for keep in (True, False):
        store = make(keep_results=keep)
        store.open(lambda: AT)
        record = record_of(1, 1 + keep, result=Sealed(pickle.dumps({"rows": 3})))
        store.write([change(1, new=True, record=record)])
    assert [record.result for record in store.history()] == [None, {"rows": 3}]


def test_a_kept_result_is_there_after_a_restart(make: Make) -> None:
    """By way of the task as well: whoever waits for one that has ended in an earlier life gets what it returned."""
    for _life in range(2):
        with Scheduler(1, store=make(keep_results=True)) as scheduler:
            task = scheduler.schedule("add", faults.add, OneTime(0), args=(40, 2), key="add")
            record = scheduler.wait(task, support.TIMEOUT)
            assert record.run == 1
            assert [each.result for each in (record, *task.history, *scheduler.history())] == [42, 42, 42]


def test_old_records_are_deleted_by_age(make: Make) -> None:
    """A few at a time; the last one of a task stays."""
    now = AT
    store = make(keep_records=100.0, records_per_task=None)
    store.open(lambda: now)
    store.write([change(1, new=True)])
    store.write([change(1, record=record_of(1, run)) for run in range(1, 251)])
    store.write([change(2, new=True, record=record_of(2, 1))])
    store.write([change(1, attempt=1)])  # run 3 of it is the last, says its row
    now = AT + 350
    assert store.prune()
    assert len(store.history(limit=1000)) == 51
    while store.prune():
        continue
    # Ended 100 s ago or later; and what the task's row names.
    assert [record.run for record in store.history(limit=1000)] == [250, 3]


def test_old_records_are_deleted_after_the_clock_was_set_back(make: Make) -> None:
    """It is not waited for the time at which it was looked for them last."""
    now = AT + 1e6
    store = make(keep_records=100.0, records_per_task=None)
    store.open(lambda: now)
    store.write([change(1, new=True, record=record_of(1, 1))])
    assert not store.prune()
    now = AT + 350
    store.write([change(1, record=record_of(1, 2)), change(1, record=record_of(1, 300))])
    while store.prune():
        continue
    assert [record.run for record in store.history()] == [300]


def test_old_records_are_deleted_by_number(make: Make) -> None:
    """So many of each task stay."""
    store = make(records_per_task=120, keep_records=None)
    store.open(lambda: AT)
    store.write([change(1, new=True), change(2, new=True, record=record_of(2))])
    for start in range(1, 401, 50):
        store.write([change(1, record=record_of(1, run)) for run in range(start, start + 50)])
    while store.prune():
        continue
    runs = [record.run for record in store.history("job-1", limit=1000)]
    assert runs[:120] == list(range(400, 280, -1))
    assert len(runs) <= 120 + 100 + 1  # it is counted again after a hundred
    assert len(store.history("job-2")) == 1


def test_old_records_are_deleted_by_number_over_several_lives(make: Make) -> None:
    """Also where there are never many from one start to the next; a task that is gone is not counted any more."""
    for life in range(10):
        store = make(records_per_task=50, keep_records=None)
        loaded = store.open(lambda: AT)
        runs = range(9 * life + 1, 9 * life + 10)
        changes = [change(1, position(run=run), record=record_of(1, run)) for run in runs]
        store.write([change(1, new=True), *changes, change(2, new=True, record=record_of(2))])
        store.write([Change("job-2", None)])
        while store.prune():
            continue
        assert set(store._new_records) == {"job-1"}
        store.close()
    assert [each.run for each in loaded.tasks] == [81]
    assert len(make().history("job-1", limit=1000)) <= 50 + 9


def test_payloads_of_nobody_are_deleted(make: Make, url: str) -> None:
    """Tasks with equal calls share one."""
    import sqlalchemy

    store = make()
    store.open(lambda: AT)
    one, other = change(1, new=True), change(2, new=True)
    other.call = one.call
    store.write([one, other, change(3, new=True)])
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)

    def count() -> Any:
        with engine.connect() as connection:
            return connection.execute(sqlalchemy.text("SELECT count(*) FROM payloads")).scalar()

    assert count() == 2
    store.write([Change("job-1", None), Change("job-3", None)])
    while store.prune():
        continue
    assert count() == 1
    store.write([change(4, new=True)])
    assert count() == 2


def test_a_connection_that_breaks_is_made_anew(make: Make) -> None:
    """The batch that failed is written when it is tried again."""
    store = make()
    store.open(lambda: AT)
    assert store._connection is not None
    store._connection.connection.driver_connection.close()  # type: ignore[union-attr]
    with pytest.raises(StoreError):
        store.write([change(1, new=True)])
    store.write([change(1, new=True)])
    assert len(store.load_all()) == 1


def test_several_that_only_write_take_turns(make: Make) -> None:
    """Also when one of them is scheduled from then: each finds what the others have added meanwhile."""
    one, other = make(), make()
    numbers = [1, 9, 3, 4]
    for number, store in zip(numbers, (one, other, one, other), strict=True):
        store.write([change(number, new=True)])
    assert one.open().known_ids == ("job-9",)
    one.write([change(5, new=True)])
    assert [task.id for task in other.load_all()] == [f"job-{number}" for number in (*numbers, 5)]


@pytest.mark.parametrize("opened", [True, False])
@pytest.mark.parametrize("where", ["before the commit", "in the commit"])
def test_a_write_that_failed_is_written_whole_the_next_time(
    make: Make, monkeypatch: pytest.MonkeyPatch, where: str, opened: bool
) -> None:
    """With what the task runs, and with its id as one that is not given again."""
    import sqlalchemy

    store = make()
    if opened:
        store.open(lambda: AT)
    else:
        store.write([change(1, new=True)])

    def fail(*_args: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def note_and_fail(*args: Any) -> None:
        note(*args)
        fail()

    note = store._note_ids
    with monkeypatch.context() as patch:
        if where == "in the commit":
            patch.setattr(sqlalchemy.engine.default.DefaultDialect, "do_commit", fail)
        else:
            patch.setattr(store, "_note_ids", note_and_fail)
        with pytest.raises(StoreError, match="Input/output error"):
            store.write([change(8, new=True), change(5, new=True)])
    store.write([change(8, new=True), change(5, new=True)])
    loaded = make().open(lambda: AT)
    payloads = {entry.handle.id: entry.payload for entry in loaded.tasks}
    assert payloads["job-8"].parts == change(8, new=True).call.parts  # type: ignore[union-attr]
    assert payloads["job-5"].parts == change(5, new=True).call.parts  # type: ignore[union-attr]
    assert list(loaded.known_ids) == ["job-8"]


@pytest.mark.parametrize("opened", [True, False])
def test_what_another_owner_deleted_is_written_again(make: Make, url: str, opened: bool) -> None:
    """By a store that wrote it before, and whose task of it is gone."""
    store = make()
    if opened:
        store.open(lambda: AT)
    store.write([change(1, new=True)])
    store.close()
    other = SqlTaskStore(url)
    other.open(lambda: AT)
    other.write([Change("job-1", None)])
    while other.prune():
        continue
    other.close()
    if opened:
        store.open(lambda: AT)
    store.write([change(1, new=True)])
    (entry,) = make().open(lambda: AT).tasks
    assert entry.payload.parts == change(1, new=True).call.parts  # type: ignore[union-attr]


def test_the_views_are_for_people(make: Make, url: str) -> None:
    """Words and dates, no numbers to look up."""
    import sqlalchemy

    store = make()
    store.open(lambda: AT)
    store.write([change(1, new=True, record=record_of(1))])
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        task = connection.execute(sqlalchemy.text("SELECT * FROM tasks_readable")).mappings().one()
        run = connection.execute(sqlalchemy.text("SELECT * FROM runs_readable")).mappings().one()
    assert (task["status"], task["action"]) == ("scheduled", "builtins:print")
    assert task["next_run_at"] == "2023-11-14 22:14:20.100"
    assert task["schedule"].startswith('{"v":1,"type":"fixed_rate","period":60.1,')
    assert (run["outcome"], run["finished_at"]) == ("succeeded", "2023-11-14 22:13:21.000")


# --- URLs and secrets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (5, "must be a text"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "leave store= out"),
        ("sqlite:///jobs\0.db", "without zero characters"),
        ("sqlite:///jobs\udcff.db", "in UTF-8"),
        ("sqlite://data/jobs.db", "three slashes before a path"),
        ("sqlite://data:hunter2@place/jobs.db", "three slashes before a path"),
        ("sqlite:///jobs.db?mode=ro", "no options for a SQLite file, and has mode"),
        ("mysql://localhost/x", "there are no other stores"),
        ("postgresql+psycopg2://localhost/x", "there are no other stores"),
        ("no url :hunter2", "must be a database URL"),
    ],
)
def test_wrong_urls_are_refused(url: Any, words: str) -> None:
    """Saying what is right; the text may hold a password, and is not shown."""
    with pytest.raises(ValidationError, match=words) as caught:
        SqlTaskStore(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("form", ["postgresql://user:{}@{}/d", "postgresql://user@{1}/d?password={0}"])
def test_the_password_is_in_no_text(form: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither of the store nor of what it raises, nor of what a log shows of that."""
    import logging
    import traceback

    password = "hunter2-never-shown"
    store = SqlTaskStore(form.format(password, "127.0.0.1:1"))
    texts = [repr(store), str(store)]
    with pytest.raises(StoreError) as caught:
        store.open()
    texts += [str(caught.value), repr(caught.value), *traceback.format_exception(caught.value)]
    logging.getLogger("procsched").error("%s", store, exc_info=caught.value)
    assert password not in "\n".join(texts) + caplog.text
    assert "127.0.0.1" in str(caught.value)


def test_a_url_may_name_several_hosts(postgres: pg.Server) -> None:
    """As servers do of which one takes the place of another."""
    url = postgres.new_database()
    _, _, place = url.partition("@")
    host, _, database = place.partition("/")
    several = f"{url.replace(place, '/' + database)}?host=127.0.0.1:1&host={host}&connect_timeout=5"
    store = SqlTaskStore(several)
    store.open()
    store.close()


def test_a_wrong_password_is_not_shown(postgres: pg.Server) -> None:
    """The server's own words come through."""
    url = postgres.new_database().replace(pg.PASSWORD, "wrong-and-secret")
    with pytest.raises(StoreError, match="password authentication failed") as caught:
        SqlTaskStore(url).open()
    assert "wrong-and-secret" not in str(caught.value)


# --- the file of SQLite --------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def test_a_directory_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is no text: it is the working directory, and the path in the URL leads on from there."""
    directory = os.fsencode(tmp_path) + b"/\xff"
    try:
        os.mkdir(directory)
    except OSError:
        pytest.skip("this file system takes names in UTF-8 only")
    monkeypatch.chdir(os.fsdecode(directory))
    store = SqlTaskStore("sqlite:///jobs.db")
    store.open()
    store.write([change(1, new=True)])
    store.close()
    assert len(store.load_all()) == 1


def test_the_file_is_private_and_synced(path: Path) -> None:
    """Also what lies beside it while it is in use."""
    store = SqlTaskStore(f"sqlite:///{path}")
    store.open()
    store.write([change(1, new=True)])
    for name in ("jobs.db", "jobs.db-wal", "jobs.db-shm"):
        assert (path.parent / name).stat().st_mode & 0o777 == 0o600, name
    assert store._connection is not None
    with store._connection.begin():
        answers = [
            store._connection.exec_driver_sql(f"PRAGMA {what}").scalar()
            for what in ("journal_mode", "synchronous")
        ]
    assert answers == ["wal", 2]
    store.close()


@pytest.mark.parametrize(("mode", "words"), [(0o620, "written by others"), (0o602, "mode 602")])
def test_a_file_that_others_may_write_is_refused(path: Path, mode: int, words: str) -> None:
    """What is in it is run as code; who wants that says so."""
    SqlTaskStore(f"sqlite:///{path}").upgrade()
    path.chmod(mode)
    with pytest.raises(StoreError, match=words) as caught:
        SqlTaskStore(f"sqlite:///{path}").open()
    assert caught.value.__context__ is None  # that it was there already is no news
    store = SqlTaskStore(f"sqlite:///{path}", allow_shared_file=True)
    store.open()
    store.close()


def test_a_directory_that_all_may_write_is_refused(tmp_path: Path) -> None:
    """Anybody could put another file there; not where the sticky bit keeps them from it."""
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(StoreError, match="in the place of the store"):
        SqlTaskStore(f"sqlite:///{directory}/jobs.db").open()
    directory.chmod(0o1777)
    store = SqlTaskStore(f"sqlite:///{directory}/other.db")
    store.open()
    store.close()


@pytest.mark.parametrize("kind", ["nfs4", "virtiofs", "fuse.sshfs", "9p"])
def test_network_file_systems_are_refused(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files were corrupted there."""
    from procsched.stores import files

    monkeypatch.setattr(files, "file_system_of", lambda directory: kind)
    with pytest.raises(StoreError, match="PostgreSQL"):
        SqlTaskStore(f"sqlite:///{path}").open()
    assert not path.exists()


def test_the_kind_of_a_file_system_is_found() -> None:
    """As the kernel tells it."""
    from procsched.stores.files import file_system_of

    assert file_system_of(Path("/proc/self")) == "proc"
    assert file_system_of(Path("/sys")) == "sysfs"


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    """In the words of the system."""
    with pytest.raises(StoreError, match=r"not there.*No such file or directory"):
        SqlTaskStore(f"sqlite:///{tmp_path}/not there/jobs.db").open()


def test_a_file_of_somebody_else_is_refused(path: Path) -> None:
    """One that is no database, and one with tables of the same names; nothing is changed in it."""
    path.write_bytes(b"this is no database, but a text that is long enough" * 20)
    path.chmod(0o600)
    with pytest.raises(StoreError, match="not a database"):
        SqlTaskStore(f"sqlite:///{path}").open()
    other = path.with_name("other.db")
    other.touch(0o600)
    stored.execute(other, "CREATE TABLE tasks (x)")
    with pytest.raises(StoreError, match=r"not procsched's.*tasks"):
        SqlTaskStore(f"sqlite:///{other}").open()
    assert stored.rows(other, "SELECT name FROM sqlite_master") == [("tasks",)]


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """To open a pipe would be to wait, without end, for somebody at its other end."""
    path = tmp_path / "pipe.db"
    os.mkfifo(path, 0o600)
    for use in (
        SqlTaskStore(f"sqlite:///{path}").open,
        SqlTaskStore(f"sqlite:///{path}").history,
        lambda: connect(f"sqlite:///{path}"),
    ):
        with pytest.raises(StoreError, match="no regular file"):
            use()


def test_what_the_file_system_refuses_is_a_store_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what the database refuses: a directory that may not be searched, say."""
    store = SqlTaskStore(f"sqlite:///{path}")
    store.open()
    store.close()

    def hide(*_args: object, **_options: object) -> os.stat_result:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", hide)
    for use in (
        SqlTaskStore(f"sqlite:///{path}").open,
        store.history,
        store.load_all,
        lambda: connect(f"sqlite:///{path}"),
    ):
        with pytest.raises(StoreError, match="Permission denied"):
            use()
    with pytest.raises(StoreError, match="No space left"), store._database.speaking():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


QUESTIONS: list[tuple[tuple[Any, ...], int]] = [
    ((None, None, None), 50),
    (("job-7", None, None), 50),
    ((None, Outcome.SUCCEEDED, None), 50),
    ((None, Outcome.FAILED, None), 9),
    ((None, None, AT), 50),
    ((None, None, AT + RECORDS - 5), 5),
    (("job-7", Outcome.SUCCEEDED, AT + 1), 50),
    ((None, Outcome.FAILED, AT + 1), 9),
    (("nobody", None, None), 0),
]
"""By task, outcome and time, with how many of the last 50 there are."""


@pytest.mark.slow
def test_a_question_costs_what_it_finds(path: Path) -> None:
    """The last 50 of many records are found by an index, in their order: SQLite takes a number of steps for each."""
    store = SqlTaskStore(f"sqlite:///{path}")
    store.open(lambda: AT)
    store.write([change(0, new=True, record=record_of(0, 0))])
    store.close()
    changed = {
        "id": "n + 1",
        "task_id": "'job-' || (n % 100)",
        "run": "n",
        "finished_at": f"{AT} + n",
        "outcome": f"CASE n % {RECORDS // 10} WHEN 0 THEN 'failed' ELSE 'succeeded' END",
    }
    chosen = ", ".join(changed.get(column.name, column.name) for column in runs.c)
    stored.execute(
        path,
        f"WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < {RECORDS} - 1) "
        f"INSERT INTO runs SELECT {chosen} FROM number, runs WHERE runs.id = 1",
    )
    for question, count in QUESTIONS:
        statement = str(
            select_history(*question, 50).compile(
                dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True}
            )
        )
        plan = stored.rows(path, f"EXPLAIN QUERY PLAN {statement}")
        assert not any("TEMP B-TREE" in step[3] for step in plan), (question, plan)
        found, steps = _counted(path, statement)
        assert len(found) == count
        numbers = [row[0] for row in found]
        assert numbers == sorted(numbers, reverse=True)
        assert steps <= 1000 + STEPS * count, (question, plan)


def _counted(path: Path, statement: str) -> tuple[list[Any], int]:
    """Return what a statement finds, and how many steps SQLite's machine has taken."""
    steps = 0

    def note() -> None:
        nonlocal steps
        steps += 1

    connection = sqlite3.connect(path)
    connection.set_progress_handler(note, 1)
    found = connection.execute(statement).fetchall()
    connection.close()
    return found, steps
