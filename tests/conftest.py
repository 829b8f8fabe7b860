"""What every test gets: a check that it left nothing behind, stacks when it hangs, a place for files.

Two things watch for hangs (see pyproject.toml): pytest-timeout, whose thread prints the stack of every
thread and ends the run, and faulthandler, which does so later from C where something holds the GIL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from procsched import _system
from tests import postgres as postgres_server
from tests import support

# Set before anything is started: every process below this run can be told by it.
os.environ[support.RUN_MARK] = f"{os.getpid()}-{os.urandom(4).hex()}"

# Nothing in the suite is judged by how long it takes.
hypothesis.settings.register_profile("procsched", deadline=None)
hypothesis.settings.load_profile("procsched")

# A run in the background of a shell script, or under nohup, ignores it, and so would every child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, a child process or a descriptor behind.

    They get `support.LEAK_GRACE` seconds to go away; a test that is clean costs a fraction of a
    millisecond. What may stay is listed by name in `support`. A test marked ``leaks(reason)`` is not
    checked; its fixtures clean up.
    """
    if request.node.get_closest_marker("leaks") is not None:
        yield
        return
    before = support.Snapshot()
    yield
    if request.session.exitstatus == pytest.ExitCode.INTERRUPTED:  # by Ctrl-C, in the midst of a test
        return
    left = before.wait_leaks()
    if left:
        support.kill_for_cleanup([*(set(support.children()) - before.children), *support.orphans()])
        pytest.fail("the test left behind:\n" + "\n".join(f"  {line}" for line in left), pytrace=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Answer ``-n logical`` with three parts for two processors: each waits for processes much of its time."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # xdist reads it
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(2, processors * 3 // 2)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what a feature is needed for that this system lacks, or that is switched off, with the promise's words."""
    for mark in item.iter_markers("needs"):
        feature, promise = mark.args
        if not _system.offers(feature):
            pytest.skip(f"without {feature} this is gone: {promise}")


@pytest.fixture
def scratch(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that gives the path of a file in a directory of the test's own."""
    return lambda name: tmp_path / name


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.Server]:
    """Give the PostgreSQL server of this run; skip where there is none to start."""
    with postgres_server.server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Give the URL of an empty store, of each kind that there is."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue("postgres").new_database()
    return found


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run if a process of it is still alive anywhere, whoever its parent is by now."""
    left = support.orphans()
    if left:
        for pid in left:
            print(f"\nalive after the last test: {support.describe_process(pid)}")
        support.kill_for_cleanup(left)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
