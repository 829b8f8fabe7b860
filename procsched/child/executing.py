"""Becoming another program: what a fork of the helper does for a worker that is to be confined.

Nothing of the helper is left after the exec: neither its memory nor its descriptors, nor its environment.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

HIGH = 10  # from which number on descriptors are out of the way of those below
EMPTYING = 200  # times that what runs under a uid is looked for, a millisecond apart


def become(program: dict[str, Any], fds: list[int], parent: int) -> NoReturn:
    """Execute a program with nothing but its three pipes; if that fails, say so through the second.

    Args:
        program: its ``arguments`` (None for the parent's pid), ``environment``, ``nice``, ``uid`` or None.
        fds: of its input, which becomes 3, its answers, 4, its output, 1 and 2, and others, from 5 on.
        parent: the pid of the process that forked this one.
    """
    answer = 4
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        null, task, answers, output, *more = (
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH) for fd in (null, *fds)
        )
        wanted = (null, output, output, task, answers, *more)
        for number, fd in enumerate(wanted):
            os.dup2(fd, number)
        os.closerange(len(wanted), 1 << 20)
        for signum in signal.valid_signals():
            if signal.getsignal(signum) == signal.SIG_IGN and signum not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if program["nice"]:
            os.nice(program["nice"])
        os.chdir("/")
        if program["uid"] is not None:
            change_user(program["uid"])
        arguments = [str(parent) if argument is None else argument for argument in program["arguments"]]
        os.execve(arguments[0], arguments, program["environment"])
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".encode("ascii", "replace").replace(b"\\", b"/")
        text = bytes(byte if 32 <= byte < 127 and byte != 34 else 39 for byte in text[:500])
        body = b'{"kind":"refused","step":"exec","error":"%s"}' % text
        os.write(answer, len(body).to_bytes(4, "big") + body)
    finally:
        os._exit(127)


def change_user(uid: int) -> None:
    """Become a user of whom nothing else runs, with a group of the same number; not back.

    Raises:
        OSError: that is not possible, or something of the user's does not go away.
    """
    if uid <= 0:
        raise OSError(f"uid {uid} is no user to become")
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if os.getresuid() != (uid, uid, uid) or os.getresgid() != (uid, uid, uid) or os.getgroups():
        raise OSError(f"this process did not become uid {uid}")
    # Now that this is nobody else, all that it may signal is what is left of the user's.
    for _ in range(EMPTYING):
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return
        if not others_of(uid):
            return  # dead, and not reaped by whoever has to: they hold nothing but a number
        time.sleep(0.001)
    raise OSError(f"processes of uid {uid} do not end")


def others_of(uid: int) -> list[int]:
    """Return the processes of a user that live, without this one."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != uid:
                continue
            with open(f"/proc/{name}/stat", "rb") as file:
                state = file.read().rpartition(b") ")[2][:1]
        except OSError:  # gone
            continue
        if state not in (b"Z", b"X"):
            found.append(int(name))
    return found
