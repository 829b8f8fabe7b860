"""The statements with which a store writes, made once. Imports SQLAlchemy.

Each gives absolute values, so that the last one of several for a task is enough, and each can be repeated: whether a
transaction was made of which nobody heard is not known when a connection breaks in its midst.
"""

from __future__ import annotations

from sqlalchemy import and_, bindparam, delete, exists, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite

from procsched.stores.prepared import Prepared
from procsched.stores.schema import meta, owner, payloads, runs, tasks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import Dialect

# What of a task never changes once it is there.
_FIXED = {"seq", "id", "name", "key", "action", "payload_id", "schedule", "settings", "created_at"}


class Statements:
    """The statements, for one kind of database. Those of every transaction are `Prepared`.

    Args:
        dialect: of SQLite or PostgreSQL.
    """

    def __init__(self, dialect: Dialect) -> None:
        insert: Any = postgresql.insert if dialect.name == "postgresql" else sqlite.insert
        self.owner = select(owner)
        become = insert(owner)
        self.become_owner = become.on_conflict_do_update(
            index_elements=["id"], set_={column.name: become.excluded[column.name] for column in owner.c}
        )
        mine = and_(owner.c.id == literal_column("1"), owner.c.epoch == bindparam("mine"))
        still = update(owner).where(mine).values(seen_at=bindparam("now"))
        self.still_owner = Prepared(still, dialect, ("mine", "now"))
        self.leave = update(owner).where(mine).values(seen_at=bindparam("now"), closed_at=bindparam("now"))

        self.named_owner = ("host", "pid", "boot_id", "process_started", "version", "opened_at")
        self.leave_to = (
            update(owner).where(mine).values({name: bindparam(f"former_{name}") for name in self.named_owner})
        )

        self.last_seq = select(tasks.c.seq).order_by(tasks.c.seq.desc()).limit(1)
        self.highest_ids = select(meta.c.key, meta.c.value).where(meta.c.key.like("highest id:%"))
        self.file = select(meta.c.value).where(meta.c.key == "file")
        note = insert(meta)
        noted = note.on_conflict_do_update(index_elements=["key"], set_={"value": note.excluded["value"]})
        self.note_meta = Prepared(noted, dialect, ("key", "value"))

        payload = insert(payloads).on_conflict_do_nothing(index_elements=["id"])
        self.insert_payload = Prepared(payload, dialect, payloads.c.keys())
        new = insert(tasks)
        changing = [column.name for column in tasks.c if column.name not in _FIXED]
        upserted = new.on_conflict_do_update(
            index_elements=["id"], set_={name: new.excluded[name] for name in changing}
        )
        self.insert_task = Prepared(upserted, dialect, tasks.c.keys())
        this = tasks.c.id == bindparam("the_id")
        changed = update(tasks).where(this).values({name: bindparam(name) for name in changing})
        self.update_task = Prepared(changed, dialect, (*changing, "the_id"))
        self.delete_task = Prepared(delete(tasks).where(this), dialect, ("the_id",))
        once = insert(runs).on_conflict_do_nothing(index_elements=["task_id", "run", "attempt"])
        self.insert_run = Prepared(once, dialect, [name for name in runs.c.keys() if name != "id"])  # noqa: SIM118

        # The record of a task's last attempt may be needed for what follows it.
        needed = exists().where(
            tasks.c.id == runs.c.task_id, tasks.c.run == runs.c.run, tasks.c.attempt == runs.c.attempt
        )
        too_many = (
            select(runs.c.id)
            .where(runs.c.task_id == bindparam("task_id"))
            .order_by(runs.c.id.desc())
            .limit(bindparam("bite"))
            .offset(bindparam("keep"))
        )
        self.prune_count = delete(runs).where(runs.c.id.in_(too_many), ~needed)
        too_old = (
            select(runs.c.id)
            .where(runs.c.finished_at < bindparam("before"), ~needed)
            .order_by(runs.c.finished_at)
            .limit(bindparam("bite"))
        )
        self.prune_age = delete(runs).where(runs.c.id.in_(too_old))
        used = exists().where(tasks.c.payload_id == payloads.c.id)
        nobodys = select(payloads.c.id).where(~used).limit(bindparam("bite"))
        self.prune_payloads = delete(payloads).where(payloads.c.id.in_(nobodys))
