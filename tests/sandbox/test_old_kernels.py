"""Kernels that have less, containers that refuse, emulators that lie: a refusal that names the promise, no weaker run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sandbox import hosts

users = pytest.mark.parametrize("user", ["user", pytest.param("root", marks=hosts.needs_root)])
EPERM, ENOSYS, LIES = 1, 38, 0
JOB = "def attack():\n    return 1"

# what the kernel answers -> the promise that cannot be kept with the default policy, and with names given up
MISSING = {
    f"landlock_create_ruleset={ENOSYS}": ("files", "files"),
    f"landlock_create_ruleset={EPERM}": ("files", "files"),
    f"seccomp={ENOSYS}": ("parent", "parent"),
    f"seccomp={EPERM}": ("parent", "parent"),
    f"unshare={EPERM},clone-user={EPERM}": ("names", None),
    f"mount={EPERM}": ("names", None),
    f"landlock_restrict_self={LIES}": ("parent", "parent"),
    f"seccomp={LIES}": ("parent", "parent"),
    f"landlock_add_rule={ENOSYS}": ("files", "files"),
}


def refused(host: hosts.HostProcess, policy: dict[str, Any], promise: str | None) -> None:
    report = host("report", policy=policy)
    if promise is None:
        assert "error" not in report, report
        answer = host("run", policy=policy, source=JOB, name="attack", args=[], timeout=20.0)
        assert answer["result"] == 1
        assert answer["hurt"] == []
        return
    assert report.get("error") == "SandboxUnavailableError", report
    assert report["promise"] == promise, report
    with pytest.raises(AssertionError, match="SandboxUnavailableError"):
        host("run", policy=policy, source=JOB, name="attack", args=[], timeout=20.0)


@users
@pytest.mark.parametrize("answers", MISSING)
@pytest.mark.slow
def test_what_is_missing_is_refused(user: str, answers: str, tmp_path: Any) -> None:
    """Each gives a SandboxUnavailableError when the pool is built, or, where names were given up, a sandbox that holds."""
    default, portable = MISSING[answers]
    with hosts.own_host(user, tmp_path, ("-m", "tests.sandbox.emulate", answers)) as host:
        refused(host, hosts.PORTABLE, portable)
        if not hosts.why_not(user, "namespaces") or default == "names":
            refused(host, hosts.NAMESPACES, default)


SIGNALS = """
import os, signal, time
def attack():
    while time.process_time() < 0.4:
        pass
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGXCPU}:
        os.kill(os.getppid(), signum)
    time.sleep(0.1)
    return os.getppid()
"""


@users
@pytest.mark.slow
def test_who_reports_of_a_job_outlives_its_signals(user: str, tmp_path: Any) -> None:
    """Landlock keeps signals from it since Linux 6.12. On older kernels they reach it, and the figures are there still."""
    reason = hosts.why_not(user, "namespaces")
    if reason:
        pytest.skip(reason)
    policy = {**hosts.NAMESPACES, "processes": 2, "give_up": ["memory", "cpu"]}
    with hosts.own_host(user, tmp_path) as host:
        host("landlock", version=5)
        assert "signal scope" not in host("report", policy=policy)["kept"]["parent"]
        answer = host("run", policy=policy, source=SIGNALS, name="attack", args=[], timeout=20.0)
    assert answer["outcome"] == "succeeded", answer
    assert answer["result"] > 1
    assert answer["cpu"] > 0.2
    assert answer["rss"] > 1 << 20


@users
@pytest.mark.slow
def test_what_needs_namespaces_is_refused_without(user: str, tmp_path: Any) -> None:
    """Several processes, scratch space and counted threads are each refused by name, not left out."""
    answers = f"unshare={EPERM},clone-user={EPERM}"
    with hosts.own_host(user, tmp_path, ("-m", "tests.sandbox.emulate", answers)) as host:
        given_up = {"give_up": ["names", "memory", "cpu", "scratch"]}
        refused(host, {**given_up, "processes": 4}, "tree")
        refused(host, {"give_up": ["names"], "scratch": 1 << 20}, "scratch")
        if user == "user":
            refused(host, {"give_up": ["names"], "threads": 4}, "threads")
