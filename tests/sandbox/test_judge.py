"""The example of a judge, as a user without rights: every submission gets the mark that it deserves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.sandbox import hosts

MARKS = [
    "Ada   right",
    "Bob   wrong: 3240 is not 23416728348467685",
    "Cleo  too slow",
    "Dan   too hungry",
    "Eve   failed: the job says: PermissionError: [Errno 1] Operation not permitted",
    "Fay   failed: the job says: PlainError: the result is of type set",
]
_AS_USER = (
    "import runpy, sys; from tests.sandbox.host import drop; drop(int(sys.argv[1])); "
    "runpy.run_path(sys.argv[2], run_name='__main__')"
)


@pytest.mark.slow
def test_the_judge_is_just() -> None:
    """Right, wrong, too slow, too hungry, evil, and one that returns what cannot travel."""
    example = hosts.ROOT / "examples" / "judge.py"
    if hosts.IS_ROOT:
        command = hosts.mounted(hosts.USER, "-c", _AS_USER, str(hosts.USER), "/mnt/code/examples/judge.py")
    else:
        command = [sys.executable, str(example)]
    environ = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": "/mnt/code" if hosts.IS_ROOT else str(hosts.ROOT),
    }
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=hosts.LIMIT, check=True
    )
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if not line.startswith("given up: names")]
    assert len(lines) == 1 + len(MARKS), done.stdout
    for line, mark in zip(lines[1:], MARKS, strict=True):
        assert line.startswith(mark), done.stdout
