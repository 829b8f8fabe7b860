"""A function that came by value: made anew for each call, from a skeleton that is read once.

`workers/closures.py` has the other side, and says what the skeleton holds.
"""

from __future__ import annotations

import builtins
import marshal
import sys
from types import CellType, CodeType, FunctionType

from procsched import _byvalue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEPT = 256  # skeletons, each of 16 KiB at most; then all are forgotten, and made again from what comes with each call

_kept: dict[bytes, _Skeleton] = {}


def make(skeleton: bytes, state: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return a call: the function with globals, cells and attributes of its own, and the arguments.

    Raises:
        ImportError: a module that the function refers to cannot be imported here.
    """
    known = _kept.get(skeleton)
    if known is None:
        if len(_kept) >= KEPT:
            _kept.clear()
        known = _kept[skeleton] = _Skeleton(skeleton)
    cells, defaults, kwdefaults, annotations, attributes, scope, args, kwargs = state
    own: dict[str, Any] = known.base.copy()
    for name, module in known.modules:
        own[name] = sys.modules.get(module) or _import(module)
    for module in known.submodules:
        if sys.modules.get(module) is None:
            _import(module)
    if scope is not None:
        own.update(scope)
    own["__builtins__"] = builtins.__dict__  # last, as cloudpickle does
    if _byvalue.on_globals is not None:
        _byvalue.on_globals(own)
    closure = None if cells is None else tuple(map(CellType, cells))
    function = FunctionType(known.code, own, known.name, defaults, closure)
    for name, value in known.settings:
        setattr(function, name, value)
    if kwdefaults is not None:
        function.__kwdefaults__ = kwdefaults
    if annotations is not None:
        function.__annotations__ = annotations
    if attributes is not None:
        function.__dict__.update(attributes)
    return function, args, kwargs


def _import(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


class _Skeleton:
    """What does not change from call to call, in the form in which it is used."""

    __slots__ = ("base", "code", "modules", "name", "settings", "submodules")

    def __init__(self, data: bytes) -> None:
        code, name, qualname, module, doc, base, modules, submodules = marshal.loads(data)
        assert type(code) is CodeType
        self.code = code
        self.name: str = name
        self.base: dict[str, str | None] = base
        self.modules: tuple[tuple[str, str], ...] = modules
        self.submodules: tuple[str, ...] = submodules
        # Most functions have these of their code and their globals.
        made = FunctionType(code, dict(base), name, None, tuple(CellType() for _ in code.co_freevars))
        settings = {"__qualname__": qualname, "__module__": module, "__doc__": doc}
        self.settings = tuple((key, value) for key, value in settings.items() if getattr(made, key) != value)
