"""The demo on a small tree, as a newcomer runs it: what it says, its exit codes, and that it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a directory with a few Python files, one of which does not parse."""
    top = tmp_path / "tree"
    (top / "inner").mkdir(parents=True)
    for number in range(5):
        (top / "inner" / f"module_{number}.py").write_text(
            f"import os\n\ndef f_{number}():\n    return os.sep\n"
        )
    (top / "broken.py").write_text("def f(:\n")
    (top / "notes.txt").write_text("not Python\n")
    return top


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Return a function that starts the demo with a temporary directory of its own, `tmp_path/"tmp"`."""
    (tmp_path / "tmp").mkdir()

    def start(*words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "procsched", "demo", *map(str, words)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "tmp")},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.mark.slow
def test_demo(tree: Path, start: Start, tmp_path: Path) -> None:
    """Everything comes out as foretold: each troublemaker has its row, each kill its line, nothing is left."""
    with start(tree, "--workers", 2) as program:
        out, err = program.communicate(timeout=60)
    assert program.returncode == 0, out + err
    assert err == ""
    assert "6 Python files in" in out
    for row in (
        r"6 files +6 +6 x succeeded",
        r"heartbeat +\d+ +(\d+ x )?succeeded",
        r"paused +2 +succeeded, succeeded .* the last run stands for \d+ missed",
        r"segfault +1 +crashed .*worker died: SIGSEGV",
        r"flaky +3 +failed, failed, succeeded",
        r"cancelled +1 +killed",
        r"backtrack +1 +timed_out .*exceeded its 1.5 s budget, the text to match was line \d+ of ",
        r"stubborn +1 +timed_out .*exceeded its 1.5 s budget",
        r"  backtrack +its whole tree was dead -?\d+\.\d ms after its deadline",
        r"  stubborn +its whole tree was dead -?\d+\.\d ms after its deadline and 0.25 s of grace",
        r"  cancelled +dead \d+\.\d ms after the call",
        r"  daemon +process \d+, in a session of its own, gone ",
        r"  most imported: os \(5\)",
        r"  1 do not parse, such as broken.py",
    ):
        assert re.search(f"^{row}", out, re.MULTILINE), f"no line for {row!r} in:\n{out}"
    assert "Try next:" in out
    assert out.splitlines()[-1].startswith("Everything came out as foretold, in ")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_demo_out_of_time(tree: Path, start: Start, tmp_path: Path) -> None:
    """At its time limit the demo ends what runs, says what was not done, and exits 1."""
    with start(tree, "--seconds", 0.7) as program:
        out, err = program.communicate(timeout=60)
    assert program.returncode == 1, out + err
    assert "NOT as foretold:" not in out
    assert re.search(
        r"Cut short: the time was up after \d+ s: \d+ files were withdrawn, .*backtrack, stubborn", out
    )
    assert err == ""
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.slow
def test_demo_interrupted(tree: Path, start: Start, tmp_path: Path) -> None:
    """Ctrl-C ends it, in one line and with nothing left, also while a job hangs."""
    with start(tree) as program:
        assert program.stdout is not None
        for line in program.stdout:
            if "cancelled: killed" in line:  # about now the regular expression hangs
                break
        program.send_signal(signal.SIGINT)
        _out, err = program.communicate(timeout=60)
    assert program.returncode == 130, err
    assert err == "procsched: interrupted\n"
    assert list((tmp_path / "tmp").iterdir()) == []
