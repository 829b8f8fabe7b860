"""`run`, `killable` and the small pool behind them."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from procsched import (
    ProcessExecutor,
    TaskSerializationError,
    TaskTimeoutError,
    ValidationError,
    WorkerCrashedError,
    killable,
    run,
    shutdown_shared,
)
from procsched.child.wrapped import call_wrapped
from tests import faults, killables, support
from tests.pools import Parent, assert_reaped, open_gate, told_pids


@pytest.fixture(autouse=True)
def shared() -> Iterator[None]:
    yield
    shutdown_shared()


def test_run_returns_what_the_function_returns() -> None:
    """run() passes arguments and keywords, and returns the result from another process."""
    assert run(faults.add, 1, right=2) == 3
    assert run(os.getpid) != os.getpid()


def test_run_raises_what_the_function_raises() -> None:
    """run() raises the function's own exception, with the child's frames."""
    with pytest.raises(ValueError, match="bad row") as caught:
        run(faults.raise_awkward, "plain", timeout=support.TIMEOUT)
    assert "in raise_awkward" in "".join(traceback.format_exception(caught.value))


def test_run_kills_at_its_timeout(tmp_path: Path) -> None:
    """run() ends a call at its timeout, and by then the process is gone."""
    told = tmp_path / "told"
    run(faults.add, 1, 1)  # so that the import of its module does not count
    with pytest.raises(TaskTimeoutError, match=r"exceeded its 0\.3 s budget"):
        run(faults.ignore_signals, str(told), timeout=0.3)
    assert_reaped(told_pids(told)[0])


def test_run_survives_a_crash() -> None:
    """A crash of the child is an exception, and the next run works."""
    with pytest.raises(WorkerCrashedError, match="exit code 5"):
        run(faults.exit_hard, 5)
    assert run(faults.add, 1, 1) == 2


def test_run_refuses_what_cannot_be_sent() -> None:
    """What cannot be pickled is an error at the call that names it."""
    with pytest.raises(TaskSerializationError, match=r"args\[0\]") as caught:
        run(faults.identity, threading.Lock())
    assert "ThreadPool" not in str(caught.value)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon"])
def test_run_refuses_a_timeout_that_is_none(timeout: object) -> None:
    """A timeout that is no positive number is refused, and named."""
    with pytest.raises(ValidationError, match="timeout"):
        run(faults.add, 1, 2, timeout=timeout)


def test_killable_keeps_the_function() -> None:
    """The decorated function has its name and text, takes its arguments, and returns its result."""
    assert killables.hang_or_add.__name__ == "hang_or_add"
    assert killables.hang_or_add.__doc__ == "Hang where there is a path."
    assert killables.hang_or_add("", 1, right=2) == 3


def test_killable_kills(tmp_path: Path) -> None:
    """A decorated function is ended at its timeout, each call anew."""
    for n in range(2):
        told = tmp_path / f"told-{n}"
        with pytest.raises(TaskTimeoutError):
            killables.hang_or_add(str(told))
        assert_reaped(told_pids(told)[0])
    assert killables.hang_or_add("", 2, 2) == 4


def test_what_killable_shows_is_the_function_alone(tmp_path: Path) -> None:
    """Neither the stack of one that hung nor the traceback of one that raised has frames of procsched in it."""

    @killable()
    def fail() -> None:
        raise KeyError("row")

    with pytest.raises(KeyError) as failed:
        fail()
    # With a grace, which `killable` has not, the stack comes on a busy machine too.
    # Preloaded, or else the limit may end in the import.
    with ProcessExecutor(1, timeout=1.0, grace=support.TIMEOUT, preload=("tests.killables",)) as executor:
        hung = executor.submit(call_wrapped, killables.hang_or_add, (str(tmp_path / "told"),), {})
        stack = hung.wait_record(support.TIMEOUT).stack or ""
    assert "in hang_or_add" in stack
    assert "wrapped" not in stack
    names = [entry.name for entry in traceback.extract_tb(failed.value.__traceback__)]
    assert names[-1] == "fail"
    assert "call_wrapped" not in names


def test_killable_works_on_a_closure() -> None:
    """A function that is defined inside another can be decorated."""
    offset = 5

    @killable()
    def inner(value: int) -> int:
        return value + offset

    assert inner(1) == 6


def test_killable_without_brackets_is_explained() -> None:
    """@killable without brackets says how it is used."""
    with pytest.raises(TypeError, match="brackets"):
        killable(faults.add)


def test_shutdown_shared_ends_everything() -> None:
    """After shutdown_shared() there is no process; the next run makes a new pool; twice is harmless."""
    before = set(support.children())
    pid = run(os.getpid)
    assert set(support.children()) - before
    shutdown_shared()
    assert_reaped(pid)
    assert not set(support.children()) - before
    shutdown_shared()
    assert run(faults.add, 1, 1) == 2


def test_many_threads_share_one_pool() -> None:
    """Calls from several threads at once each get their own result."""
    found: dict[int, int] = {}

    def call(n: int) -> None:
        found[n] = run(faults.add, n, n)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(support.TIMEOUT)
    assert found == {n: 2 * n for n in range(8)}


INTERRUPTED = """
import sys
import traceback
from procsched import run
from tests import faults

try:
    run(faults.ignore_signals, sys.argv[1])
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupted_run_is_ended(tmp_path: Path) -> None:
    """KeyboardInterrupt while run() waits ends the call, and the program ends without waiting for it."""
    told = tmp_path / "told"
    with Parent(tmp_path, INTERRUPTED, arguments=(str(told),)) as parent:
        pid = told_pids(told)[0]
        parent.signal(signal.SIGINT)
        assert parent.output() == "interrupted\n"
        support.assert_gone(pid)


def test_a_fork_has_a_pool_of_its_own(tmp_path: Path) -> None:
    """run() in a fork of a process that has used it works, and leaves the parent's workers alone."""
    pid = run(os.getpid)
    told = tmp_path / "told"
    child = os.fork()
    if child == 0:
        try:
            support.tell(told, run(faults.add, 20, 3, timeout=support.TIMEOUT))
            shutdown_shared()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert told.read_text() == "23\n"
    os.kill(pid, 0)
    assert run(faults.add, 1, 1) == 2


def test_importing_and_decorating_start_nothing() -> None:
    """The pool comes with the first call, not before."""
    before = set(support.children())

    @killable(timeout=5)
    def inner() -> int:
        return os.getpid()

    assert set(support.children()) == before
    pid = inner()
    assert pid != os.getpid()


def test_run_and_killable_share_one_pool() -> None:
    """Whoever calls first starts it, and there is one guard for all."""
    before = set(support.children())

    def guards() -> set[int]:
        return {child.pid for child in psutil.Process().children()} - before - support.servers

    run(faults.add, 1, 1)
    first = guards()
    killables.hang_or_add("", 1, 1)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert list(threads.map(lambda n: run(faults.add, n, n), range(40))) == list(range(0, 80, 2))
    assert guards() == first
    assert len(first) == 1


AT_EXIT = """
from procsched import killable, run
from tests import faults, killables

run(faults.add, 1, 1)
assert killables.hang_or_add("", 1, 1) == 2
"""


def test_the_shared_pool_goes_at_exit(tmp_path: Path) -> None:
    """A program that ends without shutdown_shared() ends quietly and leaves nothing."""
    with Parent(tmp_path, AT_EXIT) as parent:
        assert parent.output() == ""
    support.eventually(lambda: not support.orphans())


def test_runs_beside_shutdown_shared_are_made() -> None:
    """A run that meets shutdown_shared() in another thread is made by the next pool, and is no error."""
    go_on = True

    def shut_down() -> None:
        while go_on:
            shutdown_shared()

    thread = threading.Thread(target=shut_down)
    thread.start()
    try:
        assert [run(faults.add, n, n) for n in range(8)] == list(range(0, 16, 2))
    finally:
        go_on = False
        thread.join(support.TIMEOUT)


def test_run_has_the_directory_and_environment_of_its_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change of directory or environment run() works where the program is now, in a new pool."""
    before = set(support.children())
    pid = run(os.getpid)
    assert run(os.getenv, "PROCSCHED_TOLD") is None
    monkeypatch.chdir(tmp_path)
    assert run(os.getcwd) == os.getcwd()
    monkeypatch.setenv("PROCSCHED_TOLD", "news")
    assert run(os.getenv, "PROCSCHED_TOLD") == "news"
    monkeypatch.delenv("PROCSCHED_TOLD")
    assert run(os.getenv, "PROCSCHED_TOLD") is None
    shutdown_shared()
    support.assert_gone(pid)
    assert set(support.children()) == before


def test_run_writes_where_the_program_writes_at_its_moment(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where another file has taken the place of stdout or stderr the next call has it; else the pool stays."""
    run(faults.say_and, "first", 0)
    assert capfd.readouterr() == ("out first\n", "err first\n")
    for descriptor in (1, 2):
        saved = os.dup(descriptor)
        with (tmp_path / str(descriptor)).open("w") as file:
            os.dup2(file.fileno(), descriptor)
        try:
            run(faults.say_and, "second", 0)
        finally:
            os.dup2(saved, descriptor)
            os.close(saved)
    assert (tmp_path / "1").read_text() == "out second\n"
    assert (tmp_path / "2").read_text() == "err second\n"
    assert capfd.readouterr() == ("out second\n", "err second\n")
    helper = psutil.Process(run(os.getpid)).ppid()
    run(faults.say_and, "third", 0)
    assert capfd.readouterr() == ("out third\n", "err third\n")
    assert psutil.Process(run(os.getpid)).ppid() == helper


def test_a_run_of_another_moment_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that is under way when the directory changes goes on, and shutdown_shared() waits for it too."""
    gate, told = tmp_path / "gate", tmp_path / "told"
    os.mkfifo(gate)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        future = threads.submit(run, faults.wait_at_gate, str(gate), str(told))
        (pid,) = told_pids(told)
        monkeypatch.chdir(tmp_path)
        assert run(os.getcwd) == os.getcwd()
        open_gate(gate)
        shutdown_shared()
        assert_reaped(pid)
        future.result(support.TIMEOUT)


def test_what_pytest_changes_for_each_test_makes_no_new_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable in which pytest says which test it is at is none of run()'s business."""
    pids = []
    for name in ("one", "two"):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", name)
        run(os.getpid)
        pids.append(psutil.Process(run(os.getpid)).ppid())
    assert pids[0] == pids[1]


def test_run_can_capture_the_output() -> None:
    """run() and killable() show what a call wrote that did not come back."""

    def crash() -> None:
        print("my last words", flush=True)
        os._exit(5)

    for call in (lambda: run(crash, capture_output=True), killable(capture_output=True)(crash)):
        with pytest.raises(WorkerCrashedError) as caught:
            call()
        assert caught.value.output == "my last words\n"


def test_killable_refuses_an_option_that_it_does_not_know() -> None:
    """A misspelt option is named, with the nearest one."""
    with pytest.raises(ValidationError, match=r"'tmeout' of killable; did you mean 'timeout'\?"):
        killable(tmeout=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [classmethod, property])
def test_killable_refuses_what_is_no_function(kind: type) -> None:
    """Above @classmethod or @property it says so when the class is made, not when it is called."""
    with pytest.raises(ValidationError, match=f"not {kind.__name__} .* above it"):
        killable()(kind(faults.add))
