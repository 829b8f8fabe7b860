"""Waiting for runs and for quiet, in real seconds, and where that must be refused."""

from __future__ import annotations

import threading

from procsched._core.entries import PAUSED
from procsched.clock import real_seconds
from procsched.errors import SchedulerStateError
from procsched.scheduler.driver import CLOSED, CLOSING, NEW, RUNNING
from procsched.scheduler.gate import Gate
from procsched.scheduler.inspecting import InspectedDriver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._core.entries import Entry
    from procsched._core.models import ExecutionRecord
    from procsched.scheduler.attempts import Attempt


class WaitingDriver(InspectedDriver):
    """The driver with those who wait for it."""

    def own_call(self) -> Attempt | None:
        """Return the attempt that the calling thread is in, where the pool runs it in this process."""
        current = getattr(self.pool, "current_call", None)
        call: Attempt | None = None if current is None else current()
        return call

    def is_needed_here(self) -> bool:
        """Return whether what the calling thread might wait for needs this very thread to return first."""
        thread = threading.current_thread()
        loop = getattr(self.pool, "loop", None)
        return self.in_user_code() or thread is self._timer or thread is getattr(loop, "thread", None)

    def refuse_here(self, what: str, entry: Entry | None = None) -> None:
        """Refuse to wait where that would wait for itself."""
        if self.delivery.is_listener_thread():
            raise SchedulerStateError(f"{what} must not be called from a listener: it would wait for itself")
        call = self.own_call()
        if call is not None and (entry is None or self._inline or entry is call.entry):
            raise SchedulerStateError(
                f"{what} must not be called from an action of this scheduler: it would wait for itself"
            )
        if self.is_needed_here():
            raise SchedulerStateError(
                f"{what} must not be called from a schedule, nor from a log handler in a thread of this "
                "scheduler: it would wait for itself"
            )

    def wait_for_end(self, entry: Entry, timeout: float | None) -> tuple[ExecutionRecord | None, str]:
        """Wait for the end of the entry's current or next run. Return its record, or why there is none.

        Raises:
            TimeoutError: after `timeout` real seconds.
        """
        gate = Gate()
        with self._lock:
            answer = self.engine.wait_on(entry, gate)
            if answer is None and self._state == CLOSED:
                self.engine.stop_waiting(entry, gate)
                answer = None, "shutdown"
        if answer is not None:
            return answer
        try:
            if not self._real and self._state == RUNNING:
                self._drive()
            if not gate.wait(timeout):
                with self._lock:
                    self.engine.stop_waiting(entry, gate)
                if not gate.wait(0.0):
                    raise TimeoutError(
                        f"the run of task {entry.handle.task.id} did not end within {timeout} s"
                        + self._why_not(entry)
                    )
        except BaseException:
            with self._lock:
                self.engine.stop_waiting(entry, gate)
            raise
        return gate.record, gate.why

    def _refuse_unstarted_locked(self, limit: float | None) -> None:
        """Refuse to wait without a limit for what runs only after a start."""
        if self._state == NEW and limit is None:
            raise SchedulerStateError(
                "the scheduler has not been started, so there is nothing to wait for: call start() before, "
                "enter it as a context manager, or give a timeout"
            )

    def _why_not(self, entry: Entry) -> str:
        """Return why a run cannot have ended, in words, where that is known."""
        if self._state == NEW:
            return ": the scheduler has not been started, call start() before"
        if entry.status is PAUSED and entry.live is None:
            return ": the task is paused, and runs again after resume()"
        return ""

    def wait_until_idle(self, timeout: float | None) -> bool:
        """Wait until nothing is due or in flight, every event is delivered and everything is stored."""
        end = None if timeout is None else real_seconds() + timeout
        while True:
            if not self._wait_until_quiet(end):
                return False
            sequence = self.engine.sequence
            if not self.delivery.wait_idle(end):
                return False
            if self.writer is not None:
                self.writer.flush(None if end is None else max(0.0, end - real_seconds()))
            with self._lock:
                if sequence == self.engine.sequence and self._is_quiet_locked():
                    return True
            if end is not None and real_seconds() >= end:
                return False

    def _is_quiet_locked(self) -> bool:
        if self._state in (NEW, CLOSED):
            # No schedule is asked now, so what a look would ask of one, or the store has left to ask, stays open.
            wall, line = self._moment_locked()
            overdue = self._state == NEW and self.engine.due.is_due(line, wall)
            return not (overdue or self.engine.running or len(self.engine.ready))
        wall, line = self._look_locked()
        self._hand_over_locked()
        return self.engine.is_quiet(wall, line, self._state == RUNNING)

    def _wait_until_quiet(self, end: float | None) -> bool:
        while True:
            # In a shutdown too: it may be waiting for what follows the call that this thread has just run.
            if not self._real and self._state in (RUNNING, CLOSING):
                self._pass()
            gate = Gate()
            with self._lock:
                if self._is_quiet_locked():
                    return True
                self._refuse_unstarted_locked(end)
                self._idle_gates.append(gate)
                blocked = not (self._threadless and self._may_pass_locked())
            left = None if end is None else max(0.0, end - real_seconds())
            opened = gate.wait(left if blocked else 0.0)
            if not opened:
                with self._lock:
                    if gate in self._idle_gates:
                        self._idle_gates.remove(gate)
                if end is not None and real_seconds() >= end:
                    return False
