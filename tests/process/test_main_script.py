"""What an initializer of the main script sets, and what becomes of the script's classes on their way and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pools import Parent

INITIALIZED = """
import functools
from procsched import ProcessExecutor, run

class Connection:
    def __init__(self, to):
        self.to = to
    def __reduce__(self):
        raise TypeError("a connection does not travel")

class Settings:
    connection = None

class Plain:
    pass

connection = None
by_name = {}
in_order = []
plain = Plain()

def start(to):
    global connection, added
    connection = Settings.connection = plain.connection = Connection(to)
    by_name["it"] = connection
    in_order.append(connection)
    added = connection

def use(*_):
    found = {
        connection, by_name["it"], in_order[0], plain.connection, Settings.connection, added
    }
    assert len(in_order) == len(found) == 1, (in_order, found)
    return found.pop().to

class Row:
    def use(self):
        return use()

def make_row():
    return Row()

def give():
    return lambda: connection
"""


def outcome(tmp_path: Path, body: str) -> str:
    with Parent(tmp_path, INITIALIZED + body) as parent:
        return parent.output()


@pytest.mark.parametrize(
    "given", ["initializer=start, initargs=('here',)", "initializer=lambda: start('here')"]
)
def test_the_calls_find_what_an_initializer_of_the_script_has_set(tmp_path: Path, given: str) -> None:
    """Globals of the script and attributes of its classes are those of the initializer, however the call is made."""
    body = f"""
with ProcessExecutor(1, {given}) as executor:
    assert executor.submit(use).result(30) == "here"
    assert list(executor.map(use, range(2))) == ["here", "here"]
    assert list(executor.map(use, range(2), chunksize=2)) == ["here", "here"]
    assert executor.submit(functools.partial(use, 1)).result(30) == "here"
    assert executor.submit(Row().use).result(30) == "here"
    assert executor.submit(functools.cache(use)).result(30) == "here"
    assert executor.submit(sorted, [2, 1], key=lambda value: (use(), value)).result(30) == [1, 2]
assert run(lambda: connection) is None  # in another pool
print("all is well")
"""
    assert outcome(tmp_path, body) == "all is well\n"


def test_what_an_initializer_has_set_stays_in_the_worker(tmp_path: Path) -> None:
    """Objects, classes and functions that come back are without it, be it something that cannot travel."""
    body = """
with ProcessExecutor(1, initializer=start, initargs=("here",)) as executor:
    assert type(executor.submit(make_row).result(30)) is Row
    assert executor.submit(lambda: Settings).result(30) is Settings
    assert Settings.connection is connection is None
    assert executor.submit(give).result(30)() is None
    assert use.__globals__ is Row.use.__globals__ is globals()
print("all is well")
"""
    assert outcome(tmp_path, body) == "all is well\n"


def test_a_value_that_the_caller_changed_later_is_hidden_by_the_initializers(tmp_path: Path) -> None:
    """What the initializer has set comes before what travelled; other globals travel with each call as ever."""
    body = """
other = 1
with ProcessExecutor(1, initializer=start, initargs=("here",)) as executor:
    connection, other = "mine", 2
    assert executor.submit(lambda: (connection.to, other)).result(30) == ("here", 2)
print("all is well")
"""
    assert outcome(tmp_path, body) == "all is well\n"


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


def test_a_class_that_goes_again_is_as_it_is_in_the_script(tmp_path: Path) -> None:
    """A worker has no attribute of it that an earlier call has set there, nor one that the script has deleted since."""
    body = """
class Base:
    kind = "base"

class Derived(Base):
    __slots__ = ("number",)
    kind = "derived"
    def tell(self):
        return self.kind

def mark():
    Derived.marked = Derived.tell

def look():
    return Derived().tell(), hasattr(Derived, "marked"), hasattr(Derived, "number")

assert run(look) == ("derived", False, True)
run(mark)
assert run(look) == ("derived", False, True)
del Derived.kind
assert run(look) == ("base", False, True)
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


ENUMS = """
import datetime, enum
from dataclasses import dataclass
from procsched import run

class Planet(enum.Enum):
    EARTH = (5.976e24, 6.37814e6)
    MARS = (6.421e23, 3.3972e6)
    def __init__(self, mass, radius):
        self.mass, self.radius = mass, radius
    def gravity(self):
        return self.mass / self.radius

class Coordinate(bytes, enum.Enum):
    X = (120, "along")
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made

class Named(enum.Enum):
    ONE = 1
    FIRST = 1
    other: "Named"

Named.ONE.other = Named.ONE

class Right(enum.Flag):
    READ = 1
    WRITE = 2
    BOTH = 3

class Asking(enum.EnumMeta):
    def __contains__(cls, value):
        return value in cls._value2member_map_

class Step(enum.Enum, metaclass=Asking):
    TWICE = enum.member(lambda number: 2 * number)

class Day(datetime.date, enum.Enum):
    NEW_YEAR = (2026, 1, 1)

class Pair(tuple, enum.Enum):
    ONE_TWO = (1, 2)
    AGAIN = (1, 2)

@dataclass(frozen=True)
class Size:
    wide: int
    high: int

class Paper(Size, enum.Enum):
    A4 = (210, 297)

def look(member):
    kind = type(member)
    assert kind[member.name] is kind(member.value) is getattr(kind, member.name) is member
    return {
        Planet: lambda: member.gravity(),
        Coordinate: lambda: (bytes(member), member.label),
        Named: lambda: (Named["FIRST"] is Named.FIRST is member, member.other is member),
        Right: lambda: (Right["BOTH"] is Right.BOTH, list(Right.BOTH), ~member, member | Right.WRITE),
        Day: lambda: (member.year, member < datetime.date(2026, 2, 1)),
        Pair: lambda: (member[1], Pair["AGAIN"] is member),
        Paper: lambda: (member.wide, member.high, member == Paper.A4),
    }[kind](), list(kind.__members__), [each.name for each in kind]

for kind in (Planet, Coordinate, Named, Right, Day, Pair, Paper):
    for member in kind:
        for _ in range(2):
            assert run(look, member) == look(member), (run(look, member), look(member))
            assert run(lambda: member) is member
for _ in range(2):
    assert run(lambda step: (step.value(4), 3 in Step), Step.TWICE) == (8, False)
    assert run(lambda: Step.TWICE) is Step.TWICE
    assert run(lambda: Right.READ | Right.WRITE) is Right.BOTH
print("all is well")
"""


def test_members_of_an_enum_of_the_script_are_whole_in_the_worker(tmp_path: Path) -> None:
    """Their attributes and second names go along, whatever they are made of, and they come back as themselves."""
    assert outcome(tmp_path, ENUMS) == "all is well\n"


HOOKED = """
import abc, typing
from procsched import run

T = typing.TypeVar("T")

class Plugin:
    plugins = {}
    def __init_subclass__(cls, /, key, **rest):
        super().__init_subclass__(**rest)
        assert key not in Plugin.plugins
        Plugin.plugins[key] = cls
        cls.key = key

class Saver(Plugin, key="save"):
    __slots__ = ("data",)

class Loader(abc.ABC, Plugin, key="load"):
    @abc.abstractmethod
    def load(self): ...

class FileLoader(Loader, key="file"):
    def load(self):
        return self.key, sorted(Plugin.plugins)

class Of(typing.Generic[T]):
    def __init_subclass__(cls, /, kind):
        super().__init_subclass__()
        cls.kind = kind

class OfNumbers(Of[int], kind="numbers"): ...

class Meta(type):
    def __new__(meta, name, bases, body, *, table):
        body["columns"] = body["__annotations__"].keys()
        made = super().__new__(meta, name, bases, {**body, "columns": [*body["columns"]]})
        made.table = table
        return made
    def __init__(cls, *given, table):
        super().__init__(*given)

class Row(metaclass=Meta, table="rows"):
    number: int

for _ in range(2):
    assert run(lambda: Saver().key) == "save"
    assert run(lambda: FileLoader().load()) == FileLoader().load()
    assert run(lambda: OfNumbers().kind) == "numbers"
    assert run(lambda: (Row().table, Row.columns)) == ("rows", ["number"])
    assert type(run(lambda row: row, Row())) is Row
    try:
        run(lambda: Loader())
    except TypeError as error:
        assert "abstract" in str(error), error

class AFurther(Plugin, key="further"): ...
assert run(lambda: type("", (Plugin,), {}, key="there").key) == "there"
print("all is well")
"""


def test_a_class_travels_whose_statement_said_more_than_its_bases(tmp_path: Path) -> None:
    """What was meant for `__init_subclass__` or a metaclass is not needed to make the class anew; later it counts."""
    assert outcome(tmp_path, HOOKED) == "all is well\n"
