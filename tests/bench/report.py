"""Tables, JSON and the chart."""

from __future__ import annotations

import json
import platform
import statistics
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tests.bench.framework import Bar, Case, Outcome, Results, median_range

PACKAGES = (
    "pebble",
    "deadpool-executor",
    "billiard",
    "mpire",
    "loky",
    "APScheduler",
    "joblib",
    "numpy",
    "cloudpickle",
)
TEXTS = {None: "not measured", True: "holds", False: "MISSED"}


@dataclass(frozen=True)
class Judgement:
    """A bar with what was measured."""

    case: str
    bar: Bar
    value: float | None  # ours
    other: float | None  # the peer's
    ratio: float | None  # median over the rounds
    holds: bool | None


def judge(case: Case, outcomes: dict[str, Outcome], bar: Bar) -> Judgement:
    """Hold the figures against a bar; a ratio is taken within each round."""
    ours = outcomes.get(bar.ours, Outcome())
    values = ours.values(bar.figure)
    value = statistics.median(values) if values else None
    if value is None:
        return Judgement(case.name, bar, None, None, None, None)
    if bar.against is None:
        holds = all(found == bar.limit for found in values) if bar.exactly else value <= bar.limit
        return Judgement(case.name, bar, value, None, None, holds)
    names = (bar.against,) if isinstance(bar.against, str) else bar.against
    pairs = []
    for number, mine in enumerate(ours.rounds):
        others = [found for name in names if (found := _in_round(outcomes.get(name), number, bar.figure))]
        if others and mine and mine.get(bar.figure) is not None:
            pairs.append((mine[bar.figure], min(others)))
    if not pairs:
        return Judgement(case.name, bar, value, None, None, None)
    ratio = statistics.median(mine / other for mine, other in pairs)
    other = statistics.median(other for _mine, other in pairs)
    return Judgement(case.name, bar, value, other, ratio, ratio <= bar.limit)


def _in_round(outcome: Outcome | None, number: int, figure: str) -> float | None:
    """Return a peer's figure in a round, or None."""
    found = outcome.rounds[number] if outcome and number < len(outcome.rounds) else None
    return found.get(figure) if found else None


def judge_all(cases: list[Case], results: Results) -> list[Judgement]:
    """Return every bar of the cases that were measured."""
    return [judge(each, results[each.name], bar) for each in cases for bar in each.bars]


def show(value: float | None) -> str:
    """Return a number with three digits that count."""
    if value is None:
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def case_table(case: Case, outcomes: dict[str, Outcome]) -> str:
    """Return the table of one case: a line per peer, a column per figure."""
    rows = [["", *(f"{figure} {unit}".strip() for figure, unit in case.units.items())]]
    notes = []
    for peer, outcome in outcomes.items():
        row = [peer + (" *" if outcome.noisy else "")]
        for figure in case.units:
            values = outcome.values(figure)
            if not values:
                row.append("-")
                continue
            middle, least, most = median_range(values)
            row.append(show(middle) + ("" if len(values) == 1 else f" ({show(least)}-{show(most)})"))
        rows.append(row)
        if outcome.missing:
            notes.append(f"  {peer}: {outcome.missing}")
        if outcome.edited:
            notes.append(
                f"  {peer}: procsched's sources were edited during {outcome.edited} round(s): do not trust them"
            )
        if outcome.errors:
            last = outcome.errors[-1].splitlines()[-1].strip()
            notes.append(f"  {peer}: {len(outcome.errors)} round(s) failed: {last}")
    return "\n".join([f"{case.title}  [{case.name}]", *_aligned(rows), *notes, ""])


def bar_table(judgements: list[Judgement]) -> str:
    """Return the table of the bars."""
    rows = [["bar", "procsched", "held against", "ratio", "limit", ""]]
    for found in judgements:
        bar = found.bar
        rows.append(
            [
                f"{found.case}: {bar.what}" + ("" if bar.ours == "procsched" else f" [{bar.ours}]"),
                show(found.value),
                f"{_against(bar)} {show(found.other)}" if bar.against else "-",
                show(found.ratio),
                ("= " if bar.exactly else "<= ") + show(bar.limit) + (" x" if bar.against else ""),
                TEXTS[found.holds],
            ]
        )
    return "\n".join(_aligned(rows))


def _against(bar: Bar) -> str:
    return bar.against if isinstance(bar.against, str) else "the best peer"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return ["  " + line.rstrip() for line in lines]


def machine() -> dict[str, object]:
    """Return what the figures were taken on and with."""
    import os

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": os.getloadavg(),
        "packages": versions,
    }


def write_json(path: Path, cases: list[Case], results: Results, judgements: list[Judgement]) -> None:
    """Write everything: each round's figures, and the bars."""
    content = {
        "machine": machine(),
        "cases": {
            each.name: {
                "title": each.title,
                "units": dict(each.units),
                "peers": {
                    peer: {
                        "rounds": outcome.rounds,
                        "others_share": [round(share, 3) for share in outcome.others],
                        "edited": outcome.edited,
                        "missing": outcome.missing,
                        "errors": outcome.errors,
                    }
                    for peer, outcome in results[each.name].items()
                },
            }
            for each in cases
        },
        "bars": [
            {
                "case": found.case,
                "what": found.bar.what,
                "figure": found.bar.figure,
                "ours": found.bar.ours,
                "against": found.bar.against,
                "limit": found.bar.limit,
                "value": found.value,
                "other": found.other,
                "ratio": found.ratio,
                "holds": found.holds,
            }
            for found in judgements
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def plot(path: Path, cases: list[Case], results: Results) -> None:
    """Draw the first figure of each case, a bar per peer.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = 2
    lines = -(-len(cases) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(13, 2.6 * lines), squeeze=False)
    for axis in list(axes.flat)[len(cases) :]:
        axis.axis("off")
    for axis, each in zip(axes.flat, cases, strict=False):
        name, unit = next(iter(each.units.items()))
        found = {peer: outcome.values(name) for peer, outcome in results[each.name].items()}
        found = {peer: values for peer, values in found.items() if values}
        peers = list(found)[::-1]
        middles = [statistics.median(found[peer]) for peer in peers]
        spread = [
            [middle - min(found[peer]) for peer, middle in zip(peers, middles, strict=True)],
            [max(found[peer]) - middle for peer, middle in zip(peers, middles, strict=True)],
        ]
        colours = ["tab:green" if peer.startswith("procsched") else "tab:gray" for peer in peers]
        axis.barh(peers, middles, xerr=spread, color=colours)
        if middles and min(middles) > 0 and max(middles) / min(middles) > 30:
            axis.set_xscale("log")
        axis.set_title(each.title, fontsize=8)
        axis.set_xlabel(f"{name} {unit}".strip(), fontsize=7)
        axis.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
