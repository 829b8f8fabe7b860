"""How late a kill is: deadline to record, also while the parent is stuck, and deadline to the next run's end.

The deadline is when the pool says that the run began, plus its limit; a peer that does not say is taken at its job's
own first line, which is to its advantage. "Done" is when both are true: the caller has been told, and the process is
gone.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import subprocess
import sys
import time

from procsched._timerfd import timerfd_arm, timerfd_create
from tests.bench.actions import hang, noop
from tests.bench.framework import Bar, Figures, case, percentile
from tests.bench.peers import POOLS, TIMED_OUT, Board, Peer

LIMIT = 0.05  # seconds
KILLS = 60
SLOW_KILLS = {
    ("pebble", "ignore"): 3,
    ("pebble", "block"): 3,
    ("pebble-2ms", "ignore"): 3,
    ("pebble-2ms", "block"): 3,
}
STALL = 3  # seconds of the C call; also the longest that its victims could live


def summary(milliseconds: dict[str, list[float]]) -> Figures:
    """Return p50 and p99 of each list."""
    found = {}
    for name, values in milliseconds.items():
        found[f"{name}_p50"] = percentile(values, 0.5)
        found[f"{name}_p99"] = percentile(values, 0.99)
    return found


def wait_gone(pidfd: int, seconds: float) -> bool:
    """Wait until the process of a pid descriptor has ended."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def bare_loop(how: str, quick: bool) -> Figures:
    """Timer descriptor, SIGKILL, pid descriptor readable: what this machine can do."""
    kills = 10 if quick else KILLS
    board = Board(kills)
    timer = timerfd_create(time.CLOCK_MONOTONIC)
    late = []
    for slot in range(kills):
        pid = os.fork()
        if pid == 0:
            hang(board.path, slot, how)
        pidfd = os.pidfd_open(pid)
        board.wait(slot, 5.0)
        poller = select.epoll()
        poller.register(timer, select.EPOLLIN)
        deadline = time.monotonic() + LIMIT
        timerfd_arm(timer, deadline)
        poller.poll()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poller.unregister(timer)
        poller.register(pidfd, select.EPOLLIN)
        poller.poll()
        late.append((time.monotonic() - deadline) * 1000)
        os.waitpid(pid, 0)
        os.close(pidfd)
        poller.close()
    return summary({"done": late})


def deadline(peer: str, how: str, quick: bool) -> Figures:
    """Deadline to the caller's knowing, and to the process being gone; one hang after another on two workers."""
    kills = min(10 if quick else KILLS, SLOW_KILLS.get((peer, how), KILLS))
    board = Board(kills)
    pool = POOLS[peer](2)
    pool.warm(4)
    told, done, early, odd = [], [], 0, 0
    for slot in range(kills):
        token = pool.submit(hang, board.path, slot, how, timeout=LIMIT)
        seen = board.wait(slot, 5.0)
        assert seen is not None, "the job did not begin"
        pid, began = seen
        pidfd = os.pidfd_open(pid)
        outcome, _value, counted = pool.wait(token)
        at = time.monotonic()
        early += not wait_gone(pidfd, 0.0)
        wait_gone(pidfd, 10.0)
        gone = time.monotonic()
        os.close(pidfd)
        odd += outcome != TIMED_OUT
        start = began if counted is None else counted
        told.append((at - start - LIMIT) * 1000)
        done.append((max(at, gone) - start - LIMIT) * 1000)
    pool.close()
    return summary({"done": done, "told": told}) | {"alive_when_told": early, "not_timed_out": odd}


WATCHER = """
import json, os, select, sys, time
poller, names = select.poll(), {}
for pid in json.loads(sys.stdin.readline()):
    fd = os.pidfd_open(pid)
    names[fd] = pid
    poller.register(fd, select.POLLIN)
print("ready", flush=True)
died = {}
while names:
    for fd, _ in poller.poll():
        died[names.pop(fd)] = time.monotonic()
        poller.unregister(fd)
print(json.dumps(died), flush=True)
"""


def stuck_parent(peer: str, quick: bool) -> Figures:
    """Deadline to death while the parent's main thread is in one C call that keeps the GIL, seen from outside."""
    import ctypes

    victims, stalls, stall = (4, 1, 1) if quick else (8, 2, STALL)
    keep_gil = ctypes.PyDLL(None).sleep  # PyDLL, unlike CDLL, calls with the GIL held
    late = []
    for _ in range(stalls):
        board = Board(victims)
        pool = POOLS[peer](victims)
        pool.warm(2 * victims)
        limits = [0.6 + 0.3 * stall * number / victims for number in range(victims)]
        ways = ("sleep", "ignore") if victims > 4 else ("sleep",)  # most sleep, so that two CPUs are enough
        tokens = [
            pool.submit(
                hang, board.path, slot, ways[1] if slot == 3 and len(ways) > 1 else "sleep", timeout=limit
            )
            for slot, limit in enumerate(limits)
        ]
        begun = [board.wait(slot, 0.5) for slot in range(victims)]
        seen = [each for each in begun if each is not None]
        assert len(seen) == victims, "the jobs did not begin before the first deadline"
        watcher = subprocess.Popen(
            [sys.executable, "-S", "-c", WATCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert watcher.stdin is not None
        assert watcher.stdout is not None
        watcher.stdin.write(json.dumps([pid for pid, _ in seen]) + "\n")
        watcher.stdin.flush()
        watcher.stdout.readline()
        stalled_at = time.monotonic()
        keep_gil(stall)
        for token in tokens:
            pool.wait(token)
        died = json.loads(watcher.stdout.readline())
        watcher.wait()
        for (pid, began), limit in zip(seen, limits, strict=True):
            if began + limit > stalled_at:
                late.append((died[str(pid)] - began - limit) * 1000)
        pool.close()
    return summary({"gone": late}) | {"kills": len(late)}


def next_run(peer: str, quick: bool) -> Figures:
    """One worker: deadline of a hang to the end of the no-op that waits behind it."""
    kills = 10 if quick else KILLS
    board = Board(kills)
    pool: Peer = POOLS[peer](1)
    pool.warm(2)
    late = []
    for slot in range(kills):
        first = pool.submit(hang, board.path, slot, "loop", timeout=LIMIT)
        seen = board.wait(slot, 5.0)
        assert seen is not None, "the job did not begin"
        second = pool.submit(noop)
        _outcome, _value, counted = pool.wait(first)
        pool.wait(second)
        at = time.monotonic()
        late.append((at - (seen[1] if counted is None else counted) - LIMIT) * 1000)
    pool.close()
    return summary({"next": late})


KILLERS = ("procsched", "procsched-scheduler", "pebble", "pebble-2ms", "deadpool", "by hand")
for _how, _words in (
    ("loop", "that hangs in Python"),
    ("ignore", "that ignores every signal"),
    ("block", "that blocks every signal"),
):
    case(
        f"deadline-{_how}",
        f"deadline to record, the process being gone, of a run {_words}",
        peers={"bare loop": functools.partial(bare_loop, _how)}
        | {peer: functools.partial(deadline, peer, _how) for peer in KILLERS},
        units={"done_p50": "ms", "done_p99": "ms", "told_p50": "ms", "alive_when_told": ""},
        bars=tuple(
            Bar(f"record after the deadline, {name}", f"done_{name}", limit, "bare loop", ours)
            for ours in ("procsched", "procsched-scheduler")
            for name, limit in (("p50", 1.6), ("p99", 3.5))
        ),
    )
case(
    "stuck-parent",
    "deadline to process gone while the parent's main thread is in one 3 s C call",
    peers={
        peer: functools.partial(stuck_parent, peer)
        for peer in ("procsched", "procsched-scheduler", "pebble", "deadpool", "by hand")
    },
    units={"gone_p50": "ms", "gone_p99": "ms", "kills": ""},
    bars=tuple(
        Bar("gone while the parent is stuck, p99 in ms", "gone_p99", 100, ours=ours)
        for ours in ("procsched", "procsched-scheduler")
    ),
)
case(
    "next-run",
    "deadline to the next run done, one worker",
    peers={peer: functools.partial(next_run, peer) for peer in KILLERS},
    units={"next_p50": "ms", "next_p99": "ms"},
    bars=tuple(
        Bar("next run done after the deadline, p50 in ms", "next_p50", 3.0, ours=ours)
        for ours in ("procsched", "procsched-scheduler")
    ),
)
