"""A caller that waits for a result takes it from the worker itself, without the I/O thread.

    submit() -----> Sender ====> worker
    result() -- listen() <====== its answer        (one wake-up; by way of the I/O thread it would be two)
                  '--> Booker.hear()

While it listens the loop hears nothing but the end of that worker's stream. Whatever else is to wake the caller, a
deadline or a cancel, rings its bell. What is no plain result is left to the I/O thread.

A caller that listens may be kept from going on, by a signal handler in its thread. Nobody may come to wait for that: as
soon as anyone else has an interest in the call, or in its worker, the loop listens again (`heed_locked`).
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import select
import time

from procsched import _system
from procsched._core import wire
from procsched.child.protocol import ANSWERED
from procsched.workers.hearing import Hearer
from procsched.workers.sending import WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._interrupts import Latch
    from procsched.workers.base import Call
    from procsched.workers.pool import ProcessPool

_IN = getattr(select, "POLLIN", 1)


class Bell:
    """A descriptor by which others wake a thread that waits for a worker's socket.

    Raises:
        OSError: no descriptor is left.
    """

    __slots__ = ("__weakref__", "_fd", "_poller", "_watched")

    def __init__(self) -> None:
        self._fd = self._watched = -1
        fd = _system.event_descriptor()
        assert fd is not None  # else nobody listens
        self._fd = fd
        self._poller = select.poll()
        self._poller.register(fd, _IN)

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def ring(self) -> None:
        """Wake the thread. It may be another one by then, which has to wait again."""
        with contextlib.suppress(OSError):
            os.write(self._fd, b"\1\0\0\0\0\0\0\0")

    def wait(self, fd: int, seconds: float) -> bool:
        """Wait until it rings or `fd` is readable, at most so many seconds; return whether it has only rung."""
        self._poller.register(fd, _IN)
        if self._watched not in (-1, fd):
            with contextlib.suppress(KeyError):
                self._poller.unregister(self._watched)
        self._watched = fd
        found = self._poller.poll(None if seconds == math.inf else math.ceil(min(seconds, 1e6) * 1000))
        ready = [each for each, _events in found]
        if self._fd in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._fd, 8)
        return ready == [self._fd]


def hang_bell(pool: ProcessPool) -> None:
    """Add a bell to those of the pool, which needs no more of them than it has workers. On the I/O thread."""
    if len(pool.bells_made) < pool.size and not pool.closed.is_set:
        with contextlib.suppress(OSError):  # no descriptor is left: it goes without
            bell = Bell()
            pool.bells_made.add(bell)
            pool.bells.append(bell)


class Listener(Hearer):
    """The part of a worker's handle that callers listen by."""

    __slots__ = ()

    def listen(self, call: Call, latch: Latch, seconds: float) -> None:
        """Wait for the end of `call`, and book its result when it comes, as far as that can be done from here.

        Returns when something has happened or the time is up; the caller looks, and waits otherwise if need be.

        Args:
            latch: set when the call has ended.
            seconds: how long, at most.
        """
        pool = self.pool
        if not seconds > 0:
            return
        try:
            bell = pool.bells.pop()
        except IndexError:
            # Made by a thread that no signal handler interrupts; the I/O thread reads the answer this time.
            pool.loop.call_soon(functools.partial(hang_bell, pool))
            return
        taken = False
        try:
            if self._begin_listening(call, latch, bell):
                self._await(call, latch, bell, seconds)
                taken = self._take(call, latch)
        finally:
            if not taken:
                try:
                    if latch.bell is bell:
                        latch.bell = None
                    self.heed()
                except BaseException:
                    pool.loop.call_soon(self.heed)
                    raise
            pool.bells.append(bell)
            del bell  # no traceback is to keep its descriptor
            if pool.closed.is_set:
                pool.bells.clear()

    def _begin_listening(self, call: Call, latch: Latch, bell: Bell) -> bool:
        """Have the loop not listen, unless somebody else would have to wait for us."""
        pool = self.pool
        with pool.lock:
            fit = self.call is call and self.state is WorkerState.BUSY and call.verdict is None
            if not fit or self.ahead or self.out or self.hung_up or latch.bell is not None:
                return False
            latch.bell = bell
            pool.listened.add(self)
            if latch.is_set or not call.is_alone():  # looked at when those who come next find us
                return False
            self.tune_locked()
        return True

    def heed(self) -> None:
        """Have the loop listen again. From any thread."""
        with self.pool.lock:
            self.heed_locked()

    def _await(self, call: Call, latch: Latch, bell: Bell, seconds: float) -> None:
        """Wait until the worker has written something, or the call has ended otherwise."""
        end = time.monotonic() + seconds
        pool, held = self.pool, self.pool.holding
        try:
            if pool.spin and held is not None:
                spun = min(end, time.monotonic() + pool.spin)
                while self.page[ANSWERED] < call.number:
                    if time.monotonic() >= spun:
                        break
                    held.give_way()  # where the worker is to run on this very processor
                else:
                    return
            # It may have been rung for the one who had it before.
            while bell.wait(self.sock.fileno(), max(0.0, end - time.monotonic())):
                if latch.is_set or self.call is not call:
                    return
        except ValueError:  # the worker is gone
            return

    def _take(self, call: Call, latch: Latch) -> bool:
        """Book the result of `call` if that is what has come; return whether the worker has nothing more to say.

        It is only looked at until it is booked, so that nothing is lost where a signal handler raises in between: an
        answer that is found again is known by its number.
        """
        pool = self.pool
        held = pool.holding
        with pool.reading:
            if held is None or self.call is not call or self.decoder.in_frame:
                return False
            try:
                data = held.peek(self.sock.fileno())
            except OSError:  # it is gone already, or somebody else has read it
                return False
            frame = wire.only_frame(data)
            if frame is None or frame.kind != wire.DONE or frame.flags or frame.number != call.number:
                return False
            latch.bell = None  # this thread is awake
            if not pool.hear(self, [frame]):  # type: ignore[arg-type]  # a `Worker`
                return False
            with pool.lock:
                self.taken = len(data)
                # There will be time to read it while the next call is on its way. Now that would wake the worker, which
                # waits in a read (unix_write_space in the kernel): ten microseconds.
                if self in pool.listened:
                    return self.state is WorkerState.IDLE
                self.drop_taken_locked()
                return False
