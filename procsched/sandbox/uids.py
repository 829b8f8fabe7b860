"""Uids for the sandboxed processes of a root parent: each to one process at a time, whoever else uses the range."""

from __future__ import annotations

import os
from collections import deque

from procsched.errors import ValidationError
from procsched.sandbox.promises import unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

# A byte of this file is locked for each uid in use, by its number; the locks end with the process that has them
# (fcntl(2), open file description locks). Root's alone.
LOCK_FILE: Final = "/run/procsched-uids.lock"
_LOCK = "=hh4xqqi4x"  # struct flock on 64 bits: type, whence, start, length, pid


class Leases:
    """The uids of one pool. On one thread at a time.

    Raises:
        SandboxUnavailableError: the range cannot be used.
    """

    def __init__(self, uids: range) -> None:
        _refuse_known(uids)
        try:
            self._fd = os.open(LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise unavailable(
                "",
                f"the uids in use cannot be noted in {LOCK_FILE}: {error}",
                "make /run writable for root",
            ) from None
        self._free = deque(uids)

    def take(self) -> int | None:
        """Return a uid that nobody has, None where there is none now."""
        for _ in range(len(self._free)):
            uid = self._free.popleft()
            if self._lock(uid, take=True):
                return uid
            self._free.append(uid)
        return None

    def give_back(self, uid: int) -> None:
        """Its process is gone. It is taken again when all others were."""
        self._lock(uid, take=False)
        self._free.append(uid)

    def close(self) -> None:
        """Let go of all."""
        os.close(self._fd)

    def _lock(self, uid: int, *, take: bool) -> bool:
        import fcntl
        from _struct import pack

        kind = fcntl.F_WRLCK if take else fcntl.F_UNLCK
        try:
            fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, pack(_LOCK, kind, os.SEEK_SET, uid, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True


def _refuse_known(uids: range) -> None:
    """Refuse uids that belong to somebody: whatever runs under them would be ended. And gids, with what they may do."""
    import grp
    import pwd

    for user in pwd.getpwall():
        if user.pw_uid in uids:
            raise ValidationError(
                f"run_as has uid {user.pw_uid}, which is that of {user.pw_name!r}: give a range that belongs to nobody"
            )
    for group in grp.getgrall():
        if group.gr_gid in uids:
            raise ValidationError(
                f"run_as has gid {group.gr_gid}, which is that of the group {group.gr_name!r}, and jobs get the gids "
                "of the same numbers: give a range that belongs to nobody"
            )
    for name in ("/etc/subuid", "/etc/subgid"):
        for owner, first, count in _delegated(name):
            if first < uids.stop and uids.start < first + count:
                raise ValidationError(
                    f"run_as overlaps the uids from {first} to {first + count - 1}, which {name} gives to {owner!r} "
                    "for containers: give a range that belongs to nobody"
                )


def _delegated(name: str) -> list[tuple[str, int, int]]:
    """Return owner, first and number of the ranges in a file such as /etc/subuid."""
    try:
        with open(name, encoding="utf-8", errors="replace") as file:
            fields = [line.strip().split(":") for line in file]
    except OSError:
        return []
    return [
        (each[0], int(each[1]), int(each[2]))
        for each in fields
        if len(each) == 3 and all(map(str.isdecimal, each[1:]))
    ]
