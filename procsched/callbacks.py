"""The thread on which the done-callbacks of an executor's futures run, so that none of them keeps a deadline waiting.

add_done_callback() --prepare()--> I/O thread: starts it
end of a call -------put()-------> queue --> "procsched-callbacks": what was left with the future
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time

from procsched._interrupts import Latch
from procsched._logs import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from procsched.workers.pool import ProcessPool

START_WAIT = 1.0  # seconds that the first done-callback waits for the thread to be started
START_AGAIN = 0.1  # seconds after which it is tried again where the system had no thread left


class Callbacks:
    """The callback thread of one executor, and what it has to run.

    Attributes:
        thread: None until it is started, which the I/O thread of the pool does.
        busy_since: for `health()`, read without a lock.
    """

    def __init__(self, pool: ProcessPool) -> None:
        self.thread: threading.Thread | None = None
        self.busy_since = 0.0  # steady time since when it is in one callback; 0 while it waits
        self._pool = pool
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._again = False  # that is on its way; the I/O thread's
        self._prepared = Latch()  # set when it was started, or could not be

    def prepare(self, *, wait: bool) -> None:
        """Have the thread started before there is something for it to run.

        When that is due, no thread may be left; and from the end of the main script on Python 3.12 starts none.

        Args:
            wait: until it is started, at most a second.
        """
        self._pool.loop.call_soon(self._start)
        if wait:
            self._prepared.wait(START_WAIT)

    def put(self, run: Callable[[], None]) -> None:
        """Have `run` called on the thread. From any thread."""
        self._queue.put(run)
        if self.thread is None:
            self._pool.loop.call_soon(self._start)

    def _start(self) -> None:
        """Start the thread, once. On the I/O thread: no signal handler interrupts that."""
        if self.thread is None:
            thread = threading.Thread(target=self._serve, name="procsched-callbacks", daemon=True)
            self.thread = thread  # before it runs: a callback may ask whether it is on this thread
            try:
                thread.start()
            except RuntimeError:  # the system has no thread left
                self.thread = None
                # Not at the next ending only: there may be none.
                if not self._again:
                    self._again = True
                    self._pool.loop.call_at(time.monotonic() + START_AGAIN, self._start_again)
                raise
            finally:
                self._prepared.set()

    def _start_again(self) -> None:
        self._again = False
        if not self._queue.empty():
            with contextlib.suppress(RuntimeError):  # it was told of the first time
                self._start()

    def end(self) -> None:
        """Have the thread end when it has run what there is. On the I/O thread."""
        self._queue.put(None)  # also where there is none so far: it may be started yet

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread, at most so many seconds; where none could be started, run what is left."""
        thread = self.thread
        if thread is not None:
            thread.join(seconds)
        else:
            self._run_left()

    def _serve(self) -> None:
        while (run := self._queue.get()) is not None:
            self.busy_since = time.monotonic()
            _call(run)
            self.busy_since = 0.0
            run = None  # no future is kept alive by an idle thread

    def _run_left(self) -> None:
        while self.thread is None:
            try:
                run = self._queue.get_nowait()
            except queue.Empty:
                return
            if run is not None:
                _call(run)


def _call(run: Callable[[], None]) -> None:
    """Run the callbacks of a future, whatever they raise."""
    try:
        run()
    except BaseException as error:
        # The library logs an Exception; SystemExit and the like come through to here.
        say(logging.ERROR, "procsched: a done-callback raised", error=error)
