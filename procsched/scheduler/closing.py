"""The shutdown: who does it, in which order, and within which time.

    first caller      drains or gives back --> asks what still runs to end --> pool, timer, queues --> report
    further callers   may shorten its time; wait for the report
    a listener        may do it, and is not waited for
    a signal handler  in the midst of the first caller does what is left
    an action, a schedule, a log handler in a thread of ours, and a signal handler that may have interrupted a holder
    of a lock         have a thread of its own do it, and do not wait: they would wait for themselves

Every step may be taken twice: a caller that is interrupted leaves the rest to the next one.
"""

from __future__ import annotations

import logging
import sys
import threading
from types import FrameType

from procsched._core.entries import BY_SHUTDOWN
from procsched._core.failures import describe
from procsched._core.models import Outcome, ShutdownReport
from procsched._logs import log, say
from procsched.clock import real_seconds
from procsched.errors import SchedulerStateError
from procsched.scheduler import exits
from procsched.scheduler.driver import CLOSED, CLOSING, NEW, RUNNING, STARTING
from procsched.scheduler.gate import Gate
from procsched.scheduler.waiting import WaitingDriver
from procsched.workers.base import Ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched.scheduler.attempts import Attempt

UNKILLABLE = 5.0  # seconds after the grace, for a process that the kernel cannot end
MOST_NAMED = 20  # tasks that the log names; the report has them all
POOL_SECONDS = 2.0  # for what has no limit: idle workers to leave, listeners and store to end
# Seconds beyond the time that is left, for all together that does not end at once: idle workers, which are killed then,
# the timer, a store that is not durable, listeners.
BEYOND = 0.5
BRIEFLY = 0.1  # seconds for each of them in any case, and for threads that are known to hang

# Code that runs with none of our locks held, although it is called by code that may hold one.
_LOCK_FREE = {threading.Condition.wait.__code__}
_LOCKING = (
    "procsched.workers",
    "procsched.listeners",
    "procsched.stores",
    "procsched.clock",
    "procsched.ids",
)


class Closing:
    """One shutdown, whoever takes part in it. Its fields are guarded by the driver's lock."""

    def __init__(self, drain: bool, end: float | None) -> None:
        self.drain = drain
        self.end = end  # real steady seconds; None for no limit
        self.started = False  # there is something to end
        self.leader: threading.Thread | None = None  # who does it now
        self.returned: dict[str, None] = {}
        self.gates: list[Gate] = []  # of those who wait for the report
        self.report: ShutdownReport | None = None

    def left(self) -> float | None:
        """Return the seconds left, never negative; None for no limit."""
        return None if self.end is None else max(0.0, self.end - real_seconds())

    def left_beyond(self, since: float) -> float:
        """Return the seconds left for what is ended since `since`, when no run was left; see `BEYOND`."""
        end = since + POOL_SECONDS if self.end is None else max(self.end, since)
        return max(BRIEFLY, end + BEYOND - real_seconds())


class ClosingDriver(WaitingDriver):
    """The driver with its end."""

    _closing: Closing | None = None  # guarded by _lock
    _has_pool = False  # the pool was started, and by this one: it may be another's
    _exiting = False  # the interpreter is exiting
    # It only changes something in a store, and starts no run: nothing of its own is given back.
    _visiting = False

    def close(self, drain: bool, timeout: float | None) -> ShutdownReport:
        """Shut down, or take part in a shutdown that goes on. See the module."""
        if self.holds_lock() or may_hold_lock():
            return self._close_elsewhere(drain, timeout)
        if self.own_call() is not None or self.is_needed_here():
            return self._close_elsewhere(drain, timeout)
        end = None if timeout is None else real_seconds() + timeout
        while True:
            try:
                with self._lock:
                    closing = self._join_locked(drain, end)
                    if closing.report is not None:
                        return closing.report
                    gate = self._seek_locked(closing)
                if gate is None:
                    return self._lead(closing)
            finally:
                try:
                    self._make_way()
                except BaseException:  # a signal handler's, in there
                    self._make_way()
                    raise
            if self.delivery.is_listener_thread():
                return self._report_so_far(closing)  # who leads may be waiting for this very thread
            if not gate.wait(None if end is None else self._longest(closing)):
                return self._report_so_far(closing)

    def _longest(self, closing: Closing) -> float:
        """Return the seconds within which whoever leads is done for certain."""
        with self._lock:
            grace = max((entry.handle.task.grace for entry in self.engine.running.values()), default=0.0)
        stored = 0.0 if self.writer is None else self.writer.close_seconds
        beyond = POOL_SECONDS + BEYOND + 3 * BRIEFLY + stored
        return (closing.left() or 0.0) + grace + UNKILLABLE + beyond

    def _join_locked(self, drain: bool, end: float | None) -> Closing:
        closing = self._closing
        if closing is None:
            closing = self._closing = Closing(drain, end)
        elif closing.report is None:
            if end is not None and (closing.end is None or end < closing.end):
                closing.end = end
            closing.drain = closing.drain and drain
            self._open_idle_gates_locked()  # whoever leads looks at the time again
        return closing

    def _seek_locked(self, closing: Closing) -> Gate | None:
        """Make the calling thread the leader; where there is another one, return a gate to wait at."""
        me = threading.current_thread()
        # Where this very thread leads, a signal handler has interrupted it and would wait for itself.
        if closing.leader is None or closing.leader is me:
            closing.leader = me
            return None
        gate = Gate()
        closing.gates.append(gate)
        return gate

    def _make_way(self) -> None:
        """Lead no longer, if the calling thread does. Who waits finds the report, or goes on where this one left."""
        with self._lock:
            closing = self._closing
            if closing is None or closing.leader is not threading.current_thread():
                return
            for gate in closing.gates:
                gate.open()
            # Only now: where a signal handler raises before this, all of it is done again.
            closing.gates.clear()
            closing.leader = None

    def _close_elsewhere(self, drain: bool, timeout: float | None) -> ShutdownReport:
        thread = threading.Thread(
            target=self.close, args=(drain, timeout), name="procsched-shutdown", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the interpreter is exiting: it calls `end_at_exit` by itself
            say(logging.WARNING, "the shutdown could not be started from here: %s", error)
        return ShutdownReport()

    def _report_so_far(self, closing: Closing) -> ShutdownReport:
        with self._lock:
            return closing.report or self._make_report_locked(closing)

    def _make_report_locked(self, closing: Closing) -> ShutdownReport:
        ended = self.engine.ended_in_closing
        return ShutdownReport(
            finished=tuple(dict.fromkeys(task_id for task_id, killed in ended if not killed)),
            killed=tuple(dict.fromkeys(task_id for task_id, killed in ended if killed)),
            returned=tuple(closing.returned),
        )

    # --- the steps -------------------------------------------------------------------------------------

    def _lead(self, closing: Closing) -> ShutdownReport:
        with self._lock:
            if closing.report is not None:
                return closing.report  # a signal handler came before this, and has done it
            if self._state in (STARTING, RUNNING):
                closing.started = True
            self._state = CLOSING
        self._stop_timing(closing)
        if closing.started:
            self._wait_for_runs(closing)
        forced = self._end_runs(closing)
        self._end_machinery(closing, forced)
        return self._finish(closing)

    def _stop_timing(self, closing: Closing) -> None:
        """Make ready what is due by now, and nothing later; without `drain` give it back at once."""
        with self._lock:
            if not self.engine.closing:
                wall, line = self._look_locked()
                while self.engine.promote(wall, line, sys.maxsize):
                    pass
                self.engine.close(wall, line)
        if self.engine.ready.lent:  # there will be no more
            self._recall()
        with self._lock:
            if not (closing.drain and closing.started):
                self._give_back_locked(closing)
            self._hand_over_locked()

    def _give_back_locked(self, closing: Closing) -> None:
        self._unlend_locked()
        wall, line = self._moment_locked()
        closing.returned.update(dict.fromkeys(self.engine.give_back(wall, line)))

    def _wait_for_runs(self, closing: Closing) -> None:
        """Let what is ready run and wait for what is in flight, until the time is up."""
        self._run_ready()
        while True:
            with self._lock:
                engine = self.engine
                if not closing.drain:
                    self._give_back_locked(closing)
                    self._hand_over_locked()
                if not (engine.running or len(engine.ready) or engine.open_questions):
                    return
                gate = Gate()
                self._idle_gates.append(gate)
            left = closing.left()
            if left == 0.0 or not gate.wait(left):
                with self._lock:
                    if gate in self._idle_gates:
                        self._idle_gates.remove(gate)
                if closing.left() == 0.0:
                    return

    def _run_ready(self) -> None:
        if not self._inline:
            self.pool.pump()
        elif self._threadless:
            while self._pass():  # nothing is promoted any more: this runs what is ready, and settles it
                pass
        else:
            with self._lock:
                self._wake_timer_locked()

    def _end_runs(self, closing: Closing) -> bool:
        """End what still runs, its grace first. Return whether something could not be ended."""
        with self._lock:
            self._give_back_locked(closing)
            self._hand_over_locked()
            found = map(self.engine.killable, self.engine.running.values())
            live: list[Attempt] = [call for call in found if call is not None]  # type: ignore[misc]
        if not live:
            return False
        for call in live:
            self.pool.kill(call, BY_SHUTDOWN)
        if getattr(self.pool, "can_kill", True):
            self._wait_until_ended(live, max(call.grace for call in live) + UNKILLABLE)
        forced = [call for call in live if not call.over]
        for call in forced:
            text = f"{BY_SHUTDOWN}: it could not be ended, and may still go on"
            self.attempt_ended(call, Ending(Outcome.KILLED, text))
        return bool(forced)

    def _wait_until_ended(self, live: list[Attempt], seconds: float) -> None:
        end = real_seconds() + seconds
        while True:
            with self._lock:
                if all(call.over for call in live):
                    return
                gate = Gate()
                self._idle_gates.append(gate)
            if not gate.wait(end - real_seconds()):
                return

    def _end_machinery(self, closing: Closing, forced: bool) -> None:
        """End the pool, the timer, and the threads of listeners and store."""
        since = real_seconds()
        if self._has_pool:
            self._guarded("pool", self.pool.shutdown, BRIEFLY if forced else closing.left_beyond(since))
        if self._unwatch is not None:
            self._guarded("clock", self._unwatch)
        with self._lock:
            self._timer_stop = True
            self._wake_timer_locked()
            self._changed.notify_all()
        timer = self._timer
        if timer is not None and timer is not threading.current_thread():
            # In a schedule of the user's it was waited for as long as there was time.
            timer.join(BRIEFLY if self.timer_in_user_code() else closing.left_beyond(since))
        with self._lock:
            wall, line = self._moment_locked()
            closing.returned.update(dict.fromkeys(self.engine.abandon_questions(wall, line)))
            self._give_back_locked(closing)  # a schedule may have answered since the last time
            self.engine.dismiss_waiters("shutdown")
            self._hand_over_locked()
        self._log_problems()
        if self.writer is not None:  # first: the listeners hear of what it could not write
            seconds = max(closing.left_beyond(since), self.writer.close_seconds)
            self._guarded("store", self.writer.close, seconds)
        self._guarded("listeners", self.delivery.close, closing.left_beyond(since))

    def _guarded(self, what: str, action: object, *args: object) -> None:
        """Take a step of the end; what it raises must not keep the others from being taken."""
        try:
            action(*args)  # type: ignore[operator]
        except Exception as error:
            say(logging.ERROR, "the shutdown of the %s failed", what, error=error)
            self._note(f"the shutdown of the {what} failed: {describe(error)}")

    def _finish(self, closing: Closing) -> ShutdownReport:
        with self._lock:
            self._state = CLOSED
            if closing.report is not None:
                return closing.report  # likewise
            # Those who came while store and listeners were closing; who comes now is refused.
            self.engine.dismiss_waiters("shutdown")
            self._hand_over_locked()
            exits.release(self)
            self._open_idle_gates_locked()
            report = closing.report = self._make_report_locked(closing)
        when = " at the interpreter's exit" if self._exiting else ""
        for what, ids in (("ended runs of", report.killed), ("gave back the due", report.returned)):
            if ids and not self._visiting and log.isEnabledFor(logging.WARNING):
                text = "the shutdown%s %s tasks %s%s"
                rest = f" and {len(ids) - MOST_NAMED} more" if len(ids) > MOST_NAMED else ""
                self._inside.call(say, logging.WARNING, text, when, what, ", ".join(ids[:MOST_NAMED]), rest)
        return report

    # --- for `exits` -----------------------------------------------------------------------------------

    def end_at_exit(self) -> None:
        """Shut down at the interpreter's exit: wait for nothing."""
        self._exiting = True
        try:
            self.close(False, 0.0)
        except Exception as error:  # atexit would print it and go on, without our name in it
            say(logging.ERROR, "the shutdown at the interpreter's exit failed", error=error)

    def after_fork(self) -> None:
        """In a fork of the process: what has been started is the parent's, and so is what was in the midst of a change.

        One that was not started yet is the child's own; its locks are new there.
        """
        torn = not self._lock.acquire(blocking=False)
        self._forked = self._forked or torn or self._state not in (NEW, CLOSED)
        exits.release(self)
        self._renew_lock()
        self.delivery.after_fork()
        for part in (self.writer, self.pool):
            renew = getattr(part, "after_fork", None)
            if renew is not None:
                renew()
        self._holds_pool = getattr(self.pool, "holds_lock", self._holds_pool)
        self._holds_writer = getattr(self.writer, "holds_lock", self._holds_writer)

    def refuse_fork(self) -> None:
        """Refuse to work in a forked child: threads and workers are the parent's.

        Raises:
            SchedulerStateError: this is a forked child.
        """
        if self._forked:
            raise SchedulerStateError(
                "this scheduler was started, had its store open, or was just being used, when this process was forked, "
                "and belongs to the parent process: make and start a Scheduler in the child, after the fork"
            )


def may_hold_lock() -> bool:
    """Return whether the calling thread may hold a lock of ours, because a signal handler interrupted us.

    The frames say so: beneath the handler's there is one of a module with a lock, and it does not merely
    wait, nor run an action.
    """
    if threading.current_thread() is not threading.main_thread():
        return False  # signal handlers run in the main thread only
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code in _LOCK_FREE or frame.f_code.co_name == "_outcome_of":
            return False
        if frame.f_globals.get("__name__", "").startswith(_LOCKING):
            return True
        frame = frame.f_back
    return False
