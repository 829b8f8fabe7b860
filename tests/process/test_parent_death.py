"""When the parent has been killed, nothing of it is left."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests import faults, support
from tests.pools import Parent, guard_pid, helper_pid, stop, told_pids

KINDS = [function.__name__ for function in faults.LEAVERS]
SUBREAPER = pytest.mark.needs("subreaper", "daemons that a run has left end with a parent that is killed")
GROUPED = ["grandchild", "shell"]  # those in the process group of their worker
each_kind = pytest.mark.parametrize(
    "kinds", [pytest.param(KINDS, marks=SUBREAPER, id="all"), pytest.param(GROUPED, id="grouped")]
)

BUSY = """
import sys
from procsched import ProcessExecutor
from tests import faults, support

told, *kinds = sys.argv[1:]
executor = ProcessExecutor(3)
for _ in range(2):
    executor.submit(faults.leave, kinds, told, "hang")
executor.submit(faults.ignore_signals, told)
for _ in range(10):
    executor.submit(faults.add, 1, 2)


def spare():
    return [worker.pid for worker in executor.stats().workers if worker.state == "idle"]


support.tell(told, *support.eventually(spare))
faults.sleep(told)
"""
TOLD = 5  # lines: of the three calls, the idle worker, and the parent


def all_of_this_run() -> list[int]:
    """Return every live process that carries the mark of this run and is not the test itself."""
    return support.orphans()


def assert_nothing_is_left(pids: list[int]) -> None:
    """Fail unless all of `pids` are gone, and nothing else that carries this run's mark is alive."""
    support.assert_gone(*pids)
    support.eventually(lambda: not support.orphans(), what="no process of the killed parent is left")


@each_kind
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_nothing_outlives_a_killed_parent(tmp_path: Path, signum: int, kinds: list[str]) -> None:
    """A parent that dies takes busy, idle and stubborn workers along, with grandchildren in their own sessions."""
    told = tmp_path / "told"
    with Parent(tmp_path, BUSY, arguments=(str(told), *kinds)) as parent:
        pids = told_pids(told, lines=TOLD)
        support.eventually(lambda: len(support.children()) >= len(pids))
        below = support.children()
        parent.signal(signum)
        parent.process.wait(support.TIMEOUT)
        assert_nothing_is_left([*pids, *below])


STARTING = """
import sys
from procsched import ProcessExecutor
from tests import faults, support

told, stop, delay = sys.argv[1:]
executor = ProcessExecutor(4)
futures = [executor.submit(faults.tell_pid, told) for _ in range(50)]
for _ in range(int(delay)):
    pass
support.tell(told, "now")
faults.sleep(stop)
"""


@pytest.mark.parametrize("delay", [0, 100_000, 400_000, 1_000_000, 3_000_000])
def test_nothing_outlives_a_parent_that_is_killed_while_workers_start(tmp_path: Path, delay: int) -> None:
    """SIGKILL of the parent between the start of the guard and the first result leaves nothing."""
    told = tmp_path / "told"
    arguments = (str(told), str(tmp_path / "stop"), str(delay))
    with Parent(tmp_path, STARTING, arguments=arguments) as parent:
        support.wait_for_file(told)
        below = support.children()
        parent.kill()
        assert_nothing_is_left(below)


FORKED = """
import os, signal, sys
from procsched import ProcessExecutor
from tests import faults, support

told = sys.argv[1]
executor = ProcessExecutor(2)
executor.submit(faults.leave, ["daemon"], told, "hang")
support.wait_for_file(told)
if os.fork() == 0:
    # A fork of the parent has copies of all descriptors: their end is not seen.
    support.tell(told, "fork", os.getpid())
    while True:
        signal.pause()
faults.sleep(told)
"""


@SUBREAPER
@pytest.mark.needs("pidfd", "the end of the parent is noticed although a fork of it lives")
def test_nothing_outlives_a_parent_of_which_a_fork_lives(tmp_path: Path) -> None:
    """The parent's death is seen by its pid descriptor, also where a fork of it keeps its sockets open."""
    told = tmp_path / "told"
    with Parent(tmp_path, FORKED, arguments=(str(told),)) as parent:
        lines = support.wait_for_file(told, lines=3).splitlines()
        pids = [int(word) for word in lines[0].split()]
        fork = next(int(line.split()[1]) for line in lines if line.startswith("fork"))
        parent.kill()
        support.assert_gone(*pids)
        os.kill(fork, signal.SIGKILL)
        assert_nothing_is_left([fork])


@pytest.mark.needs(
    "pidfd", "what a run has left ends also when guard or helper were killed before the parent"
)
@pytest.mark.parametrize(
    ("victims", "kinds"),
    [
        pytest.param("guard", KINDS, marks=SUBREAPER),
        pytest.param("guard", GROUPED),
        pytest.param("guard and parent", KINDS, marks=SUBREAPER),
        pytest.param("guard and parent", GROUPED),
        # What the helper's workers leave nobody else can find where it does not come to the guard.
        pytest.param("helper", KINDS, marks=SUBREAPER),
        pytest.param("helper and parent", KINDS, marks=SUBREAPER),
    ],
)
def test_nothing_outlives_two_deaths(tmp_path: Path, victims: str, kinds: list[str]) -> None:
    """Guard or helper may die together with the parent: whoever is left ends the rest."""
    import psutil

    told = tmp_path / "told"
    with Parent(tmp_path, BUSY, arguments=(str(told), *kinds)) as parent:
        pids = told_pids(told, lines=TOLD)
        guard = psutil.Process(parent.process.pid).children()[0]
        helper = guard.children()[0]
        below = support.children()
        if "guard" in victims:
            guard.kill()
        else:
            helper.kill()
        if "parent" in victims:
            parent.kill()
            assert_nothing_is_left([*pids, *below])
        else:
            support.assert_gone(*[pid for pid in pids if pid != parent.process.pid], guard.pid, helper.pid)
            parent.kill()
            assert_nothing_is_left([])


LARGE = """
import sys
from procsched import ProcessExecutor
from tests import faults, support

told, gate = sys.argv[1:]
executor = ProcessExecutor(2)
done = executor.submit(bytes, 1 << 20)
done.wait_record()  # the result waits to be loaded
for number in range(6):
    executor.submit(faults.leave_line, told, str(number), gate, bytes(1 << 20))
support.wait_for_file(told, lines=2)
support.tell(told, "parent")
faults.sleep(told)
"""


@pytest.mark.parametrize("without", ["", "memfd"])
def test_nothing_named_is_left_in_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: str
) -> None:
    """Large arguments and results on their way have no name in any file system, and no temporary file stays."""
    told, place, gate = tmp_path / "told", tmp_path / "tmp", tmp_path / "gate"
    place.mkdir()
    os.mkfifo(gate)
    monkeypatch.setenv("TMPDIR", str(place))  # others use that of the system meanwhile
    monkeypatch.setenv("PROCSCHED_WITHOUT", without)
    with Parent(tmp_path, LARGE, arguments=(str(told), str(gate))) as parent:
        support.wait_for_file(told, lines=4)
        ours = [parent.process.pid, *support.children()]
        held = {pid: open_files(pid) for pid in ours}
        assert len(ours) >= 5
        assert any("memfd:procsched-parcel" in name for name in held[parent.process.pid]) is (not without)
        named = {name for names in held.values() for name in names if not name.endswith(" (deleted)")}
        assert not {name for name in named if name.startswith(("/dev/shm", str(place)))}
        parent.kill()
        assert_nothing_is_left(ours)
    assert not list(place.iterdir())


def open_files(pid: int) -> set[str]:
    """Return what a process has open or mapped, by name."""
    links = [*Path(f"/proc/{pid}/fd").iterdir(), *Path(f"/proc/{pid}/map_files").iterdir()]
    found = set()
    for link in links:
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(link))
    return found


@each_kind
def test_a_stopped_parent_that_is_killed_leaves_nothing(tmp_path: Path, kinds: list[str]) -> None:
    """A parent that is stopped first, and killed then, leaves nothing either."""
    told = tmp_path / "told"
    with Parent(tmp_path, BUSY, arguments=(str(told), *kinds)) as parent:
        pids = told_pids(told, lines=TOLD)
        parent.signal(signal.SIGSTOP)
        below = support.children()
        parent.kill()
        assert_nothing_is_left([*pids, *below])


@each_kind
@pytest.mark.needs("pidfd", "the end of the parent is noticed by a guard and a helper that are stopped")
def test_nothing_outlives_a_parent_whose_guard_and_helper_are_stopped(
    tmp_path: Path, kinds: list[str]
) -> None:
    """Those who are to end the rest may be stopped when the parent is killed: the kernel has them go on."""
    told = tmp_path / "told"
    with Parent(tmp_path, BUSY, arguments=(str(told), *kinds)) as parent:
        pids = told_pids(told, lines=TOLD)
        below = support.children()
        for pid in (guard_pid(parent.process.pid), helper_pid(parent.process.pid)):
            stop(pid)
        parent.kill()
        assert_nothing_is_left([*pids, *below])
