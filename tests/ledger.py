"""To be named in `preload`: writes down what the helper signals and reaps, in the file that `LEDGER` names.

A number that was reaped may belong to somebody else from then on, whether or not it does: so nothing depends on time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tests import support

LEDGER = "PROCSCHED_TEST_LEDGER"
"""Environment variable with the path of the file."""

_owner = os.getpid()
_reaped: set[int] = set()


def _signalling(name: str) -> None:
    original: Callable[[int, int], None] = getattr(os, name)

    def signal(pid: int, signum: int) -> None:
        if os.getpid() == _owner:
            support.tell(os.environ[LEDGER], name, "stranger" if pid in _reaped else "own")
        original(pid, signum)

    setattr(os, name, signal)


def _reaping(name: str) -> None:
    original: Callable[..., Any] = getattr(os, name)

    def reap(pid: int, options: int) -> Any:
        found = original(pid, options)
        if found[0] and os.getpid() == _owner:
            _reaped.add(found[0])
            support.tell(os.environ[LEDGER], "reaped")
        return found

    setattr(os, name, reap)


def _starting(name: str) -> None:
    original: Callable[..., int] = getattr(os, name)

    def start(*args: Any, **kwargs: Any) -> int:
        pid = original(*args, **kwargs)
        _reaped.discard(pid)
        return pid

    setattr(os, name, start)


if LEDGER in os.environ:  # not in the test that only wants its name
    for _name in ("kill", "killpg"):
        _signalling(_name)
    for _name in ("wait4", "waitpid"):
        _reaping(_name)
    for _name in ("fork", "posix_spawn"):
        _starting(_name)
