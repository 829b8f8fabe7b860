"""The fleet of a pool with a sandbox: workers are fresh programs that confine themselves, each for one call.

They are started ahead of need as any others: one that waits is confined, and was sent nothing yet. Everything here runs
on the pool's I/O thread.
"""

from __future__ import annotations

import contextlib
import os
import time

from procsched import _system
from procsched.child.protocol import ANSWERED, ASK_NUMBER, STARTED
from procsched.sandbox.programs import ANSWER, PARENT, REPORT, TASK
from procsched.workers.confined import Confined, Pipes
from procsched.workers.fleet import Fleet
from procsched.workers.loop import READ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched.sandbox.prepare import Prepared
    from procsched.sandbox.uids import Leases
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
                uid = self._leases.take()
                if uid is None:
                    return  # when a worker is gone the next is started
                undo.callback(self._leases.give_back, uid)
            task_read, task_write = _pipe(theirs.callback, undo.callback)
            answer_read, answer_write = _pipe(undo.callback, theirs.callback)
            side_read, side_write = _pipe(undo.callback, theirs.callback)
            given = [task_read, answer_write, side_write]
            report_read = -1
            if self.prepared.program.namespaced:
                report_read, report_write = _pipe(undo.callback, theirs.callback)
                os.set_blocking(report_read, False)
                given.append(report_write)
            for fd in (task_write, answer_read, side_read):
                os.set_blocking(fd, False)
            self._numbers += 1
            page = self.pages.take()
            undo.callback(self.pages.give_back, page)
            pipes = Pipes(task_write, answer_read)
            worker = Confined(self.pool, self, self._numbers, pipes, side_read, page, uid, report_read)
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

    def on_removed(self, worker: Worker) -> None:
        """Its uid can be given to another."""
        assert isinstance(worker, Confined)
        if self._leases is not None and worker.uid is not None:
            self._leases.give_back(worker.uid)

    def release(self) -> None:
        """Let go of the uids as well."""
        super().release()
        if self._leases is not None:
            self._leases.close()
            self._leases = None


def _pipe(reader_undo: Any, writer_undo: Any) -> tuple[int, int]:
    reader, writer = _system.pipe()
    reader_undo(os.close, reader)
    writer_undo(os.close, writer)
    return reader, writer
