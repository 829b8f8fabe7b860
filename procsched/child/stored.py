"""Opening a call that a store kept: in the worker, and nowhere else. `stores/payloads.py` has the other side.

Whatever keeps it from being opened is an `Unloadable`: nothing of the task has run, and it is no failure of its own.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

REFERENCE, BLOB = (
    "reference",
    "cloudpickle",
)  # what stands for the function; a blob holds the arguments as well
NOTHING = "gone"  # there is no call to be opened: the name says why
JSON, PICKLE = "json", "pickle"  # what the arguments of a reference are written in


class Unloadable(Exception):
    """The code of a stored task, or its arguments, cannot be loaded here. The text says why."""


def python_tag() -> str:
    """Return what a pickle by value depends on: the interpreter and its version up to the minor one."""
    return f"{sys.implementation.name} {sys.version_info[0]}.{sys.version_info[1]}"


def run_stored(kind: str, name: str, form: str, data: bytes, python: str, pickler: str) -> Any:
    """Open a stored call and make it. The arguments are as in `payloads.StoredCall`.

    Raises:
        Unloadable: it cannot be opened; nothing of it has run.
    """
    try:
        if kind == REFERENCE:
            function, args, kwargs = _find(name), *_arguments(form, data)
        elif kind == BLOB:
            function, args, kwargs = _open_blob(name, data, python, pickler)
        elif kind == NOTHING:
            raise Unloadable(name)
        else:
            raise Unloadable(f"this version of procsched knows no payload of the kind {kind!r}")
    except (Exception, SystemExit) as error:  # a module that exits when it is imported
        refuse(error)
    return function(*args, **kwargs)


def refuse(error: BaseException) -> NoReturn:
    """Say as `Unloadable` what has kept a call from being opened, unless it was asked to stop meanwhile."""
    if isinstance(error, Unloadable):
        raise error
    from procsched.errors import TaskKilledError, TaskTimeoutError

    if isinstance(error, (TaskKilledError, TaskTimeoutError)):
        raise error
    raise Unloadable(f"{type(error).__name__}: {error}") from error


def _find(name: str) -> Any:
    module_name, _colon, path = name.partition(":")
    if module_name not in sys.modules:
        # A file that was not there at the last look may be by now.
        import importlib

        importlib.invalidate_caches()
    __import__(module_name)
    found: Any = sys.modules[module_name]
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise Unloadable(f"module {module_name!r} has no {path!r} (any more)") from None
    if not callable(found):
        raise Unloadable(f"{name} is a {type(found).__name__}, and cannot be called")
    return found


def _arguments(form: str, data: bytes) -> tuple[Any, Any]:
    if form == JSON:
        import json

        args, kwargs = json.loads(data)
    elif form == PICKLE:
        import pickle

        args, kwargs = pickle.loads(data)
    else:
        raise Unloadable(f"this version of procsched knows no arguments in the form {form!r}")
    return args, kwargs


def _open_blob(name: str, data: bytes, python: str, pickler: str) -> Any:
    here = python_tag()
    if python != here:
        # Byte code of another version does not only fail: it can crash the interpreter when it is called.
        raise Unloadable(
            f"{name} was stored by value under {python}, and this is {here}: "
            "schedule it again here, or put it into a module that can be imported"
        )
    import pickle

    import cloudpickle

    if pickler.partition(".")[0] != cloudpickle.__version__.partition(".")[0]:
        raise Unloadable(
            f"{name} was stored with cloudpickle {pickler}, and this is {cloudpickle.__version__}"
        )
    return pickle.loads(data)
