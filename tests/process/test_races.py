"""Two ends that come at the same instant have one winner, and nobody else is hit.

`python -m tests.races` does the same by the ten thousand. `PROCSCHED_TEST_RACES` is the number of rounds of each pair.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.races.aim import PAIRS
from tests.races.rounds import FACES, Races

SEED = int(os.environ.get("PROCSCHED_TEST_SEED", "0")) or random.randrange(1, 1 << 30)


@pytest.mark.slow
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("pair", PAIRS, ids=":".join)
def test_of_two_ends_at_once_one_wins(tmp_path: Path, pair: tuple[str, str], face: str) -> None:
    """One record, by one of the two; whoever waits is told the same; the next run on that worker is not hit."""
    # A pool for every six rounds where that is shut down.
    rounds = int(os.environ.get("PROCSCHED_TEST_RACES", "24" if "shutdown" in pair else "60"))
    print("PROCSCHED_TEST_SEED", SEED)
    balance = Races(pair, face, tmp_path, SEED).run(rounds)
    print(balance)
    assert balance.rounds >= rounds
