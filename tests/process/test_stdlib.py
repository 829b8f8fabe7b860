"""Which of the standard library's own tests are left out. ``python -m tests.stdlib`` runs the others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pools import ROOT
from tests.stdlib import __main__ as stdlib
from tests.stdlib.left_out import LEFT_OUT, REASONS, LeftOut


@pytest.fixture(scope="module")
def tests_of_the_library() -> Iterator[None]:
    with stdlib.importable(os.environ.get(stdlib.PLACE)) as found:
        if not found:
            pytest.skip(f"this Python came without {stdlib.NAME}, and Debian's package is not installed")
        yield


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.stdlib", *arguments],
        cwd=ROOT,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_only_two_reasons_leave_a_test_out() -> None:
    """Whatever else does not pass is to be mended; and each entry is there once, with a note that explains it."""
    assert {entry.reason for entry in LEFT_OUT} <= set(REASONS)
    assert all(entry.note for entry in LEFT_OUT)
    assert len({(entry.cls, entry.test) for entry in LEFT_OUT}) == len(LEFT_OUT)


@pytest.mark.usefixtures("tests_of_the_library")
def test_what_is_left_out_is_there() -> None:
    """Every test that is left out exists in this Python's tests, where its entry is for this Python."""
    done = command("--list")
    assert done.returncode == 0, done.stderr
    assert "Left out" in done.stdout


@pytest.mark.usefixtures("tests_of_the_library")
def test_an_entry_without_its_test_is_an_error(tmp_path: Path) -> None:
    """When a test that is left out is gone or renamed the run fails and names it."""
    extra = tmp_path / "extra.py"
    extra.write_text(
        "import sys\n"
        "from tests.stdlib import __main__ as stdlib, left_out\n"
        "entry = left_out.LeftOut('Executor', 'test_no_such', left_out.PRIVATE, 'gone')\n"
        "stdlib.LEFT_OUT = (*stdlib.LEFT_OUT, entry)\n"
        "sys.exit(stdlib.main(['--list']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", extra.read_text()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == stdlib.FAILED
    assert "Executor.test_no_such" in done.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("tests_of_the_library")
def test_one_class_runs() -> None:
    """The script runs the library's tests and says how many."""
    done = command("ProcessPoolSpawnInitializerTest")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ProcessPoolSpawnInitializerTest: 1 run" in done.stdout


def test_where_there_are_no_tests_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the tests nothing is run, and neither the words nor the exit code can be taken for success."""
    monkeypatch.setattr(stdlib, "find", lambda directory, overlay: False)
    assert stdlib.main([]) == stdlib.NOT_RUN
    assert "NOT RUN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ProcessPoolForkWaitTest", "Wait"),
        ("ProcessPoolForkserverWaitTest", "Wait"),
        ("ProcessPoolSpawnProcessPoolShutdownTest", "Shutdown"),
        ("FailingInitializerResourcesTest", "FailingInitializerResourcesTest"),
    ],
)
def test_names_of_classes(name: str, expected: str) -> None:
    """An entry covers the class of each start method."""
    assert stdlib.short(name) == expected
    assert LeftOut(expected, "test_x", REASONS[0], "").since == (3, 11)
