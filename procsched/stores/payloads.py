"""A call in the form in which a store keeps it: by name and in JSON where that says all, else pickled.

    importable function, plain data --> "module:name", JSON           a person can read it, any Python can run it
    importable function, other data --> "module:name", pickle
    anything else                   --> cloudpickle of the whole      for the Python that made it, and no other

It is made in the parent, and opened in a worker (`child/stored.py`): nothing here unpickles.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections import Counter

from procsched import _byvalue
from procsched._core.options import StoredArguments
from procsched.child.stored import BLOB, JSON, PICKLE, REFERENCE, python_tag
from procsched.stores.codec import writable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

_STORED: Final = StoredArguments()
DEEPEST: Final = 20  # levels of lists and dictionaries that are looked at; what is deeper is pickled
_PLAIN: Final = frozenset({type(None), bool, str})
_HEX: Final = frozenset("0123456789abcdef")
# Opcodes that say how a pickle is put together, and not what is in it (pickletools.py).
_BOOKKEEPING: Final = frozenset(
    {"FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "GET", "BINGET", "LONG_BINGET"}
)


class StoredAction(str):
    """What stands for the function of a stored task: a text for people, and the call to keep it by."""

    __slots__ = ("call",)
    call: StoredCall


class StoredCall:
    """A call as it is kept.

    Attributes:
        kind: "reference" or "cloudpickle".
        name: "module:name" of the function; of what is pickled, what a person may call it.
        form: what `data` is: "json" or "pickle" of the arguments; "" where it holds the whole call.
        data: bytes.
        python, pickler: versions that a pickle was made with, "" for JSON.
    """

    __slots__ = (
        "_action", "_arguments", "_description", "_digest", "data", "form", "kind", "name", "pickler", "python",
    )  # fmt: skip

    def __init__(
        self, kind: str, name: str, form: str, data: bytes, python: str = "", pickler: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.form = form
        self.data = data
        self.python = python
        self.pickler = pickler
        self._digest = self._description = ""
        self._arguments: tuple[Any, Any] | None = None
        self._action: StoredAction | None = None

    @property
    def parts(self) -> tuple[str, str, str, bytes, str, str]:
        """The arguments of `child.stored.run_stored`."""
        return self.kind, self.name, self.form, self.data, self.python, self.pickler

    @property
    def digest(self) -> str:
        """What it is known by: equal for equal calls (SHA-256)."""
        if not self._digest:
            head = "\0".join((self.kind, self.name, self.form, self.python, self.pickler))
            self._digest = hashlib.sha256(head.encode() + b"\0" + self.data).hexdigest()
        return self._digest

    def is_like(self, other: StoredCall) -> bool:
        """Return whether both were made of the same code and arguments, as far as can be told without opening them."""
        if self.digest == other.digest:
            return True
        if JSON in (self.form, other.form):
            return False
        try:
            return _contents(self.data) == _contents(other.data)
        except Exception:
            return False  # one of them is no pickle

    def describe(self) -> str:
        """Return what stands for the function after a restart: its name, and how it is kept if not by that."""
        if self.kind == REFERENCE:
            return self.name
        if not self._description:  # one text for all tasks that share the call
            self._description = f"{self.name} (pickled with {self.python}, cloudpickle {self.pickler})"
        return self._description

    def action(self) -> StoredAction:
        """Return that text as what stands in `task.action`: one for all tasks that share the call."""
        if self._action is None:
            self._action = StoredAction(self.describe())
            self._action.call = self
        return self._action

    def arguments(self) -> tuple[Any, Any]:
        """Return positional and named arguments; what stands for both where they would have to be unpickled."""
        if self._arguments is None:
            if self.form == JSON:
                args, kwargs = json.loads(self.data)
                self._arguments = tuple(args), kwargs
            else:
                self._arguments = _STORED, _STORED
        return self._arguments


def store_call(action: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StoredCall:
    """Return the form in which a store keeps a call.

    Raises:
        TaskSerializationError: something in it cannot be pickled.
    """
    name = reference_to(action)
    try:
        if name is not None:
            seen: set[int] = set()
            if all(_is_plain(value, seen) for value in (*args, *kwargs.values())):
                data = json.dumps([args, kwargs], ensure_ascii=False, separators=(",", ":")).encode()
                return StoredCall(REFERENCE, name, JSON, data)
            data = _byvalue.dumps((args, kwargs))
            # What lives in the main script went by value, with its code.
            if b"cloudpickle" not in data:
                return StoredCall(REFERENCE, name, PICKLE, data, python_tag())
        data = _byvalue.dumps((action, args, kwargs))
    except Exception as error:
        from procsched import _culprits  # here, for most programs never need it

        raise _culprits.explain(action, args, kwargs, error, "stored") from error
    return StoredCall(BLOB, _name_of(action), "", data, python_tag(), sys.modules["cloudpickle"].__version__)


def reference_to(action: Any) -> str | None:
    """Return "module:name" where that leads to `action` itself in any process; else None."""
    module_name, path = getattr(action, "__module__", None), getattr(action, "__qualname__", None)
    if type(module_name) is not str or type(path) is not str or "_main__" in module_name or "<" in path:
        return None
    if (
        hasattr(action, "__self__")
        and not isinstance(action, type)
        and type(action.__self__) is not type(sys)
    ):
        return None  # a bound method: its name leads to the function
    found: Any = sys.modules.get(module_name)
    for part in path.split("."):
        found = getattr(found, part, None)
    if found is not action or _goes_by_value(module_name) or writable(path) != path:
        return None
    return f"{module_name}:{path}"


def _goes_by_value(module_name: str) -> bool:
    """Return whether the user has told cloudpickle to take this module's functions along."""
    cloudpickle = sys.modules.get("cloudpickle")
    registry = getattr(cloudpickle, "list_registry_pickle_by_value", None)
    by_value = registry() if registry is not None else ()
    return any(module_name == each or module_name.startswith(f"{each}.") for each in by_value)


def _name_of(action: Any) -> str:
    while not hasattr(action, "__qualname__") and callable(getattr(action, "func", None)):
        action = action.func  # a partial
    name = getattr(action, "__qualname__", None)
    return writable(name if isinstance(name, str) and name else type(action).__qualname__)


def _contents(data: bytes) -> Counter[tuple[str, str]]:
    """Return what is in a pickle, without order: that of a set changes from one start of a program to the next.

    So does the number of what was mentioned before, and the name that cloudpickle, or `_bykind.py`, gives to a class or
    a type for this start alone: 32 hexadecimal digits, or 16 bytes. Nothing is executed.
    """
    import pickletools  # here, for most programs never need it

    return Counter(
        (code.name, repr(value))
        for code, value, _ in pickletools.genops(data)
        if code.name not in _BOOKKEEPING and not (isinstance(value, str | bytes) and _is_of_this_start(value))
    )


def _is_of_this_start(value: str | bytes) -> bool:
    return len(value) == 16 if isinstance(value, bytes) else len(value) == 32 and set(value) <= _HEX


def _is_plain(value: Any, seen: set[int], depth: int = DEEPEST) -> bool:
    """Return whether JSON gives back exactly this value.

    Args:
        seen: lists and dictionaries looked at so far. One that comes again would come back as two.
    """
    kind = type(value)
    if kind in _PLAIN:
        return kind is not str or value.isascii() or _is_text(value)
    if kind is int:
        return bool(value.bit_length() < 64)  # what other readers of JSON take as it is
    if kind is float:
        return math.isfinite(value)
    if not depth or id(value) in seen:
        return False
    seen.add(id(value))
    if kind is list:
        return all(_is_plain(each, seen, depth - 1) for each in value)
    if kind is dict:
        return all(
            type(key) is str and _is_plain(key, seen) and _is_plain(each, seen, depth - 1)
            for key, each in value.items()
        )
    return False


def _is_text(value: str) -> bool:
    try:
        value.encode()  # a lone surrogate cannot be written as UTF-8
    except UnicodeEncodeError:
        return False
    return True
