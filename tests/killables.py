"""What is killable wherever it is called: apart from `faults`, which most pools preload, for it loads an executor."""

from __future__ import annotations

from procsched import killable
from tests import faults


@killable(timeout=2.5)  # the pool behind it loads this module first
def hang_or_add(path: str, left: int = 0, right: int = 0) -> int:
    """Hang where there is a path."""
    if path:
        faults.sleep(path)
    return left + right
