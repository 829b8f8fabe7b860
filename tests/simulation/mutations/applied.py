"""Applies a break to a copy of the package, and lets the simulation run on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.simulation.mutations.listed import Mutation

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 300  # seconds that a run on a broken copy may take; one that hangs is caught as well


class Unapplicable(AssertionError):
    """A break no longer fits the source."""


def copy_with(mutation: Mutation | None, directory: Path) -> None:
    """Put a copy of the package there, with the break in it.

    Raises:
        Unapplicable: what it replaces does not stand there exactly once.
    """
    shutil.copytree(ROOT / "procsched", directory / "procsched", ignore=shutil.ignore_patterns("__pycache__"))
    if mutation is None:
        return
    path = directory / "procsched" / mutation.module
    text = path.read_text(encoding="utf-8")
    count = text.count(mutation.before)
    if count != 1:
        raise Unapplicable(f"{mutation.name!r}: its text stands {count} times in {mutation.module}")
    path.write_text(text.replace(mutation.before, mutation.after), encoding="utf-8")


def first_caught(mutation: Mutation | None, seeds: int, first: int = 0) -> tuple[int | None, str]:
    """Run up to `seeds` seeds on a copy with the break; return the first that fails, and what it says."""
    with tempfile.TemporaryDirectory(prefix="procsched-mutation-") as place:
        directory = Path(place)
        copy_with(mutation, directory)
        path = os.pathsep.join((place, str(ROOT)))
        command = [
            sys.executable,
            "-m",
            "tests.simulation",
            "--stop",
            "--seeds",
            str(seeds),
            "--first",
            str(first),
        ]
        try:
            done = subprocess.run(
                command,
                cwd=place,
                env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return -1, "it hangs"
    found = re.search(r"^seed (\d+) FAILED: (.*)", done.stdout, re.MULTILINE)
    if found:
        return int(found[1]), found[2]
    if done.returncode:
        raise AssertionError(
            f"the simulation itself has failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    return None, done.stdout[-200:].strip()
