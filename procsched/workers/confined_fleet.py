"""The fleet of a pool with a sandbox: workers are fresh programs that confine themselves, each for one call.

They are started ahead of need as any others: one that waits is confined, and was sent nothing yet. Everything here runs
on the pool's I/O thread.
"""

from __future__ import annotations

import contextlib
import os
import time

from procsched.child.protocol import ANSWERED, ASK_NUMBER, STARTED
from procsched.sandbox.programs import ANSWER, PARENT, REPORT, TASK
from procsched.workers.confined import Confined, Pipes, make_pipe
from procsched.workers.examiner import Examiner, Request
from procsched.workers.fleet import Fleet
from procsched.workers.loop import READ
from procsched.workers.sending import MOST_SPARES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched.sandbox.examining import Findings
    from procsched.sandbox.prepare import Prepared
    from procsched.sandbox.uids import Leases
    from procsched.workers.base import Call, Ending
    from procsched.workers.guard import Guard
    from procsched.workers.pool import ProcessPool
    from procsched.workers.process import Worker

# Where `child/executing.py` puts the pipes.
_NUMBERS: dict[str, str | None] = {TASK: "3", ANSWER: "4", REPORT: "5", PARENT: None}


class ConfinedFleet(Fleet):
    """Starts sandboxed processes.

    Attributes:
        prepared: the sandbox.
    """

    def __init__(self, pool: ProcessPool, guard: Guard | None, prepared: Prepared) -> None:
        super().__init__(pool, guard)
        self.prepared = prepared
        self._modules = None
        self.examiner = Examiner(self)
        self._uids_of_examiners: dict[int, int] = {}  # by their numbers, of those that are not gone
        self._leases: Leases | None = None
        if prepared.policy.run_as is not None:
            from procsched.sandbox.uids import Leases

            self._leases = Leases(prepared.policy.run_as)
        program = prepared.program
        self._arguments = [_NUMBERS.get(argument, argument) for argument in program.arguments]

    def _spawn(self, *, spare: bool) -> None:
        assert self.launcher is not None
        uid = None
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            if self._leases is not None:
                uid = self.lease()
                if uid is None:
                    return  # when a worker is gone the next is started
                undo.callback(self._end_lease, uid)
            task_read, task_write = make_pipe(theirs.callback, undo.callback)
            answer_read, answer_write = make_pipe(undo.callback, theirs.callback)
            side_read, side_write = make_pipe(undo.callback, theirs.callback)
            given = [task_read, answer_write, side_write]
            report_read = -1
            if self.prepared.program.namespaced:
                report_read, report_write = make_pipe(undo.callback, theirs.callback)
                os.set_blocking(report_read, False)
                given.append(report_write)
            for fd in (task_write, answer_read, side_read):
                os.set_blocking(fd, False)
            number = self.next_number()
            page = self.pages.take()
            undo.callback(self.pages.give_back, page)
            pipes = Pipes(task_write, answer_read)
            worker = Confined(self.pool, self, number, pipes, side_read, page, uid, report_read)
            undo.callback(worker.times.release)
            undo.callback(worker.page.release)
            worker.page[ASK_NUMBER] = worker.page[STARTED] = worker.page[ANSWERED] = 0
            program: dict[str, Any] = {
                "arguments": self._arguments,
                "environment": self.prepared.program.environment,
                "nice": self.pool.options.nice,
                "uid": uid,
            }
            self.launcher.spawn(worker.number, given, {"program": program})
            undo.pop_all()
        self._enlist(worker)
        self.loop.watch(answer_read, READ, worker.on_socket)
        self.loop.watch(side_read, READ, worker.on_side)
        self.loop.alarms.add(worker)
        worker.alarm = time.monotonic() + self.pool.options.start_timeout
        self.loop.hurry(worker.alarm)
        worker.send_settings()

    def limit(self, worker: Worker, at: float) -> None:
        """Have the helper kill a worker at steady time `at`, should the parent be stuck then."""
        if self.launcher is not None and worker.call is not None:
            self.launcher.limit(worker.number, at)

    def on_dying(self, worker: Worker, *, was_running: bool) -> None:
        """A worker was sent SIGKILL: its slot is free."""
        super().on_dying(worker, was_running=was_running)
        if was_running:
            # Of a pool of one as well: each run needs a start, and two go side by side.
            self._spares = MOST_SPARES

    # -- what was written is looked into -----------------------------------------------------------------

    def ensure(self, *, wanted: bool = False) -> None:
        """Start workers, unless what others have written waits to be looked into: each may have left megabytes."""
        if len(self.examiner.waiting) <= self.pool.size:
            super().ensure(wanted=wanted)

    def tell(self, worker: Worker, call: Call, ending: Ending, stuck: tuple[int, ...] = ()) -> None:
        """Tell how a call has ended once it is known what it has written."""
        assert isinstance(worker, Confined)
        body = worker.outcome_left()
        output, _stack, ending.output_truncated = worker.output.take()

        def done(found: Findings) -> None:
            told = worker.ending_found(ending, found) if body else ending
            told.output = found.output
            told.given_up = tuple(self.prepared.report.given_up)
            super(ConfinedFleet, self).tell(worker, call, told, stuck)
            if self._closing:
                self._check_empty()
            else:
                self.pool.pump()

        self.examiner.examine(Request(body, output, call.number, done))

    def on_spawn_failed(self, number: int, error: str, traceback: str | None) -> None:
        """The helper could not fork. That there is no examiner is seen by the end of its pipe."""
        if number != self.examiner.number:
            super().on_spawn_failed(number, error, traceback)

    def on_gone(
        self, number: int, status: int, at: float, cpu: float, rss: int, stuck: tuple[int, ...]
    ) -> None:
        """A worker is dead and reaped; or an examiner, which is seen by the end of its pipe as well."""
        self.forget_examiner(number)
        super().on_gone(number, status, at, cpu, rss, stuck)

    def on_helper_lost(self, reason: str, failure: tuple[str, str | None] | None) -> None:
        """The helper has ended, and its workers and the examiner with it."""
        self.examiner.end()
        for number in tuple(self._uids_of_examiners):
            self.forget_examiner(number)
        super().on_helper_lost(reason, failure)

    def _check_empty(self) -> None:
        if not self.examiner.waiting:
            super()._check_empty()

    # -- uids ------------------------------------------------------------------------------------------------

    def lease(self, *, examiner: int = 0) -> int | None:
        """Return a uid that nobody has; None where there is none now, or where none are needed.

        Args:
            examiner: number of the examiner that it is for, which has it until it is gone.
        """
        uid = None if self._leases is None else self._leases.take()
        if uid is not None and examiner:
            self._uids_of_examiners[examiner] = uid
        return uid

    def _end_lease(self, uid: int) -> None:
        if self._leases is not None:
            self._leases.give_back(uid)

    def forget_examiner(self, number: int) -> None:
        """An examiner is gone, or was not started: its uid can be given to another."""
        uid = self._uids_of_examiners.pop(number, None)
        if uid is not None:
            self._end_lease(uid)

    def on_removed(self, worker: Worker) -> None:
        """Its uid can be given to another."""
        assert isinstance(worker, Confined)
        if worker.uid is not None:
            self._end_lease(worker.uid)

    def release(self) -> None:
        """Let go of the uids as well."""
        super().release()
        self.examiner.end()
        if self._leases is not None:
            self._leases.close()
            self._leases = None
