"""Run the standard library's own tests of process pool executors with `ProcessExecutor` in its place.

    python -m tests.stdlib [--tests DIR] [--fetch] [--list] [--jobs N] [CLASS ...]

The tests are those of the running interpreter. Where it came without them, they are taken from DIR/test (DIR may also
be given by PROCSCHED_STDLIB_TESTS), from Debian's libpython3.X-testsuite where that is installed, or with --fetch from
that package, downloaded by apt-get. Which tests are left out and why is in left_out.py.

Exit codes: 0 all passed; 1 some failed; 77 nothing was run, because the tests are nowhere to be found.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.stdlib.left_out import LEFT_OUT, LeftOut

ROOT = Path(__file__).resolve().parents[2]
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
PLACE = "PROCSCHED_STDLIB_TESTS"  # environment variable
NAME = "test.test_concurrent_futures"
# Of the package, from 3.12 on.
MODULES = ("shutdown", "wait", "as_completed", "process_pool", "deadlock", "init")
START_METHODS = ("Forkserver", "Fork", "Spawn")
CLASS_LIMIT = 120.0  # seconds for the tests of one class
PASSED, FAILED, NOT_RUN = 0, 1, 77


# --- finding the tests ----------------------------------------------------------------------------------------


def is_there() -> bool:
    """Return whether the interpreter can import the tests."""
    try:
        return importlib.util.find_spec(NAME) is not None
    except ImportError:
        return False


def find(directory: str | None, overlay: Path) -> bool:
    """Make the tests importable; return whether there are any.

    Args:
        directory: one that has a directory `test` with them, or None.
        overlay: an empty directory; where the interpreter's own `test` has to be completed, that happens there.
    """
    if directory is None and is_there():
        return True
    for place in filter(None, (directory, os.environ.get(PLACE), f"/usr/lib/python{VERSION}")):
        for path in Path(place, "test").glob("test_concurrent_futures*"):
            # The rest of `test`, its `support` above all, is the interpreter's own.
            (overlay / "test").mkdir()
            (overlay / "test" / "__init__.py").write_text(
                "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"
            )
            (overlay / "test" / path.name).symlink_to(path)
            sys.path.insert(0, str(overlay))
            sys.modules.pop("test", None)
            importlib.invalidate_caches()
            return is_there()
    return False


def fetch(directory: Path) -> str | None:
    """Get Debian's package with the tests; return the directory in which they are, or None."""
    package = f"libpython{VERSION}-testsuite"
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    done = subprocess.run(
        ["apt-get", "download", "-q", package], cwd=directory, check=False, capture_output=True
    )
    found = list(directory.glob("*.deb"))
    if done.returncode or not found:
        print(f"apt-get download {package}: {done.stderr.decode(errors='replace').strip()}", file=sys.stderr)
        return None
    subprocess.run(["dpkg", "-x", str(found[0]), str(directory)], check=True)
    return str(directory / "usr" / "lib" / f"python{VERSION}")


@contextlib.contextmanager
def importable(directory: str | None, *, fetching: bool = False) -> Iterator[bool]:
    """Have the tests importable inside; say whether they are."""
    path = list(sys.path)
    with tempfile.TemporaryDirectory() as name:
        overlay = Path(name, "overlay")
        overlay.mkdir()
        found = find(directory, overlay)
        if not found and fetching:
            fetched = fetch(Path(name))
            found = fetched is not None and find(fetched, overlay)
        try:
            yield found
        finally:
            sys.path[:] = path


# --- choosing -------------------------------------------------------------------------------------------------


def load() -> dict[str, unittest.TestSuite]:
    """Return the tests of process pools, by the name of their class. The adapter is in place from here on."""
    from test.support import script_helper  # type: ignore[import-not-found, unused-ignore]

    from tests.stdlib import adapter

    adapter.install()
    helper: Any = script_helper
    helper.assert_python_ok = adapter.with_adapter(
        helper.assert_python_ok, [entry for entry in (sys.path[0], str(ROOT)) if entry]
    )
    loader = unittest.TestLoader()
    package = importlib.util.find_spec(NAME)
    assert package is not None
    if package.submodule_search_locations is None:
        suite = loader.loadTestsFromName(NAME)
    else:
        suite = loader.loadTestsFromNames([f"{NAME}.test_{name}" for name in MODULES])
    assert not loader.errors, loader.errors
    classes: dict[str, unittest.TestSuite] = {}
    for test in flat(suite):
        name = type(test).__name__
        if name.startswith(("ProcessPool", "FailingInitializerResources")):
            classes.setdefault(name, unittest.TestSuite()).addTest(test)
    return classes


def flat(suite: Any) -> Iterator[unittest.TestCase]:
    """Yield the test cases of a suite."""
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from flat(part)
        else:
            yield part


def short(name: str) -> str:
    """Return the name of a class as `LeftOut` has it."""
    if name.startswith("ProcessPool"):
        name = name.removeprefix("ProcessPool")
        for method in START_METHODS:
            if name.startswith(method):
                return name.removeprefix(method).removesuffix("Test").removeprefix("ProcessPool") or name
    return name


def entry_of(test: unittest.TestCase) -> LeftOut | None:
    """Return the entry of a test that is left out."""
    for entry in LEFT_OUT:
        if entry.since <= sys.version_info[:2]:
            if (entry.cls, entry.test) == (short(type(test).__name__), test._testMethodName):
                return entry
    return None


def unknown(classes: dict[str, unittest.TestSuite]) -> list[str]:
    """Return the entries that no test has any more."""
    used = {entry_of(test) for suite in classes.values() for test in flat(suite)}
    return [
        f"{entry.cls}.{entry.test}"
        for entry in LEFT_OUT
        if entry.since <= sys.version_info[:2] and entry not in used
    ]


# --- running --------------------------------------------------------------------------------------------------


def run_class(name: str) -> int:
    """Run the tests of one class in this process."""
    from test import support

    tests = list(flat(load()[name]))
    chosen = unittest.TestSuite(test for test in tests if entry_of(test) is None)
    result = unittest.TextTestRunner(verbosity=2).run(chosen)
    if support.environment_altered:
        print("FAILED: a thread or a process was left", file=sys.stderr)
    return PASSED if result.wasSuccessful() and not support.environment_altered else FAILED


def start_class(name: str, options: list[str]) -> tuple[str, int, str, float]:
    """Run the tests of one class in a process of its own; return how it ended."""
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.stdlib", *options, "--here", name]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=CLASS_LIMIT, check=False
        )
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, text = (
            FAILED,
            f"{_text(error.stdout)}{_text(error.stderr)}\nstill running after {CLASS_LIMIT} s",
        )
    return name, code, text, time.monotonic() - began


def _text(data: bytes | str | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


def main(arguments: list[str] | None = None) -> int:
    """Be the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.stdlib", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--tests", metavar="DIR", help="a directory that has the package `test`")
    parser.add_argument("--fetch", action="store_true", help="get Debian's package where there are no tests")
    parser.add_argument("--list", action="store_true", help="run nothing; check and show what is left out")
    parser.add_argument("--jobs", type=int, default=6, help="classes at once (default: 6; they mostly sleep)")
    parser.add_argument(
        "--here", action="store_true", help="run in this process, with the output as it comes"
    )
    parser.add_argument("classes", nargs="*", metavar="CLASS", help="all by default")
    given = parser.parse_args(arguments)
    with importable(given.tests, fetching=given.fetch) as found:
        if not found:
            print(
                f"NOT RUN: this Python {VERSION} came without {NAME}, and it was not found elsewhere. "
                f"Give --tests DIR, install libpython{VERSION}-testsuite (Debian), or try --fetch.",
                file=sys.stderr,
            )
            return NOT_RUN
        if given.here:
            return max(run_class(name) for name in given.classes)
        spec = importlib.util.find_spec(NAME)
        assert spec is not None
        assert spec.origin is not None
        place = Path(os.path.realpath(spec.origin)).parents[
            1 if spec.submodule_search_locations is None else 2
        ]
        return run_all(
            given.classes, ["--tests", str(place)] if sys.path[0] != "" and _foreign(place) else [], given
        )


def _foreign(place: Path) -> bool:
    return place != Path(os.path.realpath(unittest.__file__)).parents[1]


def run_all(names: list[str], options: list[str], given: argparse.Namespace) -> int:
    """Run classes side by side, and print a table."""
    with contextlib.redirect_stdout(io.StringIO()):
        classes = load()
    gone = unknown(classes)
    for name in gone:
        print(f"left_out.py names {name}, which does not exist (any more)", file=sys.stderr)
    code = FAILED if gone else PASSED
    chosen = names or sorted(classes)
    left = {}
    for name in chosen:
        left[name] = [(test, entry) for test in flat(classes[name]) if (entry := entry_of(test)) is not None]
    full = [name for name in chosen if len(left[name]) < classes[name].countTestCases() and not given.list]
    full.sort(key=lambda name: "Wait" not in name)  # these sleep longest by far: the others go on beside them
    with ThreadPoolExecutor(given.jobs) as starters:
        for name, ended, text, seconds in starters.map(lambda name: start_class(name, options), full):
            count = classes[name].countTestCases() - len(left[name])
            skipped = text.count(" ... skipped ")
            words = "ok" if ended == PASSED else "FAILED"
            print(
                f"{words:7}{seconds:6.1f} s  {name}: {count - skipped} run, {skipped} skip themselves",
                flush=True,
            )
            if ended != PASSED:
                code = FAILED
                print(text)
    print("Left out, under every start method:")
    for entry in dict.fromkeys(entry for rows in left.values() for _test, entry in rows):
        print(f"  {entry.cls}.{entry.test}: {entry.reason} ({entry.note})")
    return code


if __name__ == "__main__":
    sys.exit(main())
