"""The first schema: tasks, runs, payloads, who owns the store, and what others ask of it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Columns of times, shown as text in UTC by a view beside the table; `*` stands for the column.
TIMES = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', *, 'unixepoch')",
    "postgresql": "to_char(to_timestamp(*) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.MS')",
}
TASKS = (
    "id name key status unloadable next_run_at= action attempt run slot= retry_at= live started_at= pid "
    "schedule settings created_at= updated_at="
)
RUNS = (
    "id task_id name run attempt outcome due_at= started_at= finished_at= missed error pid exit_code signal "
    "limit_exceeded cpu_seconds peak_rss"
)


def upgrade() -> None:
    """Make the tables, and the views for people."""
    op.create_table(
        "meta",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "owner",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("process_started", sa.BigInteger(), nullable=True),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("opened_at", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.Column("closed_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "payloads",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("form", sa.String(length=20), nullable=False),
        sa.Column("python", sa.String(length=40), nullable=False),
        sa.Column("pickler", sa.String(length=40), nullable=False),
        sa.Column("procsched", sa.String(length=40), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "requests",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=True),
        sa.Column("what", sa.String(length=20), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.Column("asked_by", sa.Text(), nullable=False),
        sa.Column("taken_at", sa.Double(), nullable=True),
        sa.Column("answer", sa.Text(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "requests_open",
        "requests",
        ["id"],
        unique=False,
        sqlite_where=sa.text("taken_at IS NULL"),
        postgresql_where=sa.text("taken_at IS NULL"),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("due_at", sa.Double(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=False),
        sa.Column("missed", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("traceback", sa.Text(), nullable=True),
        sa.Column("stack", sa.Text(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("exit_code", sa.BigInteger(), nullable=True),
        sa.Column("signal", sa.String(length=20), nullable=True),
        sa.Column("limit_exceeded", sa.Text(), nullable=True),
        sa.Column("cpu_seconds", sa.Double(), nullable=True),
        sa.Column("peak_rss", sa.BigInteger(), nullable=True),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("output_truncated", sa.Boolean(), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("task_id", "run", "attempt", name="runs_once"),
    )
    op.create_index("runs_by_end", "runs", ["finished_at"], unique=False)
    op.create_index("runs_by_outcome", "runs", ["outcome", "id"], unique=False)
    op.create_index("runs_of_task", "runs", ["task_id", "id"], unique=False)
    op.create_table(
        "tasks",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("unloadable", sa.Text(), nullable=True),
        sa.Column("next_run_at", sa.Double(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("payload_id", sa.String(length=64), nullable=True),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("run", sa.BigInteger(), nullable=False),
        sa.Column("slot", sa.Double(), nullable=False),
        sa.Column("dealt", sa.Double(), nullable=False),
        sa.Column("anchor", sa.Double(), nullable=False),
        sa.Column("backlog", sa.Text(), nullable=True),
        sa.Column("due_at", sa.Double(), nullable=True),
        sa.Column("stands_for", sa.BigInteger(), nullable=False),
        sa.Column("owed", sa.Boolean(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("after", sa.String(length=20), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("retry_at", sa.Double(), nullable=True),
        sa.Column("live", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("process_started", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("tasks_payload", "tasks", ["payload_id"], unique=False)

    for table, columns, order in (("tasks", TASKS, "seq"), ("runs", RUNS, "id")):
        op.execute(f"CREATE VIEW {table}_readable AS SELECT {_shown(columns)} FROM {table} ORDER BY {order}")


def _shown(columns: str) -> str:
    time = TIMES[op.get_bind().dialect.name]
    shown = []
    for column in columns.split():
        name = column.removesuffix("=")
        shown.append(name if name == column else f"{time.replace('*', name)} AS {name}")
    return ", ".join(shown)
