"""One seed: builds a world, lets it run, and says what came of it."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections import Counter
from typing import Any

from procsched import InMemoryTaskStore, Scheduler
from procsched.scheduler.driver import CLOSED, RUNNING
from procsched.workers import base as calls
from tests.simulation.checker import Checker
from tests.simulation.children import Processes
from tests.simulation.edges import Here, SimulatedClock
from tests.simulation.script import Script, Settings
from tests.simulation.strands import Inside, furnish
from tests.simulation.users import Ids, Users
from tests.simulation.world import OrderedSet, Violation, World

SETTLE = 1.5  # simulated seconds in which what was begun may end, before the shutdown
AFTER = 30.0  # simulated seconds after the shutdown in which the last threads and processes end


class Result:
    """What came of a seed."""

    def __init__(self, world: World, error: str | None) -> None:
        self.seed = world.seed
        self.steps = world.steps
        self.error = error
        self.seen: Counter[str] = world.seen
        self.digest = world.digest.hexdigest()
        self.lines = world.lines[-60:]


class Listener:
    """Hears events on its strand; may raise, or shut the scheduler down."""

    def __init__(self, world: World, kind: str | None) -> None:
        self.world, self.kind = world, kind
        self.sequence = self.heard = 0
        self.may_lose = False
        self.users: Any = None

    def on_task_event(self, event: Any) -> None:
        if event.sequence <= self.sequence or (event.sequence > self.sequence + 1 and not self.may_lose):
            raise self._violation(f"a listener hears event {event.sequence} after {self.sequence}")
        self.sequence = event.sequence
        self.heard += 1
        self.world.seen["events delivered"] += 1
        if self.kind == "raises" and self.world.rng.random() < 0.2:
            self.world.seen["a listener raises"] += 1
            raise RuntimeError("listener")
        if (
            self.kind == "shuts down"
            and self.world.rng.random() < 0.01
            and self.world.scheduler._state == RUNNING
        ):
            self.world.seen["a listener shuts down"] += 1
            self.users.shut_down(listener=True)

    def _violation(self, text: str) -> Violation:
        self.world.broken = text
        return Violation(text)


class Store:
    """A store that may raise."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kept: dict[str, Any] = {}
        self.fails = 0.0

    def save(self, task: Any) -> None:
        if self.world.rng.random() < self.fails:
            self.world.seen["the store raises"] += 1
            raise OSError("disk full")
        self.kept[task.task.id] = task

    def delete(self, task_id: str) -> None:
        self.kept.pop(task_id, None)

    def load_all(self) -> list[Any]:
        return []


class CommittingStore(Store):
    """One that takes batches."""

    def commit(self, changes: Any) -> None:
        for task, _record in changes:
            self.save(task)


def run_seed(seed: int, *, verbose: bool = False) -> Result:
    """Run one seed. To be called with the edges `replaced()`."""
    world = World(seed)
    world.verbose = verbose
    Here.world = world
    calls._paces.clear()
    error = None
    try:
        _run(world)
    except Exception as failure:
        error = str(failure) if isinstance(failure, Violation) else traceback.format_exc()
    finally:
        _clean_up(world)
    return Result(world, world.broken or error)


def _run(world: World) -> None:
    settings = Settings(world.rng)
    world.slow, world.slowest = settings.slow, settings.slowest
    world.behave = Script(world, settings)
    world.processes = Processes(world)
    furnish(world)
    clock = SimulatedClock(world)
    store: Any = None
    if settings.store == "memory":
        store = InMemoryTaskStore()
    elif settings.store is not None:
        store = CommittingStore(world) if settings.store == "commits" else Store(world)
        store.fails = world.rng.choice((0.0, 0.3))
    listener, ids = Listener(world, settings.listener), Ids()
    listener.may_lose = "event_limit" in settings.options
    scheduler = Scheduler(settings.workers, clock, ids, store, [listener], **settings.options)
    world.scheduler = scheduler
    scheduler.engine.open_questions = OrderedSet()
    scheduler._inside = Inside(world)
    checker = Checker(world, scheduler, settings)
    users = Users(world, scheduler, clock, settings, ids)
    listener.users = users
    users.begin()
    scheduler.pool.loop.alarms = Alarms(world, scheduler.pool.loop.alarms)
    world.run(world.mono + settings.horizon * 1.5)
    if scheduler._closing is None and world.rng.random() < 0.7:
        world.behave.calm = True
        if isinstance(store, Store):
            store.fails = 0.0
        world.run(world.mono + SETTLE)
    if scheduler._closing is None:
        users.shut_down()
    while scheduler._state != CLOSED:  # somebody else does it
        world.one_step()
    world.run(world.mono + AFTER)
    checker.slots()
    checker.finish(scheduler._closing.report)
    _check_left(world, scheduler, store, listener)


def _check_left(world: World, scheduler: Any, store: Any, listener: Listener) -> None:
    if world.io.alive:
        raise Violation("the I/O thread is alive after the shutdown")
    if scheduler._timer.alive:
        raise Violation("the timer is alive after the shutdown")
    if isinstance(store, Store) and not scheduler.writer.lost:
        for name, entry in scheduler.engine.entries.items():
            kept = store.kept.get(name)
            if kept is None or kept.status is not entry.status:
                raise Violation(f"{name} is {entry.status}, and stored as {kept and kept.status}")
        if not set(store.kept) <= set(scheduler.engine.entries):
            raise Violation(f"{set(store.kept) - set(scheduler.engine.entries)} are forgotten, and stored")
    lost = sum(scheduler.delivery.lost().values())
    world.seen["events lost by a listener"] += lost
    # What comes behind a shutdown that did not wait for it is not told.
    complete = listener.kind != "shuts down" and not world.checker.is_death_slow()
    if complete and listener.heard + lost != scheduler.engine.sequence:
        raise Violation(
            f"the listener heard {listener.heard} and lost {lost} of {scheduler.engine.sequence} events"
        )
    counters = scheduler.pool.counters
    gone = sum(counters[f"{how}_workers"] for how in ("left", "killed", "crashed", "lost"))
    if counters["spawned"] != gone:
        raise Violation(f"{counters['spawned']} workers were spawned, and {gone} are gone")
    for name, count in counters.items():
        world.seen[f"pool: {name}"] += count
    for name in ("retried", "missed", "skipped", "returned", "late_results", "schedule_errors"):
        world.seen[f"scheduler: {name}"] += scheduler.engine.counters[name]


class Alarms(OrderedSet[Any]):
    """The loop's alarms, in an order that the seed draws: in the loop it is any."""

    def __init__(self, world: World, alarms: Any) -> None:
        super().__init__()
        self.world = world
        for alarm in sorted(alarms, key=lambda each: type(each).__name__):
            self.add(alarm)

    def __iter__(self) -> Any:
        items = list(self._items)
        if len(items) > 1:
            at = int(self.world.rng.random() * len(items))
            items = items[at:] + items[:at]
        return iter(items)


def _clean_up(world: World) -> None:
    """Close what a run that failed has left open."""
    if world.helper is not None:
        for mine in world.helper.unforked.values():
            for fd in mine:
                os.close(fd)
    if world.processes is not None:
        for child in world.processes.by_pid.values():
            if not child.dead:
                child.dead = True
                child.close()
    scheduler = getattr(world, "scheduler", None)
    pool = getattr(scheduler, "pool", None)
    if world.io is not None and world.io.alive:
        with contextlib.suppress(Exception):
            for worker in tuple(pool.fleet.workers.values()):
                worker.close()
            pool.fleet.pages.close()
            pool.loop.close()
    from procsched.scheduler import exits

    if scheduler is not None:
        exits.release(scheduler)
    world.poll.close()
