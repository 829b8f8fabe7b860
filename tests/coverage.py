"""Measure the branches that the tests take, in the parent and in its children: ``python -m tests.coverage``.

Arguments go to pytest; without any file among them what tests the core (`_core`, `schedules`) or the pool (`workers`,
`child`) is run, as many tests at once as there are CPUs, and then the ways that other systems go (`tests.without`).
Both groups must reach `LEAST` per cent. Where a line cannot be covered, a comment says why, and the reasons are listed
at the end: ``# pragma: no cover - reason``, or ``no branch``.

A tracer makes the start of a process six times as dear. So what tests neither of the two is left out, and every wait
of the tests gets longer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST = 95.0
GROUPS = {
    "core": ("procsched/_core/*", "procsched/schedules/*"),
    "pool": ("procsched/workers/*", "procsched/child/*"),
}
LEFT_OUT = {
    "neither core nor pool: the stores": (
        "process/test_plain_stored.py",
        "process/test_postgres_server.py",
        "process/test_store_faults.py",
        "process/test_stored.py::test_every_commit_may_be_the_last",
        "process/test_stored.py::test_random_kills_under_load",
        "unit/test_durable_stores.py",
        "unit/test_durable_writer.py",
        "unit/test_lease.py",
        "unit/test_migrations.py",
        "unit/test_plain_stores.py",
        "unit/test_store_failures.py",
        "unit/test_store_rows.py",
        "unit/test_stores.py",
    ),
    "neither core nor pool: the commands, and the tools of the tests": (
        "process/test_demo.py",
        "process/test_doctor.py",
        "unit/test_bench.py",
        "unit/test_cli.py",
        "unit/test_reference.py",
        "unit/test_soak_checking.py",
    ),
    "neither core nor pool: what is on the other side of a sandbox": (
        "sandbox/test_attacks.py",
        "sandbox/test_old_kernels.py",
        "sandbox/test_usable.py",
        "unit/test_filters.py",
    ),
    "whole programs, and the same for very long: others take these ways in less time": (
        "process/test_examples.py",
        "process/test_races.py",
        "process/test_stdlib.py",
        "property/test_cron_oracle.py",
        "simulation/test_simulation.py",
    ),
    "measure the modules or the wake-ups of a process, and a tracer has some of its own": (
        "process/test_executor.py::test_the_parent_loads_no_heavy_module",
        "process/test_idle.py",
        "process/test_stored.py::test_no_worker_loads_sqlalchemy",
        "unit/test_imports.py",
    ),
    "a hundred thousand tasks, a minute under a tracer": (
        "unit/test_scheduler.py::test_many_tasks_cost_logarithmic_time_and_leave_no_tombstones",
    ),
}
WITHOUT = ("fork", "pidfd,subreaper", "timerfd,kernel_timer,eventfd", "memfd,proc")  # as `.ci/run` does
ENVIRON = {
    "PROCSCHED_TEST_TIMEOUT": "60",
    "COVERAGE_CORE": "ctrace",  # the one that sees branches in every version of Python
}


def coverage(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=False).returncode


def selection() -> list[str]:
    """Return what pytest is told where nobody says which files to run."""
    names = [name for names in LEFT_OUT.values() for name in names]
    left_out = [f"--{'deselect' if '::' in name else 'ignore'}=tests/{name}" for name in names]
    return ["-q", "-n", "logical", "--dist", "worksteal", "--timeout=300", *left_out]


def reasons(patterns: tuple[str, ...]) -> list[str]:
    """Return the place and the reason of each comment that leaves something out."""
    found = []
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        if path.suffix == ".py":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                _code, mark, reason = line.partition("# pragma: ")
                if mark:
                    found.append(f"{path.relative_to(ROOT)}:{number}: {reason}")
    return found


def main(arguments: list[str]) -> int:
    """Run, combine, report; return 1 where a test failed or a group is below what it must reach."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ.update(ENVIRON)
    chosen = any(Path(argument.partition("::")[0]).exists() for argument in arguments)
    with tempfile.TemporaryDirectory() as parts:  # there are thousands
        os.chmod(parts, 0o1777)  # the hosts of the tests of the sandbox are other users
        os.environ["COVERAGE_FILE"], os.environ["PROCSCHED_TEST_MEASURED"] = f"{parts}/.coverage", parts
        more = arguments if chosen else [*selection(), *arguments]
        failed = coverage("run", "-m", "pytest", "-p", "no:cacheprovider", *more)
        if not chosen:
            failed |= coverage(
                "run", "-m", "tests.without", "--short", *WITHOUT, "--", "-n", "logical", "--timeout=300"
            )
        os.environ["COVERAGE_FILE"] = str(ROOT / ".coverage")
        coverage("erase")
        coverage("combine", "--quiet", parts)
    for name, patterns in GROUPS.items():
        print(f"=== {name}", flush=True)
        failed |= coverage("report", f"--include={','.join(patterns)}", f"--fail-under={LEAST}")
        print("\n".join(["left out:", *reasons(patterns)]), flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
