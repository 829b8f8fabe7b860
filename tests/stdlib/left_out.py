"""Which of the standard library's tests are left out, each with its reason. Two reasons are allowed."""

from __future__ import annotations

from typing import NamedTuple

BREAKS_ALL = "the library breaks the whole pool, we do not"
PRIVATE = "looks into the library's private attributes"
REASONS = (BREAKS_ALL, PRIVATE)


class LeftOut(NamedTuple):
    """One test, in the classes of every start method."""

    cls: str  # without "ProcessPool", the start method and "Test"
    test: str
    reason: str
    note: str
    since: tuple[int, int] = (3, 11)


LEFT_OUT = (
    LeftOut(
        "FailingInitializer",
        "test_initializer",
        BREAKS_ALL,
        "waits until `_broken` is set; here the calls that wait fail, and the next try starts a worker anew",
    ),
    LeftOut(
        "FailingInitializerResourcesTest",
        "test_spawn",
        BREAKS_ALL,
        "runs the test above",
        since=(3, 12),
    ),
    LeftOut(
        "FailingInitializerResourcesTest",
        "test_forkserver",
        BREAKS_ALL,
        "runs the test above",
        since=(3, 12),
    ),
    LeftOut(
        "Executor",
        "test_killed_child",
        BREAKS_ALL,
        "a later submit must fail; here it works",
    ),
    LeftOut(
        "ExecutorDeadlock",
        "test_error_at_task_unpickle",
        BREAKS_ALL,
        "an argument that cannot be loaded: here that call raises the error itself",
    ),
    LeftOut(
        "ExecutorDeadlock",
        "test_exit_at_task_unpickle",
        BREAKS_ALL,
        "an argument whose loading raises SystemExit: here that call raises it",
    ),
    LeftOut(
        "ExecutorDeadlock",
        "test_error_during_result_unpickle_in_result_handler",
        BREAKS_ALL,
        "a result that cannot be loaded: here that call says so",
    ),
    LeftOut(
        "ExecutorDeadlock",
        "test_exit_during_result_unpickle_in_result_handler",
        BREAKS_ALL,
        "a result whose loading raises SystemExit: here that call raises it",
    ),
    LeftOut(
        "Shutdown",
        "test_processes_terminate",
        PRIVATE,
        "counts `_processes` that the library starts for calls it then cannot pickle",
    ),
    LeftOut(
        "Executor",
        "test_saturation",
        PRIVATE,
        "counts `_processes` that the library starts for calls it then cannot pickle",
    ),
    LeftOut(
        "Executor",
        "test_traceback",
        PRIVATE,
        "wants `futures.process._RemoteTraceback` as the cause; here the worker's frames are in the traceback itself",
    ),
    LeftOut(
        "Executor",
        "test_max_tasks_per_child_defaults_to_spawn_context",
        PRIVATE,
        "reads `_mp_context`; there are no start methods here",
    ),
    LeftOut(
        "Executor",
        "test_python_finalization_error",
        PRIVATE,
        "replaces `threading._start_joinable_thread` and counts on the library's second thread",
        since=(3, 13),
    ),
)
