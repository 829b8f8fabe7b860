"""Kinds of objects that are pickled otherwise than cloudpickle does it, or that it knows nothing of.

These are reductions (PEP 307), and what these name to make the object anew: for `_byvalue.py`, which says when they are
asked. It is imported with cloudpickle, and in a worker by the pickles that name something in it.
"""

from __future__ import annotations

import abc
import copyreg
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

# What `typing` has made, both ways: as with classes, what comes home is what went.
_keys: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()
_by_key: weakref.WeakValueDictionary[bytes, Any] = weakref.WeakValueDictionary()


@functools.lru_cache
def _nothing() -> None:
    """A function with a cache, for its type."""


CACHED = type(_nothing)


def reduce_cached(function: Any) -> Any:
    """Reduce a function with `functools.lru_cache`: by name where a worker can import it, else anew, cache empty."""
    if getattr(function, "__module__", None) != "__main__":
        return function.__reduce__()
    settings = function.cache_parameters()
    return _make_cached, (function.__wrapped__, settings["maxsize"], settings["typed"])


def _make_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize=maxsize, typed=typed)(function)


def reduce_file(reduce_standard: Callable[[Any], Any], file: io.TextIOWrapper) -> Any:
    """Reduce the standard streams, and no other file: cloudpickle would send a copy of all that is in it."""
    if file is sys.stdout or file is sys.stderr:
        return reduce_standard(file)
    raise TypeError("cannot pickle an open file")


def reduce_weak_keys(weak: Any) -> Any:
    """Reduce what `functools.singledispatch` keeps its cache in. It holds what else holds its keys, as here."""
    return type(weak), (dict(weak),)


def reduce_property(made: Any) -> Any:
    """Reduce a `functools.cached_property` without its lock, which it has up to Python 3.11."""
    return functools.cached_property, (made.func,), {"attrname": made.attrname, "__doc__": made.__doc__}


def reduce_typing(thing: Any) -> Any:
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


def reduce_alias(alias: Any, boxes: dict[int, list[Any]]) -> Any:
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


def fit_typing(cls: type, arguments: tuple[Any, ...], state: tuple[dict[str, Any], Any]) -> tuple[Any, ...]:
    """Return the arguments for making a typed dict anew; take out of the state what a named tuple makes itself."""
    from typing import Generic

    meta: Any = type(cls)
    if meta.__name__ == "_TypedDictMeta":  # which refuses the bases that its classes have
        return (functools.partial(type.__new__, meta), arguments[1], cls.__bases__, *arguments[3:])
    if "_fields" in cls.__dict__ and {tuple, Generic} <= set(cls.__bases__):
        state[0].pop("__class_getitem__", None)
    return arguments


def fit_hooks(cls: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments for making a class anew where code of the user's has a say in that.

    What an ``__init_subclass__`` or a metaclass was given in the class statement nobody can tell, nor do they find a
    body. As before they are asked, for some keep a register; where they refuse, the class is made without them.
    """
    meta = type(cls)
    hooked = type(super(cls, cls).__init_subclass__) is types.MethodType
    made_by = (kind for kind in meta.__mro__ if kind not in (type, object, abc.ABCMeta))
    if hooked or any("__new__" in kind.__dict__ or "__init__" in kind.__dict__ for kind in made_by):
        return functools.partial(_make_hooked, meta), *arguments[1:]
    return arguments


def _make_hooked(meta: Any, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
    """Make a class anew. Named in pickles."""
    try:
        return types.new_class(name, bases, {"metaclass": meta}, lambda scope: scope.update(body))
    except Exception:
        make: Any = abc.ABCMeta.__new__ if issubclass(meta, abc.ABCMeta) else type.__new__
        hooks = {}
        for kind in {kind for base in bases for kind in base.__mro__}:
            hook = kind.__dict__.get("__init_subclass__")
            if (
                type(hook) is classmethod and hook is not _NO_HOOK
            ):  # else another thread is at it, and puts it back
                hooks[kind] = hook
        try:
            for kind in hooks:
                type.__setattr__(kind, "__init_subclass__", _NO_HOOK)
            return make(meta, name, bases, dict(body))
        finally:
            for kind, hook in hooks.items():
                type.__setattr__(kind, "__init_subclass__", hook)


_NO_HOOK = classmethod(lambda _cls, **_given: None)
# What every member of an enum has: its class puts it there, or it is found anew.
_OF_ANY_MEMBER = frozenset({"_name_", "_value_", "__objclass__", "_sort_order_", "_inverted_"})
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement, or as if


def fit_enum(cls: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the reduction of an enum. cloudpickle makes members of their values alone, and sends no aliases.

    So where a member has attributes, is not made of its value or has a second name, the members go as other objects do:
    what they are made of first, and when the class is there their attributes, which may refer to it. A metaclass of its
    own is left out there too.
    """
    make, arguments, (own, slots), *_nothing, set_state = reduced
    base = next(kind for kind in cls.__mro__ if not kind.__flags__ & _HEAP_TYPE)
    names: dict[str, Any] = cls._member_map_
    given = {}
    attributes = {}
    lost = len(arguments[3]) != len(names) or type(cls) is not type(arguments[0][-1])
    try:
        for name, member in names.items():
            made_of, had = _take_apart(base, member)
            value = member._value_
            given[name] = _Given(base, value, made_of)
            attributes[name] = had
            simple = not made_of or (type(made_of[0]) is type(value) and made_of == (value,))
            lost = lost or bool(had) or not simple or hasattr(value, "__get__")
    except Exception:  # something in C that is not made in this way
        return reduced
    if not lost:
        return reduced
    # The class as it is has others, or none.
    members = {"__new__": _make_given, "__init__": _init_given, **given}
    own = {name: value for name, value in own.items() if name not in names}
    state = (set_state, (own, slots), attributes)
    return make_enum, (make, type(cls), *arguments[:3], members, *arguments[4:]), state, None, None, fill_enum


def reduce_member(member: Any) -> Any:
    """Reduce a member of such an enum by its name: its value may be a function, say, of which no copy is equal."""
    kind = type(member)
    if kind.__reduce_ex__.__module__ == "enum" and kind._member_map_.get(member._name_) is member:
        return get_member, (kind, member._name_)
    return NotImplemented  # a combination of flags, or it has a way of its own


def get_member(cls: Any, name: str) -> Any:
    """Return a member of an enum. Named in pickles."""
    return cls._member_map_[name]


def _take_apart(base: Any, member: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which `base` makes a member anew, and the attributes that are its own."""
    make, arguments, *rest = base.__reduce_ex__(member, 2)
    if make is copyreg.__newobj__:  # type: ignore[attr-defined]  # named in pickles (PEP 307)
        arguments = arguments[1:]
    elif make is not type(member):
        raise TypeError
    base.__new__(type(member), *arguments)
    had: dict[str, Any] = {}
    for part in rest[0] if rest and type(rest[0]) is tuple else rest[:1]:
        had.update(part or {})
    return arguments, {name: value for name, value in had.items() if name not in _OF_ANY_MEMBER}


class _Given:
    """What a member is made of, in the place of its value in the body of a class. Named in pickles, as what follows."""

    def __init__(self, base: Any, value: Any, made_of: tuple[Any, ...]) -> None:
        self.base = base
        self.value = value
        self.made_of = made_of


def _make_given(cls: Any, given: Any) -> Any:
    if type(given) is tuple:  # where the members are tuples, what they are made of is put into one
        (given,) = given
    member = given.base.__new__(cls, *given.made_of)
    member._value_ = given.value
    return member


def _init_given(_member: Any, _given: Any) -> None:
    pass


def make_enum(make: Callable[..., Any], meta: type, *arguments: Any) -> Any:
    """Make an enum anew, with members that have no attributes so far."""
    cls = make(*arguments)
    if type(cls) is not meta:  # it was made by that of its bases
        cls.__class__ = meta
    for name, ours in (("__init__", _init_given), ("__new_member__", _make_given)):
        if cls.__dict__.get(name) is ours:  # else it came before
            delattr(cls, name)
    return cls


def fill_enum(cls: Any, state: tuple[Callable[[Any, Any], object], Any, dict[str, dict[str, Any]]]) -> None:
    """Fill an enum that came by value, and its members."""
    set_state, own, attributes = state
    set_state(cls, own)
    for name, had in attributes.items():
        for attribute, value in had.items():
            object.__setattr__(cls._member_map_[name], attribute, value)


def fit_ctypes(cls: Any, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
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
