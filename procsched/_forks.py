"""What a fork of the process needs of us: locks that threads of the parent held at that moment are nobody's there.

Whatever is a lock of ours in an object that may be used on both sides of a fork is made anew in the child, before
anything else runs in it. What the lock guards may have been in the midst of a change; each object says itself what it
makes of that.
"""

from __future__ import annotations

import os
from _weakrefset import WeakSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Forked(Protocol):
        """What hears of a fork."""

        def after_fork(self) -> None:
            """Hear that this is a copy in a forked child, whose only thread is the calling one. Takes no lock."""


_known: WeakSet[Forked] = WeakSet()
_hooked = False


def note(thing: Forked) -> None:
    """Have `thing` hear of forks as long as it lives."""
    global _hooked
    if not _hooked:
        _hooked = True
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_tell)
    _known.add(thing)


def _tell() -> None:
    for thing in list(_known):
        thing.after_fork()
