"""The store that outlives its process: tasks and records in SQLite or PostgreSQL.

    store thread --write--> one connection: BEGIN, what has queued up grouped by kind, COMMIT (synced)
    any thread --history--> a connection of its own that only reads

SQLAlchemy is imported when the first store is made, and never in a worker.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref

from procsched import _forks, _identity, _places
from procsched._core.checks import check_flag, finite_seconds, whole_number
from procsched._core.models import Outcome, ScheduledTask, Sealed, Task
from procsched._core.names import check_names
from procsched.errors import ProcschedError, StoreError, StoreInUseError
from procsched.ids import LONGEST_NUMBER
from procsched.stores import codec, holder
from procsched.stores.changes import Change, Loaded
from procsched.stores.claims import claim_of
from procsched.stores.database import Database, leave_to_parent
from procsched.stores.payloads import StoredAction, StoredCall, store_call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta
    from typing import Any, Final, Never

    from sqlalchemy import Connection, Engine

    from procsched._core.models import ExecutionRecord
    from procsched.stores.statements import Statements

DAY: Final = 86_400.0
BITE: Final = 200  # records deleted at a time: some ten milliseconds
CHECK_EVERY: Final = 100  # records of a task, after which it is looked at whether it has too many
AGE_CHECK_SECONDS: Final = 60.0  # between looks for records that are too old
MOST_ROWS: Final = (1 << 63) - 1  # that databases can count
KNOWN_PAYLOADS: Final = 10_000  # ids of payloads that are remembered as written
_OPTIONS: Final = (
    "url",
    "keep_results",
    "keep_records",
    "records_per_task",
    "allow_shared_file",
    "auto_migrate",
    "standby",
)

_inherited: list[Connection] = []  # connections of a parent process, in a fork of it


class SqlTaskStore:
    """Keeps tasks and records in a database, from which a scheduler goes on after a restart.

    Args:
        url: ``"sqlite:///jobs.db"`` (three slashes and a path) for one machine, or
            ``"postgresql+psycopg://user:password@host/name"``.
        keep_results: whether results are kept with the records, as far as the scheduler's `result_limit` allows. By
            default they are not: after a restart, and for other processes, `record.result` is None. Those of a
            `ThreadPool` or an `InlinePool`, which are never pickled, are not kept in any case.
        keep_records: seconds or a timedelta for which records are kept; None for no limit.
        records_per_task: how many records of a task are kept; None for no limit.
        allow_shared_file: use a SQLite file that others may write, although what it holds is run as code.
        standby: where another scheduler has the store, wait in `Scheduler.start`, or in whatever loads the store
            before that, until it ends; by default that is a `StoreInUseError`.
        auto_migrate: bring the tables of an earlier version up to date when the store is opened. By default that is so
            for SQLite, after a copy of the file; for PostgreSQL there is ``procsched db upgrade``.
    Raises:
        ValidationError: naming the parameter. StoreError: SQLAlchemy or psycopg is missing; names the extra.
    Thread safety: call from anywhere. Nothing is connected before it is used.
    """

    durable = True

    def __init__(
        self,
        url: str,
        *,
        keep_results: bool = False,
        keep_records: float | timedelta | None = 30 * DAY,
        records_per_task: int | None = 1000,
        allow_shared_file: bool = False,
        auto_migrate: bool | None = None,
        standby: bool = False,
        **unknown: Never,
    ) -> None:
        if unknown:
            check_names(unknown, _OPTIONS, of="SqlTaskStore")
        check_flag("keep_results", keep_results)
        check_flag("standby", standby)
        check_flag("allow_shared_file", allow_shared_file)
        if auto_migrate is not None:
            check_flag("auto_migrate", auto_migrate)
        self._keep_results = keep_results
        self._keep_seconds = None if keep_records is None else finite_seconds("keep_records", keep_records)
        self._keep_count = (
            None if records_per_task is None else whole_number("records_per_task", records_per_task)
        )
        # A `StoreClient` gives its own: a relative path would lead elsewhere by now, if the directory was changed.
        self._database = url if isinstance(url, Database) else Database(url, allow_shared_file)
        if self._database.path is not None:
            _places.note_store(self, str(self._database.path))
        self._standby = standby
        self._claim = claim_of(self._database)
        # What a visit leaves as the time when an owner was alive; see `visit`.
        self._alive_at: float | None = None
        self.visiting = False  # see `visit`
        self._visited: dict[str, Any] | None = None  # the row of the owner before a visit
        self._auto_migrate = self._database.is_sqlite if auto_migrate is None else auto_migrate
        self._user: weakref.ref[object] | None = None  # see `begin_use`; in single steps
        self._using = threading.RLock()  # for setting it: the next one is held while a disk hangs
        # Guards the fields below: the store thread has it while it writes. Reentrant for a finalizer in its midst.
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._connection: Connection | None = None
        self._file: tuple[int, int] | None = None  # which file it is, once that is connected
        self._statements: Statements | None = None
        self._now: Callable[[], float] = time.time
        self._epoch = 0  # of our ownership; 0 while the store is not open
        self._next_seq = 0
        self._ids: dict[str, int] = {}  # the highest number of each prefix of ids
        self._payloads: set[str] = set()  # known to be written
        # The same of the transaction that goes on: what is rolled back has to be written when it is tried again.
        self._new_ids: dict[str, int] = {}
        self._new_payloads: set[str] = set()
        self._new_records: dict[str, int] = {}  # since the task's records were counted
        self._to_prune: list[str] = []  # tasks that may have too many records
        self._looked_at_age = 0.0
        _forks.note(self)
        self._orphans = False  # a task was deleted: its payload may be nobody's

    def __repr__(self) -> str:
        return f"<SqlTaskStore {self._database.url}>"

    def __reduce__(self) -> Any:
        raise TypeError("a store belongs to one process: make another one there, of the same URL")

    def after_fork(self) -> None:
        """In a fork of the process: what is open is the parent's."""
        self._lock = threading.RLock()
        self._using = threading.RLock()
        self._user = None
        self._epoch = 0
        connection, self._connection = self._connection, None
        if connection is not None:
            # Closing it here would take the write-ahead log of SQLite from the parent.
            _inherited.append(connection)
            if not (self._database.is_sqlite or connection.closed or connection.invalidated):
                # A parent that is killed in the midst of a transaction would leave its locks to this process.
                leave_to_parent(connection.connection.driver_connection)
        self._file = None
        self._engine = None  # another thread may have been in the midst of it
        self._database.after_fork()

    # --- the connection that writes --------------------------------------------------------------------

    def _connected(self) -> Connection:
        """Return the connection, after a failure a new one. The schema is brought up to date, or refused, first."""
        connection = self._connection
        if connection is not None and not connection.closed and not connection.invalidated:
            return connection
        if connection is not None:
            connection.close()
        if self._engine is None:
            self._engine = self._database.engine()
        self._connection = connection = self._engine.connect()
        try:
            if self._file is None:
                self._file = self._database.file_identity()
            self._check_schema(connection)
        except BaseException:
            self._connection = None
            connection.close()
            raise
        return connection

    def _require_file(self) -> None:
        """Refuse to go on where the file at the path is another one, or none: nobody would ever read what is written.

        The connection stays, for the file may be put back.
        """
        if self._file is not None and self._database.file_identity() != self._file:
            raise StoreError(
                f"{self._database.path} was removed, or another file was put in its place: nothing is written until "
                "the one that this scheduler has is there again"
            )

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                connection.invalidate()
                connection.close()
            except Exception:  # it is broken, which is why it is dropped
                return

    def _check_schema(self, connection: Connection) -> None:
        from procsched.stores import migrating
        from procsched.stores.statements import Statements

        with connection.begin():
            revision = migrating.revision_of(connection)
        migrating.refuse_newer(revision, self._database.url)
        if revision != migrating.newest():
            self._migrate(connection, revision)
        if self._statements is None:
            self._statements = Statements(connection.dialect)

    def _migrate(self, connection: Connection, revision: str | None, asked: bool = False) -> None:
        from procsched.stores import migrating

        if revision is not None:
            if not (self._auto_migrate or asked):
                raise StoreError(
                    f"{self._database.url} has the tables of an earlier version of procsched (schema {revision}): "
                    f"run `procsched db upgrade --store URL` once, or give auto_migrate=True"
                )
            if self._database.path is not None:
                migrating.copy_file(connection, self._database.path, revision)
        with connection.begin():
            self._claim.guard(connection)  # two that make the tables at once are in each other's way
            migrating.upgrade(connection)

    def upgrade(self) -> tuple[str | None, str]:
        """Bring the tables up to date, whatever `auto_migrate` says. Return the revisions before and after.

        Raises:
            StoreInUseError: a scheduler has the store, or somebody else upgrades it; nothing was changed.
            StoreError: it cannot be done; saying why.
        """
        from procsched.stores import migrating

        with self._lock, self._database.speaking(), self._claim.alone():
            engine = self._database.engine()
            try:
                with engine.connect() as connection:
                    with connection.begin():
                        revision = migrating.revision_of(connection)
                    migrating.refuse_newer(revision, self._database.url)
                    if revision != migrating.newest():
                        self._migrate(connection, revision, asked=True)
            finally:
                engine.dispose()
        return revision, migrating.newest()

    # --- opening and closing ---------------------------------------------------------------------------

    def begin_use(self, user: object) -> None:
        """Hear who is about to open the store, until it is closed. The claim to it is this object's, whoever uses that.

        Args:
            user: of which no more is kept than that; one that is gone without a word is forgotten.
        Raises:
            StoreInUseError: another one has it; two would run every task twice.
        """
        with self._using:
            if self.is_anothers(user):
                raise holder.in_use(self._database.url, holder.this_process())
            self._user = weakref.ref(user)
            self._claim.may_wait()

    def is_anothers(self, user: object) -> bool:
        """Return whether another user than this one has the store open, or is about to. Takes no lock."""
        found = self._user
        other = None if found is None else found()
        return other is not None and other is not user

    def open(self, now: Callable[[], float] = time.time) -> Loaded:
        """Take the store to schedule from it, and return what it holds.

        Args:
            now: gives UNIX seconds by the scheduler's clock.
        Raises:
            StoreError: it cannot be used; saying why.
        """
        try:
            with self._lock, self._database.speaking():
                if self._engine is None:
                    self._engine = self._database.engine()  # this refuses a file that must not be used
            with self._database.speaking():
                self._claim.take(self._standby)  # with no lock of ours: it may wait for long
            with self._lock, self._database.speaking():
                self._now = now
                connection = self._connected()
                self._claim.hold()
                with connection.begin(), self._reading():
                    former = self._take(connection)
                    return self._load(connection, former, self._note_file(connection))
        except BaseException:
            with self._lock:
                self._drop_connection()
                self._user = None
                self._epoch = 0
                self._file = None
                self._claim.release()
            raise

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn what comes of rows that nobody of ours has written so into a `StoreError`."""
        try:
            yield
        except ProcschedError:
            raise
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            text = f"{self._database.url} holds what procsched has not written so, and cannot read"
            raise StoreError(f"{text}: {type(error).__name__}: {error}") from error

    def _take(self, connection: Connection) -> dict[str, Any] | None:
        """Become the owner. Return the row of the one before."""
        from procsched import __version__

        assert self._statements is not None
        found = connection.execute(self._statements.owner).mappings().first()
        former = None if found is None else dict(found)
        if self.visiting:
            self._visited = former
            closed = None if former is None else former["closed_at"]
            self._alive_at = 0.0 if former is None else former["seen_at"] if closed is None else closed
            # Where the clock was set back since, what is loaded now is written by the new time (`restoring.py`).
            self._alive_at = min(self._alive_at, self._now())
        self._forget_what_others_change(connection)
        epoch = 1 if former is None else former["epoch"] + 1
        now = self._now()
        pid = os.getpid()
        row = {
            "id": 1,
            "epoch": epoch,
            "host": _identity.host_name(),
            "pid": pid,
            "boot_id": _identity.boot_id(),
            "process_started": _identity.started_at(pid),
            "version": __version__,
            "opened_at": now,
            "seen_at": self._seen(now),
            "closed_at": None,
        }
        connection.execute(self._statements.become_owner, row)
        self._epoch = epoch
        return former

    def _forget_what_others_change(self, connection: Connection) -> None:
        """Do so in a transaction with which the store is ours, after it may have been anybody's."""
        assert self._statements is not None
        self._payloads.clear()
        self._next_seq = 1 + (connection.execute(self._statements.last_seq).scalar() or 0)
        found = connection.execute(self._statements.highest_ids)
        self._ids = {key.partition(":")[2]: int(value) for key, value in found}

    def _note_file(self, connection: Connection) -> bool:
        """Write down which file this is. Return whether it is a copy of the one that the former owner had."""
        assert self._statements is not None
        identity = self._database.file_identity()
        if identity is None:
            return False
        found, now = connection.execute(self._statements.file).scalar(), "{}:{}".format(*identity)
        if found != now:
            self._statements.note_meta.run(connection, [{"key": "file", "value": now}])
        return found != now

    def _load(self, connection: Connection, former: dict[str, Any] | None, copied: bool) -> Loaded:
        from procsched.stores.reading import load_tasks

        assert self._statements is not None
        tasks, underway, finished = load_tasks(connection)
        if self._keep_count is not None:
            # Those that may have too many are looked at with their next record, and not after so many of this life.
            self._new_records = {
                each.handle.task.id: CHECK_EVERY
                for each in tasks
                if each.run * each.handle.task.retry.max_attempts > self._keep_count
            }
        known = [f"{prefix}-{number}" for prefix, number in self._ids.items()]
        if former is None:
            return Loaded(tasks, underway, finished, known_ids=known)
        closed = former["closed_at"]
        same_boot = former["boot_id"] == _identity.boot_id() != ""
        if copied and not holder.is_gone(former):
            same_boot = False  # it goes on with the file that was copied, and these are its runs
        return Loaded(
            tasks,
            underway,
            finished,
            closed if closed is not None else former["seen_at"],
            f"the scheduler (pid {former['pid']} on {former['host']}) ended while this ran",
            same_boot,
            known,
        )

    def close(self) -> None:
        """Let go of the store; say that this was in order. `history` may still be asked, and it may be opened again."""
        with self._lock:
            try:
                if self._epoch and self._connection is not None and self._statements is not None:
                    now = self._seen(self._now())
                    with self._database.speaking(), self._connection.begin():
                        self._connection.execute(self._statements.leave, {"mine": self._epoch, "now": now})
                        if self._visited is not None:  # the last scheduler is the one that came before us
                            names = self._statements.named_owner
                            former = {f"former_{name}": self._visited[name] for name in names}
                            self._connection.execute(
                                self._statements.leave_to, {"mine": self._epoch, **former}
                            )
            finally:
                self._user = None
                self._epoch = 0
                self._file = None
                self._now = time.time  # who asks for records later holds no scheduler that is gone
                connection, self._connection = self._connection, None
                try:
                    if connection is not None:
                        connection.close()
                finally:
                    self._claim.release()

    def serve(
        self,
        obey: Callable[[Any, str], dict[str, Any]],
        lost: Callable[[str], None],
        regained: Callable[[], None],
    ) -> None:
        """Have requests of other processes answered, now that the store is open.

        Args:
            obey: called with a request, plain data of whatever form, and who asks; returns the answer. In any thread.
            lost: called once, with the reason, when the store is another scheduler's, or may be in a moment.
            regained: called when `may_start` says so again, after a while in which it did not.
        """
        self._claim.serve(obey, lost, regained)

    def stop_waiting(self) -> None:
        """End an `open` that stands by; it raises a SchedulerStateError."""
        self._claim.stop_waiting()

    def may_start(self) -> bool:
        """Return whether the store is ours for certain, so that a run may begin. Cheap, and takes no lock."""
        return self._claim.may_start()

    def visit(self) -> None:
        """Open it as somebody who only changes something, and starts no run: that is not the end of being down."""
        self.visiting = True
        self._claim.visiting = True

    def _seen(self, now: float) -> float:
        return now if self._alive_at is None else self._alive_at

    # --- writing ---------------------------------------------------------------------------------------

    def write(self, changes: Sequence[Change]) -> None:
        """Write all changes, or none. Repeating it does no harm.

        Raises:
            StoreError: it was not written, or nobody knows whether it was.
        """
        if self._epoch:
            self._write_all(changes)
        else:
            with self._lock, self._database.speaking(), self._claim.briefly():
                self._write_all(changes)

    def _write_all(self, changes: Sequence[Change]) -> None:
        with self._lock, self._database.speaking():
            self._require_file()
            try:
                connection = self._connected()
                self._new_ids, self._new_payloads = {}, set()
                with connection.begin():
                    self._write(connection, changes)
                self._ids |= self._new_ids
                if len(self._payloads) >= KNOWN_PAYLOADS:
                    self._payloads.clear()
                self._payloads |= self._new_payloads
            except BaseException:
                # Whatever state the transaction is in, a new connection has none of it.
                self._drop_connection()
                raise

    def _write(self, connection: Connection, changes: Sequence[Change]) -> None:
        statements = self._statements
        assert statements is not None
        now = self._now()
        self._require_epoch(connection)
        newest: dict[str, Change] = {}
        new: dict[str, Change] = {}
        deleted: list[str] = []
        records = []
        for change in changes:
            task_id = change.task_id
            if change.snapshot is None:
                deleted.append(task_id)
                new.pop(task_id, None)
            elif change.call is not None:
                new[task_id] = change
            newest[task_id] = change
            if change.record is not None:
                records.append(self._record_row(change.record))
        if deleted:
            statements.delete_task.run(connection, [{"the_id": task_id} for task_id in deleted])
            self._orphans = True
        inserts, updates = [], []
        for task_id, change in newest.items():
            if change.snapshot is None:
                continue
            first = new.get(task_id)
            if first is not None:
                inserts.append(self._new_row(connection, change, first, now))
            else:
                updates.append(self._task_row(change, now))
        if inserts:
            statements.insert_task.run(connection, inserts)
            self._note_ids(connection, [row["id"] for row in inserts])
        if updates:
            statements.update_task.run(connection, updates)
        if records:
            statements.insert_run.run(connection, records)
            self._count(records)
        for task_id in deleted:
            self._new_records.pop(task_id, None)

    def _require_epoch(self, connection: Connection) -> None:
        """Note in a transaction that we are alive, unless a later owner has been there."""
        if not self._epoch:
            self._claim.guard(connection)
            self._forget_what_others_change(connection)
            return
        assert self._statements is not None
        mine = {"mine": self._epoch, "now": self._seen(self._now())}
        if self._statements.still_owner.run(connection, [mine]) != 1:
            text = (
                f"{self._database.url} was taken over by another scheduler: this one may write nothing more"
            )
            self._claim.lose(text)
            raise StoreInUseError(text)

    def _task_row(self, change: Change, now: float) -> dict[str, Any]:
        task, position = change.snapshot, change.position
        assert task is not None
        if position is None:
            position = codec.default_position(task)
        row = codec.task_row(task, position)
        pid = _pid_of(position.call) if position.live and position.started_at is not None else None
        row["pid"] = pid
        row["process_started"] = None if pid is None else _identity.started_at(pid)
        row["updated_at"] = now
        row["epoch"] = self._epoch
        row["the_id"] = change.task_id
        return row

    def _new_row(self, connection: Connection, change: Change, first: Change, now: float) -> dict[str, Any]:
        """Return the whole row of a task, and see to it that what it runs is there.

        Args:
            first: the change with which it came; `change` is the newest.
        """
        from procsched import __version__

        statements, call = self._statements, first.call
        assert statements is not None
        assert call is not None
        digest = call.digest
        if digest not in self._payloads and digest not in self._new_payloads:
            payload = {
                "id": digest,
                "kind": call.kind,
                "name": call.name,
                "form": call.form,
                "python": call.python,
                "pickler": call.pickler,
                "procsched": __version__,
                "data": call.data,
                "created_at": now,
            }
            statements.insert_payload.run(connection, [payload])
            self._new_payloads.add(digest)
        row = self._task_row(change, now)
        row["id"] = row.pop("the_id")
        snapshot = change.snapshot
        assert snapshot is not None
        task = snapshot.task
        row |= {
            "seq": self._next_seq,
            "name": task.name,
            "key": task.key,
            "action": call.describe(),
            "payload_id": digest,
            "schedule": first.schedule or codec.schedule_text(snapshot.schedule),
            "settings": codec.settings_text(task),
            "created_at": now,
        }
        self._next_seq += 1
        return row

    def _note_ids(self, connection: Connection, task_ids: list[str]) -> None:
        """Keep the highest number of each prefix: it is not given again when its task and its records are gone."""
        assert self._statements is not None
        higher = self._new_ids
        for task_id in task_ids:
            prefix, _hyphen, digits = task_id.rpartition("-")
            if prefix and digits.isascii() and digits.isdigit() and len(digits) <= LONGEST_NUMBER:
                number = int(digits)
                if number > max(self._ids.get(prefix, 0), higher.get(prefix, 0)):
                    higher[prefix] = number
        rows = [{"key": f"highest id:{prefix}", "value": str(number)} for prefix, number in higher.items()]
        if rows:
            self._statements.note_meta.run(connection, rows)

    def _record_row(self, record: ExecutionRecord) -> dict[str, Any]:
        result = None
        if self._keep_results:
            sealed = type(record).result.slot.__get__(record)
            if type(sealed) is Sealed and isinstance(sealed.data, (bytes, bytearray, memoryview)):
                result = bytes(sealed.data)
        row = codec.record_row(record, result)
        row["epoch"] = self._epoch
        return row

    # --- retention -------------------------------------------------------------------------------------

    def _count(self, records: list[dict[str, Any]]) -> None:
        if self._keep_count is None:
            return
        counts = self._new_records
        for row in records:
            task_id = row["task_id"]
            count = counts[task_id] = counts.get(task_id, 0) + 1
            if count >= min(CHECK_EVERY, self._keep_count):
                counts[task_id] = 0
                self._to_prune.append(task_id)

    def prune(self) -> bool:
        """Delete a few records that are too old or too many, or payloads of nobody. Return whether there may be more.

        The last record of a task stays as long as the task does.
        """
        with self._lock, self._database.speaking():
            if self._connection is None or self._statements is None:
                return False
            self._require_file()
            statements, now = self._statements, self._now()
            if self._to_prune:
                task_id = self._to_prune[-1]
                deleted = self._bite(
                    statements.prune_count, {"task_id": task_id, "keep": self._keep_count, "bite": BITE}
                )
                if deleted < BITE:
                    self._to_prune.pop()
                return True
            # Also where the clock was set back since: it may have been years ahead.
            if self._keep_seconds is not None and abs(now - self._looked_at_age) > AGE_CHECK_SECONDS:
                deleted = self._bite(statements.prune_age, {"before": now - self._keep_seconds, "bite": BITE})
                if deleted == BITE:
                    return True
                self._looked_at_age = now
            if self._orphans:
                self._payloads.clear()
                deleted = self._bite(statements.prune_payloads, {"bite": BITE})
                self._orphans = deleted == BITE
                return self._orphans
            return False

    def _bite(self, statement: Any, values: dict[str, Any]) -> int:
        assert self._connection is not None
        try:
            with self._connection.begin():
                self._require_epoch(self._connection)
                return int(self._connection.execute(statement, values).rowcount)
        except BaseException:
            self._drop_connection()
            raise

    # --- reading ---------------------------------------------------------------------------------------

    def history(
        self,
        task_id: str | None = None,
        outcome: Outcome | None = None,
        since: float | None = None,
        limit: int = 100,
    ) -> list[ExecutionRecord]:
        """Return records, the newest first. Needs no ownership: any process may ask at any time.

        Args:
            task_id: of this task only.
            outcome: with this outcome only.
            since: UNIX seconds; ended then or later.
            limit: at most so many.
        Raises:
            StoreError: the database cannot be read.
        """
        from procsched.stores.reading import select_history

        if task_id is not None and codec.writable(task_id) != task_id:
            return []  # nothing can be kept under that name
        statement = select_history(task_id, outcome, since, min(limit, MOST_ROWS))
        with self._database.speaking(), self._database.reader() as connection, connection.begin():
            with self._reading():
                return [codec.read_record(dict(row)) for row in connection.execute(statement).mappings()]

    # --- as a plain TaskStore --------------------------------------------------------------------------

    def save(self, task: ScheduledTask) -> None:
        """Write the task; a record that is new in its history as well."""
        self.commit([(task, task.last_run())])

    def commit(self, changes: Sequence[tuple[ScheduledTask, ExecutionRecord | None]]) -> None:
        """Write the changes, in their order, all or none."""
        self.write(
            [Change(task.task.id, task, record, None, _call_of(task.task)) for task, record in changes]
        )

    def delete(self, task_id: str) -> None:
        """Forget the task; one that is not there is no error. Its records stay."""
        self.write([Change(task_id, None)])

    def load_all(self) -> list[ScheduledTask]:
        """Return every task that is kept, in order of registration, each with its newest record."""
        from procsched.stores.reading import load_tasks

        with self._database.speaking(), self._database.reader() as connection, connection.begin():
            with self._reading():
                tasks, _underway, _finished = load_tasks(connection, with_records=True)
            return [each.handle for each in tasks]


def _call_of(task: Task) -> StoredCall:
    action: Any = task.action
    if isinstance(action, StoredAction):
        return action.call
    if callable(action):
        return store_call(action, task.args, dict(task.kwargs or {}))
    return StoredCall("reference", str(action), "json", b"[[],{}]")


def _pid_of(call: Any) -> int | None:
    """Return the process in which an attempt runs; None where there is none (yet), or not any more."""
    worker = getattr(call, "worker", None)
    pid = getattr(worker, "pid", None)
    return pid if type(pid) is int else None
