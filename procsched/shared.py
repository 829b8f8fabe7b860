"""`run` and `killable`: one call in a child that can be killed, without an executor of one's own.

They share one small pool per process, made at the first call and gone at exit or by `shutdown_shared`.
"""

from __future__ import annotations

import functools
import os
import threading

from procsched.errors import SchedulerStateError
from procsched.executor import ProcessExecutor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

_lock = threading.Lock()  # guards the two below; nothing is called while it is held but the constructor
_executor: ProcessExecutor | None = None
_owner = 0  # the process that made it: a fork makes its own


def _shared() -> ProcessExecutor:
    global _executor, _owner
    with _lock:
        if _executor is None or _owner != os.getpid():
            _executor = ProcessExecutor()
            _owner = os.getpid()
        return _executor


def run(
    fn: Callable[..., R],
    /,
    *args: Any,
    timeout: float | None = None,
    limits: None = None,
    sandbox: None = None,
    **kwargs: Any,
) -> R:
    """Return ``fn(*args, **kwargs)``, called in a child process that is killed after `timeout` seconds.

    An exception that interrupts the waiting, such as KeyboardInterrupt, ends the call too.

    Args:
        timeout: seconds, or None for no limit.
    Raises:
        TaskTimeoutError: its time was up; it has been killed with everything it started.
        WorkerCrashedError: its process died.
        Exception: what `fn` raised.
    Thread safety: call from anywhere; blocks until the call has ended.
    """
    if sandbox is not None:
        ProcessExecutor(1, sandbox=sandbox)
    while True:
        executor = _shared()
        try:
            future = executor.options(timeout=timeout, limits=limits).submit(fn, *args, **kwargs)
            break
        except SchedulerStateError:
            if executor is _executor:
                raise
            # `shutdown_shared` came between: the next pool makes the call
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def killable(
    timeout: float | None = None, *, limits: None = None, sandbox: None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function run in a child process that can be killed: `run` as a decorator.

    Args:
        timeout: seconds for each call, or None for no limit.
    Raises:
        ValidationError: when decorating, naming the option.
    """
    if callable(timeout):
        raise TypeError("use it with brackets: @killable() or @killable(timeout=5)")
    ProcessExecutor(1, timeout=timeout, limits=limits, sandbox=sandbox)  # checks the options

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            # The wrapper is what its module calls by this name, so it is the wrapper that can be sent by name.
            result: R = run(_call_wrapped, wrapper, args, kwargs, timeout=timeout)
            return result

        return wrapper

    return decorate


def _call_wrapped(wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return wrapper.__wrapped__(*args, **kwargs)


def shutdown_shared() -> None:
    """End the pool behind `run` and `killable`, when its calls have ended; the next `run` makes a new one."""
    global _executor
    with _lock:
        executor, _executor = _executor, None
        mine = _owner == os.getpid()
    if executor is not None and mine:
        executor.shutdown()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
