"""What a worker does with a chunk of a `map`. Apart from what sends it, which a worker need not load."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def apply_each(fn: Callable[..., Any], chunk: list[Any]) -> list[Any]:
    """Return the results for items that are the only argument each."""
    return [fn(item) for item in chunk]


def apply_each_star(fn: Callable[..., Any], chunk: list[tuple[Any, ...]]) -> list[Any]:
    """Return the results for items that are all arguments each."""
    return [fn(*args) for args in chunk]
