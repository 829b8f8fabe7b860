"""An idle pool, and an idle scheduler, make no wake-up at all, in the parent or in their children.

They are watched for a while, and then the kernel is asked for how long they would go on to sleep.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from procsched import CronSchedule, Limits, ProcessExecutor
from tests import faults, support
from tests.pools import Bench, guard_pid, helper_pid, open_gate
from tests.schedulers import Rig

WINDOW = 3.0  # seconds of real time: what does nothing can only be watched doing it
IDLE = 10.0  # seconds that nothing wakes by itself, as far as the kernel knows what it waits for

# System calls of x86_64 with a time, and where that is among the arguments: poll, epoll_wait, epoll_pwait; and as a
# struct timespec: select, nanosleep, rt_sigtimedwait, clock_nanosleep, pselect6, ppoll, and futex, which is given an
# instant (futex(2), FUTEX_WAIT_BITSET).
FUTEX = 202
FUTEX_CLOCK_REALTIME = 0x100
MILLISECONDS = {7: 2, 232: 3, 281: 3}
TIMESPECS = {23: 4, 35: 0, 128: 2, 230: 2, 270: 4, 271: 2, FUTEX: 3}

Look = dict[str, tuple[int, str, str]]
"""Context switches, state and name of threads, by their ids."""


def context_switches(pid: int) -> Look:
    """Look at each thread of a process."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = [line.split() for line in (task / "status").read_text().splitlines()]
        switches = sum(int(line[1]) for line in lines if "_ctxt_switches" in line[0])
        state = next(line[1] for line in lines if line[0] == "State:")
        found[task.name] = (switches, state, (task / "comm").read_text().strip())
    return found


def threads_of_ours(before: set[str]) -> set[str]:
    """Return the thread ids that have come to this process since `before`."""
    return set(os.listdir("/proc/self/task")) - before


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
def test_an_idle_pool_never_wakes(tmp_path: Path) -> None:
    """Two workers, a guard, a helper and the parent's threads: not one context switch while nothing happens."""
    before = set(os.listdir("/proc/self/task"))
    with Bench(tmp_path, 2) as bench:
        bench.assert_usable()
        bench.submit(faults.nap, 0.0, timeout=100.0).result(support.TIMEOUT)
        bench.submit(faults.nap, 0.0, limits=Limits(memory=1 << 40)).result(support.TIMEOUT)
        done = []
        last = bench.submit(faults.add, 1, 1)
        last.add_done_callback(done.append)
        support.eventually(lambda: done)
        bench.idle_pair()
        ours = threads_of_ours(before)
        assert len(ours) == 2, ours  # one for input and output, one for callbacks

        def look() -> Look:
            found = {tid: value for tid, value in context_switches(os.getpid()).items() if tid in ours}
            for pid in [guard_pid(), helper_pid(), *bench.pids()]:
                found.update(context_switches(pid))
            return found

        assert len(watch_idle(look)) >= 6


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
def test_an_idle_scheduler_never_wakes(tmp_path: Path) -> None:
    """A one-shot in twelve hours and a nightly cron in Berlin: two workers, helper, guard and parent stay asleep."""
    before = set(os.listdir("/proc/self/task"))
    with Rig(tmp_path, 2) as rig:
        gates, told = [rig.gate(), rig.gate()], rig.path()
        tasks = [rig.at_once(faults.wait_at_gate, gate, told, timeout=100.0, grace=1.0) for gate in gates]
        support.wait_for_file(told, lines=2)
        for gate in gates:
            open_gate(gate)
        assert all(rig.wait(task).ok for task in tasks)
        rig.scheduler.schedule_after(faults.nap, 12 * 3600.0, args=(0.0,))
        rig.scheduler.schedule(
            "nightly", faults.nap, CronSchedule("0 3 * * *", tz="Europe/Berlin"), args=(0.0,)
        )
        rig.settle()
        support.eventually(lambda: len(rig.workers("idle")) >= 2 and not rig.workers("starting"))
        ours = threads_of_ours(before)
        assert len(ours) == 4, ours  # the timer, the clock's watch, input and output, the listener

        def look() -> Look:
            found = {tid: value for tid, value in context_switches(os.getpid()).items() if tid in ours}
            for pid in [guard_pid(), helper_pid(), *rig.workers("idle")]:
                found.update(context_switches(pid))
            return found

        assert len(watch_idle(look)) >= 8
        assert rig.scheduler.pending() == 2


def watch_idle(look: Callable[[], Look]) -> Look:
    """Wait until all sleep and two looks agree, then demand that nothing happens."""
    previous = look()
    for _ in support.looks(support.TIMEOUT):
        now = look()
        # On a busy machine one that has said its last word may be waiting for a processor to go to sleep on.
        if now == previous and all(state == "S" for _switches, state, _name in now.values()):
            break
        previous = now
    time.sleep(WINDOW)
    assert look() == previous
    for tid, seen in previous.items():
        pid = thread_group(tid)
        assert sleeps_for(tid) > IDLE, seen
        left = [timer.left for timer in support.timers(pid).values()]
        assert all(each == 0 or each > IDLE for each in left), left
    return previous


def thread_group(tid: str) -> int:
    """Return the process that a thread is of."""
    lines = Path(f"/proc/{tid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Tgid:"))


def sleeps_for(tid: str) -> float:
    """Return the seconds after which a thread in a system call goes on although nothing happens; infinite for never.

    Of a call with a time that counts from its begin it is the whole time.
    """
    if os.uname().machine != "x86_64":
        return math.inf  # the numbers below are of that
    try:
        words = Path(f"/proc/{tid}/syscall").read_text().split()
    except (FileNotFoundError, PermissionError):  # a kernel, or a container, that does not tell
        return math.inf
    if words == ["running"]:
        return 0.0
    number, *arguments = (int(word, 0) for word in words)
    if number in MILLISECONDS:
        milliseconds = arguments[MILLISECONDS[number]] & 0xFFFFFFFF
        return math.inf if milliseconds == 0xFFFFFFFF else milliseconds / 1e3
    address = arguments[TIMESPECS[number]] if number in TIMESPECS else 0
    if address == 0:
        return math.inf
    with open(f"/proc/{tid}/mem", "rb") as memory:
        memory.seek(address)
        seconds, fraction = struct.unpack("@ll", memory.read(16))
    if number != FUTEX:
        return float(seconds)
    clock = time.CLOCK_REALTIME if arguments[1] & FUTEX_CLOCK_REALTIME else time.CLOCK_MONOTONIC
    return float(seconds + fraction / 1e9 - time.clock_gettime(clock))


def test_an_unused_executor_has_nothing(tmp_path: Path) -> None:
    """Until its first call an executor has no thread, no process and no descriptor."""
    before = (set(os.listdir("/proc/self/task")), os.listdir("/proc/self/fd"), support.children())
    with ProcessExecutor(2):
        assert before == (set(os.listdir("/proc/self/task")), os.listdir("/proc/self/fd"), support.children())
