"""The bounded queue of events in front of one listener. Pure; O(1) in every method."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._core.models import TaskEvent

# What a full queue gives up first. Everything that a task's past can be rebuilt from comes last.
PROGRESS, CHANGE, RECORD = range(3)


class Outbox:
    """Events in the order of their arrival, at most `limit`; what does not fit is lost by its rank.

    Attributes:
        published: events offered so far, which is the number of the newest.
        lost: events given up.
    Thread safety: none of its own.
    """

    __slots__ = ("_limit", "_newest", "_queues", "lost", "published")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # One queue for each rank. Invariant: numbers grow within each.
        self._queues: tuple[deque[tuple[int, TaskEvent]], ...] = (deque(), deque(), deque())
        self.published = 0
        self.lost = 0
        self._newest: TaskEvent | None = None

    @property
    def size(self) -> int:
        """Events queued."""
        return sum(map(len, self._queues))

    def push(self, event: TaskEvent) -> None:
        """Queue `event`. When full, lose the oldest of what matters least, which may be `event` itself.

        One that comes again, because a signal handler raised while it was told, is queued once.
        """
        if event is self._newest:
            return
        self.published += 1
        rank = RECORD if event.record is not None else PROGRESS if event.kind == "progress" else CHANGE
        if self.size >= self._limit:
            self.lost += 1
            victims = next((queue for queue in self._queues[: rank + 1] if queue), None)
            if victims is None:
                return
            victims.popleft()
        queue, item = self._queues[rank], (self.published, event)
        # No handler comes between these two: nothing is called before the event is there.
        self._newest = event
        queue.append(item)

    def pop(self) -> tuple[int, TaskEvent] | None:
        """Take the oldest event, with its number; None when there is none."""
        queue = self._oldest_queue()
        if queue is None:
            return None
        return queue.popleft()

    def oldest(self) -> int | None:
        """Return the number of the oldest event that is queued, or None."""
        queue = self._oldest_queue()
        return None if queue is None else queue[0][0]

    def _oldest_queue(self) -> deque[tuple[int, TaskEvent]] | None:
        oldest = None
        for queue in self._queues:
            if queue and (oldest is None or queue[0][0] < oldest[0][0]):
                oldest = queue
        return oldest

    def drop_all(self) -> int:
        """Lose everything. Return how many events that were."""
        dropped = self.size
        for queue in self._queues:
            queue.clear()
        self.lost += dropped
        return dropped

    def check(self) -> None:
        """Raise AssertionError unless the invariant holds."""
        assert self.size <= self._limit
        for queue in self._queues:
            numbers = [number for number, _ in queue]
            assert numbers == sorted(set(numbers))
