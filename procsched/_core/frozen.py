"""Frozen, slotted value classes that cost a fifth of a millisecond each at import.

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

    def __get__(self, instance: object, owner: type) -> Any:
        import dataclasses

        specs: list[Any] = []
        for name in owner.__match_args__ + owner.__frozen_keywords__:  # type: ignore[attr-defined]
            keyword = name in owner.__frozen_keywords__  # type: ignore[attr-defined]
            if name in owner.__frozen_defaults__:  # type: ignore[attr-defined]
                default = owner.__frozen_defaults__[name]  # type: ignore[attr-defined]
                specs.append((name, object, dataclasses.field(default=default, kw_only=keyword)))
            else:
                specs.append((name, object, dataclasses.field(kw_only=keyword)))
        view = dataclasses.make_dataclass(owner.__name__, specs, frozen=True)
        for attribute in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(owner, attribute, getattr(view, attribute))
        return getattr(owner, self.attribute)


@dataclass_transform(frozen_default=True)
def frozen(cls: type[_T]) -> type[_T]:
    """Turn an annotated class into a frozen, slotted value class.

    Fields are the annotations in order, defaults the class attributes (immutable ones only: they are
    shared); fields after `_: KW_ONLY` are keyword-only. `__post_init__`, where the class has one, is
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
    body["__frozen_keywords__"] = tuple(keywords)
    body["__frozen_defaults__"] = defaults
    metaclass: Any = type(cls)
    made: Any = metaclass(cls.__name__, cls.__bases__, body)

    def parameter(name: str) -> str:
        return f"{name}=_default_{name}" if name in defaults else name

    parameters = ", ".join(
        ["self", *map(parameter, fields), *(["*"] if keywords else []), *map(parameter, keywords)]
    )
    lines = [f"    _set_{name}(self, {name})" for name in names]
    if "__post_init__" in body:
        lines.append("    self.__post_init__()")
    scope: dict[str, Any] = {f"_set_{name}": made.__dict__[name].__set__ for name in names}
    scope.update({f"_default_{name}": value for name, value in defaults.items()})
    both = ", ".join(f"self.{name}" for name in names)
    theirs = ", ".join(f"other.{name}" for name in names)
    source = "\n".join(
        [
            f"def __init__({parameters}):",
            *(lines or ["    pass"]),
            "def _values(self):",
            f"    return ({both},)" if names else "    return ()",
            "def __eq__(self, other):",
            "    if other.__class__ is not self.__class__: return NotImplemented",
            f"    return ({both},) == ({theirs},)" if names else "    return True",
        ]
    )
    exec(source, scope)
    for name in ("__init__", "__eq__"):
        if name not in body or name == "__init__":
            scope[name].__qualname__ = f"{cls.__qualname__}.{name}"
            scope[name].__module__ = cls.__module__
            setattr(made, name, scope[name])
    made._values = scope["_values"]
    for name, method in _METHODS.items():
        if name not in body:
            setattr(made, name, method)
    made.__dataclass_fields__ = _DataclassView("__dataclass_fields__")
    made.__dataclass_params__ = _DataclassView("__dataclass_params__")
    return made  # type: ignore[no-any-return]


def _hash(self: Any) -> int:
    return hash((self.__class__, self._values()))


def _repr(self: Any) -> str:
    names = self.__slots__
    inside = ", ".join(f"{name}={value!r}" for name, value in zip(names, self._values(), strict=True))
    return f"{self.__class__.__qualname__}({inside})"


def _refuse(self: Any, name: str, *_value: object) -> None:
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"{self.__class__.__name__} is frozen: field {name!r} cannot be changed")


def _getstate(self: Any) -> tuple[Any, ...]:
    values: tuple[Any, ...] = self._values()
    return values


def _setstate(self: Any, state: tuple[Any, ...]) -> None:
    cls = self.__class__
    for name, value in zip(cls.__slots__, state, strict=True):
        cls.__dict__[name].__set__(self, value)


def _replace(self: Any, /, **changes: Any) -> Any:
    values = dict(zip(self.__slots__, self._values(), strict=True))
    return self.__class__(**{**values, **changes})


_METHODS: dict[str, Callable[..., Any]] = {
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
    "__replace__": _replace,
}
