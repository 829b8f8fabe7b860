"""Pickling by value with cloudpickle, and what we do otherwise than it.

- cloudpickle (from 3.1.2 on) writes ``<dynamic-code>`` in place of a code object's file name, so that equal functions
  give equal bytes wherever they were defined. For us a traceback that names the user's file and line is worth more.
- It makes a class with ``__slots__`` anew without them, and then instances cannot go back to where the slots are.
- A class that comes back to the process which defined it is that class, and cloudpickle would put the attributes of the
  copy in the place of its own: methods whose globals are no longer those of the script. Here it is left as it is.
- It knows nothing of new types, `ParamSpec`, `TypeVarTuple`, type aliases, typed dicts and `functools.cached_property`.
- What an initializer of the main script has set is there in the calls after it: see `child/initializing.py`, which is
  told here of the functions and classes that come.
"""

from __future__ import annotations

import functools
import io
import operator
import os
import sys
import types
import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CTYPES = frozenset({"_ctypes", "ctypes._endian"})  # where the metaclasses of `ctypes` are
_pickler: Any = None  # made at the first use, for cloudpickle takes thirty milliseconds to import
_sent: weakref.WeakSet[type] = weakref.WeakSet()  # classes that went by value
_received: weakref.WeakSet[type] = weakref.WeakSet()  # classes that came by value, and were not defined here
# What `typing` has made, both ways: as with classes, what comes home is what went.
_keys: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()
_by_key: weakref.WeakValueDictionary[bytes, Any] = weakref.WeakValueDictionary()

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
    pickler.dump(value)
    return pickler


@functools.lru_cache
def _nothing() -> None:
    """A function with a cache, for its type."""


def _reduce_cached(function: Any) -> Any:
    """Reduce a function with `functools.lru_cache`: by name where a worker can import it, else anew, cache empty."""
    if getattr(function, "__module__", None) != "__main__":
        return function.__reduce__()
    settings = function.cache_parameters()
    return _make_cached, (function.__wrapped__, settings["maxsize"], settings["typed"])


def _make_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize=maxsize, typed=typed)(function)


def _reduce_file(reduce_standard: Callable[[Any], Any], file: io.TextIOWrapper) -> Any:
    """Reduce the standard streams, and no other file: cloudpickle would send a copy of all that is in it."""
    if file is sys.stdout or file is sys.stderr:
        return reduce_standard(file)
    raise TypeError("cannot pickle an open file")


def _reduce_weak_keys(weak: Any) -> Any:
    """Reduce what `functools.singledispatch` keeps its cache in. It holds what else holds its keys, as here."""
    return type(weak), (dict(weak),)


def _reduce_property(made: Any) -> Any:
    """Reduce a `functools.cached_property` without its lock, which it has up to Python 3.11."""
    return functools.cached_property, (made.func,), {"attrname": made.attrname, "__doc__": made.__doc__}


def _reduce_typing(thing: Any) -> Any:
    """Reduce what `typing` has pickled by name: so where a worker finds it under that, else anew."""
    name, module = thing.__name__, thing.__module__
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is thing:
        return thing.__reduce__()
    kind = type(thing).__name__
    if kind == "NewType":
        arguments: tuple[Any, ...] = (thing.__supertype__,)
    elif kind == "ParamSpec":
        arguments = (thing.__bound__, thing.__covariant__, thing.__contravariant__)
    else:
        arguments = ()
    key = _keys.setdefault(thing, os.urandom(16))
    _by_key[key] = thing
    return _make_typing, (kind, name, module, key, arguments)


def _make_typing(kind: str, name: str, module: str, key: bytes, arguments: tuple[Any, ...]) -> Any:
    """Make what `typing` has anew, unless it is here: it has come home, or came before. Named in pickles."""
    import typing

    made = _by_key.get(key)
    if made is not None:
        return made
    make: Any = getattr(typing, kind)
    if kind == "ParamSpec":
        bound, covariant, contravariant = arguments
        made = make(name, bound=bound, covariant=covariant, contravariant=contravariant)
    else:
        made = make(name, *arguments)
    made.__module__ = module
    _keys[made] = key
    _by_key[key] = made
    return made


def _reduce_alias(alias: Any, boxes: dict[int, list[Any]]) -> Any:
    """Reduce ``type name = value``, which Python has from 3.12 on, and which may mention itself.

    Args:
        boxes: the value of each alias, in a list: that may be referred to before what is in it has been pickled.
    """
    name, module = alias.__name__, alias.__module__
    if module != "__main__" and getattr(sys.modules.get(module), name, None) is alias:
        return name
    if alias.__type_params__ or not name.isidentifier():
        make: Any = type(alias)
        return functools.partial(make, name, alias.__value__, type_params=alias.__type_params__), ()
    box = boxes.get(id(alias))
    if box is None:
        box = boxes[id(alias)] = [alias.__value__]
    return _make_alias, (name, module, box)


def _make_alias(name: str, module: str, box: list[Any]) -> Any:
    """Make a type alias anew whose value is in `box` by the time that somebody asks. Named in pickles."""
    scope: dict[str, Any] = {"__name__": module, f"_{name}": box}
    exec(f"type {name} = _{name}[0]", scope)  # nothing but the statement makes one that is lazy
    return scope[name]


def _fit_typing(cls: type, arguments: tuple[Any, ...], state: tuple[dict[str, Any], Any]) -> tuple[Any, ...]:
    """Return the arguments for making a typed dict anew; take out of the state what a named tuple makes itself."""
    from typing import Generic

    meta: Any = type(cls)
    if meta.__name__ == "_TypedDictMeta":  # which refuses the bases that its classes have
        return (functools.partial(type.__new__, meta), arguments[1], cls.__bases__, *arguments[3:])
    if "_fields" in cls.__dict__ and {tuple, Generic} <= set(cls.__bases__):
        state[0].pop("__class_getitem__", None)
    return arguments


def _fit_ctypes(cls: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the reduction of a class of `ctypes`: of a structure or union, and of what these may have as fields."""
    import ctypes

    for known in (ctypes.Structure, ctypes.Union):
        if cls is type(known):  # which has no name of its own in some versions
            return type, (known,)
    if cls.__bases__ == (ctypes.Array,):
        return operator.mul, (cls._type_, cls._length_)
    if cls.__bases__ == (ctypes._Pointer,):
        return ctypes.POINTER, (cls._type_,)
    for mine, other in (("__ctype_be__", "__ctype_le__"), ("__ctype_le__", "__ctype_be__")):
        if getattr(cls, mine, None) is cls and getattr(cls, other, cls) is not cls:
            return getattr, (getattr(cls, other), mine)
    if not issubclass(cls, ctypes.Structure | ctypes.Union):
        from pickle import PicklingError

        raise PicklingError(f"{cls.__name__} is a class of ctypes, and no structure or union")
    own, slots = reduced[2]
    # The fields are made when `_fields_` is set, and by what is set before.
    rest = {
        name: value for name, value in own.items() if type(value).__name__ != "CField" and name != "_fields_"
    }
    if "_fields_" in own:
        rest["_fields_"] = own["_fields_"]
    return *reduced[:2], (rest, slots), *reduced[3:]


def _make_pickler() -> Any:
    import typing
    from collections import ChainMap

    import cloudpickle

    reduce_code = cloudpickle.Pickler.dispatch_table[types.CodeType]

    def with_file_name(code: types.CodeType) -> Any:
        make, arguments = reduce_code(code)
        return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in arguments)

    reduce_file = cloudpickle.Pickler.dispatch_table[io.TextIOWrapper]
    reducers: dict[Any, Any] = {
        types.CodeType: with_file_name,
        type(_nothing): _reduce_cached,
        io.TextIOWrapper: functools.partial(_reduce_file, reduce_file),
        weakref.WeakKeyDictionary: _reduce_weak_keys,
        functools.cached_property: _reduce_property,
    }
    for kind in ("NewType", "ParamSpec", "TypeVarTuple"):
        reducers[getattr(typing, kind)] = _reduce_typing
    alias_type = getattr(typing, "TypeAliasType", None)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        dispatch_table = ChainMap(reducers, cloudpickle.Pickler.dispatch_table)
        homeward = False
        boxes: dict[int, list[Any]]

        def reducer_override(self, obj: Any) -> Any:
            is_function = type(obj) is types.FunctionType
            if not is_function and not issubclass(type(obj), type):
                if type(obj) is alias_type:
                    return _reduce_alias(obj, self.boxes)
                return _reduce_own(obj, self.dispatch_table)
            reduced = super().reducer_override(obj)
            if type(reduced) is not tuple or len(reduced) != 6:  # by name
                return reduced
            if type(obj).__module__ in _CTYPES or obj.__module__ in _CTYPES:
                reduced = _fit_ctypes(obj, reduced)
                if len(reduced) != 6:
                    return reduced
            make, arguments, state, _items, _pairs, set_state = reduced
            if self.homeward and without_own is not None:
                state = without_own(obj, state)
            if is_function:
                return make, arguments, (set_state, state), None, None, set_function
            if "__slots__" in obj.__dict__:
                _keep_slots(obj, arguments, state)
            arguments = _fit_typing(obj, arguments, state)
            _sent.add(obj)
            return make, arguments, (set_state, state), None, None, set_class

    return Pickler


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
    _received.add(cls)
    set_state, own = state
    if type(cls).__module__ in _CTYPES and "_fields_" in cls.__dict__:  # it came before, and they are final
        own[0].pop("_fields_", None)
    set_state(cls, own)
    if on_class is not None:
        on_class(cls)
