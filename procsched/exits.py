"""What must happen to executors when the interpreter exits."""

from __future__ import annotations

import atexit
import logging  # noqa: F401, before we register: atexit runs what came last first, and we may have something to log
import sys
import weakref

from procsched import _forks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched.calls import Core

AT_EXIT = (
    "cannot schedule new futures after shutdown: the interpreter is ending; submit before the end of the main script, "
    "and wait for the results there"
)

_made: weakref.WeakSet[Core] = weakref.WeakSet()  # all that there are
_live: set[Core] = set()  # started and not finished; kept so that they can end their calls at exit


def note(core: Core) -> None:
    """Remember a core as long as it lives, and have it hear of forks."""
    _made.add(core)
    _forks.note(core)


def keep(core: Core) -> None:
    """Keep a core that was started alive, and end its calls with the interpreter."""
    _live.add(core)


def release(core: Core) -> None:
    """Let go of a core that has finished."""
    _live.discard(core)


def all_running() -> list[Core]:
    """Return the cores whose threads live, those that are about to end included, in the order in which they started."""
    running = [core for core in list(_made) if core.started and core.pool.loop.thread.is_alive()]
    return sorted(running, key=lambda core: core.started_at)


def _at_exit() -> None:
    """Finish the calls of every executor: their threads are daemons, and would be cut off.

    After a KeyboardInterrupt that ended the program, or at one that comes while we wait, the calls are ended instead;
    at a further one nothing is waited for: what is below us dies with us.
    """
    kill = _was_interrupted()
    cores = list(_live)
    while True:
        try:
            for core in cores:
                core.refused = core.refused or AT_EXIT
            if kill:  # all of them, before the first is waited for
                for core in cores:
                    core.shutdown(wait=False, cancel=True, kill=True)
            for core in cores:
                if not (kill and core.hurried):
                    core.shutdown(wait=True, cancel=kill, kill=kill)
            return
        except KeyboardInterrupt:
            _leave_as_interrupted()
            if kill:
                return
            kill = True


def _was_interrupted() -> bool:
    """Return whether the program ends by a KeyboardInterrupt. At a prompt the last one may be long ago."""
    kind = getattr(sys, "last_type", None)
    return isinstance(kind, type) and issubclass(kind, KeyboardInterrupt) and not hasattr(sys, "ps1")


def _leave_as_interrupted() -> None:
    """Have the interpreter end as after a KeyboardInterrupt: by the signal, once all is done.

    Source: CPython, Python/pythonrun.c, `run_eval_code_obj`, which notes whether the last code that was run from a
    text ended so; Modules/main.c, `Py_RunMain`, which looks at that note.
    """
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        return


atexit.register(_at_exit)
