"""Going on from a store: its tasks are loaded at the first use of the scheduler, and what was running is settled.

That is `start`, or whatever asks for tasks or brings one before it: so a `schedule(key=...)` before the start finds the
task that it has made in an earlier life.
"""

from __future__ import annotations

import logging
import threading

from procsched._core.entries import CANCELLED, FAILED, SUCCEEDED
from procsched._core.models import Task
from procsched._core.options import check_confined
from procsched._core.planning import ONCE
from procsched._logs import say
from procsched.errors import SchedulerStateError, StoreError, TaskSerializationError, ValidationError
from procsched.scheduler.closing import ClosingDriver
from procsched.scheduler.driver import NEW, RUNNING, WONT_RUN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from procsched._core.entries import Entry
    from procsched._core.limits import Limits
    from procsched._core.models import ExecutionRecord, Outcome, ScheduledTask
    from procsched.scheduler.earlier import EarlierRecords
    from procsched.stores.changes import Loaded
    from procsched.stores.payloads import StoredCall

GONE = "what it runs is not in the store any more"
HISTORY_SECONDS = 2.0  # for which `history` waits for what is being written


class RestartingDriver(ClosingDriver):
    """The driver with what a store gives back."""

    _unloaded = False  # there is a store that has not been asked yet; guarded by _load_lock

    def _set_up_loading(self) -> None:
        self._unloaded = self.writer is not None
        self._visiting = self._durable is not None and self._durable.visiting
        # Held while the store is opened and read, by whoever comes first; before every other lock of ours. Reentrant
        # so that a signal handler can tell that it has interrupted just that.
        self._load_lock = threading.RLock()
        self._loads = False  # guarded by _load_lock
        # Keys of which it was said that the program gives something else.
        self._told_changed: set[str] = set()
        # Those of which it was said that their task is in the dead letter.
        self._told_dead: set[str] = set()
        # Names of recurring tasks without a key that an earlier life has left.
        self._unkeyed: set[str] = set()

    def after_fork(self) -> None:
        """In a fork of the process: see `ClosingDriver`."""
        super().after_fork()
        if self._durable is not None and not self._unloaded and self._state == NEW:
            self._forked = True  # the store is the parent's, and with it the tasks
        self._load_lock = threading.RLock()

    def _load(self) -> None:
        """Load the store, once. With no lock held.

        Raises:
            StoreError: it cannot be used; the next one to ask tries again.
            SchedulerStateError: the scheduler was shut down meanwhile.
        """
        if not self._unloaded or self._state > RUNNING:
            return
        if getattr(self.writer, "thread", None) is threading.current_thread():
            raise SchedulerStateError(
                "the store asks the scheduler for tasks that it is just to give: see load_all"
            )
        with self._load_lock:
            if not self._unloaded:
                return
            if self._loads:
                raise SchedulerStateError(
                    "this signal handler, or finalizer, has interrupted the scheduler in loading its store: "
                    "set a flag, or call it from a thread"
                )
            self._loads = True
            try:
                self._restore()
                self._unloaded = False
            finally:
                self._loads = False
        self._log_problems()

    def _restore(self) -> None:
        assert self.writer is not None
        loaded = self.writer.open(self._now)
        if self._state > RUNNING:
            # The shutdown did not wait for this, and let go of the store before it was ours.
            self._let_go()
            raise SchedulerStateError("this scheduler was shut down while it opened its store")
        if loaded is None:
            return
        self._end_left_processes(loaded)
        # By the call's identity, for tasks with the same one share what is made of it, and whether it can be opened.
        made: dict[int, tuple[Any, str | None]] = {}
        unloadable, doubtful = [], []
        for entry in loaded.tasks:
            call, handle = entry.payload, entry.handle
            if entry.status in (SUCCEEDED, CANCELLED):
                entry.payload = None  # it never runs again
                continue
            found = made.get(id(call))
            if found is None:
                found = made[id(call)] = self._made_of(call)
            entry.payload, reason = found
            if reason is None and handle.task.limits is not None:
                reason = self._reason_against_limits(handle.task.limits)
                if reason is not None:  # without them it must not run
                    entry.payload = self._payload_of(None, reason)
            if reason is not None and not entry.status.is_terminal:
                handle.unloadable = reason
            if reason is not None or self.engine.is_unreadable(entry):
                if handle.unloadable is not None:
                    unloadable.append(entry)
            elif handle.unloadable is not None and not entry.status.is_terminal:
                doubtful.append(entry)
        if not self._visiting:
            self._unkeyed = {
                entry.handle.task.name
                for entry in loaded.tasks
                if entry.kind != ONCE and entry.handle.task.key is None and not entry.status.is_terminal
            }
        self._learn_ids([*loaded.known_ids, *(entry.handle.task.id for entry in loaded.tasks)])
        earlier = self._earlier_records()
        with self._lock:
            wall, line = self._look_locked()
            lost = self.engine.restore(
                loaded.tasks, loaded.underway, loaded.finished, loaded.down_at, loaded.why, wall, line
            )
            for entry in unloadable:
                if entry.handle.task.id in self.engine.entries:
                    text = f"its code cannot be loaded: {entry.handle.unloadable}"
                    self.engine.problems.append((entry, text))
                    self.engine.tell(entry, wall, None, "store", text)
            for entry in loaded.tasks:
                if entry.run:
                    entry.handle._stored = earlier
            doubtful = [entry for entry in doubtful if entry.handle.task.id in self.engine.entries]
            for entry in doubtful:
                # That was then: whether it can be loaded now is known, and told, when it is tried.
                self.engine.doubtful.add(entry.handle.task.id)
                self.engine.tell(entry, wall, None, "store", _doubt(entry))
            self._hand_over_locked()
        for entry, record in lost:
            self._note_lost(entry, record)
        if not self._visiting:
            for entry in doubtful:
                task = entry.handle.task
                self._inside.call(say, logging.WARNING, "task %s (%s): %s", task.id, task.name, _doubt(entry))
        if self._durable is not None:
            self._serve_others()
        if self._state > RUNNING:
            self._let_go()  # the shutdown may have done so before others were served

    def _earlier_records(self) -> EarlierRecords | None:
        if self._durable is None:
            return None  # the tasks came with theirs
        from procsched.scheduler.earlier import EarlierRecords  # here, for most have no such store

        return EarlierRecords(self._durable.store, self.engine.history_limit)

    def _let_go(self) -> None:
        if self._durable is not None:
            self._durable.let_go()

    def _note_twin(self, handle: ScheduledTask) -> None:
        """Say, once a name, that a recurring task may be one that every start of the program adds anew."""
        task = handle.task
        if task.name in self._unkeyed:
            self._unkeyed.discard(task.name)
            text = (
                "task %s (%s) is a new one beside one of that name which the store has from an earlier start: if it is "
                'meant to be the same, give it a key=, and cancel the other ("procsched ps" shows it)'
            )
            self._inside.call(say, logging.WARNING, text, task.id, task.name)

    def _note_dropped_retry(self, old: ScheduledTask, new: Task) -> None:
        text = (
            "task %s (%s) takes the place of %s, whose run waited for a further attempt: that is not made, "
            "the new task begins with its first slot"
        )
        self._inside.call(say, logging.WARNING, text, new.id, new.name, old.task.id)

    def _note_changed(self, kept: ScheduledTask, changed: list[str]) -> None:
        """Say, once a key, that a task is not what the program gives for its key by now: other are the `changed`."""
        task = kept.task
        assert task.key is not None
        if changed and task.key not in self._told_changed:
            self._told_changed.add(task.key)
            text = (
                "task %s (%s) stays as it is, for its key %r is there already: what was given now has another %s. "
                "Give replace=True where the new one is to take its place"
            )
            self._inside.call(say, logging.WARNING, text, task.id, task.name, task.key, ", ".join(changed))

    def _note_dead(self, kept: ScheduledTask) -> None:
        """Say, once a key, that a task which a program gives again does not run any more."""
        task = kept.task
        assert task.key is not None
        if task.key not in self._told_dead:
            self._told_dead.add(task.key)
            text = (
                "task %s (%s) with the key %r has failed, and is in the dead letter: it runs again after revive(); or "
                "give replace=True for a new one"
            )
            self._inside.call(say, logging.WARNING, text, task.id, task.name, task.key)

    def _note_lost(self, entry: Entry, record: ExecutionRecord) -> None:
        """Log an attempt that the end of another scheduler has interrupted, as any attempt that has ended."""
        dead = entry.status is FAILED
        text = "task %s (%s) attempt %d ended as lost: %s%s"
        words = record.task_id, record.name, record.attempt, record.error, WONT_RUN if dead else ""
        self._inside.call(say, logging.WARNING if dead else logging.INFO, text, *words)

    def _serve_others(self) -> None:
        """Have requests of other processes answered."""

    def _end_left_processes(self, loaded: Loaded) -> None:
        """End the processes of runs whose scheduler is gone, where they still live: none may overlap the next run."""
        if not loaded.same_boot:
            return
        # Here and not above: who has no such store does without.
        from procsched import _identity

        for task_id, underway in loaded.underway.items():
            pid, started = underway.pid, underway.process_started
            if not underway.live or pid is None or started is None:
                continue
            if _identity.end_process(pid, started):
                text = "ended process %d, in which task %s of an earlier scheduler still ran"
                say(logging.WARNING, text, pid, task_id)

    def _made_of(self, call: StoredCall | Task | None) -> tuple[Any, str | None]:
        """Return what the pool makes of a call, and why it cannot run, as far as that is known without opening it."""
        if not isinstance(call, Task):
            return self._payload_of(call), reason_against(call)
        confined = getattr(self.pool, "sandbox", None) is not None
        try:
            if not callable(call.action):
                raise TaskSerializationError(f"its action is {call.action!r}, and cannot be called")
            if confined:
                check_confined(call.timeout, call.soft_timeout, call.grace, call.limits)
            return self.pool.pack(call.action, call.args, dict(call.kwargs or {})), None
        except (TaskSerializationError, ValidationError) as error:
            if confined:
                raise StoreError(f"task {call.id} of the store cannot go on in a sandbox: {error}") from error
            return self._payload_of(None, str(error)), str(error)

    def _payload_of(self, call: StoredCall | None, reason: str = GONE) -> Any:
        """Return what the pool makes a call of. The call is not opened: that is done where it runs."""
        from procsched.child.stored import NOTHING, run_stored

        parts = (NOTHING, reason, "", b"", "", "") if call is None else call.parts
        return self.pool.pack(run_stored, parts, {})

    def _reason_against_limits(self, limits: Limits) -> str | None:
        try:
            self._check_limits(limits)
        except ValidationError as error:
            return str(error)
        return None

    def _check_limits(self, limits: Limits) -> None:
        """Refuse limits that nothing would hold."""

    def _learn_ids(self, ids: Iterable[str]) -> None:
        """Hear which ids must not be given again."""

    # --- records ---------------------------------------------------------------------------------------

    def _read_history(
        self, task_id: str | None, outcome: Outcome | None, since: float | None, limit: int
    ) -> list[ExecutionRecord]:
        self._load()
        if self._durable is not None:
            if self._durable.failing is None:
                self._durable.flush(HISTORY_SECONDS)  # what has ended by now is among them
            return self._durable.history(task_id, outcome, since, limit)
        with self._lock:
            found = [
                record
                for entry in self.engine.entries.values()
                if task_id is None or entry.handle.task.id == task_id
                for record in entry.handle._history
            ]
        found = [
            record
            for record in found
            if (outcome is None or record.outcome is outcome)
            and (since is None or record.finished_at >= since)
        ]
        found.sort(key=lambda record: record.finished_at, reverse=True)
        return found[:limit]


def _doubt(entry: Entry) -> str:
    reason = entry.handle.unloadable
    return (
        f"its code could not be loaded when that was last tried, and is tried again at its next run: {reason}"
    )


def reason_against(call: StoredCall | None) -> str | None:
    """Return why a call cannot be opened here, as far as that is known without opening it."""
    from procsched.child.stored import BLOB, python_tag

    if call is None:
        return GONE
    if call.kind == BLOB and call.python != python_tag():
        return f"{call.name} was stored by value under {call.python}, and this is {python_tag()}"
    return None
