"""Where stores are in this process, and where its sandboxed jobs may write: the two must not be one place.

What a durable store holds is run as code, and by its socket a scheduler is steered: who can write there can run what it
likes. Both sides note what they have, and look at what the other has noted. Thread safety: single operations, atomic.
"""

from __future__ import annotations

import os
import stat
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final

CONTROL: Final = "-control"  # the end of the name of the socket beside a SQLite store
_MOST_LOOKED_AT: Final = 10_000  # entries of a directory

_Noted = dict[int, tuple["weakref.ref[Any]", tuple[str, ...]]]
_stores: _Noted = {}
_writable: _Noted = {}


def note_store(owner: object, path: str) -> None:
    """There is a store of this name as long as its owner lives; where that is a link, the store is elsewhere too."""
    _note(_stores, owner, tuple({os.path.dirname(path), os.path.dirname(os.path.realpath(path))}))


def note_writable(owner: object, paths: Iterable[str]) -> None:
    """Sandboxed jobs of a pool may write below these paths, until `forget` or the end of the owner."""
    _note(_writable, owner, tuple(paths))


def forget_writable(owner: object) -> None:
    """They may no more."""
    _writable.pop(id(owner), None)


def store_near(path: str) -> str | None:
    """Return the directory of a store of this process that a path is in or holds, or the socket of a store there."""
    return _near(_stores, path) or _socket_in(path)


def writable_near(directory: str) -> str | None:
    """Return where sandboxed jobs may write that a directory is in, or holds."""
    return _near(_writable, directory)


def overlap(one: str, other: str) -> bool:
    """Return whether two paths lead to one place, or one to something below the other."""
    short, long = sorted((os.path.realpath(one), os.path.realpath(other)), key=len)
    return short == long or long.startswith(short.rstrip("/") + "/")


def _note(where: _Noted, owner: object, paths: tuple[str, ...]) -> None:
    number = id(owner)
    where[number] = (weakref.ref(owner, lambda _ref: where.pop(number, None)), paths)


def _near(where: _Noted, path: str) -> str | None:
    for _owner, paths in tuple(where.values()):
        for each in paths:
            if overlap(each, path):
                return each
    return None


def _socket_in(directory: str) -> str | None:
    """Return the socket of a store, of whatever process, that is an entry of a directory.

    Its scheduler lives, or died by force. Files are not looked into: to close one again would give up the locks that
    SQLite has on it in this process (fcntl(2)).
    """
    try:
        with os.scandir(directory) as entries:
            for _, entry in zip(range(_MOST_LOOKED_AT), entries, strict=False):
                if entry.name.endswith(CONTROL) and stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode):
                    return entry.path
    except OSError:  # who may not look there cannot know
        return None
    return None
