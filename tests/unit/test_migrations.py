"""The tables of a store: made by migrations, brought up to date from earlier versions, refused from a later one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from procsched import FakeClock, OneTime, Outcome, SqlTaskStore, StoreError, StoreInUseError, TaskStatus
from procsched.cli.__main__ import main
from procsched.stores import lease, migrating, schema
from procsched.testing.stores import AT, change, make_task, record_of
from tests import postgres as pg
from tests import stored, support
from tests.unit.scheduling import START

DATA = Path(__file__).parents[1] / "data"

LATER = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "9999", "0001", None, None


def upgrade():
    with op.batch_alter_table("meta") as table:
        table.add_column(sa.Column("note", sa.Text(), nullable=False, server_default="new"))
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be a later version of the schema."""
    directory = tmp_path / "versions"
    directory.mkdir()
    (directory / "v9999_later.py").write_text(LATER)
    monkeypatch.setitem(migrating.more_versions, str(directory), "9999")


def make(url: str) -> None:
    store = SqlTaskStore(url)
    store.open(lambda: AT)
    store.write([change(1, new=True, record=record_of(1))])
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_migrations_make_what_the_statements_expect(
    kind: str, path: Path, request: pytest.FixtureRequest
) -> None:
    """Table by table, column by column."""
    import sqlalchemy
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    url = f"sqlite:///{path}"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres").new_database()
    assert SqlTaskStore(url).upgrade() == (None, schema.SCHEMA)
    assert SqlTaskStore(url).upgrade() == (schema.SCHEMA, schema.SCHEMA)
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, schema.metadata) == []


def test_a_stored_file_of_version_1_opens(path: Path) -> None:
    """A file that version 0.1.0 wrote: its tasks go on, its records are there."""
    shutil.copy(DATA / "store-0001.db", path)
    path.chmod(0o600)
    with stored.simulated(path, FakeClock(START + 100)) as (scheduler, clock, _log):
        tasks = {task.name: task for task in scheduler.tasks()}
        assert tasks["rate"].status is TaskStatus.SCHEDULED
        assert tasks["rate"].schedule.period == 60.0  # type: ignore[attr-defined]
        assert tasks["paused"].status is TaskStatus.PAUSED
        assert tasks["done"].status is TaskStatus.SUCCEEDED
        assert scheduler.dead_letter() == [tasks["failed"].id]
        found = {record.outcome for record in scheduler.history(limit=1000)}
        assert found == {Outcome.SUCCEEDED, Outcome.FAILED}
        clock.advance(60)
        assert tasks["rate"].history[-1].ok
        assert scheduler.schedule("new", stored.nothing, OneTime(START)).id == "task-6"


def write_stored_file(path: Path) -> None:
    """Write a file as a fixture for later versions: see `tests/data`."""
    with stored.simulated(path) as (scheduler, _clock, _log):
        from procsched import NO_RETRY, CronSchedule, FixedRate

        scheduler.schedule("rate", stored.nothing, FixedRate(60.0), key="rate")
        scheduler.schedule(
            "cron", stored.nothing, CronSchedule("0 3 * * *", tz="Europe/Berlin"), args=(1, "x")
        )
        scheduler.schedule("done", stored.nothing, OneTime(START))
        scheduler.schedule("failed", stored.fail, OneTime(START), retry=NO_RETRY)
        scheduler.pause(scheduler.schedule("paused", stored.nothing, OneTime(START + 1000)))
        assert scheduler.wait_idle(support.TIMEOUT)
    stored.execute(path, "PRAGMA journal_mode = DELETE")


def test_a_file_is_copied_and_migrated(path: Path, later: None) -> None:
    """By itself when it is opened; the copy is private, and as it was."""
    versions, migrating.more_versions = migrating.more_versions, {}
    make(f"sqlite:///{path}")
    migrating.more_versions = versions
    store = SqlTaskStore(f"sqlite:///{path}")
    loaded = store.open(lambda: AT)
    assert [kept.handle.id for kept in loaded.tasks] == ["job-1"]
    assert len(store.history()) == 1
    store.close()
    assert stored.rows(path, "SELECT version_num FROM procsched_schema") == [("9999",)]
    assert stored.rows(path, "SELECT DISTINCT note FROM meta") == [("new",)]
    copy = path.with_name("jobs.db.schema-0001")
    assert copy.stat().st_mode & 0o777 == 0o600
    assert stored.rows(copy, "SELECT version_num FROM procsched_schema") == [("0001",)]
    assert stored.rows(copy, "SELECT id FROM tasks") == [("job-1",)]


def test_a_migration_that_fails_changes_nothing(path: Path, tmp_path: Path, later: None) -> None:
    """The tables are as they were, and the next one to open it tries again."""
    versions, migrating.more_versions = migrating.more_versions, {}
    make(f"sqlite:///{path}")
    migrating.more_versions = versions
    script = tmp_path / "versions" / "v9999_later.py"
    script.write_text(LATER + '    op.execute("INSERT INTO nowhere VALUES (1)")\n')
    with pytest.raises(StoreError, match="nowhere"):
        SqlTaskStore(f"sqlite:///{path}").open()
    assert stored.rows(path, "SELECT version_num FROM procsched_schema") == [("0001",)]
    assert "note" not in [row[1] for row in stored.rows(path, "PRAGMA table_info(meta)")]


def test_a_later_schema_is_refused(path: Path) -> None:
    """Nothing is read, and nothing changed."""
    make(f"sqlite:///{path}")
    stored.execute(path, "UPDATE procsched_schema SET version_num = '9999'")
    before = stored.rows(path, "SELECT * FROM owner")
    for method in ("open", "upgrade"):
        with pytest.raises(StoreError, match=r"9999.*upgrade procsched"):
            getattr(SqlTaskStore(f"sqlite:///{path}"), method)()
    assert stored.rows(path, "SELECT * FROM owner") == before


def test_postgresql_is_migrated_by_the_command(
    postgres: pg.Server, later: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not by itself; who wants that says so."""
    url = postgres.new_database()
    versions, migrating.more_versions = migrating.more_versions, {}
    make(url)
    migrating.more_versions = versions
    with pytest.raises(StoreError, match="procsched db upgrade"):
        SqlTaskStore(url).open()
    assert main(["db", "upgrade", "--store", url]) == 0
    assert main(["db", "upgrade", "--store", url]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "the schema was 0001, and is 9999 now",
        "the schema is 9999: nothing to do",
    ]
    store = SqlTaskStore(url)
    assert len(store.open(lambda: AT).tasks) == 1
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_nobody_upgrades_under_a_scheduler(
    kind: str, path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """It is named, and nothing is changed."""
    monkeypatch.setattr(lease, "BUSY", "1ms")
    url = f"sqlite:///{path}" if kind == "sqlite" else request.getfixturevalue("postgres").new_database()
    store = SqlTaskStore(url)
    store.open()
    upgrades: list[object] = []
    monkeypatch.setattr(migrating, "upgrade", upgrades.append)
    monkeypatch.setattr(migrating, "newest", lambda: "9999")
    assert main(["db", "upgrade", "--store", url]) == 1
    assert f"in use by the scheduler of process {os.getpid()} " in capsys.readouterr().err
    assert upgrades == []
    store.close()
    assert main(["db", "upgrade", "--store", url]) == 0
    assert len(upgrades) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_do_not_upgrade_at_once(
    kind: str, path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second is told, as is a scheduler that comes meanwhile; also where there are no tables yet."""
    url = f"sqlite:///{path}" if kind == "sqlite" else request.getfixturevalue("postgres").new_database()
    begun, goes_on = threading.Event(), threading.Event()
    real = migrating.upgrade

    def upgrade(connection: Any) -> None:
        begun.set()
        assert goes_on.wait(support.TIMEOUT)
        real(connection)

    monkeypatch.setattr(migrating, "upgrade", upgrade)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(SqlTaskStore(url).upgrade)
        assert begun.wait(support.TIMEOUT)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(lease, "BUSY", "1ms")
                for method in ("upgrade", "open"):
                    with pytest.raises(StoreInUseError, match="in use by"):
                        getattr(SqlTaskStore(url), method)()
            if kind == "postgresql":
                with pytest.raises(StoreInUseError, match="in use by another process"):
                    SqlTaskStore(url, auto_migrate=True).save(make_task(1))
        finally:
            goes_on.set()
        assert first.result(support.TIMEOUT) == (None, "0001")
    assert SqlTaskStore(url).upgrade() == ("0001", "0001")


def test_the_command_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, without the password."""
    assert main(["db", "upgrade", "--store", "postgresql://user:hunter2@127.0.0.1:1/x"]) == 1
    text = capsys.readouterr().err
    assert text.startswith("procsched db: postgresql://user@127.0.0.1:1/x: ")
    assert "hunter2" not in text


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of an ImportError from the depths."""
    import sys

    for module, url, extra in (
        ("sqlalchemy", "sqlite:///x.db", "sql"),
        ("psycopg", "postgresql://host/x", "postgres"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(StoreError, match=rf"pip install 'procsched\[{extra}\]'"):
                SqlTaskStore(url)


def test_sqlite_can_be_read_while_it_is_written(path: Path) -> None:
    """By a person with sqlite3, say, who holds a transaction open meanwhile."""
    store = SqlTaskStore(f"sqlite:///{path}")
    store.open(lambda: AT)
    connection = sqlite3.connect(path)
    connection.execute("BEGIN")
    assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (0,)
    store.write([change(1, new=True)])
    assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (0,)
    connection.close()
    store.close()
