"""Every exception a user of procsched can catch.

Three families, never mixed: the call was wrong (`ValidationError`, `UnknownOptionError`,
`TaskNotFoundError`, `SchedulerStateError`, `TaskSerializationError`); the task failed (`TaskTimeoutError`,
`WorkerCrashedError`, `LimitExceededError`, `TaskKilledError`, `RemoteError`); procsched or the system
failed (`TaskLostError`, `StoreError`, `StoreInUseError`, `SandboxUnavailableError`). All survive pickling with their
attributes.
"""

from __future__ import annotations

from concurrent.futures import BrokenExecutor
from pickle import PicklingError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ProcschedError(Exception):
    """Base of every error that procsched raises.

    Attributes that a subclass documents are keyword arguments of its constructor and survive pickling.
    """

    def __init__(self, message: str = "", /, **details: Any) -> None:
        super().__init__(message)
        self.__dict__.update(details)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.__class__, self.args, self.__dict__))


def _rebuild(cls: type[ProcschedError], args: tuple[Any, ...], state: dict[str, Any]) -> ProcschedError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ValidationError(ProcschedError, ValueError):
    """An argument has a wrong type or value; the message names the parameter and the remedy."""


class UnknownOptionError(ValidationError, TypeError):
    """There is no option of this name; the message says which was probably meant. A TypeError, as in any call."""


class ScheduleError(ValidationError):
    """A schedule cannot be: a bad expression, an unknown zone, or one that never yields a due time."""


class TaskNotFoundError(ProcschedError, KeyError):
    """No task has this id. The text is the plain message, without the quotes a KeyError adds."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SchedulerStateError(ProcschedError, RuntimeError):
    """The call is not possible now: not started, already shut down, or made from the wrong place."""


class TaskSerializationError(ProcschedError, PicklingError):
    """An action, argument or result cannot be pickled. Also a `pickle.PicklingError`.

    Attributes:
        path: where the object hangs, such as ``args[0]['log'].handle``; "" where it could not be found.
        type_name: the type of the object that cannot be pickled; "" where unknown.
    """

    path: str = ""
    type_name: str = ""


class _EndedError(ProcschedError):
    """Base of those that tell of a run which did not come back. What they know is None where it is not known."""

    pid: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    stack: str | None = None
    output: str | None = None
    peak_rss: int | None = None
    cpu_seconds: float | None = None


class TaskTimeoutError(_EndedError, TimeoutError):
    """A run is out of time.

    Raised inside the action when it is asked to stop (soft timeout, or the deadline with a grace), and
    by `result()` for a call that was ended at its deadline.

    Attributes:
        timeout: the limit in seconds, or None.
        pid, exit_code, signal, stack, output, peak_rss, cpu_seconds: as in the `ExecutionRecord`. Notes of the
            exception show them, so that a traceback says why it hung.
    """

    timeout: float | None = None


class WorkerCrashedError(_EndedError, BrokenExecutor):
    """The process of a run died, or could not be started.

    Attributes:
        exit_code: the exit code, or None when a signal ended it.
        signal: the signal's name such as ``"SIGSEGV"``, or None.
        pid, stack, output, peak_rss, cpu_seconds: as in the `ExecutionRecord`. Notes of the exception show them,
            so that a traceback says why it died.
    """


class LimitExceededError(_EndedError):
    """A run used more than a limit allows.

    Attributes:
        limit: the limit's name and value, such as ``"memory=268435456"``.
        pid, exit_code, signal, stack, output, peak_rss, cpu_seconds: as in the `ExecutionRecord`.
    """

    limit: str | None = None


class TaskKilledError(_EndedError):
    """A run was ended on request: `kill`, `cancel(kill=True)` or a shutdown. Attributes as `WorkerCrashedError`."""


class TaskLostError(_EndedError):
    """The scheduler, the helper process or the node died under the run; what it did is unknown.

    Attributes as `WorkerCrashedError`, as far as they are known.
    """


class StoreError(ProcschedError):
    """A store cannot be used, or did not take what was to be written. The text never holds a password."""


class StoreInUseError(StoreError):
    """Another scheduler has the store, or has taken it over.

    Attributes:
        pid: of its process, None where that is not known.
        host: the machine on which that is.
    """

    pid: int | None = None
    host: str | None = None


class SandboxUnavailableError(ProcschedError):
    """This system cannot keep a promise of the sandbox, or start one at all.

    Attributes:
        promise: the promise's name; "" where it is not for one of them, as with an interpreter that cannot be read.
        tried: what was tried, in words.
        remedy: what would make it possible.
    """

    promise: str = ""
    tried: str = ""
    remedy: str = ""


class RemoteError(ProcschedError):
    """Stands in for an exception or a result that could not travel, or could not be loaded here.

    Attributes:
        type_name: the type's name in the child, such as ``"MyError"``.
        message: its text.
        traceback: the child's traceback as text, or "".
    """

    type_name: str = ""
    message: str = ""
    traceback: str = ""


# Their public path, in tracebacks of a worker as well, where the package does not see to it as it does in the parent.
for _value in list(globals().values()):
    if isinstance(_value, type) and issubclass(_value, ProcschedError) and _value.__name__[0] != "_":
        _value.__module__ = "procsched"
