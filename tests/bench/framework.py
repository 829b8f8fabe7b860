"""Cases, bars and rounds: what is measured, and the fresh process for each (case, peer, round)."""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GROUPS = (
    "kills",
    "storms",
    "idling",
    "dates",
    "starting",
    "throughput",
    "latency",
    "footprint",
    "payloads",
    "stores",
    "sandbox",
)
LIMIT = 300.0  # seconds that one measured process may take
NOISY = 0.15  # share of the machine that others may use before a figure is marked
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE")  # byte code: as installed

Figures = dict[str, float]
Measure = Callable[[bool], Figures]


@dataclass(frozen=True)
class Bar:
    """One promise about a case.

    Args:
        what: in words, with the limit.
        figure: which of the figures.
        limit: the figure of `ours`, or its ratio to `against`, is at most this.
        against: the peer that it is held against, or several: the best of them in each round; none for an absolute
            limit.
        ours: the peer that is procsched.
        exactly: the figure must be the limit.
    """

    what: str
    figure: str
    limit: float
    against: str | tuple[str, ...] | None = None
    ours: str = "procsched"
    exactly: bool = False


@dataclass(frozen=True)
class Case:
    """Something that is measured on several peers."""

    name: str
    title: str
    group: str
    peers: Mapping[str, Measure]
    bars: tuple[Bar, ...]
    units: Mapping[str, str]


@dataclass
class Outcome:
    """What the rounds gave for one peer."""

    rounds: list[Figures | None] = field(default_factory=list)
    missing: str = ""
    errors: list[str] = field(default_factory=list)
    others: list[float] = field(default_factory=list)  # share of the machine that somebody else used
    # Processes during which a source of procsched was written: parent and child may not match.
    edited: int = 0

    def values(self, figure: str) -> list[float]:
        """Return a figure's values over the rounds that have it."""
        return [found[figure] for found in self.rounds if found and found.get(figure) is not None]

    @property
    def noisy(self) -> bool:
        """Whether somebody else was busy in any round."""
        return any(share > NOISY for share in self.others)


Results = dict[str, dict[str, Outcome]]  # case -> peer -> outcome
_cases: dict[str, Case] = {}


def case(
    name: str,
    title: str,
    *,
    peers: Mapping[str, Measure],
    bars: tuple[Bar, ...] = (),
    units: Mapping[str, str],
) -> None:
    """Register a case; called by the modules in `GROUPS`.

    Args:
        peers: name -> what measures it, given whether to be quick; runs in a process of its own.
        units: the figures to show, with their unit.
    """
    measure = next(iter(peers.values()))
    group = getattr(measure, "func", measure).__module__.rpartition(".")[2]
    _cases[name] = Case(name, title, group, peers, bars, units)


def load_cases() -> dict[str, Case]:
    """Return all cases in the order of the groups."""
    for group in GROUPS:
        importlib.import_module(f"tests.bench.{group}")
    return dict(_cases)


def load_case(group: str, name: str) -> Case:
    """Return one case; imports its group alone."""
    importlib.import_module(f"tests.bench.{group}")
    return _cases[name]


def median_range(values: list[float]) -> tuple[float, float, float]:
    """Return median, least and greatest."""
    return statistics.median(values), min(values), max(values)


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of the values lie, the nearest one."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def clean_environment() -> dict[str, str]:
    """Return the environment of a measured process."""
    env = {name: value for name, value in os.environ.items() if name not in UNSET}
    return env | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def run_rounds(
    cases: list[Case],
    rounds: int,
    *,
    quick: bool,
    tell: Callable[[str], None],
    peers: list[str] | None = None,
) -> Results:
    """Measure: round by round, in each the peers of a case one after another, the first one another each time."""
    results: Results = {
        each.name: {peer: Outcome() for peer in each.peers if peers is None or peer in peers}
        for each in cases
    }
    for number in range(rounds):
        for each in cases:
            names = list(results[each.name])
            turn = number % len(names) if names else 0
            for peer in names[turn:] + names[:turn]:
                outcome = results[each.name][peer]
                if outcome.missing:
                    continue
                tell(f"round {number + 1}/{rounds}  {each.name}  {peer}")
                _run_one(each, peer, outcome, quick=quick)
                if outcome.missing or (outcome.errors and outcome.rounds[-1] is None):
                    tell("    " + (outcome.missing or outcome.errors[-1].splitlines()[-1].strip()))
    return results


def _run_one(each: Case, peer: str, outcome: Outcome, *, quick: bool) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.bench.child",
        each.group,
        each.name,
        peer,
        "quick" if quick else "full",
    ]
    sources = _newest_source()
    busy, began = _busy_seconds(), time.monotonic()
    ours = _children_seconds()
    # Files and not pipes: a worker that a peer leaves behind holds them open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        late = ""
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            late = f"\nnot done within {LIMIT:g} s"
        finally:
            try:
                # What a peer has left in the session that we made for it.
                os.killpg(process.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
            process.wait()
        for file in (out, err):
            file.seek(0)
        output, errors = out.read(), err.read() + late
    seconds = (time.monotonic() - began) * (os.cpu_count() or 1)
    others = (_busy_seconds() - busy) - (_children_seconds() - ours)
    outcome.others.append(max(0.0, others / seconds))
    outcome.edited += _newest_source() != sources
    answer = _last_json(output)
    outcome.rounds.append(answer.get("figures"))
    outcome.missing = str(answer.get("missing", ""))
    if "figures" not in answer and not outcome.missing:
        lines = (answer.get("error") or errors.strip() or f"exit code {process.returncode}").splitlines()
        outcome.errors.append("\n    ".join(lines[-12:]))


def _last_json(output: str) -> dict[str, object]:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            found: dict[str, object] = json.loads(line)
            return found
    return {}


def _newest_source() -> float:
    return max(path.stat().st_mtime for path in (ROOT / "procsched").rglob("*.py"))


def _busy_seconds() -> float:
    """Return the CPU seconds that anybody has used since the machine started; 0 where it does not say."""
    try:
        with open("/proc/stat", "rb") as file:
            user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def fresh_interpreters(code: str, count: int) -> list[float]:
    """Run `code` in fresh interpreters, each of which prints one number; return the numbers."""
    found = []
    for _ in range(count):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=clean_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            if last.startswith(("ModuleNotFoundError", "ImportError")):
                raise ImportError(last)
            raise RuntimeError(done.stderr[-2000:])
        found.append(float(done.stdout.split()[-1]))
    return found
