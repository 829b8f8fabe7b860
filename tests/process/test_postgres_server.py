"""The PostgreSQL server of the tests does not outlive them, however they end."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests import postgres as pg
from tests import support

# In the place of the server's programs: what counts is how they are started.
PROGRAMS = {"initdb": "exit 0", "postgres": "exec sleep 1000"}
# The server handles SIGQUIT; what stands in for it takes that as it comes, which in a shell's background is ignored.
RUN = """
import signal, time
from tests import postgres
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
postgres.Server._answers = lambda self: True
with postgres.server() as one:
    print(one._process.pid, one._data.parent, flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory that the server's own user can read, with `PROGRAMS` in it."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        for program, line in PROGRAMS.items():
            (path / program).write_text(f"#!/bin/sh\n{line}\n")
            (path / program).chmod(0o755)
        yield path


@pytest.mark.skipif(
    shutil.which("setpriv") is None, reason="there is no setpriv: the kernel is not asked for it"
)
def test_it_dies_with_a_run_that_is_killed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is removed by the next run, and not by one beside it."""
    monkeypatch.setenv("PATH", str(place), prepend=":")
    with subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        words = run.stdout.readline().split()
        server, directory = psutil.Process(int(words[0])), Path(words[1])
        with pg.directory():
            assert directory.exists()
        # Before that it has not asked the kernel to be killed with its parent.
        support.eventually(lambda: server.name() == "sleep", what="the server has been started")
        run.kill()
    support.assert_gone(server.pid)  # be it a zombie that nobody has collected yet
    with pg.directory():
        assert not directory.exists()
