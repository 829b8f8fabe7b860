"""A scheduler and an executor that run jobs in child processes they can really stop.

The names in `__all__` are the public interface; everything else may change. They are loaded when first
asked for, so that `import procsched` costs next to nothing and a program pays only for what it uses.
"""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._core.health import Health, PartHealth
    from procsched._core.limits import Limits
    from procsched._core.models import (
        DEFAULT_RETRY,
        NO_RETRY,
        ExecutionRecord,
        MisfirePolicy,
        Outcome,
        OverrunPolicy,
        Priority,
        QueueEntry,
        RetryPolicy,
        ScheduledTask,
        ShutdownReport,
        Stats,
        Task,
        TaskEvent,
        TaskStatus,
        WorkerStats,
    )
    from procsched.child.current import current_run
    from procsched.clock import SystemClock
    from procsched.diagnosis import health
    from procsched.dumping import dump, dump_on_signal
    from procsched.errors import (
        LimitExceededError,
        ProcschedError,
        RemoteError,
        SandboxUnavailableError,
        ScheduleError,
        SchedulerStateError,
        StoreError,
        StoreInUseError,
        TaskKilledError,
        TaskLostError,
        TaskNotFoundError,
        TaskSerializationError,
        TaskTimeoutError,
        UnknownOptionError,
        ValidationError,
        WorkerCrashedError,
    )
    from procsched.event_log import EventLog
    from procsched.executor import ProcessExecutor
    from procsched.future import ProcessFuture
    from procsched.ids import SequentialIdGenerator
    from procsched.protocols import Clock, IdGenerator, Schedule, TaskListener, TaskStore, WorkerPool
    from procsched.sandbox.policy import Sandbox, Source
    from procsched.scheduler import Scheduler
    from procsched.schedules import After, CronSchedule, FixedDelay, FixedRate, OneTime
    from procsched.shared import killable, run, shutdown_shared
    from procsched.steering import StoreClient, connect
    from procsched.stores.memory import InMemoryTaskStore
    from procsched.stores.sql import SqlTaskStore
    from procsched.testing import FakeClock
    from procsched.workers.local import InlinePool, ThreadPool
    from procsched.workers.pool import ProcessPool

__all__ = [
    "DEFAULT_RETRY",
    "NO_RETRY",
    "After",
    "Clock",
    "CronSchedule",
    "EventLog",
    "ExecutionRecord",
    "FakeClock",
    "FixedDelay",
    "FixedRate",
    "Health",
    "IdGenerator",
    "InMemoryTaskStore",
    "InlinePool",
    "LimitExceededError",
    "Limits",
    "MisfirePolicy",
    "OneTime",
    "Outcome",
    "OverrunPolicy",
    "PartHealth",
    "Priority",
    "ProcessExecutor",
    "ProcessFuture",
    "ProcessPool",
    "ProcschedError",
    "QueueEntry",
    "RemoteError",
    "RetryPolicy",
    "Sandbox",
    "SandboxUnavailableError",
    "Schedule",
    "ScheduleError",
    "ScheduledTask",
    "Scheduler",
    "SchedulerStateError",
    "SequentialIdGenerator",
    "ShutdownReport",
    "Source",
    "SqlTaskStore",
    "Stats",
    "StoreClient",
    "StoreError",
    "StoreInUseError",
    "SystemClock",
    "Task",
    "TaskEvent",
    "TaskKilledError",
    "TaskListener",
    "TaskLostError",
    "TaskNotFoundError",
    "TaskSerializationError",
    "TaskStatus",
    "TaskStore",
    "TaskTimeoutError",
    "ThreadPool",
    "UnknownOptionError",
    "ValidationError",
    "WorkerCrashedError",
    "WorkerPool",
    "WorkerStats",
    "connect",
    "current_run",
    "dump",
    "dump_on_signal",
    "health",
    "killable",
    "run",
    "shutdown_shared",
]

# Where each public name lives: the imports above once more, for the interpreter, which does not run them.
# A unit test holds the two and `__all__` together.
_MODULES = {
    "procsched._core.health": "Health PartHealth",
    "procsched._core.limits": "Limits",
    "procsched._core.models": (
        "DEFAULT_RETRY NO_RETRY ExecutionRecord MisfirePolicy Outcome OverrunPolicy Priority QueueEntry "
        "RetryPolicy ScheduledTask ShutdownReport Stats Task TaskEvent TaskStatus WorkerStats"
    ),
    "procsched.child.current": "current_run",
    "procsched.clock": "SystemClock",
    "procsched.diagnosis": "health",
    "procsched.dumping": "dump dump_on_signal",
    "procsched.errors": (
        "LimitExceededError ProcschedError RemoteError SandboxUnavailableError ScheduleError "
        "SchedulerStateError StoreError StoreInUseError TaskKilledError TaskLostError TaskNotFoundError "
        "TaskSerializationError TaskTimeoutError UnknownOptionError ValidationError WorkerCrashedError"
    ),
    "procsched.event_log": "EventLog",
    "procsched.executor": "ProcessExecutor",
    "procsched.future": "ProcessFuture",
    "procsched.ids": "SequentialIdGenerator",
    "procsched.protocols": "Clock IdGenerator Schedule TaskListener TaskStore WorkerPool",
    "procsched.sandbox.policy": "Sandbox Source",
    "procsched.scheduler": "Scheduler",
    "procsched.schedules": "After CronSchedule FixedDelay FixedRate OneTime",
    "procsched.shared": "killable run shutdown_shared",
    "procsched.steering": "StoreClient connect",
    "procsched.stores.memory": "InMemoryTaskStore",
    "procsched.stores.sql": "SqlTaskStore",
    "procsched.testing": "FakeClock",
    "procsched.workers.local": "InlinePool ThreadPool",
    "procsched.workers.pool": "ProcessPool",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}
_unnamed = dict(_MODULES)  # modules whose objects do not show their public path yet


def __getattr__(name: str) -> object:
    """Load a public name at its first use (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'procsched' has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    _show_public_paths()
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _show_public_paths() -> None:
    """Make public classes and functions loaded by now say `procsched.Name` in tracebacks and reprs.

    Every loaded module is visited, not only the one that was asked for: a `ValidationError` raised by a
    `Scheduler` should read as the name a user can import, though nobody imported it yet. Pickles made
    before and after load alike, since both paths lead to the same object.
    """
    from sys import modules

    for home, names in list(_unnamed.items()):
        found = getattr(modules.get(home), "__dict__", {})
        objects = [found.get(name) for name in names.split()]
        if None in objects:
            continue  # not loaded, or another thread is in the middle of loading it
        for value in objects:
            # Only what this package itself defines as a class or function; constants keep their type's path.
            if getattr(value, "__qualname__", None) and getattr(value, "__module__", "") != __name__:
                value.__module__ = __name__
        _unnamed.pop(home, None)
