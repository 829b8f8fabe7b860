"""Pickling by value with cloudpickle, and what we do otherwise than it.

- cloudpickle (from 3.1.2 on) writes ``<dynamic-code>`` in place of a code object's file name, so that equal functions
  give equal bytes wherever they were defined. For us a traceback that names the user's file and line is worth more.
- It makes a class with ``__slots__`` anew without them, and then instances cannot go back to where the slots are.
- It gives each function cells of its own. Functions that share a variable by `nonlocal` share it in the worker too.
- A class that comes back to the process which defined it is that class, and cloudpickle would put the attributes of the
  copy in the place of its own: methods whose globals are no longer those of the script. Here it is left as it is.
- Some kinds of objects it does not know, or pickles otherwise than we need: see `_bykind.py`.
- What an initializer of the main script has set is there in the calls after it: see `child/initializing.py`, which is
  told here of the functions and classes that come.
"""

from __future__ import annotations

import functools
import io
import types
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CTYPES = frozenset({"_ctypes", "ctypes._endian"})  # where the metaclasses of `ctypes` are
_pickler: Any = None  # made at the first use, for cloudpickle takes thirty milliseconds to import
_sent: weakref.WeakSet[type] = weakref.WeakSet()  # classes that went by value
# Classes that came by value, and were not defined here, with the names that they had before they were filled.
_received: weakref.WeakKeyDictionary[type, frozenset[str]] = weakref.WeakKeyDictionary()

# In a worker with an initializer that came by value. The first two are called with what came, the last with what goes
# back to the parent and its state, and returns the state to send. `child/closures.py` asks for the first too.
on_globals: Callable[[dict[str, Any]], None] | None = None
on_class: Callable[[type], None] | None = None
without_own: Callable[[Any, Any], Any] | None = None


def dumps(value: object, *, homeward: bool = False) -> bytes:
    """Return `value` pickled, what lives in the main script or in a closure by value; `homeward` as for `dump`.

    Raises:
        Exception: whatever cloudpickle or the object's own reduction raises.
    """
    buffer = io.BytesIO()
    dump(value, buffer, homeward=homeward)
    return buffer.getvalue()


def dump(value: object, file: Any, take: Any = None, *, homeward: bool = False) -> Any:
    """Pickle `value` into `file`, with `take` as the callback for buffers (PEP 574); return the pickler.

    Args:
        homeward: it goes to the parent, which has no use for what the initializer of this worker has set.
    Raises:
        Exception: as `dumps` does.
    """
    global _pickler
    if _pickler is None:
        _pickler = _make_pickler()
    pickler = _pickler(file, 5, take)
    pickler.homeward = homeward
    pickler.boxes = {}
    pickler.cells = {}
    pickler.dump(value)
    return pickler


def _make_pickler() -> Any:
    import typing
    from collections import ChainMap

    import cloudpickle

    from procsched import _bykind  # here, for who sends no such thing never needs it

    reduce_code = cloudpickle.Pickler.dispatch_table[types.CodeType]

    def with_file_name(code: types.CodeType) -> Any:
        make, arguments = reduce_code(code)
        return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in arguments)

    reduce_standard = cloudpickle.Pickler.dispatch_table[io.TextIOWrapper]
    reducers: dict[Any, Any] = {
        types.CodeType: with_file_name,
        _bykind.CACHED: _bykind.reduce_cached,
        io.TextIOWrapper: functools.partial(_bykind.reduce_file, reduce_standard),
        weakref.WeakKeyDictionary: _bykind.reduce_weak_keys,
        functools.cached_property: _bykind.reduce_property,
    }
    for kind in ("NewType", "ParamSpec", "TypeVarTuple"):
        reducers[getattr(typing, kind)] = _bykind.reduce_typing
    alias_type = getattr(typing, "TypeAliasType", None)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        dispatch_table = ChainMap(reducers, cloudpickle.Pickler.dispatch_table)
        homeward = False
        boxes: dict[int, list[Any]]
        cells: dict[int, types.CellType]  # an empty one for each that was met, which the pickler knows again

        def reducer_override(self, obj: Any) -> Any:
            is_function = type(obj) is types.FunctionType
            if not is_function and not issubclass(type(obj), type):
                if type(obj) is alias_type:
                    return _bykind.reduce_alias(obj, self.boxes)
                if "_member_map_" in type(obj).__dict__ and _goes_by_value(type(obj)):
                    return _bykind.reduce_member(obj)
                return _reduce_own(obj, self.dispatch_table)
            reduced = super().reducer_override(obj)
            if type(reduced) is not tuple or len(reduced) != 6:  # by name
                return reduced
            if type(obj).__module__ in _CTYPES or obj.__module__ in _CTYPES:
                reduced = _bykind.fit_ctypes(obj, reduced)
                if len(reduced) != 6:
                    return reduced
            make, arguments, state, _items, _pairs, set_state = reduced
            if self.homeward and without_own is not None:
                state = without_own(obj, state)
            if is_function:
                if obj.__closure__ is not None:
                    empty = [self.cells.setdefault(id(cell), types.CellType()) for cell in obj.__closure__]
                    arguments = (*arguments[:4], tuple(empty))
                return make, arguments, (set_state, state), None, None, set_function
            if "_member_map_" in obj.__dict__:
                make, arguments, state, _items, _pairs, set_state = _bykind.fit_enum(
                    obj, (make, arguments, state, None, None, set_state)
                )
            elif "__slots__" in obj.__dict__:
                _keep_slots(obj, arguments, state)
            if arguments[0] is type(obj):
                arguments = _bykind.fit_hooks(obj, arguments)
            arguments = _bykind.fit_typing(obj, arguments, state)
            _sent.add(obj)
            return make, arguments, (set_state, state), None, None, set_class

    return Pickler


def _goes_by_value(cls: type) -> bool:
    """Return whether no worker can import a class: True only where that is certain at a glance."""
    return cls.__module__ == "__main__" or "<locals>" in cls.__qualname__


def _reduce_own(obj: object, reducers: Any) -> Any:
    """Refuse an object of the main script that goes by a name, which no worker knows, as a singleton may."""
    kind: Any = type(obj)
    if kind.__module__ != "__main__" or kind in reducers:
        return NotImplemented
    if kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__:
        return NotImplemented
    reduced = obj.__reduce_ex__(5)
    if type(reduced) is str:
        from pickle import PicklingError

        raise PicklingError(f"it goes by its name in the main script, {reduced!r}, which no worker knows")
    return reduced


def _keep_slots(cls: type, arguments: tuple[Any, ...], state: tuple[dict[str, Any], Any]) -> None:
    """Have a class that is made anew have its slots: they must be there when it is made."""
    slots = cls.__dict__["__slots__"]
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    namespace = arguments[3] if len(arguments) > 3 else None
    # An enum and a named tuple are made in ways of their own, and have no slots but those that these give.
    if isinstance(namespace, dict) and not any(
        getattr(base, "__module__", "") == "typing" and base.__name__ == "NamedTuple" for base in arguments[2]
    ):
        namespace["__slots__"] = names
        for name, value in cls.__dict__.items():
            if type(value) is types.MemberDescriptorType and value.__objclass__ is cls:
                state[0].pop(name, None)


def set_function(function: Any, state: tuple[Callable[[Any, Any], object], Any]) -> None:
    """Fill a function that came by value. Named in pickles, like the next one."""
    set_state, own = state
    set_state(function, own)
    if on_globals is not None:
        on_globals(function.__globals__)


def set_class(cls: type, state: tuple[Callable[[Any, Any], object], Any]) -> None:
    """Fill a class that came by value, unless it has come home."""
    if cls in _sent and cls not in _received:
        return
    set_state, own = state
    bare = _received.get(cls)
    if bare is None:
        _received[cls] = frozenset(cls.__dict__)
    elif type(cls).__module__ in _CTYPES:
        if "_fields_" in cls.__dict__:  # it came before, and they are final
            own[0].pop("_fields_", None)
    elif type(own[0]) is dict:  # what a call has added, or the sender has deleted since, goes
        for name in cls.__dict__.keys() - bare - own[0].keys():
            if not name.startswith("__"):  # what Python makes when it is asked for
                type.__delattr__(cls, name)
    set_state(cls, own)
    if on_class is not None:
        on_class(cls)
