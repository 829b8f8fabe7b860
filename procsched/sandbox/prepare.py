"""From a policy to a sandbox that was tried out here, or an error that says which promise cannot be kept. Blocks.

Policy and facts make a plan, the plan a program, and the program is tried. Where bubblewrap turns out not to work, that
is one more fact, and a new plan is made without it, if the policy allows that.
"""

from __future__ import annotations

import errno
import os
import sys

from procsched import _system
from procsched._core.frozen import frozen
from procsched.errors import ValidationError
from procsched.sandbox import kernel, paths, trial
from procsched.sandbox.policy import NICE, Sandbox
from procsched.sandbox.programs import make_program
from procsched.sandbox.promises import WHAT, Facts, decide, unavailable, without_bwrap
from procsched.sandbox.uids import Leases

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from procsched.sandbox.paths import Interpreter
    from procsched.sandbox.programs import Program
    from procsched.sandbox.promises import Plan

START_SECONDS: Final = 30.0
KEPT: Final = 64  # trials that are remembered
# What a step of `inside.py` is for.
_PROMISE_OF_STEP: Final = {
    "parent-death signal": "orphan",
    "scratch": "scratch",
    "limits": "memory",
    "capabilities": "parent",
    "no new privileges": "parent",
    "landlock": "files",
    "seccomp": "parent",
    "self-test": "parent",
}
_tried: dict[Any, dict[str, str]] = {}  # single operations, atomic


@frozen
class Report:
    """What a sandbox promises here, and by what means.

    Args:
        kept: promise -> the mechanisms that keep it.
        given_up: promise -> why it is not kept.
        layers: what the process itself says of how it is confined.
        nice: by how much the niceness of a job is above that of this program.
        leaves_one: whether a job runs on all processors of this program but one.
    """

    kept: dict[str, str]
    given_up: dict[str, str]
    layers: dict[str, str]
    nice: int
    leaves_one: bool

    def __str__(self) -> str:
        lines = [f"{name:<10} {WHAT[name]}: {how}" for name, how in self.kept.items()]
        lines += [f"{name:<10} GIVEN UP: {why}" for name, why in self.given_up.items()]
        return "\n".join([*lines, f"{'niceness':<10} {nice_in_words(self.nice, self.leaves_one)}"])


class Prepared:
    """A sandbox that works here.

    Attributes:
        policy, plan, program, report: what their names say.
        python: the interpreter.
        search: the directories of installed packages on its import path.
        reads: what the interpreter itself reads.
    """

    def __init__(
        self,
        policy: Sandbox,
        plan: Plan,
        program: Program,
        found: Interpreter,
        layers: dict[str, str],
        nice: int | None,
    ) -> None:
        self.policy = policy
        self.plan = plan
        self.program = program
        self.python = found.python
        self.reads = found.reads
        self.search = found.search
        leaves_one = "processors" in layers  # not where a filter around the program refuses it
        self.report = Report(
            dict(plan.kept), dict(plan.given_up), layers, NICE if nice is None else nice, leaves_one
        )


def facts_of_system() -> Facts:
    """Ask this system what it offers."""
    system = "linux" if sys.platform.startswith("linux") else sys.platform
    if system != "linux":
        return Facts(system, "", 0, "", 0, "")
    machine = os.uname().machine if sys.maxsize > 1 << 32 else "32 bits"
    if machine not in kernel.MACHINES:
        return Facts(system, machine, os.geteuid(), "", 0, "")
    bwrap, no_bwrap = _find_bwrap()
    return Facts(
        system, machine, os.geteuid(), kernel.why_no_filters(), kernel.landlock_version(), bwrap, no_bwrap
    )


def _find_bwrap() -> tuple[str, str]:
    import shutil

    path = shutil.which("bwrap", path=os.defpath + ":/usr/local/bin")
    return (path, "") if path else ("", "bubblewrap (`bwrap`) is not installed")


def nice_in_words(nice: int, leaves_one: bool) -> str:
    """Return what it means for a job that so much is added to its niceness, and whether it leaves a processor."""
    if not nice:
        return "0: a job has as much of the processors as anything else"
    where = ", on all processors but one" if leaves_one else ""
    share = "a job has what others leave of the processors; nice=0 of the pool gives it an equal share"
    return f"+{nice}{where}: {share}"


def prepare(policy: Sandbox, facts: Facts | None = None, *, nice: int | None = None) -> Prepared:
    """Return a sandbox for a policy, tried out.

    Args:
        facts: what the system offers; asked for where it is None.
        nice: what a job is to be started with; None for the default, with which it leaves a processor to others.
    Raises:
        SandboxUnavailableError: a promise is not kept here.
        ValidationError: the policy names a path or a uid that it must not.
    """
    if not isinstance(policy, Sandbox):
        raise ValidationError(f"sandbox must be a Sandbox, or None, not {type(policy).__name__} {policy!r}")
    facts = facts or facts_of_system()
    plan = decide(policy, facts)
    paths.check_named(policy)
    found = paths.interpreter()
    if policy.run_as is not None:
        package = os.path.join(paths.HOME, "procsched", "sandbox", "inside.py")
        paths.check_readable_by(
            policy.run_as[0], (*found.reads[:2], *found.search, package, *policy.readable)
        )
    while True:
        program = make_program(policy, plan, facts, found, leaves_one=nice is None)
        try:
            layers = _try(program, policy.run_as)
        except trial.TrialError as error:
            if not plan.namespaces or error.step:
                raise _refusal(error, policy) from None
            facts = without_bwrap(facts, f"{facts.bwrap} fails: {error}")
            plan = decide(policy, facts)
        else:
            return Prepared(policy, plan, program, found, layers, nice)


def _try(program: Program, uids: range | None) -> dict[str, str]:
    key = (
        program.arguments,
        tuple(sorted(program.environment.items())),
        program.settings,
        uids,
        os.geteuid(),
        _system.cpus(),
    )
    layers = _tried.get(key)
    if layers is None:
        if uids is None:
            layers = trial.attempt(program, None, START_SECONDS)
        else:
            layers = _try_as_another(program, uids)
        if len(_tried) >= KEPT:
            _tried.clear()
        _tried[key] = layers
    return layers


def _try_as_another(program: Program, uids: range) -> dict[str, str]:
    leases = Leases(uids)
    try:
        uid = leases.take()
        if uid is None:
            raise unavailable("", f"all uids of run_as={uids} are in use", "give it more of them")
        return trial.attempt(program, uid, START_SECONDS)
    finally:
        leases.close()


def _refusal(error: trial.TrialError, policy: Sandbox) -> Exception:
    promise = _PROMISE_OF_STEP.get(error.step, "")
    if error.step == "exec" and os.strerror(errno.E2BIG) in str(error):
        name, value = max((policy.env or {}).items(), key=lambda each: len(each[1]), default=("", ""))
        most = f"env ({name!r} is the longest in it, with {len(os.fsencode(value))} bytes)" if name else "env"
        return ValidationError(
            f"{most}, readable and writable are more than a program can be started with; the system takes 128 KiB of "
            "one variable: give the job an argument in its place, or name directories and not files"
        )
    if error.step == "limits" and "PermissionError" in str(error):
        return ValidationError(
            f"open_files={policy.open_files}, file_size={policy.file_size} or another limit of the sandbox is above "
            "the hard limit of this program, which `ulimit -aH` shows"
        )
    if error.step == "limits" or "Memory" in str(error):
        return ValidationError(
            f"memory={policy.memory} is not enough for an interpreter here, or another limit is not: {error}"
        )
    where = f"the step {error.step!r} failed" if error.step else "the sandboxed interpreter did not start"
    return unavailable(promise, f"{where}: {error}", "see `procsched doctor`, and the log of the kernel")
