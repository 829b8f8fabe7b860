"""Pickling by value with cloudpickle, keeping the file names that tracebacks need.

cloudpickle (from 3.1.2 on) writes ``<dynamic-code>`` in place of a code object's file name, so that equal functions
give equal bytes wherever they were defined. For us a traceback that names the user's file and line is worth more.
"""

from __future__ import annotations

import functools
import io
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_pickler: Any = None  # made at the first use, for cloudpickle takes thirty milliseconds to import


def dumps(value: object) -> bytes:
    """Return `value` pickled, what lives in the main script or in a closure by value.

    Raises:
        Exception: whatever cloudpickle or the object's own reduction raises.
    """
    buffer = io.BytesIO()
    dump(value, buffer)
    return buffer.getvalue()


def dump(value: object, file: Any, take: Any = None) -> Any:
    """Pickle `value` into `file`, with `take` as the callback for buffers (PEP 574); return the pickler.

    Raises:
        Exception: as `dumps` does.
    """
    global _pickler
    if _pickler is None:
        _pickler = _make_pickler()
    pickler = _pickler(file, 5, take)
    pickler.dump(value)
    return pickler


@functools.lru_cache
def _nothing() -> None:
    """A function with a cache, for its type."""


def _reduce_cached(function: Any) -> Any:
    """Reduce a function with `functools.lru_cache`: by name where a worker can import it, else anew, cache empty."""
    if getattr(function, "__module__", None) != "__main__":
        return function.__reduce__()
    settings = function.cache_parameters()
    return _make_cached, (function.__wrapped__, settings["maxsize"], settings["typed"])


def _make_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize=maxsize, typed=typed)(function)


def _make_pickler() -> Any:
    from collections import ChainMap

    import cloudpickle

    reduce_code = cloudpickle.Pickler.dispatch_table[types.CodeType]

    def with_file_name(code: types.CodeType) -> Any:
        make, arguments = reduce_code(code)
        return make, tuple(code.co_filename if part == "<dynamic-code>" else part for part in arguments)

    reducers = {types.CodeType: with_file_name, type(_nothing): _reduce_cached}

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it has no types
        dispatch_table = ChainMap(reducers, cloudpickle.Pickler.dispatch_table)

    return Pickler
