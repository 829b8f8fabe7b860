"""Functions that go by name: what arrives is what pickle would have brought."""

from __future__ import annotations

import pickle
import sys
import types
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsched import _parcels
from procsched.child import references as there
from procsched.workers import packing, references

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters()),
    st.binary(),
)
keys = st.one_of(st.integers(), st.text(max_size=3), st.booleans(), st.binary(max_size=3))
groups = st.one_of(
    st.lists(plain, max_size=9),
    st.lists(plain, max_size=9).map(tuple),
    st.sets(keys, max_size=9),
    st.frozensets(keys, max_size=9),
    st.dictionaries(keys, plain, max_size=9),
)
values = st.lists(st.one_of(plain, groups), max_size=5).map(tuple)


def act(*args: Any) -> Any:
    return args


def loaded(payload: Any) -> tuple[Any, tuple[Any, ...]]:
    assert type(payload) is bytes
    assert payload[0] == there.MARK
    return there.load(payload)


def portrait(value: Any) -> str:
    """Return all that can be seen of builtin data; sets in an order of their own."""
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__} {sorted(map(portrait, value))}"
    if isinstance(value, dict):
        return f"dict {[(portrait(key), portrait(part)) for key, part in value.items()]}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__} {list(map(portrait, value))}"
    return f"{type(value).__name__} {value!r}"


@given(values)
def test_arguments_arrive_as_pickle_brings_them(args: tuple[Any, ...]) -> None:
    """Types, values, and the order of what has one."""
    if not _parcels.are_small(args):
        return
    function, found = loaded(packing.pack(act, args, {}))
    assert function is act
    assert portrait(found) == portrait(pickle.loads(pickle.dumps(args, 5)))


def test_what_is_one_object_stays_one() -> None:
    """A list that is passed twice is one list in the worker, and no list of the caller's."""
    shared = [1]
    _function, (first, second) = loaded(packing.pack(act, (shared, shared), {}))
    assert first is second
    assert first is not shared


@pytest.fixture
def module() -> Any:
    made = types.ModuleType("referred_to")
    exec("def f(*args): return 'first', args\ndef g(*args): return 'second', args", made.__dict__)
    sys.modules["referred_to"] = made
    yield made
    del sys.modules["referred_to"]


def call(payload: Any) -> Any:
    function, args = loaded(payload)
    return function(*args)


def test_a_name_that_is_bound_anew_there_leads_to_what_it_is_bound_to(module: Any) -> None:
    """As with pickle: what a run has put in the place of a function is called from then on."""
    payload = packing.pack(module.f, (1,), {})
    assert call(payload) == ("first", (1,))
    module.f = module.g
    assert call(payload) == ("second", (1,))


def test_a_function_that_has_lost_its_name_here_goes_by_value(module: Any) -> None:
    """The name would lead to another function, so it does not count."""
    function = module.f
    assert call(packing.pack(function, (1,), {})) == ("first", (1,))
    module.f = module.g
    payload = packing.pack(function, (1,), {})
    assert type(payload) is bytes
    assert payload[0] != there.MARK
    found, args, kwargs = pickle.loads(payload)
    assert found(*args, **kwargs) == ("first", (1,))


def test_a_module_that_was_loaded_anew_counts(module: Any) -> None:
    """On both sides."""
    payload = packing.pack(module.f, (1,), {})
    assert call(payload) == ("first", (1,))
    new = types.ModuleType("referred_to")
    exec("def f(*args): return 'new', args", new.__dict__)
    sys.modules["referred_to"] = new
    assert call(payload) == ("new", (1,))
    assert call(packing.pack(new.f, (1,), {})) == ("new", (1,))


@pytest.mark.parametrize("missing", ["function", "module"])
def test_what_is_missing_there_is_told_as_by_pickle(module: Any, missing: str) -> None:
    """The kind of the error, and its words."""
    payload = packing.pack(module.f, (), {})
    plain = pickle.dumps(module.f)
    if missing == "function":
        del module.f
    else:
        sys.modules["referred_to"] = None  # type: ignore[assignment]  # so that importing it fails
    with pytest.raises((ImportError, AttributeError)) as ours:
        there.load(payload)
    with pytest.raises((ImportError, AttributeError)) as theirs:
        pickle.loads(plain)
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("name", "value"), [("__qualname__", "other"), ("__module__", "other"), ("__module__", None)]
)
def test_a_function_that_says_that_it_is_another_is_for_pickle(module: Any, name: str, value: Any) -> None:
    """Pickle goes by what a function says of itself."""
    assert references.pack(module.f, ()) is not None
    setattr(module.f, name, value)
    assert references.pack(module.f, ()) is None


def test_no_more_functions_are_kept_than_that(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides."""
    monkeypatch.setattr(references, "KEPT", 3)
    monkeypatch.setattr(there, "KEPT", 3)
    for n in range(10):
        exec(f"def f{n}(): return {n}", module.__dict__)
        assert call(packing.pack(module.__dict__[f"f{n}"], (), {})) == n
        assert len(references._kept) <= 3
        assert len(there._kept) <= 3
