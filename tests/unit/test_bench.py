"""The benchmark script runs; what it measures is nobody's business here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-m", "tests.bench", "--quick", "--only", "import", "--peers", "procsched", "ppe")


@pytest.mark.slow
def test_a_quick_case_runs_from_the_command_line_to_the_table(tmp_path: Path) -> None:
    """One case, once: a table on stdout, every figure in the JSON, exit code 0."""
    out = tmp_path / "out.json"
    done = subprocess.run(
        [*COMMAND, "--json", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "import in a fresh interpreter" in done.stdout
    content = json.loads(out.read_text())
    assert content["cases"]["import"]["peers"]["procsched"]["rounds"][0]["import"] > 0
    assert content["bars"][0]["ratio"] > 0
