"""Functions that go by value, quickly: what does not change from call to call is turned into bytes once.

    function --> skeleton: code, names, doc, modules by name   -- made once per code, kept here as bytes
             '-> state: cells, defaults, attributes, globals   -- pickled for each call, with the arguments

A call carries both, since its worker may be new; the worker keeps what it made of a skeleton (`child/closures.py`) and
makes a function of its own for each call. So it is as if cloudpickle had sent it: a global that one run changes is not
seen by the next, and what the caller changed between two calls is.

Only what plain pickle sends as cloudpickle would goes this way. Anything else, such as a function or class of the main
script in a cell, is for cloudpickle.
"""

from __future__ import annotations

import itertools
import marshal
import operator
import pickle
import sys
from types import CodeType, EllipsisType, FunctionType, MethodType, ModuleType

from procsched import _parcels
from procsched.child import closures

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LARGEST = 1 << 14  # bytes of a skeleton; what is larger takes cloudpickle little longer in proportion

_MISSING = object()
# What a module is known by; these come along whether or not the function names them, so that its imports work.
_BASE = ("__package__", "__name__", "__path__", "__file__")
_TEXTS = frozenset({str, type(None)})
_CONSTANTS = frozenset({type(None), bool, int, float, complex, str, bytes, EllipsisType})
_BY_NAME = frozenset({FunctionType, type})
_HEAD = (
    pickle.PROTO + b"\5" + pickle.GLOBAL + f"{closures.__name__}\n{closures.make.__name__}\n".encode("ascii")
)
_TAIL = pickle.TUPLE2 + pickle.REDUCE + pickle.STOP

_kept: dict[int, _Skeleton] = {}  # by the identity of the code, which each of them keeps alive


def goes_by_value(function: FunctionType) -> bool:
    """Return whether no worker can import a function: True only where that is certain at a glance."""
    name = function.__qualname__
    if "<locals>" in name or function.__module__ == "__main__":
        return True
    if name != "<lambda>":
        return False
    return getattr(sys.modules.get(function.__module__), name, None) is not function


def pack(
    function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bytes | _parcels.Parcel | None:
    """Return a call of a function that goes by value, pickled; None where cloudpickle has to do it.

    Raises:
        Exception: whatever the reduction of an object raises: it is for cloudpickle too.
    """
    scope = function.__globals__
    code = function.__code__
    known = _kept.get(id(code))
    if known is None or not known.fits(function, scope):
        known = _Skeleton(function, None if known is None else known.names)
        if len(_kept) >= closures.KEPT:
            _kept.clear()
        if known.small:
            _kept[id(code)] = known
    if not known.head:
        return None
    closure = function.__closure__
    cells = None
    if closure is not None:
        try:
            cells = tuple([cell.cell_contents for cell in closure])
        except ValueError:  # an empty one
            return None
    own = {name: scope[name] for name in known.variable if name in scope} if known.variable else None
    defaults = function.__defaults__
    kwdefaults = function.__kwdefaults__
    annotations = function.__annotations__ or None
    attributes = function.__dict__ or None
    state = (cells, defaults, kwdefaults, annotations, attributes, own or None, args, kwargs)
    if (
        (not args or _parcels.are_small(args))
        and (not kwargs or _parcels.are_small(kwargs.values()))
        and (not cells or _parcels.are_small(cells))
        and (not own or _are_plain(own))
        and (not annotations or _are_plain(annotations))
        and (defaults is None or _parcels.are_small(defaults))
        and kwdefaults is attributes is None
    ):
        data = pickle.dumps(state, 5)
        return None if b"_main__" in data else known.head + data[:-1] + _TAIL
    return _parcels.pack(_dump(state), check=known.complete, limited=True)


def _are_plain(values: dict[str, Any]) -> bool:
    """Return whether plain pickle sends values as cloudpickle does, and in a few bytes."""
    return all(type(value) in _BY_NAME or _parcels.are_small((value,)) for value in values.values())


def _dump(state: object) -> _parcels.Dump:
    def dump(sink: _parcels.Sink, take: Any) -> pickle.Pickler:
        pickler = _Exact(sink, 5, buffer_callback=take)
        pickler.dump(state)
        return pickler

    return dump


class _Exact(pickle.Pickler):
    """Refuses what plain pickle sends in another way than cloudpickle."""

    def reducer_override(self, obj: Any) -> Any:
        # It goes by the name of its function: that of a base class, as `super().method` is, would come out as another.
        if type(obj) is MethodType:
            raise pickle.PicklingError("a method is for cloudpickle")
        return NotImplemented


class _Skeleton:
    """What is known of a function's code, and of the function as it was last seen.

    Attributes:
        head: the bytes with which its calls begin; empty where they are for cloudpickle.
        small: whether it, and the code with it, may be kept.
        names: of the globals that the code refers to.
        variable: of those that go with each call.
    """

    __slots__ = (
        "base",
        "candidates",
        "code",
        "doc",
        "found",
        "head",
        "module",
        "modules",
        "name",
        "names",
        "qualname",
        "small",
        "variable",
    )

    def __init__(self, function: FunctionType, names: tuple[str, ...] | None) -> None:
        scope = function.__globals__
        self.code = function.__code__
        self.name = function.__name__
        self.qualname = function.__qualname__
        self.module = function.__module__
        self.doc = function.__doc__
        self.base = tuple([scope.get(name, _MISSING) for name in _BASE])
        self.names = global_names(self.code) if names is None else names
        modules = [(name, scope[name]) for name in self.names if type(scope.get(name)) is ModuleType]
        self.modules = tuple([(name, module, module.__name__) for name, module in modules])
        fixed = {*dict(modules), *_BASE}
        self.variable = tuple([name for name in self.names if name not in fixed])
        # Names of modules on which it depends which submodules the function uses, and those of them that are loaded.
        self.candidates: set[str] = set()
        self.found: set[str] = set()
        self.head = b""
        self.small = True
        submodules = self._find_submodules()
        texts = (self.name, self.qualname, self.module, self.doc)
        plain = all(value is _MISSING or type(value) in _TEXTS for value in (*self.base, *texts))
        reachable = all(sys.modules.get(name) is module for _name, module, name in self.modules)
        if submodules is None or not plain or not reachable or not _is_constant(self.code):
            return
        base = {name: value for name, value in zip(_BASE, self.base, strict=True) if value is not _MISSING}
        by_name = tuple([(name, module) for name, _module, module in self.modules])
        data = marshal.dumps((self.code, *texts, base, by_name, submodules))
        self.small = len(data) <= LARGEST
        if self.small:
            self.head = _HEAD + pickle.BINBYTES + len(data).to_bytes(4, "little") + data

    def fits(self, function: FunctionType, scope: dict[str, Any]) -> bool:
        """Return whether a function with the same code still is as the skeleton has it."""
        if (
            function.__name__ is not self.name
            or function.__qualname__ is not self.qualname
            or function.__module__ is not self.module
            or function.__doc__ is not self.doc
        ):
            return False
        if not all(map(operator.is_, map(scope.get, _BASE, itertools.repeat(_MISSING)), self.base)):
            return False
        for name, module, imported_as in self.modules:
            if scope.get(name) is not module or sys.modules.get(imported_as) is not module:
                return False
        return not self.candidates or sys.modules.keys() & self.candidates == self.found

    def complete(self, sink: _parcels.Sink) -> bool:
        """Put the skeleton around a pickled state, unless that refers to the main script."""
        if sink.mentions(b"_main__"):
            return False
        last = sink.pieces[-1]
        assert type(last) is bytes
        assert last.endswith(pickle.STOP)
        sink.pieces[-1] = last[:-1] + _TAIL
        sink.pieces.insert(0, self.head)
        return True

    def _find_submodules(self) -> tuple[str, ...] | None:
        """Return the submodules that the function may mean by `package.module`; None where one is no real module.

        They are loaded here, and have to be there. Nobody can tell whether an attribute is one: so it is any of which
        the code has all the names, as with cloudpickle.
        """
        names = self.code.co_names
        submodules: list[str] = []
        for _name, module, imported_as in self.modules:
            if not getattr(module, "__package__", None):
                continue
            start = imported_as + "."
            self.candidates.update([start + each for each in names])
            for name, submodule in list(sys.modules.items()):
                if name.startswith(start) and set(name[len(start) :].split(".")) <= set(names):
                    if type(submodule) is not ModuleType or submodule.__name__ not in sys.modules:
                        return None
                    submodules.append(submodule.__name__)
                    self.candidates.update([f"{name}.{each}" for each in names])
        self.found = sys.modules.keys() & self.candidates
        return tuple(submodules)


def global_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of the globals that code reads or writes, with the functions that it defines."""
    import dis  # here, because it takes a few milliseconds, and most calls go by name

    operations = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL")
    names = {each.argval: None for each in dis.get_instructions(code) if each.opname in operations}
    for constant in code.co_consts:
        if type(constant) is CodeType:
            names.update(dict.fromkeys(global_names(constant)))
    return tuple(names)


def _is_constant(value: object) -> bool:
    """Return whether a value is one that a compiler makes, so that those who share it cannot change it."""
    kind = type(value)
    if kind is CodeType:
        return all(map(_is_constant, value.co_consts))  # type: ignore[attr-defined]
    if kind in (tuple, frozenset):
        return all(map(_is_constant, value))  # type: ignore[call-overload]
    return kind in _CONSTANTS
