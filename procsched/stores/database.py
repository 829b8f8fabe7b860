"""Connections to the database of a store: SQLite's one for writing, PostgreSQL's, and those that only read.

SQLite is used so that nothing that was acknowledged can be lost: a write-ahead log, synced at each commit. Exactly one
connection writes and checkpoints: versions before 3.51.3 can corrupt the file when two do (sqlite.org/wal.html).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

from procsched.errors import StoreError, ValidationError
from procsched.stores import files, remedies
from procsched.stores.codec import writable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Final

    from sqlalchemy import Connection, Engine

BUSY_SECONDS: Final = 5.0  # for which a writer waits for another process's transaction on the file
CONNECT_SECONDS: Final = 10
STATEMENT_SECONDS: Final = 60  # PostgreSQL; a statement that takes longer has failed, and is tried again
DEAD_LINK_SECONDS: Final = 30  # after which a connection whose other end is silent has failed
LOG_BYTES: Final = 64 << 20  # to which SQLite cuts its write-ahead log after a checkpoint


class Database:
    """A database by its URL. What it raises is a `StoreError`, and never holds the password.

    Attributes:
        url: without password and options, for people.
        path: of the file, for SQLite; None for PostgreSQL.
    Thread safety: `engine` and `reading` from anywhere; a connection belongs to one thread at a time.
    """

    def __init__(self, url: object, allow_shared_file: bool) -> None:
        if not isinstance(url, str):
            raise ValidationError(f"url must be a text such as 'sqlite:///jobs.db', not {type(url).__name__}")
        if writable(url) != url:
            raise ValidationError("url must be a text in UTF-8, and without zero characters")
        try:
            import sqlalchemy
        except ImportError as error:
            raise StoreError("SqlTaskStore needs SQLAlchemy: pip install 'procsched[sql]'") from error
        try:
            self._parsed = sqlalchemy.make_url(url)
        except sqlalchemy.exc.ArgumentError:
            # Without the text: it may hold a password.
            raise ValidationError(
                "url must be a database URL such as 'sqlite:///jobs.db' or 'postgresql+psycopg://user@host/name'"
            ) from None
        self._secrets = [
            secret for secret in (self._parsed.password, self._parsed.query.get("password")) if secret
        ]
        bare = self._parsed._replace(query={}, password=None)  # type: ignore[arg-type]
        self.url = bare.render_as_string()
        self.path = self._checked_path(allow_shared_file)
        self._allow_shared_file = allow_shared_file
        self._readers: Engine | None = None

    def _checked_path(self, allow_shared_file: bool) -> Path | None:
        driver = self._parsed.drivername
        if driver in ("sqlite", "sqlite+pysqlite"):
            name = self._parsed.database
            if not name or name == ":memory:" or name.startswith("file:"):
                raise ValidationError(
                    f"url must name a file, as 'sqlite:///jobs.db' does, not {self.url!r}: "
                    "for a store in memory leave store= out"
                )
            if self._parsed.host is not None:  # a directory, mostly, of which nobody would hear any more
                raise ValidationError(
                    f"url must have three slashes before a path, and four before one that begins with a slash, as "
                    f"'sqlite:///jobs.db' does, not {self.url!r}"
                )
            if self._parsed.query:
                options = ", ".join(self._parsed.query)
                raise ValidationError(f"url must have no options for a SQLite file, and has {options}")
            return Path(name).absolute()  # the working directory may change
        if driver not in ("postgresql", "postgresql+psycopg"):
            raise ValidationError(
                f"url must begin with sqlite:/// or postgresql+psycopg://, not with {driver}: there are no other stores"
            )
        try:
            import psycopg  # noqa: F401
        except ImportError as error:
            raise StoreError(
                "a store on PostgreSQL needs psycopg: pip install 'procsched[postgres]'"
            ) from error
        return None

    def after_fork(self) -> None:
        """In a fork of the process: another thread may have been in the midst of what makes connections."""
        self._readers = None

    @property
    def is_sqlite(self) -> bool:
        """Whether it is a file of this machine."""
        return self.path is not None

    def engine(self) -> Engine:
        """Return an engine whose connections write. The file is made, or looked at, first.

        Raises:
            StoreError: the file must not be used.
        """
        if self.path is not None:
            files.prepare(self.path, self._allow_shared_file)
        return self._make_engine(read_only=False)

    def _make_engine(self, read_only: bool, **more: Any) -> Engine:
        import sqlalchemy
        from sqlalchemy.pool import NullPool

        options: dict[str, Any] = {"hide_parameters": True, "poolclass": NullPool}
        if self.path is None:
            parsed = self._parsed.set(drivername="postgresql+psycopg")
            ours = {
                "application_name": "procsched",
                "connect_timeout": CONNECT_SECONDS,
                "keepalives_idle": DEAD_LINK_SECONDS,
                "tcp_user_timeout": DEAD_LINK_SECONDS * 1000,
                **more,
            }
            # What the URL says counts. It is SQLAlchemy that makes one list of several hosts in it.
            ours = {name: value for name, value in ours.items() if name not in parsed.query}
            engine = sqlalchemy.create_engine(parsed, connect_args=ours, **options)
        else:
            engine = sqlalchemy.create_engine(
                "sqlite://", creator=self._opener(self.path, read_only), **options
            )
        if not self.is_sqlite:
            sqlalchemy.event.listen(engine, "connect", _on_postgresql)
        else:
            begin = "BEGIN" if read_only else "BEGIN IMMEDIATE"
            if not read_only:
                sqlalchemy.event.listen(engine, "connect", _on_sqlite)

            def on_begin(connection: Connection) -> None:
                driver: Any = connection.connection.driver_connection
                driver.execute(begin)  # not by way of SQLAlchemy, which takes three times as long for it

            sqlalchemy.event.listen(engine, "begin", on_begin)
        return engine

    @staticmethod
    def _opener(path: Path, read_only: bool) -> Any:
        import sqlite3
        from urllib.parse import quote

        uri = f"file:{quote(os.fsencode(path))}?mode={'ro' if read_only else 'rw'}"

        def open_file() -> sqlite3.Connection:
            if not read_only:
                files.mend_companions(path)
            # Used by one thread after another. With an isolation level of Python's own a transaction would begin as
            # one that reads, and fail at once where another process writes, whatever the busy timeout.
            return sqlite3.connect(
                uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )

        return open_file

    def file_identity(self) -> tuple[int, int] | None:
        """Return what tells the SQLite file that is there now from any other; None where there is none."""
        if self.path is None:
            return None
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def reader(self) -> Connection:
        """Return a connection that only reads. Close it after use."""
        if self.path is not None:
            self._require_file(self.path)
        if self._readers is None:
            self._readers = self._make_engine(read_only=True)
        return self._readers.connect()

    @staticmethod
    def _require_file(path: Path) -> None:
        try:
            mode = path.stat().st_mode
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                text = f"there is no store {path}: see the path; a scheduler makes it when it is started"
                raise StoreError(text) from None
            raise StoreError(f"the store {path} cannot be opened: {remedies.of_system(error)}") from None
        if not stat.S_ISREG(mode):  # to open a pipe would be to wait for somebody at its other end
            raise StoreError(f"the store {path} is no regular file")

    def session(self, options: dict[str, Any]) -> Any:
        """Return a connection of psycopg's own to PostgreSQL, in autocommit and without limits for statements.

        Args:
            options: of libpq, in the place of ours.
        Raises:
            sqlalchemy.exc.SQLAlchemyError: there is none.
        """
        engine = self._make_engine(read_only=False, **options)
        pooled = engine.raw_connection()
        connection: Any = pooled.driver_connection
        pooled.detach()
        connection.rollback()
        connection.autocommit = True
        # A standby's wait for the lock is to end with the owner only, whatever the server's settings are.
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET lock_timeout = 0")
        return connection

    @staticmethod
    def is_broken(error: Exception) -> bool:
        """Return whether an error tells of a connection to PostgreSQL that is lost, or cannot be made now."""
        import psycopg
        import sqlalchemy

        cause = getattr(error, "orig", None) or error
        return isinstance(error, sqlalchemy.exc.SQLAlchemyError | psycopg.Error) and isinstance(
            cause, psycopg.OperationalError | psycopg.InterfaceError
        )

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Turn what the database, or the file system, raises in the block into a `StoreError` without secrets."""
        import sqlalchemy

        driver: Any
        if self.is_sqlite:
            import sqlite3 as driver
        else:
            import psycopg as driver
        errors: tuple[type[Exception], ...] = (sqlalchemy.exc.SQLAlchemyError, driver.Error)
        try:
            yield
        except errors as error:
            cause = getattr(error, "orig", None) or error
            # Not `from error`: its text, which a log would show, may hold what was to be written.
            text = f"{self.url}: {type(cause).__name__}: {self.scrubbed(str(cause))}"
            raise StoreError(remedies.of_database(text, cause)) from None
        except OSError as error:
            raise StoreError(f"{self.url}: {remedies.of_system(error)}") from error

    def scrubbed(self, text: str) -> str:
        """Return a text of the database's without the password."""
        for secret in self._secrets:
            text = text.replace(str(secret), "***")
        return text.strip()


def leave_to_parent(connection: Any) -> None:
    """In a fork of the process: close a socket of psycopg's here, so that the session ends when the parent does.

    Not by `close`, which would tell the server; psycopg leaves it alone in another process than its own.
    """
    if not connection.closed:
        os.close(connection.fileno())


def _on_sqlite(connection: Any, _record: Any) -> None:
    for pragma in (
        "journal_mode = WAL",
        "synchronous = FULL",
        "fullfsync = ON",  # macOS, where a plain fsync does not reach the disk
        f"journal_size_limit = {LOG_BYTES}",
    ):
        connection.execute(f"PRAGMA {pragma}").close()


def _on_postgresql(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = '{STATEMENT_SECONDS}s'")
        cursor.execute("SET synchronous_commit = on")  # what is acknowledged is on the disk
    connection.commit()
