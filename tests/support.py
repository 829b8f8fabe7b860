"""Helpers for tests: waiting without sleeping, and seeing what a test left behind.

Nothing here sleeps for a fixed time. Where the system can tell (a process that ends), it is asked to;
where only looking helps, `eventually` looks again and again until a deadline that only a hang reaches.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    import psutil

T = TypeVar("T")

TIMEOUT = float(os.environ.get("PROCSCHED_TEST_TIMEOUT", "10"))
"""Seconds after which a wait is a failure. No healthy test comes near it, also on a busy machine."""

LEAK_GRACE = 5.0
"""Seconds that threads, children and descriptors get to go away after a test has returned."""

_LOOK_AGAIN = (0.001, 0.05)
"""Seconds between two looks at what cannot be waited for: at first, and at most."""

RUN_MARK = "PROCSCHED_TEST_RUN"
"""Environment variable that every process below this run of pytest carries."""


class Deadline:
    """A point in steady time. `Deadline(5).remaining()` never goes below zero."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        self.timeout = timeout
        self._end = time.monotonic() + timeout

    def remaining(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        """True once nothing is left."""
        return self.remaining() == 0.0


def looks(timeout: float) -> Iterator[None]:
    """Yield at growing intervals until `timeout` seconds have passed, the last time exactly then."""
    deadline = Deadline(timeout)
    pause, longest = _LOOK_AGAIN
    nobody = threading.Event()
    while True:
        over = deadline.passed
        yield
        if over:
            return
        nobody.wait(min(pause, deadline.remaining()))
        pause = min(pause * 2, longest)


@contextlib.contextmanager
def high_descriptors() -> Iterator[None]:
    """Have each further descriptor of this process above 1023, which select(2) does not take."""
    import resource  # here, for there is none on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while taken[-1] < 1023:
            taken.append(os.dup(taken[0]))
        yield
    finally:
        for each in taken:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def eventually(predicate: Callable[[], T], timeout: float = TIMEOUT, what: str = "") -> T:
    """Return the first true value of `predicate()`; fail the test if there is none within `timeout`.

    For conditions that can only be looked at. Where an event, a future or a pid can be waited for, wait
    for that instead.
    """
    value = predicate()
    for _ in looks(timeout):
        value = predicate()
        if value:
            return value
    text = what or getattr(predicate, "__name__", repr(predicate))
    raise AssertionError(f"not within {timeout:g} s: {text} (last value: {value!r})")


def process_gone(pid: int, timeout: float = TIMEOUT) -> bool:
    """Return whether process `pid` has ended, waiting up to `timeout` seconds for it.

    A zombie has ended: who has to reap it is another question. Where there are pid descriptors the
    kernel wakes us, without polling. `pid` may be anybody's, not only our child.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError) as error:
        # EINVAL: since Linux 6.x also for a thread that is not a leader; ENOSYS: no pid descriptors here.
        if isinstance(error, OSError) and error.errno not in (errno.EINVAL, errno.ENOSYS):
            raise
        return any(_has_ended(pid) for _ in looks(timeout))
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(timeout * 1000))
    finally:
        os.close(descriptor)


def _has_ended(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_gone(*pids: int, timeout: float = TIMEOUT) -> None:
    """Fail the test unless all of `pids` have ended within `timeout` seconds in all."""
    deadline = Deadline(timeout)
    alive = [pid for pid in pids if not process_gone(pid, deadline.remaining())]
    assert not alive, "still alive:\n" + "\n".join(f"  {describe_process(pid)}" for pid in alive)


def wait_for_file(path: str | os.PathLike[str], timeout: float = TIMEOUT, *, lines: int = 1) -> str:
    """Return the text of the file at `path` once it holds `lines` whole lines.

    The way in which an action in a child tells the test where it is: it appends a line. A line without
    its newline is still being written and does not count.
    """
    file = Path(path)
    text = ""

    def complete() -> bool:
        nonlocal text
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return False
        return text.count("\n") >= lines

    eventually(complete, timeout, f"{file} holds {lines} line(s)")
    return text


def tell(path: str | os.PathLike[str], *words: object) -> None:
    """Append one line to the file at `path` in one write. For actions in children; see `wait_for_file`."""
    line = " ".join(map(str, words)) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


class Scratch:
    """A directory of a test, with names for files that do not exist yet."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._names = 0

    def path(self, name: str = "") -> str:
        """Return the path of a file that does not exist yet."""
        self._names += 1
        return str(self.directory / f"{self._names}-{name or 'file'}")

    def gate(self) -> str:
        """Return the path of a new FIFO for `faults.wait_at_gate`."""
        path = self.path("gate")
        os.mkfifo(path)
        return path


def hang_in_c(seconds: float) -> None:
    """Sit in one C call for `seconds` without ever releasing the GIL."""
    import ctypes

    library = ctypes.PyDLL(None)  # PyDLL, unlike CDLL, keeps the GIL
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:  # usleep may be cut short by a signal
        library.usleep(min(int(left * 1e6) + 1, 999_999_999))


class Timer(NamedTuple):
    """A timer descriptor of Linux, as proc(5) shows it."""

    clock: int
    flags: int
    left: float  # seconds, 0 where it is disarmed or has expired
    ticks: int  # how often it has expired since the last look


def timers(pid: int) -> dict[int, Timer]:
    """Return the timer descriptors of a process by number."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of this very listing
            if os.readlink(f"/proc/{pid}/fd/{name}") == "anon_inode:[timerfd]":
                lines = Path(f"/proc/{pid}/fdinfo/{name}").read_text().splitlines()
                info = dict(line.split(":", 1) for line in lines)
                seconds, nanoseconds = map(int, info["it_value"].strip(" ()").split(","))
                left = seconds + nanoseconds / 1e9
                found[int(name)] = Timer(
                    int(info["clockid"]), int(info["settime flags"], 8), left, int(info["ticks"])
                )
    return found


# --- what a test left behind -------------------------------------------------------------------------


class Snapshot:
    """Threads, children and descriptors of this process at one moment.

    Orphans are processes that carry this run's mark, are nobody's below us any more, and are alive.
    """

    def __init__(self) -> None:
        self.threads = {thread: thread.name for thread in threading.enumerate()}
        self.children = set(children())
        self.descriptors = _descriptors()
        self.reaped = _reaped()

    def leaks(self) -> list[str]:
        """Return a line for each thing that is here now and was not at the snapshot."""
        found = [
            f"thread {thread.name!r} ({'daemon, ' if thread.daemon else ''}ident {thread.ident})"
            for thread in threading.enumerate()
            if thread not in self.threads and thread.is_alive() and not _allowed_thread(thread)
        ]
        below = [pid for pid in children() if pid not in self.children]
        found += [f"child {describe_process(pid)}" for pid in below]
        if _reaped() != self.reaped:  # a child has come and gone: it may have left children of its own
            found += [f"orphan {describe_process(pid)}" for pid in orphans() if pid not in below]
        now = _descriptors()
        found += [
            f"descriptor {number} -> {target}"
            for number, target in sorted(now.items())
            if self.descriptors.get(number) != target and not _allowed_descriptor(target)
        ]
        return found

    def wait_leaks(self, grace: float = LEAK_GRACE) -> list[str]:
        """Return the leaks that are left after at most `grace` seconds; at once if there are none."""
        found = self.leaks()
        if found:
            gc.collect()  # a cycle that holds a socket is no leak, only not collected yet
            for _ in looks(grace):
                found = self.leaks()
                if not found:
                    break
        return found


# What may stay behind, by name. Each entry says why; everything else is a leak.
_ALLOWED_THREADS = (
    "pytest_timeout",  # pytest-timeout's watchdog, which starts before and ends after the test
)
_ALLOWED_TARGETS = (
    "/dev/urandom",  # the interpreter keeps it open where getrandom() is missing
    "/.hypothesis/",  # hypothesis keeps the database of failing examples
)


def _allowed_thread(thread: threading.Thread) -> bool:
    return thread.name.startswith(_ALLOWED_THREADS)


def _allowed_descriptor(target: str) -> bool:
    return any(part in target for part in _ALLOWED_TARGETS)


def _descriptors() -> dict[int, str]:
    found: dict[int, str] = {}
    if not os.path.isdir("/proc/self/fd"):
        return found
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this very listing is gone by now
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


servers: set[int] = set()
"""Processes that are kept from one test to the next, and start and end others as they like."""


def children() -> list[int]:
    """Return the pids of all descendants, zombies included, but for `servers` and what is below them."""
    found = _descendants()
    pids = {child.pid for child in found}
    for child in found:
        if child.pid in servers:
            pids -= {child.pid, *_below(child)}
    return list(pids)


def _descendants() -> list[psutil.Process]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []  # no child at all, and the walk below costs milliseconds
    import psutil

    return psutil.Process().children(recursive=True)


def _below(process: psutil.Process) -> set[int]:
    import psutil

    try:
        return {each.pid for each in process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _reaped() -> tuple[float, int]:
    """Return something that changes when a child has been reaped."""
    import resource

    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime, usage.ru_minflt)


def orphans() -> list[int]:
    """Return the pids of live processes that carry this run's mark and are not below this process."""
    if not sys.platform.startswith("linux"):
        return []
    mark = f"{RUN_MARK}={os.environ[RUN_MARK]}".encode()
    below = {os.getpid(), *(child.pid for child in _descendants())}
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in below:
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            environ = Path(f"/proc/{name}/environ").read_bytes()  # empty for a zombie
            if mark in environ.split(b"\0"):
                found.append(int(name))
    return found


def describe_process(pid: int) -> str:
    """Return one line about a process for a person who has to find out where it came from."""
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command = " ".join(process.cmdline()) or process.name()
            return f"{pid} ({process.status()}, parent {process.ppid()}): {command[:160]}"
    except psutil.Error as error:
        return f"{pid} ({type(error).__name__})"


def kill_for_cleanup(pids: list[int]) -> None:
    """End what a failed test left, so that the next test starts clean."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        process_gone(pid)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
