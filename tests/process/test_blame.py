"""Whatever happens to a run, it has exactly one record, and nobody else is harmed."""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from procsched import (
    Outcome,
    RemoteError,
    TaskLostError,
    TaskSerializationError,
    TaskTimeoutError,
    WorkerCrashedError,
)
from procsched.workers import fleet, process
from tests import faults, support
from tests.pools import ROOT, Bench, assert_reaped, guard_pid, helper_pid, only_record, told_pids

DEBUGGER = """
import os, sys
from tests import faults, support

obstacle = faults.trace(int(sys.argv[1]))
support.tell(sys.argv[2], os.getpid(), obstacle)
sys.stdin.read()
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 2) as it:
        yield it


def assert_nobody_replaced(bench: Bench, *pids: int | None) -> None:
    """Fail if a worker was killed or recycled, or one of `pids` is gone."""
    counters = bench.counters()
    assert (counters["killed_workers"], counters["recycled"], counters["start_failures"]) == (0, 0, 0)
    assert counters["spawned"] <= bench.workers + 1  # one spare
    for pid in pids:
        assert pid in bench.pids()
        os.kill(pid, 0)


# --- deaths -------------------------------------------------------------------------------------------------

DEATHS = [
    pytest.param(faults.segfault, (), "SIGSEGV", id="segfault"),
    pytest.param(faults.abort, (), "SIGABRT", id="abort"),
    pytest.param(faults.kill_itself, (signal.SIGKILL,), "SIGKILL", id="kills itself"),
    pytest.param(faults.kill_itself, (signal.SIGHUP,), "SIGHUP", id="hangs up"),
    pytest.param(faults.exit_hard, (5,), 5, id="exit 5"),
    pytest.param(faults.exit_hard, (0,), 0, id="exit 0"),
    pytest.param(faults.exit_from_thread, (6,), 6, id="exit from a thread"),
    pytest.param(faults.write_half_frame_and_exit, (), 7, id="exit in mid-frame"),
    pytest.param(faults.overflow_the_stack, (), "SIGSEGV", id="C stack overflow"),
]


def test_the_stack_of_a_crash_is_read_however_late(bench: Bench) -> None:
    """The I/O thread may hear of a death before it has come to what the run wrote last."""
    told = bench.path()
    crashed = bench.submit(faults.sleep, told)
    pid = told_pids(told)[0]
    watched = threading.Event()

    def look_away() -> None:
        bench.core.pool.loop.forget(crashed._item.worker.output.fd)
        watched.set()

    bench.core.pool.loop.call_soon(look_away)
    assert watched.wait(support.TIMEOUT)
    os.kill(pid, signal.SIGSEGV)
    with pytest.raises(WorkerCrashedError):
        crashed.result(support.TIMEOUT)
    assert "in sleep" in (only_record(crashed, Outcome.CRASHED).stack or "")


@pytest.mark.parametrize(("function", "args", "how"), DEATHS)
def test_a_death_is_a_crash_of_that_attempt_alone(
    bench: Bench, function: object, args: tuple[object, ...], how: str | int
) -> None:
    """A worker that dies ends its own run as CRASHED with signal or exit code, and no other."""
    with bench.innocent():
        future = bench.submit(function, *args)
        record = only_record(future, Outcome.CRASHED)
        words = how if isinstance(how, str) else f"exit code {how}"
        assert record.error == f"worker died: {words}"
        assert (record.signal or record.exit_code) == how
        assert_reaped(record.pid)
        with pytest.raises(WorkerCrashedError, match=words) as caught:
            future.result()
        assert (caught.value.signal or caught.value.exit_code) == how
        assert caught.value.pid == record.pid
    bench.assert_usable()


def test_sigkill_from_outside_is_a_crash_of_that_attempt_alone(bench: Bench) -> None:
    """Somebody's SIGKILL for a worker is named in the record of the run in it."""
    told = bench.path()
    with bench.innocent():
        future = bench.submit(faults.sleep, told)
        pid = int(support.wait_for_file(told))
        os.kill(pid, signal.SIGKILL)
        record = only_record(future, Outcome.CRASHED)
        assert (record.error, record.signal, record.pid) == ("worker died: SIGKILL", "SIGKILL", pid)
    bench.assert_usable()


def test_sigterm_from_outside_has_its_default_effect(bench: Bench) -> None:
    """Somebody else's SIGTERM kills the worker, as it kills any process."""
    told = bench.path()
    future = bench.submit(faults.sleep, told)
    os.kill(int(support.wait_for_file(told)), signal.SIGTERM)
    assert only_record(future, Outcome.CRASHED).error == "worker died: SIGTERM"


def test_sigterm_from_outside_has_its_default_effect_also_after_a_soft_timeout(tmp_path: Path) -> None:
    """What asked the run before to stop does not shield the next run from a stranger's SIGTERM."""
    with Bench(tmp_path, 1, max_rss_per_worker=1 << 40) as bench:
        soft = bench.submit(faults.swallow_once, soft_timeout=0.05)
        assert soft.result(support.TIMEOUT) == "swallowed"
        told = bench.path()
        future = bench.submit(faults.sleep, told, timeout=5)
        pid = int(support.wait_for_file(told))
        if pid != only_record(soft, Outcome.SUCCEEDED).pid:
            os.kill(pid, signal.SIGTERM)
            only_record(future, Outcome.CRASHED)
            future = bench.submit(faults.sleep, told)
            pid = int(support.wait_for_file(told, lines=2).split()[-1])
            assert pid == only_record(soft, Outcome.SUCCEEDED).pid
        os.kill(pid, signal.SIGTERM)
        assert only_record(future, Outcome.CRASHED).error == "worker died: SIGTERM"


def test_sigint_to_a_worker_is_an_exception_of_its_run(bench: Bench) -> None:
    """SIGINT stays the user's: in a worker it raises KeyboardInterrupt in the action, and the worker lives on."""
    told = bench.path()
    future = bench.submit(faults.sleep, told)
    pid = int(support.wait_for_file(told))
    os.kill(pid, signal.SIGINT)
    assert only_record(future, Outcome.FAILED).error == "KeyboardInterrupt"
    assert_nobody_replaced(bench, pid)


def test_an_idle_worker_that_dies_harms_no_call(bench: Bench) -> None:
    """A call that is handed to a worker which has just died runs elsewhere: it never started there."""
    assert bench.submit(faults.add, 1, 2).result(support.TIMEOUT) == 3
    for round_ in range(20):
        for pid in bench.ready_pids():
            os.kill(pid, signal.SIGKILL)
        # At once, in the thread that killed: the pool has had no chance to see the death.
        future = bench.submit(faults.add, round_, 1)
        assert future.result(support.TIMEOUT) == round_ + 1
        only_record(future, Outcome.SUCCEEDED)


# --- exceptions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", faults.AWKWARD)
def test_an_exception_is_an_outcome_and_costs_no_worker(bench: Bench, kind: str) -> None:
    """Every exception, however awkward, is one FAILED record with a readable error; its worker lives on."""
    with bench.innocent():
        future = bench.submit(faults.raise_awkward, kind)
        record = only_record(future, Outcome.FAILED)
        assert record.error is not None
        assert record.error.startswith(faults.AWKWARD[kind][2])
        assert len(record.error) < 20_000
        assert record.traceback is not None
        assert "raise_awkward" in record.traceback or "frames cannot be shown" in record.traceback
        error = future.exception(support.TIMEOUT)
        name = faults.AWKWARD[kind][2].partition(":")[0]
        assert name in (type(error).__name__, getattr(error, "type_name", ""))
        if isinstance(error, RemoteError):
            assert error.traceback == record.traceback
        assert_nobody_replaced(bench, record.pid)
    bench.assert_usable()
    assert_nobody_replaced(bench, record.pid)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(SystemExit, "system exit"), (KeyboardInterrupt, "keyboard interrupt"), (faults.Base, "base")],
)
def test_what_is_no_exception_is_raised_as_itself(
    bench: Bench, error: type[BaseException], kind: str
) -> None:
    """SystemExit, KeyboardInterrupt and their like come out of `result` as themselves."""
    with pytest.raises(error) as caught:
        bench.submit(faults.raise_awkward, kind).result(support.TIMEOUT)
    assert type(caught.value) is error


def test_sys_exit_of_an_action_is_its_outcome(bench: Bench) -> None:
    """`sys.exit` in an action fails that attempt and leaves its worker alone."""
    future = bench.submit(faults.exit_soft, "enough")
    record = only_record(future, Outcome.FAILED)
    assert record.error == "SystemExit: enough"
    assert_nobody_replaced(bench, record.pid)


def test_an_exception_that_is_returned_is_a_result(bench: Bench) -> None:
    """An exception that an action returns is not raised."""
    value = bench.submit(faults.identity, ValueError("only returned")).result(support.TIMEOUT)
    assert isinstance(value, ValueError)
    only_record(bench.submit(faults.identity, ValueError("only returned")), Outcome.SUCCEEDED)


# --- arguments ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [TypeError, AttributeError, RuntimeError, RecursionError, MemoryError, pickle.PicklingError]
)
def test_an_argument_that_cannot_be_pickled_fails_its_own_future(
    bench: Bench, error: type[Exception]
) -> None:
    """What the pickling of an argument raises is told on that future, which says where it hangs."""
    with bench.innocent():
        future = bench.executor.submit(faults.identity, {"deep": [1, faults.OnDump(error)]})
        with pytest.raises(
            TaskSerializationError, match="recursion" if error is RecursionError else error.__name__
        ) as caught:
            future.result(support.TIMEOUT)
        assert caught.value.path == "args[0]['deep'][1]"
        assert caught.value.type_name == "OnDump"
    bench.assert_usable()


def test_an_argument_whose_unpickling_raises_fails_its_own_attempt(bench: Bench) -> None:
    """An argument that cannot be loaded in the worker is a failed attempt that says so; the worker lives on."""
    argument = faults.OnLoad(faults.raise_runtime_error, "not here")
    record = only_record(bench.submit(faults.identity, argument), Outcome.FAILED)
    assert record.error == "RuntimeError: not here (while loading the call in the worker)"
    assert (record.traceback or "").endswith("the function had not begun\n")
    assert_nobody_replaced(bench, record.pid)


def test_a_module_that_a_worker_cannot_import_is_named_with_the_remedy(
    tmp_path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a module that a plug-in loader has made, the error says that the function had not begun, and what to do."""
    path = tmp_path / "procsched_plugin.py"
    path.write_text("def double(number):\n    return 2 * number\n", encoding="ascii")
    spec = importlib.util.spec_from_file_location("procsched_plugin", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "procsched_plugin", module)
    spec.loader.exec_module(module)
    future = bench.submit(module.double, 2)
    with pytest.raises(ModuleNotFoundError) as caught:
        future.result(support.TIMEOUT)
    (note,) = caught.value.__notes__
    assert note.startswith("raised while the worker was loading the call: the function had not begun; ")
    assert "put the directory of module 'procsched_plugin' there" in note
    assert note in (only_record(future, Outcome.FAILED).traceback or "")
    cloudpickle.register_pickle_by_value(module)  # the remedies help
    try:
        assert bench.submit(module.double, 3).result(support.TIMEOUT) == 6
    finally:
        cloudpickle.unregister_pickle_by_value(module)
    monkeypatch.syspath_prepend(tmp_path)
    assert bench.submit(module.double, 4).result(support.TIMEOUT) == 8


def test_an_argument_whose_unpickling_exits_fails_its_own_attempt(bench: Bench) -> None:
    """An argument whose unpickling ends the process is a crash of that attempt alone."""
    with bench.innocent():
        future = bench.submit(faults.identity, faults.OnLoad(faults.exit_hard, 9))
        record = only_record(future, Outcome.CRASHED)
        assert (record.exit_code, record.error) == (9, "worker died: exit code 9")
    bench.assert_usable()


def test_an_argument_whose_unpickling_hangs_is_timed_out(bench: Bench) -> None:
    """The limit counts from the hand-over: unpickling is part of the run, and harms nobody else's."""
    with bench.innocent():
        argument = faults.hang_on_load(bench.path())
        record = only_record(bench.submit(faults.identity, argument, timeout=0.2), Outcome.TIMED_OUT)
        assert_reaped(record.pid)
    bench.assert_usable()


# --- results --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", faults.BAD_RESULTS)
def test_a_result_that_cannot_travel_fails_its_attempt_and_costs_no_worker(bench: Bench, kind: str) -> None:
    """What cannot be pickled, or not be loaded again, is a failed attempt whose error says so."""
    with bench.innocent():
        future = bench.submit(faults.result_of, kind)
        record = only_record(future, Outcome.FAILED)
        assert record.error is not None
        assert record.error.startswith("TaskSerializationError: the result, of type ")
        with pytest.raises(TaskSerializationError):
            future.result()
        assert_nobody_replaced(bench, record.pid)


def test_a_result_whose_loading_fails_in_the_parent_leaves_the_record(bench: Bench) -> None:
    """A result that loads in the worker but not here is a RemoteError for who asks, and SUCCEEDED on record."""
    future = bench.submit(faults.result_for_child_only)
    with pytest.raises(RemoteError, match="cannot be loaded in this process"):
        future.result(support.TIMEOUT)
    only_record(future, Outcome.SUCCEEDED)
    bench.assert_usable()


def test_loading_a_result_holds_up_nobody_else(bench: Bench) -> None:
    """Results are loaded in the thread that asks: who never asks never loads, and deadlines are kept."""
    path = bench.path()
    never_asked = bench.submit(faults.loads_in_parent_for_ever, path, os.getpid())
    only_record(never_asked, Outcome.SUCCEEDED)
    bench.assert_usable()
    assert not os.path.exists(path)


def test_a_result_that_dies_on_loading_is_a_crash_of_its_attempt(bench: Bench) -> None:
    """A result whose trial loading ends the worker is blamed on the run that returned it."""
    with bench.innocent():
        record = only_record(bench.submit(faults.OnLoad, faults.exit_hard, 4), Outcome.CRASHED)
        assert record.error == "worker died: exit code 4"
    bench.assert_usable()


@pytest.mark.parametrize("kind", [faults.Nosy, faults.Obliging])
def test_a_result_with_odd_attributes_is_only_a_result(bench: Bench, kind: type) -> None:
    """A result is not asked for attributes that it may answer with an error, or with anything."""
    future = bench.submit(kind)
    assert type(future.result(support.TIMEOUT)) is kind
    only_record(future, Outcome.SUCCEEDED)


def test_a_fork_that_returns_through_the_action_is_no_second_answer(bench: Bench) -> None:
    """An action that forks and returns on both sides has one result, that of the worker."""
    future = bench.submit(faults.fork_and_return)
    assert future.result(support.TIMEOUT) == "parent"
    only_record(future, Outcome.SUCCEEDED)
    bench.assert_usable()


# --- helper and guard -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["helper", "guard", "helper of a stopped guard"])
def test_the_death_of_helper_or_guard_is_a_loss_and_leaves_nothing(bench: Bench, victim: str) -> None:
    """SIGKILL for the helper or the guard: runs are LOST with an error naming it, nothing stays, the next works.

    A guard that was stopped is told to go on: nobody else ends what the runs leave.
    """
    told = bench.path()
    futures = [bench.submit(faults.leave, ["session_grandchild", "daemon"], told, "hang") for _ in range(2)]
    pids = [int(word) for word in support.wait_for_file(told, lines=2).split()]
    helper, guard = helper_pid(), guard_pid()
    if victim.endswith("stopped guard"):
        os.kill(guard, signal.SIGSTOP)
    os.kill(guard if victim == "guard" else helper, signal.SIGKILL)
    for future in futures:
        record = only_record(future, Outcome.LOST)
        assert str(helper) in record.error
        with pytest.raises(TaskLostError):
            future.result()
    support.assert_gone(helper, guard, *pids)
    bench.assert_usable()
    assert bench.counters()["helper_restarts"] == 1


def test_a_worker_that_its_child_traces_is_ended_with_it(bench: Bench) -> None:
    """The system reports its death to the child alone; the helper ends that, and nobody else is harmed."""
    told = bench.path()
    with bench.innocent():
        helper = helper_pid()
        future = bench.submit(faults.have_a_child_trace, told)
        worker, tracer, obstacle = told_pids(told)
        if obstacle:
            future.cancel()
            pytest.skip("no process may trace another here")
        future.cancel()
        assert only_record(future, Outcome.KILLED).error == "killed: cancelled"
        assert_reaped(worker)
        support.assert_gone(tracer)
    assert helper_pid() == helper
    bench.assert_usable()


def test_a_worker_that_somebody_traces_is_named_and_costs_nobody_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a debugger holds it the helper cannot reap it: its run has a record all the same, and the others go on."""
    for module in (fleet, process):
        monkeypatch.setattr(module, "DEATH_WAIT", 1.0)
    told, traced = bench.path(), bench.path()
    with bench.innocent():
        helper = helper_pid()
        future = bench.submit(faults.sleep, told)
        (worker,) = told_pids(told)
        debugger = subprocess.Popen(
            [sys.executable, "-c", DEBUGGER, str(worker), traced], cwd=ROOT, stdin=subprocess.PIPE
        )
        try:
            _pid, obstacle = told_pids(traced)
            future.cancel()
            if obstacle:
                pytest.skip("no process may trace another here")
            error = only_record(future, Outcome.KILLED).error
            assert f"process {debugger.pid} traces it" in error
            assert bench.counters()["unkillable"] == 1
        finally:
            debugger.communicate()  # the end of its standard input ends it
        support.assert_gone(worker)
    assert helper_pid() == helper
    bench.assert_usable()


def test_a_helper_that_dies_again_and_again_is_started_with_back_off(bench: Bench) -> None:
    """Each death of the helper costs its own runs alone; calls that only wait are run in the end."""
    for round_ in range(3):
        assert bench.submit(faults.add, round_, 1).result(support.TIMEOUT) == round_ + 1
        helper = helper_pid()
        os.kill(helper, signal.SIGKILL)
        support.assert_gone(helper)
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2


def test_a_call_between_two_workers_is_found_by_whoever_ends_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has lost the worker that had not begun it, and has no other yet; that is one step for everybody else."""
    assert bench.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
    fleet = bench.core.pool.fleet
    for pid in bench.ready_pids():
        os.kill(pid, signal.SIGSTOP)
    future = bench.submit(faults.add, 2, 2)
    monkeypatch.setattr(fleet, "ensure", lambda **_options: None)  # no worker comes any more
    spared, held = fleet._was_spared, []

    def look(worker: Any, call: Any) -> bool:
        held.append(bench.core.pool.holds_lock())
        return spared(worker, call)

    monkeypatch.setattr(fleet, "_was_spared", look)
    os.kill(helper_pid(), signal.SIGKILL)
    support.eventually(lambda: future._item in bench.core.pool._returned)
    assert held == [True]
    bench.executor.terminate_workers()
    only_record(future, Outcome.KILLED)


@pytest.mark.slow
def test_a_timeout_beats_a_crash_that_it_caused(bench: Bench) -> None:
    """A run that dies of its deadline is TIMED_OUT, never CRASHED by our own SIGKILL."""
    futures = [bench.submit(faults.sleep, bench.path(), timeout=0.01 * n) for n in range(1, 30)]
    for future in futures:
        only_record(future, Outcome.TIMED_OUT)
        assert isinstance(future.exception(), TaskTimeoutError)
