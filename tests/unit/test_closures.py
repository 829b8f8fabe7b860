"""Functions that go by value without cloudpickle come out as cloudpickle would have sent them."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib
import inspect
import operator
import os
import pickle
import sys
import threading
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procsched import TaskSerializationError, _byvalue, _parcels
from procsched.child import closures as childs
from procsched.workers import closures, packing
from tests import faults

MARK = b"procsched.child.closures"


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    closures._kept.clear()
    childs._kept.clear()
    yield
    closures._kept.clear()
    childs._kept.clear()


def in_module(source: str, name: str = "__main__") -> dict[str, Any]:
    """Return the names that `source` defines, as if it stood in the main script."""
    module = types.ModuleType(name)
    module.__file__ = f"/nowhere/{name}.py"
    exec(compile(source, module.__file__, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def quick(data: object) -> bool:
    """Return whether a call went without cloudpickle."""
    if isinstance(data, _parcels.Parcel):
        data = data.data or os.pread(data.fd, data.size, 0)
    assert isinstance(data, bytes)
    return MARK in data


def load(data: Any) -> Any:
    return pickle.loads(data) if type(data) is bytes else data.load()


def portrait(value: Any, above: tuple[int, ...] = ()) -> Any:
    """Return what can be compared of a value: of a function, all that a user can see of it."""
    if id(value) in above:
        return "itself", len(above) - above.index(id(value))
    above = (*above, id(value))
    kind = type(value)
    if kind is types.FunctionType:
        try:
            if operator.attrgetter(value.__qualname__)(sys.modules[value.__module__]) is value:
                return "by name", value.__module__, value.__qualname__
        except (AttributeError, KeyError):
            pass
        cells = None
        if value.__closure__ is not None:
            cells = [portrait(cell, above) for cell in value.__closure__]
        scope = {
            name: portrait(each, above) for name, each in value.__globals__.items() if name != "__builtins__"
        }
        scope["__builtins__"] = id(value.__globals__["__builtins__"])
        code = value.__code__
        known = (value.__name__, value.__qualname__, value.__module__, value.__doc__, cells, scope)
        more = (value.__defaults__, value.__kwdefaults__, value.__annotations__, value.__dict__)
        return "function", code, code.co_filename, known, portrait(more, above)
    if kind is types.CellType:
        try:
            return "cell", portrait(value.cell_contents, above)
        except ValueError:
            return "empty cell"
    if kind in (list, tuple):
        return kind.__name__, [portrait(each, above) for each in value]
    if kind is dict:
        return "dict", [(key, portrait(each, above)) for key, each in value.items()]
    if isinstance(value, type):
        return "class", value.__module__, value.__qualname__
    if kind is types.ModuleType:
        return "module", id(value)
    if kind is types.MethodType:
        return "method", portrait(value.__func__, above), portrait(value.__self__, above)
    if kind is functools.partial:
        return "partial", portrait((value.func, value.args, value.keywords), above)
    if hasattr(value, "__dict__") and kind.__module__ not in ("builtins", "decimal", "re"):
        return "object", kind.__qualname__, portrait(vars(value), above)
    return kind.__qualname__, value


def outcome(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a call comes to."""
    try:
        result = function(*args, **kwargs)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
        if inspect.isgenerator(result):
            result = list(result)
    except Exception as error:
        return type(error).__name__, str(error)
    return portrait(result)


def assert_same(function: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> bool:
    """Check a call against cloudpickle's; return whether it went without."""
    kwargs = kwargs or {}
    data: Any = None
    for _ in range(3):  # made, taken from what is kept, and loaded by one that has loaded the like before
        data = packing.pack(function, args, kwargs)
        oracle = _byvalue.dumps((function, args, kwargs))
        assert portrait(load(data)) == portrait(pickle.loads(oracle))
        assert outcome(*load(data)) == outcome(*pickle.loads(oracle))
    return quick(data)


# Each defines `f`, and `args` where it takes some. Those of SLOW are for cloudpickle.
QUICK = {
    "plain": "def f(): return 1",
    "documented": "def f():\n    'what it does'\n    return 1",
    "lambda": "f = lambda value: value + 1\nargs = (1,)",
    "nested": "def make():\n    def inner(value): return [value]\n    return inner\nf = make()\nargs = ('x',)",
    "cell": "def make(n):\n    return lambda value: value + n\nf = make(5)\nargs = (2,)",
    "cells": "def make(a, b, *c, **d):\n    return lambda: (a, b, c, d)\nf = make(1, [2], 3, x={4: (5, None)})",
    "shared list": "def make(a):\n    b = a\n    def f(c):\n        c.append(1)\n        return a, b, a is b is c\n"
    "    return f, (a,)\nf, args = make([0])",
    "default": "def f(value, seen=[1]):\n    seen.append(value)\n    return seen\nargs = (2,)",
    "keyword default": "def f(*, value=[1], other='x'):\n    value.append(2)\n    return value, other",
    "annotated": "def f(value: int, other: 'Any' = 2) -> list[int]: return [value, other]\nargs = (2,)",
    "attribute": "def f(): return 1\nf.note = ['a', 2]",
    "renamed": "def f(): return 1\nf.__name__ = 'g'\nf.__qualname__ = 'h'\nf.__doc__ = 'd'",
    "of another module": "def make():\n    def f(): return __name__\n    return f\nf = make()\nf.__module__ = 'x'",
    "of no module": "def make():\n    def f(): return __name__\n    return f\nf = make()\nf.__module__ = None",
    "global": "base = 7\ndef f(): return base",
    "global written": "count = 7\ndef f():\n    global count\n    count += 1\n    return count",
    "global made": "def f():\n    global made\n    made = 1\n    return made",
    "global deleted": "gone = 7\ndef f():\n    global gone\n    del gone\n    return 'gone' in globals()",
    "global list": "seen = [1]\ndef f():\n    seen.append(2)\n    return seen",
    "global of a nested one": "base = [7]\ndef f(): return (lambda: base)()",
    "global missing": "def f(): return missing",
    "builtin hidden": "def len(_value): return 99\ndel len\nlen = 5\ndef f(): return len",
    "module": "import json\ndef f(): return json.dumps([1])",
    "submodule": "import os.path, xml.dom\nimport xml.dom.minidom\n"
    "def f(): return xml.dom.minidom.parseString('<a/>').toxml(), os.path.join('a', 'b')",
    "imported function": "from os.path import join\ndef f(): return join('a', 'b')",
    "imported class": "from fractions import Fraction\ndef f(): return Fraction(1, 2)",
    "class in a cell": "from fractions import Fraction\ndef make(kind):\n    return lambda: kind(1, 2)\n"
    "f = make(Fraction)",
    "object in a cell": "import decimal\ndef make(n):\n    return lambda: n + 1\nf = make(decimal.Decimal(1))",
    "function in a cell": "import os\ndef make(g):\n    return lambda: g('a', 'b')\nf = make(os.path.join)",
    "partial in a cell": "import functools\ndef make(g):\n    return lambda: g('11')\n"
    "f = make(functools.partial(int, base=2))",
    "pattern in a cell": "import re\ndef make(p):\n    return lambda: p.match('aa').group()\n"
    "f = make(re.compile('a+'))",
    "own file": "def f(): return __file__, __name__, __package__",
    "generator": "def f(n):\n    yield from range(n)\nargs = (3,)",
    "async": "async def f(n): return n + 1\nargs = (3,)",
    "async generator": "async def g():\n    yield 1\nasync def f():\n    async def h():\n        yield 1\n"
    "    return [x async for x in h()]",
    "inner class": "def f():\n    class C:\n        x = 1\n    return C().x",
    "comprehension": "def f(n): return [[x * y for x in range(n)] for y in {*range(n)}]\nargs = (3,)",
    "raises": "def f(): raise ValueError('no')",
    "constants": "def f(x): return x in (1, 2.5, 1j, b'a', 'b', None, ..., True, (1, (2,))), x in {1, 2}\nargs = (2,)",
    "wide": "def f(a, /, b, *c, d, **e): return a, b, c, d, e\nf = (lambda g: lambda: 3)(1)",
    "code replaced": "def f(): return 1\ndef g(): return 2\nf.__code__ = g.__code__",
    "keeps wrapped": "import functools, os\n@functools.wraps(os.path.join)\ndef f(): return f.__wrapped__\n"
    "f = (lambda: (lambda: 1))()\nf.__wrapped__ = os.path.join",
    "star import": "from math import *\ndef f(): return floor(2.5), pi",
}
SLOW = {
    "recursive": "def f(n): return n if n > 5 else f(n + 1)\nargs = (1,)",
    "recursive in a cell": "def make():\n    def inner(n): return n if n > 5 else inner(n + 1)\n    return inner\n"
    "f = make()\nargs = (1,)",
    "calls another": "def g(): return 1\ndef f(): return g()",
    "nested closures": "def make(n):\n    def g(): return n\n    return lambda: g() + n\nf = make(2)",
    "shared cell": "def make():\n    n = 0\n    def g():\n        nonlocal n\n        n += 1\n        return n\n"
    "    def f(): return g(), g(), n\n    return f\nf = make()",
    "empty cell": "def make():\n    def f(): return later\n    if 0:\n        later = 1\n    return f\nf = make()",
    "module in a cell": "import json\ndef make(m):\n    return lambda: m.dumps([1])\nf = make(json)",
    "class of main": "class C:\n    x = 1\ndef f(): return C().x",
    "object of main": "class C:\n    x = 1\ndef make(c):\n    return lambda: c.x\nf = make(C())",
    "argument of main": "class C:\n    x = 1\nf = lambda c: c.x\nargs = (C(),)",
    "function as its argument": "def f(g): return g is f\nargs = (f,)",
    "method": "class C:\n    def m(self): return 1\nf = C().m",
    "static method": "class C:\n    @staticmethod\n    def m(): return f\nf = C.m",
    "method in a cell": "class C:\n    def m(self): return 1\ndef make(m):\n    return lambda: m()\nf = make(C().m)",
    "partial": "import functools\nf = functools.partial(lambda a, b: a + b, 1)\nargs = (2,)",
    "decorated": "import functools\ndef twice(g):\n    @functools.wraps(g)\n    def inner(): return 2 * g()\n"
    "    return inner\n@twice\ndef f(): return 3",
    "cached": "import functools\n@functools.lru_cache\ndef f(): return 3",
    "text that names main": "def make(n):\n    return lambda: n\nf = make('__main__')",
    "annotated by main": "class C: pass\ndef f(c: C) -> int: return 1\nargs = (None,)",
    "documented by an object": "def f(): return 1\nf.__doc__ = [1]",
    "package": "__path__ = ['x']\ndef f(): return __path__",
}


@pytest.mark.parametrize("source", QUICK.values(), ids=QUICK)
def test_a_function_comes_out_as_cloudpickle_would_have_sent_it(source: str) -> None:
    """What a worker gets without cloudpickle is the same in every part, and gives the same."""
    made = in_module(source)
    assert assert_same(made["f"], made.get("args", ()))


@pytest.mark.parametrize("source", SLOW.values(), ids=SLOW)
def test_what_only_cloudpickle_can_send_is_left_to_it(source: str) -> None:
    """Where plain pickle fails, or means something else, nothing is different from before."""
    made = in_module(source)
    assert not assert_same(made["f"], made.get("args", ()))


def test_a_method_of_a_base_class_stays_one() -> None:
    """Plain pickle would make the method of the class itself of a bound `super().method` in a cell."""
    super_method = super(Derived, Derived()).say
    assert pickle.loads(pickle.dumps(super_method))() == "derived"
    assert not assert_same(lambda: super_method())
    assert load(packing.pack(lambda: super_method(), (), {}))[0]() == "base"


class Base:
    def say(self) -> str:
        return "base"


class Derived(Base):
    def say(self) -> str:
        return "derived"


def test_functions_of_the_same_code_keep_what_is_their_own() -> None:
    """Two closures from one `def` share the skeleton and nothing else; other names make another skeleton."""

    def make(value: object) -> Any:
        def inner() -> object:
            return value

        return inner

    one, two = make(1), make([2])
    two.__name__ = "two"
    for _ in range(2):
        for function in (one, two):
            assert assert_same(function)


def test_each_call_has_its_own_function_and_globals() -> None:
    """What one run changes is not there in the next, though both come from the same bytes."""
    made = in_module(
        "count = 0\ndef f(seen=[]):\n    global count\n    count += 1\n    seen.append(1)\n    return count, seen"
    )
    data = packing.pack(made["f"], (), {})
    assert quick(data)
    first, second = load(data)[0], load(data)[0]
    assert first() == (1, [1])
    assert first() == (2, [1, 1])
    assert second() == (1, [1])
    first.mark = 1
    assert not vars(load(data)[0])
    assert made["count"] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda scope: scope.update(base=2),
        lambda scope: scope["base"].append(2),
        lambda scope: scope.pop("base"),
        lambda scope: scope.update(base=os),
        lambda scope: scope.update(base=os.path.join),
        lambda scope: scope.update(base=scope["f"]),
        lambda scope: scope.update(base=lambda: 1),
        lambda scope: scope.update(json=1),
        lambda scope: scope.update(json=os),
        lambda scope: scope.pop("json"),
        lambda scope: scope.update(__name__="other"),
        lambda scope: scope.pop("__name__"),
        lambda scope: scope.update(__package__="other"),
        lambda scope: scope.update(__file__=["other"]),
        lambda scope: scope.update(len=3),
        lambda scope: setattr(scope["f"], "__name__", "other"),
        lambda scope: setattr(scope["f"], "__qualname__", "other"),
        lambda scope: setattr(scope["f"], "__doc__", "other"),
        lambda scope: setattr(scope["f"], "__doc__", None),
        lambda scope: setattr(scope["f"], "__defaults__", (1,)),
        lambda scope: setattr(scope["f"], "__kwdefaults__", {"b": 1}),
        lambda scope: setattr(scope["f"], "__annotations__", {"a": int}),
        lambda scope: setattr(scope["f"], "mark", 1),
        lambda scope: setattr(scope["f"], "__code__", (lambda a=0, *, b=0: 3).__code__),
    ],
)
def test_what_changes_between_two_calls_is_seen(change: Any) -> None:
    """Globals and the function itself are sent as they are at each submit, there and back."""
    source = (
        "import json\nbase = [1]\ndef f(a=0, *, b=0):\n    'doc'\n    return base, json, len, __name__, a, b"
    )
    made = in_module(source)
    assert assert_same(made["f"])
    before, kept = dict(made), made["f"].__name__
    change(made)
    assert_same(made["f"])
    made.clear()
    made.update(before)
    made["f"].__name__ = kept
    assert_same(made["f"])


def test_a_submodule_that_is_imported_later_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker imports what the caller had imported by then, also where the calls before had not."""
    package = tmp_path / "laterpackage"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__.py", "one.py", "inner/__init__.py", "inner/deep.py"):
        (package / file).write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = in_module(
        "import laterpackage\ndef f(deep):\n"
        "    return (laterpackage.inner.deep if deep else laterpackage.one).value"
    )
    with_modules = set(sys.modules)

    def forget() -> None:
        for name in set(sys.modules) - with_modules:
            if name.startswith("laterpackage."):
                del sys.modules[name]

    try:
        for name in ("", ".one", ".inner", ".inner.deep"):
            importlib.import_module("laterpackage" + name)
            oracle = _byvalue.dumps(made["f"])
            data = packing.pack(made["f"], (True,), {})
            assert quick(data)
            loaded = set(sys.modules)
            forget()
            pickle.loads(oracle)
            assert set(sys.modules) == loaded
            forget()
            load(data)
            assert set(sys.modules) == loaded
    finally:
        for name in [name for name in sys.modules if name.startswith("laterpackage")]:
            del sys.modules[name]


def test_a_module_that_nobody_can_import_goes_by_value() -> None:
    """A module made by hand, or taken out of the list of modules, is for cloudpickle."""
    dynamic = types.ModuleType("dynamic")
    dynamic.__dict__["x"] = 3
    made = in_module("def f(): return dynamic.x")
    made["dynamic"] = dynamic
    sys.modules["dynamic"] = dynamic
    try:
        assert quick(packing.pack(made["f"], (), {}))
    finally:
        del sys.modules["dynamic"]
    data = packing.pack(made["f"], (), {})
    assert not quick(data)
    assert load(data)[0]() == 3


def test_code_with_a_constant_that_can_change_is_no_skeleton() -> None:
    """A list among the constants of a code object would be shared by the calls; cloudpickle refuses it."""
    function = in_module("def f(): return 12345")["f"]
    function.__code__ = function.__code__.replace(co_consts=(None, [1]))
    with pytest.raises(TaskSerializationError, match="unhashable"):
        packing.pack(function, (), {})


def test_modules_registered_by_value_are_left_to_cloudpickle() -> None:
    """`cloudpickle.register_pickle_by_value` counts for what closures refer to."""
    value = faults.add
    assert assert_same(lambda: value(1, 2))
    cloudpickle.register_pickle_by_value(faults)
    try:
        assert not assert_same(lambda: value(1, 2))
    finally:
        cloudpickle.unregister_pickle_by_value(faults)


def test_an_importable_function_still_goes_by_name() -> None:
    """A function with the code of a closure, but found under its name, is sent as a name."""
    data = packing.pack(faults.add, (1, 2), {})
    assert not quick(data)
    assert len(data) < 100


def test_large_data_of_a_closure_is_a_parcel() -> None:
    """Cells, arguments, defaults and globals that are large go through shared memory, copied once."""
    large = bytes(_parcels.LARGE)
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(_parcels.LARGE, dtype=numpy.uint8)

    def use(first: Any, second: Any = None) -> Any:
        return len(large), first.sum(), second

    data = packing.pack(use, (array,), {"second": array[:10].tolist()})
    assert isinstance(data, _parcels.Parcel)
    assert quick(data)
    function, args, kwargs = load(data)
    assert function(*args, **kwargs) == use(array, array[:10].tolist())
    assert args[0].flags.writeable


def test_objects_keep_their_identity_across_cells_and_arguments() -> None:
    """What is the same object in a cell, a default and an argument is the same in the worker."""
    shared: list[int] = []

    def check(one: Any, two: Any = shared) -> bool:
        return one is two is shared

    assert load(packing.pack(check, (shared,), {}))[0](shared) is False
    function, args, kwargs = load(packing.pack(check, (shared,), {}))
    assert function(*args, **kwargs)


def test_nothing_keeps_what_a_closure_holds() -> None:
    """When the caller drops a closure, its cells' contents go, whatever is kept of its code."""

    def make() -> Any:
        held = Base()
        return (lambda: held), weakref.ref(held)

    function, reference = make()
    assert quick(packing.pack(function, (), {}))
    del function
    gc.collect()
    assert reference() is None


def test_what_is_kept_is_bounded() -> None:
    """Thousands of functions made by exec leave no more than so many behind, on either side."""
    for number in range(3 * childs.KEPT):
        function = in_module(f"def f(): return {number}")["f"]
        loaded, _args, _kwargs = load(packing.pack(function, (), {}))
        assert loaded() == number
        assert len(closures._kept) <= childs.KEPT
        assert len(childs._kept) <= childs.KEPT
    large = in_module(f"def f(): return {'x' * closures.LARGEST!r}")["f"]
    closures._kept.clear()
    assert not assert_same(large)
    assert not closures._kept


def test_the_names_of_globals_are_those_of_cloudpickle() -> None:
    """Which names count as globals of a function does not depend on who looks."""
    from cloudpickle.cloudpickle import _extract_code_globals

    for name in ("pickle", "inspect", "typing", "dataclasses", "asyncio.base_events", "unittest.mock"):
        for value in vars(importlib.import_module(name)).values():
            if type(value) is types.FunctionType:
                assert list(closures.global_names(value.__code__)) == list(
                    _extract_code_globals(value.__code__)
                )


def test_threads_may_pack_the_same_function() -> None:
    """Many threads that submit closures at once each get their own."""

    def make(value: int) -> Any:
        return lambda: value

    found: list[int] = []

    def work(start: int) -> None:
        found.extend(load(packing.pack(make(value), (), {}))[0]() for value in range(start, start + 300))

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(found) == [1000 * number + value for number in range(4) for value in range(300)]


VALUES = [
    "1",
    "'a'",
    "None",
    "[1, [2]]",
    "{'k': 1.5}",
    "()",
    "os",
    "os.path.join",
    "len",
    "lambda: 1",
    "b'x' * 99",
]


@settings(max_examples=150)
@given(st.data())
def test_any_combination_is_as_from_cloudpickle(data: st.DataObject) -> None:
    """Whatever cells, globals, defaults, annotations and attributes come together, and change between two calls."""
    value = st.sampled_from(VALUES)
    cells = data.draw(st.lists(value, max_size=3))
    variables = data.draw(st.lists(value, max_size=3))
    defaults = data.draw(st.lists(value, max_size=2))
    options = data.draw(st.lists(value, max_size=2))
    notes = data.draw(st.lists(value, max_size=2))
    head = data.draw(st.sampled_from(["def", "async def"]))
    doc = data.draw(st.sampled_from(["", "    'doc'\n"]))
    parameters = [f"d{n}: 'D' = {each}" for n, each in enumerate(defaults)] + ["*"] * bool(options)
    parameters += [f"o{n}={each}" for n, each in enumerate(options)]
    used = [f"c{n}" for n in range(len(cells))] + [f"g{n}" for n in range(len(variables))]
    lines = ["import os", *(f"g{n} = {each}" for n, each in enumerate(variables)), "def make():"]
    lines += [f"    c{n} = {each}" for n, each in enumerate(cells)]
    lines += [
        f"    {head} f({', '.join(parameters)}):",
        f"    {doc}        return [{', '.join(used)}]",
        "    return f",
    ]
    lines += ["f = make()", *(f"f.n{n} = {each}" for n, each in enumerate(notes))]
    made = in_module("\n".join(lines), data.draw(st.sampled_from(["__main__", "elsewhere"])))
    assert_same(made["f"])
    for n in range(len(variables)):
        made[f"g{n}"] = eval(data.draw(value))
    assert_same(made["f"])
