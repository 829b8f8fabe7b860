"""The parent's side of a run's limits: what its worker is told, what is looked at while it runs, and the judgement.

Nothing is looked at while no run with such limits is alive. While one is, the time until the next look follows from how
far the run is from its limit, and how fast it could get there.
"""

from __future__ import annotations

import math
import os
import pickle
import time

from procsched import _system
from procsched._core import limits as words
from procsched._core import wire
from procsched._core.models import Outcome
from procsched.child.protocol import RESIDENT_BEFORE, STARTED, USED_BEFORE
from procsched.workers.loop import Alarm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._core.limits import Limits
    from procsched.workers.base import Call, Ending
    from procsched.workers.process import Worker

# Seconds between two looks: at least, so that a run just below its limit does not keep the parent busy; and at most
# where memory is limited, or processes are, whose number nothing bounds.
LEAST_WAIT = 0.005
MEMORY_WAIT = 0.1
PROCESSES_WAIT = 0.02
FASTEST = 4 << 30  # bytes that a run touches in a second, at most, as far as is assumed
CPU_SLACK = 0.1  # seconds: the kernel counts in ticks, and looks at its own limit at one


class Watch(Alarm):
    """Holds the limits of the run that its worker is in.

    Attributes:
        call: that run; None while there are none. This and the next are changed with the pool's lock.
        limits: what it may use.
        exceeded: what `record.limit` says, once it has used more.
        cpu, peak: seconds and bytes that it was seen to use.
    """

    __slots__ = ("call", "cpu", "exceeded", "limits", "listed", "peak", "worker")

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker
        self.call: Call | None = None
        self.limits: Limits
        self.exceeded: str | None = None
        self.cpu, self.peak = 0.0, 0
        self.listed = False  # among the alarms of the loop

    def begin_locked(self, call: Call, limits: Limits) -> None:
        """Hold the limits of a call that is about to be sent; tell the worker of them."""
        self.call, self.limits, self.exceeded = call, limits, None
        self.cpu, self.peak = 0.0, 0
        worker = self.worker
        worker.output.written = 0
        named = {
            name: words.words_of(name, value)
            for name in ("memory", "open_files", "file_size")
            if (value := getattr(limits, name)) is not None
        }
        told = (limits.cpu_seconds, limits.open_files, limits.file_size, limits.result, named)
        worker.out.extend(map(memoryview, wire.encode(wire.LIMITS, call.number, pickle.dumps(told, 5))))
        if limits.memory is limits.processes is limits.cpu_seconds is None or not _system.offers("proc"):
            self.alarm = math.inf
            return
        self.alarm = time.monotonic() + self._wait(0, 0.0)
        if self.listed:
            worker.pool.loop.hurry(self.alarm)
        else:
            self.listed = True
            worker.pool.loop.call_soon(self._enlist)

    def end(self) -> None:
        """The run is over. From any thread."""
        self.call = None
        self.alarm = math.inf

    def _enlist(self) -> None:
        loop = self.worker.pool.loop
        loop.alarms.add(self)
        loop.hurry(self.alarm)

    def _wait(self, memory: int, cpu: float) -> float:
        """Return the seconds until the next look at a run that has used so much."""
        limits = self.limits
        waits = [math.inf]
        if limits.memory is not None:
            waits.append(min(MEMORY_WAIT, (limits.memory - memory) / FASTEST))
        if limits.cpu_seconds is not None:
            waits.append((limits.cpu_seconds - cpu) / (os.cpu_count() or 1))
        if limits.processes is not None:
            waits.append(PROCESSES_WAIT)
        return max(LEAST_WAIT, min(waits))

    def on_alarm(self, now: float) -> None:
        """Look at what the run uses. On the I/O thread."""
        self.alarm = math.inf
        worker, call = self.worker, self.call
        if call is None or worker.call is not call or not worker.is_at_work() or worker.pid is None:
            return
        if worker.page[STARTED] < call.number:  # it has not come so far, and what it uses is not this run's
            self.alarm = now + LEAST_WAIT
            worker.pool.loop.hurry(self.alarm)
            return
        memory, verdict = self._look(worker.pid)
        if verdict is None:
            self.alarm = now + self._wait(memory, self.cpu)
            worker.pool.loop.hurry(self.alarm)
        else:
            worker.exceed(call, verdict)

    def _look(self, pid: int) -> tuple[int, tuple[Outcome, str] | None]:
        """Return the bytes that the run has added to its worker's memory, and the verdict where it is over a limit."""
        limits = self.limits
        usage = _system.tree_usage(pid)
        before = self.worker.times[USED_BEFORE]
        if 0.0 <= before <= usage.cpu_seconds:
            self.cpu = max(self.cpu, usage.cpu_seconds - before)
        self.peak = max(self.peak, usage.resident)
        memory = usage.resident - self._resident_before()
        if limits.memory is not None:
            if memory > limits.memory and usage.processes > 1:
                # What a fork shares with its parent was counted for both.
                memory = _system.tree_proportional(pid) - self._resident_before()
            if memory > limits.memory:
                return memory, self._exceed("memory", memory)
        if limits.cpu_seconds is not None and self.cpu > limits.cpu_seconds:
            return memory, self._exceed("cpu_seconds", self.cpu)
        if limits.processes is not None and usage.processes > limits.processes:
            return memory, self._exceed("processes", usage.processes)
        return memory, None

    def _resident_before(self) -> int:
        return min(self.worker.page[RESIDENT_BEFORE], 1 << 62)

    def _exceed(self, name: str, used: float | None) -> tuple[Outcome, str]:
        value = getattr(self.limits, name)
        self.exceeded = words.label(name, value)
        return words.exceeded(name, value, used)

    def on_output(self) -> None:
        """The run has written something to stdout or stderr."""
        call, most = self.call, self.limits.output if self.call is not None else None
        if call is not None and most is not None and self.worker.output.written > most:
            self.worker.exceed(call, self._exceed("output", self.worker.output.written))

    def judge_locked(self, ending: Ending, flags: int, third: int) -> tuple[Outcome, str] | None:
        """Return the verdict on a run that has come back by itself, or None where it kept to its limits.

        Args:
            ending: with what it has used.
            flags, third: of its answer.
        """
        limits = self.limits
        self.exceeded = None  # what a look has found came too late
        if flags & wire.LARGE and limits.result is not None:
            return self._exceed("result", third)
        if flags & wire.REFUSED and third < len(wire.REFUSED_LIMITS):
            name = wire.REFUSED_LIMITS[third]
            if getattr(limits, name) is not None:
                return self._exceed(name, None)
        if limits.output is not None:
            self.worker.output.read()
            if self.worker.output.written > limits.output:
                return self._exceed("output", self.worker.output.written)
        if (
            limits.cpu_seconds is not None
            and ending.cpu_seconds is not None
            and ending.cpu_seconds > limits.cpu_seconds
        ):
            return self._exceed("cpu_seconds", ending.cpu_seconds)
        memory = (ending.peak_rss or 0) - self._resident_before()
        if limits.memory is not None and memory > limits.memory:
            return self._exceed("memory", memory)
        return None

    def complete(self, ending: Ending) -> None:
        """Put into the ending of a run whose worker is dead what was seen of it, and which limit it exceeded."""
        seconds = self.limits.cpu_seconds
        used = max(ending.cpu_seconds or 0.0, self.cpu)
        if (
            ending.outcome is Outcome.CRASHED
            and ending.signal == "SIGXCPU"
            and seconds is not None
            and used >= seconds - CPU_SLACK
        ):
            ending.outcome, ending.error = self._exceed("cpu_seconds", used)
        if ending.outcome is Outcome.LIMIT_EXCEEDED:
            ending.limit = self.exceeded
        ending.cpu_seconds = used
        ending.peak_rss = max(ending.peak_rss or 0, self.peak) or None
        self.end()

    def close(self) -> None:
        """The worker is gone. On the I/O thread."""
        self.end()
        self.worker.pool.loop.alarms.discard(self)
