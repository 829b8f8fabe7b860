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
import select
import threading
import time

from procsched import _system, _timerfd
from procsched._interrupts import apart, owner_check
from procsched._logs import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FAR_AHEAD = 9_000_000_000.0  # UNIX seconds, in the year 2255: the timer is there to be cancelled


class _ClockWatch:
    """One thread that waits for the kernel to say that the wall clock was set, and its watchers."""

    def __init__(self) -> None:
        # `_watch_lock` guards the fields below; they are touched by the thread, watchers and closers. It
        # is never held while a callback runs.
        self.callbacks: dict[object, Callable[[], None]] = {}  # guarded by _watch_lock
        self.ended = False  # guarded by _watch_lock
        # Made here and not in the thread, although below Python 3.13 this loads ctypes: a fork while
        # another thread is importing leaves the child with a lock on that module that nobody opens.
        self.timer = _timerfd.timerfd_create(time.CLOCK_REALTIME)
        self.wake_read, self.wake_write = _system.pipe()
        self.poll = select.poll()
        self.poll.register(self.timer, select.POLLIN)
        self.poll.register(self.wake_read, select.POLLIN)
        self.thread = threading.Thread(target=self._run, name="procsched-clock", daemon=True)
        _arm(self.timer)

    def _run(self) -> None:
        try:
            while all(ready != self.wake_read for ready, _ in self.poll.poll()):
                stepped = _was_set(self.timer)
                # Armed before the watchers look at the clock: a step after their look is told again.
                if _arm(self.timer) or stepped:
                    self._tell()
        except Exception as error:  # whatever it is, nobody else would tell
            say(logging.ERROR, "steps of the wall clock are no longer noticed", error=error)
        finally:
            with _watch_lock:
                self.release()

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
            except BaseException as error:  # one watcher must not keep the others from hearing
                say(logging.ERROR, "a watcher of the clock failed", error=error)

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


_watch_lock = threading.RLock()  # reentrant for a finalizer that ends a watch from the midst of this
_current: _ClockWatch | None = None  # guarded by _watch_lock
_fork_hooked = False  # guarded by _watch_lock


def watch_clock(callback: Callable[[], None]) -> Callable[[], None]:
    """Do what `SystemClock.watch` says; `_timerfd.available()` is true.

    Raises:
        OSError: the system has no descriptor left.
        RuntimeError: it has no thread left.
    """
    global _current, _fork_hooked
    token = object()
    with _watch_lock:
        if not _fork_hooked:
            os.register_at_fork(after_in_child=_forget_after_fork)
            _fork_hooked = True
        watch = _current
        if watch is None or watch.ended:
            watch = _ClockWatch()
            watch.callbacks[token] = callback
            try:
                watch.thread.start()
            except RuntimeError:  # the system has no thread left
                watch.release()
                raise
            _current = watch
        else:
            watch.callbacks[token] = callback

    def end() -> None:
        global _current
        with _watch_lock:
            watch.callbacks.pop(token, None)
            if not watch.callbacks:
                watch.wake_locked()
                if _current is watch:
                    _current = None

    def close() -> None:
        if owner_check(_watch_lock)():
            end()
        else:  # not in the main thread: a handler there may start a scheduler, for which another thread takes the lock
            apart(end)
        unneeded = not watch.callbacks
        if unneeded and watch.thread is not threading.current_thread() and not owner_check(_watch_lock)():
            watch.thread.join()

    return close


def _forget_after_fork() -> None:
    """Give up the watch in a forked child: it has the descriptors, and no thread."""
    global _current, _watch_lock
    _watch_lock = threading.RLock()  # the parent's may have been held at that moment
    watch, _current = _current, None
    if watch is not None:
        watch.release()
