"""`python -m tests.simulation`: runs seeds, and says what they have covered."""

from __future__ import annotations

import argparse
import contextlib
import gc
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.edges import replaced
from tests.simulation.kinds import never
from tests.simulation.run import Result, run_seed

SELDOM = 100  # seeds between two collections of garbage
CHUNK = 250  # seeds that a process runs at a time


def run_range(
    first: int, count: int, stop: bool = False
) -> tuple[int, int, Counter[str], list[tuple[int, str, list[str]]]]:
    """Run `count` seeds from `first` on; return how many, their steps, what they covered, and those that failed."""
    steps, seen, failures = 0, Counter[str](), []
    with replaced(), _collecting_seldom():
        for seed in range(first, first + count):
            result = run_seed(seed)
            if seed % SELDOM == 0:
                gc.collect()
            steps += result.steps
            seen.update(result.seen)
            if result.error is not None:
                failures.append((seed, result.error, result.lines))
                if stop:
                    break
    return count, steps, seen, failures


@contextlib.contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Leave garbage lie: each seed makes a world of it, and none during its run matters."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
        gc.collect()


def tell(result_seed: int, error: str, lines: list[str]) -> None:
    """Print a seed that failed, its last steps, and how to run it again."""
    print(f"\nseed {result_seed} FAILED: {error}")
    for line in lines[-30:]:
        print(f"    {line}")
    print(f"  again: python -m tests.simulation --replay {result_seed} --verbose", flush=True)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run them")
    parser.add_argument("--replay", type=int, help="run this seed alone")
    parser.add_argument("--verbose", action="store_true", help="with --replay: print every step")
    parser.add_argument("--stop", action="store_true", help="end at the first failure; in one process")
    parser.add_argument("--most", type=int, default=5, help="stop after so many failures")
    options = parser.parse_args(argv)
    if options.stop:
        _count, _steps, _seen, failures = run_range(options.first, options.seeds, stop=True)
        for each in failures:
            tell(*each)
        return 1 if failures else 0
    if options.replay is not None:
        return _replay(options.replay, options.verbose)
    began = time.perf_counter()
    done = steps = 0
    seen: Counter[str] = Counter()
    failed = 0
    chunks = [
        (first, min(CHUNK, options.first + options.seeds - first))
        for first in range(options.first, options.first + options.seeds, CHUNK)
    ]
    with ProcessPoolExecutor(options.jobs) as executor:
        answers = (
            executor.map(run_range, *zip(*chunks, strict=True))
            if options.jobs > 1
            else (run_range(*each) for each in chunks)
        )
        for count, more, covered, failures in answers:
            done, steps = done + count, steps + more
            seen.update(covered)
            for each in failures:
                failed += 1
                if failed <= options.most:
                    tell(*each)
            if done % (CHUNK * 4) == 0:
                print(f"{done} seeds, {steps} steps, {failed} failed", flush=True)
    seconds = time.perf_counter() - began
    print(f"\n{'covered':44}{'times':>12}")
    for kind in sorted(seen):
        print(f"{kind:44}{seen[kind]:>12}")
    for kind in never(seen):
        print(f"{kind:44}{'NEVER':>12}")
    print(f"\n{done} seeds, {steps} steps, {failed} failed; {1000 * seconds / max(done, 1):.2f} ms a seed")
    return 1 if failed else 0


def _replay(seed: int, verbose: bool) -> int:
    with replaced():
        result: Result = run_seed(seed, verbose=verbose)
    print(f"seed {seed}: {result.steps} steps, trace {result.digest}")
    if result.error is not None:
        tell(seed, result.error, [] if verbose else result.lines)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
