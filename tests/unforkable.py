"""To be named in `preload`: has a fork of the helper fail where there is the file that `MARK` names, once."""

from __future__ import annotations

import errno
import os

MARK = "PROCSCHED_TEST_UNFORKABLE"
"""Environment variable with the path of the file."""

_fork = os.fork


def _fork_or_fail() -> int:
    try:
        os.unlink(os.environ[MARK])
    except (KeyError, FileNotFoundError):
        return _fork()
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


if MARK in os.environ:  # not in the test that only wants its name
    os.fork = _fork_or_fail
