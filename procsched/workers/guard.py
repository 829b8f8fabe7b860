"""Starting the guard, from which helper and workers come: an interpreter like this one, in a session of its own."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import os
import sys

from procsched import _system
from procsched.child import starting
from procsched.errors import ProcschedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Those of -X that change how code runs, or where it is compiled to.
OPTIONS = (
    "dev", "utf8", "int_max_str_digits", "no_debug_ranges", "frozen_modules", "pycache_prefix", "warn_default_encoding",
    "gil", "thread_inherit_context", "context_aware_warnings",
)  # fmt: skip


def interpreter_arguments() -> list[str]:
    """Return the interpreter and the options with which this one runs."""
    executable = sys.executable
    if not executable or not os.path.exists(executable):
        raise ProcschedError(
            f"cannot start workers: sys.executable is {executable!r}, which is no Python interpreter; "
            "set sys.executable to one before a pool is started"
        )
    # -P: the working directory is no place to import from, for a socket.py may lie there.
    arguments = [executable, "-P"]
    if sys.flags.optimize:
        arguments.append("-" + "O" * sys.flags.optimize)
    if sys.flags.dont_write_bytecode:
        arguments.append("-B")
    if sys.flags.no_site:
        arguments.append("-S")
    if sys.flags.ignore_environment:
        arguments.append("-E")
    if sys.flags.no_user_site:
        arguments.append("-s")
    if sys.flags.bytes_warning:
        arguments.append("-" + "b" * sys.flags.bytes_warning)
    arguments += [word for option in sys.warnoptions for word in ("-W", option)]
    for name in OPTIONS:
        if name in sys._xoptions:
            value = sys._xoptions[name]
            arguments += ["-X", name if value is True else f"{name}={value}"]
    return arguments


class Guard:
    """A guard that has been started, and nothing said to it yet.

    Attributes:
        socket: our end of the control socket.
        pidfd: its pid descriptor, or None where the system has none.

    Raises:
        OSError: no descriptors, processes or memory left.
        ProcschedError: there is no interpreter to start.
    """

    def __init__(self) -> None:
        if not hasattr(os, "posix_spawn"):
            raise ProcschedError(
                f"{sys.platform} has no posix_spawn, with which the process pool starts its workers: "
                "use pool=ThreadPool(), which cannot kill"
            )
        import _socket
        import fcntl

        arguments = starting.command(interpreter_arguments(), "guard", "main", str(os.getpid()))
        self.pid = 0
        self.pidfd: int | None = None
        self.socket, theirs = _system.socket_pair(_socket)
        high = -1
        try:
            self.socket.setblocking(False)
            # Above the standard three, so that the actions below cannot overwrite it.
            high = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 10)
            actions: list[Any] = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, high, 3),
            ]
            for fd in (1, 2):
                try:
                    passed_on = os.get_inheritable(fd)
                except OSError:
                    passed_on = False
                if not passed_on:  # closed here, or a file of the program's that it does not pass on
                    actions.append((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0))
            self.pid = os.posix_spawn(
                arguments[0],
                arguments,
                os.environ,
                file_actions=actions,
                setsid=True,
                setsigmask=(),
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
            pidfd = _system.open_process(self.pid)
            if pidfd is not None:
                self.pidfd = _system.lift(pidfd)
        except BaseException:
            self.abandon()
            raise
        finally:
            theirs.close()
            if high >= 0:
                os.close(high)

    def abandon(self) -> None:
        """End it again, before it was told anything."""
        self.socket.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            try:
                os.waitpid(self.pid, 0)
            except ChildProcessError:  # the host program ignores SIGCHLD
                return
