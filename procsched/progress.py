"""The bar of ``map(..., progress=True)``, drawn by tqdm."""

from __future__ import annotations

import sys
import threading

from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

REDRAW = 0.1  # seconds between two drawings, at least


class Bar:
    """A bar on standard error. Called with (done, total); draws nothing until then. For one thread.

    Args:
        make: takes the total, returns the bar; None to draw nothing.
    """

    def __init__(self, make: Callable[[int | None], Any] | None) -> None:
        self._make = make
        self._drawn: Any = None

    def __call__(self, done: int, total: int | None) -> None:
        """Show so many of so many; the drawing is left out where the last one is too young."""
        if self._make is None:
            return
        if self._drawn is None:
            self._drawn = self._make(total)
        if self._drawn.total != total:
            self._drawn.total = total
        self._drawn.update(done - self._drawn.n)

    def close(self) -> None:
        """Draw it a last time and leave it there."""
        if self._drawn is not None:
            self._drawn.close()


def bar() -> Bar:
    """Return a bar, which draws nothing where standard error is no terminal: a log file is no place for it.

    Raises:
        ValidationError: tqdm is not installed; names the extra that brings it.
    """
    from importlib.util import find_spec

    # Also where nothing would be drawn, or a program that works under a terminal would not work under cron.
    if find_spec("tqdm") is None:
        raise ValidationError(
            "progress=True draws a bar with tqdm, which is not installed: pip install 'procsched[progress]', "
            "or give a callable that takes (done, total)"
        )
    return Bar(_make if is_terminal(sys.stderr) else None)


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal; a closed one, or None, is not."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError, OSError):
        return False


def _make(total: int | None) -> Any:
    from tqdm.std import tqdm

    class Tqdm(tqdm):  # type: ignore[misc, unused-ignore]  # where it comes without types
        monitor_interval = 0  # no thread that watches over bars; the process is the host's

    Tqdm.set_lock(threading.RLock())  # its own would be one of multiprocessing's
    return Tqdm(total=total, mininterval=REDRAW, miniters=1, file=sys.stderr, dynamic_ncols=True)
