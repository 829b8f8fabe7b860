"""The driver of the engine: its lock, its clock, and who carries out the effects.

    user's thread --schedule, cancel...--> [ engine ] <--look, promote-- "procsched-timer"  (waits on the clock)
                                             |   ^                            |
                              under the lock |   | next_call, ended           | pump
                                             v   |                            v
              listeners' queues, store's queue   pool: "procsched-io", threads, or the thread that pumps

One lock with one condition guards the engine; only the timer waits on the condition. Order of locks: the
pool's, then this one, then those of the queues of listeners and store. So no method of the pool is called with
this lock held. User code (schedules, actions, listeners, stores, ids) never runs under it either.

Passes (look at the clock, promote what is due, ask slow schedules, pump) are made by the timer thread. Under a
fake clock whoever moves it makes one as well, and with an inline pool there is no timer thread at all.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from procsched._core.entries import AFTER_LOSS, AFTER_RUN, LENT, RESUME
from procsched._core.failures import describe, describe_schedule
from procsched._core.models import Outcome, TaskStatus
from procsched._interrupts import apart, owner_check
from procsched._jitter import draw
from procsched._logs import log, say
from procsched.clock import SystemClock, adapt_clock, real_seconds
from procsched.errors import ProcschedError, SchedulerStateError, ValidationError
from procsched.scheduler.attempts import Attempt, causes_of
from procsched.scheduler.gate import Gate
from procsched.workers.base import AHEAD_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, ParamSpec, TypeVar

    from procsched._core.entries import Entry, Question
    from procsched._core.models import ExecutionRecord
    from procsched._core.planning import Plan
    from procsched.clock import FullClock
    from procsched.protocols import TaskListener, TaskStore
    from procsched.stores.base import StoreWriter
    from procsched.stores.durable import DurableWriter
    from procsched.stores.memory import DirectWriter
    from procsched.workers.base import Call, Ending

    E = TypeVar("E", bound=Entry | None)
    P = ParamSpec("P")
    R = TypeVar("R")

BATCH = 1000  # entries promoted at a time: about a millisecond under the lock
ROUNDS = 10_000  # passes made by whoever moves a fake clock: a FixedDelay(0) under it would never end
TORN = 0.02  # seconds; readings of the clock that lie further apart are not of one moment
# Seconds for which the log of a failure waits where somebody waits for its record: so long a thread may take to be
# running again, and writing a line takes as long.
AFTER_YOU = 0.0001
PROBLEMS = 20  # texts that stats() shows

NEW, STARTING, RUNNING, CLOSING, CLOSED = range(5)

WONT_RUN = "; no attempt is left: it is in the dead letter, and runs again after revive()"


class _Inside(threading.local):
    """Counts how deep the calling thread is in user code that a step of ours has called."""

    depth = 0

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call user code. Not a context manager: a signal handler that raises would leave the count wrong."""
        depth = self.depth
        try:
            self.depth = depth + 1
            return function(*args, **kwargs)
        finally:
            self.depth = depth


class Driver:
    """The engine with a lock, a clock, a pool, and queues to listeners and store. See the module."""

    _durable: DurableWriter | None = None  # the writer, for a store that outlives the process

    def __init__(
        self,
        pool: Any,
        clock: Any,
        store: TaskStore | None,
        listeners: Iterable[TaskListener],
        event_limit: int,
        result_limit: int,
        limits: dict[str, int],
    ) -> None:
        # Here, so that the import of a scheduler stays quick: what decides, and who is told, nobody needs before.
        from procsched._core.engine import Engine
        from procsched._core.timeline import Timeline
        from procsched.listeners import EventDelivery

        self.clock: FullClock = adapt_clock(clock)
        self.pool = pool
        if not hasattr(listeners, "on_task_event"):  # a single one is refused there, with a remedy
            if not hasattr(listeners, "__iter__"):
                raise ValidationError(f"listeners must be a sequence of listeners, not {listeners!r}")
            listeners = tuple(listeners)
        self.delivery = EventDelivery(listeners, event_limit, self._note)
        self.writer = None if store is None else self._writer_for(store)
        self._holds_writer: Callable[[], bool] = getattr(self.writer, "holds_lock", _never)
        self.result_limit = result_limit
        self._real = isinstance(self.clock, SystemClock)
        self._inline = bool(getattr(pool, "inline", False))
        self._holds_pool: Callable[[], bool] = getattr(pool, "holds_lock", _never)
        # Nobody waits on the clock: what is due runs in the thread that moves it.
        self._threadless = self._inline and not self._real
        self._renew_lock()
        self._last_wall = self._last_steady = 0.0  # at the last look at the clock
        wall, steady, awake = self._readings()
        self.engine = Engine(Timeline(wall, steady, awake), draw, **limits)  # guarded by _lock
        self.engine.look(wall, steady, awake)
        self.engine.wants_events = bool(listeners)
        self.engine.wants_writes = self.writer is not None
        self._state = NEW  # guarded by _lock
        self._stale = False  # the timer must look again before it waits; guarded by _lock
        self._timer_waits = False  # guarded by _lock
        # Real steady seconds since, or from, when the timer has something to do; 0 for nothing. Read without a lock.
        self._timer_since = 0.0
        self._timer_stop = False  # guarded by _lock
        self._idle_gates: list[Gate] = []  # of wait_idle and shutdown; guarded by _lock
        self._unlogged: list[tuple[Entry | None, str]] = []  # guarded by _lock
        # What schedules have raised, by what is said of it: for the log, until that has it. Single operations, atomic.
        self._raised: dict[str, Exception] = {}
        self._problems: deque[str] = deque(maxlen=PROBLEMS)  # single operations, atomic
        self._unwatch: Any = None
        self._forked = False
        self._inside = _Inside()

    def _writer_for(self, store: TaskStore) -> StoreWriter | DirectWriter:
        from procsched.stores.base import writer_for  # here, for most schedulers have no store

        return writer_for(store, self._on_store_problem, self._on_settled)

    def _renew_lock(self) -> None:
        # Guards the engine and all fields marked so. Reentrant only so that a signal handler which interrupts
        # a holder can tell that it did (see `closing.may_hold_lock`); no code of ours enters twice.
        self._lock = threading.RLock()
        self._holds_own = owner_check(self._lock)
        self._changed = threading.Condition(self._lock)  # the timer waits here

    # --- the clock -------------------------------------------------------------------------------------

    def _readings(self) -> tuple[float, float, float]:
        """Return wall, steady and awake seconds of one moment."""
        clock = self.clock
        for _ in range(10):
            steady = clock.monotonic()
            wall, awake = clock.now(), clock.awake()
            # A thread that was put aside in between, or a fake clock moved by another one, would look like a
            # step of the wall clock.
            if clock.monotonic() - steady < TORN:
                break
        self._last_wall, self._last_steady = wall, steady
        return wall, steady, awake

    def _now(self) -> float:
        """Return wall time; where a clock of the user's raises, that of the last look.

        For what must not be lost over it. The error is told once the lock is let go.

        Raises:
            BaseException: in the main thread, what is no Exception: a signal handler may have raised it.
        """
        try:
            return self.clock.now()
        except BaseException as error:
            self._note_clock(error)
            return self._last_wall

    def _steady_now(self) -> float:
        """Return steady time, likewise."""
        try:
            return self.clock.monotonic()
        except BaseException as error:
            self._note_clock(error)
            return self._last_steady

    def _note_clock(self, error: BaseException) -> None:
        """Have it told that the clock failed, from within the `except`; raise again what may be a signal handler's."""
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise error
        self._unlogged.append((None, f"the clock failed: {describe(error)}"))

    def _look_locked(self) -> tuple[float, float]:
        """Return this moment as wall time and on the steady line; steps and suspends are followed."""
        wall, steady, awake = self._readings()
        return wall, self.engine.look(wall, steady, awake)

    def _moment_locked(self) -> tuple[float, float]:
        """Return this moment as `_look_locked` does, without looking for steps."""
        return self._now(), self.engine.timeline.line(self._steady_now())

    def clock_moved(self) -> None:
        """Look at the clock: it was set, or moved, or the system woke up."""
        if self._forked:
            return
        if self._real:
            with self._lock:
                self._wake_timer_locked()
        elif self._state == RUNNING or self._state == CLOSING:
            self._drive()

    # --- effects ---------------------------------------------------------------------------------------

    def _hand_over_locked(self) -> None:
        """Carry out what the engine has decided, as far as that may happen under the lock."""
        engine = self.engine
        events = engine.events
        while events:
            # In this order: where a signal handler raises in between, it is published again, which changes nothing.
            self.delivery.publish(events[0])
            del events[0]
        if engine.writes or engine.forgotten:
            assert self.writer is not None
            for write in engine.writes:
                self.writer.put(*write)
            for task_id in engine.forgotten:
                self.writer.forget(task_id)
            engine.writes.clear()
            engine.forgotten.clear()
        if engine.woken:
            # In this order for the same reason, here and with the gates: all are opened again.
            for waiter, record, why in engine.woken:
                waiter.open(record, why)  # type: ignore[attr-defined]
            engine.woken.clear()
        if engine.problems:
            self._unlogged += engine.problems
            engine.problems.clear()
        if engine.sooner or engine.questions:
            engine.sooner = False
            self._wake_timer_locked()
        if self._idle_gates and not (engine.running or len(engine.ready) or engine.open_questions):
            self._open_idle_gates_locked()

    def _open_idle_gates_locked(self) -> None:
        for gate in self._idle_gates:
            gate.open()
        self._idle_gates.clear()

    def _wake_timer_locked(self) -> None:
        self._stale = True
        if self._timer_waits:
            # In this order: a KeyboardInterrupt in between costs a second notify, not the timer's wake-up.
            self._changed.notify()
            self._timer_waits = False
            self._timer_since = real_seconds()  # should its clock keep it, that is since when

    def _note(self, text: str) -> None:
        """Remember a problem for stats()."""
        self._problems.append(text)

    def _report(self, kind: str, text: str) -> None:
        """Remember a problem of the whole scheduler, and tell the listeners."""
        self._note(text)
        with self._lock:
            self.engine.tell(None, self._now(), None, kind, text)
            self._hand_over_locked()

    def _on_store_problem(self, text: str) -> None:
        self._report("store", text)

    def _on_settled(self) -> None:
        """Hear from the store thread that something was written."""

    def pool_problem(self, text: str) -> None:
        """Hear that something is wrong with the pool itself."""
        self._report("health", text)

    def _log_problems(self) -> None:
        """Log what the engine found, with no lock held: a handler of the user's may do anything."""
        if not self._unlogged:
            return
        with self._lock:
            unlogged, self._unlogged = self._unlogged, []
        for entry, text in unlogged:
            if entry is None:
                self._inside.call(say, logging.ERROR, "%s", text)
                self._note(text)
            else:
                task = entry.handle.task
                fields = _fields(task.id, task.name)
                words = "task %s (%s): %s", task.id, task.name, text
                self._inside.call(say, logging.ERROR, *words, error=self._raised.get(text), fields=fields)
                self._note(f"task {task.id} ({task.name}): {text}")

    # --- the pool's side -------------------------------------------------------------------------------

    def next_call(self, *, ahead: bool = False) -> Call | None:
        """Give the pool the call that starts now, or None. Called with the pool's lock held."""
        with self._lock:
            engine = self.engine
            if ahead:
                return self._lend_locked()
            if not len(engine.ready):
                return None
            # Read before the entry leaves the ready order: a clock of the user's may raise.
            wall, mono = self.clock.now(), self.clock.monotonic()
            entry = engine.pop_ready()
            if entry is None:
                return None
            attempt = Attempt(self, entry, engine.numbers(entry), wall, mono)
            attempt.told = True
            engine.begin(entry, attempt, wall)
            if not self._real and attempt.timeout is not None:
                self._wake_timer_locked()  # it waits for the deadlines that only `poke` can enforce
            self._hand_over_locked()
            return attempt

    def _lend_locked(self) -> Call | None:
        """Give the pool a call that starts when one before it has ended, or comes back by `take_back`."""
        entry: Entry | None = self.engine.ready.first()
        # Under an injected clock a pool cannot know how long calls take; what a shutdown begins is not handed about.
        if entry is None or not self._real or self.engine.closing:
            return None
        task = entry.handle.task
        if task.capture_output or task.limits is not None or len(entry.payload) > AHEAD_BYTES:
            return None
        self.engine.lend()
        return Attempt(self, entry, self.engine.numbers(entry), 0.0, 0.0)

    def take_back(self, call: Attempt) -> None:
        """Take back a call that was given out ahead and has not begun. Called with the pool's lock held."""
        with self._lock:
            self.engine.take_back(call.entry)
            if self.engine.ready.outrun:
                self._wake_timer_locked()  # its next pass has back what goes behind this one

    def holds(self, call: Attempt) -> bool:
        """Return whether an attempt is none that the pool has. Called with the pool's lock held."""
        return call.over or not (call.entry.queued == LENT or call.entry.live is call)

    def mend(self) -> None:
        """Put in order what a signal handler has torn. Called with the pool's lock held."""
        with self._lock:
            self._mend_locked()

    def attempt_begun(self, attempt: Attempt, ago: float) -> None:
        """Hear that a call that was given out ahead began so many seconds ago. Called with the pool's lock held."""
        with self._lock:
            if attempt.entry.live is attempt:
                return
            attempt.started_at = self.clock.now() - ago
            attempt.started_mono = self.clock.monotonic() - ago
            self.engine.begin_lent(attempt.entry, attempt, attempt.started_at)
            self._hand_over_locked()

    def recalled(self, find: Callable[[], E], act: Callable[[E], R]) -> R:
        """Return what `act` returns, which is given an entry that is not lent: it waits for a worker, or has begun.

        Args:
            find: returns the entry. This and the next are called with the lock held.
            act: called with the entry.
        """
        self.refuse_handler()
        with self._lock:
            entry = find()
            if entry is None or entry.queued != LENT:
                return self._asked_locked(act, entry)

        def again() -> R:
            with self._lock:
                return self._asked_locked(act, find())

        answer: R = self.pool.recalled(again)
        return answer

    def _whole_locked(self, section: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call `section`; where a signal handler raises in it, mend what that has torn."""
        try:
            return section(*args, **kwargs)
        except ProcschedError:
            raise  # a refusal, which has changed nothing
        except BaseException:
            try:
                self._mend_locked()
            except BaseException:  # another one
                self._mend_locked()
            raise

    def _asked_locked(self, act: Callable[[E], R], entry: E) -> R:
        """Do the same with a request about an entry, which is stored as that has left it."""
        try:
            return self._whole_locked(act, entry)
        except ProcschedError:
            raise
        except BaseException:
            # Its status may have moved, and that be told to nobody yet: a restart would find what it was before.
            engine = self.engine
            if (
                entry is not None
                and engine.wants_writes
                and engine.entries.get(entry.handle.task.id) is entry
            ):
                engine.write_again(entry)
                self._hand_over_locked()
            raise

    def _mend_locked(self) -> None:
        self.engine.mend(self._last_wall)  # a clock of the user's may be what has raised
        self._hand_over_locked()

    def holds_lock(self) -> bool:
        """Return whether the calling thread holds a lock of ours: who calls has then interrupted us."""
        return self._holds_own() or self._holds_pool() or self.delivery.holds_lock() or self._holds_writer()

    def refuse_handler(self) -> None:
        """Refuse what a signal handler or a finalizer asks in the midst of the very thing that it has interrupted.

        Raises:
            SchedulerStateError: naming the remedy.
        """
        if self.holds_lock():
            raise SchedulerStateError(
                "this signal handler, or finalizer (__del__), has interrupted the scheduler, which can do nothing "
                "else until it returns: set a flag, or call it from a thread"
            )

    def attempt_ended(self, attempt: Attempt, ending: Ending) -> None:
        """Hear how an attempt ended; from a thread of the pool."""
        mono = self._steady_now()
        record = attempt.record(ending, mono, self.result_limit)
        with self._lock:
            engine = self.engine
            line = engine.timeline.line(mono)
            expected = engine.end(attempt, record, self._now(), line, ending.unloadable)
            if self._durable is not None:
                # Its worker may have asked for the next one before, when this one still counted as running.
                self._make_ready_locked()
            awaited = bool(engine.woken)
            self._hand_over_locked()
            if engine.closing:
                # The shutdown may wait for the end of this alone, for its schedule may never say what follows.
                self._open_idle_gates_locked()
        if self._unlogged:
            self._log_problems()
        if record.ok:
            if log.isEnabledFor(logging.DEBUG):
                self._log_attempt(logging.DEBUG, attempt, record, expected)
        else:
            final = attempt.attempt >= attempt.entry.handle.task.retry.max_attempts
            dead = attempt.entry.status is TaskStatus.FAILED
            alarming = dead or (final and record.outcome is not Outcome.KILLED)
            level = logging.WARNING if alarming else logging.INFO
            if log.isEnabledFor(level):
                if awaited:
                    time.sleep(AFTER_YOU)
                self._log_attempt(level, attempt, record, expected)

    def _log_attempt(self, level: int, attempt: Attempt, record: ExecutionRecord, expected: bool) -> None:
        self._inside.call(
            say,
            level,
            "task %s (%s) attempt %d %s%s%s%s%s",
            record.task_id,
            record.name,
            record.attempt,
            "succeeded" if record.outcome is Outcome.SUCCEEDED else f"ended as {record.outcome.value}",
            "" if record.error is None else f": {record.error}",
            WONT_RUN if attempt.entry.status is TaskStatus.FAILED else "",
            "" if expected else " (too late to count)",
            causes_of(record) if level >= logging.WARNING or log.isEnabledFor(logging.DEBUG) else "",
            fields=_fields(record.task_id, record.name, record.attempt, record.pid),
        )

    def attempt_progressed(self, attempt: Attempt, done: float, total: float | None, note: str) -> None:
        """Hear of progress; from a thread of the pool."""
        if not self.engine.wants_events:
            return
        with self._lock:
            if attempt.entry.live is attempt:
                self.engine.tell(attempt.entry, self._now(), None, "progress", (done, total, note))
                self._hand_over_locked()

    def in_user_code(self) -> bool:
        """Return whether a step of ours in the calling thread waits for what it called: a schedule, a log handler."""
        return self._inside.depth > 0

    # --- passes ----------------------------------------------------------------------------------------

    def _pass(self) -> bool:
        """Promote what is due, ask slow schedules, and let the pool take what is ready.

        Returns:
            Whether anything was done, so that there may be more.
        """
        if not self._real:
            self.pool.poke()
        questions: list[Question] = []
        try:
            with self._lock:
                engine = self.engine
                wall, line = self._look_locked()
                moved = self._whole_locked(engine.promote, wall, line, BATCH)
                self._make_ready_locked()
                questions, engine.questions = engine.questions, []
                self._hand_over_locked()
                ready = len(engine.ready)
                outrun, engine.ready.outrun = engine.ready.outrun, False
            if outrun:
                self._recall()
            if ready:
                self.pool.pump()  # first: what is ready does not wait for slow schedules
            for question in questions:
                self._answer(question)
                self.pool.pump()  # for the same reason
        except BaseException:
            # A clock of the user's has raised, or a signal handler where the main thread moves a fake one.
            if questions:
                with self._lock:
                    self.engine.ask_again(questions)
                    self._wake_timer_locked()
            raise
        if moved or questions or not (ready and self._threadless):
            return moved or bool(questions)
        with self._lock:
            # What was ready ran, and may have left a question, or a retry that is due.
            return self._may_pass_locked()

    def _may_pass_locked(self) -> bool:
        """Return whether another pass by this thread would get further."""
        if self._state not in (RUNNING, CLOSING):
            return False
        wall, line = self._moment_locked()
        due = self._state == RUNNING and self.engine.due.is_due(line, wall)
        return due or bool(self.engine.questions)

    def _make_ready_locked(self) -> None:
        """Do what is to be done before the pool looks for what is ready."""

    def _recall(self) -> None:
        """Have everything that is lent begun, or back. With no lock held."""
        self.pool.recall()

    def _unlend_locked(self) -> None:
        """Have back what is lent and the pool does not know of."""

    def _answer(self, question: Question) -> None:
        """Ask a schedule that may be slow, with no lock held, and settle its answer.

        What a signal handler raises meanwhile is raised here. The question is settled then, or still open.
        """
        plan, error = None, ""
        try:
            plan = self._inside.call(question.answer)
        except Exception as failure:
            error = f"its schedule failed: {describe_schedule(failure)}"
            self._raised[error] = failure
        except BaseException:
            if question.why == RESUME or threading.current_thread() is threading.main_thread():
                raise
            # No handler runs here: it is the schedule's own, and would come again.
            self._settle(question, None, "asking its schedule was interrupted")
            raise
        try:
            apart(lambda: self._settle(question, plan, error))
            if self._unlogged:
                self._log_problems()
        finally:
            self._raised.pop(error, None)

    def _settle(self, question: Question, plan: Plan | None, error: str) -> bool:
        """Bring the engine an answer; False where it came too late.

        Called where no signal handler comes: what it has torn in here could not be mended.
        """
        with self._lock:
            settled = self.engine.settle(question, plan, error or None, *self._moment_locked())
            if question.why in (AFTER_RUN, AFTER_LOSS):
                self._wake_timer_locked()
            self._hand_over_locked()
            if self.engine.closing:
                self._open_idle_gates_locked()  # it may have become ready, and is to be returned
        return settled

    def _drive(self) -> None:
        """Make passes in the calling thread until nothing is due: what a fake clock's mover does."""
        for _ in range(ROUNDS):
            if not self._pass():
                return

    def _pump(self) -> None:
        """Have what is ready taken, after a request made something ready."""
        if self._threadless or not len(self.engine.ready) or self._state != RUNNING:
            return
        # Not in the main thread: a signal handler that raises there would lose the attempt that was being handed out.
        if self._inline or threading.current_thread() is threading.main_thread():
            with self._lock:
                self._wake_timer_locked()
            return
        with self._lock:
            outrun, self.engine.ready.outrun = self.engine.ready.outrun, False
        try:
            if outrun:
                self._recall()
            self.pool.pump()
        except Exception as error:
            # A clock of the user's, say. What was asked for is done; the timer pumps again.
            say(logging.ERROR, "what is ready is taken a moment later", error=error)
            with self._lock:
                self._wake_timer_locked()


def _fields(task_id: str, name: str, attempt: int | None = None, pid: int | None = None) -> dict[str, Any]:
    return {"task_id": task_id, "task_name": name, "attempt": attempt, "pid": pid}


def _never() -> bool:
    return False
