"""Where threads are, for a person: read from their frames, and without any lock.

Nothing here may wait: it is asked about threads that are stuck, maybe with a lock of `threading`, `logging` or ours in
their hands, and by signal handlers that have interrupted such a thread.
"""

from __future__ import annotations

import os
import re
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_OWNER = re.compile(r"owner=(\d+)")


def where(ident: int | None, frames: dict[int, FrameType] | None = None) -> str | None:
    """Return the function that a thread is in: the innermost of somebody else's, and what that waits in.

    Args:
        ident: of the thread.
        frames: those of all threads, where the caller has them already.
    """
    frame = None if ident is None else (frames or sys._current_frames()).get(ident)
    if frame is None:
        return None
    innermost = _name(frame)
    outer: FrameType | None = frame
    while outer is not None:
        path = os.path.abspath(outer.f_code.co_filename)
        foreign = not path.startswith(_OURS) and not (path.startswith(_LIBRARY) and "-packages" not in path)
        if foreign and not outer.f_code.co_filename.startswith("<frozen"):
            return innermost if outer is frame else f"{_name(outer)}, there in {innermost}"
        outer = outer.f_back
    return innermost


def _name(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname} ({code.co_filename}, line {frame.f_lineno})"


def holder(lock: Any) -> int | None:
    """Return the ident of the thread that holds a reentrant lock, or None.

    Source: CPython, Modules/_threadmodule.c, `rlock_repr`, which takes no lock itself.
    """
    found = _OWNER.search(repr(lock))
    return (int(found[1]) or None) if found else None


def names() -> dict[int, str]:
    """Return the names of the threads that `threading` knows, by ident.

    Not by `threading.enumerate`: it takes a lock, which the thread that a signal handler interrupted may hold.
    """
    known: dict[int, threading.Thread] = getattr(threading, "_active", {})
    return {ident: thread.name for ident, thread in list(known.items())}


def stacks() -> list[str]:
    """Return the stack of every thread as text, the innermost call last."""
    import traceback

    known: dict[int, threading.Thread] = dict(getattr(threading, "_active", {}))
    texts = []
    for ident, frame in sys._current_frames().items():
        thread = known.get(ident)
        name = "a thread that Python did not start" if thread is None else thread.name
        here = ", which writes this" if ident == threading.get_ident() else ""
        stack = "".join(traceback.format_stack(frame))
        texts.append(f"thread {name} (ident {ident}{here}):\n{stack}")
    return texts
