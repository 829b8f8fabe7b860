"""Hosts for the tests of the sandbox: one for each user, shared by all tests of a session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.sandbox import hosts

HERE = Path(__file__).resolve().parent
FIRST = "test_a_job_runs_and_is_recorded"
WHOLE = os.environ.get("PROCSCHED_ESCAPES") == "all"
MOST_EXCESS = 1.0  # seconds after its limit at which the outcome of a run is there, whatever the job does
_excesses: list[tuple[float, str]] = []  # of the runs of this session, and of which test each was

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _closed_hosts() -> Iterator[None]:
    yield
    hosts.close_all()
    left = hosts.strays()
    if left:
        lines = [support.describe_process(pid) for pid in left]
        support.kill_for_cleanup(left)
        pytest.fail("sandboxed processes are alive after the last test:\n" + "\n".join(lines), pytrace=False)


class Sandboxed:
    """A host with a layer set: runs jobs with a policy that has these layers."""

    def __init__(self, user: str, layers: str, host: hosts.HostProcess) -> None:
        self.user = user
        self.layers = layers
        self.host = host
        self.arguments: dict[str, Any] = host("arguments")

    def policy(self, **changes: Any) -> dict[str, Any]:
        """Return the default policy of these layers, with changes."""
        return {**hosts.LAYERS[self.layers], **changes}

    def run(
        self,
        source: str,
        *args: Any,
        timeout: float = 20.0,
        policy: dict[str, Any] | None = None,
        mark: str = "",
    ) -> Any:
        """Run the function `attack` of a source, and see to it that nobody was hurt, and that nothing of it is left."""
        answer = self.host(
            "run",
            policy=self.policy() if policy is None else policy,
            source=source,
            name="attack",
            args=list(args),
            timeout=timeout,
            mark=mark,
        )
        _excesses.append((answer["seconds"] - timeout, os.environ["PYTEST_CURRENT_TEST"].split()[0]))
        assert answer["hurt"] == []
        assert answer["harmless"] == 45
        assert not answer["leaked"]
        assert answer["alive"] == []
        return answer


@pytest.fixture(params=hosts.SETTINGS, ids=lambda setting: "-".join(setting))
def sandboxed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sandboxed:
    """Return each layer set under each user in turn."""
    user, layers = request.param
    reason = hosts.why_not(user, layers)
    if reason:
        pytest.skip(f"{user}-{layers} is left out of all tests: {reason}")
    return Sandboxed(user, layers, hosts.shared_host(user, tmp_path_factory.mktemp("host")))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the whole matrix, which is run by hand, where an outcome came too late. No other run is judged by time."""
    if WHOLE and _excesses and max(_excesses)[0] > MOST_EXCESS and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say by how much the outcomes of the whole matrix came after their limits."""
    if not WHOLE or not _excesses:
        return
    most, where = max(_excesses)
    late = sum(excess > MOST_EXCESS for excess, _where in _excesses)
    terminalreporter.section("outcomes and their limits")
    terminalreporter.line(
        f"{len(_excesses)} runs; the latest outcome came {most:+.3f} s after its limit: {where}"
    )
    terminalreporter.line(
        f"later than {MOST_EXCESS:g} s after: {late}" + (", which FAILS this session" if late else "")
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run a part of the matrix: each case under one user with one layer set, in turn. PROCSCHED_ESCAPES=all runs it whole.

    Every case is run, in a setting that there is here, and every such setting; a test that has no further cases is run
    in two settings, which have nothing in common where there are such. `FIRST` is run in all: where one cannot be
    tested, it is skipped, and that says so at the end of the session.
    """
    if WHOLE or any("::" in word for word in config.args):
        return
    cases: dict[str, list[str]] = {}
    left, kept = [], []
    for item in items:
        callspec = getattr(item, "callspec", None)
        setting = None if callspec is None else callspec.params.get("sandboxed", callspec.params.get("user"))
        name = getattr(item, "originalname", item.name)
        if setting is None or HERE not in item.path.parents or name == FIRST:
            kept.append(item)
            continue
        others = [str(value) for key, value in callspec.params.items() if key not in ("sandboxed", "user")]
        known = cases.setdefault(name, [])
        case = repr(others)
        if case not in known:
            known.append(case)
        turn = known.index(case) + sum(map(ord, name))
        if isinstance(setting, tuple):
            wanted = setting in hosts.chosen(turn, 1 if others else 2)
        else:
            users = [user for user in hosts.USERS if not hosts.why_not(user, "portable")]
            wanted = setting == users[turn % len(users)]
        (kept if wanted else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
