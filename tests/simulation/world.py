"""The simulated world: one thread, one clock, and a heap of what happens when.

    World.run / block: pop the next event -> its time is now -> its function runs -> look who has to wake up -> check

What are threads elsewhere are `Strand`s here: each has a function that runs until it would wait, and is called again
when what it waits for has come. A strand whose code waits in the midst of something (`shutdown`, say) lets the world
go on in a loop of its own below that wait. The order of what could happen at the same time is drawn from the seed.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import select
import threading as real
from collections import Counter
from collections.abc import Callable, Iterator, MutableSet
from typing import Any, Generic, TypeVar

T = TypeVar("T")

TICK = 2e-7  # seconds that a look at the clock takes
WALL = 1_700_000_000.0  # UNIX seconds at the beginning
STEADY = 1000.0  # steady seconds likewise
VIRTUAL = 1 << 20  # descriptors from here on are no real ones
MOST = 200_000  # steps, after which a run counts as one without end


class Violation(AssertionError):
    """The contract was broken."""


class Parked(BaseException):
    """A strand has come to where a thread would wait."""

    def __init__(self, until: float | None = None) -> None:
        super().__init__()
        self.until = until


class OrderedSet(MutableSet[T], Generic[T]):
    """A set that is walked in the same order in every process."""

    def __init__(self, items: Any = ()) -> None:
        self._items: dict[T, None] = dict.fromkeys(items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._items))

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: T) -> None:
        self._items[value] = None

    def discard(self, value: T) -> None:
        self._items.pop(value, None)


class Strand:
    """What stands in for a thread. The modules under test make it by `threading.Thread`."""

    def __init__(
        self, world: World, target: Callable[..., object] | None, name: str, args: tuple[Any, ...] = ()
    ) -> None:
        self.world = world
        self.target = target
        self.name = name
        self.args = args
        self.alive = False
        self.parks = False  # whether it can be left where it would wait, and begin again from its top
        self.waits_long = name.startswith(("procsched-listener", "procsched-shutdown", "user"))
        self.busy = 0  # in a step that has not returned
        self.missed = False  # it was to be woken while it was busy
        self.due: float | None = None  # when its next step is planned
        self.step: Callable[[], float | None] = self._once
        self.daemon = True
        self.ident = 0

    def start(self) -> None:
        """Begin: `World.adopt` knows how."""
        self.alive = True
        self.world.adopt(self)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.alive

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        self.world.block(lambda: not self.alive, timeout)

    def _once(self) -> None:
        assert self.target is not None
        self.target(*self.args)
        self.alive = False

    def wake(self, delay: float | None = None) -> None:
        """Plan a step, a moment from now unless it is said when."""
        if not self.alive:
            return
        at = self.world.mono + (self.world.latency() if delay is None else delay)
        if self.due is None or at < self.due:
            self.due = at
            self.world.at(at, self._run)

    def _run(self) -> None:
        if self.due is None or self.due > self.world.mono + 1e-9 or not self.alive:
            return
        if self.waits_long and self.world.io is not None and self.world.io.busy:
            # Who waited now would keep the I/O thread, which is below it, from going on.
            self.due = None
            self.wake(1e-4)
            return
        if self.busy:  # it waits in the midst of something: its time comes when it is through
            self.due = None
            self.missed = True
            return
        self.due = None
        world, before = self.world, self.world.current
        world.current = self
        self.busy += 1
        again = None
        try:
            again = self.step()
        finally:
            self.busy -= 1
            world.current = before
        if self.missed:
            self.missed = False
            self.wake()
        elif again is not None:
            self.wake(again)


class Condition:
    """`threading.Condition` for strands."""

    def __init__(self, world: World, lock: Any = None) -> None:
        self.world = world
        self.lock = real.RLock() if lock is None else lock
        self.waiting: list[list[bool]] = []
        self.sleepers: list[Strand] = []

    def __enter__(self) -> bool:
        return bool(self.lock.__enter__())

    def __exit__(self, *exc: object) -> None:
        self.lock.__exit__(*exc)

    def park(self, seconds: float | None) -> None:
        """Leave the current strand here."""
        strand = self.world.current
        if strand not in self.sleepers:
            self.sleepers.append(strand)
        raise Parked(seconds)

    def wait(self, timeout: float | None = None) -> bool:
        if self.world.current.parks:
            self.park(timeout)
        told = [False]
        self.waiting.append(told)
        state = self.lock._release_save()
        try:
            return self.world.block(lambda: told[0], timeout)
        finally:
            self.lock._acquire_restore(state)
            if told in self.waiting:
                self.waiting.remove(told)

    def notify(self, n: int = 1) -> None:
        for _ in range(n):
            if self.sleepers:
                self.sleepers.pop(0).wake()
            elif self.waiting:
                self.waiting.pop(0)[0] = True
            else:
                return

    def notify_all(self) -> None:
        self.notify(len(self.sleepers) + len(self.waiting))


class Lock:
    """`threading.Lock` as the listeners' threads use it: to park at."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.closed = False
        self.owner: Strand | None = None

    def locked(self) -> bool:
        return self.closed

    def acquire(self) -> bool:
        if not self.closed:
            self.closed = True
            return True
        self.owner = self.world.current
        raise Parked

    def release(self) -> None:
        assert self.closed, "released twice"
        self.closed = False
        if self.owner is not None:
            self.owner.wake()


class Gate:
    """`scheduler.gate.Gate`, where a strand waits for an answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_open = False
        self.record: Any = None
        self.why = ""
        self.then: Callable[[], None] | None = None

    def open(self, record: Any = None, why: str = "") -> None:
        if self.is_open:
            raise Violation("a gate was opened twice")
        self.record, self.why, self.is_open = record, why, True
        if self.then is not None:
            self.then()

    def wait(self, seconds: float | None) -> bool:
        self.world.need_no_lock()
        if self.is_open:
            return True
        if self.world.current.parks:
            self.then = self.world.current.wake
            raise Parked(seconds)
        return self.world.block(lambda: self.is_open, seconds)


class Latch:
    """`_interrupts.Latch`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_set = False

    def set(self) -> None:
        self.is_set = True

    def wait(self, seconds: float | None = None) -> bool:
        self.world.need_no_lock()
        return self.world.block(lambda: self.is_set, seconds)


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.mono = STEADY  # without time asleep, as `time.monotonic` on Linux
        self.asleep = 0.0
        self.offset = 0.0  # how far the wall clock was set, and slept
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.sequence = 0
        self.steps = 0
        self.depth = 0
        self.slow = 0.0  # how likely a strand is kept waiting for a processor
        self.slowest = 0.0  # seconds for which it is then, at most
        self.slept = 0.0  # seconds in schedules of a user's own, in which whoever waits for that thread is kept as well
        self.seen: Counter[str] = Counter()
        self.lines: list[str] = []
        self.digest = hashlib.blake2b(digest_size=16)
        self.verbose = False
        self.poll = select.epoll()
        self.main = Strand(self, None, "main")
        self.main.alive = True
        self.current = self.main
        self.adopters: dict[str, Callable[[Strand], None]] = {}
        self.after_step: list[Callable[[], None]] = []
        self.before_gap: Callable[[float], None] | None = None
        self.locks: list[Callable[[], bool]] = []
        self.timer_at: float | None = None  # of the loop's timer descriptor
        self.poller: Any = None
        self.processes: Any = None
        self.behave: Any = None  # says what a child does with a call
        self.checker: Any = None
        self.scheduler: Any = None
        self.broken = ""  # a violation that was found where it could not be raised
        self.helper: Any = None  # the newest
        self.io: Any = None  # the strand of the I/O thread

    # -- time ----------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """`time.monotonic`."""
        self.mono += TICK
        return self.mono

    def steady(self) -> float:
        """Steady seconds that count time asleep."""
        self.mono += TICK
        return self.mono + self.asleep

    def wall(self) -> float:
        """`time.time`."""
        return WALL + (self.mono - STEADY) + self.offset

    def sleep(self, seconds: float) -> None:
        """`time.sleep`."""
        if seconds > 0.0:
            self.need_no_lock()
            self.block(lambda: False, seconds)

    def latency(self) -> float:
        """Return how long a strand or process needs until it runs."""
        draw = self.rng.random()
        if draw < self.slow:
            return self.slowest * self.rng.random()
        return 4e-6 + 6e-5 * draw * draw

    # -- what happens ----------------------------------------------------------------------------------------

    def at(self, when: float, function: Callable[[], None]) -> None:
        """Have `function` called at steady time `when`."""
        self.sequence += 1
        heapq.heappush(self.heap, (when, self.sequence, function))

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        """Have `function` called in so many seconds."""
        self.at(self.mono + seconds, function)

    def one_step(self) -> None:
        """Let the next thing happen."""
        when, _sequence, function = heapq.heappop(self.heap)
        if when > self.mono:
            if when > self.mono + 0.05 and self.before_gap is not None:
                self.before_gap(when)
            self.mono = when
        function()
        self.steps += 1
        if self.steps > MOST:
            raise Violation("it does not come to an end")
        for each in self.after_step:
            each()
        if self.broken:  # it was found in the midst of shipped code, which goes on whatever is raised in it
            raise Violation(self.broken)

    def run(self, until: float) -> None:
        """Let happen what happens up to steady time `until`."""
        self.block(lambda: False, until - self.mono)

    def block(self, predicate: Callable[[], bool], seconds: float | None) -> bool:
        """Let the world go on until `predicate()`, for at most so many seconds. Return whether it came true."""
        end = None if seconds is None else self.mono + max(0.0, seconds)
        strand = self.current
        self.depth += 1
        for each in self.after_step:  # what was done before this wait may have woken somebody
            each()
        try:
            while not predicate():
                if not self.heap or (end is not None and self.heap[0][0] > end):
                    if end is None:
                        raise Violation(f"{strand.name} waits for ever")
                    self.mono = max(self.mono, end)
                    return predicate()
                self.current = strand
                self.one_step()
            return True
        finally:
            self.depth -= 1
            self.current = strand

    def need_no_lock(self) -> None:
        """Assert that nobody waits with a lock held."""
        if any(held() for held in self.locks):
            raise Violation(f"{self.current.name} waits with a lock held")

    def adopt(self, strand: Strand) -> None:
        """A strand has been started: make its step, and plan the first one."""
        kind = strand.name.rstrip("0123456789-")
        maker = self.adopters.get(kind)
        if maker is not None:
            maker(strand)
        strand.wake()

    def note(self, kind: str, text: str = "") -> None:
        """Write a line of the trace, and count its kind."""
        self.seen[kind] += 1
        line = f"{self.mono - STEADY:12.7f} {kind} {text}"
        self.digest.update(line.encode())
        self.lines.append(line)
        if self.verbose:
            print(line)
