"""The scheduler: what users call. What it does is decided in `_core/engine.py` and done in `driver.py`."""

from __future__ import annotations

import functools
import sys

from procsched import _forks
from procsched._core import options
from procsched._core.checks import (
    check_flag,
    check_text,
    finite_seconds,
    instant,
    member_of,
    waiting_seconds,
    whole_number,
)
from procsched._core.failures import describe
from procsched._core.frozen import prepare, twin
from procsched._core.models import (
    DEFAULT_RETRY,
    NO_RETRY,
    ExecutionRecord,
    MisfirePolicy,
    OverrunPolicy,
    Priority,
    ScheduledTask,
    ShutdownReport,
    Task,
    TaskEvent,
    TaskStatus,
)
from procsched._core.names import check_names, name_after
from procsched._core.planning import ONCE, OTHER, check_schedule, kind_of, plan_first
from procsched._interrupts import apart
from procsched._jitter import draw
from procsched.errors import (
    ScheduleError,
    SchedulerStateError,
    StoreError,
    TaskSerializationError,
    ValidationError,
)
from procsched.ids import SequentialIdGenerator
from procsched.scheduler import exits
from procsched.scheduler.closing import POOL_SECONDS
from procsched.scheduler.driver import NEW, RUNNING, STARTING
from procsched.scheduler.serving import SentCall, Served
from procsched.schedules import FixedRate, OneTime
from procsched.schedules.once import After

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime, timedelta
    from types import TracebackType
    from typing import Any, Final, Never, Self

    from procsched._core.entries import Entry
    from procsched._core.limits import Limits
    from procsched._core.models import RetryPolicy, ShutdownReport
    from procsched.protocols import Clock, IdGenerator, Schedule, TaskListener, TaskStore, WorkerPool
    from procsched.stores.payloads import StoredCall


class _Default(int):
    """A default value that can be told from the same number given by the user."""


_FOUR: Final = _Default(4)
MOST_IDS: Final = 1000  # that a generator may give in vain
_OpenTask = twin(Task)


class Scheduler(Served):
    """Runs tasks when their schedules say so, in workers that can be ended.

    Args:
        workers: how many runs may go on at once.
        clock: see `Clock`; the system's by default. An object with only `now()` will do.
        ids: gives ids to tasks; `task-1`, `task-2` and so on by default.
        store: where tasks are written at every change of status, and go on from at the first use of the scheduler;
            nowhere but in memory by default.
        listeners: objects with `on_task_event(event)`.
        pool: a `ThreadPool`, `InlinePool` or `ProcessPool` of your own in place of the default
            `ProcessPool(workers, **pool_options)`; its size counts, and the scheduler owns it.
        history_limit: records kept for each task.
        keep_finished: terminal tasks kept; the oldest are forgotten.
        dead_letter_limit: ids kept in the dead letter; the oldest are dropped, and counted, as are those of tasks that
            are forgotten.
        event_limit: events queued for one listener.
        result_limit: bytes of a pickled result that a record keeps; a larger one is dropped. With a `ThreadPool` or an
            `InlinePool` nothing is pickled: bytes and texts are measured by their length, all else is kept as it is.
        store_required: with a durable store, whether no attempt starts unless that is stored, and requests wait until
            they are. With False a scheduler goes on while its store fails, and catches up when it works again: what it
            did meanwhile is forgotten if it crashes before.
        pool_options: for the `ProcessPool`.
    Raises:
        ValidationError: naming the parameter.
    Thread safety: call from anywhere. Lives from `start` to `shutdown`, also if nobody refers to it.
    """

    def __init__(
        self,
        workers: int = _FOUR,
        clock: Clock | Callable[[], float] | None = None,
        ids: IdGenerator | None = None,
        store: TaskStore | None = None,
        listeners: Iterable[TaskListener] = (),
        *,
        pool: WorkerPool | None = None,
        history_limit: int = 100,
        keep_finished: int = 10_000,
        dead_letter_limit: int = 1_000,
        event_limit: int = 100_000,
        result_limit: int = 65_536,
        store_required: bool = True,
        **pool_options: Any,
    ) -> None:
        whole_number("workers", workers)
        limits = {
            "history_limit": whole_number("history_limit", history_limit),
            "keep_finished": whole_number("keep_finished", keep_finished, 0),
            "dead_letter_limit": whole_number("dead_letter_limit", dead_letter_limit, 0),
        }
        whole_number("result_limit", result_limit, 0)
        check_flag("store_required", store_required)
        if ids is not None and (isinstance(ids, type) or not callable(getattr(ids, "next_id", None))):
            raise ValidationError(f"ids must be an object with next_id(), not {ids!r}")
        if pool is None:
            # Here and not above: a scheduler on threads needs no processes.
            from procsched.workers.options import POOL_OPTIONS
            from procsched.workers.pool import ProcessPool

            check_names(pool_options, (*_OWN_OPTIONS, *POOL_OPTIONS))
            pool = ProcessPool(int(workers), **pool_options)
        else:
            _check_pool(pool, workers, pool_options)
        super().__init__(pool, clock, store, listeners, event_limit, result_limit, limits)
        self._ids = SequentialIdGenerator() if ids is None else ids
        self._set_up_staging(store_required)
        self._set_up_loading()
        _forks.note(self)
        self._confined = getattr(pool, "sandbox", None) is not None
        if self._confined and self._durable is not None:
            raise ValidationError(
                "a durable store keeps calls as pickles, which are not opened for what runs in a sandbox: schedule "
                "the sandboxed tasks on a scheduler of their own, without a store, when the program starts"
            )

    # --- the scheduler's life --------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to run what is due. Once.

        Raises:
            SchedulerStateError: it was started or shut down before; or this is a signal handler that has interrupted
                it.
            OSError: this process may not have the descriptors that the pool needs. Nothing was started then, and
                `start` may be called again.
        """
        self.refuse_fork()
        self.refuse_handler()
        with self._lock:
            if self._state != NEW:
                what = "shut down" if self._state > RUNNING else "started"
                raise SchedulerStateError(
                    f"this scheduler was already {what}: it starts once; make a new one"
                )
            self._state = STARTING
        exits.keep(self)
        try:
            self._load()
            apart(self._begin)
        except BaseException:
            if self._state != NEW:
                self.close(False, 0.0)
            raise

    def _begin(self) -> None:
        """Start the pool, the watch of the clock and the timer.

        Where no signal handler comes: one that raised might leave a thread behind that nobody knows of.
        """
        self._start_pool()
        prepare(ExecutionRecord, ShutdownReport, TaskEvent)  # now, while the first worker starts
        self._unwatch = self.clock.watch(self.clock_moved)
        with self._lock:
            running = self._state == STARTING
            if running:
                self._state = RUNNING
                self._look_locked()
                self.engine.began()
                self.engine.release_held(*self._moment_locked())
                self.engine.promote(*self._moment_locked(), sys.maxsize)
                self._hand_over_locked()
                self._open_idle_gates_locked()  # who waits since before this may have to run it
        if not running:  # shut down meanwhile, when there was nothing to end yet
            self._unwatch()
            self.pool.shutdown(POOL_SECONDS)
        elif not self._threadless:
            self._start_timer()

    def _start_pool(self) -> None:
        try:
            self.pool.start(self, self.clock)
            self._has_pool = True
        except OSError:
            with self._lock:
                if self._state == STARTING:  # nobody has shut it down meanwhile
                    self._state = NEW
                    exits.release(self)
            raise

    def shutdown(
        self, drain: bool = True, timeout: float | timedelta | None = 30.0, *, wait: bool | None = None
    ) -> ShutdownReport:
        """End the scheduler: stop timing, settle what is due, end what still runs when the time is up.

        Args:
            drain: run what is already due; otherwise it is returned, as SCHEDULED.
            timeout: real seconds for what runs to end by itself; None for no limit. What is still running
                then is ended, its grace first, and recorded as KILLED. What hangs besides (listeners, a schedule, a
                store) is left behind half a second later.
            wait: another name for `drain`.
        Returns:
            What was finished, killed and returned. A further call waits for the first (and may shorten its
            time) and returns the same. Called from an action of a pool in this process, from a schedule,
            from a log handler in a thread of the scheduler, or from a signal handler that interrupted the
            scheduler itself, it returns at once, with an empty report; from a listener it does not wait
            for that listener. In a fork of the process that started it, it does nothing.
        """
        if wait is not None:
            check_flag("wait", wait)
            drain = wait
        check_flag("drain", drain)
        if self._forked:
            return ShutdownReport()  # its threads and workers are the parent's
        return self.close(drain, None if timeout is None else waiting_seconds("timeout", timeout))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forked:
            return  # the block ends in a forked child: the scheduler is the parent's
        if kind is None:
            self.shutdown()
        else:
            self.shutdown(drain=False, timeout=0)

    # --- tasks come ------------------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        action: Callable[..., Any],
        schedule: Schedule,
        priority: Priority | int = Priority.NORMAL,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout: float | timedelta | None = None,
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        soft_timeout: float | timedelta | None = None,
        grace: float | timedelta = 0.0,
        misfire: MisfirePolicy = MisfirePolicy.RUN_ONCE,
        max_catch_up: int = 100,
        on_exhausted: str = "dead_letter",
        limits: Limits | None = None,
        capture_output: bool = False,
        key: str | None = None,
        replace: bool = False,
        **unknown: Never,
    ) -> ScheduledTask:
        """Schedule `action` and return its live handle. Allowed before `start`.

        Args:
            name: for people; need not be unique.
            action: called with `args` and `kwargs`; serialized here and now, once.
            schedule: when; any object with `first_run(now)` and `next_run(record, now)`.
            priority: which of two due tasks starts first.
            retry: how often a failed run is tried. In a sandbox `DEFAULT_RETRY` means no further try.
            timeout: seconds after which a run is ended; None for no limit.
            soft_timeout: seconds after which it is asked to stop. A `ThreadPool` can ask nobody, and refuses this and
                `grace`, and `capture_output` as well.
            grace: seconds between asking a run to stop and ending it.
            misfire: what happens to slots that passed while paused, asleep or before the start.
            max_catch_up: how many passed slots may become runs of their own.
            on_exhausted: "dead_letter", or "continue" for a recurring task that keeps its schedule.
            limits: what else a run may use: memory, CPU time and others. Needs a pool of processes; where that has
                limits too, the tighter ones hold.
            capture_output: keep the end of stdout and stderr in `record.output`.
            key: a stable name. While a task with the same key is kept, unless it was cancelled, this call
                changes nothing and returns that task's handle; with `replace` it cancels that task (a live
                run goes on) and takes its place. A warning names, once a key, what is given otherwise than it is kept.
            replace: see `key`. The new task stays paused where the old one was; with an equal schedule it waits for the
                slot that the old one waits for, also where that was missed: `misfire` decides. With another schedule,
                and while a run of the old one goes on or waits for a retry, it begins with its first slot. Attempts
                are counted anew.
        Raises:
            ValidationError: naming the parameter; nothing is registered. ScheduleError: the schedule has no
                first slot, or failed.
            TaskSerializationError: the action or an argument cannot be pickled.
            SchedulerStateError: the scheduler was shut down.
        """
        self._require_open()
        self.refuse_handler()
        if unknown:
            options.refuse_unknown(unknown, options.TASK_OPTIONS, "schedule")
        if type(name) is not str or not name:
            check_text("name", name)
        if not callable(action):
            options.check_action(action)
        kind = kind_of(schedule)
        if kind == OTHER:
            check_schedule(schedule)
        if type(priority) is not Priority:
            priority = options.checked_priority(priority)
        if type(args) is not tuple:
            args = options.checked_args(args)
        named = None if kwargs is None else options.checked_kwargs(kwargs)
        hard, soft, seconds = options.checked_times(timeout, soft_timeout, grace)
        if type(misfire) is not MisfirePolicy:
            misfire = member_of(MisfirePolicy, "misfire", misfire)
        options.check_rest(retry, on_exhausted, max_catch_up, limits, capture_output)
        if self._confined:
            options.check_confined(hard, soft, seconds, limits)
            if retry is DEFAULT_RETRY:
                retry = NO_RETRY
        if limits is not None:
            self._check_limits(limits)
        if (soft is not None or seconds or capture_output) and getattr(self.pool, "strict", False):
            options.check_unheld(soft, seconds, capture_output, type(self.pool).__name__)
        if retry.jitter:
            draw()  # what it imports is there then: when a run has failed, no descriptor may be left
        if replace is not False:
            check_flag("replace", replace)
        like = retrying = None
        if key is not None:
            from procsched.scheduler import keys  # here, for most tasks have none

            check_text("key", key)
            kept = self._kept(key)
            if kept is not None:
                same = keys.is_same_schedule(kept.schedule, schedule, stored=self._durable is not None)
                if not replace:
                    if kept.status is TaskStatus.FAILED:
                        self._note_dead(kept)
                    if kind != ONCE or not kept.status.is_terminal:  # what is over stays so
                        given = {
                            "name": name, "priority": priority, "retry": retry, "timeout": hard, "soft_timeout": soft,
                            "grace": seconds, "misfire": misfire, "max_catch_up": max_catch_up,
                            "on_exhausted": on_exhausted, "limits": limits, "capture_output": capture_output,
                        }  # fmt: skip
                        changed = keys.changed_settings(kept, given, action, args, named)
                        if not same and (kind != OTHER or self._durable is not None):
                            changed.append("schedule")
                        self._note_changed(kept, changed)
                    return kept
                if same:
                    like = kept
                retrying = kept if kept.status is TaskStatus.RETRYING else None
        try:
            if self._durable is None:
                payload, stored = self.pool.pack(action, args, named or {}), None
            else:
                payload, stored = self._pack_durable(action, args, named or {}, schedule, (name, key or ""))
        except TaskSerializationError as error:
            if self._durable is not None:
                raise
            error.args = (f"{error}; Scheduler(pool=ThreadPool()) need not send anything, and cannot kill",)
            raise
        if type(action) is SentCall:
            action, args, named = action.described()
        steady = bool(getattr(schedule, "steady", False))
        now, first = self._first_slot(schedule, steady)
        task_id = self._new_id()
        task = _OpenTask()
        task.id = task_id
        task.name = name
        task.action = action
        task.priority = priority
        task.retry = retry
        task.timeout = hard
        task.args = args
        task.kwargs = named
        task.soft_timeout = soft
        task.grace = seconds
        task.misfire = misfire
        task.max_catch_up = max_catch_up
        task.on_exhausted = on_exhausted
        task.limits = limits
        task.capture_output = capture_output
        task.key = key
        task.__class__ = Task
        new = (task, schedule, kind, steady, payload, first, now)
        if key is None:
            with self._lock:
                handle = self._whole_locked(self._add_locked, None, new, stored, replace, None)
        else:
            add = functools.partial(self._add_locked, new=new, stored=stored, replace=replace, like=like)
            handle = self.recalled(functools.partial(self.engine.keys.get, key), add)
        if self._durable is not None:
            if replace and key is not None:
                self._require_stored("the task has taken the place of the one with its key")
            elif handle.task is task:
                self._require_task_stored(handle)
        if retrying is not None and handle.task is task:
            self._note_dropped_retry(retrying, task)
        if self._unkeyed and key is None and kind != ONCE:
            self._note_twin(handle)
        if self._threadless and self._state == RUNNING:
            self._drive()
        return handle

    def _add_locked(
        self,
        old: Entry | None,
        new: tuple[Task, Schedule, int, bool, Any, float, float],
        stored: tuple[StoredCall, str] | None,
        replace: bool,
        like: ScheduledTask | None,
    ) -> ScheduledTask:
        """Register a task, unless `old` keeps its place; return the handle of the one that is there now.

        Args:
            like: the one that has the same schedule, so that the new one goes on where it stands; if that is `old`.
        """
        self._require_open()
        engine = self.engine
        task_id = new[0].id
        if task_id in engine.entries:
            raise SchedulerStateError(f"ids.next_id() gave {task_id!r}, which a task already has")
        if old is not None:
            if not replace:
                return old.handle
            moment = self._moment_locked()
        # Before anything is changed: a clock of the user's may raise.
        now = None if self._durable is None else self._look_for_due_locked()
        if stored is not None:
            assert self._durable is not None
            self._durable.calls[task_id] = stored
        if old is None:
            entry = engine.add(*new)
        else:
            entry = engine.replace(old, old.handle is like, *moment, new)
        if now is not None:
            self._stage_due_locked(*now)
        self._hand_over_locked()
        return entry.handle

    def _pack_durable(
        self,
        action: Any,
        args: tuple[Any, ...],
        named: dict[str, Any],
        schedule: Schedule,
        texts: tuple[str, ...],
    ) -> tuple[Any, tuple[StoredCall, str] | None]:
        """Return what the pool makes a call of, and the stored forms of call and schedule."""
        from procsched.stores.codec import check_size, check_storable
        from procsched.stores.payloads import store_call

        text = check_storable(schedule, texts)
        call = action.call if type(action) is SentCall else store_call(action, args, named)
        check_size(len(call.data))
        # The same bytes are run now and after a restart.
        return self._payload_of(call), (call, text)

    def _new_id(self) -> str:
        """Return an id for a task. One that the store knows is not given again, whatever the generator says."""
        for _ in range(MOST_IDS):
            task_id = self._ids.next_id()
            if type(task_id) is not str or not task_id:
                check_text("the id that ids.next_id() gave", task_id)
            if self.writer is None:
                return task_id
            if self._durable is not None:
                from procsched.stores.codec import check_id

                check_id(task_id)
            if not self._is_known(task_id):
                return task_id
        raise SchedulerStateError(
            f"ids.next_id() gave {task_id!r} and others before, which the store knows already"
        )

    def _is_known(self, task_id: str) -> bool:
        if task_id in self.engine.entries:
            return True
        # One that counts on behind what it was told of need not be asked about.
        return (
            not hasattr(self._ids, "continue_after")
            and self._durable is not None
            and self._durable.knows(task_id)
        )

    def _learn_ids(self, ids: Iterable[str]) -> None:
        continue_after = getattr(self._ids, "continue_after", None)
        if continue_after is not None:
            continue_after(ids)

    def _require_task_stored(self, handle: ScheduledTask) -> None:
        """Wait until a new task is stored; one that is not does not stay.

        Raises:
            StoreError: the store fails.
        """
        if self._wait_stored() or not self._store_required:
            return
        failing = self._durable.failing if self._durable is not None else None
        engine = self.engine

        def withdraw(entry: Entry | None) -> bool:
            if entry is None or entry.live is not None or not engine.cancel(entry, self._now()):
                return False
            engine.forget(entry)
            self._hand_over_locked()
            return True

        if not self.recalled(lambda: engine.entries.get(handle.task.id), withdraw):
            return  # it has begun, or is over: so it was stored after all
        raise StoreError(
            f"the task was not scheduled, for it could not be stored: {failing or 'the store takes long'}"
        )

    def _check_limits(self, limits: Limits) -> None:
        """Refuse limits that nothing would hold.

        Raises:
            ValidationError: naming the field, or the parameter.
        """
        from procsched import _system  # here, for most tasks have none
        from procsched._core.limits import check_limits

        check_limits("limits", limits, trees_known=_system.offers("proc"))
        if not (self._visiting or getattr(self.pool, "holds_limits", False)):
            raise ValidationError(
                f"limits cannot be held by a {type(self.pool).__name__}: what runs in this process has its memory in "
                "common with it; use Scheduler(pool=ProcessPool(...))"
            )

    def schedule_at(
        self, fn: Callable[..., Any], run_at: float | datetime, *more: Never, **task_options: Any
    ) -> ScheduledTask:
        """Run `fn` once at an instant: UNIX seconds or an aware datetime.

        Options are those of `schedule`; besides, `name=` (the function's by default) and `retries=n`: n more
        tries, one second apart. Without either `retries` or `retry` there is no further try. An instant in the
        past is due at once; one after the year 5138 is refused, as meant in another unit.
        """
        name = options.take_convenience(task_options, fn, more, "schedule_at")
        return self.schedule(name, fn, OneTime(instant("run_at", run_at)), **task_options)

    def schedule_after(
        self, fn: Callable[..., Any], delay: float | timedelta, *more: Never, **task_options: Any
    ) -> ScheduledTask:
        """Run `fn` once, `delay` steady seconds from now. Options as for `schedule_at`."""
        name = options.take_convenience(task_options, fn, more, "schedule_after")
        return self.schedule(name, fn, After(finite_seconds("delay", delay)), **task_options)

    def schedule_every(
        self,
        fn: Callable[..., Any],
        interval: float | timedelta,
        *more: Never,
        on_overrun: OverrunPolicy = OverrunPolicy.SKIP,
        **task_options: Any,
    ) -> ScheduledTask:
        """Run `fn` at a fixed rate, for the first time one `interval` from now. Options as for `schedule_at`."""
        name = options.take_convenience(task_options, fn, more, "schedule_every")
        seconds = finite_seconds("interval", interval, above=True)
        return self.schedule(name, fn, FixedRate(seconds, on_overrun, start_delay=seconds), **task_options)

    def _first_slot(self, schedule: Schedule, steady: bool) -> tuple[float, float]:
        """Return this moment and the first slot, both on the schedule's line."""
        clock = self.clock
        if steady:
            now = self.engine.timeline.line(clock.monotonic())
        else:
            now = clock.now()
        try:
            first = plan_first(schedule, now)
        except ScheduleError:
            raise
        except Exception as error:
            raise ScheduleError(
                f"schedule failed: {type(schedule).__name__}.first_run raised {describe(error)}"
            ) from error
        if first is None:
            raise ScheduleError(
                f"schedule never yields a due time: {schedule!r} has no first run; nothing was registered"
            )
        return now, first

    def __reduce__(self) -> Never:
        raise TypeError(
            "a scheduler stays in the process that made it: call it there, from a listener or a run in a ThreadPool"
        )

    def __repr__(self) -> str:
        words = ("new", "starting", "running", "closing", "closed")
        return f"<Scheduler {words[self._state]}, {len(self.engine.entries)} tasks>"


name_after(Scheduler)

_OWN_OPTIONS = (
    "workers",
    "clock",
    "ids",
    "store",
    "listeners",
    "pool",
    "history_limit",
    "keep_finished",
    "dead_letter_limit",
    "event_limit",
    "result_limit",
    "store_required",
)


def _check_pool(pool: object, workers: int, pool_options: Mapping[str, Any]) -> None:
    for method in ("pack", "start", "pump", "kill", "shutdown"):
        if isinstance(pool, type) or not callable(getattr(pool, method, None)):
            raise ValidationError(
                f"pool must be a ThreadPool, InlinePool or ProcessPool object, not {pool!r}"
            )
    size = getattr(pool, "size", None)
    if workers is not _FOUR and workers != size:
        raise ValidationError(
            f"workers={workers} and a pool of {size} contradict each other: the pool's size counts, "
            "leave workers out"
        )
    if pool_options:
        names = ", ".join(pool_options)
        raise ValidationError(f"{names}: give these options to the pool that you pass as pool=")
