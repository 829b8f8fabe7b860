"""What becomes of classes of the main script on their way and back."""

from __future__ import annotations

from pathlib import Path

from tests.pools import Parent

IMPORTS = "from procsched import run\n"


def outcome(tmp_path: Path, body: str) -> str:
    with Parent(tmp_path, IMPORTS + body) as parent:
        return parent.output()


def test_a_class_that_comes_home_is_left_as_it_is(tmp_path: Path) -> None:
    """The methods of a class of the script still refer to the script's globals when an instance has come back."""
    body = """
count = 0

class Counter:
    made_in = "the script"
    def __init__(self):
        Counter.made_in = "a worker"
    def add(self):
        global count
        count += 1

method = Counter.add
for _ in range(2):
    counter = run(Counter)
    assert type(counter) is Counter
    assert Counter.add is method
    counter.add()
assert count == 2
assert Counter.made_in == "the script"
Counter.made_in = "the script, later"
assert run(lambda: Counter.made_in) == "the script, later"
print("all is well")
"""
    assert outcome(tmp_path, body) == "all is well\n"


SLOTTED = """
import abc, collections, dataclasses, typing

@dataclasses.dataclass(slots=True)
class Data:
    x: int = 1

@dataclasses.dataclass(slots=True, frozen=True, weakref_slot=True)
class Frozen:
    x: int = 1

class Plain:
    __slots__ = ("a", "__b")
    def __init__(self):
        self.a = self.__b = 3
    def __eq__(self, other):
        return self.__b == other.__b

class Below(Plain):
    __slots__ = "c"

class Open(Below):
    pass

class Abstract(typing.Generic[typing.TypeVar("T")], abc.ABC):
    __slots__ = {"documented": "so it is"}
    def __eq__(self, other):
        return type(other) is type(self)

class WithDict:
    __slots__ = ("__dict__", "__weakref__", "a")
    def __eq__(self, other):
        return type(other) is type(self)

class Named(typing.NamedTuple):
    x: int = 1

class Pair(collections.namedtuple("Pair", "a b", defaults=(1, 2))):
    __slots__ = ()

def make(cls):
    made = cls()
    return made, hasattr(made, "__dict__")

for cls in (Data, Frozen, Plain, Below, Open, Abstract, WithDict, Named, Pair):
    for _ in range(2):
        made, has_dict = run(make, cls)
        assert type(made) is cls
        assert made == cls()
        assert has_dict == hasattr(cls(), "__dict__"), cls
        assert run(lambda value: value == type(value)(), made)
print("all is well")
"""


def test_a_class_of_the_script_has_its_slots_in_the_worker(tmp_path: Path) -> None:
    """Instances of classes with `__slots__`, however these are written, go and come back."""
    assert outcome(tmp_path, SLOTTED) == "all is well\n"
