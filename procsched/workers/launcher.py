"""The parent's side of the helper: asks for workers, hears what became of them.

`child/guard.py` has the drawing of who talks to whom. Everything here runs on the pool's I/O thread.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections import deque

from procsched import _system
from procsched.workers.loop import READ, SHORTAGES, WRITE
from procsched.workers.verdict import exit_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Protocol

    from procsched.workers.guard import Guard
    from procsched.workers.loop import Loop

    class LauncherOwner(Protocol):
        """Who hears of the workers: the pool."""

        launcher: Launcher | None  # None once it has heard that the helper is lost

        def on_spawned(self, number: int, pid: int, pidfd: int | None) -> None:
            """A worker was forked; it says itself when it is ready."""

        def went(self, path: str) -> None:
            """A way was gone: see `Stats.paths`."""

        def on_spawn_failed(self, number: int, error: str, traceback: str | None) -> None:
            """A worker could not be started."""

        def on_gone(
            self, number: int, status: int, at: float, cpu: float, rss: int, stuck: tuple[int, ...]
        ) -> None:
            """A worker was reaped with wait status `status`, and all that it left was sent SIGKILL."""

        def on_helper_lost(self, reason: str, failure: tuple[str, str | None] | None) -> None:
            """The helper has ended, and every worker with it. `failure`: why it never served, with a traceback."""


ALONE_WAIT = 1.0  # seconds that a helper whose guard has died gets to end what is below it
ROUSE_WAIT = 1.0  # seconds that a guard gets to end what the helper left, once it is told to go on


class Launcher:
    """One guard with one helper. Made anew when they have died.

    Attributes:
        helper_pid: None until the helper has said hello.
        answered: number of the last `ping` that it has answered.
        started_at: steady time.
        unanswered: requests that the helper is to answer at once, with the steady time of each. This and what comes
            before are read by other threads without a lock.
        held_since: pid -> steady time since when `health()` has found a process stopped, or otherwise held.
    """

    def __init__(self, loop: Loop, owner: LauncherOwner) -> None:
        self.loop = loop
        self.owner = owner
        self.guard_pid = 0
        self.helper_pid: int | None = None
        self.closing = False
        self._guard_fd: int | None = None
        self._control: Any = None
        self._unsent: deque[tuple[memoryview, tuple[int, ...], bool]] = deque()
        self._received: list[tuple[Any, list[int]]] = []  # messages, and the descriptors with each
        self._failure: tuple[str, str | None] | None = None  # why it cannot serve
        self._broken = ""  # what it wrote that is no message
        self._helper_fd: int | None = None
        self._hung_up = False  # the helper has closed its end
        self._guard_reaped = False
        self._guard_status = 0
        self._roused = False
        self._left_alone = False
        self._pings = 0
        self.answered = 0
        self.started_at = time.monotonic()
        self.unanswered: dict[tuple[str, int], float] = {}
        self.held_since: dict[int, float] = {}

    def start(self, guard: Guard, config: dict[str, Any], page_fd: int) -> None:
        """Take over a guard and send its helper the configuration."""
        from procsched.child.control import Control  # while the guard starts

        self._control = Control(guard.socket)
        self.guard_pid, self._guard_fd = guard.pid, guard.pidfd
        self.loop.watch(guard.socket.fileno(), READ, self._on_control)
        if self._guard_fd is not None:
            self.loop.watch(self._guard_fd, READ, self._on_guard_dead)
        self._send(config, (page_fd,))

    # -- requests ------------------------------------------------------------------------------------------

    def spawn(self, number: int, fds: Sequence[int], options: dict[str, Any]) -> None:
        """Ask for a worker that gets `fds`; they may be closed once this returns."""
        self._send(("spawn", number, options), _duplicates(fds), own=True)
        self.unanswered["spawn", number] = time.monotonic()

    def prepare_by_value(self) -> None:
        """Have the helper import what calls that are pickled by value need, for the workers to come."""
        self._send(("by_value", 0))

    def ask(self, number: int) -> None:
        """Have SIGTERM sent to a worker and its tree."""
        self._send(("ask", number))

    def limit(self, number: int, at: float) -> None:
        """Have a worker killed at steady time `at`, should it be there still."""
        self._send(("deadline", number, at))

    def kill(self, number: int) -> None:
        """Have a worker killed, where there is no pid descriptor to do it with."""
        self._send(("kill", number))

    def ping(self) -> int:
        """Have the helper look at its children and answer; return the number that `answered` has then."""
        self._pings += 1
        self.unanswered["ping", self._pings] = time.monotonic()
        self._send(("ping", self._pings))
        return self._pings

    def stop(self) -> None:
        """Hang up: the helper ends its workers and itself, the guard follows, `on_helper_lost` comes."""
        self.closing = True
        if self._control is not None:
            self._control.sock.shutdown(1)  # SHUT_WR; our reading end stays open, to see it go

    def destroy(self, failure: str | None = None) -> None:
        """Kill the helper, or the guard where there is none yet: they no longer answer. What is left follows.

        Args:
            failure: why it never served, if it did not.
        """
        if failure is not None and self._failure is None:
            self._failure = (failure, None)
        if self._helper_fd is not None and self._guard_has_ended() and not self._left_alone:
            # It has no guard any more that would end what it leaves: it is just doing that itself.
            self._left_alone = True
            self.loop.call_at(time.monotonic() + ALONE_WAIT, self.destroy)
            return
        if self._helper_fd is not None:
            try:
                _system.signal_process(self._helper_fd, signal.SIGKILL)
            except ProcessLookupError:
                self._hung_up = True
        if self._hung_up and not self._roused:
            # The helper is gone, and the guard does not follow. It may be stopped, and nobody else ends what is left.
            self._roused = True
            self._signal_guard(signal.SIGCONT)
            self.loop.call_at(time.monotonic() + ROUSE_WAIT, self.destroy)
        elif self._hung_up or self._helper_fd is None:
            self._signal_guard(signal.SIGKILL)

    def _guard_has_ended(self) -> bool:
        return self._guard_reaped or (self._guard_fd is not None and _system.has_ended(self._guard_fd))

    def _signal_guard(self, signum: int) -> None:
        if self._guard_reaped:
            return
        try:
            if self._guard_fd is None:
                os.kill(self.guard_pid, signum)
            else:
                _system.signal_process(self._guard_fd, signum)
        except ProcessLookupError:  # somebody else in this program has reaped it
            return

    # -- sending -------------------------------------------------------------------------------------------

    def _send(self, message: object, fds: tuple[int, ...] = (), *, own: bool = False) -> None:
        if self._control is None:
            if own:
                _close_all(fds)
            return
        self._unsent.append((memoryview(self._control.encode(message, fds)), fds, own))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        sock = self._control.sock
        while self._unsent:
            view, fds, own = self._unsent[0]
            try:
                sent = sock.sendmsg([view], self._control.ancillary(fds))
            except BlockingIOError:
                self.loop.change(sock.fileno(), READ | WRITE)
                return
            except OSError:
                self._drop_unsent()  # it is dead: the guard's end follows
                return
            if own:
                _close_all(fds)
            if sent == len(view):
                self._unsent.popleft()
            else:
                self._unsent[0] = (view[sent:], (), False)
        self.loop.change(sock.fileno(), READ)

    def _drop_unsent(self) -> None:
        for _view, fds, own in self._unsent:
            if own:
                _close_all(fds)
        self._unsent.clear()

    # -- hearing -------------------------------------------------------------------------------------------

    def _on_control(self, events: int) -> None:
        if events & WRITE and self._control is not None:
            self._flush()
        if self._control is None or not events & ~WRITE:
            return
        self._received += self._control.receive_available()
        self.hear_received()

    def hear_received(self) -> None:
        """Handle what has come: each is kept until it was, for with the death of a worker a call would be lost."""
        while self._received:
            message, fds = self._received[0]
            if message is None and not fds:
                self._received.clear()
                self._hung_up = True
                self.loop.run(self._close_control)
                self._signal_guard(signal.SIGCONT)  # it may be stopped, and is to see that the helper is gone
                if self._guard_fd is None and not self._guard_reaped:
                    # No pid descriptors here. The guard ends within the five seconds it gives what is left.
                    self._reap_guard(self._wait_guard(0))
                return
            count = len(fds)
            try:
                self._hear(message, fds)
            except BaseException as error:
                if isinstance(error, SHORTAGES) and len(fds) == count:
                    raise  # the loop calls again when it has recovered
                self.loop.note(error)
            while fds:
                os.close(fds.pop())
            del self._received[:1]

    def _hear(self, message: Any, fds: list[int], *, again: bool = False) -> None:
        """Handle a message, if it is one.

        Args:
            again: an error of ours has kept it from being handled once already.
        """
        try:
            if is_message(message, len(fds)) and not (message[0] == "hello" and self.helper_pid is not None):
                self._handle(message, fds)
            else:
                self._break_off(f"{message!r:.200} with {len(fds)} descriptors")
        except SHORTAGES:
            raise
        except Exception as error:
            if message[0] not in ("gone", "spawn_failed") or again:  # what else is lost has a deadline
                raise
            self.loop.note(error)
            self.loop.call_soon(functools.partial(self._hear, message, [], again=True))

    def _break_off(self, what: str) -> None:
        """End a helper that has written what it never would: a module of `preload=` has, into its socket."""
        if not self._broken:
            self._broken = f"it wrote what is no message: {what}"
            self.destroy()

    def _handle(self, message: tuple[Any, ...], fds: list[int]) -> None:
        """Handle a message; what it keeps of the descriptors it takes out of the list."""
        kind = message[0]
        if kind == "gone":
            self.owner.on_gone(*message[1:])
        elif kind == "spawned":
            self.unanswered.pop(("spawn", message[1]), None)
            self.owner.went("start.fork" if message[3] else "start.exec")
            self.owner.on_spawned(message[1], message[2], fds.pop() if fds else None)
        elif kind == "spawn_failed":
            self.unanswered.pop(("spawn", message[1]), None)
            self.owner.on_spawn_failed(message[1], message[2], None)
        elif kind == "pong":
            self.answered = message[1]
            self.unanswered.pop(("ping", message[1]), None)
        elif kind == "hello":
            self.helper_pid = message[1]
            self._helper_fd = fds.pop() if fds else None
        elif kind == "preload_failed":
            _kind, name, text, traceback = message
            self._failure = (f"preload={name!r} cannot be imported: {text}", traceback)

    def _close_control(self) -> None:
        self.loop.forget(self._control.fileno())
        try:
            self._control.sock.shutdown(2)  # SHUT_RDWR: a fork of this process may hold a copy open
        except OSError:  # the other side has gone before
            pass
        self._control.forget()
        self._control = None
        self._drop_unsent()

    def _on_guard_dead(self, _events: int) -> None:
        status = self._wait_guard(os.WNOHANG)
        assert self._guard_fd is not None
        self.loop.forget(self._guard_fd)
        os.close(self._guard_fd)
        self._guard_fd = None
        self._reap_guard(status)

    def _wait_guard(self, options: int) -> int:
        """Return the wait status of the guard, 0 where that is not to be had any more."""
        try:
            return os.waitpid(self.guard_pid, options)[1]
        except ChildProcessError:
            return 0  # the host program reaps every child of the process, or ignores SIGCHLD

    def _reap_guard(self, status: int) -> None:
        self._guard_reaped = True
        self._guard_status = status
        if self._control is not None:
            found = self._control.receive_available()  # what it said before it died
            self._received += [each for each in found if each != (None, [])]
            self.loop.run(self.hear_received)
        if self._helper_fd is None:
            self._lost()
        else:
            # The guard ends after everything below it, unless it was killed itself: then the helper ends what
            # there is, and goes last.
            self.loop.watch(self._helper_fd, READ, self._on_helper_dead)

    def _on_helper_dead(self, _events: int) -> None:
        assert self._helper_fd is not None
        _system.reap_adopted(self._helper_fd)
        self.loop.forget(self._helper_fd)
        os.close(self._helper_fd)
        self._helper_fd = None
        self._lost()

    def _lost(self) -> None:
        if self._control is not None:
            self.loop.run(self._close_control)  # whatever becomes of it, the loss is told
        why = self._broken or _words(self._guard_status)
        reason = f"the helper process {self.helper_pid or self.guard_pid} ended ({why})"
        if self.helper_pid is None and self._failure is None:
            self._failure = (f"no worker could be started: {reason} before it was ready", None)
        self._tell_lost(reason)

    def _tell_lost(self, reason: str, *, again: bool = False) -> None:
        try:
            self.owner.on_helper_lost(reason, self._failure)
        except Exception as error:
            if again or self.owner.launcher is not self:
                raise
            # An error of ours has kept it from being heard of, and nothing else ends the calls.
            self.loop.note(error)
            self.loop.call_soon(functools.partial(self._tell_lost, reason, again=True))


# What a helper says: the kind, and what follows it.
_SHAPES: dict[str, tuple[type, ...]] = {
    "gone": (int, int, float, float, int, tuple),
    "spawned": (int, int, bool),  # the last: whether it is a fork
    "spawn_failed": (int, str),
    "pong": (int,),
    "hello": (int,),
    "preload_failed": (str, str, str),
}


def is_message(message: Any, fds: int) -> bool:
    """Return whether a value that came with so many descriptors is something that a helper says."""
    if type(message) is not tuple or not message or type(message[0]) is not str:
        return False
    kind, *rest = message
    if tuple(map(type, rest)) != _SHAPES.get(kind) or fds > (kind in ("spawned", "hello")):
        return False
    if kind in ("spawned", "hello"):
        return bool(rest[kind == "spawned"] > 0)  # the pid
    if kind == "gone":
        try:
            os.waitstatus_to_exitcode(rest[1])
        except (ValueError, OverflowError):
            return False
        return all(type(pid) is int for pid in rest[-1])
    return True


def _words(status: int) -> str:
    """Say how the helper ended, from the guard's wait status: the guard exits as the helper did."""
    words, code, _signal = exit_words(status)
    if code is None:
        return f"its guard: {words}"
    try:
        return signal.Signals(code - 128).name
    except ValueError:
        return words


def _duplicates(fds: Sequence[int]) -> tuple[int, ...]:
    """Return copies of descriptors: all of them, or none and an OSError."""
    made: list[int] = []
    try:
        made.extend(_system.lift(os.dup(fd)) for fd in fds)
    except OSError:
        _close_all(made)
        raise
    return tuple(made)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
