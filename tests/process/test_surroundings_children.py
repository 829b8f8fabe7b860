"""Exit statuses: the program's own children are its own, and ours are ours, whoever reaps how."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests import hosts
from tests.process.test_surroundings import HEAD, KINDS, cases, host

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("when", "kind"), cases("before", "after"))
def test_sigchld_is_ignored(kind: str, when: str) -> None:
    """Where the system reaps for the program, nobody can be asked how he ended, and all goes on."""
    ignore = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    script = HEAD + (
        (ignore if when == "before" else "")
        + "user = ProcessExecutor(2) if KIND == 'executor' else Scheduler(2)\n"
        + "other = ProcessExecutor(1); other.submit(abs, 1).result(30)\n"
        + (ignore if when == "after" else "")
        + "print(hosts.USES[KIND](user)); other.shutdown()\nassert hosts.no_children()\n"
    )
    assert host(script, kind) == hosts.USED


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_that_reaps_everybody(kind: str) -> None:
    """A server whose handler calls waitpid(-1) takes our guard's status, and it does no harm; its own it gets."""
    script = HEAD + (
        "reaped = hosts.reap_by_handler()\n"
        "codes = {}\n"
        "def child(code):\n"
        "    pid = os.fork()\n"
        "    if pid == 0: os._exit(code)\n"
        "    codes[pid] = code\n"
        "child(1); outcome = hosts.use(KIND); child(2); outcome = hosts.use(KIND); child(3)\n"
        "support.eventually(lambda: codes.items() <= dict(reaped).items())\n"
        "support.eventually(hosts.no_children)\n"
        "print(outcome)\n"
    )
    assert host(script, kind) == hosts.USED


@pytest.mark.parametrize("kind", KINDS)
def test_programs_started_in_other_threads(kind: str) -> None:
    """`subprocess` and os.system in other threads hear how their programs ended, each time."""
    script = HEAD + (
        "wrong, done, over = [], [], threading.Event()\n"
        "def start():\n"
        "    while not over.is_set():\n"
        "        done.append(1)\n"
        "        wrong.extend(c for c in [subprocess.call(['/bin/sh', '-c', 'exit 7'])] if c != 7)\n"
        "        wrong.extend(c for c in [os.waitstatus_to_exitcode(os.system('exit 3'))] if c != 3)\n"
        "threads = [threading.Thread(target=start) for _ in range(2)]\n"
        "for thread in threads: thread.start()\n"
        "for _ in range(3): outcome = hosts.use(KIND)\n"
        "over.set()\n"
        "for thread in threads: thread.join()\n"
        "assert not wrong and len(done) > 2, (wrong, done)\n"
        "assert hosts.no_children()\n"
        "print(outcome)\n"
    )
    assert host(script, kind) == hosts.USED


WATCHERS = ("ThreadedChildWatcher", "PidfdChildWatcher", "SafeChildWatcher", "FastChildWatcher")


@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="asyncio has no child watchers to choose from any more"
)
@pytest.mark.parametrize(("watcher", "kind"), cases(*WATCHERS))
def test_a_child_watcher_of_asyncio(kind: str, watcher: str) -> None:
    """Each of them hears how the loop's own programs ended. The fast one reaps everybody, and logs whom it met."""
    script = HEAD + (
        "import logging, warnings\n"
        "logging.getLogger('asyncio').setLevel(logging.CRITICAL)\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "async def main():\n"
        f"    watcher = asyncio.{watcher}()\n"
        "    if hasattr(watcher, 'attach_loop'): watcher.attach_loop(asyncio.get_running_loop())\n"
        "    asyncio.get_event_loop_policy().set_child_watcher(watcher)\n"
        "    async def programs():\n"
        "        codes = []\n"
        "        while not over.is_set():\n"
        "            program = await asyncio.create_subprocess_exec('/bin/sh', '-c', 'exit 5')\n"
        "            codes.append(await program.wait())\n"
        "        return codes\n"
        "    with watcher:\n"
        "        over = asyncio.Event()\n"
        "        task = asyncio.create_task(programs())\n"
        "        for _ in range(2): outcome = await asyncio.to_thread(hosts.use, KIND)\n"
        "        over.set()\n"
        "        codes = await task\n"
        "    assert codes and set(codes) == {5}, codes\n"
        "    return outcome\n"
        "print(asyncio.run(main()))\n"
        "assert hosts.no_children()\n"
    )
    assert host(script, kind) == hosts.USED


# --- as PID 1 of a container ------------------------------------------------------------------------------------------

CONTAINER = ("unshare", "--fork", "--pid", "--mount-proc")


def has_containers() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    return subprocess.run([*CONTAINER, "true"], capture_output=True).returncode == 0


needs_containers = pytest.mark.skipif(
    not has_containers(), reason="no process namespaces here, or not for us"
)

STRANGER = """
assert os.getpid() == 1
gate_read, gate_write = os.pipe()
middle = os.fork()
if middle == 0:  # a program whose own child is left to us
    if os.fork(): os._exit(4)
    os.close(gate_write); os.read(gate_read, 1); os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(middle, 0)[1]) == 4
own = subprocess.Popen(["/bin/sh", "-c", "exit 6"])
from procsched import _system
strangers = set(_system.process_children(1))

def check():
    assert own.wait() == 6
    os.write(gate_write, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(-1, 0)[1]) == 9
    assert hosts.no_children()
"""


@needs_containers
@pytest.mark.parametrize("kind", KINDS)
def test_as_pid_1(kind: str) -> None:
    """Whatever is left to a program that is its own init, and is not ours, is for the program to reap."""
    script = HEAD + STRANGER + "print(hosts.use(KIND))\ncheck()\n"
    assert host(script, kind, prefix=CONTAINER) == hosts.USED


@needs_containers
@pytest.mark.parametrize("victims", ["guard", "helper", "guard,helper", "helper,guard"])
def test_as_pid_1_whose_guard_or_helper_is_killed(victims: str) -> None:
    """Helper and workers are left to the program then, which reaps them, and nobody else."""
    script = HEAD + STRANGER + (
        "import logging; logging.disable()\n"
        "def zombies():\n"
        "    stat = lambda pid: open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[0]\n"
        "    return [pid for pid in _system.process_children(1) if stat(pid) == 'Z' and pid not in strangers]\n"
        "told = tempfile.mktemp()\n"
        "with ProcessExecutor(2) as executor:\n"
        "    lost = executor.submit(faults.sleep, told)\n"
        "    support.wait_for_file(told)\n"
        "    guard = next(pid for pid in _system.process_children(1) if pid not in strangers)\n"
        "    helper = _system.process_children(guard)[0]\n"
        f"    for victim in ({victims},): os.kill(victim, signal.SIGKILL)\n"
        "    print(lost.wait_record(30).outcome)\n"
        "    assert executor.submit(abs, -1).result(30) == 1\n"
        "    support.eventually(lambda: not zombies(), what='no zombie is left')\n"
        "os.unlink(told)\n"
        "assert set(_system.process_children(1)) == strangers\n"
        "check()\n"
    )  # fmt: skip
    assert host(script, "executor", prefix=CONTAINER) == "lost"
