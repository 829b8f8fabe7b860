"""Turning an action and its arguments into bytes, and saying what is wrong where that fails."""

from __future__ import annotations

import functools
import io
import pickle
import sys
import types

from procsched import _byvalue, _parcels
from procsched.errors import TaskSerializationError
from procsched.workers import closures, references

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_DEPTH = 12  # how deep to look for what cannot be pickled
_LOOKS = 2000  # how many objects to look at
_FUNCTIONS = frozenset({types.FunctionType, types.BuiltinFunctionType, type})


def pack(
    action: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, apart: bool = True
) -> bytes | _parcels.Parcel:
    """Pickle a call so that a worker can load it.

    A mark and a name for a function with a plain name and small arguments (`references.py`), which is quickest; plain
    pickle where it serves, also for most closures and lambdas (`closures.py`); cloudpickle for what else lives in the
    main script or a module registered with `cloudpickle.register_pickle_by_value`, because a worker never runs the
    user's script.

    Args:
        apart: whether a large call may be made a parcel.
    Raises:
        TaskSerializationError: something cannot be pickled; says what, and where it hangs.
    """
    call = (action, args, kwargs)
    if "cloudpickle" not in sys.modules or not _registered_by_value():
        data: bytes | _parcels.Parcel | None = None
        if apart and not kwargs and type(action) is types.FunctionType and _parcels.are_small(args):
            data = references.pack(action, args)
            if data is not None:
                return data
        try:
            if apart and type(action) is types.FunctionType and closures.goes_by_value(action):
                data = closures.pack(action, args, kwargs)
            elif not apart or (
                type(action) in _FUNCTIONS
                and (not args or _parcels.are_small(args))
                and (not kwargs or _parcels.are_small(kwargs.values()))
            ):
                data = pickle.dumps(call, 5)
                if b"_main__" in data:  # `__main__`, and `__mp_main__` in a child of multiprocessing
                    data = None
            else:
                data = _parcels.pack(_plain(call), check=_is_importable, limited=True)
        except Exception:
            data = None
        # By reference into the main script would be found here, and nowhere in the worker.
        if data is not None:
            return data
    try:
        if not apart:
            return _byvalue.dumps(call)
        packed = _parcels.pack(functools.partial(_byvalue.dump, call), limited=True)
        assert packed is not None
        return packed
    except Exception as error:
        raise _explain(action, args, kwargs, error) from error


def _plain(call: object) -> _parcels.Dump:
    def dump(sink: _parcels.Sink, take: Any) -> pickle.Pickler:
        pickler = pickle.Pickler(sink, 5, buffer_callback=take)
        pickler.dump(call)
        return pickler

    return dump


def _is_importable(sink: _parcels.Sink) -> bool:
    return not sink.mentions(b"_main__")


def _registered_by_value() -> bool:
    """Return whether modules are registered with `cloudpickle.register_pickle_by_value`."""
    cloudpickle = sys.modules.get("cloudpickle")
    # Another thread may be in the middle of importing it: then nobody has registered anything yet.
    registry = getattr(cloudpickle, "list_registry_pickle_by_value", None)
    return registry is not None and bool(registry())


def _explain(
    action: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception
) -> TaskSerializationError:
    try:
        path, culprit = _find(action, args, kwargs)
    except Exception:  # somebody's attribute access raises
        path, culprit = "", None
    what = f"{type(error).__name__}: {error}"
    if not path:
        return TaskSerializationError(f"the call cannot be sent to a worker: {what}")
    kind = type(culprit).__qualname__
    return TaskSerializationError(
        f"{path}, of type {kind}, cannot be sent to a worker: {what}; {_remedy(culprit)}",
        path=path,
        type_name=kind,
    )


def _remedy(culprit: Any) -> str:
    if isinstance(culprit, io.IOBase):
        return "pass its path, and open it inside the action"
    return (
        "create it inside the action or once per worker in initializer=, pass plain data instead, "
        "or put it into a module that the worker can import"
    )


def _find(action: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """Return the deepest object that cannot be pickled, with the way to it."""
    roots = [("action", action)]
    roots += [(f"args[{index}]", value) for index, value in enumerate(args)]
    roots += [(f"kwargs[{name!r}]", value) for name, value in kwargs.items()]
    looks = 0
    for path, value in roots:
        if _can(value):
            continue
        for _ in range(_DEPTH):
            for name, part in _parts(value):
                looks += 1
                if looks > _LOOKS:
                    return path, value
                if not _can(part):
                    path, value = path + name, part
                    break
            else:
                return path, value
        return path, value
    return "", None


def _can(value: Any) -> bool:
    try:
        _byvalue.dumps(value)
    except Exception:
        return False
    return True


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what hangs directly below a value, each with the text that leads to it."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    code = getattr(value, "__code__", None)
    if code is not None:
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=False):
            try:
                yield f" (closure variable {name!r})", cell.cell_contents
            except ValueError:  # an empty cell
                continue
        defaults = value.__defaults__ or ()
        names = code.co_varnames[code.co_argcount - len(defaults) :]
        for name, part in (*zip(names, defaults, strict=False), *(value.__kwdefaults__ or {}).items()):
            yield f" (default of {name!r})", part
        for name in code.co_names:
            if name in value.__globals__:
                yield f" (global {name!r})", value.__globals__[name]
    for name in ("func", "args", "keywords", "__self__", "__func__", "__wrapped__"):
        if hasattr(type(value), name) or name in getattr(value, "__dict__", ()):
            yield f".{name}", getattr(value, name)
    for name, part in getattr(value, "__dict__", {}).items():
        yield f".{name}", part
