"""What this operating system offers beyond Python's portable surface, each asked for by doing.

Everything that only some systems have stands here: who calls a function of this module gets an answer
that says whether it worked, never an ImportError. `PROCSCHED_WITHOUT`, a comma-separated list of the names
in `FEATURES`, switches features off, so that the tests can run the paths that other systems take.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import errno
import mmap
import os
import sys
import time

from procsched._libc import Library, c_type, libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FEATURES = (
    "fork",
    "pidfd",
    "subreaper",
    "timerfd",
    "kernel_timer",
    "memory_release",
    "memfd",
    "eventfd",
    "proc",
)

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PROCESS_MRELEASE = 448  # asm-generic/unistd.h, and so in the table of
_GENERIC_NUMBERS = ("x86_64", "aarch64", "riscv64", "ppc64le", "s390x", "loongarch64")
PR_SET_TIMERSLACK = 29
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37
MAP_FIXED = 0x10  # linux/mman.h
MADV_HUGEPAGE = 14
MFD_NOEXEC_SEAL = 8  # linux/memfd.h
STAT_FIELDS_BEFORE_START = 19  # behind the closing parenthesis of the name; proc(5), /proc/pid/stat, field 22


def offers(feature: str) -> bool:
    """Return whether `feature` may be used: it has not been switched off, and this kind of system has it."""
    if feature in os.environ.get("PROCSCHED_WITHOUT", "").split(","):
        return False
    linux = sys.platform == "linux"
    if feature == "fork":
        return hasattr(os, "fork") and sys.platform != "darwin"  # see `child/starting.py`
    if feature == "pidfd":
        return hasattr(os, "pidfd_open") and _pidfd_works()
    if feature == "proc":  # with the lists of children: CONFIG_PROC_CHILDREN
        return os.path.exists(f"/proc/self/task/{os.getpid()}/children")
    if feature == "memory_release":
        return linux and os.uname().machine in _GENERIC_NUMBERS
    if feature == "memfd":
        return hasattr(os, "memfd_create")
    if feature == "eventfd":
        return hasattr(os, "eventfd")
    return linux


def _pidfd_works() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:  # ENOSYS before Linux 5.3, EPERM under some seccomp filters
        return False
    return True


def descriptor_limit() -> int:
    """Return how many descriptors this process may have open (getrlimit(2), RLIMIT_NOFILE); very many if no limit."""
    try:
        import resource
    except ImportError:
        return sys.maxsize
    soft: int = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft >= 0 else sys.maxsize  # RLIM_INFINITY may be -1


def open_descriptors() -> int:
    """Return how many descriptors this process has open; 0 where nobody can say."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # that of the listing is closed by now
    except OSError as error:
        return descriptor_limit() if error.errno in (errno.EMFILE, errno.ENFILE) else 0


def cpus() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resident_bytes(pid: int | None) -> int | None:
    """Return the resident memory of a process, or None where it is gone or nobody can say."""
    if pid is None:
        return None
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError):
        return None


def remedy(error: BaseException) -> str:
    """Return what to do about an error of the system that says that something has run out; empty for any other."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        return (
            f"; this process may have {descriptor_limit()} descriptors open (RLIMIT_NOFILE): close some, raise the "
            "limit (ulimit -n), or use fewer workers"
        )
    if number == errno.EAGAIN:
        return (
            "; the limit of processes (RLIMIT_NPROC, ulimit -u; pids.max of the cgroup) is reached: raise it"
        )
    return ""


def lift(fd: int) -> int:
    """Return a descriptor of the same file above the standard three, in the place of `fd`.

    Where the program has closed its standard input, output or error, the next descriptor that anybody makes gets that
    number. Ours must not: what C code or another library prints would go into it, and a program that becomes a daemon
    opens /dev/null over it.

    Raises:
        OSError: no descriptor is left.
    """
    if fd > 2:
        return fd
    import fcntl

    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe, both above the standard three.

    Raises:
        OSError: no descriptor is left.
    """
    reader, writer = os.pipe()
    if reader > 2:  # then so is the other
        return reader, writer
    try:
        reader = lift(reader)
    except BaseException:
        os.close(writer)
        raise
    try:
        return reader, lift(writer)
    except BaseException:
        os.close(reader)
        raise


def lift_socket(sock: Any) -> Any:
    """Return a socket like `sock` whose descriptor is above the standard three, in the place of it. See `lift`."""
    if sock.fileno() > 2:
        return sock
    return type(sock)(fileno=lift(sock.detach()))


def socket_pair(socket: Any, **options: Any) -> tuple[Any, Any]:
    """Return a connected pair of sockets, as `socket.socketpair(**options)`, above the standard three.

    Args:
        socket: the module that makes them, `socket` or its half that is written in C.
    Raises:
        OSError: no descriptor is left.
    """
    ours, theirs = socket.socketpair(**options)
    try:
        ours = lift_socket(ours)
        return ours, lift_socket(theirs)
    except BaseException:
        ours.close()
        theirs.close()
        raise


def _address(memory: object) -> int:
    """Return the address of a buffer that may be written into."""
    import _ctypes

    return int(_ctypes.addressof(c_type("c").from_buffer(memory)))


def map_page(fd: int, size: int, offset: int) -> mmap.mmap:
    """Return memory of a descriptor, shared, without a duplicate of that where it can be: see `map_over`."""
    memory = mmap.mmap(-1, size)
    if map_over(memory, fd, mmap.PROT_READ | mmap.PROT_WRITE, shared=True, offset=offset):
        return memory
    memory.close()
    return mmap.mmap(fd, size, offset=offset)


def map_over(memory: mmap.mmap, fd: int, access: int, *, shared: bool = False, offset: int = 0) -> bool:
    """Map a descriptor in the place of an anonymous mapping (mmap(2), MAP_FIXED); return whether it went.

    A mapping that Python makes of a descriptor keeps a duplicate of that (before Python 3.13).
    """
    try:
        pointer, size, signed = c_type("P"), c_type("L"), c_type("l")
        where = pointer(_address(memory))
        flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | MAP_FIXED
        return bool(libc().mmap(where, size(len(memory)), access, flags, fd, signed(offset)) != -1)
    except (AttributeError, ImportError, OSError):
        return False


def advise_huge_pages(target: memoryview) -> None:
    """Have new memory made of huge pages where the system leaves that to advice (madvise(2)); else do nothing."""
    if sys.platform != "linux":
        return
    try:
        start = _address(target)
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        size = (start + len(target) - first) // mmap.PAGESIZE * mmap.PAGESIZE
        pointer, length = c_type("P"), c_type("L")
        libc().madvise(pointer(first), length(size), MADV_HUGEPAGE)
    except (AttributeError, ImportError, OSError):
        return


def prctl(option: int, argument: int) -> bool:
    """Set an option of this process (the manual page of that name); return False where it cannot be set."""
    try:
        call = libc().prctl
    except (AttributeError, OSError):
        return False
    return bool(call(option, argument, 0, 0, 0) == 0)


def become_subreaper() -> bool:
    """Make this process the parent of every descendant whose own parent dies (prctl(2))."""
    return offers("subreaper") and prctl(PR_SET_CHILD_SUBREAPER, 1)


def is_subreaper() -> bool:
    """Return whether this process is one now; False where nobody can say."""
    if not offers("subreaper"):
        return False
    try:
        import _ctypes

        answer = c_type("i")()
        asked = libc().prctl(PR_GET_CHILD_SUBREAPER, _ctypes.byref(answer), 0, 0, 0) == 0
    except (AttributeError, ImportError, OSError):
        return False
    return bool(asked and answer.value)


def die_with_parent(parent: int) -> bool:
    """Ask for SIGKILL when the parent `parent` ends, and exit at once if it has ended already.

    The signal comes when the *thread* that forked this process ends (prctl(2)): only for parents with
    one thread.
    """
    asked = sys.platform == "linux" and prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    return asked


def wake_without_parent() -> None:
    """Ask for SIGCONT when the parent ends, in the place of what `die_with_parent` has asked for.

    Who is stopped at that moment would not see it. Where the thread ends that forked this process, and not the whole
    parent, the signal comes too, and comes again with the next one: it does nothing to whoever is not stopped.
    """
    if sys.platform == "linux":
        prctl(PR_SET_PDEATHSIG, signal.SIGCONT)


def sharpen_timers() -> None:
    """Let the calling thread's waits end within a microsecond of their time instead of fifty."""
    if sys.platform == "linux":
        prctl(PR_SET_TIMERSLACK, 1)


def umask() -> int | None:
    """Return the process's umask without changing it, or None where that cannot be read."""
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"Umask:"):
                    return int(line.split()[1], 8)
    except OSError:
        return None
    return None


def boot_id() -> str:
    """Return what pids are unique within: this boot of this machine, and this process's pid namespace; "" unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def path_below(directory: int, name: str) -> str:
    """Return a short path of what is called `name` in an open directory.

    Raises:
        OSError: this system has none.
    """
    if not offers("proc"):
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), name)
    return f"/proc/self/fd/{directory}/{name}"


# --- descriptors ---------------------------------------------------------------------------------------------------


def event_descriptor() -> int | None:
    """Return a descriptor above the standard three that is written to and read from (eventfd(2)), or None.

    Raises:
        OSError: no descriptor is left.
    """
    return lift(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)) if offers("eventfd") else None


def memory_file(name: str, *, sealable: bool = False) -> int | None:
    """Return a descriptor above the standard three of memory that is in no file system (memfd_create(2)), or None.

    Args:
        sealable: it is to be sealed once it is filled, see `seal`; nothing in it can be executed.
    Raises:
        OSError: no descriptor is left.
    """
    if not offers("memfd"):
        return None
    fd = _memfd(name, sealable)
    if fd > 2:  # nothing is called while nobody owns it: there the handler of a signal may run, and raise
        return fd
    return lift(fd)


def _memfd(name: str, sealable: bool) -> int:
    if not sealable:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | MFD_NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a kernel before 6.3 does not know that one
            raise
    return os.memfd_create(name, flags)


def seal(fd: int, *, contents: bool = True) -> None:
    """Let nobody shrink or change memory of `memory_file` any more, or only not shrink it (fcntl(2), F_ADD_SEALS)."""
    import fcntl

    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | (fcntl.F_SEAL_WRITE if contents else 0))


# --- processes -----------------------------------------------------------------------------------------------------


def open_process(pid: int) -> int | None:
    """Return a descriptor of process `pid` (pidfd_open(2)), or None where this system has none.

    Raises:
        ProcessLookupError: it is gone. OSError: no descriptor is left.
    """
    return os.pidfd_open(pid) if offers("pidfd") else None


def signal_process(pidfd: int, signum: int) -> None:
    """Send a signal to the process of a descriptor, which never is another one.

    Raises:
        ProcessLookupError: it is gone. PermissionError: it is another user's.
    """
    signal.pidfd_send_signal(pidfd, signum)


def release_memory(pidfd: int) -> bool:
    """Help a process that was sent SIGKILL to let go of its memory; return whether that could be done.

    Most of what a process takes to end is that, and here the calling thread takes a share of it: some 0.1 ms for each
    MiB. Linux 5.15 (process_mrelease(2)).
    """
    if not offers("memory_release") or _is_filtered():
        return False
    long = c_type("l")
    try:
        return bool(libc().syscall(long(_PROCESS_MRELEASE), long(pidfd), long(0)) == 0)
    except (OSError, AttributeError):  # no ctypes
        return False


_filtered: bool | None = None


def _is_filtered() -> bool:
    """Return whether system calls of this process are filtered: some filters end who makes one they do not know."""
    global _filtered
    if _filtered is None:
        try:
            with open("/proc/self/status", "rb") as file:
                _filtered = b"\nSeccomp:\t0\n" not in file.read()
        except OSError:
            _filtered = True
    return _filtered


def started_at(pid: int) -> int | None:
    """Return when process `pid` started, in clock ticks since the boot; None where it is gone, or nobody can say.

    Together with the pid and `boot_id` this names a process for ever.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[STAT_FIELDS_BEFORE_START]) if len(fields) > STAT_FIELDS_BEFORE_START else None


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pid descriptor has ended, reaped or not."""
    import select

    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def process_children(pid: int) -> list[int]:
    """Return the direct children of process `pid`; empty when it is gone, or nobody can say."""
    try:
        return _children_of(pid)
    except OSError:
        return []


def _children_of(pid: int) -> list[int]:
    """Return the direct children of process `pid`. An OSError where it is gone, or no descriptor is left to ask."""
    if not offers("proc"):
        return [child.pid for child in _psutil_children(pid, recursive=False)]
    found: list[int] = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except (FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            continue
    return found


def tracer_of(pid: int) -> int:
    """Return the pid of the process that traces process `pid`, or 0 where there is none, or nobody can say."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"TracerPid:"):
                    return int(line.split()[1])
    except (OSError, ValueError):
        return 0
    return 0


def state_of(pid: int) -> str:
    """Return the letter by which the kernel says what a process does (proc(5), state), "" where it does not say."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return chr(file.read().rpartition(b") ")[2][0])
    except (OSError, IndexError):
        return ""


def can_handle(pid: int, signum: int, *, sent: bool = False) -> bool:
    """Return whether a process can handle a signal now: not stopped, not blocked, and with a handler of its own.

    Where nobody can say, it is taken to be so.

    Args:
        sent: whether it was sent the signal. While its handler runs the signal is blocked too, but not pending.
    """
    if not offers("proc"):
        return True
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            text = file.read()
    except OSError:
        return False

    def value(name: bytes) -> bytes:
        start = text.find(name)
        return text[start + len(name) : text.find(b"\n", start)] if start >= 0 else b""

    bit = 1 << (signum - 1)
    stopped = value(b"State:\t")[:1] in (b"T", b"t", b"Z", b"X")
    blocked = int(value(b"SigBlk:\t") or b"0", 16) & bit
    if sent:
        blocked &= int(value(b"ShdPnd:\t") or b"0", 16) | int(value(b"SigPnd:\t") or b"0", 16)
    caught = int(value(b"SigCgt:\t") or b"0", 16) & bit
    return bool(caught) and not stopped and not blocked


def process_descendants(pid: int) -> list[int]:
    """Return every descendant of `pid`, parents before children. A snapshot: new ones may appear meanwhile."""
    if offers("proc"):
        found = process_children(pid)
        for child in found:  # grows while it is walked
            found += process_children(child)
        return found
    return [child.pid for child in _psutil_children(pid, recursive=True)]


def usage_below(pid: int, starters: int) -> tuple[float, int]:
    """Return CPU seconds and peak bytes of memory of what is below process `pid` and lives; zeros where unknown.

    On Linux, and to the nanosecond, but for what they have reaped themselves: that is in ticks.

    Args:
        starters: of so many descendants, the first ones, CPU time counts only that of children that they have reaped.
    """
    seconds, peak = 0.0, 0
    ticks = os.sysconf("SC_CLK_TCK")
    for index, each in enumerate(process_descendants(pid)):
        try:
            # clock_getcpuclockid(3), which Python does not have: the CPU clock of the whole process.
            own = 0.0 if index < starters else time.clock_gettime(~each << 3 | 2)
            with open(f"/proc/{each}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            with open(f"/proc/{each}/status", "rb") as file:
                status = file.read()
        except OSError:  # gone meanwhile
            continue
        # utime and stime of reaped children: fields 16 and 17 in proc(5), counted here from the third.
        seconds += own + sum(map(int, fields[13:15])) / ticks
        place = status.find(b"VmHWM:")
        if place >= 0:
            peak = max(peak, int(status[place + 6 : status.index(b"k", place + 6)]) << 10)
    return seconds, peak


class TreeUsage:
    """What a process and all that lives below it use. A sum of snapshots.

    Attributes:
        processes: how many there are that have not ended.
        resident: bytes of memory, where those that several share count for each.
        cpu_seconds: with that of children that each of them has reaped.
    """

    __slots__ = ("cpu_seconds", "processes", "resident")

    def __init__(self) -> None:
        self.processes = self.resident = 0
        self.cpu_seconds = 0.0


def tree_usage(pid: int) -> TreeUsage:
    """Return what process `pid` and what lives below it use. On systems with /proc."""
    found = TreeUsage()
    ticks = os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")
    for each in (pid, *process_descendants(pid)):
        try:
            with open(f"/proc/{each}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
        except OSError:  # gone meanwhile
            continue
        # state, utime, stime, cutime, cstime, rss: fields 3, 14 to 17 and 24 in proc(5), counted here from the third.
        found.cpu_seconds += sum(map(int, fields[11:15])) / ticks
        if fields[0] not in (b"Z", b"X"):
            found.processes += 1
            found.resident += int(fields[21]) * page
    return found


def tree_proportional(pid: int) -> int:
    """Return the bytes of memory of `pid` and what lives below it, where those that several share count once in all.

    Slower than `tree_usage`: the kernel walks the page tables.
    """
    total = 0
    for each in (pid, *process_descendants(pid)):
        try:
            with open(f"/proc/{each}/smaps_rollup", "rb") as file:
                text = file.read()
        except OSError:
            continue
        place = text.find(b"\nPss:")
        if place >= 0:
            total += int(text[place + 5 : text.index(b"kB", place)]) << 10
    return total


def _psutil_children(pid: int, *, recursive: bool) -> list[Any]:
    """Ask psutil, which walks the process table: for systems without /proc."""
    import psutil

    try:
        found: list[Any] = psutil.Process(pid).children(recursive=recursive)
    except psutil.Error:
        return []
    return found


def reap_adopted(pidfd: int) -> None:
    """Reap the process of a pid descriptor, should it have ended as a child that we have inherited; else do nothing.

    That happens where this process is an init, as PID 1 in a container is, or a child subreaper by its own will: then
    nobody else reaps what a dead guard or helper left. The descriptor stands for one process, so no other is reaped.
    """
    kind = getattr(os, "P_PIDFD", None)
    if kind is None:
        return
    try:
        os.waitid(kind, pidfd, os.WEXITED | os.WNOHANG)
    except OSError:  # ECHILD: it is, or was, another's. EINVAL: before Linux 5.4
        return


class OwnChildren:
    """The children of this process, asked for as cheaply as can be: the helper does so at every death.

    The descriptors are opened at once, so that they can be told also when no other is left.
    """

    def __init__(self) -> None:
        self._tasks = self._children = -1
        if offers("proc"):
            try:
                self._tasks = os.open("/proc/self/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self._children = os.open(
                    f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC
                )
            except OSError:  # a kernel without CONFIG_PROC_CHILDREN, or no descriptor is left
                self.close()

    def move(self, move: Callable[[int], int]) -> None:
        """Have the descriptors moved to other numbers."""
        if self._tasks >= 0:
            self._tasks, self._children = move(self._tasks), move(self._children)

    def close(self) -> None:
        """Let go of the descriptors; from here on it takes longer."""
        for fd in {self._tasks, self._children} - {-1}:
            os.close(fd)
        self._tasks = self._children = -1

    def _read(self) -> list[int]:
        # With one thread they are all in one file: the directory then has three links.
        if self._children >= 0 and os.stat(self._tasks).st_nlink == 3:
            data = os.pread(self._children, 1 << 16, 0)
            if len(data) < 1 << 16:
                return [*map(int, data.split())]
        return _children_of(os.getpid())

    def list(self) -> list[int]:
        """Return their pids; none where they cannot be told."""
        try:
            return self._read()
        except (OSError, ValueError):
            return []

    def are_all_in(self, known: set[int]) -> bool:
        """Return whether there are no others than those; False also where they cannot be told."""
        try:
            return known.issuperset(self._read())
        except (OSError, ValueError):  # a descriptor was closed, or is something else by now
            return False


def signal_descendants(pid: int, signum: int) -> int:
    """Send a signal to every descendant of `pid`, a child of ours that is not reaped; return how many got it.

    Others reap the descendants, so each is signalled through a pid descriptor that was opened before it was seen
    below `pid` for the second time: a number that has passed to a stranger in between is not signalled. Children come
    before their parents: whoever does the same at that moment, or goes on where this one is killed, finds the rest.
    """
    reached = 0
    if not offers("pidfd"):
        for descendant in reversed(process_descendants(pid)):
            try:
                os.kill(descendant, signum)
                reached += 1
            except (ProcessLookupError, PermissionError):
                continue
        return reached
    opened: dict[int, int] = {}
    try:
        for descendant in process_descendants(pid):
            try:
                opened[descendant] = os.pidfd_open(descendant)
            except OSError:
                continue
        for descendant in reversed(process_descendants(pid)):
            if descendant in opened:
                try:
                    signal.pidfd_send_signal(opened[descendant], signum)
                    reached += 1
                except (ProcessLookupError, PermissionError):
                    continue
    finally:
        for fd in opened.values():
            os.close(fd)
    return reached


class KernelTimer:
    """A timer of the kernel that sends this process SIGKILL: timer_create(2) with SIGEV_SIGNAL.

    It needs neither the interpreter nor the parent, so it holds when either is stuck. One per process; not
    inherited by a fork. Not thread-safe.
    """

    def __init__(self) -> None:
        calls = _timer_calls()
        self._pack = calls.spec.pack
        self._settime = calls.settime
        self._off = calls.spec.pack(0, 0, 0, 0)
        self._id = calls.create()

    def arm(self, at: float) -> None:
        """Send SIGKILL at steady time `at` (`time.monotonic`)."""
        seconds = int(at)
        spec = self._pack(0, 0, seconds, int((at - seconds) * 1e9))
        self._settime(self._id, 1, spec, None)  # 1: TIMER_ABSTIME

    def disarm(self) -> None:
        """Send nothing."""
        self._settime(self._id, 0, self._off, None)


class _TimerCalls:
    """The system calls of `KernelTimer`, looked up once and shared by every fork of the process that did it."""

    def __init__(self) -> None:
        import _ctypes
        from _struct import Struct

        library = libc()
        if not hasattr(library, "timer_create"):  # glibc before 2.34
            library = Library("librt.so.1")
        self.settime = library.timer_settime
        self.spec = Struct("@llll")  # struct itimerspec: interval and value, seconds and nanoseconds each
        self._ctypes: Any = _ctypes
        self._create = library.timer_create
        self._pointer = c_type("P")
        # struct sigevent of Linux: 64 bytes, of which SIGEV_SIGNAL (0) reads the first sixteen.
        self._event = Struct("@Pii48x").pack(0, signal.SIGKILL, 0)

    def create(self) -> Any:
        """Make a timer and return its id, a pointer."""
        made = self._pointer()
        if self._create(time.CLOCK_MONOTONIC, self._event, self._ctypes.byref(made)) != 0:
            number = self._ctypes.get_errno()
            raise OSError(number, os.strerror(number), "timer_create")
        return made


_timer_calls_made: _TimerCalls | None = None


def _timer_calls() -> _TimerCalls:
    global _timer_calls_made
    if _timer_calls_made is None:
        _timer_calls_made = _TimerCalls()
    return _timer_calls_made


def open_kernel_timer() -> KernelTimer | None:
    """Return a `KernelTimer`, or None where the system has none."""
    if not offers("kernel_timer"):
        return None
    try:
        return KernelTimer()
    except (OSError, AttributeError):
        return None
