"""Starting attempts from a durable store: none begins before the store knows of it.

    ready --stage: lend, write RUNNING--> staged --written--> the pool's next call --> running
      ^                                      |
      '--unstage: take back, write as it is--'   (cancel, pause, a higher priority, shutdown)

An entry is staged when a worker is free for it, and waits for its own write only. Behind runs that are known to be
short the next ones are staged while these go on, as many as will begin during one write: then a worker need not wait
for the disk. What is staged has not begun: it still waits in its order, and is taken back by whatever calls for it, the
start of a run that may take long among that. Should the process die just then, the store has runs of which nobody can
say whether they began, at most `MOST_BEHIND` for each worker, and a restart records them as LOST.
"""

from __future__ import annotations

import logging
import math

from procsched._core.entries import LENT
from procsched._core.staging import decide_room, is_short
from procsched._logs import say
from procsched.errors import StoreError
from procsched.scheduler.attempts import Attempt
from procsched.scheduler.driver import BATCH, RUNNING, Driver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, TypeVar

    from procsched._core.entries import Entry
    from procsched.workers.base import Call

    E = TypeVar("E", bound=Entry | None)
    R = TypeVar("R")

# Seconds for which a request waits until it is stored; where that is not required, for a store that works.
STORE_SECONDS = 10.0


class StagingDriver(Driver):
    """The driver for a store that outlives the process; for any other it is the plain one."""

    _store_required = True

    def _set_up_staging(self, store_required: bool) -> None:
        self._store_required = store_required
        # The writer's tickets of what is staged, in the order in which it is to start; guarded by _lock.
        self._staged: dict[Entry, int] = {}
        writer: Any = self.writer
        if writer is not None and writer.durable:
            self._durable = writer
            self.engine.wants_positions = True
            self.next_call = self._next_stored  # type: ignore[method-assign]

    # --- staging ---------------------------------------------------------------------------------------

    def _next_stored(self, *, ahead: bool = False) -> Call | None:
        """Give the pool the call that starts now, whose start is stored; or None. With the pool's lock held."""
        if ahead:
            return None  # what is sent ahead begins when its worker likes
        with self._lock:
            self._stage_locked()
            entry = self._first_stored_locked()
            if entry is None:
                return None
            # Read before the entry leaves the ready order: a clock of the user's may raise.
            wall, mono = self.clock.now(), self.clock.monotonic()
            attempt = Attempt(self, entry, self.engine.numbers(entry), wall, mono)
            attempt.told = True
            del self._staged[entry]
            self.engine.begin_lent(entry, attempt, wall)
            if not is_short(_seconds_of(entry)):
                # What was staged behind others does not wait behind this one, with an end that nobody knows.
                self._unstage_locked(list(self._staged)[self._free_locked() :])
            if not self._real and attempt.timeout is not None:
                self._wake_timer_locked()  # see `next_call`
            self._stage_locked()
            self._hand_over_locked()
            return attempt

    def _first_stored_locked(self) -> Entry | None:
        """Return what is to start next, if its start is stored, or need not be."""
        writer = self._durable
        assert writer is not None
        if not writer.may_start():
            return None
        for entry, ticket in self._staged.items():
            if ticket <= writer.settled or (not self._store_required and writer.is_in_trouble()):
                return entry
            break
        return None

    def _stage_locked(self) -> None:
        """Have the start of what is next stored, for as many as workers are free, or will be in a moment."""
        engine, writer = self.engine, self._durable
        if writer is None or engine.returning:
            return
        ready = engine.ready
        if ready.outrun:
            ready.outrun = False
            first = ready.first()
            if first is not None:
                rank = first.handle.task.priority
                self._unstage_locked([each for each in self._staged if each.handle.task.priority > rank])
        if not len(ready):
            return
        room = self._room_locked() - len(self._staged)
        new: list[Entry] = []
        while room > 0:
            entry: Entry | None = ready.first()
            if entry is None:
                break
            engine.lend()
            engine.intend(entry)
            new.append(entry)
            room -= 1
        if new:
            self._hand_over_locked()
            if not (self._staged or self._store_required) and self._real:
                self._wake_timer_locked()  # it looks whether the store comes back
            for entry in new:
                self._staged[entry] = writer.accepted

    def _look_for_due_locked(self) -> tuple[float, float] | None:
        """Return this moment for `_stage_due_locked`; None where what is due starts otherwise."""
        return self._look_locked() if self._real and self._state == RUNNING else None

    def _stage_due_locked(self, wall: float, line: float) -> None:
        """Have what has just come and is due written as about to start together with its coming, not a commit later."""
        self.engine.promote(wall, line, BATCH)
        self._stage_locked()

    def _room_locked(self) -> int:
        """Return how many may be staged in all."""
        assert self._durable is not None
        running = map(_seconds_of, self.engine.running.values())
        return decide_room(self._free_locked(), running, self._durable.commit_seconds)

    def _free_locked(self) -> int:
        size: int = self.pool.size
        return max(0, size - len(self.engine.running))

    def _unstage_locked(self, entries: Iterable[Entry] | None = None) -> None:
        """Take back what is staged, all of it or some: it is ready as before, and stored so."""
        if self._durable is None:
            return
        for entry in list(self._staged if entries is None else entries):
            # In this order: where a signal handler raises in between, the rest is done by `_mend_locked`.
            del self._staged[entry]
            self.engine.write(entry)
            self.engine.take_back(entry)

    def _on_settled(self) -> None:
        """Hear from the store thread that something was written: what waits for that may start."""
        if self._threadless:
            return  # whoever moves the clock waits for the store
        # Who stages holds it until the ticket is noted: it may have been written before that.
        with self._lock:
            waits = bool(self._staged)
        if waits:
            self._let_pool_look()

    def _on_store_problem(self, text: str) -> None:
        super()._on_store_problem(text)
        if not self._store_required and not self._threadless:
            self._let_pool_look()

    def _let_pool_look(self) -> None:
        if self._inline:
            with self._lock:
                self._wake_timer_locked()
            return
        try:
            self.pool.pump()
        except Exception as error:
            # A clock of the user's, say. The timer asks the pool again.
            say(logging.ERROR, "what is ready is taken a moment later", error=error)
            with self._lock:
                self._wake_timer_locked()

    # --- what else the driver does, with what is staged ------------------------------------------------

    def _pass(self) -> bool:
        moved = super()._pass()
        writer = self._durable
        if writer is None:
            return moved
        if not self._threadless:
            if self._staged and not self._store_required and writer.is_in_trouble():
                self.pool.pump()
            return moved
        # Whoever moves a fake clock sees what became due run before that returns.
        while self._staged and (self._wait_stored() or not self._store_required):
            before = list(self._staged.items())
            self.pool.pump()
            if list(self._staged.items()) == before:
                break  # somebody else runs calls, or this is in the midst of one
            moved = True
        return moved

    def _make_ready_locked(self) -> None:
        self._stage_locked()

    def _recall(self) -> None:
        if self._durable is None:
            super()._recall()
            return
        with self._lock:
            self._unlend_locked()
            self._hand_over_locked()

    def _unlend_locked(self) -> None:
        self._whole_locked(self._unstage_locked)

    def recalled(self, find: Callable[[], E], act: Callable[[E], R]) -> R:
        """Do as the plain driver; what is staged is taken back here, and the pool does not know of it."""
        if self._durable is None:
            return super().recalled(find, act)
        self.refuse_handler()

        def taken_back(entry: E) -> R:
            if entry is not None and entry.queued == LENT:
                self._unstage_locked([entry])
            return act(entry)

        with self._lock:
            return self._asked_locked(taken_back, find())

    def _mend_locked(self) -> None:
        super()._mend_locked()
        if self._durable is None:
            return
        for entry in [each for each in self._staged if each.queued != LENT]:
            del self._staged[entry]
        for entry in [each for each in self.engine.entries.values() if each.queued == LENT]:
            if entry not in self._staged:
                self.engine.take_back(entry)
                self.engine.write(entry)
        self._hand_over_locked()

    def _seconds_to_trouble(self) -> float | None:
        """Return after how many seconds what is staged may start although the store does not come back."""
        writer = self._durable
        if writer is None or self._store_required or not self._staged or not self._real:
            return None
        left = writer.trouble_in()
        return left if left > 0.0 else None  # else the pool has looked

    # --- requests wait until they are stored -----------------------------------------------------------

    def _wait_stored(self) -> bool:
        """Wait until all that was decided so far is written. With no lock held."""
        writer = self._durable
        if writer is None:
            return True
        return writer.wait_stored(writer.accepted, STORE_SECONDS, self._store_required)

    def _require_stored(self, what: str) -> None:
        """Wait until a request is stored.

        Raises:
            StoreError: it is not, for the store fails. It holds here, and is stored when the store works again.
        """
        if self._durable is not None and not self._wait_stored() and self._store_required:
            raise StoreError(
                f"{what}, but that is not stored yet and would be forgotten in a crash: "
                f"{self._durable.failing or 'the store takes long'}; it is stored as soon as the store works"
            )


def _seconds_of(entry: Entry) -> float:
    """Return what a run that goes on will take, infinite where nobody knows."""
    pace: Any = getattr(entry.live, "pace", None)
    return math.inf if pace is None else pace.seconds
