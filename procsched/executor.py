"""`ProcessExecutor`: the face of `concurrent.futures` on the pool that the scheduler uses too.

What happens to a call is in `calls.py`, which has the drawing.
"""

from __future__ import annotations

import weakref
from concurrent.futures import Executor

from procsched._core.checks import finite_seconds, whole_number
from procsched._core.models import NO_RETRY, Priority, RetryPolicy
from procsched._core.names import check_names, name_after
from procsched.call_options import OPTIONS, UNSET, Options
from procsched.calls import Core
from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
    from datetime import timedelta
    from types import TracebackType
    from typing import Any, Literal, Never, ParamSpec, Self, TypeVar, overload

    from procsched._core.health import Health
    from procsched._core.limits import Limits
    from procsched._core.models import Stats
    from procsched.future import ProcessFuture
    from procsched.sandbox.policy import Sandbox
    from procsched.sandbox.prepare import Report

    P = ParamSpec("P")
    R = TypeVar("R")

LONGEST_SPIN = 0.001  # seconds


class _Submitter:
    """Where calls are submitted: an executor, or a view of one."""

    _core: Core
    _options: Options  # of the calls

    if TYPE_CHECKING:
        # What an `async def` function gives is awaited in the worker.
        @overload
        def submit(
            self, fn: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
        ) -> ProcessFuture[R]: ...
        @overload
        def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> ProcessFuture[R]: ...

    def submit(self, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> ProcessFuture[Any]:
        """Schedule ``fn(*args, **kwargs)`` and return its future.

        What cannot be pickled fails this future alone, with a `TaskSerializationError`. All arguments, also one that
        is called `timeout`, are the function's: settings of the call are `options(timeout=...).submit(...)`.

        Raises:
            SchedulerStateError: after a shutdown, or in a fork of the process that made the executor.
        """
        return self._core.submit(fn, args, kwargs, self._options)

    if TYPE_CHECKING:

        @overload
        def map(
            self,
            fn: Callable[..., Coroutine[Any, Any, R]],
            *iterables: Iterable[Any],
            timeout: float | None = None,
            chunksize: int = 1,
            buffersize: int | None = None,
            return_exceptions: Literal[False] = False,
            progress: bool | Callable[[int, int | None], object] | None = None,
        ) -> Iterator[R]: ...
        @overload
        def map(
            self,
            fn: Callable[..., R],
            *iterables: Iterable[Any],
            timeout: float | None = None,
            chunksize: int = 1,
            buffersize: int | None = None,
            return_exceptions: Literal[False] = False,
            progress: bool | Callable[[int, int | None], object] | None = None,
        ) -> Iterator[R]: ...
        @overload
        def map(
            self,
            fn: Callable[..., Coroutine[Any, Any, R]],
            *iterables: Iterable[Any],
            timeout: float | None = None,
            chunksize: int = 1,
            buffersize: int | None = None,
            return_exceptions: bool,
            progress: bool | Callable[[int, int | None], object] | None = None,
        ) -> Iterator[R | BaseException]: ...
        @overload
        def map(
            self,
            fn: Callable[..., R],
            *iterables: Iterable[Any],
            timeout: float | None = None,
            chunksize: int = 1,
            buffersize: int | None = None,
            return_exceptions: bool,
            progress: bool | Callable[[int, int | None], object] | None = None,
        ) -> Iterator[R | BaseException]: ...

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        return_exceptions: bool = False,
        progress: bool | Callable[[int, int | None], object] | None = None,
        **unknown: Never,
    ) -> Iterator[Any]:
        """Return an iterator over the results of ``fn`` applied to the items, in their order.

        As in the standard library all items are sent at once, and run also if nobody takes the results, unless
        `buffersize` is given. Leaving the iterator early cancels what has not ended, running calls too.

        Args:
            timeout: seconds from this call after which waiting for a result raises TimeoutError. A limit for each
                item is `options(timeout=...)`.
            chunksize: items sent together. They are one attempt, unless there is a limit or a retry for each item,
                or `return_exceptions`: then each item is, and keeps its outcome whatever becomes of the others.
            buffersize: chunks sent ahead of the consumer; the iterables are then read as results are taken, and may
                be endless.
            return_exceptions: yield an item's exception in its place instead of raising it; of one that a shutdown has
                withdrawn a CancelledError.
            progress: called with (done, total) whenever a chunk has ended, in whatever order they do; total is None
                while it is not known. It runs in the thread that takes the results, while it waits for one, and
                what it raises comes out there. True draws a bar on standard error if that is a terminal; it needs
                ``procsched[progress]``.
        Raises:
            ValidationError: naming the parameter; for ``progress=True`` also where tqdm is not installed.
            SchedulerStateError: after a shutdown, or in a fork of the process that made the executor; from the
                iterator as well, where it has more to send.
        Thread safety: the iterator is for one thread at a time.
        """
        if unknown:
            known = ("timeout", "chunksize", "buffersize", "return_exceptions", "progress")
            own = next((name for name in unknown if name in OPTIONS), None)
            hint = "" if own is None else f"as an option of each item it is options({own}=...).map(fn, ...); "
            check_names(unknown, known, of="map", hint=hint)
        from procsched import mapping  # here, so that the import of an executor stays quick

        return mapping.start(
            self._core,
            self._options,
            fn,
            iterables,
            self,
            timeout=timeout,
            chunksize=chunksize,
            buffersize=buffersize,
            return_exceptions=return_exceptions,
            progress=progress,
        )

    if TYPE_CHECKING:

        @overload
        async def run(
            self,
            fn: Callable[..., Coroutine[Any, Any, R]],
            /,
            *args: Any,
            timeout: float | None = UNSET,
            **kwargs: Any,
        ) -> R: ...
        @overload
        async def run(
            self, fn: Callable[..., R], /, *args: Any, timeout: float | None = UNSET, **kwargs: Any
        ) -> R: ...

    async def run(
        self, fn: Callable[..., Any], /, *args: Any, timeout: float | None = UNSET, **kwargs: Any
    ) -> Any:
        """Return ``fn(*args, **kwargs)``, called in a worker, without blocking the event loop or any thread.

        Cancelling the task that awaits this ends the call, with everything it started.

        Args:
            timeout: seconds after which the call is ended, None for no limit; the executor's own by default. For a
                function that takes a `timeout` itself, use ``functools.partial``.
        Raises:
            TaskTimeoutError, WorkerCrashedError, TaskKilledError, TaskLostError: how else it ended.
            concurrent.futures.CancelledError: it was withdrawn before it started, by a shutdown.
            Exception: what `fn` raised.
            SchedulerStateError: after a shutdown.
        Thread safety: call from any event loop.
        """
        from procsched import aio  # here, for it imports asyncio

        options = self._options if timeout is UNSET else self._options.replace(timeout=timeout)
        return await aio.run(self._core, options, fn, args, kwargs)

    def options(
        self,
        *,
        timeout: float | None = UNSET,
        soft_timeout: float | None = UNSET,
        grace: float = UNSET,
        priority: Priority = UNSET,
        retry: RetryPolicy = UNSET,
        limits: Limits | None = UNSET,
        name: str = UNSET,
        capture_output: bool = UNSET,
        **unknown: Never,
    ) -> ExecutorView:
        """Return a view of the executor whose `submit`, `map` and `run` use these settings; None means no limit.

        The others are as they are here: those of the executor, or of the view whose `options` this is. The executor's
        own `limits` hold beside those that are given here.

        Raises:
            ValidationError: naming the option.
        """
        changed = self._options.replace(
            timeout=timeout,
            soft_timeout=soft_timeout,
            grace=grace,
            priority=priority,
            retry=retry,
            limits=limits,
            name=name,
            capture_output=capture_output,
            **unknown,
        )
        return ExecutorView(self, changed)


class ProcessExecutor(_Submitter, Executor):
    """Runs calls in child processes that can be stopped; a drop-in for `ProcessPoolExecutor`.

    What a call assigns to globals of the main script is gone with it, for they travel with each call; those of modules
    stay with the worker.

    Args:
        max_workers: how many calls run at once; by default as many as in a `ProcessPool`.
        timeout: seconds after which a call is ended with everything it started; None for no limit.
        grace: seconds between asking a call to stop and killing it.
        initializer, initargs: called in each worker before its first call. What one of the main script assigns to
            globals of the script is there in the calls, in the place of the value that travels with them.
        preload: names of modules imported once, in the process from which the workers are forked. State that a module
            makes at its import, such as that of a random generator of its own, is then the same in all of them;
            numpy's global generator is seeded in each.
        max_tasks_per_child: a worker that has run this many calls is replaced.
        limits: what each call may use beside time. They hold for every call, also where `options` gives others: of the
            two, the tighter ones.
        sandbox: run code that nobody trusts; a `timeout` is required then. See `Sandbox`, and `ProcessPool` for what
            cannot be given with it.
        retry: how often a call that fails is tried, and when.
        spin: seconds, at most 0.001, for which a thread that waits for a result first looks whether it is there, again
            and again, without letting another thread of this process run. For brief calls one at a time, beside threads
            that compute: 0.0002 mostly spares them the switch interval of five milliseconds. 0, the default, for never.
        pool_options: those of `ProcessPool`: `max_rss_per_worker`, `env`, `cwd`, `nice`, `capture_output`,
            `start_timeout`.
    Raises:
        ValidationError: naming the option.
        SandboxUnavailableError: a promise of the sandbox cannot be kept here.
    Thread safety: all methods may be called from any thread, and from signal handlers; from one that has interrupted
        the executor itself a shutdown does not wait.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        timeout: float | None = None,
        grace: float = 0.0,
        initializer: Callable[..., object] | None = None,
        initargs: Sequence[Any] = (),
        preload: Sequence[str] = (),
        max_tasks_per_child: int | None = None,
        limits: Limits | None = None,
        sandbox: Sandbox | None = None,
        retry: RetryPolicy = NO_RETRY,
        spin: float = 0.0,
        **pool_options: Any,
    ) -> None:
        self._options = Options().replace(timeout=timeout, grace=grace, retry=retry, limits=limits)
        if sandbox is not None:
            self._options = self._options.in_sandbox()
        if max_workers is not None and (
            isinstance(max_workers, bool) or not isinstance(max_workers, int) or max_workers < 1
        ):
            raise ValidationError(f"max_workers must be greater than 0, a whole number, not {max_workers!r}")
        if max_tasks_per_child is not None:
            whole_number("max_tasks_per_child", max_tasks_per_child)
        from procsched.workers.options import POOL_OPTIONS

        own = ("max_workers", "timeout", "grace", "max_tasks_per_child", "limits", "sandbox", "retry", "spin")
        theirs = [name for name in POOL_OPTIONS if name not in ("max_runs_per_worker", "limits", "sandbox")]
        check_names(pool_options, [*own, *theirs])
        from procsched.workers.pool import ProcessPool  # here, so that the import of an executor stays quick

        pool = ProcessPool(
            max_workers,
            initializer=initializer,
            initargs=initargs,
            preload=preload,
            max_runs_per_worker=max_tasks_per_child,
            limits=limits,
            sandbox=sandbox,
            **pool_options,
        )
        pool.spin = finite_seconds("spin", spin)
        if pool.spin > LONGEST_SPIN:
            raise ValidationError(
                f"spin must be at most {LONGEST_SPIN} s, not {spin!r}: while a caller spins, no other thread of this "
                "process runs"
            )
        self._core = Core(pool)
        # When nobody refers to the executor any more it finishes its calls and ends.
        self._finalizer = weakref.finalize(self, self._core.shutdown, wait=False, cancel=False)
        self._finalizer.atexit = False

    def sandbox_report(self) -> Report | None:
        """Return what keeps each promise of the sandbox here, and which were given up; None without a sandbox."""
        return self._core.pool.sandbox_report()

    def stats(self) -> Stats:
        """Return a snapshot: workers, counters, calls that wait or run, and problems; also after a shutdown.

        The counters are those of `Scheduler.stats` that make sense here, with two more: ``cancelled`` and ``returned``
        count the calls that were withdrawn before they began, or between two attempts, by `cancel` and by a shutdown.

        Raises:
            SchedulerStateError: in a fork of the process that made the executor.
        """
        return self._core.stats()

    def health(self, stuck_after: float | timedelta = 1.0) -> Health:
        """Return how the threads and processes of this executor are: see `procsched.health`."""
        from procsched import diagnosis  # here, so that the import of an executor stays quick

        return diagnosis.look([self._core], stuck_after)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with `wait` return when all have ended and no process is left.

        With `cancel_futures` calls that have not started are cancelled; those for which a worker is free, or about
        to be ready, count as started. Without `wait` the calls go on and the executor ends after the last.
        """
        self._core.shutdown(wait=wait, cancel=cancel_futures)

    def terminate_workers(self) -> None:
        """End every worker now: what runs ends as KILLED, what waits is cancelled. As in Python 3.14."""
        self._core.shutdown(wait=False, cancel=True, kill=True)

    def kill_workers(self) -> None:
        """The same as `terminate_workers`: a worker of ours is always killed, after the call's own grace."""
        self.terminate_workers()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        """Wait for the calls and end, also where an ordinary exception leaves the block, as the standard library does.

        KeyboardInterrupt, SystemExit and CancelledError withdraw the calls that wait and end those that run, also where
        they come while this waits.
        """
        # What is no Exception says that the program is to stop: KeyboardInterrupt, SystemExit, CancelledError.
        self._core.leave(kill=exc_type is not None and not issubclass(exc_type, Exception))
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """As `__exit__`, while the event loop goes on."""
        from procsched import aio

        await aio.leave(self._core, kill=exc_type is not None and not issubclass(exc_type, Exception))

    def __reduce__(self) -> Never:
        raise TypeError(
            "an executor stays in the process that made it: an action that needs one makes its own"
        )

    def __repr__(self) -> str:
        return f"<ProcessExecutor of {self._core.pool.size} workers, {len(self._core.open)} calls open>"


name_after(ProcessExecutor)


class ExecutorView(_Submitter):
    """An executor with other settings for its calls: see `ProcessExecutor.options`."""

    def __init__(self, executor: _Submitter, options: Options) -> None:
        # It would finish if nobody referred to it.
        self._executor: _Submitter = executor._executor if isinstance(executor, ExecutorView) else executor
        self._core = executor._core
        self._options = options
