"""The program that becomes a sandboxed process, and the settings that it is sent.

The helper forks and executes it: ``[bwrap ...] python -I -S -B -c ...``, and that is sent the settings (`inside.py`).
"""

from __future__ import annotations

from procsched._core.frozen import frozen
from procsched.sandbox import filters, paths
from procsched.sandbox.plain import dump
from procsched.sandbox.promises import TRUNCATE_ABI

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final

    from procsched.sandbox.paths import Interpreter
    from procsched.sandbox.policy import Sandbox
    from procsched.sandbox.promises import Facts, Plan

# In the place of arguments: where the pipes are in the process (0 is /dev/null, 1 and 2 are its output), and the
# pid of the process that starts it.
TASK, ANSWER, PARENT, REPORT = "<task>", "<answer>", "<parent>", "<report>"
_BOOT: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from procsched.sandbox.inside import main; "
    "sys.path.pop(0); main()"
)
BYTES_PER_FILE: Final = 1024  # of scratch, for each file or directory: what the kernel spends on one
_MOST_NODES: Final = 1 << 62
# Where libraries are told how many threads they may make: those that would fail without.
_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


@frozen
class Program:
    """What is executed, and what it is told.

    Args:
        arguments: the first is a path; some stand for numbers, see `command`.
        environment: all of it.
        settings: the first message to it, with its length before it.
        namespaced: whether it is bubblewrap's child that does the work.
    """

    arguments: tuple[str, ...]
    environment: dict[str, str]
    settings: bytes
    namespaced: bool

    def command(self, task_fd: int, answer_fd: int, report_fd: int, parent: int) -> list[str]:
        """Return the arguments with the numbers in their places."""
        numbers = {TASK: str(task_fd), ANSWER: str(answer_fd), REPORT: str(report_fd), PARENT: str(parent)}
        return [numbers.get(argument, argument) for argument in self.arguments]


def make_program(
    policy: Sandbox, plan: Plan, facts: Facts, found: Interpreter, *, leaves_one: bool
) -> Program:
    """Return the program of a policy for which it was decided how its promises are kept.

    Args:
        leaves_one: whether a job leaves a processor to others.
    """
    environment = {"LANG": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/"}
    if policy.scratch:
        environment |= {"HOME": paths.SCRATCH, "TMPDIR": paths.SCRATCH}
    environment |= dict.fromkeys(_THREAD_VARIABLES, str(min(plan.threads, 4)))
    environment |= policy.env or {}
    python = [
        found.python,
        *("-I", "-S", "-B", "-X", "utf8", "-c", _BOOT),
        *((TASK, ANSWER, "0", REPORT) if plan.namespaces else (TASK, ANSWER, PARENT, "-1")),
        paths.HOME,
    ]
    arguments = [*_bwrap(policy, facts.bwrap, found), *python] if plan.namespaces else python
    settings = dump(
        _settings(policy, plan, facts, found) | {"leaves_one": leaves_one}, _MOST_NODES, "the policy"
    )
    return Program(
        tuple(arguments), environment, len(settings).to_bytes(4, "big") + settings, plan.namespaces
    )


def _settings(policy: Sandbox, plan: Plan, facts: Facts, found: Interpreter) -> dict[str, Any]:
    rules = filters.make_rules(
        processes=policy.processes,
        threads=plan.threads > 1,
        writable=bool(policy.writable or policy.scratch),
        own_files=bool(policy.scratch) and not policy.writable,
        truncates=facts.landlock >= TRUNCATE_ABI,
    )
    program, places = filters.pack(filters.assemble(facts.machine, rules))
    scratch = [paths.SCRATCH, policy.scratch, max(16, policy.scratch // BYTES_PER_FILE)]
    tasks = plan.tasks
    if tasks is not None and plan.namespaces:
        tasks += 2  # its init, which bubblewrap leaves there, and who reports of it
    return {
        "memory": policy.memory,
        "cpu_seconds": policy.cpu_seconds,
        "open_files": policy.open_files,
        "file_size": policy.file_size,
        "tasks": tasks,
        "scratch": scratch if policy.scratch else None,
        "cwd": paths.SCRATCH if policy.scratch else "/",
        "drop": plan.namespaces,
        "alone": policy.processes == 1,
        "landlock": facts.landlock,
        "rules": [
            [path, rights]
            for path, rights in paths.rules_of(policy, found.reads, scratch=bool(policy.scratch))
        ],
        "filter": program.hex(),
        "pids": places,
        "outside": paths.outside_of(policy, found.reads),
        "path": [*_library(found), *found.search],
        "nodes": policy.result_nodes,
        "result": policy.result,
        "output": policy.output,
    }


def _library(found: Interpreter) -> list[str]:
    import os
    import sys

    library = os.path.dirname(os.path.abspath(os.__file__))
    return [library, *(entry for entry in sys.path if entry.endswith("lib-dynload"))]


def _bwrap(policy: Sandbox, bwrap: str, found: Interpreter) -> list[str]:
    """Return bubblewrap with its arguments: a root with what is named in it, and a namespace of every kind."""
    import os

    arguments = [
        bwrap,
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
    ]
    if not policy.scratch:
        # That needs a second user namespace, from which the mounts of the first cannot be changed. The filter refuses
        # new ones in any case.
        arguments.append("--disable-userns")
    else:
        arguments += ["--perms", "0700", "--size", str(policy.scratch), "--tmpfs", paths.SCRATCH]
        arguments += [
            "--cap-add",
            "CAP_SYS_ADMIN",
        ]  # to limit the number of files as well; given up right after
    package = os.path.join(paths.HOME, "procsched")
    readable = _outermost({*found.reads, *policy.readable, package})
    # What is gone by now is left out, as Landlock's rule is: a job may have removed it from where it may write.
    for path in readable:
        arguments += ["--ro-bind-try", path, path]
    for path in sorted(policy.writable):
        path = _mounted_at(path, readable)
        arguments += ["--bind-try", path, path]
    for path in paths._DEVICES:
        arguments += ["--dev-bind-try", path, path]
    return [*arguments, "--remount-ro", "/", "--chdir", "/", "--"]


def _outermost(wanted: Iterable[str]) -> list[str]:
    """Return the paths that are not below another one of them: each mount takes its time, and brings all below it."""
    made: list[str] = []
    for path in sorted(wanted, key=lambda path: (path.count("/"), path)):
        place = _mounted_at(path, made)
        if place != path or not any(path.startswith(above.rstrip("/") + "/") for above in made):
            made.append(place)
    return made


def _mounted_at(path: str, mounts: Iterable[str]) -> str:
    """Return where a path is to be mounted: where it leads, if it is a link below a mount that leads out of that."""
    import os

    for above in mounts:
        if path.startswith(above.rstrip("/") + "/") and not paths.is_within(path, [above]):
            return os.path.realpath(path)
    return path
