"""What the soak found, or would have: each fault alone, and at a moment that is chosen."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from procsched import Outcome
from procsched._core import wire
from procsched.workers.launcher import Launcher
from tests import faults, support
from tests.pools import Bench, guard_pid, helper_pid, only_record, stop, told_pids


class Endless:
    """A worker's socket from which there is always more to be read: whole messages that mean nothing."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        frame = b"".join(wire.encode(wire.PROGRESS, 0, wire.progress(1, 2, "on")))
        self._data = frame * ((1 << 16) // len(frame))

    def recv(self, _size: int) -> bytes:
        return self._data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_run_that_floods_is_ended_although_nobody_keeps_up(tmp_path: Path, how: str) -> None:
    """What a worker has written is read before its run is ended, but not what it goes on to write meanwhile."""
    with Bench(tmp_path, 2) as bench, bench.innocent():
        told = bench.path("told")
        future = bench.submit(faults.sleep, told, timeout=1.0 if how == "timeout" else None)
        pid = told_pids(told)[0]
        worker = future._item.worker
        with bench.core.pool.reading:
            worker.sock = Endless(worker.sock)
        if how == "cancel":
            assert future.cancel()
        only_record(future, Outcome.TIMED_OUT if how == "timeout" else Outcome.KILLED)
        support.assert_gone(pid)


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_a_flood_of_whole_messages_is_ended(tmp_path: Path, how: str) -> None:
    """A run that writes more quickly than anybody reads is ended as any other, and harms nobody."""
    with Bench(tmp_path, 2) as bench, bench.innocent():
        told = bench.path("told")
        future = bench.submit(faults.flood_frames, told, timeout=0.3 if how == "timeout" else None)
        pid = told_pids(told)[0]
        if how == "cancel":
            assert future.cancel()
        only_record(future, Outcome.TIMED_OUT if how == "timeout" else Outcome.KILLED)
        support.assert_gone(pid)


def test_a_stopped_helper_whose_guard_dies_ends_what_is_below_it(tmp_path: Path) -> None:
    """A helper that is stopped hears of the death of its guard, and does what it is to do then."""
    with Bench(tmp_path, 1) as bench:
        told = bench.path("told")
        future = bench.submit(faults.leave, ["daemon", "session_grandchild"], told, "hang")
        pids = told_pids(told)
        guard, helper = guard_pid(), helper_pid()
        stop(helper)
        os.kill(guard, signal.SIGKILL)
        only_record(future, Outcome.LOST)
        support.assert_gone(helper, *pids)
        assert bench.submit(faults.add, 1, 2).result(support.TIMEOUT) == 3


def test_a_guard_may_be_killed_by_a_signal_without_a_name(tmp_path: Path) -> None:
    """The end of the helper is told of all the same, and another one is started."""
    with Bench(tmp_path, 1) as bench:
        told = bench.path("told")
        future = bench.submit(faults.sleep, told)
        support.wait_for_file(told)
        os.kill(guard_pid(), 40)
        assert "(its guard: SIG40)" in (only_record(future, Outcome.LOST).error or "")
        assert bench.submit(faults.add, 1, 2).result(support.TIMEOUT) == 3


def test_without_pid_descriptors_others_may_reap_the_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host program that ignores SIGCHLD, so that no wait status is left, hears of the end of the helper."""
    monkeypatch.setenv("PROCSCHED_WITHOUT", "pidfd")
    with Bench(tmp_path, 1) as bench:
        told = bench.path("told")
        future = bench.submit(faults.sleep, told)
        support.wait_for_file(told)
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            os.kill(helper_pid(), signal.SIGKILL)
            only_record(future, Outcome.LOST)
        finally:
            signal.signal(signal.SIGCHLD, before)
        assert bench.submit(faults.add, 1, 2).result(support.TIMEOUT) == 3


def test_a_helper_without_its_guard_is_not_killed_in_the_midst_of_its_work() -> None:
    """A helper that does not answer is killed only once it had time to end what is below it, if its guard is dead."""
    asked: list[Callable[[], object]] = []

    class Times:
        def call_at(self, _at: float, function: Callable[[], object]) -> None:
            asked.append(function)

    launcher = Launcher(Times(), object())  # type: ignore[arg-type]
    with subprocess.Popen(["sleep", "1000"]) as helper:
        descriptor = launcher._helper_fd = os.pidfd_open(helper.pid)
        try:
            launcher._guard_reaped = True
            launcher.destroy()
            assert helper.poll() is None
            (again,) = asked
            again()
            assert helper.wait(support.TIMEOUT) == -signal.SIGKILL
        finally:
            os.close(descriptor)


def test_garbage_between_helper_and_parent_costs_the_helper(tmp_path: Path) -> None:
    """A helper that is not understood any more is replaced; what it has sent along is not left open."""
    with Bench(tmp_path, 2) as bench:
        bench.submit(faults.add, 1, 2).result(support.TIMEOUT)
        pid = bench.ready_pids()[0]
        launcher = bench.core.pool.fleet.launcher
        assert launcher is not None
        helper = helper_pid()
        bench.core.pool.loop.call_soon(lambda: launcher._control._pending.extend(b"\xff" * 100))
        os.kill(pid, signal.SIGKILL)  # so that there is something to be said
        support.assert_gone(helper)
        assert bench.submit(faults.add, 1, 2).result(support.TIMEOUT) == 3
        bench.assert_usable()
