r"""The guard and the helper: the two processes between the parent and its workers.

    parent ---------------- control socket ----------------.
      |  \_ one socket pair per worker ____________         |
      | starts (exec)                              \\        |
    guard   waits for: death of parent, of helper    |       |
      | forks                                        |       |
    helper  imports `preload`, forks workers --------+-------'
      | forks, reaps                                 |
    workers                                       sockets
      | whatever the user's code starts
    grandchildren ...

All three levels are child subreapers. A worker keeps its descendants below itself while it lives. What it leaves
when it dies is re-parented to the helper, which kills it; what the helper leaves is re-parented to the guard,
which kills it. So whichever one of the four is killed, somebody is left to end the rest:

* the parent dies: guard and helper both see it by a pid descriptor;
* the guard dies: the helper sees it the same way;
* the helper dies: its workers get SIGKILL (parent-death signal) and the guard ends what they leave;
* a worker dies: the helper ends what it leaves, then reports.

Guard and helper may be stopped when that happens: the kernel lets them go on when their own parent dies.

The helper has one thread, so a parent-death signal means its death and not a thread's (prctl(2)). It never runs
the user's script; only what `preload` names is imported in it.

The first result of a pool waits for every import here, in the helper and in the worker. So they take the C halves of
library modules (`_signal`, `_socket`, `_pickle`, `_struct`, `_ctypes`), which do all that is needed without `enum`,
`re` and `selectors`.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import functools
import gc
import os
import select
import sys

from procsched import _system
from procsched.child.reaping import end_all_children, kill_found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

CONTROL_FD = 3  # where `posix_spawn` puts the control socket


class Wakeups:
    """SIGCHLD as something that `poll` can wait for, without a signal handler that does work."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self.writer, False)
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signum, _frame: None)

    def forget(self) -> None:
        """In a fork: leave the signal as it was, and let go of the pipe."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self.reader)
        os.close(self.writer)

    def drain(self) -> None:
        """Forget the wake-ups so far. To be called before looking at what woke us."""
        try:
            while len(os.read(self.reader, 4096)) == 4096:
                pass
        except BlockingIOError:
            return

    def wait(self, seconds: float) -> None:
        """Wait for a SIGCHLD, at most `seconds`."""
        poller = select.poll()
        poller.register(self.reader, select.POLLIN)
        poller.poll(max(0.0, seconds) * 1000)
        self.drain()


def watch_process(pid: int) -> int | None:
    """Return a descriptor that is readable when our (grand)parent `pid` has ended, or None."""
    try:
        return _system.open_process(pid)
    except OSError:
        return None


def main() -> Callable[[], Any]:
    """Be the guard. Arguments: the parent's pid.

    Returns:
        in the helper, what it is to do next: each stage returns to the bottom of the stack before the next begins, so
        that a stack dump of a worker is short.
    """
    gc.disable()  # until the helper is ready: nothing of this is garbage
    parent = int(sys.argv[1])
    _close_inherited()
    parent_fd = watch_process(parent)
    _system.wake_without_parent()
    if os.getppid() != parent:
        os._exit(0)
    _raise_limit()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    _system.become_subreaper()
    guard = os.getpid()
    wakeups = Wakeups()
    if not _system.offers("fork"):
        from procsched.child import starting

        helper = starting.spawn_helper(CONTROL_FD, parent)
        os.close(CONTROL_FD)
        _guard(parent_fd, helper, wakeups)
    from procsched.child import helper as helper_module  # before the fork, after which a page costs a fault

    helper = os.fork()
    if helper != 0:
        os.close(CONTROL_FD)
        _guard(parent_fd, helper, wakeups)
    wakeups.forget()
    if parent_fd is not None:
        os.close(parent_fd)
    return functools.partial(helper_module.main, CONTROL_FD, parent, guard)


def _close_inherited() -> None:
    """Close what the parent passes on to its children, which may lie above its limit where that was lowered."""
    try:
        end = max(map(int, os.listdir("/dev/fd"))) + 1
    except (OSError, ValueError):  # no /proc; or no descriptor is left to look with
        end = os.sysconf("SC_OPEN_MAX")
    os.closerange(CONTROL_FD + 1, end)


def _raise_limit() -> None:
    """Allow ourselves all the descriptors we may have: a parent that is short of them must not starve its helper.

    A worker gets the parent's own limit of the moment when it starts.
    """
    import resource

    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # pragma: no cover - macOS has a lower maximum than it says
        return


def _guard(parent_fd: int | None, helper: int, wakeups: Wakeups) -> NoReturn:
    """Wait until the parent or the helper has ended, then end everything below and exit."""
    poller = select.poll()
    poller.register(wakeups.reader, select.POLLIN)
    if parent_fd is not None:
        poller.register(parent_fd, select.POLLIN)
    reaped = False
    code = 0  # our exit code tells the parent how the helper ended: as a shell would, 128 + n for signal n
    while not reaped:
        ready = [fd for fd, _event in poller.poll()]
        wakeups.drain()
        while not reaped:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pid, reaped = 0, True
            if pid == helper:
                reaped = True
                ended = os.waitstatus_to_exitcode(status)
                code = ended if ended >= 0 else 128 - ended
            elif pid == 0:
                break
        if parent_fd in ready:
            break
    if not reaped:
        kill_found()
        os.kill(helper, signal.SIGKILL)  # not reaped, so the pid is still the helper's
    end_all_children(wakeups.wait)
    os._exit(code)
