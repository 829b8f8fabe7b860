"""Calls whose arguments belong to a `multiprocessing.Manager`: the worker needs the parent's key to talk to it.

A process of multiprocessing inherits that key. A worker is none, and is told it with each such call, since the manager
may be younger than the worker.
"""

from __future__ import annotations

import sys

from procsched.child import managed
from procsched.workers import packing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MARK = b"RebuildProxy"  # what multiprocessing's proxies name in their pickles


def pack(action: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, apart: bool = True) -> Any:
    """Do as `packing.pack`, and send the key along where a proxy may be among the arguments.

    Raises:
        TaskSerializationError: as there.
    """
    payload = packing.pack(action, args, kwargs, apart=apart)
    if "multiprocessing.managers" in sys.modules and (type(payload) is not bytes or _MARK in payload):
        from multiprocessing.process import current_process

        return packing.pack(_Keyed(bytes(current_process().authkey), action), args, kwargs, apart=apart)
    return payload


class _Keyed:
    """An action in whose place the worker, having taken the key, finds the action itself.

    It comes before the arguments in the pickle, and the key before all else.
    """

    def __init__(self, key: bytes, action: Any) -> None:
        self._key = key
        self._action = action

    def __reduce__(self) -> tuple[Any, ...]:
        return managed.last, (_Key(self._key), self._action)


class _Key:
    def __init__(self, key: bytes) -> None:
        self._key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return managed.take_key, (self._key,)
