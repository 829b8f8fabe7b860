"""Which module may import which, what importing procsched loads, and that its public names are real."""

from __future__ import annotations

import ast
import functools
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import procsched

PACKAGE = Path(procsched.__file__).parent

# --- the table -----------------------------------------------------------------------------------------
# Imports point one way: errors, _core.models -> schedules -> rest of _core -> clock, workers, child,
# sandbox, stores, listeners -> scheduler -> executor -> cli. A row names a module or a package (then it
# holds for everything in it; the longest row that fits decides) and what it may import of procsched,
# in the same way. Every part may import itself.

BOTTOM = {
    "procsched.errors",
    "procsched._libc",
    "procsched._system",
    "procsched._timerfd",
    "procsched._byvalue",
    "procsched._culprits",
    "procsched._forks",
    "procsched._interrupts",
    "procsched._jitter",
    "procsched._parcels",
    "procsched._places",
}
VOCABULARY = {
    "procsched.errors",
    "procsched._core.checks",
    "procsched._core.frozen",
    "procsched._core.limits",
    "procsched._core.models",
    "procsched._core.names",
    "procsched.protocols",
}
CORE = VOCABULARY | {"procsched._core", "procsched.schedules"}
EDGES = CORE | BOTTOM | {"procsched.clock", "procsched._logs"}

ALLOWED: dict[str, set[str]] = {
    "procsched.errors": set(),
    "procsched._libc": set(),
    "procsched._system": {"procsched._libc"},
    "procsched._identity": {"procsched._system"},
    "procsched._timerfd": {"procsched._libc", "procsched._system"},
    "procsched._bykind": set(),
    "procsched._byvalue": {"procsched._bykind"},
    "procsched._culprits": {"procsched._byvalue", "procsched.errors"},
    "procsched._forks": set(),
    "procsched._logs": set(),
    "procsched._interrupts": set(),
    "procsched._jitter": set(),
    "procsched._places": set(),
    "procsched._parcels": {"procsched._system"},
    "procsched._core.frozen": {"procsched._core.names"},
    "procsched._core.names": {"procsched.errors"},
    "procsched._core.checks": {"procsched.errors"},
    "procsched._core.models": {"procsched.errors", "procsched._core.checks", "procsched._core.frozen"},
    "procsched.protocols": {"procsched._core.models"},
    "procsched.schedules": VOCABULARY,
    "procsched._core.wire": {"procsched.errors"},  # the child loads these two, and should load little else
    "procsched._core.failures": {"procsched.errors"},
    "procsched._core": CORE,
    "procsched._frames": set(),
    "procsched._parts": EDGES | {"procsched._frames"},
    "procsched._clock_watch": BOTTOM | {"procsched._logs"},
    "procsched.clock": CORE | BOTTOM | {"procsched._clock_watch"},
    "procsched.ids": EDGES,
    "procsched.event_log": EDGES,
    "procsched.listeners": EDGES | {"procsched.event_log", "procsched._parts"},
    "procsched.stores": EDGES
    | {"procsched", "procsched._identity", "procsched.ids", "procsched._parts", "procsched.child.stored"},
    "procsched.child": {"procsched._core.wire", "procsched._core.failures", *BOTTOM},
    # What reads untrusted frames has no way to anything that loads an object: see tests/unit/test_frames.py.
    "procsched.sandbox.plain": set(),
    "procsched.sandbox.values": {"procsched.sandbox.plain"},
    "procsched.sandbox.frames": {"procsched.sandbox.plain", "procsched.sandbox.values"},
    "procsched.sandbox.examining": {"procsched.sandbox.frames", "procsched.sandbox.values"},
    "procsched.sandbox": EDGES | {"procsched.child"},
    "procsched.workers.base": VOCABULARY,
    "procsched.workers": EDGES | {"procsched.child", "procsched.sandbox", "procsched._parts"},
    "procsched.testing": EDGES | {"procsched.workers", "procsched.stores"},
    "procsched.scheduler": EDGES
    | {
        "procsched._identity",
        "procsched._parts",
        "procsched.diagnosis",
        "procsched.child.stored",
        "procsched.ids",
        "procsched.listeners",
        "procsched.stores",
        "procsched.workers",
    },
    "procsched.steering": EDGES | {"procsched.scheduler", "procsched.stores", "procsched.workers.local"},
    "procsched.diagnosis": EDGES | {"procsched._parts"},
    "procsched.dumping": EDGES
    | {
        "procsched._frames",
        "procsched._parts",
        "procsched.calls",
        "procsched.diagnosis",
        "procsched.scheduler",
        "procsched.workers.local",
    },
    "procsched.outcomes": VOCABULARY | {"procsched._core.failures", "procsched.workers.base"},
    "procsched.future": VOCABULARY
    | {"procsched._interrupts", "procsched.outcomes", "procsched.workers.base"},
    "procsched.call_options": CORE | {"procsched._jitter", "procsched._system"},
    "procsched.callbacks": EDGES | {"procsched.workers"},
    "procsched.exits": {"procsched._forks", "procsched.calls"},
    "procsched.queueing": EDGES | {"procsched.call_options", "procsched.future", "procsched.workers"},
    "procsched.calls": EDGES
    | {
        "procsched._parts",
        "procsched.call_options",
        "procsched.callbacks",
        "procsched.exits",
        "procsched.future",
        "procsched.queueing",
        "procsched.workers",
    },
    "procsched.progress": {"procsched.errors"},
    "procsched.mapping": EDGES
    | {
        "procsched.call_options",
        "procsched.calls",
        "procsched.child.chunks",
        "procsched.future",
        "procsched.progress",
    },
    "procsched.aio": {"procsched.call_options", "procsched.calls", "procsched.future"},
    "procsched.executor": EDGES
    | {
        "procsched.aio",
        "procsched.call_options",
        "procsched.calls",
        "procsched.diagnosis",
        "procsched.future",
        "procsched.listeners",
        "procsched.mapping",
        "procsched.sandbox",
        "procsched.workers",
        "procsched.scheduler",
    },
    "procsched.shared": EDGES
    | {"procsched.child.wrapped", "procsched.executor", "procsched.sandbox", "procsched.workers"},
    "procsched.cli": {"procsched"},
    "procsched.__main__": {"procsched.cli"},
}

# What is imported for the type checker alone counts as well, except here: module -> what it may name.
ALLOWED_FOR_TYPES: dict[str, set[str]] = {
    "procsched": {"procsched"},  # the public names; the interpreter loads them one by one, when asked
    "procsched._core.models": {"procsched.protocols", "procsched._core.limits"},
    "procsched.protocols": {"procsched.workers.base"},
}

# Outside the standard library: package -> who may import it.
THIRD_PARTY: dict[str, set[str]] = {
    "alembic": {"procsched.stores.migrating", "procsched.stores.migrations"},
    "cloudpickle": {"procsched._byvalue", "procsched.child", "procsched.workers"},
    "cronsim": {"procsched.schedules"},
    "psutil": {"procsched._system", "procsched.workers", "procsched.cli"},
    "psycopg": {"procsched.stores.database", "procsched.stores.lease"},
    "rich": {"procsched.cli"},
    "sqlalchemy": {"procsched.stores"},
    "tqdm": {"procsched.progress"},
}

# The pure part decides and does nothing: these modules would let it do something.
PURE = ("procsched._core", "procsched.schedules")
# fmt: off
IMPURE = {
    "_thread", "asyncio", "concurrent", "fcntl", "io", "logging", "mmap", "multiprocessing", "os", "pathlib",
    "queue", "random", "resource", "secrets", "select", "selectors", "shutil", "signal", "socket",
    "subprocess", "tempfile", "threading", "time", "uuid",
}
# fmt: on


class Import(NamedTuple):
    """One imported module, where, and whether only a type checker sees it."""

    module: str
    target: str
    line: int
    for_types: bool


def module_name(path: Path, root: Path = PACKAGE) -> str:
    """Return the dotted name of the module at `path`."""
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(test: ast.expr) -> bool:
    """Return whether an ``if`` is the one that only a type checker enters."""
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def imports(path: Path, root: Path = PACKAGE) -> Iterator[Import]:
    """Yield every import in the file, at whatever depth: one in a function is an import as well."""
    module = module_name(path, root)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = node.module or ""
        if node.level:  # from . import x, from ..errors import y
            parents = package.split(".")
            above = ".".join(parts := parents[: len(parents) - node.level + 1])
            assert parts, f"{path}:{node.lineno}: relative import beyond the top"
            base = f"{above}.{base}" if base else above
        for alias in node.names:
            # `from procsched._core import wire` imports a module, `... import Scheduler` a name in one.
            inner = root.parent.joinpath(*base.split("."), alias.name)
            is_module = inner.with_suffix(".py").exists() or (inner / "__init__.py").exists()
            yield f"{base}.{alias.name}" if is_module else base

    def walk(nodes: list[ast.AST], for_types: bool) -> Iterator[Import]:
        for node in nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                for target in dict.fromkeys(targets(node)):
                    yield Import(module, target, node.lineno, for_types)
            elif isinstance(node, ast.If) and is_type_checking(node.test):
                yield from walk(list(node.body), True)
                yield from walk(list(node.orelse), for_types)
            else:
                yield from walk(list(ast.iter_child_nodes(node)), for_types)

    yield from walk([ast.parse(path.read_text(encoding="utf-8"), str(path))], False)


@functools.cache
def all_imports() -> list[Import]:
    """Return every import in the package."""
    return [found for path in sorted(PACKAGE.rglob("*.py")) for found in imports(path)]


def within(module: str, names: set[str] | tuple[str, ...]) -> bool:
    """Return whether `module` is one of `names` or inside one of them."""
    return any(module == name or module.startswith(name + ".") for name in names)


def row_of(module: str) -> str | None:
    """Return the longest row of `ALLOWED` that `module` belongs to."""
    return max((row for row in ALLOWED if within(module, (row,))), key=len, default=None)


def is_allowed(found: Import) -> bool:
    """Return whether the table allows an import of one module of procsched by another."""
    module, target = found.module, found.target
    if found.for_types and within(target, ALLOWED_FOR_TYPES.get(module, set())):
        return True
    if module == "procsched":
        return False  # at run time the top of the package loads nothing by itself
    row = row_of(module)
    if row is None:
        return False
    allowed = ALLOWED[row]
    # Being allowed `_core.wire` does not allow all of `_core`, but the other way round it does.
    return within(target, (row,)) or within(target, allowed)


# --- tests ---------------------------------------------------------------------------------------------


def test_imports_point_one_way() -> None:
    """Every import within procsched is one that the table allows."""
    wrong = [
        f"{found.module}:{found.line} imports {found.target}"
        for found in all_imports()
        if within(found.target, ("procsched",)) and not is_allowed(found)
    ]
    assert not wrong, "against the direction of imports:\n  " + "\n  ".join(wrong)


def test_every_module_has_a_row() -> None:
    """No module escapes the table because nobody thought of it."""
    modules = {module_name(path) for path in PACKAGE.rglob("*.py")} - {"procsched"}
    assert sorted(module for module in modules if row_of(module) is None) == []


def test_third_party_imports_stay_where_they_belong() -> None:
    """A dependency is imported by the part that needs it, and nothing undeclared is imported at all."""
    wrong = []
    for found in all_imports():
        top = found.target.partition(".")[0]
        if top in sys.stdlib_module_names or top == "procsched":
            continue
        if not within(found.module, THIRD_PARTY.get(top, set())):
            wrong.append(f"{found.module}:{found.line} imports {found.target}")
    assert not wrong, "\n  ".join(wrong)


def test_pure_modules_import_nothing_that_acts() -> None:
    """The core and the schedules have no threads, files, signals, clock reads or randomness."""
    wrong = [
        f"{found.module}:{found.line} imports {found.target}"
        for found in all_imports()
        if within(found.module, PURE) and not found.for_types and found.target.partition(".")[0] in IMPURE
    ]
    assert not wrong, "\n  ".join(wrong)


def test_import_scanner_sees_every_form(tmp_path: Path) -> None:
    """Relative, nested, conditional and module-valued imports are all found, under their full names."""
    root = tmp_path / "top"
    (root / "sub").mkdir(parents=True)
    for name in ("__init__.py", "a.py", "sub/__init__.py", "sub/b.py"):
        (root / name).write_text("")
    file = root / "sub" / "c.py"
    file.write_text(
        "from __future__ import annotations\n"
        "import top.a, json\n"
        "from . import b\n"
        "from .b import thing\n"
        "from .. import a as other\n"
        "from top import sub\n"
        "TYPE_CHECKING = False\n"
        "if TYPE_CHECKING:\n"
        "    from ..a import Name\n"
        "else:\n"
        "    import os\n"
        "def f():\n"
        "    import typing\n"
        "    if typing.TYPE_CHECKING:\n"
        "        import select\n"
    )
    found = [(item.target, item.for_types) for item in imports(file, root)]
    assert found == [
        ("__future__", False),
        ("top.a", False),
        ("json", False),
        ("top.sub.b", False),
        ("top.sub.b", False),
        ("top.a", False),
        ("top.sub", False),
        ("top.a", True),
        ("os", False),
        ("typing", False),
        ("select", True),
    ]


@pytest.mark.parametrize(
    ("module", "target", "for_types", "allowed"),
    [
        ("procsched.child.main", "procsched._core.wire", False, True),
        ("procsched.child.main", "procsched._core.models", False, False),
        ("procsched.child.main", "procsched.child.current", False, True),
        ("procsched._core.wire", "procsched._core.models", False, False),
        ("procsched._core.engine", "procsched._core.wire", False, True),
        ("procsched._core.models", "procsched.protocols", True, True),
        ("procsched._core.models", "procsched.protocols", False, False),
        ("procsched.scheduler", "procsched.executor", True, False),
        ("procsched.executor", "procsched.scheduler", False, True),
        ("procsched.workers.pool", "procsched", False, False),
        ("procsched.workers.pool", "procsched.workers.base", False, True),
        ("procsched.workers.base", "procsched.workers.pool", False, False),
        ("procsched.cli.demo", "procsched", False, True),
        ("procsched", "procsched.scheduler", True, True),
        ("procsched", "procsched.scheduler", False, False),
        ("procsched.surprise", "procsched.errors", False, False),
    ],
)
def test_table_decides(module: str, target: str, for_types: bool, allowed: bool) -> None:
    """The table is read as it is meant, also where a row for a module lies inside one for its package."""
    assert is_allowed(Import(module, target, 1, for_types)) is allowed


# fmt: off
NOT_LOADED = {
    "asyncio", "cloudpickle", "cronsim", "ctypes", "dataclasses", "inspect", "logging.handlers",
    "multiprocessing", "numpy", "psutil", "socket", "subprocess", "tqdm", "zoneinfo",
}
# fmt: on


def modules_after(code: str) -> set[str]:
    """Return the names of the modules that a fresh interpreter has loaded after `code`."""
    # -I without site's .pth files: what some other installed package loads at start-up is not ours.
    program = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{code}\nprint(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import procsched",
        "from procsched import Scheduler, ProcessExecutor",
        "from procsched import OneTime, FixedRate, FixedDelay, RetryPolicy, EventLog",
    ],
)
def test_import_is_light(code: str) -> None:
    """Importing procsched loads none of the heavy modules: they come when they are needed."""
    loaded = modules_after(code)
    assert sorted(loaded & NOT_LOADED) == []


def test_children_start_light() -> None:
    """Guard, helper and worker load no module of which they need only the half in C: a first result waits for it."""
    needless = {"ctypes", "enum", "pickle", "re", "selectors", "signal", "socket", "threading"}
    assert sorted(modules_after("import procsched.child.helper") & needless) == []


def test_bare_import_loads_no_part() -> None:
    """`import procsched` alone loads none of its own modules; each comes with the first name from it."""
    assert {name for name in modules_after("import procsched") if name.startswith("procsched.")} == set()


def test_public_names_agree() -> None:
    """`__all__`, the imports for type checkers and the table of modules name the same things."""
    seen_by_checkers: dict[str, str] = {}
    tree = ast.parse(Path(procsched.__file__).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("procsched."):
            seen_by_checkers.update({alias.asname or alias.name: str(node.module) for alias in node.names})
    assert seen_by_checkers == procsched._HOME
    assert sorted(procsched.__all__) == sorted(procsched._HOME)
    assert len(set(procsched.__all__)) == len(procsched.__all__)
    assert set(procsched.__all__) <= set(dir(procsched))


CONSTANTS = {"DEFAULT_RETRY", "NO_RETRY"}


@pytest.mark.parametrize("name", procsched.__all__)
def test_public_name_is_real(name: str) -> None:
    """Every public name loads, is documented, and says where users find it."""
    value = getattr(procsched, name)
    assert (value.__doc__ or "").strip(), f"procsched.{name} has no docstring"
    if name in CONSTANTS:
        value = type(value)
    else:
        assert value.__name__ == name
        assert value.__qualname__ == name
    assert value.__module__ == "procsched"


@pytest.mark.parametrize("name", procsched.__all__)
def test_public_name_survives_pickling(name: str) -> None:
    """A public class or function pickles by its public path, and a fresh interpreter loads it."""
    program = (
        "import json, pickle, sys; data = bytes.fromhex(sys.argv[1]); value = pickle.loads(data)\n"
        "import procsched; print(json.dumps(value is getattr(procsched, sys.argv[2])))"
    )
    value = getattr(procsched, name)
    assert pickle.loads(pickle.dumps(value)) == value
    if name in ("TaskTimeoutError", "run", "Outcome"):  # one of each kind; an interpreter costs a lot
        arguments = [sys.executable, "-c", program, pickle.dumps(value).hex(), name]
        run = subprocess.run(
            arguments, cwd=PACKAGE.parent, capture_output=True, text=True, timeout=60, check=True
        )
        assert json.loads(run.stdout) is True


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist is refused as any module refuses it."""
    with pytest.raises(AttributeError, match="module 'procsched' has no attribute 'Schedular'"):
        procsched.Schedular  # noqa: B018


def test_a_sandboxed_process_imports_next_to_nothing() -> None:
    """What it imports is on the way to every run: one small library or two, and none of the large modules."""
    plain = modules_after("")
    loaded = modules_after("import procsched.sandbox.inside") - plain
    known = {
        "__future__",
        "errno",
        "_ctypes",
        "_json",
        "_stat",
        "stat",
        "genericpath",
        "posixpath",
        "os.path",
        "os",
    }
    assert {name for name in loaded if not name.startswith("procsched")} <= known | {"_collections_abc"}
    assert "procsched._system" not in loaded


def test_errors_show_their_public_path_before_anyone_imports_them() -> None:
    """An error raised by a part that was loaded through another name reads as the name users import."""
    program = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "from procsched import RetryPolicy\n"
        "RetryPolicy(max_attempts=0)"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.stderr.splitlines()[-1].startswith("procsched.ValidationError: max_attempts must be")
