"""`run` and `killable`: one call in a child that can be killed, without an executor of one's own.

They share one small pool per process, made at the first call and gone at exit or by `shutdown_shared`. A call is to
find the working directory and the environment of its moment, and write where the program then writes, as with
`subprocess.run`: when these have changed a new pool is made, and the old one ends after its last call.
"""

from __future__ import annotations

import functools
import os
import threading

from procsched._core.names import check_names
from procsched._core.options import check_confined
from procsched.child.wrapped import call_wrapped
from procsched.errors import SchedulerStateError, ValidationError
from procsched.executor import ProcessExecutor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any, Never, ParamSpec, TypeVar, overload

    from procsched._core.limits import Limits
    from procsched.sandbox.policy import Sandbox

    # Working directory, environment, and what stdout and stderr are.
    Moment = tuple[str | None, dict[Any, Any], tuple[int, int] | None, tuple[int, int] | None]
    P = ParamSpec("P")
    R = TypeVar("R")

# Environment variables that programs change all the time and no job looks at: pytest's, for each test.
_RESTLESS = ("PYTEST_CURRENT_TEST",)

# Guards what follows; nothing is called while it is held but the constructor. Reentrant for a finalizer that calls
# `run` from the midst of that.
_lock = threading.RLock()
_executor: ProcessExecutor | None = None
_owner = 0  # the process that made it: a fork makes its own
_moment: Moment | None = None  # where it was made
_retired: list[ProcessExecutor] = []  # made at other moments, and maybe not gone yet
# Those for sandboxed calls, the one that was asked for last at the end. What they run finds nothing of this moment.
_confined: dict[Sandbox, ProcessExecutor] = {}
MOST_CONFINED = 4


def _forget_parents() -> None:
    """In a fork of the process that made them, none of them is ours."""
    global _executor, _owner
    if _owner != os.getpid():
        _executor = None
        _retired.clear()
        _confined.clear()
        _owner = os.getpid()


def _sandboxed(sandbox: Sandbox) -> ProcessExecutor:
    """Return the executor for calls with this policy."""
    with _lock:
        _forget_parents()
        executor = _confined.pop(sandbox, None) if getattr(sandbox, "__hash__", None) else None
    if executor is None:
        # Not while the lock is held: it is tried out, which takes as long as a process needs to start.
        executor = ProcessExecutor(timeout=1.0, sandbox=sandbox)
    surplus = None
    with _lock:
        surplus = _confined.pop(sandbox, None)  # another thread was quicker
        _confined[sandbox] = executor
        if surplus is None and len(_confined) > MOST_CONFINED:
            surplus = _confined.pop(next(iter(_confined)))
        if surplus is not None:
            _retired[:] = [each for each in _retired if _is_there(each)]
            _retired.append(surplus)
    if surplus is not None:
        surplus.shutdown(wait=False)
    return executor


def _shared() -> ProcessExecutor:
    global _executor, _moment
    moment = _this_moment()
    old = None
    with _lock:
        _forget_parents()
        if _executor is not None and _moment != moment:
            _retired[:] = [each for each in _retired if _is_there(each)]
            _retired.append(_executor)
            old, _executor = _executor, None
        if _executor is None:
            # For all of its workers, also for those that start when the program has moved on.
            _executor = ProcessExecutor(env=dict(os.environ), cwd=moment[0])
            _moment = moment
        executor = _executor
    if old is not None:
        old.shutdown(wait=False)
    return executor


def _this_moment() -> Moment:
    """Return working directory, environment, stdout and stderr, in a form that is quickly compared."""
    try:
        directory = os.getcwd()
    except OSError:  # it was removed
        directory = None
    # The mapping below `os.environ`, for that decodes each name and value: forty microseconds more for each call.
    environment = dict(getattr(os.environ, "_data", os.environ))
    for name in _RESTLESS:
        environment.pop(name, None)
        environment.pop(os.fsencode(name), None)
    return directory, environment, _file_of(1), _file_of(2)


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode, which stay what they are while the pool has the file open; None where it is closed."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_there(executor: ProcessExecutor) -> bool:
    thread = executor._core.io_thread()
    return thread is not None and thread.is_alive()


if TYPE_CHECKING:

    @overload
    def run(
        fn: Callable[..., Coroutine[Any, Any, R]],
        /,
        *args: Any,
        timeout: float | None = None,
        capture_output: bool = False,
        limits: Limits | None = None,
        sandbox: Sandbox | None = None,
        **kwargs: Any,
    ) -> R: ...
    @overload
    def run(
        fn: Callable[..., R],
        /,
        *args: Any,
        timeout: float | None = None,
        capture_output: bool = False,
        limits: Limits | None = None,
        sandbox: Sandbox | None = None,
        **kwargs: Any,
    ) -> R: ...


def run(
    fn: Callable[..., Any],
    /,
    *args: Any,
    timeout: float | None = None,
    capture_output: bool = False,
    limits: Limits | None = None,
    sandbox: Sandbox | None = None,
    **kwargs: Any,
) -> Any:
    """Return ``fn(*args, **kwargs)``, called in a child process that is killed after `timeout` seconds.

    An exception that interrupts the waiting, such as KeyboardInterrupt, ends the call too.

    The child has the working directory, the environment, stdout and stderr that the program has at the first call, or,
    when these have changed since, at this one. It belongs to a small pool that all calls of `run` and `killable` share
    and that stays until the program ends, or until `shutdown_shared`. So what one call leaves in its process may be
    seen by a later one, as in any pool: imported modules and their state, environment variables, signal handlers.
    Globals of the main script travel with each call: what one assigns to them is gone with it. The working directory,
    the umask and the signal mask are put back. After a module was edited and reloaded (`importlib.reload`),
    `shutdown_shared` makes the next call import it anew.

    Args:
        timeout: seconds, or None for no limit.
        capture_output: keep what the call writes to stdout and stderr, and show the end of it with the error should
            the call not come back, instead of passing it on to those of this program. For a function that takes one
            of these options itself, use ``functools.partial``.
        limits: what else it may use: memory, CPU time and others. With one of `output` that is captured, as with
            `capture_output`.
        sandbox: run it as code that nobody trusts: `fn` is a `Source`, or a function that can be imported, its
            arguments and its result are plain data, and `timeout` must be given. Each call gets a process of its own;
            for its record, with output, CPU time and memory, use a `ProcessExecutor`.
    Raises:
        TaskTimeoutError: its time was up; it has been killed with everything it started.
        WorkerCrashedError: its process died.
        LimitExceededError: it used more than its limits allow; in a sandbox, more CPU time, or with a larger result.
        RemoteError: what is said to have been raised in a sandbox; also MemoryError, by more memory than that allows.
        SandboxUnavailableError: a promise of the sandbox cannot be kept here.
        Exception: what `fn` raised.
    Thread safety: call from anywhere; blocks until the call has ended.
    """
    while True:
        if sandbox is None:
            executor = _shared()
        else:
            check_confined(timeout, None, 0.0)
            executor = _sandboxed(sandbox)
        try:
            view = executor.options(timeout=timeout, capture_output=capture_output, limits=limits)
            future = view.submit(fn, *args, **kwargs)
            break
        except SchedulerStateError:
            if executor is _executor or (sandbox is not None and _confined.get(sandbox) is executor):
                raise
            # `shutdown_shared` or a change of directory came between: the next pool makes the call
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def killable(
    timeout: float | None = None,
    *,
    capture_output: bool = False,
    limits: Limits | None = None,
    sandbox: Sandbox | None = None,
    **unknown: Never,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a function run in a child process that can be killed: `run` as a decorator.

    Args:
        timeout: seconds for each call, or None for no limit.
        capture_output, limits: as for `run`.
    Raises:
        ValidationError: when decorating, naming the option; or what is no function.
    """
    if callable(timeout):
        raise TypeError("use it with brackets: @killable() or @killable(timeout=5)")
    if unknown:
        check_names(unknown, ("timeout", "capture_output", "limits", "sandbox"), of="killable")
    if sandbox is not None:
        # Its wrapper has the name by which the sandbox would import the function itself.
        raise ValidationError("killable takes no sandbox: call run(function, ..., sandbox=..., timeout=...)")
    ProcessExecutor(1, timeout=timeout, capture_output=capture_output, limits=limits)  # checks the options

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if not callable(function):
            raise ValidationError(
                f"killable makes a function killable, not {type(function).__name__} {function!r}: write @classmethod, "
                "@property and the like above it"
            )

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            # The wrapper is what its module calls by this name, so it is the wrapper that can be sent by name.
            result: R = run(
                call_wrapped,
                wrapper,
                args,
                kwargs,
                timeout=timeout,
                capture_output=capture_output,
                limits=limits,
            )
            return result

        return wrapper

    return decorate


def shutdown_shared() -> None:
    """End the pool behind `run` and `killable`, when its calls have ended; the next `run` makes a new one.

    On return no process of it is left. Nobody has to call it: the pool ends with the program. It is for a program that
    needs the memory back, or in which a module was reloaded.
    """
    global _executor
    with _lock:
        executors = [*_retired, *_confined.values(), *([] if _executor is None else [_executor])]
        _executor = None
        _retired.clear()
        _confined.clear()
        mine = _owner == os.getpid()
    for executor in executors if mine else ():
        executor.shutdown()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
