"""A statement that is made into text once, and goes to the driver from then on. Imports SQLAlchemy.

What SQLAlchemy does at each execution costs five times what SQLite does, with the interpreter's lock held that
who starts runs waits for. The text, with its casts, is the one that SQLAlchemy would send.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from sqlalchemy import Connection, Dialect
    from sqlalchemy.sql.expression import UpdateBase


class Prepared:
    """A statement that changes something, for one kind of database.

    Args:
        statement: with `names` as its only parameters.
        dialect: of the database.
        names: of the columns, or parameters, that each row gives.
    """

    __slots__ = ("_names", "_text")

    def __init__(self, statement: UpdateBase, dialect: Dialect, names: Sequence[str]) -> None:
        compiled: Any = statement.compile(dialect=dialect, column_keys=list(names))
        self._text = compiled.string
        # The order of the parameters; None for a driver that takes them by name.
        self._names: Sequence[str] | None = compiled.positiontup

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Execute it for each row, in the transaction that goes on. Return how many rows were changed in all.

        Raises:
            Exception: the driver's own.
        """
        driver: Any = connection.connection.driver_connection
        cursor = driver.cursor()
        try:
            names = self._names
            values: Any = rows if names is None else [tuple([row[name] for name in names]) for row in rows]
            if len(values) == 1:
                cursor.execute(self._text, values[0])
            else:
                cursor.executemany(self._text, values)
            return int(cursor.rowcount)
        finally:
            cursor.close()
