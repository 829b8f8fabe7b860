"""One worker as the parent sees it: its states, its deadlines, its end.

    STARTING --ready--> IDLE --call--> BUSY --answer--> IDLE
                                        |--deadline, kill--> ASKED (grace) --> DUMPING (stack) --> DYING
    STARTING --start limit--> FAILING (stack) --> DYING
    any of them --broken pipe--> DYING --reaped, tree ended--> GONE
    IDLE --recycled, shutdown--> LEAVING --reaped--> GONE

What it is sent, and in how far it has begun that, is in `sending.py`; what is heard from it in `hearing.py`; how it is
stopped is here. How a caller listens to it is in `listening.py`.

Who touches what: methods whose names end in `_locked` run in any thread that holds the pool's lock, and write without
blocking. Everything else runs on the pool's I/O thread; where it changes what those read, it does so with the lock.
From the look at what a worker runs until that is signalled, `ProcessPool.reading` is held: else somebody who listens
could book its answer meanwhile, and the signal would hit the next call.
"""

from __future__ import annotations

import math
import os
import signal
import time

from procsched import _system
from procsched._core.models import Outcome
from procsched.child.protocol import (
    ASK_NUMBER,
    ASK_REASON,
    DUMP_SIGNAL,
    REASON_DEADLINE,
    REASON_SOFT,
    SOFT_SIGNAL,
)
from procsched.workers import verdict as verdicts
from procsched.workers.listening import Listener
from procsched.workers.sending import DUMP_LEAD, RUNNING_STATES, Ends, WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched.workers.base import Call
    from procsched.workers.fleet import Fleet
    from procsched.workers.pool import ProcessPool

# Seconds by which we wake too early for a deadline: so long a thread may take to be running again.
WAKE_LEAD = 0.0001
# Bytes of memory up to which we help a process to let go of it: the I/O thread does nothing else then.
LIGHT = 32 << 20
DUMP_WAIT = 0.01  # seconds that a stack is waited for at the deadline, where it has not come by then
START_DUMP_WAIT = 1.0  # the same for a worker that does not get ready: nobody counts the milliseconds of that
# Seconds without a word of it until the process is asked whether it can answer: that is slow.
DUMP_SILENCE = 0.0001
# Seconds after SIGKILL at which the helper is asked about a dead worker that it has not reported.
NUDGE_WAIT = 0.25
DEATH_WAIT = 5.0  # seconds after SIGKILL until a process counts as one that the kernel cannot end
# Seconds after which a deadline is looked at again that an error of ours kept from being enforced.
ALARM_AGAIN = 1.0
_WITH_STACK = (Outcome.TIMED_OUT, Outcome.LIMIT_EXCEEDED)  # of which people want to know where it was


class Worker(Listener):
    """A child process with its handle in the parent."""

    __slots__ = (
        "born_at",
        "direct",
        "dump_end",
        "dump_number",
        "imports",
        "killed_at",
        "light_number",
        "ping",
        "stuck_reported",
    )

    def __init__(self, pool: ProcessPool, fleet: Fleet, number: int, ends: Ends) -> None:
        super().__init__(pool, fleet, number, ends)
        self.born_at = time.monotonic()
        self.direct = False  # whether a SIGKILL through the pid descriptor ends the whole tree
        self.imports = False  # whether it imports modules before it is ready
        self.dump_number = 0  # the run that was asked for its stack ahead of its deadline
        self.dump_end = 0.0  # steady time
        self.light_number = 0  # the run that was found to use little memory ahead of its deadline
        self.stuck_reported = False
        self.killed_at = 0.0  # steady time
        self.ping = 0  # number of the question to the helper why it does not report our end

    def on_alarm(self, now: float) -> None:
        """A time has come that this worker was to be looked at. Where that fails it is tried again."""
        try:
            with self.pool.reading:
                self._on_alarm(now)
        except BaseException:
            self.alarm = now + ALARM_AGAIN
            raise

    def _on_alarm(self, now: float) -> None:
        self.alarm = math.inf
        state = self.state
        if state is WorkerState.BUSY and now >= min(self.soft_at, self.hard_at - DUMP_LEAD):
            self.on_deadline(now)
        elif state is WorkerState.BUSY and self.call is not None and not self.hung_up:
            self.alarm = min(self.soft_at, self._dump_at(self.call))
            self.pool.loop.hurry(self.alarm)
            if self.decoder.in_frame:
                self.on_rest_late(self.call)
        elif self.hung_up and state not in (WorkerState.LEAVING, WorkerState.DYING):
            self.on_mute()
        elif state is WorkerState.ASKED:
            self.dump_or_kill()
        elif state in (WorkerState.DUMPING, WorkerState.FAILING):
            self.on_dump_late(now)
        elif state is WorkerState.LEAVING:
            self.kill()
        elif state is WorkerState.STARTING:
            options = self.pool.options
            given = {"preload=": options.preload, "initializer=": options.initializer}
            slow = " or ".join([name for name, value in given.items() if value]) or "a busy machine"
            failure = (
                f"the worker could not start: not ready within {options.start_timeout} s; "
                f"if {slow} takes longer, give a longer start_timeout="
            )
            if self.pid is None:
                self.fleet.on_helper_silent(failure)
            else:
                self.start_error = (failure, None)
                self.dump_or_kill()
        elif state is WorkerState.DYING:
            self.on_overdue(now)

    def on_deadline(self, now: float) -> None:
        """The soft or the hard limit of the run has come, or is near; what was received whole by now still counts."""
        while self.hard_at - WAKE_LEAD <= now < self.hard_at < self.soft_at:
            time.sleep(0)  # it comes at any moment: let others run, and look again
            now = time.monotonic()
        call = self.settle()
        if call is None:
            return
        if now >= self.hard_at:
            assert call.timeout is not None
            self.stop(call, verdicts.timed_out(call.timeout), REASON_DEADLINE)
            return
        if now >= self.soft_at:
            self.soft_at = math.inf
            self.ask_soft()
        self.alarm = min(self.soft_at, self._dump_at(call))
        if now >= self.alarm:
            self.alarm = min(self.soft_at, self.hard_at - WAKE_LEAD)
            self.ask_stack(call)
            if (_system.resident_bytes(self.pid) or math.inf) <= LIGHT:
                self.light_number = call.number
            if self.output.asked_at >= 0:
                self.watch_side(False)  # it comes in a hundred pieces, and is looked at when it is wanted
        self.pool.loop.hurry(self.alarm)

    def ask_stack(self, call: Call) -> None:
        """Have the run write down where it is, if it can, while it goes on."""
        self.dump_number = call.number
        if self.pid is not None and _system.can_handle(self.pid, DUMP_SIGNAL):
            self.output.mark()
            self.signal(DUMP_SIGNAL)

    def settle(self) -> Call | None:
        """Find out what the worker runs now, and let it begin nothing else; return that, or None where it is idle.

        Whatever it was sent ahead is taken back first, and nothing more is sent until it has been idle. What it has
        begun nevertheless it began after it had answered for the call before, so the answer can be read: who is still
        seen as running then is the one that a signal hits.
        """
        with self.pool.lock:
            self.sealed = True
            self.recall_locked()
        self.read(thorough=True)
        return self.call if self.state is WorkerState.BUSY else None

    def look_at_clock(self, awake: float) -> None:
        """An injected clock was moved: the same as `on_deadline` by that clock."""
        if self.state is not WorkerState.BUSY or min(self.fake_soft, self.fake_hard) > awake:
            return
        with self.pool.reading:
            call = self.settle()
            if call is None:
                return
            if awake >= self.fake_hard:
                assert call.timeout is not None
                self.stop(call, verdicts.timed_out(call.timeout), REASON_DEADLINE)
            elif awake >= self.fake_soft:
                self.fake_soft = math.inf
                self.ask_soft()

    def ask_soft(self) -> None:
        """Raise the soft timeout in the action."""
        assert self.call is not None
        self.page[ASK_REASON] = REASON_SOFT
        self.page[ASK_NUMBER] = self.call.number
        self.signal(SOFT_SIGNAL)

    def stop(self, call: Call, verdict: tuple[Outcome, str], reason: int) -> None:
        """End a run with `verdict`, which wins over whatever comes later: ask, wait the grace, kill."""
        with self.pool.lock:
            if call.verdict is None:
                call.verdict = verdict
            if call.grace > 0:
                self.enter_locked(WorkerState.ASKED)
        if call.grace <= 0:
            self.dump_or_kill()
            return
        if reason == REASON_DEADLINE:
            self.ask_stack(call)  # where it is now, before it begins to clean up
        self.page[ASK_REASON] = reason
        self.page[ASK_NUMBER] = call.number
        self.fleet.ask(self)
        self.alarm = time.monotonic() + call.grace
        self.pool.loop.hurry(self.alarm)

    def is_at_work(self) -> bool:
        """Return whether its run goes on, be it asked to stop."""
        return self.state in (WorkerState.BUSY, WorkerState.ASKED)

    def exceed(self, call: Call, verdict: tuple[Outcome, str]) -> None:
        """End a run that uses more than it may, without a grace: it would use yet more. What came before counts."""
        with self.pool.reading:
            if self.state is WorkerState.ASKED and self.call is call:
                self.kill()  # its end was decided before; the grace is no leave to use more
                return
            if self.settle() is not call:
                return
            with self.pool.lock:
                if call.verdict is None:
                    call.verdict = verdict
            self.ask_stack(call)
            self.dump_or_kill()

    def dump_or_kill(self) -> None:
        """Kill the worker; where it is out of time, or over a limit, let it first write down where it is."""
        call = self.call
        out_of_time = call is not None and call.verdict is not None and call.verdict[0] in _WITH_STACK
        wait = DUMP_WAIT if self.start_error is None else START_DUMP_WAIT
        if out_of_time and call is not None and call.number == self.dump_number:
            self.output.read()
            if self.output.asked_at < 0 or self.output.stack_is_complete:
                self.kill()
                return
            silence = wait
            self.watch_side(True)
        elif (
            (out_of_time or self.start_error is not None)
            and self.pid is not None
            and self.signal(DUMP_SIGNAL)
        ):
            silence = DUMP_SILENCE
        else:
            self.kill()
            return
        with self.pool.lock:
            # One that does not get ready runs nothing, and takes no place from what could run.
            self.enter_locked(WorkerState.DUMPING if self.ready else WorkerState.FAILING)
        now = time.monotonic()
        self.dump_end = now + wait
        self.alarm = now + silence
        self.pool.loop.hurry(self.alarm)

    def on_dump_late(self, now: float) -> None:
        """The stack is not complete: wait for the rest while there is time, unless it is not going to come."""
        self.output.read()
        silent = not self.output.kept and self.pid is not None
        over = now >= self.dump_end or self.output.stack_is_complete
        if over or (silent and not _system.can_handle(self.pid or 0, DUMP_SIGNAL, sent=True)):
            self.kill()
            return
        self.alarm = self.dump_end
        self.pool.loop.hurry(self.alarm)

    def signal(self, signum: int) -> bool:
        """Send a signal to the worker through its pid descriptor; return whether it went."""
        if self.pidfd is None:
            return False
        try:
            _system.signal_process(self.pidfd, signum)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to the worker and its tree; the slot is free from here on."""
        with self.pool.lock:
            if self.state in (WorkerState.DYING, WorkerState.GONE):
                return
            was_running = self.state in RUNNING_STATES
            self.recall_locked()
            self.enter_locked(WorkerState.DYING)
        if self.direct and self.signal(signal.SIGKILL):
            self.pool.went("kill.pidfd")
            self.hasten()
        else:
            self.pool.went("kill.helper")
            self.fleet.kill_by_helper(self)
        self.pool.went("tree.subreaper" if _system.offers("subreaper") else "tree.walk")
        # It is read once it is dead. The ends of its streams would wake us just when it is about to be.
        self.pool.loop.forget(self.sock.fileno())
        self.pool.loop.forget(self.output.fd)
        self.killed_at = time.monotonic()
        self.alarm = self.killed_at + NUDGE_WAIT
        self.pool.loop.hurry(self.alarm)
        self.fleet.on_dying(self, was_running=was_running)
        self.output.prepare()

    def hasten(self) -> None:
        """Have a worker that was sent SIGKILL die the sooner, if it is known to be a matter of milliseconds."""
        light = self.call is not None and self.call.number == self.light_number
        if light and self.pidfd is not None and _system.release_memory(self.pidfd):
            self.pool.went("kill.hastened")

    def leave(self) -> None:
        """Let an idle worker exit by itself, within a second."""
        with self.pool.lock:
            self.leave_locked()

    def leave_locked(self) -> None:
        """Do the same for a caller that holds the pool's lock."""
        if self.state is not WorkerState.IDLE:
            return
        self.enter_locked(WorkerState.LEAVING)
        self.sock.shutdown(1)  # SHUT_WR: it reads the end of the stream
        self.alarm = time.monotonic() + 1.0
        self.pool.loop.hurry(self.alarm)

    def on_overdue(self, now: float) -> None:
        """It was sent SIGKILL, and nobody has reported its end: either the helper is stuck, or this process is."""
        dead = self.is_dead()
        if dead and not self.ping:
            self.ping = self.fleet.ping()
            self.alarm = now + DEATH_WAIT
            self.pool.loop.hurry(self.alarm)
        elif dead and not self.fleet.helper_answered(self.ping):
            self.fleet.on_helper_silent()
        elif now < self.killed_at + DEATH_WAIT:
            self.alarm = self.killed_at + DEATH_WAIT
            self.pool.loop.hurry(self.alarm)
        elif not self.stuck_reported:
            self.stuck_reported = True
            self.fleet.on_unkillable(self)

    def close(self) -> None:
        """Close the parent's ends."""
        loop = self.pool.loop
        for fd in (self.sock.fileno(), self.output.fd, self.pidfd):
            if fd is not None and fd >= 0:
                loop.forget(fd)
        # Who listens goes by the number of the descriptor, which is somebody else's next.
        with self.pool.reading, self.pool.lock:
            self.pool.listened.discard(self)
            self.sock.close()
        self.tokens.close()
        self.parcels.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
        os.close(self.output.fd)
        self.pidfd = None
        if self.watch is not None:
            self.watch.close()
        loop.alarms.discard(self)
        self.page.release()
        self.times.release()
