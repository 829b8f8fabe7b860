"""A user of the soak's own: processes of it can be limited in number, which root's cannot."""

from __future__ import annotations

import ctypes
import os
import pwd
import struct

UIDS = range(61_200, 61_400)  # of whom the system knows nothing
CAP_DAC_READ_SEARCH = 2  # linux/capability.h
_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE = 4, 8, 47, 2  # linux/prctl.h


def free_uid() -> int:
    """Return a user of whom neither the system nor a process knows anything."""
    owners = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                owners.add(os.stat(f"/proc/{name}").st_uid)
            except FileNotFoundError:
                continue
    known = {entry.pw_uid for entry in pwd.getpwall()} | owners
    return next(uid for uid in UIDS if uid not in known)


def become(uid: int) -> None:
    """Become this user for good. It may read whatever there is, as an interpreter below /root, and nothing else.

    capabilities(7): the one that allows it is ambient, so that it survives the exec of the subject and its guards.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(answer: int) -> None:
        if answer:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    check(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    bit = 1 << CAP_DAC_READ_SEARCH
    check(libc.capset(struct.pack("Ii", _VERSION, 0), struct.pack("6I", bit, bit, bit, 0, 0, 0)))
    check(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_READ_SEARCH, 0, 0))
    check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))


def limits_processes(uid: int) -> bool:
    """Return whether this system limits the processes of such a user."""
    import resource

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            become(uid)
            resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        except BlockingIOError:
            code = 0
        except BaseException:
            code = 2
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0
