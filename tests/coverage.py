"""Measure the branches that the tests take, in the parent and in its children: ``python -m tests.coverage``.

Arguments go to pytest; without any the whole suite runs, at about twice its time. The core (`_core`, `schedules`) and
the pool (`workers`, `child`) must reach `LEAST` per cent each. Where a line cannot be covered, a comment says why:
``# pragma: no cover - reason``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LEAST = 95.0
GROUPS = {
    "core": ("procsched/_core/*", "procsched/schedules/*"),
    "pool": ("procsched/workers/*", "procsched/child/*"),
}


def coverage(*arguments: str, **options: object) -> int:
    command = [sys.executable, "-m", "coverage", *arguments]
    return subprocess.run(command, cwd=ROOT, check=False, **options).returncode  # type: ignore[call-overload,no-any-return]


def main(arguments: list[str]) -> int:
    """Run, combine, report; return 1 where a test failed or a group is below what it must reach."""
    coverage("erase")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    failed = coverage("run", "-m", "pytest", "-p", "no:cacheprovider", *arguments)
    coverage("combine", "--quiet")
    for name, patterns in GROUPS.items():
        print(f"=== {name}", flush=True)
        below = coverage("report", f"--include={','.join(patterns)}", f"--fail-under={LEAST}")
        failed = failed or below
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
