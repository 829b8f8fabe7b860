"""The seccomp filter: which system calls a sandboxed process may make, and with which arguments. Pure.

An allowlist. What is not named is answered ENOSYS, so that libraries fall back; what people really try is answered
EPERM, which a job sees as PermissionError. Another architecture's entry point (int 0x80, x32) ends the process.

Source: seccomp(2), linux/filter.h. A number argument of 32 bits is compared in 32 bits, because the kernel looks at no
more of it; pointers and sizes in 64.
"""

from __future__ import annotations

from _struct import pack as packed

from procsched._core.frozen import frozen
from procsched.sandbox.syscalls import MACHINES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

EPERM, EAGAIN, ENOSYS, ENOTSUP = 1, 11, 38, 95
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
ALLOW, ERRNO, KILL = 0x7FFF0000, 0x00050000, 0x80000000  # SECCOMP_RET_*
X32 = 0x40000000
OWN_PID = -1  # in the place of a value: the process's own, which only it knows
WHOLE = 0xFFFFFFFF
_NUMBER_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16  # in struct seccomp_data

CLONE_VM, CLONE_THREAD, CLONE_PARENT, CLONE_UNTRACED = 0x100, 0x10000, 0x8000, 0x800000
CLONE_PIDFD, CLONE_PTRACE, CLONE_VFORK = 0x1000, 0x2000, 0x4000
# CLONE_NEWTIME shares its bit with the signal number of clone(2), so it can be asked of clone3(2) and unshare(2) only.
NEW_NAMESPACES = 0x7E020000
CLONE_SIGNAL = 0xFF  # of clone(2): which signal the end of the child sends to whoever made it
O_ASYNC = 0x2000
SIGKILL, SIGCHLD, SIGXCPU = 9, 17, 24
RLIMIT_CPU = 0

# One condition: number of the argument, mask, value. All of an alternative must hold.
Condition = tuple[int, int, int]


@frozen
class Rule:
    """What is answered to one system call: it is allowed where one of the alternatives holds, else `errno`.

    No alternatives: always `errno`; one that is empty: always allowed. `barred`: conditions of which none may hold.
    `special`: a condition, and the error where that holds and no alternative does.
    """

    alternatives: tuple[tuple[Condition, ...], ...] = ()
    errno: int = EPERM
    special: tuple[Condition, int] | None = None
    barred: tuple[Condition, ...] = ()


def _words(text: str) -> list[str]:
    return text.split()


_PLAIN: Final = _words("""
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup dup2 dup3 pipe
pipe2 poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd
eventfd2 signalfd4 timerfd_create timerfd_settime timerfd_gettime
open openat creat openat2 stat fstat lstat newfstatat statx access faccessat faccessat2 readlink readlinkat getdents
getdents64 getcwd chdir fchdir statfs fstatfs fadvise64 sendfile fsync fdatasync umask
mkdir mkdirat rmdir unlink unlinkat rename renameat renameat2 ftruncate fallocate
mmap munmap mprotect mremap madvise brk msync mincore membarrier
rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend sigaltstack pause alarm setitimer
getitimer nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getrandom restart_syscall
getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp uname sysinfo getcpu
getrusage getrlimit setrlimit sched_yield sched_get_priority_max sched_get_priority_min
futex set_robust_list set_tid_address rseq exit exit_group wait4 waitid
recvfrom recvmsg shutdown getsockopt getsockname getpeername
""")

# PermissionError, and not "not implemented": people and their libraries try these, and are to see what it is.
_REFUSED: Final = _words("""
socket connect bind listen accept accept4 sendmsg sendmmsg setsockopt
execve execveat ptrace process_vm_readv process_vm_writev kcmp pidfd_open pidfd_getfd pidfd_send_signal
rt_sigqueueinfo rt_tgsigqueueinfo tkill setpriority sched_setscheduler sched_setparam sched_setattr
sched_setaffinity ioprio_set setsid setpgid chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes
utimensat futimesat
link linkat symlink symlinkat mknod mknodat memfd_create memfd_secret mount umount2 unshare setns pivot_root chroot
seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self setuid setgid setreuid setregid setresuid
setresgid setgroups setfsuid setfsgid capset personality inotify_init inotify_init1 inotify_add_watch truncate flock
mlock mlock2 mlockall sync syncfs clock_settime settimeofday fork vfork
""")

_XATTR: Final = _words("""
setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr
fremovexattr
""")

# fcntl(2): descriptors, their flags, and reading the rest. Not F_SETOWN, F_SETSIG (they send signals), F_SETPIPE_SZ
# (memory that no limit counts), F_NOTIFY, F_SETLEASE (it makes others wait); locks only where something can be written.
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_SETFL = range(5)
_FCNTL: Final = (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, 1030, 1032, 1034)
_FCNTL_LOCKS: Final = (5, 6, 7, 36, 37, 38)
# TCGETS, TCGETS2, FIONBIO, FIONCLEX, FIOCLEX, FIONREAD, TIOCGWINSZ.
_IOCTL: Final = (0x5401, 0x802C542A, 0x5421, 0x5450, 0x5451, 0x541B, 0x5413)
_PRCTL: Final = (15, 16)  # PR_SET_NAME, PR_GET_NAME


def equal(number: int, *values: int) -> tuple[tuple[Condition, ...], ...]:
    """Return alternatives: the argument, in 32 bits, is one of these values."""
    return tuple(((number, WHOLE, value),) for value in values)


def make_rules(
    *, processes: int, threads: bool, writable: bool, own_files: bool, truncates: bool
) -> dict[str, Rule]:
    """Return the rule for each system call that has one.

    Args:
        processes: how many there may be; with more than one the process has a pid namespace of its own.
        threads: whether there may be more than one thread.
        writable: whether there is a directory to write to.
        own_files: whether all that can be written to belongs to the sandbox alone.
        truncates: whether Landlock covers truncate(2), so that it can be allowed.
    """
    allowed = Rule(((),))
    rules = dict.fromkeys(_PLAIN, allowed)
    rules |= dict.fromkeys(_REFUSED, Rule())
    rules |= dict.fromkeys(_XATTR, Rule(errno=ENOTSUP))
    # Its arguments are in memory, out of reach: the libraries take clone then.
    rules["clone3"] = Rule(errno=ENOSYS)
    rules["fcntl"] = Rule(
        (
            *equal(1, *_FCNTL, *(_FCNTL_LOCKS if writable else ())),
            ((1, WHOLE, _F_SETFL), (2, O_ASYNC, 0)),
        )
    )
    rules["ioctl"] = Rule(equal(1, *_IOCTL))
    rules["prctl"] = Rule(equal(0, *_PRCTL))
    # A datagram socket could send to any name of the host; a pair of streams is a pipe in both directions.
    rules["socketpair"] = Rule((((0, WHOLE, 1), (1, 0xF, 1)),))
    rules["sendto"] = Rule((((4, 0xFFFFFFFF_FFFFFFFF, 0),),))
    # What the process may use of the CPU is not its own to lower: it would die of that as at the limit it was given.
    rules["setrlimit"] = Rule(((),), barred=((0, WHOLE, RLIMIT_CPU),))
    looks = (2, 0xFFFFFFFF_FFFFFFFF, 0)
    others = tuple((1, bit, bit) for bit in (1, 2, 4, 8))  # of the numbers below 16 all but that one
    rules["prlimit64"] = Rule(
        tuple(((0, WHOLE, pid), what) for pid in (0, OWN_PID) for what in (looks, *others))
    )
    for name in ("getpgid", "getsid", "sched_getaffinity", "sched_getparam", "sched_getscheduler"):
        rules[name] = Rule(equal(0, 0, OWN_PID))
    rules["getpriority"] = Rule((((0, WHOLE, 0), (1, WHOLE, 0)),))
    whom = equal(0, OWN_PID) if processes == 1 else ((),)
    for name, place in (("kill", 1), ("tgkill", 2)):
        # Where a process dies by one of these two, that is the kernel's doing or ours, and says which limit it was at.
        rules[name] = Rule(whom, barred=tuple((place, WHOLE, signum) for signum in (SIGKILL, SIGXCPU)))
    clones: list[tuple[Condition, ...]] = []
    if threads:
        clones.append(((0, NEW_NAMESPACES | CLONE_THREAD | CLONE_PARENT | CLONE_PTRACE, CLONE_THREAD),))
    if processes > 1:
        kept = NEW_NAMESPACES | CLONE_THREAD | CLONE_PARENT | CLONE_PTRACE | CLONE_UNTRACED | CLONE_SIGNAL
        clones.append(((0, kept, SIGCHLD),))
        rules["fork"] = rules["setpgid"] = rules["setsid"] = allowed
        rules["getpgid"] = rules["getsid"] = allowed
    # A thread that is refused is one too many; a process is something that is not allowed.
    rules["clone"] = Rule(tuple(clones), special=((0, CLONE_THREAD, CLONE_THREAD), EAGAIN))
    if writable:
        rules["flock"] = allowed
    if own_files:
        for name in ("chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "utimensat", "futimesat"):
            rules[name] = allowed
    if truncates:
        rules["truncate"] = allowed
    return rules


# One instruction: code, how far to jump where it holds and where not, value.
Instruction = tuple[int, int, int, int]


def assemble(machine: str, rules: dict[str, Rule]) -> list[Instruction]:
    """Return the filter for one machine; the value of an instruction may be `OWN_PID`, to be filled in.

    Calls that the machine does not have are left out.
    """
    numbers, architecture = MACHINES[machine]
    code: list[Instruction] = [
        (LOAD, 0, 0, _ARCH_AT),
        (JUMP_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":
        code += [(JUMP_AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    for name, rule in rules.items():
        if name in numbers:
            body = _body(rule)
            code.append((JUMP_EQUAL, 0, len(body), numbers[name]))
            code += body
    code.append((RETURN, 0, 0, ERRNO | ENOSYS))
    return code


def _body(rule: Rule) -> list[Instruction]:
    body: list[Instruction] = []
    answers: list[tuple[tuple[Condition, ...], int]] = []
    answers += [((condition,), ERRNO | rule.errno) for condition in rule.barred]
    answers += [(conditions, ALLOW) for conditions in rule.alternatives]
    if rule.special is not None:
        answers.append(((rule.special[0],), ERRNO | rule.special[1]))
    for conditions, answer in answers:
        tests = [test for condition in conditions for test in _tests(condition)]
        size = sum(map(len, tests)) + 1
        done = 0
        for test in tests:
            done += len(test)
            *before, (code, _holds, _fails, value) = test
            body += before
            body.append((code, 0, size - done, value))  # where it does not hold: on to the next alternative
        body.append((RETURN, 0, 0, answer))
        if not conditions:
            return body
    body.append((RETURN, 0, 0, ERRNO | rule.errno))
    return body


def _tests(condition: Condition) -> Iterable[list[Instruction]]:
    """Yield the tests of one condition, each a list of instructions of which the last jumps."""
    number, mask, value = condition
    for shift in (0, 32):
        half = mask >> shift & WHOLE
        if not half:
            continue
        test: list[Instruction] = [(LOAD, 0, 0, _ARGS_AT + 8 * number + shift // 8)]
        if half != WHOLE:
            test.append((AND, 0, 0, half))
        wanted = value if value == OWN_PID else value >> shift & WHOLE
        test.append((JUMP_EQUAL, 0, 0, wanted))
        yield test


def pack(code: list[Instruction]) -> tuple[bytes, list[int]]:
    """Return the filter as the kernel takes it, and where in it the process is to put its own pid."""
    data = b"".join(
        packed("=HBBI", operation, holds, fails, 0 if value == OWN_PID else value)
        for operation, holds, fails, value in code
    )
    places = [8 * index + 4 for index, instruction in enumerate(code) if instruction[3] == OWN_PID]
    return data, places
