"""Forks that a run makes of its worker, as `multiprocessing` does: what they must not keep."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _thread
import os

from procsched.child import current

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched.child.worker import Worker

_sigmask: Any = signal.pthread_sigmask
_masks: dict[int, set[int]] = {}  # of the threads that are forking just now


def follow(worker: Worker) -> None:
    """Have every fork of this worker be an ordinary process, which SIGTERM ends.

    Whoever ends a process that has just been started, as the pool of `multiprocessing` does, would wait for ever for
    one that our handler keeps: CPython has a fork forget the signals that came before its first step
    (Modules/signalmodule.c, `_PySignal_AfterFork`), and no handler in Python is called while a semaphore is waited for
    whose wake-up came together with the signal. So the kernel holds the signal back until the handler is gone.
    """

    def after_in_child() -> None:
        _forget(worker)
        _let_go()

    os.register_at_fork(before=_hold_back, after_in_parent=_let_go, after_in_child=after_in_child)


def _hold_back() -> None:
    _masks[_thread.get_ident()] = _sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))


def _let_go() -> None:
    mask = _masks.pop(_thread.get_ident(), None)
    if mask is not None:
        _sigmask(signal.SIG_SETMASK, mask)


def _forget(worker: Worker) -> None:
    """It is not the worker, and must not hear its signals, hold its socket open or take its tokens."""
    current._end()
    worker.is_fork = True
    for signum, handler in worker.handlers:
        if signal.getsignal(signum) == handler:  # else it is the run's own
            signal.signal(signum, signal.SIG_DFL)
    worker.channel.close()
    try:
        os.close(worker.token_fd)
    except OSError:  # a run may have closed it
        pass
    worker.token_fd = -1
    worker.parcels.close()
