"""The kernel's calls with which a process confines itself, by way of libc. Linux on 64 bits only.

Everything here acts on the calling process, is called once, in the order that `inside.py` has, and raises OSError.
"""

from __future__ import annotations

import os
import sys

from procsched._libc import c_type, libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446  # the same on both machines
CLOSE_RANGE = 436
LAST_CAPABILITY: Final = 40
MS_REMOUNT, MS_NOSUID, MS_NODEV, MS_NOEXEC = 32, 2, 4, 8

# linux/landlock.h, LANDLOCK_ACCESS_FS_*
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_REMOVE, _MAKE_DIR, _MAKE_FILE, _REFER = 1 << 4 | 1 << 5, 1 << 7, 1 << 8, 1 << 13
_FILE_RIGHTS = 1 << 0 | _WRITE_FILE | _READ_FILE | _TRUNCATE | 1 << 15
READ: Final = _READ_FILE | _READ_DIR
# No sockets, pipes, devices or symbolic links: somebody else may open what is left there by its name.
WRITE: Final = READ | _WRITE_FILE | _TRUNCATE | _REMOVE | _MAKE_DIR | _MAKE_FILE | _REFER
DEVICE: Final = _READ_FILE | _WRITE_FILE
# Version of the interface -> rights that it knows.
_KNOWN: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_QUIET_ABI: Final = 7
_NO_LOG = 1  # LANDLOCK_RESTRICT_SELF_LOG_SAME_EXEC_OFF: or else a job could flood the audit log


# sys/resource.h, on both machines. The module `resource` is another library to load.
RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_CORE, RLIMIT_NPROC, RLIMIT_NOFILE = 0, 1, 4, 6, 7
RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_MSGQUEUE, RLIMIT_NICE, RLIMIT_RTPRIO = 8, 9, 12, 13, 14
AF_UNIX, AF_INET, SOCK_DGRAM, F_SETOWN = 1, 2, 2, 8


def syscall(number: int, *arguments: Any) -> int:
    """Make a system call; integers go as 64 bits, bytes as pointers to them."""
    long = c_type("l")
    made = [long(each) if isinstance(each, int) else each for each in arguments]
    function = libc().syscall
    function.restype = long
    answer = function(long(number), *made)
    return _checked(int(getattr(answer, "value", answer)))


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library that returns an int, -1 for an error."""
    return _checked(int(getattr(libc(), name)(*arguments)))


def _checked(result: int) -> int:
    if result == -1:
        import _ctypes

        code = _ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def set_limit(which: int, soft: int, hard: int | None = None) -> None:
    """Set a limit of this process (setrlimit(2)); without `hard` both to the same."""
    call("setrlimit", which, _word(soft) + _word(soft if hard is None else hard))


def see_limit(pid: int, which: int) -> None:
    """Ask for a limit of a process (prlimit(2)), for nothing but to see whether that is refused."""
    call("prlimit", pid, which, None, (c_type("c") * 16)())


def make_pair(family: int, kind: int) -> None:
    """Make a pair of sockets (socketpair(2)) and forget it."""
    call("socketpair", family, kind, 0, (c_type("c") * 8)())


def _word(value: int, size: int = 8) -> bytes:
    return value.to_bytes(size, sys.byteorder)


def prctl(option: int, argument: int) -> None:
    """Set an option of this process (the manual page of that name)."""
    call("prctl", *(c_type("L")(each) for each in (option, argument, 0, 0, 0)))


MACHINES: Final = ("x86_64", "aarch64")
_SECCOMP_NUMBERS: Final = {"x86_64": 317, "aarch64": 277}
_CAPSET_NUMBERS: Final = {"x86_64": 126, "aarch64": 91}
_MOUNT_NUMBERS: Final = {"x86_64": 165, "aarch64": 40}


def close_all_from(first: int) -> None:
    """Close every descriptor from this number on."""
    syscall(CLOSE_RANGE, first, 0x7FFFFFFF, 0)


def drop_capabilities() -> None:
    """Give up every capability, for good."""
    for number in range(LAST_CAPABILITY + 1):
        try:
            prctl(PR_CAPBSET_DROP, number)
        except PermissionError:
            break  # they were dropped, all of them: that right is one of them
        except OSError:  # one that this kernel does not know
            continue
    header = _word(0x20080522, 4) + bytes(4)  # _LINUX_CAPABILITY_VERSION_3, this process
    syscall(_CAPSET_NUMBERS[os.uname().machine], header, bytes(24))


def limit_scratch(path: str, size: int, files: int) -> None:
    """Limit a tmpfs of our own mount namespace in bytes and in files."""
    options = f"size={size},nr_inodes={files},mode=0700".encode()
    flags = MS_REMOUNT | MS_NOSUID | MS_NODEV | MS_NOEXEC
    syscall(_MOUNT_NUMBERS[os.uname().machine], b"tmpfs", path.encode(), b"tmpfs", flags, options)


def why_no_filters() -> str:
    """Return "" where seccomp filters can be set, else why not (seccomp(2), SECCOMP_GET_ACTION_AVAIL)."""
    try:
        syscall(_SECCOMP_NUMBERS[os.uname().machine], 2, 0, (0x80000000).to_bytes(4, "little"))
    except OSError as error:
        return str(error)
    return ""


def landlock_version() -> int:
    """Return the version of Landlock's interface, 0 where there is none."""
    try:
        return syscall(LANDLOCK_CREATE, None, 0, 1)
    except OSError:
        return 0


def landlock(version: int, rules: Iterable[tuple[str, int]]) -> list[str]:
    """Allow these paths with these rights and nothing else, no TCP, no signals and abstract sockets outwards.

    Returns:
        the paths that are not there.
    """
    known = _KNOWN[min(version, max(_KNOWN))]
    attribute = _word(known)
    if version >= 4:
        attribute += _word(3)  # bind and connect
    if version >= 6:
        attribute += _word(3)  # abstract sockets, signals
    ruleset = syscall(LANDLOCK_CREATE, attribute, len(attribute), 0)
    missing = []
    for path, rights in rules:
        try:
            # O_PATH follows the last link: what is named is what it leads to.
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            missing.append(path)
            continue
        try:
            if not _is_directory(fd):
                rights &= _FILE_RIGHTS
            syscall(LANDLOCK_ADD, ruleset, 1, _word(rights & known) + _word(fd, 4), 0)
        finally:
            os.close(fd)
    syscall(LANDLOCK_RESTRICT, ruleset, _NO_LOG if version >= _QUIET_ABI else 0)
    os.close(ruleset)
    return missing


def _is_directory(fd: int) -> bool:
    return os.fstat(fd).st_mode & 0o170000 == 0o040000


def seccomp(program: bytes) -> None:
    """Set a filter, for all threads."""
    import _ctypes

    count = len(program) // 8
    memory = c_type("c") * len(program)
    held = memory.from_buffer_copy(program)
    # struct sock_fprog: a length, and a pointer at the next multiple of eight.
    header = _word(count, 2) + bytes(6) + _word(_ctypes.addressof(held))
    syscall(_SECCOMP_NUMBERS[os.uname().machine], 1, 1, header)  # SECCOMP_SET_MODE_FILTER, FLAG_TSYNC
