"""`python -m tests.races --rounds N [--pair a:b] [--face executor|scheduler] [--seed S]`: who wins which race."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.races.aim import PAIRS
from tests.races.rounds import FACES, Races


def main() -> int:
    """Run the races and print a line for each pair; a race that has no winner, or two, is an AssertionError."""
    parser = argparse.ArgumentParser(prog="python -m tests.races", description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="rounds of each pair in each face")
    parser.add_argument(
        "--pair", action="append", default=[], help="a:b, as often as you like; all by default"
    )
    parser.add_argument("--face", choices=sorted(FACES), action="append", default=[])
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 30))
    options = parser.parse_args()
    pairs = [pair for pair in PAIRS if not options.pair or ":".join(pair) in options.pair]
    if len(pairs) < len(options.pair):
        parser.error(f"pairs are {', '.join(map(':'.join, PAIRS))}")
    logging.disable()  # a crash is no news here
    print("seed", options.seed, flush=True)
    poor = 0
    for pair in pairs:
        for face in options.face or sorted(FACES):
            with tempfile.TemporaryDirectory() as directory:
                began = time.monotonic()
                balance = Races(pair, face, Path(directory), options.seed).run(options.rounds)
            print(f"{balance}; {time.monotonic() - began:.0f} s", flush=True)
            poor += min(balance.won[event] for event in pair) < balance.rounds / 50
    if poor:
        print(f"{poor} lines in which one side hardly ever won: that is no race")
    return 1 if poor else 0


if __name__ == "__main__":
    sys.exit(main())
