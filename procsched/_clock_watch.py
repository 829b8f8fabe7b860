"""The thread that hears from the kernel that the wall clock was set, or that the system woke up.

    kernel --timer descriptor--> "procsched-clock" thread --callback--> every watcher
    closer --byte in a pipe----> (ends it)

A timer on CLOCK_REALTIME with TFD_TIMER_CANCEL_ON_SET is cancelled by the kernel at both
(timerfd_create(2)), and never expires otherwise: no polling. One thread for all watchers of a process.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time

from procsched import _timerfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FAR_AHEAD = 9_000_000_000.0  # UNIX seconds, in the year 2255: the timer is there to be cancelled
STEP_SECONDS = 0.05  # a step while the watch was being set up is told from this size on

log = logging.getLogger("procsched")


class _ClockWatch:
    """One thread that waits for the kernel to say that the wall clock was set, and its watchers."""

    def __init__(self, offset: Callable[[], float]) -> None:
        # `_watch_lock` guards the fields below; they are touched by the thread, watchers and closers. It
        # is never held while a callback runs.
        self.callbacks: dict[object, Callable[[], None]] = {}  # guarded by _watch_lock
        self.ended = False  # guarded by _watch_lock
        self.offset = offset
        self.expected = offset()
        self.timer = -1  # guarded by _watch_lock
        self.wake_read, self.wake_write = os.pipe()
        self.thread = threading.Thread(target=self._run, name="procsched-clock", daemon=True)

    def _run(self) -> None:
        try:
            # Here and not in the constructor: below Python 3.13 this loads ctypes, and a scheduler that
            # starts need not wait for that.
            if not _timerfd.available():
                log.info("steps of the wall clock are not noticed at once: no timer descriptors here")
                return
            timer = _timerfd.timerfd_create(time.CLOCK_REALTIME)
            with _watch_lock:
                self.timer = timer
            self._wait_for_steps(timer)
        except Exception:  # whatever it is, nobody else would tell
            log.exception("steps of the wall clock are no longer noticed")
        finally:
            with _watch_lock:
                self.release()

    def _wait_for_steps(self, fd: int) -> None:
        import select

        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.register(self.wake_read, select.POLLIN)
        stepped = _arm(fd)
        if abs(self.offset() - self.expected) > STEP_SECONDS:
            stepped = True  # set between the call of `watch` and the line above
        while True:
            if stepped:
                self._tell()
            if any(ready == self.wake_read for ready, _ in poll.poll()):
                return
            stepped = _was_set(fd)
            # Armed before the watchers look at the clock: a step after their look is told again.
            stepped = _arm(fd) or stepped

    def _tell(self) -> None:
        with _watch_lock:
            tokens = list(self.callbacks)
        for token in tokens:
            with _watch_lock:
                callback = self.callbacks.get(token)
            if callback is None:  # closed meanwhile
                continue
            try:
                callback()
            except Exception:  # one watcher must not keep the others from hearing
                log.exception("a watcher of the clock failed")

    def wake_locked(self) -> None:
        """End the thread. The caller holds `_watch_lock`."""
        if not self.ended:
            os.write(self.wake_write, b"x")

    def release(self) -> None:
        """Close the descriptors, once. The caller holds `_watch_lock`, or is alone after a fork."""
        if not self.ended:
            self.ended = True
            os.close(self.wake_read)
            os.close(self.wake_write)
            if self.timer >= 0:
                os.close(self.timer)


def _arm(fd: int) -> bool:
    """Arm the timer. Return whether the clock was set since it was last armed."""
    try:
        _timerfd.timerfd_arm(fd, FAR_AHEAD, cancel_on_set=True)
    except OSError as error:
        if error.errno != errno.ECANCELED:
            raise
        return True
    return False


def _was_set(fd: int) -> bool:
    try:
        _timerfd.timerfd_read(fd)
    except OSError as error:
        if error.errno != errno.ECANCELED:
            raise
        return True
    return False


_watch_lock = threading.Lock()
_current: _ClockWatch | None = None  # guarded by _watch_lock
_fork_hooked = False  # guarded by _watch_lock


def watch_clock(callback: Callable[[], None], offset: Callable[[], float]) -> Callable[[], None]:
    """Do what `SystemClock.watch` says, on Linux.

    Args:
        callback: called without arguments, on the shared thread.
        offset: reads wall time minus steady time, in seconds.
    Raises:
        RuntimeError: the system has no thread left.
        OSError: it has no descriptor left.
    """
    global _current, _fork_hooked
    token = object()
    with _watch_lock:
        if not _fork_hooked:
            os.register_at_fork(after_in_child=_forget_after_fork)
            _fork_hooked = True
        watch = _current
        if watch is None or watch.ended:
            watch = _ClockWatch(offset)
            watch.callbacks[token] = callback
            try:
                watch.thread.start()
            except RuntimeError:  # the system has no thread left
                watch.release()
                raise
            _current = watch
        else:
            watch.callbacks[token] = callback

    def close() -> None:
        global _current
        with _watch_lock:
            watch.callbacks.pop(token, None)
            last = not watch.callbacks
            if last:
                watch.wake_locked()
                if _current is watch:
                    _current = None
        if last and watch.thread is not threading.current_thread():
            watch.thread.join()

    return close


def _forget_after_fork() -> None:
    """Give up the watch in a forked child: it has the descriptors, and no thread."""
    global _current, _watch_lock
    _watch_lock = threading.Lock()  # the parent's may have been held at that moment
    watch, _current = _current, None
    if watch is not None:
        watch.release()
