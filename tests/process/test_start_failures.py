"""A worker that cannot start is an error with its traceback for those who wait, once, and no spin of respawns."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from procsched import Outcome, WorkerCrashedError
from tests import faults, support
from tests.pools import Bench, helper_pid, only_record, told_pids
from tests.schedulers import hang_once


def assert_all_fail(bench: Bench, text: str, cause: str = "") -> None:
    """Fail unless every waiting call ends as CRASHED with `text`, and few workers were tried for it."""
    futures = [bench.submit(faults.add, n, 1) for n in range(20)]
    for future in futures:
        with pytest.raises(WorkerCrashedError, match=text) as caught:
            future.result(support.TIMEOUT)
        record = only_record(future, Outcome.CRASHED)
        if cause:
            assert cause in str(caught.value.__cause__)
            assert cause in (record.traceback or "")
    assert bench.counters()["spawned"] <= 5
    assert bench.counters()["start_failures"] >= 1


def test_an_initializer_that_raises_is_told_with_its_traceback(tmp_path: Path) -> None:
    """The exception of an initializer reaches everyone who waits, with the line that raised it."""
    with Bench(tmp_path, 2, initializer=faults.raise_runtime_error, initargs=("no license",)) as bench:
        assert_all_fail(bench, "RuntimeError: no license", "in raise_runtime_error")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_initializer_that_leaves_is_told(tmp_path: Path, error: type[BaseException]) -> None:
    """An initializer that raises what is no Exception has failed like any other."""
    with Bench(tmp_path, 2, initializer=faults.raise_it, initargs=(error,)) as bench:
        assert_all_fail(bench, error.__name__)


@pytest.mark.parametrize(
    ("initializer", "args", "text"),
    [
        (faults.exit_hard, (3,), "exit code 3"),
        (faults.exit_hard, (0,), "exit code 0"),
        (faults.segfault, (), "SIGSEGV"),
        (faults.kill_itself, (), "SIGKILL"),
    ],
)
def test_an_initializer_that_dies_is_told(
    tmp_path: Path, initializer: object, args: tuple[object, ...], text: str
) -> None:
    """An initializer that ends its process is told with its exit code or signal."""
    with Bench(tmp_path, 2, initializer=initializer, initargs=args) as bench:
        assert_all_fail(bench, text)


@pytest.mark.parametrize(
    "fault", [faults.spin, faults.ignore_signals, faults.stop_itself, faults.close_everything]
)
def test_an_initializer_that_hangs_is_ended(tmp_path: Path, fault: object) -> None:
    """An initializer that does not return within `start_timeout` is ended, and told."""
    with Bench(
        tmp_path, 2, initializer=fault, initargs=(str(tmp_path / "told"),), start_timeout=0.4
    ) as bench:
        assert_all_fail(bench, "could not start")
    told = tmp_path / "told"
    if told.exists():  # on a busy machine the time may be up before the initializer is reached
        support.assert_gone(*map(int, told.read_text().split()))


@pytest.mark.needs("pidfd", "the stack of what hung is in its record")
def test_an_initializer_that_hangs_shows_where(tmp_path: Path) -> None:
    """The stack of an initializer that hangs is in the error."""
    with Bench(
        tmp_path, 1, initializer=faults.sleep, initargs=(str(tmp_path / "told"),), start_timeout=1.0
    ) as bench:
        text = (
            "not ready within 1.0 s; if preload= or initializer= takes longer, give a longer start_timeout="
        )
        assert_all_fail(bench, text, "in sleep")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("raise OSError('no such device')", "OSError: no such device"),
        ("import a_module_that_nobody_has", "ModuleNotFoundError"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("import os; os._exit(4)", "exit code 4"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ],
)
def test_a_broken_preload_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, text: str
) -> None:
    """A module in `preload` that cannot be imported, or ends the helper, is an error that names it, for all."""
    (tmp_path / "broken_preload.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with Bench(tmp_path, 2, preload=["broken_preload"]) as bench:
        futures = [bench.submit(faults.add, n, 1) for n in range(10)]
        for future in futures:
            with pytest.raises(WorkerCrashedError, match="broken_preload") as caught:
                future.result(support.TIMEOUT)
            assert text in str(caught.value)
            if "helper" not in str(caught.value):  # it lives on, and could say where
                assert "broken_preload.py" in str(caught.value.__cause__)


def test_a_preload_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A preload that never ends is an error after `start_timeout`, and nothing of it stays."""
    (tmp_path / "hanging_preload.py").write_text(
        f"from tests import support\nimport os, time\nsupport.tell({str(tmp_path / 'told')!r}, os.getpid())\n"
        "while True:\n    time.sleep(100)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Bench(tmp_path, 2, preload=["hanging_preload"], start_timeout=0.5) as bench:
        with pytest.raises(WorkerCrashedError, match=r"within 0.5 s; if preload= takes longer"):
            bench.submit(faults.add, 1, 1).result(support.TIMEOUT)
    told = tmp_path / "told"
    if told.exists():
        support.assert_gone(*map(int, told.read_text().split()))


def test_after_a_failure_the_pool_recovers(tmp_path: Path) -> None:
    """Once the cause is gone, later calls are run."""
    flag = tmp_path / "works"
    with Bench(tmp_path, 2, initializer=faults.need_file, initargs=(str(flag),)) as bench:
        with pytest.raises(WorkerCrashedError, match="FileNotFoundError"):
            bench.submit(faults.add, 1, 1).result(support.TIMEOUT)
        flag.touch()
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
        bench.assert_usable()


def test_a_spare_that_cannot_start_harms_no_call(tmp_path: Path) -> None:
    """Where one worker serves, another that cannot start fails nobody: those who wait are served by the one."""
    once = tmp_path / "once"
    with Bench(tmp_path, 2, initializer=faults.work_once, initargs=(str(once),)) as bench:
        assert [bench.submit(faults.add, n, 1).result(support.TIMEOUT) for n in range(50)] == list(
            range(1, 51)
        )


def test_a_start_that_fails_is_tried_again_with_back_off(tmp_path: Path) -> None:
    """A failing start is not repeated at once: in half a second there are a handful of tries."""
    told = tmp_path / "told"
    with Bench(tmp_path, 2, initializer=faults.tell_and_exit, initargs=(str(told),)) as bench:
        began = time.monotonic()
        tries = 0
        while time.monotonic() - began < 0.5:
            with pytest.raises(WorkerCrashedError):
                bench.submit(faults.add, 1, 1).result(support.TIMEOUT)
            tries += 1
        assert len(support.wait_for_file(told).splitlines()) <= 8


def test_an_executor_that_cannot_start_ends(tmp_path: Path) -> None:
    """shutdown() does not wait for workers that never come."""
    with Bench(tmp_path, 2, initializer=faults.sleep, initargs=(str(tmp_path / "told"),)) as bench:
        future = bench.submit(faults.add, 1, 1)
        support.wait_for_file(tmp_path / "told")
        bench.executor.kill_workers()
        bench.executor.shutdown()
        assert future.cancelled()


def test_an_initializer_is_run_once_in_each_worker(tmp_path: Path) -> None:
    """The initializer runs before the first call of a worker, and only then."""
    told = tmp_path / "told"
    with Bench(tmp_path, 2, initializer=faults.tell_pid, initargs=(str(told),)) as bench:
        used = {bench.submit(os.getpid).result(support.TIMEOUT) for _ in range(10)}
        pids = [int(word) for word in told.read_text().split()]
        assert len(pids) == len(set(pids))
        assert used <= set(pids)


def test_what_an_initializer_sets_up_stays(tmp_path: Path) -> None:
    """Working directory, umask and module state that an initializer sets are those of every run."""
    with Bench(tmp_path, 1, initializer=faults.settle, initargs=(str(tmp_path),)) as bench:
        for _ in range(3):
            state = bench.submit(faults.state).result(support.TIMEOUT)
            assert (state["cwd"], state["umask"]) == (str(tmp_path), 0o027)
            assert bench.submit(faults.recall).result(support.TIMEOUT) == "settled"


@pytest.mark.slow
def test_workers_that_die_before_they_have_run_anything_are_no_spin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What kills every idle worker is told, and from the third on the next one waits, ever longer."""
    with Bench(tmp_path, 1, initializer=faults.exit_when_idle, initargs=(7,)) as bench:
        with contextlib.suppress(WorkerCrashedError):  # it may be in time
            bench.submit(faults.add, 1, 1).result(support.TIMEOUT)
        fleet = bench.core.pool.fleet
        support.eventually(lambda: fleet.backoff.early_deaths >= 3)
        problem = support.eventually(lambda: bench.executor.stats().problems)[0]
        assert "a worker died (exit code 7) before it had run anything, 3 times in a row" in problem
        assert "the next is started in 0.1 s at the earliest" in problem
        assert problem in caplog.text
        problems = support.eventually(lambda: bench.executor.stats().problems[3:])
        waits = [float(text.partition("started in ")[2].split()[0]) for text in problems]
        assert waits == sorted(set(waits))
        assert bench.counters()["start_failures"] == 0  # they were ready


@pytest.mark.slow
def test_idle_workers_that_are_killed_now_and_then_are_no_trouble(tmp_path: Path) -> None:
    """Whoever runs something in between shows that the start is sound: the next one comes at once."""
    with Bench(tmp_path, 1) as bench:
        for n in range(6):
            assert bench.submit(faults.add, n, 1).result(support.TIMEOUT) == n + 1
            for pid in bench.ready_pids():
                os.kill(pid, signal.SIGKILL)
                support.assert_gone(pid)
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
        assert bench.executor.stats().problems == ()


@pytest.mark.slow
def test_a_helper_that_dies_again_and_again_is_started_ever_later(tmp_path: Path) -> None:
    """Each loss is told, with how long the next start waits."""
    with Bench(tmp_path, 1) as bench:
        bench.submit(faults.add, 1, 1).result(support.TIMEOUT)
        fleet = bench.core.pool.fleet
        for _ in range(5):
            bench.ready_pids()
            helper = helper_pid()
            told = len(bench.executor.stats().problems)
            os.kill(helper, signal.SIGKILL)
            support.eventually(lambda before=told: bench.executor.stats().problems[before:])
        problems = bench.executor.stats().problems
        waits = [float(text.partition("started in ")[2].split()[0]) for text in problems]
        assert waits == sorted(waits)
        assert waits[-1] >= 0.2
        assert fleet.backoff.early_deaths >= 3
        assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
        os.kill(helper_pid(), signal.SIGKILL)
        last = support.eventually(lambda: bench.executor.stats().problems[5:])[0]
        assert "in a row" not in last
        assert "started in 0.1 s" in last


def test_a_worker_that_is_killed_while_it_starts_fails_nobody(tmp_path: Path) -> None:
    """SIGKILL from outside says nothing about the initializer: the calls that wait are served by the next worker."""
    told, once = str(tmp_path / "told"), str(tmp_path / "once")
    with Bench(tmp_path, 1, initializer=hang_once, initargs=(told, once)) as bench:
        futures = [bench.submit(faults.add, n, 1) for n in range(3)]
        os.kill(told_pids(told)[0], signal.SIGKILL)
        assert [future.result(support.TIMEOUT) for future in futures] == [1, 2, 3]
        assert bench.counters()["start_failures"] == 1
