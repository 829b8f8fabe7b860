"""Two ends that come at the same instant have one winner, and nobody else is hit.

`python -m tests.races` does the same by the ten thousand. `PROCSCHED_TEST_RACES` is the number of rounds of each pair.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.races.aim import PAIRS, Balance
from tests.races.rounds import FACES, Races

FEW = 100  # rounds: too few to judge the aim by, which is found in the course of those of a pair
SEED = int(os.environ.get("PROCSCHED_TEST_SEED", "0")) or random.randrange(1, 1 << 30)


@pytest.fixture(scope="module")
def balances() -> Iterator[list[Balance]]:
    """Collect what came of each pair; fail unless both of two ends have won, for else there was no race."""
    found: list[Balance] = []
    yield found
    won = [sum(balance.won[balance.pair[place]] for balance in found) for place in (0, 1)]
    if sum(won) > FEW:
        assert min(won) > sum(won) / 10, "\n".join(map(str, found))


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("pair", PAIRS, ids=":".join)
def test_of_two_ends_at_once_one_wins(
    tmp_path: Path, balances: list[Balance], pair: tuple[str, str], face: str
) -> None:
    """One record, by one of the two; whoever waits is told the same; the next run on that worker is not hit."""
    # A pool for every six rounds where that is shut down.
    rounds = int(os.environ.get("PROCSCHED_TEST_RACES", "24" if "shutdown" in pair else "60"))
    print("PROCSCHED_TEST_SEED", SEED)
    balance = Races(pair, face, tmp_path, SEED).run(rounds)
    print(balance)
    balances.append(balance)
