"""Turning an action and its arguments into bytes that a worker can load."""

from __future__ import annotations

import functools
import pickle
import sys
import types

from procsched import _byvalue, _parcels
from procsched.workers import closures, references

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
        from procsched import _culprits  # here, for most programs never need it

        raise _culprits.explain(action, args, kwargs, error, "sent to a worker") from error


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
