"""Which mechanism keeps which promise here, or that none does. Pure: decided from a policy and what the system offers.

    Sandbox + Facts --decide--> Plan: the layers to use, and for each promise what keeps it
                         '----> SandboxUnavailableError(promise, tried, remedy)

There are two sets of layers. The portable one is in every sandbox: a fresh exec, rlimits, Landlock, a seccomp filter.
Namespaces, made by bubblewrap, are added where a promise asks for them.
"""

from __future__ import annotations

from procsched._core.frozen import frozen
from procsched.errors import SandboxUnavailableError
from procsched.sandbox.policy import PROMISES
from procsched.sandbox.syscalls import MACHINES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from procsched.sandbox.policy import Sandbox

MOST_THREADS: Final = 32  # where the policy does not say and they can be counted
TRUNCATE_ABI, SCOPE_ABI = (
    3,
    6,
)  # of Landlock, from which it covers truncate(2), and signals and abstract sockets

WHAT: Final = {
    "secrets": "nothing of the parent is in a job's process: no memory, descriptors, variables, keys",
    "parent": "a job cannot signal, trace, slow down or limit another process",
    "network": "a job has no network and reaches no socket",
    "files": "a job reads and writes nothing but what is named",
    "names": "a job cannot even ask whether something else exists",
    "tree": "no process of a job outlives the run",
    "orphan": "a job dies with the parent, also by SIGKILL",
    "memory": "the memory of a job is limited",
    "processes": "the number of a job's processes is limited",
    "threads": "the number of a job's threads is limited",
    "cpu": "the CPU time of a job is limited",
    "scratch": "what a job writes is limited in all",
}

_BWRAP: Final = (
    "install bubblewrap (0.8 or newer) where unprivileged user namespaces are allowed: "
    "`apt-get install bubblewrap`, or the like"
)


@frozen
class Facts:
    """What this system offers.

    Args:
        system, machine: as `platform` says, "linux" and "x86_64" say.
        uid: of this process.
        seccomp: "" where filters can be set, else why not.
        landlock: version of its interface, 0 for none.
        bwrap: path of bubblewrap, "" where there is none that works.
        no_bwrap: why there is none, or why it does not work.
    """

    system: str
    machine: str
    uid: int
    seccomp: str
    landlock: int
    bwrap: str
    no_bwrap: str = ""


@frozen
class Plan:
    """How a sandbox is made here.

    Args:
        namespaces: whether bubblewrap is used.
        threads: how many threads there may be.
        tasks: RLIMIT_NPROC, or None where nothing is to be counted.
        kept: promise -> what keeps it, in words.
        given_up: promise -> why nothing keeps it.
    """

    namespaces: bool
    threads: int
    tasks: int | None
    kept: tuple[tuple[str, str], ...]
    given_up: tuple[tuple[str, str], ...]


def without_bwrap(facts: Facts, why: str) -> Facts:
    """Return the facts of a system on which bubblewrap does not work."""
    return Facts(facts.system, facts.machine, facts.uid, facts.seccomp, facts.landlock, "", why)


def decide(policy: Sandbox, facts: Facts) -> Plan:
    """Return how the promises of a policy are kept here.

    Raises:
        SandboxUnavailableError: one is not kept by anything, and was not given up.
    """
    _check_system(facts)
    _check_user(policy, facts)
    reasons = _reasons_for_namespaces(policy)
    namespaces = False
    given_up: dict[str, str] = {}
    if reasons:
        namespaces = bool(facts.bwrap)
        for promise, why in reasons.items():
            if namespaces:
                break
            tried = f"{why}; there are none: {facts.no_bwrap}"
            # A limit can be given up; the directory that it is for would be that of the host.
            if promise not in policy.give_up or promise == "scratch":
                raise unavailable(promise, tried, _remedy(promise))
            given_up[promise] = tried
    kept = _always_kept(facts)
    kept["tree"] = "seccomp refuses fork: there is one process" if policy.processes == 1 else "pid namespace"
    kept["orphan"] = "parent-death signal, which seccomp does not let it clear"
    if namespaces:
        kept["network"] += ", network namespace"
        kept["files"] += ", private root"
        kept["names"] = "private root: nothing else is in it, but the way to what is named"
        kept["orphan"] += ", and that of the pid namespace's init"
    elif "names" in policy.give_up:
        given_up.setdefault("names", "no namespaces are used: stat(2) answers for any path")
    threads, tasks = _count_tasks(policy, facts, kept, given_up, namespaces=namespaces)
    _limit_sums(policy, kept, given_up)
    _limit_writes(policy, kept, given_up)
    return Plan(
        namespaces,
        threads,
        tasks,
        tuple((name, kept[name]) for name in PROMISES if name in kept),
        tuple((name, given_up[name]) for name in PROMISES if name in given_up),
    )


def unavailable(promise: str, tried: str, remedy: str) -> SandboxUnavailableError:
    """Return the error which says that a promise cannot be kept here; with "" for a promise, that nothing can start."""
    what = "no sandbox can be started here"
    if promise:
        what = f"nothing keeps the promise {promise!r} here, that {WHAT[promise]}"
    return SandboxUnavailableError(
        f"{what}: {tried}; {remedy}",
        promise=promise,
        tried=tried,
        remedy=remedy,
    )


def _check_system(facts: Facts) -> None:
    if facts.system != "linux":
        raise unavailable(
            "parent",
            f"this system is {facts.system}, which has neither seccomp nor Landlock",
            "run it on Linux 5.13 or newer, in a virtual machine for example",
        )
    if facts.machine not in MACHINES:
        raise unavailable(
            "parent",
            f"there is no table of system calls for {facts.machine}",
            f"run it on {' or '.join(MACHINES)}",
        )
    if facts.seccomp:
        raise unavailable(
            "parent",
            f"no seccomp filter can be set: {facts.seccomp}",
            "run it on a kernel with CONFIG_SECCOMP_FILTER, outside of what refuses seccomp(2)",
        )
    if not facts.landlock:
        raise unavailable(
            "files",
            "this kernel has no Landlock, or it is switched off",
            "run it on Linux 5.13 or newer with `landlock` among the modules of the lsm= option; in a container, "
            "with a seccomp profile that lets landlock_create_ruleset through",
        )


def _check_user(policy: Sandbox, facts: Facts) -> None:
    if facts.uid == 0 and policy.run_as is None:
        raise unavailable(
            "parent",
            "this process is root, and a sandboxed one must not be",
            "give uids that belong to nobody else, five more than there are workers: "
            "Sandbox(run_as=range(700_000, 700_064)); or do not run the program as root",
        )
    if facts.uid != 0 and policy.run_as is not None:
        raise unavailable(
            "parent",
            f"run_as= needs root, and this process has uid {facts.uid}",
            "leave run_as= out: the sandbox runs under this process's own uid then",
        )


def _reasons_for_namespaces(policy: Sandbox) -> dict[str, str]:
    """Return the promises for which namespaces are needed, with the reason."""
    reasons = {}
    if policy.processes > 1:
        reasons["tree"] = f"processes={policy.processes} needs a pid namespace"
    if policy.scratch:
        reasons["scratch"] = f"scratch={policy.scratch} needs a file system of its own, in a mount namespace"
    if "names" not in policy.give_up:
        reasons["names"] = "hiding names needs a root of its own, in a mount namespace"
    if policy.threads is not None and policy.threads > 1 and policy.run_as is None:
        reasons["threads"] = f"counting threads={policy.threads} needs a private uid or a user namespace"
    return reasons


def _remedy(promise: str) -> str:
    return {
        "tree": f"{_BWRAP}; or leave processes=1",
        "scratch": f"{_BWRAP}; or leave scratch=0 and let the job return what it makes",
        "names": f'{_BWRAP}; or accept it with Sandbox(give_up={{"names"}})',
        "threads": f"{_BWRAP}; or leave threads=None, or threads=1",
    }[promise]


def _always_kept(facts: Facts) -> dict[str, str]:
    own_uid = facts.uid == 0
    scope = facts.landlock >= SCOPE_ABI
    return {
        "secrets": "fresh exec, its own environment, no descriptors but its pipes, seccomp without keyrings, no /proc",
        "parent": "seccomp with rules for pids and owners of descriptors"
        + (", Landlock signal scope" if scope else "")
        + (", a uid of its own" if own_uid else ""),
        "network": "seccomp without sockets but pairs of streams",
        "files": f"Landlock {facts.landlock}, seccomp without what changes metadata",
    }


def _count_tasks(
    policy: Sandbox, facts: Facts, kept: dict[str, str], given_up: dict[str, str], *, namespaces: bool
) -> tuple[int, int | None]:
    """Say what limits processes and threads; return the number of threads and RLIMIT_NPROC."""
    countable = namespaces or facts.uid == 0
    by = "a user namespace of its own" if namespaces else "a uid of its own"
    if policy.processes > 1:
        if (policy.threads or 1) > 1 and "threads" not in policy.give_up:
            raise unavailable(
                "threads",
                f"processes={policy.processes} and threads={policy.threads} are counted together by the kernel",
                'ask for one of them, or accept it with Sandbox(give_up={"threads"})',
            )
        threads = policy.threads or 1
        kept["processes"] = f"RLIMIT_NPROC in {by}"
        if threads > 1:
            given_up["threads"] = "processes and threads are counted together"
        else:
            kept["threads"] = "seccomp refuses threads"
        return threads, policy.processes * threads
    kept["processes"] = "seccomp refuses fork and exec"
    if policy.threads == 1 or (policy.threads is None and not countable):
        kept["threads"] = "seccomp refuses threads"
        return 1, None
    threads = policy.threads or MOST_THREADS
    if countable:
        kept["threads"] = (
            f"RLIMIT_NPROC in {by}: {threads}, or as many as memory={policy.memory} has room for"
        )
        return threads, threads
    given_up.setdefault("threads", "nothing counts the threads of one process under a shared uid")
    return threads, None


def _limit_sums(policy: Sandbox, kept: dict[str, str], given_up: dict[str, str]) -> None:
    """Say what limits memory and CPU time, which the kernel counts for each process."""
    each = {
        "memory": (
            "RLIMIT_AS, seccomp without memory that it does not count",
            f"each of {policy.processes} processes may have memory={policy.memory} bytes",
        ),
        "cpu": (
            "RLIMIT_CPU",
            f"each of {policy.processes} processes may have cpu_seconds={policy.cpu_seconds}",
        ),
    }
    for promise, (mechanism, why) in each.items():
        if policy.processes == 1:
            kept[promise] = mechanism
        elif promise in policy.give_up:
            given_up[promise] = why
        else:
            raise unavailable(
                promise,
                f"{why}, and nothing here adds them up",
                f'leave processes=1, or accept it with Sandbox(give_up={{"{promise}"}})',
            )


def _limit_writes(policy: Sandbox, kept: dict[str, str], given_up: dict[str, str]) -> None:
    if not policy.writable:
        kept["scratch"] = "tmpfs with a size" if policy.scratch else "nothing can be written"
    elif "scratch" in policy.give_up:
        given_up["scratch"] = "what is written below writable= is not limited in all"
    else:
        raise unavailable(
            "scratch",
            "nothing limits what is written below writable= in all",
            'use scratch= and return what is made, or accept it with Sandbox(give_up={"scratch"})',
        )
