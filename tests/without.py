"""The tests of real processes with one feature of the system switched off after the other.

    python -m tests.without                      every feature, all of tests/process
    python -m tests.without pidfd,proc fork      these two rounds
    python -m tests.without --short              what CI runs: a few tests for each
    python -m tests.without fork -- -x -k tree   further options for pytest; files among them are run instead

Each round is a run of pytest under `PROCSCHED_WITHOUT`. A test that cannot pass says by the marker `needs` which
documented promise is gone; those are listed at the end, and everything else must hold.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time

from procsched import _system

SHORT = ("tests/process/test_without.py",)
LONG = ("tests/process",)


def main(words: list[str]) -> int:
    """Run the rounds; return 0 if all have passed."""
    given, _, options = "\0".join(words).partition("\0--\0")
    parser = argparse.ArgumentParser(prog="python -m tests.without", description=__doc__.splitlines()[0])
    parser.add_argument(
        "features", nargs="*", help=f"of {', '.join(_system.FEATURES)}; joined by commas: together"
    )
    parser.add_argument("--short", action="store_true", help="a few tests for each, as CI runs them")
    asked = parser.parse_args(given.split("\0") if given else [])
    rounds = asked.features or [*_system.FEATURES, ",".join(_system.FEATURES)]
    unknown = {name for names in rounds for name in names.split(",")} - set(_system.FEATURES)
    if unknown:
        parser.error(f"no such feature: {', '.join(sorted(unknown))}")
    more = options.split("\0") if options else []
    tests = SHORT if asked.short else LONG
    if any(os.path.exists(word.partition("::")[0]) for word in more):
        tests = ()
    failed = False
    for names in rounds:
        command = [sys.executable, "-m", "pytest", "-q", "-rsfE", "-p", "no:cacheprovider", *tests, *more]
        began = time.monotonic()
        environ = {**os.environ, "PROCSCHED_WITHOUT": names}
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True)
        gone = sorted(set(re.findall(r"gone: (.*)", done.stdout)))
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        last = done.stdout.strip().splitlines()[-1:]
        print(f"without {names}: {' '.join(last)} ({time.monotonic() - began:.0f} s)", flush=True)
        for line in [*lines, *(f"  gone: {promise}" for promise in gone)]:
            print(f"  {line}", flush=True)
        failed = failed or done.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
