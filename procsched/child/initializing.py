"""Running the initializer of a worker, and keeping what one of the main script has set.

A function of the main script comes by value: it has globals of its own, made of what it refers to, and so has the
initializer. In a pool that forks, what the initializer assigns is seen by the calls, and most who write one rely on
that. So what it has assigned, or changed in a list, dict, set or plain object, is put into the globals of each function
that comes later, in the place of what travelled with it; the same for attributes of classes of the script.
"""

from __future__ import annotations

import _pickle as pickle
import types

from procsched import _byvalue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MISSING = object()
_CONTAINERS = (dict, list, set)
# Nobody keeps state in a function that comes by value, and a module is the one of the worker.
_NO_OBJECTS = (type, types.FunctionType, types.ModuleType)


def run(data: bytes) -> None:
    """Load the pickled call of an initializer and make it. Raises what it raises."""
    scopes: list[dict[str, Any]] = []
    classes: list[type] = []
    _byvalue.on_globals, _byvalue.on_class = scopes.append, classes.append
    try:
        function, args, kwargs = pickle.loads(data)
    finally:
        _byvalue.on_globals = _byvalue.on_class = None
    before_in_scopes = [(scope, _Look(scope)) for scope in {id(scope): scope for scope in scopes}.values()]
    before_in_classes = [(cls, _Look(cls.__dict__)) for cls in dict.fromkeys(classes)]
    function(*args, **kwargs)
    made = _Made()
    for scope, look in before_in_scopes:
        look.compare(scope, *made.of_scope(scope.get("__name__")))
    for cls, look in before_in_classes:
        look.compare(cls.__dict__, *made.of_class(cls))
    if made.anything():
        _byvalue.on_globals, _byvalue.on_class = made.put_into_globals, made.put_into_class
        _byvalue.without_own = made.without


class _Look:
    """What the names of a namespace stood for, and what was in it where that is a container or a plain object."""

    def __init__(self, names: Any) -> None:
        self._values = dict(names)
        self._contents = {name: _contents(value) for name, value in self._values.items()}

    def compare(self, names: Any, changed: dict[str, Any], before: dict[str, Any]) -> None:
        """Note the names that have another value now, or whose value has other contents, and what they had."""
        for name, value in list(names.items()):
            if name.startswith("__") and name.endswith("__"):
                continue  # the interpreter's own, which it may make at a look
            old = self._values.get(name, _MISSING)
            contents = self._contents.get(name)
            if old is not value:
                before[name] = old
            elif contents is not None and not _same(contents, _contents(value)):
                before[name] = contents if type(value) in _CONTAINERS else _with_attributes(value, contents)
            else:
                continue
            changed[name] = value


def _contents(value: Any) -> Any:
    """Return a shallow copy of what is in a container, or of the attributes of a plain object; else None."""
    if type(value) in _CONTAINERS:
        return value.copy()
    if isinstance(value, _NO_OBJECTS):
        return None
    attributes = getattr(value, "__dict__", None)
    return attributes.copy() if type(attributes) is dict else None


def _with_attributes(value: Any, attributes: dict[str, Any]) -> Any:
    """Return an object like `value` with these attributes; itself where it travels in a way of its own."""
    kind: Any = type(value)
    if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
        try:
            made = object.__new__(kind)
        except TypeError:  # something in C is below it
            return value
        made.__dict__.update(attributes)
        return made
    return value


def _same(one: Any, other: Any) -> bool:
    """Return whether two shallow copies hold the same objects. Nobody's `__eq__` is asked."""
    if type(one) is dict:
        return one.keys() == other.keys() and all(one[key] is other[key] for key in one)
    if type(one) is list:
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    return set(map(id, one)) == set(map(id, other))


class _Made:
    """What an initializer has set, by the name of the module whose globals they are, and by class."""

    def __init__(self) -> None:
        self._in_scopes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._in_classes: dict[type, tuple[dict[str, Any], dict[str, Any]]] = {}

    def of_scope(self, module: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the two dicts for the globals of a module: values now, values before."""
        return self._in_scopes.setdefault(module, ({}, {}))

    def of_class(self, cls: type) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the two dicts for the attributes of a class."""
        return self._in_classes.setdefault(cls, ({}, {}))

    def anything(self) -> bool:
        """Return whether anything was set."""
        return any(changed for changed, _before in (*self._in_scopes.values(), *self._in_classes.values()))

    def put_into_globals(self, scope: dict[str, Any]) -> None:
        """Put what was set into the globals of a function that came by value."""
        made = self._in_scopes.get(scope.get("__name__"))  # type: ignore[arg-type]
        if made is not None:
            scope.update(made[0])

    def put_into_class(self, cls: type) -> None:
        """Put what was set into a class that came by value."""
        made = self._in_classes.get(cls)
        if made is not None:
            for name, value in made[0].items():
                setattr(cls, name, value)

    def without(self, obj: Any, state: Any) -> Any:
        """Return the state of a function or class as it would be without the initializer.

        What it has set belongs to the worker, and may be a connection that cannot travel.
        """
        own, slots = state
        if isinstance(obj, type):
            made = self._in_classes.get(obj)
            return state if made is None else (_restored(own, *made), slots)
        scope = slots.get("__globals__")
        made = self._in_scopes.get(obj.__globals__.get("__name__"))
        if made is None or type(scope) is not dict:
            return state
        return own, {**slots, "__globals__": _restored(scope, *made)}


def _restored(names: dict[str, Any], changed: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    restored = {}
    for name, value in names.items():
        if name in changed and changed[name] is value:
            value = before[name]
        if value is not _MISSING:
            restored[name] = value
    return restored
