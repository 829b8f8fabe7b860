"""Starting the guard: with the options of this interpreter, and without a trace where it cannot be had."""

from __future__ import annotations

import errno
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from procsched import _system
from procsched.errors import ProcschedError
from procsched.workers.guard import Guard, interpreter_arguments
from tests import support

FLAGS = {
    "optimize": 0,
    "dont_write_bytecode": 0,
    "no_site": 0,
    "ignore_environment": 0,
    "no_user_site": 0,
    "bytes_warning": 0,
}


@pytest.mark.parametrize(
    ("flags", "options"),
    [
        ({}, []),
        ({"optimize": 2}, ["-OO"]),
        ({"dont_write_bytecode": 1, "no_site": 1}, ["-B", "-S"]),
        ({"ignore_environment": 1, "no_user_site": 1}, ["-E", "-s"]),
        ({"bytes_warning": 1}, ["-b"]),
    ],
)
def test_workers_run_with_the_flags_of_this_interpreter(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, int], options: list[str]
) -> None:
    """What the program was started with holds in its workers, and the working directory is no place to import from."""
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**{**FLAGS, **flags}))
    monkeypatch.setattr(sys, "warnoptions", [])
    monkeypatch.setattr(sys, "_xoptions", {})
    assert interpreter_arguments() == [sys.executable, "-P", *options]


def test_workers_have_the_warnings_and_options_of_this_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters of warnings in their order; of the options of -X those that are meant for every process."""
    monkeypatch.setattr(sys, "flags", SimpleNamespace(**FLAGS))
    monkeypatch.setattr(sys, "warnoptions", ["error", "ignore::DeprecationWarning"])
    monkeypatch.setattr(sys, "_xoptions", {"utf8": "1", "dev": True, "of_a_stranger": True})
    found = interpreter_arguments()[2:]
    assert found[:4] == ["-W", "error", "-W", "ignore::DeprecationWarning"]
    assert sorted(found[4:]) == ["-X", "-X", "dev", "utf8=1"]


@pytest.mark.parametrize("executable", ["", "/nonexistent/python"])
def test_no_interpreter_is_told(monkeypatch: pytest.MonkeyPatch, executable: str) -> None:
    """An embedded interpreter may not know its own program: the error says what to set."""
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(ProcschedError, match=r"set sys\.executable"):
        interpreter_arguments()


def test_a_guard_that_is_not_needed_is_ended() -> None:
    """Before anything was said to it: it is dead and reaped when that returns."""
    guard = Guard()
    guard.abandon()
    with pytest.raises(ChildProcessError):
        os.waitpid(guard.pid, os.WNOHANG)
    support.assert_gone(guard.pid)


def test_a_guard_for_which_there_is_no_descriptor_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been started, and what was missing came after: nothing of it stays."""
    started: list[int] = []

    def refuse(pid: int) -> Any:
        started.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(_system, "open_process", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        Guard()
    with pytest.raises(ChildProcessError):
        os.waitpid(started[0], os.WNOHANG)
    support.assert_gone(*started)
