"""What users ask of a scheduler that has tasks: cancel, kill, pause, resume, revive, wait, and questions."""

from __future__ import annotations

from procsched._core import options
from procsched._core.checks import check_flag, waiting_seconds
from procsched._core.entries import BY_CANCEL, BY_REQUEST, RESUME
from procsched._core.failures import describe_schedule
from procsched._core.models import Outcome, Stats, TaskStatus
from procsched._interrupts import apart
from procsched.errors import (
    ScheduleError,
    SchedulerStateError,
    TaskKilledError,
    TaskNotFoundError,
    ValidationError,
)
from procsched.scheduler.driver import RUNNING
from procsched.scheduler.restarting import RestartingDriver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from procsched._core.entries import Entry, LiveAttempt, Question
    from procsched._core.health import Health
    from procsched._core.models import ExecutionRecord, ScheduledTask
    from procsched.protocols import TaskListener


class Control(RestartingDriver):
    """The driver with requests and questions."""

    # --- requests --------------------------------------------------------------------------------------

    def cancel(self, task: ScheduledTask | str, *, kill: bool = False) -> bool:
        """Withdraw a task; a run in flight finishes on its own, is recorded, and schedules nothing.

        Args:
            kill: end the run in flight, too, also that of a task which is cancelled already.
        Returns:
            False where nothing was changed: the task was terminal, and had no run to end.
        """
        self._require_open()
        check_flag("kill", kill)

        def act(entry: Entry) -> tuple[bool, LiveAttempt | None]:
            changed = self.engine.cancel(entry, self.clock.now())
            found = self.engine.killable(entry) if kill else None
            self._hand_over_locked()
            return changed, found

        changed, call = self.recalled(lambda: self._open_entry_locked(task), act)
        if changed:
            self._require_stored("the task is cancelled")
        return (call is not None and self.pool.kill(call, BY_CANCEL)) or changed

    def kill(self, task: ScheduledTask | str) -> bool:
        """End the live run of a task, as KILLED, and leave its schedule. False where there is none to end.

        No attempt follows, whatever its retry policy; a task without a further slot is CANCELLED.
        """
        self._require_open()
        self.refuse_handler()
        with self._lock:
            self._require_open()
            call = self.engine.killable(self._entry_locked(task))
        return call is not None and self.pool.kill(call, BY_REQUEST)

    def pause(self, task: ScheduledTask | str) -> bool:
        """Start no further run of a task until `resume`; a live run goes on. False if terminal or paused."""
        self._require_open()

        def act(entry: Entry) -> bool:
            changed = self.engine.pause(entry, *self._moment_locked())
            self._hand_over_locked()
            return changed

        changed = self.recalled(lambda: self._open_entry_locked(task), act)
        if changed:
            self._require_stored("the task is paused")
        return changed

    def resume(self, task: ScheduledTask | str) -> bool:
        """Let a paused task go on; slots that passed follow its misfire policy. False if it is not paused."""
        return self._request(task, "resume")

    def revive(self, task: ScheduledTask | str) -> bool:
        """Give a FAILED task a new start, off the dead letter. False for any other.

        Raises:
            ScheduleError: its schedule failed; the task stays as it is.
            SchedulerStateError: another task has taken its place, by its key.
        """
        return self._request(task, "revive")

    def _request(self, task: ScheduledTask | str, what: str) -> bool:
        """Resume or revive: a slow schedule is asked in the calling thread, with no lock held."""
        self._require_open()
        self.refuse_handler()
        answers: list[bool | Question] = []

        def ask() -> None:
            with self._lock:
                self._require_open()
                entry = self._entry_locked(task, kept=what == "revive")
                self._refuse_unreadable(entry)
                if what == "revive":
                    self._refuse_replaced(entry)
                request = self.engine.resume if what == "resume" else self.engine.revive
                answers.append(request(entry, *self._moment_locked()))
                self._hand_over_locked()

        answer: bool | None = None
        try:
            while answer is None:
                apart(ask)
                asked = answers[-1]
                answer = asked if isinstance(asked, bool) else self._ask_for(asked)
        except BaseException:
            with self._lock:
                self.engine.forget_questions(answers)
            raise
        self._log_problems()
        self._pump()
        if answer:
            self._require_stored(f"the task is {what}d")
        return answer

    def _refuse_unreadable(self, entry: Entry) -> None:
        if self.engine.is_unreadable(entry):
            raise ScheduleError(
                f"task {entry.handle.task.id} cannot go on: {entry.handle.unloadable}; it does so by itself when a "
                "scheduler that can load its schedule is started"
            )

    def _refuse_replaced(self, entry: Entry) -> None:
        if entry.status is TaskStatus.FAILED and self.engine.is_replaced(entry):
            task = entry.handle.task
            raise SchedulerStateError(
                f"task {task.id} is not revived: another task has taken its place under the key {task.key!r}, and both "
                "would run; to have the old one back, schedule that anew with replace=True"
            )

    def _ask_for(self, question: Question) -> bool | None:
        """Ask a slow schedule what a request needs to know. Return whether that is granted; None: ask anew."""
        entry = question.entry
        if question.why == RESUME:
            self._answer(question)
            return None if entry.status is TaskStatus.PAUSED else True
        plan, failure = None, None
        try:
            plan = self._inside.call(question.answer)
        except Exception as error:
            failure = error
        settled: list[bool] = []
        apart(lambda: settled.append(self._settle(question, plan, "")))
        if failure is not None:
            raise ScheduleError(
                f"the task is not revived, its schedule failed: {describe_schedule(failure)}"
            ) from failure
        if not settled[0]:
            return None  # somebody else was quicker
        return plan is not None and plan.due_at is not None

    def wake(self) -> None:
        """Look at the clock again: for an injected one that cannot tell when it was moved."""
        self.refuse_fork()
        self.refuse_handler()
        with self._lock:
            self._wake_timer_locked()
        self.clock_moved()

    def add_listener(self, listener: TaskListener) -> None:
        """Tell `listener` of every event from now on.

        Raises:
            ValidationError: it has no `on_task_event(event)`.
        """
        self._require_open()
        self.refuse_handler()
        self.delivery.add(listener)
        with self._lock:
            self.engine.wants_events = True

    # --- questions -------------------------------------------------------------------------------------

    def task(self, id: str) -> ScheduledTask:  # noqa: A002 - the contract's name
        """Return the handle of the task with this id.

        Raises:
            TaskNotFoundError: there is none, or it was finished and forgotten.
        """
        self.refuse_handler()
        self._load()
        with self._lock:
            return self._entry_locked(id).handle

    def tasks(self) -> list[ScheduledTask]:
        """Return the handles of all tasks that are kept, in order of registration."""
        self.refuse_fork()
        self.refuse_handler()
        self._load()
        with self._lock:
            return [entry.handle for entry in self.engine.entries.values()]

    def dead_letter(self) -> list[str]:
        """Return the ids of the tasks whose retries are exhausted, oldest first."""
        self.refuse_fork()
        self.refuse_handler()
        self._load()
        with self._lock:
            return list(self.engine.dead)

    def pending(self) -> int:
        """Return how many entries wait for their time or for a worker, without tombstones."""
        self.refuse_fork()
        self.refuse_handler()
        self._load()
        with self._lock:
            return self.engine.pending

    def wait(self, task: ScheduledTask | str, timeout: float | timedelta | None = None) -> ExecutionRecord:
        """Wait for the attempt that ends the task's current or next run, and return its record.

        On a terminal task whose last run is over, return the last record at once.

        Args:
            timeout: real seconds; None for no limit.
        Raises:
            TimeoutError: the time was up.
            TaskKilledError: the task ended without a run.
            SchedulerStateError: a shutdown returned the task, or the caller is a listener; or the scheduler has not
                been started, and there is no timeout.
        """
        self.refuse_fork()
        self.refuse_handler()
        seconds = None if timeout is None else waiting_seconds("timeout", timeout)
        self._load()
        with self._lock:
            entry = self._entry_locked(task)
            self._refuse_unstarted_locked(seconds)
        self.refuse_here("wait", entry)
        record, why = self.wait_for_end(entry, seconds)
        if record is not None:
            return record
        what = f"task {entry.handle.task.id} ({entry.handle.task.name})"
        if why == "shutdown":
            raise SchedulerStateError(
                f"{what} will not run: the scheduler was shut down before its run ended"
            )
        raise TaskKilledError(f"{what} has no run to wait for: {why}")

    def wait_idle(self, timeout: float | timedelta | None = None) -> bool:
        """Wait until nothing is due at this instant, nothing is in flight and no event is undelivered.

        Args:
            timeout: real seconds; None for no limit.
        Returns:
            False when the time was up.
        Raises:
            SchedulerStateError: the caller is a listener, or an action in this process; or something is due and the
                scheduler has not been started, and there is no timeout.
        """
        self.refuse_fork()
        self.refuse_handler()
        self.refuse_here("wait_idle")
        return self.wait_until_idle(None if timeout is None else waiting_seconds("timeout", timeout))

    def history(
        self,
        task: ScheduledTask | str | None = None,
        outcome: Outcome | str | None = None,
        since: float | datetime | timedelta | None = None,
        limit: int = 100,
    ) -> list[ExecutionRecord]:
        """Return records of attempts, the newest first.

        From a durable store, in which they outlive the process and the task, as long as its retention says; else those
        that the tasks here have in their history.

        Args:
            task: of this task only, or of the one with this id, whether it is still there or not.
            outcome: with this outcome only.
            since: ended then or later: UNIX seconds, an aware datetime, or a timedelta back from now.
            limit: at most so many.
        Raises:
            ValidationError: naming the parameter. StoreError: the store cannot be read.
        """
        self.refuse_fork()
        self.refuse_handler()
        if task is None or isinstance(task, str):
            task_id = task
        else:
            task_id = getattr(getattr(task, "task", None), "id", None)
            if not isinstance(task_id, str):
                raise ValidationError(f"task must be a ScheduledTask, its id or None, not {task!r}")
        kind, start = options.checked_search(outcome, since, limit, self.clock.now)
        return self._read_history(task_id, kind, start, limit)

    def stats(self) -> Stats:
        """Return a snapshot: workers, counters, queues and problems."""
        self.refuse_fork()
        self.refuse_handler()
        workers, counters = self.pool.stats()
        with self._lock:
            engine = self.engine
            for name, count in engine.counters.items():
                counters[name] = counters.get(name, 0) + count  # late results may be found out by either
            figures = (len(engine.due), engine.due.tombstones, len(engine.ready))
            running, tasks = len(engine.running), len(engine.entries)
        problems = list(self._problems)
        problems += [f"listener {name} is stuck since {age:.1f} s" for name, age in self.delivery.stuck()]
        problems += [f"listener {name} lost {lost} events" for name, lost in self.delivery.lost().items()]
        counters["records_dropped"] = getattr(self.writer, "dropped", 0)
        counters["changes_lost"] = getattr(self.writer, "lost", 0)
        failing = None if self.writer is None else self.writer.failing
        if failing is not None and failing not in problems:
            problems.append(failing)
        paths = dict(getattr(self.pool, "paths", {}))
        return Stats(workers, counters, *figures, running, tasks, tuple(problems), paths)

    def health(self, stuck_after: float | timedelta = 1.0) -> Health:
        """Return how the threads and processes of this scheduler are: see `procsched.health`."""
        from procsched import diagnosis  # here, for it is seldom needed

        return diagnosis.look([self], stuck_after)

    # --- inside ----------------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._forked:
            self.refuse_fork()
        if self._state > RUNNING:
            raise SchedulerStateError("this scheduler was shut down: make a new one")
        if self._unloaded:
            self._load()

    def _open_entry_locked(self, task: ScheduledTask | str) -> Entry:
        self._require_open()
        return self._entry_locked(task)

    def _entry_locked(self, task: ScheduledTask | str, *, kept: bool = False) -> Entry:
        """Return the entry of a task, which is given by its id, its handle or a snapshot of that.

        Args:
            kept: whether it must not be one that is forgotten, of which the handle still says how it ended.
        Raises:
            TaskNotFoundError: there is none. ValidationError: `task` is nothing of the kind.
        """
        self.refuse_fork()
        task_id = task if isinstance(task, str) else getattr(getattr(task, "task", None), "id", None)
        if not isinstance(task_id, str):
            shown = repr(task)
            raise ValidationError(
                f"task must be a ScheduledTask or its id, not {type(task).__name__} "
                f"{shown if len(shown) <= 100 else f'{shown[:97]}...'}"
            )
        entry = self.engine.entries.get(task_id)
        # A task of another scheduler may have the same id.
        if not (isinstance(task, str) or (entry is not None and entry.handle.task is task.task)):
            entry = None if kept else self.engine.forgotten_entry(task)
        if entry is None:
            raise TaskNotFoundError(
                f"no task has the id {task_id!r} here: it is unknown, or it finished and was forgotten "
                f"(the scheduler keeps {self.engine.keep_finished} finished tasks)"
            )
        return entry

    def _kept(self, key: str) -> ScheduledTask | None:
        with self._lock:
            entry = self.engine.keys.get(key)
            return None if entry is None else entry.handle
