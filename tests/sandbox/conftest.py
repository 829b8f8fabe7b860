"""Hosts for the tests of the sandbox: one for each user, shared by all tests of a session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sandbox import hosts

if sys.platform != "linux":
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def _closed_hosts() -> Iterator[None]:
    yield
    hosts.close_all()


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
        self, source: str, *args: Any, timeout: float = 20.0, policy: dict[str, Any] | None = None
    ) -> Any:
        """Run the function `attack` of a source, and see to it that nobody was hurt."""
        answer = self.host(
            "run",
            policy=self.policy() if policy is None else policy,
            source=source,
            name="attack",
            args=list(args),
            timeout=timeout,
        )
        assert answer["hurt"] == []
        assert answer["harmless"] == 45
        assert not answer["leaked"]
        assert not answer["alive"]
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
