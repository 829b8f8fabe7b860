"""Attacks on files, processes, network and kernel: each works without a sandbox, and does not in one."""

from __future__ import annotations

import functools
import json
import subprocess
from typing import Any

import pytest

from tests.sandbox import hosts
from tests.sandbox.attacks import ATTACKS, Attack
from tests.sandbox.conftest import Sandboxed

pytestmark = pytest.mark.leaks(
    "the hosts outlive a test; what they leave is looked for at the end of the session"
)
# What a refusal may look like. ENOENT and the like only where namespaces hide what was asked for.
REFUSALS = {"EPERM", "EACCES", "ENOSYS", "ENOTSUP", "EAGAIN", "PermissionError", "RuntimeError", "ValueError"}
# Where a call is made only if the name leads somewhere, or the descriptor is one.
ABSENT = {
    "ENOENT",
    "EBADF",
    "ESRCH",
    "ENXIO",
    "ENOTDIR",
    "EROFS",
    "gaierror",
    "ESPIPE",
    "UnsupportedOperation",
}
attacks = pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))


@attacks
def test_nothing_of_it_works(sandboxed: Sandboxed, attack: Attack) -> None:
    """Every attempt is refused, nobody is hurt, and a harmless job runs right after."""
    told = {**sandboxed.arguments, "confined": True}
    del told["secret"]
    answer = sandboxed.run(attack.source, told)
    if attack.killed and answer["outcome"] == "crashed":
        assert "SIGSYS" in answer["error"]
        return
    assert answer["outcome"] == "succeeded", answer["error"]
    for what, result in answer["result"]:
        assert result in REFUSALS | ABSENT or (result == "worked" and what in attack.allowed), (what, result)
    assert len(answer["result"]) > 1


@pytest.mark.skipif(not hosts.IS_ROOT, reason="needs root: a user and namespaces of its own to attack in")
@attacks
def test_it_works_without_a_sandbox(attack: Attack) -> None:
    """The same source, by a child of a program of the same user: what the sandbox is there for."""
    found = without_a_sandbox()[ATTACKS.index(attack)]
    assert isinstance(found["found"], list), found
    worked = {what for what, result in found["found"] if result == "worked"}
    missing = [what for what in attack.works if what not in worked and not _canary(what, worked)]
    assert not missing, (missing, found)


@pytest.mark.skipif(not hosts.IS_ROOT, reason="needs root: a user and namespaces of its own to attack in")
def test_every_canary_is_hurt_without_a_sandbox() -> None:
    """One that nothing can hurt would not say anything of a sandbox."""
    lines = [line.split(": ", 1) for found in without_a_sandbox() for line in found.get("hurt", ())]
    hurt = {name for name, _change in lines}
    names = {*("parent", "sibling", "file", "xattr", "directory", "key", "heard", "shm")}
    assert hurt == names  # of "executed" see `test_wire.py`
    heard = [json.loads(change.split(" -> ")[1].lower()) for name, change in lines if name == "heard"]
    assert [any(each) for each in zip(*heard, strict=True)] == [True] * 5


def _canary(what: str, worked: set[str]) -> bool:
    return what == "canary" and any(each.endswith("/canary") for each in worked)


@functools.cache
def without_a_sandbox() -> list[dict[str, Any]]:
    """Run all attacks against canaries without a sandbox, where nothing else can be reached, one after another."""
    flags = ("--pid", "--fork", "--mount-proc", "--net", "--ipc", "--kill-child")
    uid = hosts.USER + 1
    command = hosts.mounted(uid, "-m", "tests.sandbox.control", "/mnt/scratch", str(uid), flags=flags)
    done = subprocess.run(
        command,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": "/mnt/code"},
        input=json.dumps([attack.source for attack in ATTACKS]),
        capture_output=True,
        text=True,
        timeout=hosts.LIMIT,
        check=False,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(ATTACKS), done.stderr
    return found
