"""A call as bytes: what goes by name, what goes by value, and what is said where neither works."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from procsched import (
    ProcessExecutor,
    ProcessFuture,
    ProcessPool,
    Scheduler,
    TaskSerializationError,
    ThreadPool,
)
from procsched.child import references
from procsched.stores.payloads import store_call
from procsched.workers import packing
from tests import faults


def unpack(data: bytes) -> Any:
    if data[0] == references.MARK:
        function, args = references.load(data)
        return function(*args)
    function, args, kwargs = pickle.loads(data)
    return function(*args, **kwargs)


def by_name(data: bytes) -> bool:
    """Return whether the call goes by name alone."""
    return b"cloudpickle" not in data


def in_main(source: str, name: str) -> Any:
    """Return what `source` defines under `name`, as if it stood in the main script."""
    module = types.ModuleType("__main__")
    kept = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(source, module.__dict__)
    finally:
        sys.modules["__main__"] = kept
    return module.__dict__[name]


def test_what_is_importable_goes_by_name() -> None:
    """A function of a module costs its name and its arguments."""
    data = packing.pack(faults.add, (1,), {"right": 2})
    assert by_name(data)
    assert len(data) < 100
    assert unpack(data) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: lambda value: value + 1,
        lambda: functools.partial(lambda one, two: one + two, 1),
        lambda: [1].__add__ and (lambda value, offset=[1]: value + offset[0]),
        lambda: in_main("base = 1\ndef f(value):\n    return value + base", "f"),
        lambda: in_main("class C:\n    def m(self, value):\n        return value + 1\nf = C().m", "f"),
        lambda: in_main("def make(n):\n    return lambda value: value + n\nf = make(1)", "f"),
        lambda: in_main("def f(value):\n    return value if value > 5 else f(value + 1)\n", "f"),
    ],
    ids=["lambda", "partial", "default", "main", "method", "closure", "recursive"],
)
def test_what_is_not_importable_goes_by_value(make: Any) -> None:
    """Lambdas, closures, partials, methods and what stands in the main script are sent whole."""
    assert unpack(packing.pack(make(), (5,), {})) == 6


def test_an_argument_of_the_main_script_goes_by_value() -> None:
    """A class of the main script that is only an argument is sent whole, and known again."""
    value = in_main("class Mine:\n    x = 3\nvalue = Mine()", "value")
    loaded = unpack(packing.pack(faults.identity, (value,), {}))
    assert type(loaded).__name__ == "Mine"
    assert loaded.x == 3


def test_a_text_that_names_main_is_only_a_text() -> None:
    """Data that happens to contain the word is packed and loaded like any other."""
    assert unpack(packing.pack(faults.identity, ("__main__",), {})) == "__main__"


class Holder:
    def __init__(self) -> None:
        self.log = {"handle": [1, threading.Lock()]}


WITH_A_LOCK = "import threading\nclass Mine:\n    lock = threading.Lock()\nvalue = Mine()"


def closure_over(value: Any) -> Any:
    return lambda: value


@pytest.mark.parametrize(
    ("make", "wanted"), [(packing.pack, "sent to a worker"), (store_call, "stored")], ids=["sent", "stored"]
)
@pytest.mark.parametrize(
    ("action", "args", "kwargs", "path", "kind"),
    [
        (faults.identity, (threading.Lock(),), {}, "args[0]", "lock"),
        (faults.identity, (), {"value": {"a": threading.Lock()}}, "kwargs['value']['a']", "lock"),
        (faults.identity, ([0, (1, threading.Lock())],), {}, "args[0][1][1]", "lock"),
        (faults.identity, (Holder(),), {}, "args[0].log['handle'][1]", "lock"),
        (faults.identity, (in_main(WITH_A_LOCK, "value"),), {}, "args[0] (its class 'Mine').lock", "lock"),
        (closure_over(threading.Lock()), (), {}, "action (closure variable 'value')", "lock"),
        (functools.partial(faults.identity, threading.Lock()), (), {}, "action.args[0]", "lock"),
        (faults.identity, (faults.OnDump(ValueError),), {}, "args[0]", "OnDump"),
        (faults.identity, (x for x in ()), {}, None, "generator"),
    ],
)
def test_what_cannot_be_pickled_is_named_with_its_place(
    make: Any, wanted: str, action: Any, args: Any, kwargs: dict[str, Any], path: str | None, kind: str
) -> None:
    """The error says what cannot be pickled, where it hangs, why, and what to do."""
    if path is None:
        args, path = ((x for x in ()),), "args[0]"
    with pytest.raises(TaskSerializationError) as caught:
        make(action, args, kwargs)
    assert (caught.value.path, caught.value.type_name) == (path, kind)
    text = str(caught.value)
    assert text.startswith(f"{path}, of type {kind}, cannot be {wanted}: ")
    assert "create it inside the action" in text
    assert caught.value.__cause__ is not None


def test_an_open_file_is_refused_with_its_own_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file goes as a copy of its contents, whatever it was opened for."""
    path = tmp_path / "file"
    path.touch()
    for mode in ("r", "w", "rb"):
        with path.open(mode) as file:
            for call in ((faults.identity, (file,)), (lambda file=file: file, ())):
                with pytest.raises(TaskSerializationError, match=r"open file|cannot pickle") as caught:
                    packing.pack(*call, {})
                assert str(caught.value).endswith("; pass its path, and open it inside the action")
    monkeypatch.setattr(sys, "stderr", sys.__stderr__)  # which is not a file like others
    assert pickle.loads(packing.pack(lambda stream=sys.stderr: stream, (), {}))[0]() is sys.stderr


def test_functions_that_share_a_variable_share_it_in_the_worker() -> None:
    """What one of them assigns by `nonlocal` the other reads, wherever it hangs; a later call begins anew."""

    def make() -> Any:
        count = 0

        def add() -> None:
            nonlocal count
            count += 1

        def work(others: tuple[Any, ...] = ()) -> tuple[int, list[int]]:
            add()
            return count, [other() for other in others]

        return work, lambda: count

    work, read = make()
    for _ in range(2):
        assert unpack(packing.pack(work, ((read,),), {})) == (1, [1])
    assert read() == 0


def test_a_function_with_dispatch_by_type_travels() -> None:
    """`functools.singledispatch` works on what goes by value, with all that was registered."""

    @functools.singledispatch
    def tell(_value: object) -> str:
        return "something"

    @tell.register
    def _(_value: int) -> str:
        return "a number"

    assert tell(1) == "a number"  # and it is in the cache
    function, args, _kwargs = pickle.loads(packing.pack(lambda value: tell(value), (2,), {}))
    assert function(*args) == "a number"
    assert function("2") == "something"


@pytest.mark.parametrize("kind", ["by name", "by value"])
def test_an_object_of_the_main_script_that_goes_by_name_is_refused(kind: str) -> None:
    """No worker knows the names of the main script: what is pickled as one fails in the caller."""
    named = "'ONE'" if kind == "by name" else "(One, ())"
    one = in_main(f"class One:\n    def __reduce__(self):\n        return {named}\nONE = One()", "ONE")
    if kind == "by value":
        assert type(unpack(packing.pack(faults.identity, (one,), {}))).__name__ == "One"
        return
    with pytest.raises(TaskSerializationError, match=r"by its name in the main script, 'ONE'") as caught:
        packing.pack(faults.identity, ([one],), {})
    assert caught.value.path == "args[0][0]"
    assert "put it into a module" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (
            lambda: ProcessFuture(None, "", None),
            "a future stays in the process that made it: pass its result",
        ),
        (lambda: ProcessExecutor(1), "an executor stays in the process that made it: an action"),
        (lambda: Scheduler(1), "a scheduler stays in the process that made it: call it there"),
        (lambda: ProcessPool(1), "a pool stays in the process that made it: what needs one"),
        (lambda: ThreadPool(1), "a pool stays in the process that made it: what needs one"),
    ],
    ids=["future", "executor", "scheduler", "pool", "threads"],
)
def test_what_belongs_to_its_process_says_so(make: Any, remedy: str) -> None:
    """Such an object is named itself, not a lock within it, and says what to do instead."""
    thing = make()
    try:
        for call, path in (
            ((faults.identity, ([thing],)), "args[0][0]"),
            ((lambda: thing, ()), "action (closure"),
        ):
            with pytest.raises(TaskSerializationError) as caught:
                packing.pack(*call, {})
            assert caught.value.path is not None
            assert caught.value.path.startswith(path)
            assert caught.value.type_name == type(thing).__name__
            assert remedy in str(caught.value)
            assert "create it inside the action" not in str(caught.value)
    finally:
        if not isinstance(thing, ProcessFuture | ProcessPool | ThreadPool):
            thing.shutdown()


class Hostile:
    """Raises whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __reduce__(self) -> Any:
        raise RuntimeError("no reduction")

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no dict")


def test_what_resists_the_search_is_an_error_all_the_same() -> None:
    """An object that raises on every look is refused with the reason, not with an accident of the search."""
    with pytest.raises(TaskSerializationError, match="no reduction"):
        packing.pack(faults.identity, ([Hostile()],), {})


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_no_error_of_pickling(error: type[BaseException]) -> None:
    """What is no Exception goes through to the caller."""
    with pytest.raises(error):
        packing.pack(faults.identity, (faults.OnDump(error),), {})


def test_a_deep_argument_is_refused_or_sent() -> None:
    """A structure too deep to pickle is an error that says so, not the end of the interpreter."""
    nested: Any = None
    for _ in range(50_000):
        nested = [nested]
    with pytest.raises(TaskSerializationError, match="recursion"):
        packing.pack(faults.identity, (nested,), {})
    while nested is not None:  # taken apart by hand: its own end would recurse as deep
        nested = nested[0]


def test_a_self_reference_is_searched_once() -> None:
    """A circle with something unpicklable in it does not keep the search going for ever."""
    circle: list[Any] = [threading.Lock()]
    circle.append(circle)
    with pytest.raises(TaskSerializationError, match="lock"):
        packing.pack(faults.identity, (circle,), {})


def test_the_culprit_is_found_where_things_refer_to_each_other() -> None:
    """Neither a function that calls itself, nor two objects of which each has the other, lead astray."""
    lock = threading.Lock()

    def down(number: int) -> int:
        return down(number - 1) if number and lock.locked() else number

    with pytest.raises(TaskSerializationError) as raised:
        packing.pack(down, (3,), {})
    assert raised.value.path == "action (closure variable 'lock')"
    parent, child = types.SimpleNamespace(), types.SimpleNamespace()
    parent.child, child.parent = child, parent
    parent.lock = lock
    with pytest.raises(TaskSerializationError) as raised:
        packing.pack(faults.identity, (parent,), {})
    assert raised.value.path == "args[0].lock"
