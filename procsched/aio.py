"""The asyncio face of an executor. Imported at its first use, since asyncio is not ours to load.

    coroutine --submit--> Core ... worker
        ^                  |
        '-- call_soon_threadsafe <-- callback thread

No thread waits for a call: the callback thread, one per executor, tells the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import CancelledError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from procsched.call_options import Options
    from procsched.calls import Core
    from procsched.future import ProcessFuture


async def run(
    core: Core, options: Options, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a call and return its result: see `ProcessExecutor.run`."""
    wake = _Wake()
    future = core.submit(fn, args, kwargs, options)

    def ended(done: ProcessFuture[Any]) -> None:
        try:
            with contextlib.suppress(CancelledError):
                done.exception()  # loads the result here, and not in the thread of the event loop
        finally:  # what code of the user's raises in that, SystemExit say, is raised there again
            wake()

    future.add_done_callback(ended)  # type: ignore[arg-type]  # the library's says Future
    try:
        await wake.arrived
    except BaseException:
        future.cancel()
        raise
    return future.result()


async def leave(core: Core, *, kill: bool) -> None:
    """Shut an executor down and return when nothing of it is left; the event loop goes on meanwhile.

    Where this is cancelled, what still runs is killed, behind the caller.
    """
    wake = _Wake()

    def end() -> None:
        try:
            core.shutdown(wait=True, cancel=kill, kill=kill)
        finally:
            wake()

    # A thread of its own: those of the event loop may all be waiting for something.
    threading.Thread(target=end, name="procsched-leave", daemon=True).start()
    try:
        await wake.arrived
    except BaseException:
        core.shutdown(wait=False, cancel=True, kill=True)
        raise


class _Wake:
    """Wakes a coroutine from another thread, once.

    Attributes:
        arrived: what the coroutine awaits.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.arrived: asyncio.Future[None] = self._loop.create_future()

    def __call__(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        if not self.arrived.done():  # else who waited was cancelled
            self.arrived.set_result(None)
