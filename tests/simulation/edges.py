"""What stands where the modules under test meet the system: clock, timer descriptor, poller, and their replacement.

Everything is replaced in the modules' own namespaces, for as long as `replaced()` is entered. What they are is read
from `PLACES`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading as real
import time as real_time
import types
from collections.abc import Callable, Iterator
from typing import Any

from procsched import _system, listeners, scheduler
from procsched._logs import log
from procsched.clock import SystemClock
from procsched.scheduler import closing, control, driver, timing, waiting
from procsched.stores import base as stores
from procsched.workers import booking, dispatch, fleet, hearing, loop, pool, process, sending
from tests.simulation.world import VIRTUAL, Condition, Gate, Latch, Lock, Strand, World

READ = loop.READ


class Here:
    """The world of the seed that runs."""

    world: World


def _world() -> World:
    return Here.world


class SimulatedClock(SystemClock):
    """The system's clock, as the scheduler sees it: so everything that goes by real time goes by it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.watchers: list[Callable[[], None]] = []

    watches_steps = True

    def now(self) -> float:
        return self.world.wall()

    def monotonic(self) -> float:
        return self.world.steady()

    def awake(self) -> float:
        return self.world.monotonic()

    def wait(self, condition: Any, seconds: float | None) -> None:
        condition.park(seconds)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.watchers.append(callback)

        def close() -> None:
            if callback in self.watchers:
                self.watchers.remove(callback)

        return close

    def set_wall(self, seconds: float) -> None:
        """Step the wall clock; the watchers hear of it a moment later."""
        self.world.offset += seconds
        self._tell()

    def suspend(self, seconds: float) -> None:
        """Sleep: nothing runs meanwhile."""
        self.world.asleep += seconds
        self.world.offset += seconds
        self._tell()

    def _tell(self) -> None:
        strand = Strand(self.world, self._call_all, "clock")
        strand.start()

    def _call_all(self) -> None:
        for callback in tuple(self.watchers):
            callback()


class Timer:
    """The timer descriptors of the loop: `_timerfd` in its place."""

    @staticmethod
    def available() -> bool:
        return True

    @staticmethod
    def timerfd_create(_clock: int) -> int:
        world = _world()
        world.timer_at = None
        return VIRTUAL

    @staticmethod
    def timerfd_arm(_fd: int, at: float) -> None:
        world = _world()
        world.timer_at = at
        world.at(at, lambda: None)  # somebody looks then

    @staticmethod
    def timerfd_disarm(_fd: int) -> None:
        _world().timer_at = None

    @staticmethod
    def timerfd_read(_fd: int) -> bool:
        world = _world()
        at = world.timer_at
        if at is None or at > world.mono:
            return False
        world.timer_at = None
        return True


class Poller:
    """The loop's epoll: real descriptors by the real one, which never waits; the others by what they say."""

    def __init__(self) -> None:
        self.world = _world()
        self.real: dict[int, int] = {}
        self.virtual: dict[int, Callable[[], bool]] = {VIRTUAL: self._timer_is_due}
        self.watched: set[int] = set()
        self.world.poller = self

    def _timer_is_due(self) -> bool:
        at = self.world.timer_at
        return at is not None and at <= self.world.mono

    def register(self, fd: int, events: int) -> None:
        if fd >= VIRTUAL:
            self.watched.add(fd)
        else:
            self.world.poll.register(fd, events)
            self.real[fd] = events

    def modify(self, fd: int, events: int) -> None:
        if fd < VIRTUAL:
            self.world.poll.modify(fd, events)
            self.real[fd] = events

    def unregister(self, fd: int) -> None:
        if fd >= VIRTUAL:
            self.watched.discard(fd)
        else:
            self.world.poll.unregister(fd)
            del self.real[fd]

    def is_ready(self) -> bool:
        """Whether a virtual descriptor is ready."""
        return any(fd in self.watched and ready() for fd, ready in self.virtual.items())

    def poll(self, _timeout: float) -> list[tuple[int, int]]:
        found = [(fd, READ) for fd, ready in self.virtual.items() if fd in self.watched and ready()]
        found += [(fd, events) for fd, events in self.world.poll.poll(0, 64) if fd in self.real]
        if len(found) > 1:
            found.sort()
            self.world.rng.shuffle(found)
        return found

    def close(self) -> None:
        for fd in tuple(self.real):
            self.unregister(fd)


def _close(fd: int) -> None:
    if fd < VIRTUAL:
        os.close(fd)


class _Os:
    """`os`, where some descriptors are virtual."""

    close = staticmethod(_close)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _System:
    """`_system`, for processes that are simulated."""

    @staticmethod
    def has_ended(pidfd: int) -> bool:
        return _world().processes.is_dead(pidfd)

    @staticmethod
    def can_handle(pid: int, _signum: int, *, sent: bool = False) -> bool:
        return _world().processes.answers_dump(pid)

    @staticmethod
    def resident_bytes(pid: int | None) -> int | None:
        return None if pid is None else _world().behave.resident()

    @staticmethod
    def signal_process(fd: int, signum: int) -> None:
        _world().processes.signal(fd, signum)

    @staticmethod
    def offers(feature: str) -> bool:
        return feature != "eventfd" and _system.offers(feature)  # nobody waits at a socket of ours

    @staticmethod
    def umask() -> int:
        return 0o22

    def __getattr__(self, name: str) -> Any:
        return getattr(_system, name)


class _Time:
    """`time`."""

    @staticmethod
    def monotonic() -> float:
        return _world().monotonic()

    @staticmethod
    def time() -> float:
        return _world().wall()

    @staticmethod
    def sleep(seconds: float) -> None:
        _world().sleep(seconds)

    def __getattr__(self, name: str) -> Any:
        return getattr(real_time, name)


class _Threading:
    """`threading`."""

    @staticmethod
    def Thread(
        target: Callable[..., object], name: str = "", args: tuple[Any, ...] = (), daemon: bool = True
    ) -> Strand:
        return Strand(_world(), target, name, args)

    @staticmethod
    def Condition(lock: Any = None) -> Condition:
        return Condition(_world(), lock)

    @staticmethod
    def Lock() -> Lock:
        return Lock(_world())

    @staticmethod
    def current_thread() -> Strand:
        return _world().current

    @staticmethod
    def main_thread() -> Strand:
        return _world().main

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)


_OS, _SYSTEM, _TIME, _THREADING = _Os(), _System(), _Time(), _Threading()


def _call(function: Callable[[], object]) -> None:
    function()


def _places() -> list[tuple[types.ModuleType, str, object]]:
    from tests.simulation.helper import SimulatedGuard, SimulatedLauncher

    found: list[tuple[types.ModuleType, str, object]] = []
    for name, value, modules in (
        ("time", _TIME, (loop, pool, booking, process, hearing, sending, fleet, dispatch, timing)),
        (
            "threading",
            _THREADING,
            (loop, dispatch, pool, listeners, stores, closing, driver, timing, waiting),
        ),
        ("os", _OS, (loop, process, fleet)),
        ("real_seconds", _TIME.monotonic, (listeners, stores, closing, waiting)),
    ):
        found += [(module, name, value) for module in modules]
    found += [
        (loop, "_timerfd", Timer),
        (loop, "_make_poller", Poller),
        (closing, "Gate", lambda: Gate(_world())),
        (waiting, "Gate", lambda: Gate(_world())),
        (pool, "Latch", lambda: Latch(_world())),
        (pool, "Guard", SimulatedGuard),
        (fleet, "Guard", SimulatedGuard),
        (fleet, "Launcher", SimulatedLauncher),
        (fleet, "_system", _SYSTEM),
        (process, "_system", _SYSTEM),
        (hearing, "_system", _SYSTEM),
        (booking, "_system", _SYSTEM),
        (pool, "_system", _SYSTEM),
        (scheduler, "apart", _call),  # no signals come here
        (driver, "apart", _call),
        (control, "apart", _call),
        (driver, "draw", lambda: _world().rng.random()),
    ]
    return found


@contextlib.contextmanager
def replaced() -> Iterator[None]:
    """Put the simulated edges in their places."""
    kept = [(module, name, getattr(module, name)) for module, name, _value in _places()]
    level, log.level = log.level, logging.CRITICAL + 1
    log.setLevel(log.level)
    for module, name, value in _places():
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
        log.setLevel(level)
