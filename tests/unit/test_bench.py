"""The benchmark script runs; what it measures is nobody's business here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import report
from tests.bench.framework import Bar, Case, Outcome

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


def test_a_bar_against_several_peers_takes_the_best_of_each_round() -> None:
    """The ratio is to the peer that was best in that round; rounds in which none has a figure do not count."""
    bar = Bar("fastest", "us", 0.25, ("one", "two", "not installed"))
    case = Case("calls", "calls", "throughput", {}, (bar,), {"us": "per call"})
    outcomes = {
        "procsched": Outcome([{"us": 2.0}, {"us": 3.0}, {"us": 1.0}, None]),
        "one": Outcome([{"us": 10.0}, {"us": 40.0}, None, {"us": 1.0}]),
        "two": Outcome([{"us": 20.0}, {"us": 12.0}, None, {"us": 1.0}]),
    }
    found = report.judge(case, outcomes, bar)
    assert found.ratio == pytest.approx((2 / 10 + 3 / 12) / 2)
    assert (found.other, found.holds) == (11.0, True)
    assert "the best peer 11" in report.bar_table([found])
