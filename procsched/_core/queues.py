"""The heap of due times, and the order in which due tasks wait for a worker. Pure.

Both hold plain tuples that carry the generation of their entry. An entry that is withdrawn stays where it
is, as a tombstone whose generation is stale, until it is met or tombstones outnumber the live.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from procsched._core.models import Priority, QueueEntry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, Protocol

    class Queued(Protocol):
        """What a queue needs to know of an entry."""

        generation: int  # grows whenever what is queued of the entry becomes stale

    # (due_at or priority, priority or due_at, sequence, generation, entry): the sequence is unique, so a
    # comparison never reaches what follows it.
    Item = tuple[float, float, int, int, Any]

# Seconds. Sums of today's UNIX time are rounded to a quarter of a microsecond, so a due time and a clock
# that was moved exactly onto it may differ by that much.
ROUNDING: Final = 1e-6


class _Heap:
    """A heap of items with tombstones.

    Invariant: `tombstones` is the number of items whose generation is not their entry's any more.
    """

    __slots__ = ("items", "tombstones")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.tombstones = 0

    def __len__(self) -> int:
        return len(self.items)

    @property
    def live(self) -> int:
        """How many items are not stale."""
        return len(self.items) - self.tombstones

    def head(self) -> Item | None:
        """Return the first live item and leave it; tombstones before it are dropped."""
        items = self.items
        while items:
            item = items[0]
            if item[3] == item[4].generation:
                return item
            heappop(items)
            self.tombstones -= 1
        return None

    def discard(self) -> None:
        """Count one more item as stale, and prune when the stale outnumber the live.

        That takes a pass over fewer items than twice what was counted since the last time: it costs each a constant.
        """
        self.tombstones += 1
        if self.tombstones > self.live:
            # In place: who holds the list keeps the right one.
            self.items[:] = [item for item in self.items if item[3] == item[4].generation]
            heapify(self.items)
            self.tombstones = 0

    def mend(self) -> set[Any]:
        """Count the stale anew; return the entries of the others."""
        live = {item[4] for item in self.items if item[3] == item[4].generation}
        self.tombstones = sum(item[3] != item[4].generation for item in self.items)
        return live

    def check(self) -> None:
        """Assert the invariants."""
        stale = sum(item[3] != item[4].generation for item in self.items)
        assert stale == self.tombstones, (stale, self.tombstones)
        assert all(self.items[(index - 1) // 2] <= item for index, item in enumerate(self.items) if index), (
            "heap order"
        )


class DueQueue:
    """Entries by due time, one heap for the steady line and one for the wall clock.

    Due times of the two lines cannot be compared, because a step of the clock moves one against the other.
    Pushing and withdrawing cost O(log n), also for a million withdrawn entries.
    """

    __slots__ = ("_sequence", "steady", "wall")

    def __init__(self) -> None:
        self._sequence = 0
        self.steady = _Heap()
        self.wall = _Heap()

    def __len__(self) -> int:
        return len(self.steady.items) + len(self.wall.items)

    @property
    def tombstones(self) -> int:
        """How many items are stale."""
        return self.steady.tombstones + self.wall.tombstones

    def push(self, steady: bool, due_at: float, priority: int, entry: Queued) -> bool:
        """Add `entry`, due at `due_at` seconds on its line. Return whether it is the first there now."""
        self._sequence = sequence = self._sequence + 1
        items = (self.steady if steady else self.wall).items
        heappush(items, (due_at, priority, sequence, entry.generation, entry))
        return items[0][2] == sequence

    def next_sequence(self) -> int:
        """Return a number later than that of any item so far."""
        self._sequence += 1
        return self._sequence

    def discard(self, steady: bool) -> None:
        """Hear that the generation of an entry that was pushed has grown."""
        (self.steady if steady else self.wall).discard()

    def pop_due(self, steady: bool, now: float) -> Item | None:
        """Remove and return the first live item that is due at `now` on its line, or None."""
        heap = self.steady if steady else self.wall
        item = heap.head()
        if item is None or item[0] > now + ROUNDING:
            return None
        heappop(heap.items)
        return item

    def next_due(self, steady: bool) -> float | None:
        """Return the earliest due time on a line, or None."""
        item = (self.steady if steady else self.wall).head()
        return None if item is None else item[0]

    def is_due(self, line_now: float, wall_now: float) -> bool:
        """Return whether anything is due now."""
        steady, wall = self.steady.head(), self.wall.head()
        return (steady is not None and steady[0] <= line_now + ROUNDING) or (
            wall is not None and wall[0] <= wall_now + ROUNDING
        )

    def entries(self) -> list[QueueEntry]:
        """Return all items in order, tombstones included, the steady line first: for a person to look at."""
        return [
            QueueEntry(due, Priority(int(priority)), sequence, entry.handle.task.id, generation)
            for heap in (self.steady, self.wall)
            for due, priority, sequence, generation, entry in sorted(heap.items, key=lambda item: item[:3])
        ]

    def check(self) -> None:
        """Assert the invariants."""
        self.steady.check()
        self.wall.check()


class ReadyOrder:
    """Entries that are due, by (priority, due time, arrival). They leave when a worker is free.

    One that the pool sends ahead of that is *lent*: it still counts as waiting, and is given back or begins. Nothing
    that is lent is withdrawn: see `Driver.recalled`.

    Attributes:
        outrun: an entry has come that goes before one that is lent; whoever sees to it resets it.
    """

    __slots__ = ("_heap", "_lent", "_lent_rank", "outrun")

    def __init__(self) -> None:
        self._heap = _Heap()
        self._lent: dict[Any, Item] = {}
        self._lent_rank = -1  # the largest number of a priority, that is the least urgent one, that was lent
        self.outrun = False

    def __len__(self) -> int:
        """How many live entries wait."""
        heap = self._heap
        return len(heap.items) - heap.tombstones + len(self._lent)

    def push(self, priority: int, due_at: float, sequence: int, entry: Queued) -> None:
        """Add an entry. `due_at` is wall time, so that entries of both lines compare."""
        self._push((priority, due_at, sequence, entry.generation, entry))

    def _push(self, item: Item) -> None:
        heappush(self._heap.items, item)
        if item[0] < self._lent_rank:
            if self._lent:
                self.outrun = True
            else:
                self._lent_rank = -1

    def first(self) -> Any | None:
        """Return the first live entry and leave it, or None."""
        item = self._heap.head()
        return None if item is None else item[4]

    def lend(self) -> Any:
        """Lend the first entry, which `first` has returned."""
        item = heappop(self._heap.items)
        self._lent[item[4]] = item
        self._lent_rank = max(self._lent_rank, int(item[0]))
        return item[4]

    def give_back(self, entry: Queued) -> None:
        """Put an entry that was lent where it was. Others that go behind it may be lent still."""
        self._push(self._lent.pop(entry))

    def begin(self, entry: Queued) -> None:
        """Let an entry that was lent leave, if it has not left."""
        self._lent.pop(entry, None)

    def mend(self) -> tuple[set[Any], set[Any]]:
        """Count the stale anew; return the entries that wait, and those that are lent."""
        return self._heap.mend(), set(self._lent)

    @property
    def items(self) -> list[Item]:
        """The items that wait, tombstones included: for a person to look at."""
        return self._heap.items

    @property
    def lent(self) -> int:
        """How many entries are lent."""
        return len(self._lent)

    def pop(self) -> Any | None:
        """Remove and return the first live entry, or None."""
        heap = self._heap
        items = heap.items
        while items:
            item = heappop(items)
            if item[3] == item[4].generation:
                return item[4]
            heap.tombstones -= 1
        return None

    def discard(self) -> None:
        """Hear that the generation of an entry that was pushed has grown."""
        self._heap.discard()

    def live_entries(self) -> list[Any]:
        """Return the live entries in order."""
        return [
            item[4] for item in sorted(self._heap.items, key=lambda i: i[:3]) if item[3] == item[4].generation
        ]

    def check(self) -> None:
        """Assert the invariants."""
        self._heap.check()
