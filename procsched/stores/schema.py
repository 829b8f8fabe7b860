"""The tables of a store. Imports SQLAlchemy: only a store in use imports this module.

A migration makes them (`migrations/versions`); a test holds the two together. Times are UNIX seconds as doubles, which
give back what a schedule has reckoned to the last bit; the views beside the tables show them as text in UTC.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

SCHEMA = "0001"  # the newest revision in `migrations/versions`
VERSION_TABLE = "procsched_schema"  # Alembic's: its one row names the revision

metadata = MetaData()

# SQLite numbers rows by itself only in a column that is an INTEGER to the letter.
_Number = BigInteger().with_variant(Integer, "sqlite")

# key -> value: the highest number of each prefix of ids; of SQLite, which file it is; of PostgreSQL, the lease.
meta = Table(
    "meta",
    metadata,
    Column("key", String(200), primary_key=True),
    Column("value", Text, nullable=False),
)

# One row: who has the store to schedule from it, or had it last.
owner = Table(
    "owner",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),  # grows with every owner; each write carries it
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("boot_id", Text, nullable=False),
    Column("process_started", BigInteger),  # clock ticks since the boot
    Column("version", Text, nullable=False),  # of procsched
    Column("opened_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),  # it was alive then for certain
    Column("closed_at", Double),  # it ended in order
)

payloads = Table(
    "payloads",
    metadata,
    Column("id", String(64), primary_key=True),  # SHA-256: equal calls share a row
    Column("kind", String(20), nullable=False),
    Column("name", Text, nullable=False),
    Column("form", String(20), nullable=False),
    Column("python", String(40), nullable=False),
    Column("pickler", String(40), nullable=False),
    Column("procsched", String(40), nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("created_at", Double, nullable=False),
)

tasks = Table(
    "tasks",
    metadata,
    Column("seq", _Number, primary_key=True, autoincrement=False),  # order of registration
    Column("id", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("key", Text),
    Column("status", String(20), nullable=False),
    Column("unloadable", Text),  # why its code cannot be loaded
    Column("next_run_at", Double),
    Column("action", Text, nullable=False),  # for people
    Column("payload_id", String(64)),
    Column("schedule", Text, nullable=False),  # JSON
    Column("settings", Text, nullable=False),  # JSON
    Column("attempt", Integer, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("run", BigInteger, nullable=False),
    Column("slot", Double, nullable=False),
    Column("dealt", Double, nullable=False),
    Column("anchor", Double, nullable=False),
    Column("backlog", Text),  # JSON
    Column("due_at", Double),
    Column("stands_for", BigInteger, nullable=False),
    Column("owed", Boolean, nullable=False),
    Column("held", Boolean, nullable=False),
    Column("after", String(20), nullable=False),
    Column("ended_at", Double),
    Column("retry_at", Double),
    Column("live", Boolean, nullable=False),  # an attempt runs, whatever the status
    Column("started_at", Double),
    Column("pid", Integer),  # of the worker that it runs in
    Column("process_started", BigInteger),
    Column("created_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("epoch", BigInteger, nullable=False),
)
Index("tasks_payload", tasks.c.payload_id)

runs = Table(
    "runs",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("task_id", Text, nullable=False),  # no foreign key: a record outlives its task
    Column("name", Text, nullable=False),
    Column("run", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("due_at", Double),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double, nullable=False),
    Column("missed", BigInteger, nullable=False),
    Column("error", Text),
    Column("traceback", Text),
    Column("stack", Text),
    Column("pid", Integer),
    Column("exit_code", BigInteger),
    Column("signal", String(20)),
    Column("limit_exceeded", Text),
    Column("cpu_seconds", Double),
    Column("peak_rss", BigInteger),
    Column("output", Text),
    Column("output_truncated", Boolean, nullable=False),
    Column("result", LargeBinary),
    Column("epoch", BigInteger, nullable=False),
    UniqueConstraint("task_id", "run", "attempt", name="runs_once"),  # one attempt, one record
)
Index("runs_of_task", runs.c.task_id, runs.c.id)
Index("runs_by_end", runs.c.finished_at)
Index("runs_by_outcome", runs.c.outcome, runs.c.id)

# What other processes ask of the owner: cancel, pause, resume, revive, schedule.
requests = Table(
    "requests",
    metadata,
    Column("id", _Number, primary_key=True),
    Column("task_id", Text),
    Column("what", String(20), nullable=False),
    Column("arguments", Text, nullable=False),  # JSON
    Column("asked_at", Double, nullable=False),
    Column("asked_by", Text, nullable=False),
    Column("taken_at", Double),
    Column("answer", Text),  # JSON
    Column("epoch", BigInteger),  # of the owner that took it
)
Index(
    "requests_open",
    requests.c.id,
    sqlite_where=text("taken_at IS NULL"),
    postgresql_where=text("taken_at IS NULL"),
)
