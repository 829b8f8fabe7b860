"""Bringing a store's schema up to date. Alembic is imported where there is something to migrate, and not before."""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy import inspect, text

from procsched.errors import StoreError
from procsched.stores import files, schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).parent / "migrations"
# Directories of further revisions, with the newest in each: for tests of what is to come.
more_versions: dict[str, str] = {}


def revision_of(connection: Connection) -> str | None:
    """Return the revision that a database has; None for one that has no tables of ours.

    Raises:
        StoreError: it has other tables with our names.
    """
    names = set(inspect(connection).get_table_names())
    if schema.VERSION_TABLE not in names:
        foreign = sorted(names & set(schema.metadata.tables))
        if foreign:
            raise StoreError(
                f"the database has tables that are not procsched's and have the names of ours: {', '.join(foreign)}; "
                "give procsched a database, or a schema, of its own"
            )
        return None
    found = connection.execute(text(f"SELECT version_num FROM {schema.VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def newest() -> str:
    """Return the revision that this version of procsched works with."""
    return max([schema.SCHEMA, *more_versions.values()])


def is_newer(revision: str) -> bool:
    """Return whether a revision is of a later version of procsched. They are numbered in order."""
    return revision > newest()


def refuse_newer(revision: str | None, url: str) -> None:
    """Refuse a store that this version of procsched does not know.

    Raises:
        StoreError: naming the versions.
    """
    if revision is not None and is_newer(revision):
        raise StoreError(
            f"{url} was written by a later version of procsched (schema {revision}, this version knows {newest()}): "
            "upgrade procsched; nothing was changed"
        )


def copy_file(connection: Connection, path: Path, revision: str) -> Path:
    """Copy a SQLite store, as it is, to a file beside it, before its tables are changed. Return its path."""
    import sqlite3

    target = path.with_name(f"{path.name}.schema-{revision}")
    files.make(target, os.O_TRUNC)
    copy = sqlite3.connect(target)
    try:
        source: Any = connection.connection.driver_connection
        source.backup(copy)
    finally:
        copy.close()
    return target


def upgrade(connection: Connection) -> None:
    """Migrate to the newest revision, in the transaction of the caller.

    Raises:
        StoreError: the extra `sql` is not installed whole.
    """
    try:
        from alembic import command
        from alembic.config import Config
    except ImportError as error:
        raise StoreError(
            "making or upgrading the tables of a store needs alembic: pip install 'procsched[sql]'"
        ) from error
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    locations = [str(MIGRATIONS / "versions"), *more_versions]
    config.set_main_option("version_locations", "\n".join(locations).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
