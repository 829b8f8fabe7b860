"""Taking over the parent's key to its `multiprocessing.Manager`; see `workers/managed.py`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def take_key(key: bytes) -> None:
    """Use the key from here on."""
    from multiprocessing.process import current_process

    current_process().authkey = key


def last(_key: None, action: Any) -> Any:
    """Return the action; the key has been taken by now."""
    return action
