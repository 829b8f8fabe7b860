"""What in a call cannot be pickled, where it hangs, and what to do instead."""

from __future__ import annotations

import io
import types

from procsched import _byvalue
from procsched.errors import TaskSerializationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_DEPTH = 12  # how deep to look for what cannot be pickled
_LOOKS = 2000  # how many objects to look at
_SLOTS = (types.BuiltinMethodType, types.WrapperDescriptorType, types.GetSetDescriptorType)


def explain(
    action: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception, wanted: str
) -> TaskSerializationError:
    """Return the error that names the culprit.

    Args:
        error: what pickling the call has raised.
        wanted: what was to be done with the call, such as "sent to a worker".
    """
    try:
        path, culprit = _find(action, args, kwargs)
    except Exception:  # somebody's attribute access raises
        path, culprit = "", None
    what = f"{type(error).__name__}: {error}"
    if not path:
        return TaskSerializationError(f"the call cannot be {wanted}: {what}")
    kind = type(culprit).__qualname__
    remedy = _remedy(culprit)
    return TaskSerializationError(
        f"{path}, of type {kind}, cannot be {wanted}: {what}{remedy and '; '}{remedy}",
        path=path,
        type_name=kind,
    )


def _remedy(culprit: Any) -> str:
    if type(culprit).__module__ == "procsched" and _refuses(culprit):
        return ""  # it has said so itself
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
    for path, value in roots:
        if not _can(value):
            return _Search().below(path, value, 0) or (path, value)
    return "", None


class _Search:
    """A search for the culprit.

    Attributes:
        seen: what was gone into, so that this ends where things refer to each other; by identity, and kept alive.
        looks: how many objects were looked at.
    """

    def __init__(self) -> None:
        self.seen: dict[int, Any] = {}
        self.looks = 0

    def below(self, path: str, value: Any, depth: int) -> tuple[str, Any] | None:
        """Return the culprit at or below a value that cannot be pickled; None where it is above, and referred to."""
        self.seen[id(value)] = value
        if depth == _DEPTH or _refuses(value):
            return path, value
        leads_back = False
        for name, part in _parts(value):
            self.looks += 1
            if self.looks > _LOOKS:
                return path, value
            if id(part) in self.seen:
                leads_back = True
            elif not _can(part):
                found = self.below(path + name, part, depth + 1)
                if found is not None:
                    return found
                leads_back = True
        return None if leads_back else (path, value)


def _can(value: Any) -> bool:
    try:
        _byvalue.dumps(value)
    except Exception:
        return False
    return True


def _refuses(value: Any) -> bool:
    """Return whether a class has a reduction of its own, and that raises: then it is not for what hangs below."""
    kind: Any = type(value)
    if kind.__reduce__ is object.__reduce__ and kind.__reduce_ex__ is object.__reduce_ex__:
        return False
    try:
        value.__reduce_ex__(5)
    except Exception:
        return True
    return False


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
        if not (name.startswith("__") and type(part) in _SLOTS):  # of a class: made with it anew
            yield f".{name}", part
    if not isinstance(value, type):
        yield f" (its class {type(value).__qualname__!r})", type(value)  # of the main script, it goes too
