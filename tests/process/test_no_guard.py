"""A main script needs no guard, is never run again in a child, and what it defines travels both ways."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests import support
from tests.pools import ROOT

# What a newcomer writes at the top level of a file, with no `if __name__ == "__main__"`.
BODY = """\
import dataclasses, enum, functools, os, sys

with open({ran!r}, "a") as file:
    print(os.getpid(), file=file)

from procsched import ProcessExecutor, run, shutdown_shared

factor = 3

@dataclasses.dataclass
class Point:
    x: int
    def scaled(self, by):
        return Point(self.x * by)

class Colour(enum.Enum):
    RED = 1

class Mine(Exception):
    def __init__(self, code):
        super().__init__(code)
        self.code = code

def triple(value):
    return value * factor

def make_adder(n):
    def add(value):
        return value + n
    return add

def fail():
    raise Mine(7)

async def later(value):
    return value

executor = ProcessExecutor(2)
assert executor.submit(triple, 2).result(30) == 6
assert executor.submit(lambda: factor).result(30) == 3
assert executor.submit(make_adder(5), 1).result(30) == 6
assert executor.submit(functools.partial(triple, 4)).result(30) == 12
assert executor.submit(later, "async").result(30) == "async"
assert executor.submit(Point(2).scaled, 4).result(30) == Point(8)
point = executor.submit(Point, 5).result(30)
assert type(point) is Point, type(point)
assert executor.submit(lambda colour: colour, Colour.RED).result(30) is Colour.RED
assert list(executor.map(triple, range(4))) == [0, 3, 6, 9]
factor = 10
assert executor.submit(triple, 2).result(30) == 20, "a global that changed travels anew"
try:
    executor.submit(fail).result(30)
except Mine as error:
    assert error.code == 7
else:
    assert False
assert executor.submit(lambda: __name__).result(30) in ("__main__", "procsched")
assert executor.submit(os.getcwd).result(30) == os.getcwd()
assert run(lambda: "shared", timeout=30) == "shared"
executor.shutdown()
shutdown_shared()
print("all is well")
"""


@pytest.fixture
def body(tmp_path: Path) -> str:
    return BODY.format(ran=str(tmp_path / "ran"))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run_it(tmp_path: Path, *arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def assert_ran_once(tmp_path: Path) -> None:
    assert len((tmp_path / "ran").read_text().splitlines()) == 1


def test_a_script(tmp_path: Path, body: str) -> None:
    """A script without a guard works and is run once, not in its children."""
    (tmp_path / "script.py").write_text(body)
    assert run_it(tmp_path, "script.py") == "all is well\n"
    assert_ran_once(tmp_path)


def test_a_script_in_another_directory(tmp_path: Path, body: str) -> None:
    """A script may import a module that lies beside it, also when started from elsewhere."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "neighbour.py").write_text("def double(value):\n    return value * 2\n")
    more = "import neighbour\n" + body.replace(
        "executor = ProcessExecutor(2)\n",
        "executor = ProcessExecutor(2)\nassert executor.submit(neighbour.double, 4).result(30) == 8\n",
    )
    (place / "script.py").write_text(more)
    assert run_it(tmp_path, str(place / "script.py")) == "all is well\n"


def test_a_module(tmp_path: Path, body: str) -> None:
    """`python -m` works like a script."""
    (tmp_path / "as_module.py").write_text(body)
    assert run_it(tmp_path, "-m", "as_module") == "all is well\n"
    assert_ran_once(tmp_path)


def test_a_command(tmp_path: Path, body: str) -> None:
    """`python -c` works like a script."""
    assert run_it(tmp_path, "-c", body) == "all is well\n"
    assert_ran_once(tmp_path)


def test_a_program_on_stdin(tmp_path: Path, body: str) -> None:
    """A program that comes through a pipe works like a script, and its children do not read the pipe."""
    assert run_it(tmp_path, "-", stdin=body) == "all is well\n"
    assert_ran_once(tmp_path)


TYPED = """\
import enum, functools, sys
from typing import *
from procsched import run

T = TypeVar("T")
P = ParamSpec("P", bound=int)
Ts = TypeVarTuple("Ts")
Uid = NewType("Uid", int)

class Row(TypedDict):
    uid: Required[Uid]
    more: NotRequired["Row"]

class Wide(Row, total=False):
    \'\'\'Has a name.\'\'\'
    name: str

class Box(TypedDict, Generic[T]):
    it: T

Odd = TypedDict("Odd", {"in": Uid, "x-y": Row}, total=False)

class Pair(NamedTuple, Generic[T]):
    left: T
    right: int = 2

class Lazy:
    @functools.cached_property
    def twice(self):
        \'\'\'Twice two.\'\'\'
        return 4

class Colour(enum.Enum):
    RED = 1
    @functools.cached_property
    def more(self):
        return self.value + 1

def same(uid: Uid, *rest: *Ts) -> Uid:
    return uid

def decorate(function: Callable[P, T]) -> Callable[P, T]:
    return function

def look(row: Row, wide: Wide, box: Box[int], odd: Odd, pair: Pair[int]):
    assert Row.__annotations__["uid"] == Required[Uid] and Row.__required_keys__ == {"uid"}
    assert (Wide.__required_keys__, Wide.__optional_keys__) == ({"uid"}, {"more", "name"})
    assert (Wide.__total__, Wide.__doc__, Wide(uid=1)) == (False, "Has a name.", {"uid": 1})
    assert Odd.__annotations__ == {"in": Uid, "x-y": Row} and Odd.__optional_keys__ == {"in", "x-y"}
    assert Box.__parameters__ == (T,) and Pair[int](1) == (1, 2)
    assert Uid.__supertype__ is int and Uid.__module__ == "__main__" and P.__bound__ is int
    assert same.__annotations__["return"] is Uid
    assert (Lazy().twice, Lazy.twice.__doc__, Colour.RED.more) == (4, "Twice two.", 2)
    return row

assert run(same, Uid(3)) == 3
assert run(decorate, 5) == 5
assert run(look, {"uid": 1}, {}, {}, {}, Pair(1)) == {"uid": 1}
for value in (Uid, P, Ts, Row, Wide, Odd):
    assert run(lambda: value) is value
lazy = run(lambda lazy: lazy, Lazy())
assert type(lazy) is Lazy and lazy.twice == 4
assert run(lambda: same).__annotations__["uid"] is Uid
if sys.version_info >= (3, 12):
    exec("type Id = Uid | str\\ntype Tree = list[Tree] | Id\\ntype List[X] = list[X]")
    assert run(lambda: Id.__value__) == Uid | str
    assert run(lambda: (Tree.__value__.__args__[0].__args__[0] is Tree, Tree.__module__)) == (True, "__main__")
    assert run(lambda: List.__value__.__args__ == List.__type_params__)
    def plant(tree: Tree, trees: List[Tree]) -> Tree: return tree
    assert run(plant, [1], []) == [1]
    assert run(lambda: plant).__annotations__["tree"].__name__ == "Tree"
print("all is well")
"""


def test_what_typing_and_functools_give_travels(tmp_path: Path) -> None:
    """Annotated code of a script works as it stands, and its types come back as themselves."""
    (tmp_path / "typed.py").write_text(TYPED)
    assert run_it(tmp_path, "typed.py") == "all is well\n"


STRUCTURES = """\
import ctypes
from procsched import ProcessExecutor, TaskSerializationError

class Head(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("kind", ctypes.c_char), ("size", ctypes.c_int), ("sums", ctypes.c_int * 3)]
    def total(self):
        return sum(self.sums)

class Tail(Head):
    _fields_ = [("end", ctypes.c_double)]

class Either(ctypes.Union):
    _fields_ = [("head", Head), ("raw", ctypes.c_uint8 * 17)]

class Both(ctypes.Structure):
    _anonymous_ = ["either"]
    _fields_ = [("either", Either), ("bits", ctypes.c_int, 3)]

class Node(ctypes.Structure):
    pass

Node._fields_ = [("value", ctypes.c_int), ("next", ctypes.POINTER(Node)), ("head", Head)]

class Wire(ctypes.BigEndianStructure):
    _fields_ = [("port", ctypes.c_uint16)]

Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)

def nodes():
    return Node(1, ctypes.pointer(Node(7))).next.contents.value, ctypes.sizeof(Node)

with ProcessExecutor(1) as executor:
    call = lambda *call: executor.submit(*call).result(30)
    head = Head(b"a", 3, (1, 2, 3))
    for _ in range(2):  # the second time the worker knows the classes
        assert call(lambda head: (head.total(), ctypes.sizeof(Head)), head) == (6, 17)
        assert call(lambda tail: (tail.size, tail.end), Tail(b"a", 3, (1, 2, 3), 2.5)) == (3, 2.5)
        assert call(lambda both: (both.head.size, both.raw[0], both.bits), Both(Either(head), 2)) == (3, 97, 2)
        assert call(nodes) == (7, ctypes.sizeof(Node))
        assert call(lambda wire: bytes(wire), Wire(1)) == b"\\0\\1"
        back = call(lambda head: head, head)
        assert type(back) is Head and back.total() == 6
        assert type(call(lambda: (Head * 2)())) is Head * 2
    try:
        call(lambda: Callback(int))
    except TaskSerializationError as error:
        assert "global 'Callback'" in str(error) and "put it into a module" in str(error), error
    else:
        assert False
print("all is well")
"""


def test_structures_of_ctypes_travel(tmp_path: Path) -> None:
    """Structures and unions of a script are made anew with their fields; other classes of ctypes are refused."""
    (tmp_path / "structures.py").write_text(STRUCTURES)
    assert run_it(tmp_path, "structures.py") == "all is well\n"


def test_a_thread_of_a_script_that_has_ended_may_submit(tmp_path: Path) -> None:
    """The main thread may be done while another still uses an executor."""
    script = """
import threading
from procsched import ProcessExecutor
executor = ProcessExecutor(1)
def work():
    print(executor.submit(lambda: "from a thread").result(30))
    executor.shutdown()
threading.Thread(target=work).start()
"""
    (tmp_path / "script.py").write_text(script)
    assert run_it(tmp_path, "script.py") == "from a thread\n"


def test_texts_of_a_class_of_the_script(tmp_path: Path) -> None:
    """What workers are sent of `sys.path`, `sys.argv` and the options is plain, whatever the script has put there."""
    script = """
import pathlib, sys
from procsched import ProcessExecutor
class Text(str): pass
sys.path += [Text("/first"), pathlib.Path("/second")]
sys.argv += [Text("word"), 3, lambda: 0]
with ProcessExecutor(1, env={Text("NAME"): Text("value")}, preload=[Text("json")]) as executor:
    names = executor.submit(lambda: (type(sys.path[-1]), sys.path[-1], sys.argv[1:3])).result(30)
    assert names == (str, "/first", ["word", "3"]), names
    sys.path.append(Text("/third"))
    print(executor.submit(lambda: sys.path[-1]).result(30))
"""
    (tmp_path / "script.py").write_text(script)
    assert run_it(tmp_path, "script.py") == "/third\n"


def test_a_repl(tmp_path: Path, body: str) -> None:
    """What is typed at the prompt of an interactive interpreter works like a script."""
    typed = to_repl(body) + "exit()\n"
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-q", "-i"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=tmp_path,
        env={**environment(), "PYTHON_BASIC_REPL": "1", "TERM": "dumb"},
        start_new_session=True,
    )
    os.close(slave)
    try:
        output = converse(master, typed)
        assert process.wait(support.TIMEOUT) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    assert "all is well\r\n" in output, output
    assert "Traceback" not in output
    assert_ran_once(tmp_path)


def to_repl(source: str) -> str:
    """Lay out a program as it is typed: an empty line ends each block."""
    lines: list[str] = []
    block = False
    for line in source.splitlines():
        if not line:
            continue
        inside = line.startswith((" ", "except", "else"))
        if block and not inside:
            lines.append("")
        block = inside or line.endswith(":")
        lines.append(line)
    return "\n".join(lines) + "\n"


def converse(master: int, typed: str) -> str:
    """Type at a terminal while reading what it shows, until it is closed."""
    waiting = typed.encode()
    shown = b""
    deadline = support.Deadline(60)
    while not deadline.passed:
        wanted = [master] if waiting else []
        ready, writable, _ = select.select([master], wanted, [], deadline.remaining())
        if ready:
            try:
                shown += os.read(master, 65536)
            except OSError:  # EIO: the other side is closed
                break
        if writable:
            waiting = waiting[os.write(master, waiting[:256]) :]
    return shown.decode(errors="replace")


NOTEBOOK = """
# As IPython does it: a module of its own as `__main__`, cells compiled under odd file names, an event loop that runs.
import asyncio, sys, types

main = types.ModuleType("__main__")
main.__dict__["get_ipython"] = lambda: None
sys.modules["__main__"] = main
cells = [{cells}]

async def kernel():
    for number, cell in enumerate(cells):
        code = compile(cell, f"/tmp/ipykernel_1/{{number}}.py", "exec")
        exec(code, main.__dict__)
        await asyncio.sleep(0)

asyncio.run(kernel())
"""


def test_a_notebook(tmp_path: Path, body: str) -> None:
    """Cells that are executed in a made-up `__main__` under a running event loop work like a script."""
    head, rest = body.split("factor = 3\n", 1)
    script = NOTEBOOK.format(cells=", ".join(map(repr, [head, "factor = 3\n" + rest])))
    (tmp_path / "kernel.py").write_text(script)
    assert run_it(tmp_path, "kernel.py") == "all is well\n"
    assert_ran_once(tmp_path)


@pytest.mark.parametrize("name", ["socket", "pickle", "signal", "types", "mmap", "random", "cloudpickle"])
def test_a_file_in_the_working_directory_shadows_nothing(tmp_path: Path, name: str) -> None:
    """Modules that lie where the program was started are not taken for those of Python in the helper."""
    place = tmp_path / "place"
    place.mkdir()
    (place / "script.py").write_text(
        "from procsched import ProcessExecutor\n"
        "with ProcessExecutor(1) as executor:\n    print(executor.submit(lambda: 'fine').result(30))\n"
    )
    (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong module')\n")
    assert run_it(tmp_path, str(place / "script.py")) == "fine\n"


def test_a_working_directory_that_was_removed(tmp_path: Path) -> None:
    """A program whose working directory is gone can run calls, also where the import path begins with it."""
    gone = tmp_path / "gone"
    gone.mkdir()
    program = (
        "import os, sys; from procsched import ProcessExecutor\n"
        f"os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); assert '' in sys.path\n"
        "with ProcessExecutor(1) as executor:\n"
        "    print(executor.submit(abs, -1).result(30))\n"
        "    sys.path.append('/nowhere')\n"
        "    print(executor.submit(abs, -2).result(30))\n"
    )
    assert run_it(tmp_path, "-c", program) == "1\n2\n"


def test_the_import_path_is_kept_up(tmp_path: Path) -> None:
    """A directory that the parent adds to sys.path later is there in workers that run already."""
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "comes_late.py").write_text("def value():\n    return 'late'\n")
    program = (
        "import sys; from procsched import ProcessExecutor\n"
        "with ProcessExecutor(1) as executor:\n"
        "    print(executor.submit(abs, -1).result(30))\n"
        "    sys.path.append('late')\n"
        "    import comes_late\n"
        "    print(executor.submit(comes_late.value).result(30))\n"
        "    sys.path.remove('late')\n"
        "    print('late' in executor.submit(lambda: __import__('sys').path).result(30))\n"
    )
    assert run_it(tmp_path, "-c", program) == "1\nlate\nFalse\n"


CHANGES: dict[str, tuple[str, str]] = {
    "environment": ("os.environ['NEWS'] = 'told'", "os.environ.get('NEWS')"),
    "umask": ("os.umask(0o031)", "(os.umask(0), os.umask(0o031))[0]"),
    "directory": ("os.chdir('/')", "os.getcwd()"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_worker_starts_with_the_state_of_that_moment(tmp_path: Path, what: str) -> None:
    """A worker has the environment, the umask and the directory that the parent has when it starts."""
    change, look = CHANGES[what]
    expected = {"environment": "told", "umask": 0o031, "directory": "/"}[what]
    program = (
        "import os; from procsched import ProcessExecutor\n"
        f"{change}\n"
        "with ProcessExecutor(1) as executor:\n"
        f"    print(repr(executor.submit(lambda: (__import__('os') and eval({look!r}, {{'os': os}}))).result(30)))\n"
    )
    assert run_it(tmp_path, "-c", program) == f"{expected!r}\n"


def test_a_function_with_a_cache_in_the_main_script_travels(tmp_path: Path) -> None:
    """A function of the main script under lru_cache works in a job, by itself and when another one calls it."""
    script = tmp_path / "cached.py"
    script.write_text(
        "import functools\n"
        "from procsched import run, shutdown_shared\n"
        "@functools.lru_cache(maxsize=7)\n"
        "def square(x):\n    return x * x\n"
        "def use(x):\n    return square(x), square.cache_parameters()['maxsize']\n"
        "assert run(square, 3) == 9\n"
        "assert run(use, 4) == (16, 7)\n"
        "shutdown_shared()\nprint('all is well')\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=support.TIMEOUT,
    )
    assert (done.stdout, done.stderr) == ("all is well\n", "")
