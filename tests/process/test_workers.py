"""When workers come and go: on demand, with a spare, and after so many calls or so much memory."""

from __future__ import annotations

import collections
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from procsched import Outcome, ProcessExecutor
from procsched.future import ProcessFuture
from tests import faults, support
from tests.pools import Bench, assert_reaped, helper_pid, only_record, open_gate, told_pids


def grow(size: int) -> int:
    """Keep so much memory for good; return this process's pid."""
    _kept.append(b"x" * size)
    return os.getpid()


_kept: list[bytes] = []


@pytest.mark.parametrize("most", [1, 7])
def test_no_worker_runs_more_than_it_may(tmp_path: Path, most: int) -> None:
    """max_tasks_per_child holds for calls that were sent ahead too, and every call runs once."""
    told = tmp_path / "told"
    with Bench(tmp_path, 2, max_tasks_per_child=most) as bench:
        futures = [bench.submit(faults.tell_pid, str(told)) for _ in range(100)]
        counts = collections.Counter(future.result(support.TIMEOUT * 3) for future in futures)
        assert max(counts.values()) <= most
        assert counts.total() == 100
        worn = [pid for pid, count in counts.items() if count == most]
        support.assert_gone(*worn)
    assert collections.Counter(told_pids(told, lines=100)) == counts


def test_a_worker_that_has_grown_is_replaced(tmp_path: Path) -> None:
    """max_rss_per_worker ends a worker after the call that made it too large, and no other."""
    with Bench(tmp_path, 1, max_rss_per_worker=150 << 20, preload=("tests.process.test_workers",)) as bench:
        small = bench.submit(grow, 1 << 20).result(support.TIMEOUT)
        assert bench.submit(os.getpid).result(support.TIMEOUT) == small
        large = bench.submit(grow, 200 << 20)
        assert large.result(support.TIMEOUT) == small
        assert bench.submit(os.getpid).result(support.TIMEOUT) != small
        support.assert_gone(small)
        assert only_record(large, Outcome.SUCCEEDED).pid == small
        assert bench.counters()["recycled"] == 1


@pytest.mark.parametrize(
    ("options", "more"), [({}, 0), ({"nice": None}, 0), ({"nice": 0}, 0), ({"nice": 1}, 1)]
)
def test_workers_are_as_nice_as_the_pool_is_told(tmp_path: Path, options: dict[str, Any], more: int) -> None:
    """Those of trusted code have the program's niceness unless a number is given."""
    with Bench(tmp_path, 1, **options) as bench:
        found = bench.submit(os.getpriority, os.PRIO_PROCESS, 0).result(support.TIMEOUT)
    assert found == os.getpriority(os.PRIO_PROCESS, 0) + more


def test_a_preloaded_module_is_imported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper imports what `preload` names, and each worker finds it there."""
    told = tmp_path / "told"
    (tmp_path / "preloaded_module.py").write_text(
        f"import os\nwith open({str(told)!r}, 'a') as file:\n    print(os.getpid(), file=file)\npid = os.getpid()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Bench(tmp_path, 2, preload=("preloaded_module", "tests.faults")) as bench:
        bench.assert_usable()
        for _ in range(3):
            assert bench.submit(_pid_of_preloaded).result(support.TIMEOUT) == helper_pid()
        assert told_pids(told) == [helper_pid()]


def _pid_of_preloaded() -> int:
    return int(sys.modules["preloaded_module"].pid)


def test_a_preloaded_numpy_is_seeded_in_each_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are forked from a process with numpy in it do not draw the same random numbers."""
    (tmp_path / "numpy").mkdir()
    (tmp_path / "numpy" / "__init__.py").touch()
    (tmp_path / "numpy" / "random.py").write_text(
        "import os\nseeded_in = []\ndef seed():\n    seeded_in.append(os.getpid())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Bench(tmp_path, 1, preload=("numpy.random",), max_tasks_per_child=1) as bench:
        for _ in range(2):
            pid, seeded_in = bench.submit(_pid_and_seeded_in).result(support.TIMEOUT)
            assert seeded_in == [pid]


def _pid_and_seeded_in() -> tuple[int, list[int]]:
    return os.getpid(), sys.modules["numpy.random"].seeded_in


def test_workers_are_started_on_demand(tmp_path: Path) -> None:
    """None before the first call, one and a spare for a call at a time, and all where all are needed."""
    before = set(support.children())
    with Bench(tmp_path, 4) as bench:
        assert set(support.children()) == before
        for n in range(20):
            assert bench.submit(faults.identity, n).result(support.TIMEOUT) == n
        assert bench.counters()["spawned"] <= 2
        gates = [bench.gate() for _ in range(4)]
        told = bench.path()
        held = [bench.submit(faults.wait_at_gate, gate, told) for gate in gates]
        assert len(set(told_pids(told, lines=4))) == 4
        for gate in gates:
            open_gate(gate)
        assert [future.result(support.TIMEOUT) for future in held] == ["through"] * 4


def test_after_a_kill_the_spare_takes_the_next_call(tmp_path: Path) -> None:
    """A kill costs no start: the next call runs in a worker that was ready before, and a new spare follows."""
    with Bench(tmp_path, 1) as bench:
        told = bench.path()
        hung = bench.submit(faults.ignore_signals, told)
        pid = told_pids(told)[0]
        ready = bench.ready_pids(1)
        gate, told = bench.gate(), bench.path()
        waiting = bench.submit(faults.wait_at_gate, gate, told)
        assert hung.cancel()
        assert told_pids(told)[0] in ready
        hung.wait_record(support.TIMEOUT)
        assert_reaped(pid)
        assert bench.ready_pids(1) != ready
        open_gate(gate)
        assert waiting.result(support.TIMEOUT) == "through"


IMPORTED = """
import os
from tests import faults
told = {told!r}
{more}
with open(told, "a") as file:
    print(os.getpid(), file=file)

def stay(gate):
    faults.wait_at_gate(gate)
    return os.getpid()
"""


def _call_from(bench: Bench, directory: Path, name: str, more: str = "") -> tuple[Any, str, ProcessFuture]:
    """Begin a call from a new module; return its function, where imports are told, and the call."""
    told, gate = bench.path("imported"), bench.gate()
    (directory / f"{name}.py").write_text(IMPORTED.format(told=told, more=more))
    module = importlib.import_module(name)
    Path(told).unlink()  # that was we
    future = bench.submit(module.stay, gate)
    told_pids(Path(told))
    return module.stay, told, future


def test_a_spare_has_imported_what_its_call_will_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the call that runs had to import is imported by the next worker before it is ready."""
    monkeypatch.syspath_prepend(tmp_path)
    with Bench(tmp_path, 1) as bench:
        stay, told, first = _call_from(bench, tmp_path, "imported_ahead")
        imported = set(told_pids(Path(told), lines=2))
        (spare,) = bench.ready_pids()
        assert imported == {spare, first._item.worker.pid}
        first.cancel()
        gate = bench.gate()
        second = bench.submit(stay, gate)
        open_gate(gate)
        assert second.result(support.TIMEOUT) == spare


def test_an_import_that_kills_a_spare_harms_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one starts without it, and no call hears of it."""
    monkeypatch.syspath_prepend(tmp_path)
    outside = (
        f"import procsched\nif procsched.current_run() is None and os.getpid() != {os.getpid()}: os._exit(3)"
    )
    with Bench(tmp_path, 1) as bench:
        _stay, _told, first = _call_from(bench, tmp_path, "imported_once", outside)
        assert bench.ready_pids()
        assert bench.counters()["spawned"] == 3
        assert bench.counters()["start_failures"] == 0
        first.cancel()
        assert bench.submit(faults.identity, 1).result(support.TIMEOUT) == 1


def test_an_initializer_that_fails_is_told_once_and_may_be_repaired(tmp_path: Path) -> None:
    """Each call that waits hears of it with its traceback; nothing is started while nobody calls."""
    flag = tmp_path / "works"
    with ProcessExecutor(1, initializer=faults.need_file, initargs=(str(flag),)) as executor:
        futures = [executor.submit(faults.add, n, n) for n in range(3)]
        for future in futures:
            error = future.exception(support.TIMEOUT)
            assert "FileNotFoundError" in str(error)
            assert "in need_file" in "".join([str(error.__cause__), *getattr(error, "__notes__", [])])
        tries = executor._core.pool.stats()[1]["spawned"]
        flag.touch()
        assert executor.submit(faults.add, 1, 1).result(support.TIMEOUT) == 2
        assert executor._core.pool.stats()[1]["spawned"] <= tries + 2
