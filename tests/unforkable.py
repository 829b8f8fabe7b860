"""To be named in `preload`: has a fork of the helper fail where there is the file that `MARK` names, once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Any

MARK = "PROCSCHED_TEST_UNFORKABLE"
"""Environment variable with the path of the file."""


def _failing(name: str) -> None:
    start: Callable[..., int] = getattr(os, name)

    def start_or_fail(*args: Any, **kwargs: Any) -> int:
        try:
            os.unlink(os.environ[MARK])
        except (KeyError, FileNotFoundError):
            return start(*args, **kwargs)
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    setattr(os, name, start_or_fail)


if MARK in os.environ:  # not in the test that only wants its name
    for _name in ("fork", "posix_spawn"):
        _failing(_name)
