"""How each thread of the scheduler and its pool is taken forward, step by step.

Each function here is the loop of a thread turned inside out: the shipped code does a step, and what would wait there
leaves the strand until it is woken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from procsched.clock import SystemClock
from procsched.scheduler.timing import FIRST_BACKOFF, LAST_BACKOFF
from procsched.stores.base import FIRST_RETRY, LAST_RETRY
from tests.simulation.world import Parked, Strand, Violation, World


def furnish(world: World) -> None:
    """Tell the world how its strands run."""
    world.adopters.update(
        {
            "procsched-io": lambda strand: _io(world, strand),
            "procsched-timer": lambda strand: _timer(world, strand),
            "procsched-listener": _listener,
            "procsched-store": lambda strand: _store(world, strand),
        }
    )


def _io(world: World, strand: Strand) -> None:
    """`Loop._run`: one turn each time that a descriptor is ready."""
    loop: Any = strand.target.__self__
    world.io = strand

    def step() -> float | None:
        if not loop._over:
            loop.run(loop._once)
            world.seen["turns of the I/O thread"] += 1
        if not loop._over:
            return None
        while loop._calls:
            loop.run(loop._calls.popleft())
        loop.close()
        strand.alive = False
        return None

    strand.step = step

    def look() -> None:
        ready = False
        by_fd = world.processes.by_fd
        for fd, _events in world.poll.poll(0, 64):
            child = by_fd.get(fd)
            if child is None:
                ready = True
            else:
                child.notice()
        if strand.alive and strand.due is None and not strand.busy and (ready or world.poller.is_ready()):
            strand.wake()

    world.after_step.append(look)


def _timer(world: World, strand: Strand) -> None:
    """`TimedDriver._run_timer`, whose waits on the clock leave the strand."""
    driver: Any = strand.target.__self__
    strand.parks = True
    failures = 0

    def step() -> float | None:
        nonlocal failures
        driver._timer_waits = False
        try:
            if not driver._pass() and driver._wait_for_work(0.0) < 0.0:
                strand.alive = False
                return None
            failures = 0
        except Parked as parked:
            failures = 0
            driver._timer_waits = True
            return None if parked.until is None else parked.until + world.latency()
        except Violation:
            raise
        except BaseException as error:
            failures += 1
            driver._note(f"the timer failed {failures} times: {error}")
            world.note("timer fails", repr(error))
            return min(FIRST_BACKOFF * 2 ** min(failures, 10), LAST_BACKOFF)
        return 6e-5  # it looks again at once; a pass takes its time

    strand.step = step
    assert isinstance(driver.clock, SystemClock)


def _listener(strand: Strand) -> None:
    """`EventDelivery._run`, which begins again where it left off."""

    def step() -> float | None:
        try:
            strand.target(*strand.args)
        except Parked:
            return None
        strand.alive = False
        return None

    strand.step = step


def _store(world: World, strand: Strand) -> None:
    """`StoreWriter._run` with `_write_all`: a batch that failed stays here until its next try."""
    writer: Any = strand.target.__self__
    strand.parks = True
    batch: deque[Any] = deque()
    streak = 0

    def fail(error: BaseException) -> float | None:
        nonlocal streak
        streak += 1
        writer._note_failure(error, streak)
        with writer._lock:
            if not writer._closing:
                return min(LAST_RETRY, FIRST_RETRY * 2 ** min(streak - 1, 10))
            if streak == 1 and not writer._abandoned:
                return 1e-5
            if not writer._abandoned:
                writer._give_up_locked()
            batch.clear()
            streak = 0
        return 1e-5

    def step() -> float | None:
        nonlocal streak
        with writer._lock:
            writer._parked = False
            if not batch:
                if not writer._queue and not writer._closing:
                    writer._parked = True
                    try:
                        writer._work.park(None)
                    except Parked:
                        return None
                if not writer._queue or writer._abandoned:
                    writer._finished = True
                    strand.alive = False
                    return None
                taken, writer._queue = writer._queue, deque()
                batch.extend(taken)
        try:
            written = writer._write_some(batch)
        except Exception as error:
            again = fail(error)
            writer._work.sleepers.append(strand)  # a close wakes it
            return again
        for _ in range(written):
            batch.popleft()
        if streak:
            writer._note_recovery(streak)
        streak = 0
        with writer._lock:
            if not writer._abandoned:
                writer._settled += written
                writer._progress.notify_all()
        return 1e-5

    strand.step = step


class Inside:
    """`driver._Inside`, which counts for each thread, here for each strand, how deep it is in user code."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.depths: dict[Strand, int] = {}

    @property
    def depth(self) -> int:
        """How deep the current strand is."""
        return self.depths.get(self.world.current, 0)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call user code."""
        strand, depth = self.world.current, self.depth
        self.depths[strand] = depth + 1
        try:
            return function(*args, **kwargs)
        finally:
            self.depths[strand] = depth
