"""`ProcessExecutor` in the place of `ProcessPoolExecutor`, for the standard library's own tests.

What the adapter adds, and no more: the library's signature (there is no `mp_context` here, since there is one way to
start workers), stand-ins for the private attributes that the tests wait on, `BrokenExecutor` where the tests say
`BrokenProcessPool`, which is the change that docs/pages/how-to/from-process-pool-executor.md asks of users, and a
plain RuntimeError where one test reads the name of the class in what was printed. The collector runs before the tests
count the threads: Python 3.11.2's do not wait for it.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.process
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from procsched import ProcessExecutor, SchedulerStateError
from procsched.workers.sending import WorkerState
from tests import support

_GOING = (WorkerState.LEAVING, WorkerState.DYING, WorkerState.GONE)


class ProcessPoolExecutor(ProcessExecutor):
    """`ProcessExecutor` with the signature of the library's."""

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: Any = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        forks = mp_context is not None and mp_context.get_start_method(allow_none=False) == "fork"
        if forks and max_tasks_per_child is not None:
            raise ValueError("max_tasks_per_child is incompatible with the 'fork' start method")
        super().__init__(
            max_workers,
            initializer=initializer,
            initargs=initargs,
            max_tasks_per_child=max_tasks_per_child,
        )
        self._processes = _Processes(self._core.pool)
        self._max_workers = self._core.pool.size
        self._call_queue = _NoQueue()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().submit(fn, *args, **kwargs)
        except SchedulerStateError as error:
            raise RuntimeError(str(error)) from error

    @property
    def _executor_manager_thread(self) -> threading.Thread:
        return self._core.pool.loop.thread


class _Process:
    """One worker, as the tests look at it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def join(self) -> None:
        support.assert_gone(self.pid)

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)


class _Processes(Mapping[int, _Process]):
    """The workers that have been given a call, by pid: not the spare, which the library does not have."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def _pids(self) -> list[int]:
        if self._pool._source is None:
            return []
        with self._pool.lock:
            return [
                worker.pid
                for worker in self._pool.fleet.workers.values()
                if worker.pid is not None
                and worker.state not in _GOING
                and (worker.runs or worker.call is not None)
            ]

    def __getitem__(self, pid: int) -> _Process:
        return _Process(pid)

    def __iter__(self) -> Iterator[int]:
        return iter(self._pids())

    def __len__(self) -> int:
        return len(self._pids())


class _NoQueue:
    def join_thread(self) -> None:
        """There is no queue, and no thread that feeds it."""


def install() -> None:
    """Put the adapter where the library's class was. Before the tests are imported."""
    module: Any = concurrent.futures.process
    concurrent.futures.ProcessPoolExecutor = module.ProcessPoolExecutor = ProcessPoolExecutor  # type: ignore[misc]
    module.BrokenProcessPool = concurrent.futures.BrokenExecutor
    from test.support import threading_helper

    cleanup = threading_helper.threading_cleanup

    def collected(*values: Any) -> None:
        """An executor and its thread, which has ended, are a cycle: only what the collector leaves was left."""
        gc.collect()
        cleanup(*values)

    threading_helper.threading_cleanup = collected


def with_adapter(assert_python_ok: Callable[..., Any], path: list[str]) -> Callable[..., Any]:
    """Return `assert_python_ok` that has the programs which it starts use the adapter too."""
    line = "from concurrent.futures import ProcessPoolExecutor"

    def start(option: str, program: str, **options: Any) -> Any:
        assert option == "-c"
        if line in program:
            # Where the test has it, for the order of imports decides the order of what is done at exit.
            program = program.replace(line, f"from {__name__} import {ProcessPoolExecutor.__name__}")
            program = f"import sys\nsys.path[:0] = {path!r}\n{program}"
            options.setdefault(support.RUN_MARK, os.environ.get(support.RUN_MARK, ""))
        return assert_python_ok(option, program, **options)

    return start
