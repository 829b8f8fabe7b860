"""Frozen, slotted value classes that cost next to nothing at import.

The standard `dataclasses` module pulls in `inspect`, `ast` and `dis`: ten milliseconds, more than
everything else procsched imports, and `from procsched import Scheduler` is something people time.
So the value classes are made by this one decorator, and show themselves to `dataclasses.fields`,
`replace`, `asdict` and `is_dataclass` as the data classes they are, building what those functions
need only when somebody asks.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import KW_ONLY as KW_ONLY
    from typing import Any, TypeVar, dataclass_transform

    _T = TypeVar("_T")
else:

    def dataclass_transform(**_options):
        """Stand in for `typing.dataclass_transform`, which only a type checker reads."""
        return lambda function: function


class _DataclassView:
    """What `dataclasses` looks for on a class, made at the first look."""

    def __init__(self, attribute: str) -> None:
        self.attribute = attribute

    def __get__(self, instance: object, owner: Any) -> Any:
        import dataclasses

        specs: list[Any] = []
        for name in owner.__slots__:
            options: dict[str, Any] = {"kw_only": name not in owner.__match_args__}
            if name in owner.__frozen_defaults__:
                options["default"] = owner.__frozen_defaults__[name]
            specs.append((name, object, dataclasses.field(**options)))
        view = dataclasses.make_dataclass(owner.__name__, specs, frozen=True)
        for attribute in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(owner, attribute, getattr(view, attribute))
        return getattr(owner, self.attribute)


class _Signature:
    """The signature of a class whose `__init__` may not be made yet."""

    def __get__(self, instance: object, owner: Any) -> Any:
        import inspect

        _make_init(owner)
        whole = inspect.signature(owner.__init__)
        return whole.replace(parameters=list(whole.parameters.values())[1:-1])


@dataclass_transform(frozen_default=True)
def frozen(cls: type[_T]) -> type[_T]:
    """Turn an annotated class into a frozen, slotted value class.

    Fields are the annotations in order, defaults the class attributes (immutable ones only: they are
    shared); fields after `_: KW_ONLY` are keyword-only. `__checks__`, where the class has it, names for
    some fields what is called with name and value and returns the value to keep. `__post_init__`, likewise, is
    called at the end of `__init__` and may put a normalised value with `object.__setattr__`.
    Instances compare and hash by their fields, survive pickling, and refuse assignment.
    """
    fields: list[str] = []
    keywords: list[str] = []
    target = fields
    for name, annotation in cls.__dict__.get("__annotations__", {}).items():
        if annotation == "KW_ONLY":
            target = keywords
        elif not str(annotation).startswith("ClassVar"):
            target.append(name)
    names = (*fields, *keywords)
    body = {key: value for key, value in cls.__dict__.items() if key not in ("__dict__", "__weakref__")}
    defaults = {name: body.pop(name) for name in names if name in body}
    body["__slots__"] = names
    body["__qualname__"] = cls.__qualname__
    body["__match_args__"] = tuple(fields)
    body["__frozen_defaults__"] = defaults
    body["__dataclass_fields__"] = _DataclassView("__dataclass_fields__")
    body["__dataclass_params__"] = _DataclassView("__dataclass_params__")
    body["__signature__"] = _Signature()
    body["__init__"] = _first_init
    for name, method in _METHODS.items():
        body.setdefault(name, method)
    metaclass: Any = type(cls)
    return metaclass(cls.__name__, cls.__bases__, body)  # type: ignore[no-any-return]


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Stand in for `__init__` until the first instance is made: compiling one takes a fifth of a millisecond."""
    _make_init(self.__class__)
    self.__init__(*args, **kwargs)


def prepare(*classes: type) -> None:
    """Compile the `__init__` of frozen classes now.

    Before an exit of the interpreter in which they are needed: to compile then would make it forget that it was
    ended by a KeyboardInterrupt, and exit with 1 instead of by the signal.
    """
    for cls in classes:
        _make_init(cls)


def twin(cls: type) -> Any:
    """Return a class with the fields of a frozen one whose instances are open, for what every run makes.

    Every field is assigned, and then ``made.__class__ = cls`` freezes it: no default, no `__post_init__`. A call of
    the frozen class costs several times as much, because it packs its keyword arguments into a dictionary and its
    `__init__` has to go around the refusal of assignments.
    """
    return type(cls.__name__, cls.__bases__, {"__slots__": cls.__slots__})  # type: ignore[attr-defined]


def _make_init(cls: Any) -> None:
    """Compile the `__init__` of a frozen class."""
    if cls.__init__ is not _first_init:
        return
    names, defaults = cls.__slots__, cls.__frozen_defaults__

    def parameter(name: str) -> str:
        return f"{name}=_default_{name}" if name in defaults else name

    fields = [parameter(name) for name in names if name in cls.__match_args__]
    keywords = [parameter(name) for name in names if name not in cls.__match_args__]
    parameters = ", ".join(["self", *fields, *(["*"] if keywords else []), *keywords, "**_unknown"])
    checks = getattr(cls, "__checks__", {})

    def checked(name: str) -> str:
        return f"_check_{name}({name!r}, {name})" if name in checks else name

    lines = ["    if _unknown: _refuse_unknown(_unknown)"]
    lines += [f"    _set_{name}(self, {checked(name)})" for name in names]
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    scope: dict[str, Any] = {f"_set_{name}": cls.__dict__[name].__set__ for name in names}
    scope["_refuse_unknown"] = lambda unknown: _refuse_unknown(cls, unknown)
    scope.update({f"_default_{name}": value for name, value in defaults.items()})
    scope.update({f"_check_{name}": check for name, check in checks.items()})
    exec("\n".join([f"def __init__({parameters}):", *lines]), scope)
    made = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    cls.__init__ = made


def _refuse_unknown(cls: Any, unknown: dict[str, Any]) -> None:
    from procsched._core.names import check_names

    check_names(unknown, cls.__slots__, of=cls.__name__)


def _values(self: Any) -> tuple[Any, ...]:
    return tuple([getattr(self, name) for name in self.__slots__])


def _equal(self: Any, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash((self.__class__, _values(self)))


def _repr(self: Any) -> str:
    names = self.__slots__
    inside = ", ".join(f"{name}={value!r}" for name, value in zip(names, _values(self), strict=True))
    return f"{self.__class__.__qualname__}({inside})"


def _refuse(self: Any, name: str, *_value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{self.__class__.__name__} is frozen: field {name!r} cannot be changed")


def _setstate(self: Any, state: tuple[Any, ...]) -> None:
    cls = self.__class__
    for name, value in zip(cls.__slots__, state, strict=True):
        cls.__dict__[name].__set__(self, value)


def _replace(self: Any, /, **changes: Any) -> Any:
    values = dict(zip(self.__slots__, _values(self), strict=True))
    return self.__class__(**{**values, **changes})


_METHODS: dict[str, Callable[..., Any]] = {
    "__eq__": _equal,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _values,
    "__setstate__": _setstate,
    "__replace__": _replace,
}
