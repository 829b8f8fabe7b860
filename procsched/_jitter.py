"""Random numbers for the jitter of retries: `_core.retrying` decides, and is given them."""

from __future__ import annotations


def draw() -> float:
    """Return a random number from 0 to 1."""
    import random  # at the first use: it takes as long to import as everything in `_core`

    return random.random()
