"""What a person can do about an error of the system's, SQLite's or PostgreSQL's under a store. Pure but for the uid."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_RIGHTS: Final = (
    "let {user} write the file and its directory, where SQLite puts others beside it (chown, chmod)"
)
_SPACE: Final = "free some space there"
_SYSTEM: Final = {
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.EROFS: "mount it for writing, or put the store elsewhere",
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: f"{_SPACE}, or raise the quota",
    errno.ENOENT: "make the directory first",
    errno.ENOTDIR: "give the path of a file in a directory",
    errno.ENOLCK: "its file system has no locks: put it on a local disk, or use PostgreSQL",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "give a path that is no symbolic link",
}
# By the primary result code, https://www.sqlite.org/rescode.html.
_SQLITE: Final = {
    5: "another process has a transaction open on it, a backup or a sqlite3 shell, say: let that end",  # BUSY
    8: _RIGHTS,  # READONLY
    10: "look at the disk: it could not be read or written",  # IOERR
    11: "the file is damaged: restore a copy, and look at the disk",  # CORRUPT
    13: _SPACE,  # FULL
    14: _RIGHTS,  # CANTOPEN
    26: "the file is something else: give another path",  # NOTADB
}
# By the beginning of SQLSTATE, PostgreSQL's appendix A.
_POSTGRESQL: Final = {
    "08": "see whether the server runs and can be reached",
    "25006": "connect to the primary: this server only reads",
    "28": "see the user and the password in the URL",
    "3D": "make the database first (createdb)",
    "42501": "GRANT this user CREATE on the schema, and everything on the tables of the store",
    "53100": _SPACE,
    "53300": "raise max_connections, or let others end: a scheduler needs three",
    "57P": "wait until the server is up again",
}


def of_system(error: OSError) -> str:
    """Return what an error of the system says, and what to do about it, if that is known."""
    return _joined(error.strerror or str(error), _SYSTEM.get(error.errno or 0))


def of_database(text: str, error: BaseException) -> str:
    """Return `text`, which tells of an error of sqlite3's or psycopg's, and what to do about it, if that is known."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(code, int):
        return _joined(text, _SQLITE.get(code & 0xFF))
    state = getattr(error, "sqlstate", None)
    if isinstance(state, str):
        return _joined(text, next((_POSTGRESQL[key] for key in _POSTGRESQL if state.startswith(key)), None))
    return text


def _joined(text: str, remedy: str | None) -> str:
    return text if remedy is None else f"{text}; {remedy.format(user=_user())}"


def _user() -> str:
    return f"user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"
