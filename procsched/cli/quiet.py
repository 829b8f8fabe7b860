"""Quiet while a command runs whose jobs fail on purpose: what goes wrong there is in the command's own output."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def only_errors_logged() -> Iterator[None]:
    """Log nothing below ERROR inside the block; afterwards the level of procsched's logger is what it was."""
    logger = logging.getLogger("procsched")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
