"""The file of a SQLite store: made so that nobody else can write it, and refused where that does not hold."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from procsched import _places
from procsched.errors import StoreError
from procsched.stores import remedies

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

PRIVATE: Final = 0o600
APPLICATION_ID: Final = 0x70736364  # "pscd", in the head of the file: file(1) and we can tell whose it is

# The index that SQLite's write-ahead log shares between processes is not coherent there, and files were corrupted also
# with a single writing process. Source: sqlite.org/wal.html; for virtiofs and NFS reports of corruption.
_NETWORK: Final = frozenset(
    {
        *(
            "nfs",
            "nfs4",
            "cifs",
            "smb3",
            "smbfs",
            "ncpfs",
            "afs",
            "9p",
            "virtiofs",
            "ceph",
            "glusterfs",
            "lustre",
        ),
        *("beegfs", "gfs2", "ocfs2", "orangefs", "gpfs", "vboxsf", "prl_fs", "vmhgfs"),
    }
)


def prepare(path: Path, allow_shared_file: bool) -> bool:
    """Make the file, empty and private, if it is not there. Return whether it was made.

    Args:
        allow_shared_file: let others write it.
    Raises:
        StoreError: it must not be used, or cannot be made; saying why.
    """
    real = Path(os.path.realpath(path))  # where SQLite puts its companions
    writable = _places.writable_near(str(path.parent)) or _places.writable_near(str(real.parent))
    if writable is not None:
        raise StoreError(
            f"the store {path} is beside, or within, {writable}, where sandboxed jobs of this process may write: what "
            "is stored is run as code; keep the store in a directory of its own, or name another one in writable="
        )
    kind = file_system_of(real.parent)
    if kind in _NETWORK or kind.startswith("fuse."):
        raise StoreError(
            f"{path} is on a file system of the kind {kind}, where SQLite files get corrupted: "
            "put it on a local disk, or use PostgreSQL"
        )
    is_there = False
    try:
        make(path, os.O_EXCL)
    except FileExistsError:
        is_there = True
    except OSError as error:
        raise StoreError(f"the store {path} cannot be made: {remedies.of_system(error)}") from error
    if is_there:  # here, so that a refusal does not seem to be about that
        _refuse_shared(path, allow_shared_file)
        return False
    if not allow_shared_file:
        _refuse_open_directories(path)
    return True


def make(path: Path, flags: int) -> None:
    """Make an empty file for this user alone.

    Args:
        flags: for `os.open`, beside those that this needs.
    Raises:
        OSError: it cannot be made.
    """
    flags |= os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    os.close(os.open(path, flags, PRIVATE))


def _refuse_shared(path: Path, allow_shared_file: bool) -> None:
    try:
        found = path.stat()
    except OSError as error:
        raise StoreError(f"the store {path} cannot be opened: {remedies.of_system(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"the store {path} is no regular file: give the path of one, or of none")
    if allow_shared_file or not hasattr(os, "geteuid"):
        return  # on Windows the mode says nothing of others
    remedy = "what is stored is run as code; if they may do that, give allow_shared_file=True"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StoreError(
            f"the store {path} may be written by others (mode {stat.S_IMODE(found.st_mode):o}): chmod 600 it; {remedy}"
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise StoreError(f"the store {path} belongs to another user (uid {found.st_uid}): chown it; {remedy}")
    _refuse_open_directories(path)


def _refuse_open_directories(path: Path) -> None:
    if not hasattr(os, "geteuid"):
        return  # as above
    for directory in {path.parent, Path(os.path.realpath(path)).parent}:
        mode = directory.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StoreError(
                f"anybody can put another file in the place of the store {path}, because all may write {directory}: "
                "chmod o-w it; what is stored is run as code; if they may do that, give allow_shared_file=True"
            )


def mend_companions(path: Path) -> None:
    """Let the files that SQLite keeps beside a store be written again, where the store itself may be.

    SQLite makes them with the mode that the store has at that moment. If that was a read-only one, they stay so, and
    with them the store, when it may be written again.
    """
    try:
        wanted = stat.S_IMODE(path.stat().st_mode)
        for ending in ("-wal", "-shm"):
            companion = f"{path}{ending}"
            with contextlib.suppress(FileNotFoundError):
                mode = os.lstat(companion).st_mode
                if stat.S_ISREG(mode) and wanted & ~mode & stat.S_IWUSR:
                    # By its name: to close a descriptor of it would give up SQLite's locks, fcntl(2).
                    os.chmod(companion, wanted)
    except OSError:
        return  # what is opened next says what is wrong


def file_system_of(directory: Path) -> str:
    """Return the kind of file system that a directory is on, in the kernel's words; "" where nobody can say.

    Raises:
        StoreError: there is no such directory.
    """
    try:
        device = os.stat(directory).st_dev
        place = os.path.realpath(directory)
    except OSError as error:
        raise StoreError(
            f"the directory {directory} of the store cannot be used: {remedies.of_system(error)}"
        ) from error
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    found, longest = "", -1
    for fields in mounts:
        point = _unescaped(fields[4])
        within = place == point or place.startswith(point.rstrip("/") + "/")
        # A subvolume of btrfs has a device of its own that the table does not know: then the longest path decides.
        rank = len(point) + (1 << 20) * (fields[2] == number)
        if within and rank > longest:
            found, longest = fields[fields.index("-") + 1], rank
    return found


def _unescaped(path: str) -> str:
    """Undo what proc(5) does to blanks and the like in a path."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path
