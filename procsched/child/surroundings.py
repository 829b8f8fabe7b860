"""What a run can change in its process, beside its own objects: noted before the first run, put back after each."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _thread
import faulthandler
import fcntl
import gc
import os
import resource
import sys

from procsched import _system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_pthread_sigmask: Any = signal.pthread_sigmask
# By name, for a run may have put something in the place of the module's. The worker asks the first four after each run.
recursion_limit, profile, trace = sys.getrecursionlimit, sys.getprofile, sys.gettrace
is_collecting = gc.isenabled
_set_recursion_limit, _set_profile, _set_trace = sys.setrecursionlimit, sys.setprofile, sys.settrace

HIGH_FD = 500  # from which number on our descriptors are, where the limit allows it
FORK_COST = 10e-6  # seconds that it takes at least to start a process; shorter attempts have none
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024  # bytes; of what getrusage(2) says of memory
_RLIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


class Surroundings:
    """Where the runs of this process take place, as it was before the first.

    Args:
        started: whether processes may have been started by now; they belong to no run.
    Attributes:
        recursion_limit: of the run that is going on, when it began: what a module has set that was imported while the
            call was loaded stays.
        profile, trace: the functions of `sys.setprofile` and `sys.settrace`.
        collects: whether garbage is collected.
    """

    def __init__(self, *, started: bool) -> None:
        self._umask = os.umask(0)
        os.umask(self._umask)
        try:
            flags = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
            self._directory = out_of_the_way(os.open(".", flags))
        except OSError:  # removed, or not readable: then a run's change of directory makes the worker dirty
            self._directory = -1
        self._mask = _pthread_sigmask(signal.SIG_BLOCK, ())
        self._stdin, self._stdout, self._stderr = _streams()
        self._flush_stdout, self._flush_stderr = _flush_of(self._stdout), _flush_of(self._stderr)
        self._settings = _settings()
        self.recursion_limit = recursion_limit()
        self.profile, self.trace = profile(), trace()
        self.collects = is_collecting()
        self._thresholds = gc.get_threshold()
        self._switch_interval, self._digits = sys.getswitchinterval(), sys.get_int_max_str_digits()
        self._threads = _thread._count()
        self._children = _system.OwnChildren()
        self._children.move(out_of_the_way)
        self._known = set(self._children.list()) if started else set()  # pids
        self.used = 0.0  # seconds of CPU time at the last look, with those of children that were reaped
        self.child_peak = 0  # bytes of memory of the largest of these
        try:
            self._peak_fd = out_of_the_way(os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            self._peak_fd = -1
        try:
            self._timers_fd = out_of_the_way(os.open("/proc/self/timers", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # a kernel without CONFIG_CHECKPOINT_RESTORE
            self._timers_fd = -1
        self._timers = self._count_timers()

    def _count_timers(self) -> int:
        """Return how many timers of timer_create(2) there are; 0 where nobody can say."""
        try:
            return os.pread(self._timers_fd, 1 << 12, 0).count(b"ID:") if self._timers_fd >= 0 else 0
        except OSError:  # a run may have closed it
            return 0

    def usage(self) -> tuple[float, int]:
        """Return CPU seconds and peak resident bytes since the last call, and begin anew."""
        own = resource.getrusage(resource.RUSAGE_SELF)
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
        spent = cpu - self.used
        self.used = cpu
        self.child_peak = children.ru_maxrss * PEAK_UNIT
        if self._peak_fd < 0:
            return spent, 0  # the peak would be that of an earlier run
        try:
            os.pwrite(self._peak_fd, b"5", 0)  # proc(5), clear_refs: resets the high-water mark
        except OSError:  # a run may have closed it
            self._peak_fd = -1
        return spent, own.ru_maxrss * PEAK_UNIT

    def have_changed(self) -> bool:
        """Return whether a run has changed what `tidy` does not put back.

        Some twenty microseconds: so it is asked, as CPU time and memory are, after runs of a millisecond and more, and
        where `settle_streams` says so. What of the interpreter harms nobody soon is put back here.
        """
        gc.set_threshold(*self._thresholds)
        if sys.getswitchinterval() != self._switch_interval:
            sys.setswitchinterval(self._switch_interval)
        sys.set_int_max_str_digits(self._digits)
        return _settings() != self._settings or self._count_timers() > self._timers

    def settle_interpreter(self) -> None:
        """Put back what a run has changed of the interpreter that the next one, or the answer, may suffer from."""
        _set_recursion_limit(self.recursion_limit)  # first: what it was set to may not do for the rest
        if profile() is not self.profile:
            _set_profile(self.profile)
        if trace() is not self.trace:
            _set_trace(self.trace)
        if is_collecting() is not self.collects:
            (gc.enable if self.collects else gc.disable)()

    def settle_streams(self) -> bool:
        """Flush stdout and stderr, and put the worker's own back in the place of others.

        Returns:
            whether `have_changed` is to be asked, however short the run was. A flush fails where a stream is closed,
            and what a run had in the place of ours may close what is below when it goes:
            `io.TextIOWrapper(sys.stdout.buffer)` the buffer, `os.fdopen(1, "w")` the descriptor.
        """
        try:
            self._flush_stdout()
            self._flush_stderr()
            own = sys.stdout is self._stdout and sys.stderr is self._stderr and sys.stdin is self._stdin
        except Exception:
            own = False
        if own:
            return False
        flush_streams()
        sys.stdin, sys.stdout, sys.stderr = self._stdin, self._stdout, self._stderr
        flush_streams()
        return True

    def tidy(self, seconds: float) -> list[str]:
        """Put back what a run of so long may leave behind; return what cannot be, for which the worker must go."""
        left = []
        faulthandler.cancel_dump_traceback_later()
        threads = _thread._count()
        if threads > self._threads:
            left.append("threads")
        else:  # one that the initializer has started may have ended: it makes no room for a run's
            self._threads = threads
        if seconds >= FORK_COST and self._has_children():
            left.append("processes")
        if _pthread_sigmask(signal.SIG_BLOCK, ()) != self._mask:
            left.append("signal mask")
        os.umask(self._umask)
        try:
            os.fchdir(self._directory)  # cheaper than to ask where we are
        except (OSError, ValueError):  # the latter of -1
            left.append("working directory")
        return left

    def _has_children(self) -> bool:
        """Return whether the run has left processes; those that have ended are reaped."""
        while True:
            try:
                if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is None:
                    return not self._children.are_all_in(self._known)
            except ChildProcessError:
                return False


def _streams() -> tuple[Any, Any, Any]:
    return getattr(sys, "stdin", None), getattr(sys, "stdout", None), getattr(sys, "stderr", None)


def _flush_of(stream: Any) -> Callable[[], object]:
    """Return what flushes a stream that is None, or a writer of an initializer's own, too: looked for once."""
    flush: Callable[[], object] | None = getattr(stream, "flush", None)
    return bool if flush is None else flush


def _is_closed(stream: Any) -> bool:
    try:
        return bool(getattr(stream, "closed", False))
    except Exception:  # detached, for one
        return True


def _settings() -> list[Any]:
    standard: list[Any] = [_is_closed(stream) for stream in _streams()]
    for fd in (0, 1, 2):
        try:
            stat = os.fstat(fd)
            standard.append((stat.st_dev, stat.st_ino))
        except OSError:
            standard.append(None)
    limits = [resource.getrlimit(which) for which in _RLIMITS]
    ids = (os.getresuid(), os.getresgid()) if hasattr(os, "getresuid") else (os.getuid(), os.getgid())
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    policy = os.sched_getscheduler(0) if hasattr(os, "sched_getscheduler") else None
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    root = os.stat("/")
    place = (root.st_dev, root.st_ino)
    return [standard, limits, ids, os.getgroups(), priority, policy, affinity, place, _system.is_subreaper()]


def flush_streams() -> None:
    """Flush stdout and stderr, whatever was made of them."""
    for stream in _streams()[1:]:
        try:
            stream.flush()
        except BaseException:  # whatever the run has made of it raises
            continue


def copy_of(fd: int) -> int:
    """Return a copy with a number that a job does not take for one of its own; -1 of what is closed."""
    for lowest in (HIGH_FD, 3):
        try:
            return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:  # the limit is lower, or a run so short that nobody looked has closed it
            continue
    return -1


def out_of_the_way(fd: int) -> int:
    """Move a descriptor to such a number, where it can be."""
    moved = copy_of(fd)
    if moved < 0:
        return fd
    os.close(fd)
    return moved
