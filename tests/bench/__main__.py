"""`python -m tests.bench`: see the package's docstring."""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import sys
import tempfile
from pathlib import Path

from tests import bench
from tests.bench import report
from tests.bench.framework import ROOT, load_cases, run_rounds


def main(arguments: list[str] | None = None) -> int:
    """Measure what is asked for and print it.

    Returns:
        0, whatever the figures are; 1 when a measured process of procsched failed; 2 for wrong arguments.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=bench.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", default=[], help="cases whose name begins with NAME"
    )
    parser.add_argument("--peers", nargs="+", metavar="PEER", help="these peers alone")
    parser.add_argument("--rounds", type=int, help="how often each is measured: 5, or 1 with --quick")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where every figure goes")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="where the chart goes; needs pip install '.[plot]'"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few repetitions, to see that everything works"
    )
    parser.add_argument("--list", action="store_true", help="list cases and peers")
    options = parser.parse_args(arguments)
    if options.plot and importlib.util.find_spec("matplotlib") is None:  # now, and not when all is measured
        parser.error("--plot needs matplotlib: pip install '.[plot]'")
    known = load_cases()
    if options.list:
        for each in known.values():
            print(f"{each.name:20} {each.title}\n{'':20} {', '.join(each.peers)}")
        return 0
    cases = [
        each
        for each in known.values()
        if not options.only or any(each.name.startswith(name) for name in options.only)
    ]
    if not cases:
        parser.error(f"no case begins with {' or '.join(options.only)}; known are {', '.join(known)}")
    rounds = options.rounds or (1 if options.quick else 5)
    for folder in ("procsched", "tests/bench"):  # as pip does: no peer compiles itself while it is measured
        compileall.compile_dir(ROOT / folder, quiet=2)
    results = run_rounds(
        cases,
        rounds,
        quick=options.quick,
        tell=lambda line: print(line, file=sys.stderr),
        peers=options.peers,
    )
    judgements = report.judge_all(cases, results)
    for each in cases:
        print(report.case_table(each, results[each.name]))
    print(report.bar_table(judgements))
    path = options.json or Path(tempfile.gettempdir()) / "procsched-bench.json"
    report.write_json(path, cases, results, judgements)
    print(f"\nmedian (min-max) of {rounds} round(s); every figure: {path}")
    if options.plot:
        report.plot(options.plot, cases, results)
        print(f"chart: {options.plot}")
    failed = any(
        outcome.errors
        for found in results.values()
        for peer, outcome in found.items()
        if peer.startswith("procsched")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
