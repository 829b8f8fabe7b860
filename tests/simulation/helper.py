"""The simulated helper: forks simulated workers, reaps them, and may die, hang or fail to fork.

It stands in the place of `Launcher` with everything behind that. What it says comes to the I/O thread in the order in
which it was said, a moment later, by way of a virtual descriptor.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from procsched.workers.loop import READ
from tests.simulation.children import Child
from tests.simulation.world import VIRTUAL

CONTROL = VIRTUAL + 1


class SimulatedGuard:
    """A guard that was started."""

    def __init__(self) -> None:
        from tests.simulation.edges import Here

        Here.world.behave.guard()  # may raise OSError

    def abandon(self) -> None:
        """Nothing is to be ended."""


class SimulatedLauncher:
    """The interface of `Launcher`; see the module."""

    def __init__(self, loop: Any, owner: Any) -> None:
        from tests.simulation.edges import Here

        self.world = Here.world
        self.loop = loop
        self.owner = owner
        self.helper_pid: int | None = None
        self.closing = False
        self.answered = 0
        self.pings = 0
        self.alive = True
        self.hung_until = 0.0
        self.children: dict[int, Child] = {}
        self.said: deque[tuple[float, Callable[[], None]]] = deque()
        self.last_at = 0.0
        self.unforked: dict[int, tuple[int, ...]] = {}

    def start(self, _guard: object, _config: dict[str, Any], _page_fd: int) -> None:
        """Begin to serve."""
        poller = self.world.poller
        poller.virtual[CONTROL] = lambda: bool(self.said) and self.said[0][0] <= self.world.mono
        self.loop.watch(CONTROL, READ, self._on_control)
        self.world.helper = self
        fate, seconds = self.world.behave.helper()
        self.world.note("helper", fate)
        if fate == "never serves":
            self.world.later(seconds, lambda: self._die("no worker could be started: it died"))
            return
        self.say(lambda: setattr(self, "helper_pid", 99), seconds)
        if fate == "dies":
            self.world.later(seconds + 5 * self.world.rng.random(), lambda: self._die(None))
        elif fate == "hangs":
            self.world.later(seconds + 5 * self.world.rng.random(), self._hang)

    # -- speaking and hearing ----------------------------------------------------------------------------------

    def say(self, what: Callable[[], None], seconds: float | None = None) -> None:
        """Say something to the parent, which comes after all that was said before."""
        world = self.world
        at = world.mono + (world.latency() if seconds is None else seconds)
        at = self.last_at = max(at, self.last_at, self.hung_until)
        self.said.append((at, what))
        world.at(at, lambda: None)

    def _on_control(self, _events: int) -> None:
        while self.said and self.said[0][0] <= self.world.mono:
            self.loop.run(self.said.popleft()[1])

    def _do(self, what: Callable[[], None]) -> None:
        """The helper does something a moment after it was told."""
        world = self.world

        def act() -> None:
            if self.alive:
                what()

        at = max(world.mono + world.latency(), self.hung_until)
        world.at(at, act)

    # -- the interface -----------------------------------------------------------------------------------------

    def spawn(self, number: int, fds: Sequence[int], options: dict[str, Any]) -> None:
        """Fork a worker."""
        world = self.world
        if not self.alive:
            return
        self.unforked[number] = tuple(os.dup(fd) for fd in fds)

        def fork() -> None:
            mine = self.unforked.pop(number, None)
            if mine is None:
                return  # the helper has died before
            kind, seconds = world.behave.fork()
            if kind == "fails":
                world.note("fork fails", f"{number}")
                _close_all(mine)
                self.say(lambda: self.owner.on_spawn_failed(number, "OSError: no processes", None))
                return
            child = Child(world, self, number, mine, self.owner.pages.views(options["page"]))
            self.children[number] = child
            world.note("forks", f"{number}")

            def tell() -> None:
                child.parent_knows = True
                self.owner.on_spawned(number, child.pid, child.pidfd)

            self.say(tell, seconds)

        world.at(max(world.mono + world.latency(), self.hung_until), fork)

    def prepare_by_value(self) -> None:
        """Nothing to prepare."""

    def ask(self, number: int) -> None:
        """SIGTERM."""
        child = self.children.get(number)
        if child is not None:
            self._do(lambda: child.hear(signal.SIGTERM))

    def kill(self, number: int) -> None:
        """SIGKILL."""
        child = self.children.get(number)
        if child is not None:
            self._do(lambda: child.hear(signal.SIGKILL))

    def ping(self) -> int:
        """Ask for an answer."""
        self.pings += 1
        number = self.pings
        self._do(lambda: self.say(lambda: setattr(self, "answered", number)))
        return number

    def stop(self) -> None:
        """Hang up."""
        self.closing = True
        self._do(lambda: self._die(None))

    def destroy(self, failure: str | None = None) -> None:
        """Kill the helper."""
        self.world.later(self.world.latency(), lambda: self._die(failure, forced=True))

    # -- its life ----------------------------------------------------------------------------------------------

    def child_died(self, child: Child) -> None:
        """A child has died: it is reaped, and its end told."""
        world = self.world
        if not self.alive:
            return
        stuck = (4711,) if world.behave.chance("stuck") else ()

        def tell() -> None:
            world.note("gone", f"{child.number}")
            self.owner.on_gone(child.number, child.status, child.died_at, 0.02, 1 << 20, stuck)

        self.say(tell, world.behave.reap())

    def _hang(self) -> None:
        if self.alive:
            self.world.note("helper hangs")
            self.hung_until = self.world.mono + self.world.rng.choice((0.05, 0.5, 1e9))

    def _die(self, failure: str | None, *, forced: bool = False) -> None:
        if not self.alive:
            return
        world = self.world
        world.note("helper dies", "closing" if self.closing else "")
        hung = self.hung_until > world.mono
        self.hung_until = 0.0
        if hung:
            self.said = deque(each for each in self.said if each[0] <= world.mono)
            self.last_at = world.mono
        self.alive = False
        for mine in self.unforked.values():
            _close_all(mine)
        self.unforked.clear()
        for child in self.children.values():
            child.die(signal.SIGKILL)
        why = None if failure is None or self.helper_pid is not None else (failure, None)

        def lost() -> None:
            world.note("helper lost")
            self.loop.forget(CONTROL)
            self.owner.on_helper_lost("the helper process 99 ended (SIGKILL)", why)

        self.say(lost, 2e-4)


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
