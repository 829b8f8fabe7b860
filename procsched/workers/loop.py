"""The I/O thread of a pool: waits for descriptors and for times, and for nothing else.

One epoll over the workers' sockets and output, the helper's control socket, the guard's pid descriptor and a wake-up
descriptor; one timer descriptor for all deadlines. When nothing is due and nobody speaks it sleeps in the kernel.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque

from procsched import _system, _timerfd
from procsched._logs import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from procsched.workers.holding import Holding

READ = getattr(select, "EPOLLIN", 1)
WRITE = getattr(select, "EPOLLOUT", 4)
_NEVER = float("inf")
TROUBLE_WAIT = 0.01  # seconds for which memory, or depth, that was missing may come back
SHORTAGES = (MemoryError, RecursionError)


class Alarm:
    """Something that has a time at which it wants to be called. Subclasses say what happens.

    `alarm` is steady time (`time.monotonic`); the loop looks at it whenever its timer ends, so setting it later
    or to infinity needs no call, and setting it earlier needs `Loop.hurry`.
    """

    __slots__ = ("alarm",)

    def __init__(self) -> None:
        self.alarm = _NEVER

    def on_alarm(self, now: float) -> None:
        """Hear that `alarm` has passed; must set it anew or to infinity first."""
        raise NotImplementedError


class Loop:
    """Runs callbacks on one thread. `call_soon` and `hurry` may be called from any thread, the rest from its own.

    A callback that raises is logged and reported to `on_error`; the loop goes on. Where memory is missing, or depth to
    call anything (the recursion limit is one for all threads, and anybody's to set), even that may fail, at any step:
    then it looks at everything once more a moment later.

    Attributes:
        on_trouble: called after such a failure, for what others have left half done.
    """

    def __init__(
        self, name: str, on_error: Callable[[BaseException], None], lock: threading.RLock | None = None
    ) -> None:
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.alarms: set[Alarm] = set()
        self._on_error = on_error
        self._calls: deque[Callable[[], object]] = deque()  # appends and pops are atomic
        # Guards `_armed` and the timer's setting together. It is the pool's, which holds it where it hurries us: one
        # lock for both, so that a finalizer can tell whether it runs in the midst of either.
        self.lock = threading.RLock() if lock is None else lock
        self._armed = _NEVER  # when the timer will wake us, at the latest; guarded by lock
        self._over = False
        self._pause = 0.0
        self._troubled = False  # something may have been lost; only its own thread looks
        self.on_trouble: Callable[[], object] = _nothing
        self.holding: Holding | None = None  # how to change what is waited for without letting go of the GIL
        # Steady time since when it handles what its last wait has brought; 0 while it waits. Read without a lock.
        self.busy_since = 0.0
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timer_fd = self._wake_read = self._wake_write = -1
        self._poller = _make_poller()
        try:
            if _timerfd.available():
                self._timer_fd = _timerfd.timerfd_create(time.CLOCK_MONOTONIC)
                self.watch(self._timer_fd, READ, self._on_timer)
            self._wake_read, self._wake_write = _make_wakeup()
            self.watch(self._wake_read, READ, self._on_wake)
        except BaseException:
            self.close()
            raise

    def paths(self) -> tuple[str, str]:
        """Return how the thread waits for a time, and how it is woken: see `Stats.paths`."""
        return (
            "timer.timerfd" if self._timer_fd >= 0 else "timer.timeout",
            "wake.eventfd" if self._wake_read == self._wake_write else "wake.pipe",
        )

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Ask the thread to end when it has run what was asked before. From any thread."""

        def end() -> None:
            self._over = True

        self.call_soon(end)

    # -- descriptors ---------------------------------------------------------------------------------------

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call `callback(events)` whenever `fd` is ready."""
        self._callbacks[fd] = callback
        self._poller.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of `fd`, or with 0 for none. From any thread."""
        if self.holding is None:
            self._poller.modify(fd, events)
        else:
            self.holding.change(self._poller.fileno(), fd, events)

    def forget(self, fd: int) -> None:
        """Watch `fd` no longer; before it is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._poller.unregister(fd)

    # -- times and calls -----------------------------------------------------------------------------------

    def hurry(self, at: float) -> None:
        """See to it that alarms are looked at by steady time `at`. From any thread."""
        with self.lock:
            if at >= self._armed:
                return
            self._armed = at
            if self._timer_fd >= 0:
                _timerfd.timerfd_arm(self._timer_fd, at)
                return
        self._wake()

    def rearm(self) -> None:
        """Arm the timer anew: who was to arm it may not have come so far. On the loop's thread only."""
        with self.lock:
            self._armed = _NEVER
        self.hurry(min((alarm.alarm for alarm in self.alarms), default=_NEVER))

    def call_at(self, at: float, function: Callable[[], object]) -> None:
        """Run `function` once steady time `at` has come. On the loop's thread only."""
        self.alarms.add(_Later(self, at, function))
        self.hurry(at)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Run `function` on the loop's thread. From any thread, also a signal handler."""
        self._calls.append(function)
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\1\0\0\0\0\0\0\0")
        except BlockingIOError:
            return  # it is as awake as it can be
        except OSError:
            return  # closed: the loop is over

    def pause(self, seconds: float) -> None:
        """Let what comes now gather for so long before it is looked at. On the loop's thread only."""
        self._pause = seconds

    # -- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                try:
                    self._serve()
                    return
                except BaseException:  # of an error that could not even be logged
                    self._troubled = True
        finally:
            if self._over:
                self.close()
            else:
                self._begin_again()

    def _begin_again(self) -> None:
        """The thread ends, of an error that came where nothing catches any: another one goes on."""
        self._troubled = True
        ended = self.thread
        self.thread = threading.Thread(target=self._run, name=ended.name, daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self.thread = ended  # as `health()` tells
            raise

    def _serve(self) -> None:
        self.run(_system.sharpen_timers)
        while not self._over:
            if self._troubled:
                self._recover()
            self.run(self._once)
        while self._calls:
            self._call_next()

    def _recover(self) -> None:
        """Look at all that may have been lost: calls whose wake-up was read, alarms whose timer was, what was torn."""
        time.sleep(TROUBLE_WAIT)
        self._troubled = False
        self._call_all()
        self.rearm()
        self.on_trouble()

    def _call_all(self) -> None:
        for _ in range(len(self._calls)):
            self._call_next()

    def _call_next(self) -> None:
        function = self._calls.popleft()
        try:
            function()
        except BaseException as error:
            trace = error.__traceback__
            if isinstance(error, SHORTAGES) and trace is not None and trace.tb_next is None:
                self._calls.appendleft(function)  # it has not begun
            self.note(error)

    def close(self) -> None:
        """Close the descriptors: at the end of the thread, or of a loop that was never started."""
        self._over = True  # should the thread run all the same
        for fd in list(self._callbacks):
            self._poller.unregister(fd)
        self._callbacks.clear()
        if hasattr(self._poller, "close"):
            self._poller.close()
        leftover = {self._wake_read, self._wake_write, self._timer_fd} - {-1}
        self._wake_read = self._wake_write = self._timer_fd = -1
        for fd in leftover:
            os.close(fd)

    def run(self, function: Callable[[], object]) -> None:
        """Call `function`; what it raises is logged and reported, and goes no further."""
        try:
            function()
        except BaseException as error:
            self.note(error)

    def note(self, error: BaseException) -> None:
        """Log and report what a callback has raised. On the loop's thread."""
        if isinstance(error, SHORTAGES):
            self._troubled = True
        say(logging.ERROR, "the I/O thread goes on after an error", error=error)
        try:
            self._on_error(error)
        except BaseException as failure:  # a clock of the user's, say
            say(logging.ERROR, "an error in the I/O thread could not be reported", error=failure)

    def _once(self) -> None:
        timeout = self._set_timer()
        if self._pause:
            time.sleep(self._pause)
            self._pause = 0.0
        self.busy_since = 0.0
        found = self._poller.poll(timeout)
        self.busy_since = time.monotonic()
        for fd, events in found:
            callback = self._callbacks.get(fd)
            if callback is not None:
                try:
                    callback(events)
                except BaseException as error:
                    self.note(error)
        if self._timer_fd < 0:
            self._ring()

    def _set_timer(self) -> float:
        """Disarm the timer when nothing is to come any more; return how long to poll where there is no timer."""
        if self._timer_fd >= 0 and self._armed == _NEVER:
            return -1.0  # who sets an alarm arms it
        if self._timer_fd >= 0 and min((alarm.alarm for alarm in self.alarms), default=_NEVER) < _NEVER:
            return -1.0
        with self.lock:
            # Read with the lock held: who sets an alarm does so before `hurry` takes it.
            earliest = min((alarm.alarm for alarm in self.alarms), default=_NEVER)
            if self._timer_fd < 0:
                self._armed = earliest
                return -1.0 if earliest == _NEVER else max(0.0, earliest - time.monotonic())
            if earliest == _NEVER and self._armed < _NEVER:
                _timerfd.timerfd_disarm(self._timer_fd)
                self._armed = _NEVER
            return -1.0

    def _on_wake(self, _events: int) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass
        self._call_all()

    def _on_timer(self, _events: int) -> None:
        if _timerfd.timerfd_read(self._timer_fd):
            with self.lock:
                self._armed = _NEVER
            self._ring()

    def _ring(self) -> None:
        now = time.monotonic()
        for alarm in [alarm for alarm in self.alarms if alarm.alarm <= now]:
            self.run(lambda due=alarm: due.on_alarm(now))  # type: ignore[misc]
        later = min((alarm.alarm for alarm in self.alarms), default=_NEVER)
        if later < _NEVER:
            self.hurry(later)


class _Later(Alarm):
    """One function to be called at one time."""

    __slots__ = ("function", "loop")

    def __init__(self, loop: Loop, at: float, function: Callable[[], object]) -> None:
        super().__init__()
        self.loop = loop
        self.alarm = at
        self.function = function

    def on_alarm(self, now: float) -> None:
        self.loop.alarms.discard(self)
        self.function()


def _nothing() -> None:
    """Do nothing."""


def _make_wakeup() -> tuple[int, int]:
    fd = _system.event_descriptor()
    if fd is not None:
        return fd, fd
    reader, writer = _system.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


class _SelectPoller:
    """epoll's interface over `selectors`, for systems that have no epoll."""

    def __init__(self) -> None:
        import selectors

        self._selector = selectors.DefaultSelector()
        self._translate: Any = selectors

    def register(self, fd: int, events: int) -> None:
        self._selector.register(fd, self._mask(events))

    def modify(self, fd: int, events: int) -> None:
        self.unregister(fd)
        if events:
            self.register(fd, events)

    def unregister(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        found = self._selector.select(None if timeout < 0 else timeout)
        return [(key.fd, events) for key, events in found]

    def close(self) -> None:
        self._selector.close()

    def _mask(self, events: int) -> int:
        mask = self._translate.EVENT_READ if events & READ else 0
        return mask | (self._translate.EVENT_WRITE if events & WRITE else 0)


def _make_poller() -> Any:
    if not hasattr(select, "epoll"):
        return _SelectPoller()
    poller = select.epoll(select.EPOLL_CLOEXEC)
    if poller.fileno() > 2:
        return poller
    with poller:  # see `lift`
        return select.epoll.fromfd(_system.lift(os.dup(poller.fileno())))
