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
        assert answer["hurt"] == []
        assert answer["harmless"] == 45
        assert not answer["leaked"]
        assert answer["alive"] == []
        return answer


@pytest.fixture(params=hosts.SETTINGS, ids=lambda setting: "-".join(setting))
def sandboxed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sandboxed:
    """Return each layer set under each user in turn."""
    user, layers = request.param
    if user == "root" and not hosts.IS_ROOT:
        pytest.skip("needs root: private uids")
    if layers == "namespaces":
        mark = hosts.needs_bwrap
        if mark.args[0]:
            pytest.skip(mark.kwargs["reason"])
    return Sandboxed(user, layers, hosts.shared_host(user, tmp_path_factory.mktemp("host")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run a part of the matrix: each case under one user with one layer set, in turn. PROCSCHED_ESCAPES=all runs it whole.

    Every case is run, and every setting; a test that has no further cases is run in two settings that have nothing in
    common.
    """
    if os.environ.get("PROCSCHED_ESCAPES") == "all" or any("::" in word for word in config.args):
        return
    cases: dict[str, list[str]] = {}
    left, kept = [], []
    for item in items:
        callspec = getattr(item, "callspec", None)
        setting = None if callspec is None else callspec.params.get("sandboxed", callspec.params.get("user"))
        if setting is None or HERE not in item.path.parents:
            kept.append(item)
            continue
        others = [str(value) for name, value in callspec.params.items() if name not in ("sandboxed", "user")]
        known = cases.setdefault(getattr(item, "originalname", item.name), [])
        case = repr(others)
        if case not in known:
            known.append(case)
        turn = known.index(case) + sum(map(ord, getattr(item, "originalname", item.name)))
        settings: tuple[object, ...] = tuple(hosts.SETTINGS) if isinstance(setting, tuple) else hosts.USERS
        wanted = {settings[turn % len(settings)]}
        if not others and len(settings) == 4:
            wanted.add(settings[3 - turn % 4])
        (kept if setting in wanted else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept
