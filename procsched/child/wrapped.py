"""Calling what a decorator of ours stands for: in a worker, of which stacks show nothing."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def call_wrapped(wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what the function below the wrapper returns."""
    return wrapper.__wrapped__(*args, **kwargs)
