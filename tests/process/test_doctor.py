"""The doctor: it tries for real, says what is degraded, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from procsched import Limits
from procsched.cli import __main__ as cli
from procsched.cli import doctor, doctor_probes, doctor_runs
from procsched.sandbox.policy import NICE, PROMISES

STACK = functools.partial(doctor_probes.Probe, "stack of what hung", "a stack", "no stack")
ROOT = Path(__file__).parents[2]
linux = pytest.mark.skipif(sys.platform != "linux", reason="what is expected here is what Linux has")


def examine(tmp_path: Path, *words: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """Run the doctor with a temporary directory of its own and some features switched off."""
    scratch = tmp_path / "tmp"
    scratch.mkdir(exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch), "PROCSCHED_WITHOUT": without}
    done = subprocess.run(
        [sys.executable, "-m", "procsched", "doctor", *words],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr == ""
    assert list(scratch.iterdir()) == []
    return done


@linux
@pytest.mark.slow
def test_doctor_json(tmp_path: Path) -> None:
    """On Linux everything works, each row says what was seen, and the exit code is 0."""
    done = examine(tmp_path, "--json")
    data: dict[str, Any] = json.loads(done.stdout)
    rows = {row["name"]: row for row in data["probes"]}
    # The stack is waited for half a millisecond: on a busy machine a record may do without.
    assert set(data["degraded"]) <= {"stack of what hung"}, [
        row for row in data["probes"] if not row["works"]
    ]
    assert done.returncode == bool(data["degraded"])
    assert data["without"] == []
    assert {probe.name for probe in doctor_probes.SYSTEM_PROBES} < set(rows)
    for name, row in rows.items():
        assert row["works"] is (name not in data["degraded"])
        assert row["found"]
        assert row["gives"]
        assert (row["degraded"] is None) is row["works"]
    assert "ms after its deadline" in rows["kill at the deadline"]["found"]
    fields = [field.name for field in dataclasses.fields(Limits)]
    assert [field for field, row in data["limits"].items() if row["held"] and row["by"]] == fields, data[
        "limits"
    ]
    sandbox = data["sandbox"]
    if sandbox["kept"]:
        assert {*sandbox["kept"], *sandbox["given_up"]} == set(PROMISES)
        assert sandbox["nice"] == NICE
        assert sandbox["leaves_one"] is True
    else:
        assert sandbox["refused"]["remedy"]


@linux
@pytest.mark.slow
def test_doctor_says_what_is_degraded(tmp_path: Path) -> None:
    """A feature that is switched off is shown as missing, with the promise that is weaker without it."""
    done = examine(tmp_path, without="timerfd,eventfd,kernel_timer")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    for name in ("timer descriptor", "clock watch", "event descriptor", "kernel timer"):
        assert any(line.startswith(f"MISSING  {name}") and "switched off" in line for line in lines), name
    assert any(line.startswith("works    child subreaper") for line in lines)
    assert "Sandbox, for code that nobody trusts:" in lines
    assert "  without clock watch: it is noticed at the next wake-up, or by Scheduler.wake()" in lines


@pytest.mark.parametrize(
    ("stacks", "refused", "line"),
    [
        ((8,), None, "Everything works: the promises hold here in full."),
        ((4, 8), None, "Everything works but what is said above of stack of what hung."),
        ((8,), {}, "Everything works but what is said above of the sandbox with its default policy."),
    ],
)
def test_the_last_line_is_what_those_above_it_say(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stacks: tuple[int, ...],
    refused: dict[str, str] | None,
    line: str,
) -> None:
    """Half of the stacks do not count as a stack, nor a sandbox that is refused as one."""
    found = iter(stacks)
    monkeypatch.setattr(doctor_runs.Runs, "_count_stacks", lambda _self, _grace: next(found))
    monkeypatch.setattr(doctor_runs.Runs, "probes", lambda self: (STACK(self.try_stack),))
    monkeypatch.setattr(doctor, "SYSTEM_PROBES", ())
    monkeypatch.setattr(doctor, "examine_limits", dict)
    if refused is not None:
        refused = {"promise": "", "tried": "the interpreter cannot be read", "remedy": "use another"}
    sandbox = {"kept": {}, "given_up": {}, "refused": refused, "nice": 7, "leaves_one": True}
    monkeypatch.setattr(doctor, "examine_sandbox", lambda: sandbox)
    assert cli.main(["doctor"]) == doctor.EXIT_OK
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == line
    assert any(row.startswith("  niceness +7, on all processors but one: ") for row in out)
    assert any(row.startswith("in part  stack") and "8 of 8 with grace" in row for row in out) is (
        len(stacks) > 1
    )
    assert any("default policy is refused here: the interpreter" in row for row in out) is (
        refused is not None
    )


def test_a_stack_that_never_comes_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a grace or without."""
    monkeypatch.setattr(doctor_runs.Runs, "_count_stacks", lambda _self, _grace: 0)
    runs = doctor_runs.Runs()
    try:
        with pytest.raises(doctor_probes.MissingError, match="none of 16 records"):
            runs.try_stack()
    finally:
        runs.close()


def test_probe_that_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switch counts before the system is asked."""
    monkeypatch.setenv("PROCSCHED_WITHOUT", "memfd,eventfd")
    with pytest.raises(doctor_probes.MissingError, match="switched off by PROCSCHED_WITHOUT"):
        doctor_probes.need("eventfd")
    doctor_probes.need("fork")


def test_unknown_feature_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name in PROCSCHED_WITHOUT that means nothing is an error: else one would believe that it was tried."""
    monkeypatch.setenv("PROCSCHED_WITHOUT", "eventfd,nope")
    assert cli.main(["doctor"]) == doctor.EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert "PROCSCHED_WITHOUT names 'nope'" in err
    assert "fork, pidfd, " in err
