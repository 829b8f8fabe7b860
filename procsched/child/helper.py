"""The helper: forks workers on request, reaps them, and ends what a dead worker leaves behind.

One thread, one `poll` over the control socket, SIGCHLD and the deaths of parent and guard. `guard.py` has the
drawing. The messages on the control socket are pickled tuples, each behind its length; descriptors travel with
them (unix(7), SCM_RIGHTS).
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import errno
import functools
import gc
import os
import select
import sys
import time

from procsched import _system
from procsched.child import starting
from procsched.child.control import Control
from procsched.child.guard import Wakeups, watch_process
from procsched.child.protocol import PAGE_SIZE
from procsched.child.reaping import UNKILLABLE_SECONDS, end_all_children, kill_unknown
from procsched.child.worker import run_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# What most actions import in the end. Nothing here needs it, so it is imported once the first worker is on its way.
COMMON = ("ctypes", "pickle", "signal", "socket")

WORKER_FDS, PROGRAM_FDS = 4, 3  # that come with the request for a worker, and for one that is another program


class _BecomeWorker(BaseException):
    """Unwinds the helper's loop in a newly forked worker."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__()
        self.arguments = arguments


def main(control_fd: int, parent: int, guard: int) -> Callable[[], Any]:
    """Be the helper until the parent ends or says so. Returns in a worker, with what that is to do."""
    _system.die_with_parent(guard)  # nothing below us yet: until we watch the guard ourselves
    _system.become_subreaper()
    helper = Helper(control_fd, parent, guard)
    try:
        helper.configure()
        helper.serve()
    except _BecomeWorker as become:
        arguments = become.arguments
    else:
        os._exit(0)
    return functools.partial(run_worker, **arguments)


class Helper:
    """State of the helper process."""

    def __init__(self, control_fd: int, parent: int, guard: int) -> None:
        self.control = Control.of(control_fd)
        self.deaths = [fd for fd in (watch_process(parent), watch_process(guard)) if fd is not None]
        self.wakeups = Wakeups()
        self.children = _system.OwnChildren()
        self.guard = guard
        self.requests: list[tuple[Any, list[int]]] = []  # received, and not looked at yet
        self.workers: dict[int, int] = {}  # pid -> worker number, of those not reaped
        self.own: set[int] = set()  # children that `preload` left: part of the helper, not of a run
        self.refused: set[int] = set()
        self.deadlines: dict[int, float] = {}  # worker number -> steady time at which it is killed
        self.gone: list[tuple[Any, ...]] = []  # reaped, and what they left is being ended
        self.sweep_end: float | None = None
        self.page_fd = -1
        self.pages: memoryview  # what `page_fd` is mapped to, where workers are forked
        self.own_path = list(sys.path)
        self.wide = False  # whether `COMMON` is imported
        self.forks = _system.offers("fork")  # else workers are started by exec, and share nothing
        self.preload: list[str] = []

    def configure(self) -> None:
        """Take the first message, import what it names, say hello."""
        message, fds = self.control.receive()
        if message is None:
            os._exit(0)
        self.page_fd = fds[0]
        if os.environ != message["environ"]:  # mostly it is what the guard was started with
            os.environ.clear()
            os.environ.update(message["environ"])
        sys.path[:] = message["path"]
        starting.be_nobody()
        if self.forks:
            # Once, for all workers: to map its page would be the dearest part of what a new one does.
            size = os.fstat(self.page_fd).st_size
            self.pages = memoryview(_system.map_page(self.page_fd, size, 0))
        _system.open_kernel_timer()  # what that needs the workers share
        name = ""
        self.preload = message["preload"]
        try:
            for name in message["preload"]:
                __import__(name)
            sys.path[:] = message["path"]  # whatever these have made of it
            name = "cloudpickle"
            if message["by_value"]:
                self.warm()
        except BaseException as error:
            from procsched._core.failures import describe, tell_of_all, traceback_text

            tell_of_all()
            self.say(("preload_failed", name, describe(error), traceback_text(error)))
            os._exit(1)
        self.own.update(self.children.list())
        if self.deaths:
            _system.wake_without_parent()
        own = watch_process(os.getpid())
        self.say(("hello", os.getpid()), [] if own is None else [own])
        if own is not None:
            os.close(own)
        _freeze()

    def say(self, message: tuple[object, ...], fds: list[int] | tuple[int, ...] = ()) -> None:
        """Send the first message. Should the parent have gone meanwhile, `serve` sees that."""
        try:
            self.control.send(message, fds)
        except OSError:
            return

    def warm(self) -> None:
        """Import what calls that are pickled by value need, once, where the workers share it."""
        if not self.forks:
            return
        from procsched import _byvalue, errors

        del errors
        _byvalue.dumps(_BecomeWorker)
        _freeze()

    def widen(self) -> None:
        """Import what most actions import, for the workers to come to share."""
        self.wide = True
        path, sys.path[:] = sys.path[:], self.own_path  # where the user's modules are not
        for name in COMMON:
            try:
                __import__(name)
            except (ImportError, OSError):  # who needs it hears of it
                continue
        sys.path[:] = path
        _freeze()

    def serve(self) -> None:
        """Serve until the parent hangs up or dies, then end everything."""
        poller = select.poll()
        for fd in (self.control.fileno(), self.wakeups.reader, *self.deaths):
            poller.register(fd, select.POLLIN)
        try:
            self.serve_requests(poller)
        except OSError:  # the parent went while it was being answered
            self.requests.clear()
        end_all_children(self.wakeups.wait)
        if os.getppid() == self.guard:
            os.kill(self.guard, signal.SIGCONT)  # it may be stopped, and is to see that we are gone
        self.control.close()

    def serve_requests(self, poller: select.poll) -> None:
        """Serve until the parent hangs up or dies, or is found to have gone."""
        over = False
        while not over:
            ready = [fd for fd, _event in poller.poll(self.time_left())]
            if self.deadlines:
                self.enforce()
            if self.wakeups.reader in ready or self.sweep_end is not None:
                self.wakeups.drain()
                self.reap()
            if self.control.fileno() in ready:
                self.requests += self.control.receive_available()
                while self.requests:
                    message, fds = self.requests.pop(0)
                    if message is None:
                        over = True
                    else:
                        self.handle(message, fds)
            if any(fd in ready for fd in self.deaths):
                over = True

    def time_left(self) -> float | None:
        """Return the milliseconds until there is something to do by itself, None for never."""
        ends = [*self.deadlines.values()]
        if self.sweep_end is not None:
            ends.append(self.sweep_end)
        return max(0.0, min(ends) - time.monotonic()) * 1000 if ends else None

    def enforce(self) -> None:
        """Kill the workers whose time is up: the parent was to do so before, and is stuck."""
        now = time.monotonic()
        late = [number for number, at in self.deadlines.items() if at <= now]
        for number in late:
            del self.deadlines[number]
        for pid, number in self.workers.items():
            if number in late:
                self.kill_tree(pid)

    def handle(self, message: tuple[Any, ...], fds: list[int]) -> None:
        """Carry out one request."""
        kind, number, *rest = message
        if kind == "spawn":
            self.spawn(number, fds, *rest)
        elif kind == "ask":
            self.ask(number)
        elif kind == "deadline":
            if number in self.workers.values():
                (self.deadlines[number],) = rest
        elif kind == "by_value":
            self.warm()
        elif kind == "ping":
            # A worker that somebody traces is dead without a signal to us; what it left may be what traces it.
            self.reap()
            self.control.send(("pong", number))
        elif kind == "kill":
            for pid, known in self.workers.items():
                if known == number:
                    self.kill_tree(pid)

    def spawn(self, number: int, fds: list[int], options: dict[str, Any]) -> None:
        """Fork a worker, or start one by exec. In a fork this raises `_BecomeWorker`."""
        me = os.getpid()
        program = options.get("program")
        if program is not None:
            # Here: most helpers never need it, and this one once.
            from procsched.child.executing import become

        try:
            if len(fds) < (WORKER_FDS if program is None else PROGRAM_FDS):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            if self.forks or program is not None:  # which execs at once
                pid = os.fork()
            else:
                pid = starting.spawn_worker([*fds, self.page_fd], {**options, "preload": self.preload})
        except OSError as error:
            for fd in fds:
                os.close(fd)
            what = "fork" if self.forks else "exec"
            self.control.send(("spawn_failed", number, f"{what} failed: {error}{_system.remedy(error)}"))
            return
        if pid == 0:
            _system.die_with_parent(me)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self.wakeups.forget()
            self.children.close()
            # The descriptors of workers that are to be forked next are no business of this one: it would keep their
            # connections open when they are dead.
            others = [fd for _message, waiting in self.requests for fd in waiting]
            for fd in (self.page_fd, *self.deaths, *others):
                os.close(fd)
            self.control.forget()
            if program is not None:
                become(program, fds, me)
            channel_fd, side_fd, token_fd, parcel_fd = fds
            start = options["page"] * PAGE_SIZE
            raise _BecomeWorker(
                {
                    "channel_fd": channel_fd,
                    "side_fd": side_fd,
                    "token_fd": token_fd,
                    "parcel_fd": parcel_fd,
                    "page": self.pages[start : start + PAGE_SIZE],
                    "options": options,
                }
            )
        for fd in fds:
            os.close(fd)
        self.workers[pid] = number
        pidfd = watch_process(pid)
        self.control.send(("spawned", number, pid, self.forks), [] if pidfd is None else [pidfd])
        if pidfd is not None:
            os.close(pidfd)
        if self.forks and not self.wide and program is None:
            self.widen()

    def ask(self, number: int) -> None:
        """Send SIGTERM to a worker and everything below it, for it may end itself."""
        for pid, known in self.workers.items():
            if known != number:
                continue
            _system.signal_descendants(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGTERM)

    def kill_tree(self, pid: int) -> None:
        """Kill a worker of ours that has not been reaped, and what a walk finds below it.

        For systems without pid descriptors or subreapers: what has left the tree before is not found.
        """
        if not _system.offers("subreaper"):
            os.kill(pid, signal.SIGSTOP)  # it must not start more while we walk
            for _ in range(10):
                if not _system.signal_descendants(pid, signal.SIGKILL):
                    break
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)

    def reap(self) -> None:
        """Collect the dead, end what they left, and report those of whom nothing is left."""
        while pid := _dead_child():
            if self.bury(pid):
                self.sweep()  # at once: mostly it is the only one that has died, and has left nothing
        self.sweep()

    def bury(self, pid: int) -> bool:
        """Collect a child that is dead; return whether it was a worker."""
        number = self.workers.get(pid)
        if number is not None:
            # Still a zombie, so the group is still its own.
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        _pid, status, usage = os.wait4(pid, 0)
        self.own.discard(pid)
        self.refused.discard(pid)
        if number is None:
            return False
        del self.workers[pid]
        self.deadlines.pop(number, None)
        cpu = usage.ru_utime + usage.ru_stime
        rss = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self.gone.append(("gone", number, status, time.monotonic(), cpu, rss))
        return True

    def sweep(self) -> None:
        """End what the dead have left, and report those of whom nothing is left."""
        known = self.workers.keys() | self.own
        if not self.gone:
            self.sweep_end = None
            kill_unknown(self.children, known, self.refused)
            return
        now = time.monotonic()
        if self.sweep_end is None:
            self.sweep_end = now + UNKILLABLE_SECONDS
        refused_before = set(self.refused)
        if kill_unknown(self.children, known, self.refused) and now < self.sweep_end:
            return
        stuck = self.refused - refused_before
        if now >= self.sweep_end:
            stuck |= set(self.children.list()) - known
            self.refused |= stuck
        for report in self.gone:
            self.control.send((*report, tuple(sorted(stuck))))
        self.gone.clear()
        self.sweep_end = None


def _dead_child() -> int:
    """Return the pid of a child that is dead and not collected, 0 where there is none."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0
    return 0 if info is None else info.si_pid


def _freeze() -> None:
    """Set apart what there is, so that a collection in a worker does not write to pages that it shares.

    Not collected before: that takes as long as two forks, and there is next to nothing to collect.
    """
    gc.freeze()
    gc.enable()
