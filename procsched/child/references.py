"""A function that came by name: looked up as pickle would, but once. `workers/references.py` has the other side."""

from __future__ import annotations

import marshal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

MARK = 1  # the first byte of such a call, which no pickle begins with; two bytes with the length of the name follow
KEPT = 1000  # functions; then all are forgotten, and looked up again

_kept: dict[bytes, tuple[str, ModuleType, str, Any]] = {}


def load(payload: bytes) -> tuple[Any, tuple[Any, ...]]:
    """Return the function and its arguments.

    Raises:
        ImportError, AttributeError: it is not to be found here, in the words of pickle.
    """
    end = 3 + (payload[1] | payload[2] << 8)
    head = payload[3:end]
    known = _kept.get(head)
    if known is not None:
        module_name, module, name, function = known
        # A run may have put another in its place: the name decides.
        if sys.modules.get(module_name) is module and module.__dict__.get(name) is function:
            return function, marshal.loads(payload[end:])
    return _look_up(head), marshal.loads(payload[end:])


def _look_up(head: bytes) -> Any:
    module_name, _zero, name = head.decode("utf-8", "surrogatepass").partition("\0")
    __import__(module_name)
    module = sys.modules[module_name]
    try:
        function = getattr(module, name)
    except AttributeError:
        raise AttributeError(f"Can't get attribute {name!r} on {module!r}") from None
    if len(_kept) >= KEPT:
        _kept.clear()
    _kept[head] = (module_name, module, name, function)
    return function
