"""What the operating system offers, each tried out in a child of the doctor's own: no pool, no scheduler.

The probes fork, so they must run while the process has one thread.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from procsched import _system, _timerfd

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final

LIMIT: Final = 2.0  # seconds after which a child of a probe has failed it
# Seconds after which a child of a probe is ended by its own alarm, whatever happened to the doctor.
NET: Final = 5
SHORT: Final = 0.02  # seconds: the timers that are tried


class Partly(str):
    """What a probe has found that works, but not each time it was tried."""

    __slots__ = ()


class MissingError(Exception):
    """This system does not do what was tried; the text says what happened instead."""


@dataclass(frozen=True)
class Probe:
    """One thing to try.

    Attributes:
        name: what it is called in this field.
        gives: what procsched makes of it.
        degraded: which promise is weaker without it, and how.
        attempt: tries it; returns what it saw, or raises.
    """

    name: str
    gives: str
    degraded: str
    attempt: Callable[[], str]


def need(feature: str) -> None:
    """Raise `MissingError` where `feature` is switched off or this kind of system has none."""
    if feature in os.environ.get("PROCSCHED_WITHOUT", "").split(","):
        raise MissingError("switched off by PROCSCHED_WITHOUT")
    if not _system.offers(feature):
        raise MissingError("this system has none")


def milliseconds(begun: float) -> str:
    """Return how long ago `begun` (steady time) is, for a person."""
    return f"{(time.monotonic() - begun) * 1e3:.1f} ms"


def in_child(body: Callable[[int], None]) -> tuple[int, int]:
    """Fork, run `body` with the write end of a pipe, exit. Return the child's pid and the read end."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            signal.alarm(NET)
            body(writer)
        finally:
            os._exit(0)
    os.close(writer)
    return pid, reader


def read_all(reader: int, limit: float = LIMIT) -> bytes | None:
    """Return what comes through a pipe until all of its writers are gone; None where that takes too long."""
    end = time.monotonic() + limit
    data = b""
    try:
        while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
            piece = os.read(reader, 4096)
            if not piece:
                return data
            data += piece
        return None
    finally:
        os.close(reader)


def end(pid: int) -> int:
    """Kill a child of ours, if it is still there, and return its wait status."""
    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the pid is still the child's
    return os.waitpid(pid, 0)[1]


def try_fork() -> str:
    """Fork, and hear from the child."""
    need("fork")
    begun = time.monotonic()
    pid, reader = in_child(lambda writer: _write(writer, b"here"))
    said = read_all(reader)
    end(pid)
    if said != b"here":
        raise MissingError("the child said nothing")
    return f"a child said so after {milliseconds(begun)}"


def try_pidfd() -> str:
    """Signal a child through its pid descriptor, and see by it that the child has ended."""
    need("pidfd")
    pid, reader = in_child(lambda _writer: signal.pause())
    os.close(reader)
    descriptor = os.pidfd_open(pid)
    try:
        begun = time.monotonic()
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if not _readable(descriptor):
            raise MissingError("the child's end was not seen")
        took = milliseconds(begun)
    finally:
        os.close(descriptor)
        status = end(pid)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGTERM:
        raise MissingError(f"the child ended otherwise, with status {status}")
    return f"a child was signalled, and seen to end after {took}"


def try_subreaper() -> str:
    """Let a child become a subreaper, and see whose child its orphaned grandchild then is."""
    need("subreaper")

    def body(writer: int) -> None:
        if not _system.become_subreaper():
            _write(writer, b"refused")
            return
        me = os.getpid()
        if os.fork() == 0:
            parent = os.getpid()
            if os.fork() == 0:
                while os.getppid() == parent:
                    time.sleep(0.0005)
                _write(writer, b"ours" if os.getppid() == me else b"lost")
            os._exit(0)
        for _ in range(2):
            os.waitpid(-1, 0)

    pid, reader = in_child(body)
    said = read_all(reader)
    end(pid)
    if said != b"ours":
        raise MissingError("prctl refused" if said == b"refused" else "an orphan went to somebody else")
    return "an orphan came to the process that had asked for it"


def try_parent_death() -> str:
    """Let a child with a child of its own exit, and see the grandchild die."""
    if sys.platform != "linux":
        raise MissingError("this system has none")

    def body(writer: int) -> None:
        me = os.getpid()
        ready, told = os.pipe()
        if os.fork() == 0:
            signal.alarm(NET)
            if _system.die_with_parent(me):
                os.write(told, b"x")
                signal.pause()  # holds the pipe open until it dies
            _write(writer, b"refused")
            os._exit(0)
        os.close(told)
        os.read(ready, 1)

    begun = time.monotonic()
    pid, reader = in_child(body)
    said = read_all(reader)
    os.waitpid(pid, 0)
    if said != b"":
        raise MissingError("the child lived on" if said is None else "prctl refused")
    return f"a child died with its parent, {milliseconds(begun)} after the start of both"


def try_kernel_timer() -> str:
    """Arm the timer in a child that then never leaves its loop, and see the child die."""
    need("kernel_timer")

    def body(writer: int) -> None:
        timer = _system.open_kernel_timer()
        if timer is None:
            _write(writer, b"refused")
            return
        at = time.monotonic() + SHORT
        timer.arm(at)
        _write(writer, repr(at).encode())
        while True:
            pass

    pid, reader = in_child(body)
    said = read_all(reader)
    now = time.monotonic()
    status = end(pid)
    if not said or said == b"refused":
        raise MissingError("timer_create refused" if said else "nothing was killed")
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        raise MissingError(f"the child ended otherwise, with status {status}")
    return f"a busy loop was killed {(now - float(said)) * 1e3:.1f} ms after its time"


def try_timerfd() -> str:
    """Wait for a timer descriptor."""
    need("timerfd")
    descriptor = _timerfd.timerfd_create(time.CLOCK_MONOTONIC)
    try:
        at = time.monotonic() + SHORT
        _timerfd.timerfd_arm(descriptor, at)
        if not _readable(descriptor) or _timerfd.timerfd_read(descriptor) != 1:
            raise MissingError("it did not become readable")
        late = time.monotonic() - at
    finally:
        os.close(descriptor)
    return f"readable {late * 1e3:.2f} ms after its time"


def try_clock_watch() -> str:
    """Arm a timer descriptor that is cancelled when the wall clock is set. Setting the clock is not tried."""
    need("timerfd")
    descriptor = _timerfd.timerfd_create(time.CLOCK_REALTIME)
    try:
        _timerfd.timerfd_arm(descriptor, time.time() + 3600.0, cancel_on_set=True)
    finally:
        os.close(descriptor)
    return "the kernel accepts TFD_TIMER_CANCEL_ON_SET"


def try_memfd() -> str:
    """Write through one mapping of a memory file, and read in a child."""
    need("memfd")
    descriptor = os.memfd_create("procsched-doctor", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    with mmap.mmap(descriptor, mmap.PAGESIZE) as page:
        os.close(descriptor)
        page[:5] = b"hello"
        pid, reader = in_child(lambda writer: _write(writer, page[:5]))
        said = read_all(reader)
        end(pid)
    if said != b"hello":
        raise MissingError("the child did not see what was written")
    return "a child read what the parent wrote"


def try_eventfd() -> str:
    """Wake up through an event descriptor."""
    need("eventfd")
    descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        os.eventfd_write(descriptor, 1)
        if not _readable(descriptor) or os.eventfd_read(descriptor) != 1:
            raise MissingError("it did not become readable")
    finally:
        os.close(descriptor)
    return "written, polled and read"


def try_proc() -> str:
    """Find a child in the list that the kernel keeps."""
    need("proc")
    pid, reader = in_child(lambda _writer: signal.pause())
    os.close(reader)
    try:
        listed = _system.process_children(os.getpid())
    finally:
        end(pid)
    if pid not in listed:
        raise MissingError("/proc/PID/task/TID/children does not list a child: CONFIG_PROC_CHILDREN is off")
    return "the list of children has a child in it"


def _write(writer: int, data: bytes) -> None:
    os.write(writer, data)


def _readable(descriptor: int) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(LIMIT * 1000))


SYSTEM_PROBES: Final = (
    Probe(
        "fork",
        "workers start within milliseconds and share the memory of a clean helper",
        "there is no ProcessPool; ThreadPool and InlinePool remain, which cannot stop anything",
        try_fork,
    ),
    Probe(
        "pid descriptors",
        "a signal never hits a stranger, and a death wakes whoever waits for it",
        "signals go by number, sent only by the process that reaps; a kill takes the way through the helper",
        try_pidfd,
    ),
    Probe(
        "child subreaper",
        "what a run started dies with it, daemons in sessions of their own too",
        "process groups and a walk over the process table: what leaves both between two looks slips through",
        try_subreaper,
    ),
    Probe(
        "parent-death signal",
        "workers die with the helper, in the same instant",
        "they live until the guard has found them",
        try_parent_death,
    ),
    Probe(
        "kernel timer",
        "a run ends within 50 ms of its deadline also while the parent is stuck in a C call or stopped",
        "while the parent is stuck or stopped, its deadlines wait for it",
        try_kernel_timer,
    ),
    Probe(
        "timer descriptor",
        "deadlines are kept to a fraction of a millisecond",
        "they are kept to the whole milliseconds that poll(2) counts in",
        try_timerfd,
    ),
    Probe(
        "clock watch",
        "a step of the wall clock is noticed at once, without polling: cron and one-time tasks follow",
        "it is noticed at the next wake-up, or by Scheduler.wake()",
        try_clock_watch,
    ),
    Probe(
        "memory file",
        "what parent and workers share has no name in the file system",
        "it is a temporary file, removed while it is in use",
        try_memfd,
    ),
    Probe(
        "event descriptor",
        "a thread is woken by one descriptor, and who waits for a result takes it from the worker",
        "by a pipe: one descriptor more; results come by way of the I/O thread",
        try_eventfd,
    ),
    Probe(
        "/proc",
        "descendants, memory and umask are read from the kernel",
        "the tree is walked by psutil, and records have no peak memory",
        try_proc,
    ),
)
