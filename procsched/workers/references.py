"""Calls of functions that go by name, quickly: pickle looks a function up anew each time, which takes most of its time.

Such a call is no pickle, but a mark, the name of the function, and its arguments as `marshal` writes them: these are
exact builtin data, for which it does what pickle does in half the time. The name counts as pickle's does: only where it
leads to this very function at this moment, so one that was bound to another meanwhile is found out.
"""

from __future__ import annotations

import marshal
import sys
from types import ModuleType

from procsched.child.references import KEPT, MARK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FunctionType
    from typing import Any

    Reference = tuple[FunctionType, str, ModuleType, str, bytes]

_kept: dict[int, Reference] = {}  # by the identity of the function, which each of them keeps alive


def pack(function: FunctionType, args: tuple[Any, ...]) -> bytes | None:
    """Return a call; None where its function has no plain name, or is for pickle to refuse.

    Args:
        args: exact builtin data, and small: what `_parcels.are_small` says of.
    """
    known = _kept.get(id(function)) or _refer(function)
    if known is None:
        return None
    _function, module_name, module, name, head = known
    if (
        sys.modules.get(module_name) is not module
        or module.__dict__.get(name) is not function
        or function.__qualname__ is not name
        or function.__module__ is not module_name
    ):
        _kept.pop(id(function), None)
        return None
    return head + marshal.dumps(args)


def _refer(function: FunctionType) -> Reference | None:
    name, module_name = function.__qualname__, function.__module__
    module = sys.modules.get(module_name) if type(module_name) is str else None
    if (
        not isinstance(module, ModuleType)
        or module.__dict__.get(name) is not function
        or "_main__" in module_name
    ):
        return None
    text = f"{module_name}\0{name}".encode("utf-8", "surrogatepass")
    if len(text) >= 1 << 16:
        return None
    if len(_kept) >= KEPT:
        _kept.clear()
    known = function, module_name, module, name, bytes((MARK, len(text) & 0xFF, len(text) >> 8)) + text
    _kept[id(function)] = known
    return known
