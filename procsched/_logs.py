"""What is said in the log, at no risk for the thread that says it.

`logging` has each handler catch its own errors, but one whose `emit` raises them gets away with it, and the error comes
out of the call that logs. There it would end a thread which nothing else replaces: that of the deadlines, the timer, a
listener's, the store's.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("procsched")

# Control characters but tab and newline, the other ends of lines, and what changes the direction of a text.
_ESCAPES = {
    number: ascii(chr(number))[1:-1]
    for first, last in ((0, 8), (11, 31), (127, 159), (0x2028, 0x202E), (0x2066, 0x2069))
    for number in range(first, last + 1)
}


def say(
    level: int,
    text: str,
    *values: object,
    error: BaseException | None = None,
    fields: Mapping[str, object] | None = None,
) -> None:
    """Log `text` with `values` put into it. What a handler raises goes to standard error, and no further.

    Args:
        error: logged with its traceback.
        fields: attributes of the log record.
    Raises:
        BaseException: in the main thread, what is no Exception: a signal handler may have raised it.
    """
    try:
        log.log(level, text, *map(_writable, values), exc_info=error, extra=fields, stacklevel=2)
    except BaseException as failure:
        if not isinstance(failure, Exception) and threading.current_thread() is threading.main_thread():
            raise
        if logging.raiseExceptions and sys.stderr is not None:
            with contextlib.suppress(Exception):  # as `logging.Handler.handleError` does, which was not asked
                sys.stderr.write(f"--- Logging error ---\n{traceback.format_exc()}Message: {text!r}\n")


def _writable(value: object) -> object:
    """Return a text so that it can be logged, and is seen to be a part of the message.

    Names, errors and tracebacks have in them what others chose. Halves of characters, which no file takes, and what
    would move a cursor or end a line are escaped; a line of its own stands below the message, and never begins as one.
    """
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "backslashreplace").decode()
    return text if text.isprintable() else text.translate(_ESCAPES).replace("\n", "\n  ")
