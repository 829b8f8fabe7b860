"""Results and exceptions as bytes: made in the worker, which checks that the parent can load them."""

from __future__ import annotations

import _pickle as pickle
import io

from procsched import _byvalue
from procsched._core.failures import describe, traceback_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


def pack_result(result: Any) -> bytes:
    """Pickle a result so that the parent can load it.

    Raises:
        TaskSerializationError: it cannot be pickled, or not be loaded again.
    """
    if type(result) in _PLAIN:
        return pickle.dumps(result, 5)
    try:
        buffer = io.BytesIO()
        pickler = _Watcher(buffer, 5)
        pickler.dump(result)
        data, foreign = buffer.getvalue(), pickler.foreign
    except Exception:
        try:
            data, foreign = _byvalue.dumps(result), True
        except Exception as error:
            from procsched.errors import TaskSerializationError

            raise TaskSerializationError(
                f"the result, of type {type(result).__qualname__}, cannot be pickled: {describe(error)}; "
                "return plain data, or something that pickle can take apart",
                type_name=type(result).__qualname__,
            ) from error
    if foreign:
        try:
            pickle.loads(data)
        except Exception as error:
            from procsched.errors import TaskSerializationError

            raise TaskSerializationError(
                f"the result, of type {type(result).__qualname__}, can be pickled but not loaded again: "
                f"{describe(error)}",
                type_name=type(result).__qualname__,
            ) from error
    return data


class _Watcher(pickle.Pickler):
    """Notices whether anything but exact builtin data is being pickled: only that needs a trial load."""

    foreign = False

    def reducer_override(self, obj: Any) -> Any:
        self.foreign = True
        return NotImplemented


def pack_failure(error: BaseException, stage: str) -> bytes:
    """Describe an exception as text, with the exception itself where it survives a round trip.

    Returns:
        a pickled tuple: description, traceback, pickled exception or None, and why there is none.
    """
    text = describe(error)
    if stage == "load":
        text = f"{text} (while loading the call in the worker)"
    carried: bytes | None
    why = ""
    try:
        carried = pickle.dumps(error, 5)
        pickle.loads(carried)
    except BaseException:
        try:
            carried = _byvalue.dumps(error)
            pickle.loads(carried)
        except BaseException as obstacle:
            carried = None
            why = describe(obstacle)
    return pickle.dumps((text, traceback_text(error), carried, why), 5)
