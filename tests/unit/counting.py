"""How much work a call does, in steps that no other process can make slower."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def steps(function: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """Return what ``function(*args)`` gives, and how many lines of Python it went through to find it."""
    count = 0

    def trace(_frame: FrameType, event: str, _arg: object) -> Any:
        nonlocal count
        count += event == "line"  # each turn of a loop is one, too, be it all on one line
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = function(*args)
    finally:
        sys.settrace(before)
    return result, count
