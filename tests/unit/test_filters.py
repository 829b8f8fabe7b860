"""The seccomp filter, by an interpreter of the kernel's instructions: every call is answered as the rules say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from procsched.sandbox import filters
from procsched.sandbox.filters import ALLOW, EAGAIN, ENOSYS, ENOTSUP, EPERM, ERRNO, KILL, OWN_PID
from procsched.sandbox.syscalls import AARCH64, MACHINES, X86_64


def _words(text: str) -> list[str]:
    return text.split()


ME = 4242
PARENT = 4000
GARBAGE = 0xDEAD_BEEF << 32
PORTABLE: dict[str, Any] = {
    "processes": 1,
    "threads": True,
    "writable": False,
    "own_files": False,
    "truncates": True,
}
POLICIES = [
    dict(zip(PORTABLE, values, strict=True))
    for values in itertools.product((1, 4), (True, False), (True, False), (True, False), (True, False))
]


def interpret(
    code: list[filters.Instruction], number: int, arguments: tuple[int, ...] = (), architecture: int = 0
) -> int:
    """Run a filter as the kernel does (linux/filter.h, seccomp(2)), and return its answer."""
    words = {0: number & 0xFFFFFFFF, 4: architecture}
    for index in range(6):
        value = (arguments + (0,) * 6)[index] & 0xFFFFFFFF_FFFFFFFF
        words[16 + 8 * index], words[20 + 8 * index] = value & 0xFFFFFFFF, value >> 32
    place = accumulator = steps = 0
    while True:
        operation, holds, fails, value = code[place]
        value = ME if value == OWN_PID else value
        place, steps = place + 1, steps + 1
        assert steps <= len(code), "it jumps back"
        if operation == filters.LOAD:
            accumulator = words[value]
        elif operation == filters.AND:
            accumulator &= value
        elif operation == filters.JUMP_EQUAL:
            place += holds if accumulator == value else fails
        elif operation == filters.JUMP_AT_LEAST:
            place += holds if accumulator >= value else fails
        else:
            assert operation == filters.RETURN
            return value


class Filter:
    """A filter of one machine for one policy."""

    def __init__(self, machine: str, **policy: Any) -> None:
        self.numbers, self.architecture = MACHINES[machine]
        self.rules = filters.make_rules(**{**PORTABLE, **policy})
        self.code = filters.assemble(machine, self.rules)

    def __call__(self, name: str, *arguments: int) -> int:
        return interpret(self.code, self.numbers[name], arguments, self.architecture)


@pytest.fixture(params=MACHINES)
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def error(number: int) -> int:
    return ERRNO | number


def test_every_number_is_answered_by_its_rule(machine: str) -> None:
    """Of all numbers that there could be, those without a rule are unknown, and plain ones are allowed."""
    tested = Filter(machine)
    names = {number: name for name, number in tested.numbers.items()}
    for number in range(-1, 1100):
        answer = interpret(tested.code, number, (), tested.architecture)
        rule = tested.rules.get(names.get(number, ""))
        if number < 0 and machine == "x86_64":
            assert answer == KILL
        elif rule is None:
            assert answer == error(ENOSYS), number
        elif rule.alternatives == ((),) and not rule.barred:
            assert answer == ALLOW, names[number]
        elif not rule.alternatives:
            assert answer == error(rule.errno), names[number]


def test_other_entry_points_end_the_process() -> None:
    """32-bit and x32 calls have other numbers for the same things: whoever makes one is killed."""
    for machine, (numbers, architecture) in MACHINES.items():
        tested = Filter(machine)
        for other in (0x40000003, 0x40000028, 0xC000003E ^ 0x80000000, 0):
            assert interpret(tested.code, numbers["read"], (), other) == KILL
        assert interpret(tested.code, numbers["read"], (), architecture) == ALLOW
    x86 = Filter("x86_64")
    for number in (0x40000000, 0x40000000 | X86_64["kill"], 0xFFFFFFFF):
        assert interpret(x86.code, number, (), x86.architecture) == KILL


@pytest.mark.parametrize("policy", POLICIES)
def test_filters_are_valid(machine: str, policy: dict[str, Any]) -> None:
    """The kernel takes them: not too long, no jump beyond the end, an answer on each way."""
    code = Filter(machine, **policy).code
    assert len(code) < 4096
    for place, (operation, holds, fails, value) in enumerate(code):
        assert 0 <= holds < 256
        assert 0 <= fails < 256
        assert place + 1 + max(holds, fails) < len(code) or operation == filters.RETURN
        assert value == OWN_PID or 0 <= value < 1 << 32
    assert code[-1] == (filters.RETURN, 0, 0, error(ENOSYS))
    data, places = filters.pack(code)
    assert len(data) == 8 * len(code)
    assert all(data[place : place + 4] == bytes(4) for place in places)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_opens_what_must_stay_shut(machine: str, policy: dict[str, Any]) -> None:
    """Whatever a policy allows, these calls are refused with any arguments."""
    tested = Filter(machine, **policy)
    for name in SHUT:
        if name in tested.numbers:
            for value in (0, 1, ME, PARENT, 0xFFFFFFFF, 0xFFFFFFFF_FFFFFFFF):
                answer = tested(name, *(value,) * 6)
                assert answer in (error(EPERM), error(ENOSYS), error(ENOTSUP)), name


SHUT = _words("""
execve execveat ptrace process_vm_readv process_vm_writev kcmp pidfd_open pidfd_getfd pidfd_send_signal socket connect
bind listen accept accept4 sendmsg sendmmsg rt_sigqueueinfo rt_tgsigqueueinfo tkill setpriority sched_setscheduler
sched_setparam sched_setattr ioprio_set chown fchown lchown fchownat link linkat symlink symlinkat mknod mknodat
memfd_create memfd_secret mount umount2 unshare setns pivot_root chroot seccomp setuid setgid setreuid setregid
setresuid setresgid setgroups capset personality io_uring_setup io_uring_enter io_uring_register keyctl add_key
request_key userfaultfd bpf perf_event_open fanotify_init inotify_init inotify_init1 shmget shmat semget msgget mq_open
syslog swapon reboot name_to_handle_at open_by_handle_at mlock mlock2 mlockall clone3 vfork setxattr getxattr
landlock_create_ruleset landlock_restrict_self clock_settime settimeofday adjtimex process_madvise move_pages
timer_create splice tee vmsplice fsopen open_tree modify_ldt iopl
""")


@pytest.mark.parametrize("junk", [0, GARBAGE])
def test_signals_go_to_oneself_only(machine: str, junk: int) -> None:
    """The kernel looks at 32 bits of a pid; whatever stands in the others changes nothing."""
    tested = Filter(machine)
    several = Filter(machine, processes=4)
    for name in ("kill", "tgkill"):
        assert tested(name, junk | ME, 15, 15) == ALLOW
        for pid in (PARENT, 0, 1, -1, -ME, ME + 1):
            assert tested(name, junk | (pid & 0xFFFFFFFF), 15, 15) == error(EPERM), (name, pid)
            assert several(name, junk | (pid & 0xFFFFFFFF), 15, 15) == ALLOW
        for signum in (9, 24):  # the kernel's word for a limit
            assert tested(name, ME, junk | signum, junk | signum) == error(EPERM)
            assert several(name, ME, junk | signum, junk | signum) == error(EPERM)


def test_limits_and_processors_of_oneself_only(machine: str) -> None:
    """Nobody else's limits can be set or read, nor where others run."""
    tested = Filter(machine)
    for limit, new in itertools.product(range(16), (0, 15, 1 << 40)):
        # A death at the limit of CPU time is to prove that it is that of the policy.
        allowed = ALLOW if limit or not new else error(EPERM)
        for mine in (0, ME, GARBAGE, GARBAGE | ME):
            assert tested("prlimit64", mine, GARBAGE | limit, new) == allowed, (limit, new)
        assert tested("prlimit64", PARENT, limit, new) == error(EPERM)
    assert tested("setrlimit", 0, 15) == tested("setrlimit", GARBAGE, 15) == error(EPERM)
    assert tested("setrlimit", 7, 15) == ALLOW
    for name in ("prlimit64", "sched_getaffinity", "getpgid", "getsid"):
        assert tested(name, 0) == tested(name, ME) == ALLOW
        assert tested(name, PARENT) == tested(name, GARBAGE | PARENT) == error(EPERM)
    assert tested("sched_setaffinity", 0) == tested("sched_setaffinity", ME) == error(EPERM)
    assert tested("getpriority", 0, 0) == ALLOW
    assert tested("getpriority", 0, PARENT) == tested("getpriority", 1, 0) == error(EPERM)


def test_descriptors_send_no_signals(machine: str) -> None:
    """F_SETOWN, F_SETSIG, O_ASYNC and their kin are refused; so is what makes others wait."""
    tested = Filter(machine)
    for command in (0, 1, 2, 3, 1030, 1032):
        assert tested("fcntl", 3, command) == tested("fcntl", 3, GARBAGE | command) == ALLOW
    assert tested("fcntl", 3, 4, 0o4000) == ALLOW
    assert tested("fcntl", 3, 4, 0x2000) == tested("fcntl", 3, 4, 0o4000 | 0x2000) == error(EPERM)
    for command in (5, 6, 7, 8, 9, 10, 11, 15, 16, 36, 37, 38, 1024, 1026, 1031, 1033):
        assert tested("fcntl", 3, command) == error(EPERM), command
    for request in (0x5412, 0x8901, 0x8902, 0x5452, 0x5410, 0x540E, 0x4B45):
        assert tested("ioctl", 3, request) == error(EPERM), hex(request)
    for request in (0x5401, 0x5421, 0x5451):
        assert tested("ioctl", 3, request) == ALLOW


def test_locks_need_something_to_write_to(machine: str) -> None:
    """A lock on a file that is only read would make its owner wait."""
    for name, arguments in (("fcntl", (3, 6)), ("flock", (3, 2))):
        assert Filter(machine)(name, *arguments) == error(EPERM)
        assert Filter(machine, writable=True)(name, *arguments) == ALLOW


def test_no_socket_but_pairs_of_streams(machine: str) -> None:
    """A pair of datagram sockets could send anywhere; flags beside the type change nothing."""
    tested = Filter(machine)
    for kind in (1, 1 | 0o4000, 1 | 0o2000000):
        assert tested("socketpair", 1, kind) == ALLOW
    for family, kind in ((1, 2), (1, 5), (1, 2 | 0o4000), (2, 1), (16, 1)):
        assert tested("socketpair", family, kind) == error(EPERM)
    assert tested("sendto", 3, 0, 0, 0, 0) == ALLOW
    assert tested("sendto", 3, 0, 0, 0, 1) == tested("sendto", 3, 0, 0, 0, 1 << 40) == error(EPERM)


def test_own_traits_only(machine: str) -> None:
    """Only the name of a thread can be set: not what happens at the parent's death, and not what others see of it."""
    tested = Filter(machine)
    assert tested("prctl", 15) == ALLOW
    for option in (1, 4, 8, 22, 23, 36, 38, 47, 59, 0x59616D61):
        assert tested("prctl", option) == error(EPERM)


THREAD = 0x3D0F00  # what the C library asks for a thread


@pytest.mark.parametrize("junk", [0, GARBAGE])
def test_clone_makes_what_the_policy_allows(machine: str, junk: int) -> None:
    """Threads, processes, both or neither; never a namespace, never a sibling."""
    fork = 0x1200011
    one, several = Filter(machine), Filter(machine, processes=4, threads=False)
    alone = Filter(machine, threads=False)
    both = Filter(machine, processes=4)
    assert one("clone", junk | THREAD) == both("clone", junk | THREAD) == ALLOW
    assert one("clone", junk | fork) == alone("clone", junk | fork) == error(EPERM)
    assert several("clone", junk | fork) == both("clone", junk | fork) == ALLOW
    assert several("clone", junk | THREAD) == alone("clone", junk | THREAD) == error(EAGAIN)
    for tested in (one, several, alone, both):
        for bits in (
            0x10000000,
            0x20000000,
            0x40000000,
            0x20000,
            0x4000000,
            0x8000000,
            0x2000000,
            0x8000,
            0x2000,
        ):
            for base in (THREAD, fork):
                assert tested("clone", junk | base | bits) in (error(EPERM), error(EAGAIN)), hex(bits)
        for signum in (*range(17), *range(18, 256)):  # of which the end of the child would be told by
            assert tested("clone", junk | fork & ~0xFF | signum) == error(EPERM), signum
        assert tested("clone3") == error(ENOSYS)


def test_metadata_only_where_all_is_its_own(machine: str) -> None:
    """Modes and times can be changed where nothing else can be reached; truncate(2) where Landlock covers it."""
    assert Filter(machine)("fchmodat") == Filter(machine, writable=True)("utimensat") == error(EPERM)
    assert Filter(machine, own_files=True)("fchmodat") == ALLOW
    assert Filter(machine, truncates=False)("truncate") == error(EPERM)


def test_tables_name_the_same_calls() -> None:
    """A number stands for one call on each machine, and no call that the rules name is unknown to both."""
    for table in (X86_64, AARCH64):
        assert len(set(table.values())) == len(table)
    rules = filters.make_rules(**PORTABLE)
    assert rules.keys() <= X86_64.keys() | AARCH64.keys()
    only_here = set(X86_64) - set(AARCH64)
    # What the newer machine does not have is what was replaced by a call that it has.
    assert {"fork", "vfork", "open", "stat", "pipe", "poll", "chmod"} <= only_here
    assert not {"execve", "clone", "kill", "openat", "landlock_add_rule"} & only_here
