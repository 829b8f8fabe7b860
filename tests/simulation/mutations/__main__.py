"""`python -m tests.simulation.mutations`: breaks the source in every listed way, and shows where that is caught."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.mutations.applied import first_caught
from tests.simulation.mutations.listed import MUTATIONS


def main() -> int:
    """Run them all, and the copy that is not broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutations", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3000, help="within how many each is to be caught")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="", help="those whose name has this text in it")
    options = parser.parse_args()
    missed = 0
    for mutation in MUTATIONS:
        if options.only not in mutation.name:
            continue
        seed, text = first_caught(mutation, options.seeds, options.first)
        caught = seed is not None
        missed += not caught
        after = f"seed {seed}" if caught else "NOT CAUGHT"
        print(f"{after:12} {mutation.name} ({mutation.module})\n{'':13}{text[:140]}", flush=True)
    if not options.only:
        seed, text = first_caught(None, options.seeds, options.first)
        missed += seed is not None
        print(f"{'not broken':12} {'passes' if seed is None else f'FAILS at seed {seed}: {text}'}")
    print(f"{missed} of {len(MUTATIONS)} not caught" if missed else "all caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
