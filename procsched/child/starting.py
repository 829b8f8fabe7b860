"""Starting processes of ours by exec: the guard always, helper and workers where nothing is to be forked.

A fork of a process with one thread that has imported things is quick, and its memory is shared. Where that cannot be
relied on (on macOS system libraries refuse to work in a fork once they were used before it; or there is no fork), each
is an interpreter of its own: slower by the start of an interpreter and by what `preload` names, and the same otherwise.
"""

from __future__ import annotations

import _pickle as pickle
import _signal as signal  # type: ignore[import-not-found]
import functools
import io
import os
import sys

from procsched import _system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

FIRST_FD = 3  # the descriptors that a new process is given have the numbers from here on
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from procsched.child.{} import {} as step; "
    "sys.path.pop(0)\nwhile step: step = step()"
)
_HOME = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def command(options: Sequence[str], module: str, function: str, *arguments: str) -> list[str]:
    """Return the command that calls a function of a module of `procsched.child` in a new interpreter.

    Args:
        options: the interpreter and its options.
        arguments: what the function finds in `sys.argv`.
    """
    return [*options, "-c", _BOOT.format(module, function), *arguments, _HOME]


def own_options() -> list[str]:
    """Return the interpreter and the options with which this process, one of ours, was started."""
    return sys.orig_argv[: sys.orig_argv.index("-c")]


def spawn(arguments: list[str], fds: Sequence[int]) -> int:
    """Start a child that has `fds` as its descriptors from `FIRST_FD` on, and our standard streams; return its pid.

    Raises:
        OSError: it cannot be started.
    """
    import fcntl

    high: list[int] = []
    try:
        # Above the numbers that they are to get, so that none overwrites another.
        high.extend(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FD + len(fds)) for fd in fds)
        actions = [(os.POSIX_SPAWN_DUP2, fd, FIRST_FD + number) for number, fd in enumerate(high)]
        return os.posix_spawn(
            arguments[0],
            arguments,
            os.environ,
            file_actions=actions,
            setsigmask=(),
            setsigdef=(signal.SIGINT, signal.SIGCHLD),
        )
    finally:
        for fd in high:
            os.close(fd)


def spawn_helper(control_fd: int, parent: int) -> int:
    """Start the helper from the guard; return its pid."""
    return spawn(command(own_options(), "starting", "helper", str(parent), str(os.getpid())), [control_fd])


def spawn_worker(fds: Sequence[int], options: dict[str, Any]) -> int:
    """Start a worker from the helper; return its pid."""
    start = pickle.dumps((options, sys.path), 5).hex()
    return spawn(command(own_options(), "starting", "worker", str(os.getpid()), start), fds)


def helper() -> Callable[[], Any]:
    """Be the helper, started by exec."""
    from procsched.child import helper as module

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    return functools.partial(module.main, FIRST_FD, int(sys.argv[1]), int(sys.argv[2]))


def worker() -> Callable[[], Any]:
    """Be a worker, started by exec."""
    from procsched.child.protocol import PAGE_SIZE
    from procsched.child.worker import run_worker

    _system.die_with_parent(int(sys.argv[1]))
    options, sys.path[:] = pickle.loads(bytes.fromhex(sys.argv[2]))
    be_nobody()
    channel, side, token, parcel, pages = range(FIRST_FD, FIRST_FD + 5)
    page = memoryview(_system.map_page(pages, PAGE_SIZE, options["page"] * PAGE_SIZE))
    os.close(pages)  # what is in it of other workers is no business of this one
    return functools.partial(run_worker, channel, side, token, parcel, page, options)


def be_nobody() -> None:
    """Have a main module of no program, and streams that keep nothing of what was printed."""
    sys.modules["__main__"] = type(sys)("__main__")  # the user's names must not meet ours
    for stream in (sys.stdout, sys.stderr):
        # A run that is killed shall not take along what it has printed.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
