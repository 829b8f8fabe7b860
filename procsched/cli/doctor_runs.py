"""What procsched itself keeps on this system: real runs in real workers, hung, orphaned and abandoned."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from procsched.cli import demo_jobs
from procsched.cli.doctor_probes import MissingError, Partly, Probe, milliseconds
from procsched.cli.processes import end_survivors, wait_ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from procsched import ExecutionRecord, Scheduler

TIMEOUT = 0.2  # seconds that a run gets which is to be killed
TRIES = 8  # runs whose stack is looked at: it is waited for half a millisecond, so a busy system may miss one
GRACE = 0.1  # seconds that a run gets to say where it is, where it had not the time for that
STUCK = 0.5  # seconds that this process sits in one C call
BACKSTOP = 0.05  # seconds after the deadline within which a run ends whatever the parent does: the promise
GONE = 1.0  # seconds within which nothing of a killed parent is left: the promise
WATCHED = 1.0  # seconds that idle processes are watched
WAIT = 15.0  # seconds after which a run that should have ended counts as one that has not

_PARENT = """
import sys, time
from procsched import Scheduler
from procsched.cli.doctor_runs import linger
with Scheduler(workers=1) as scheduler:
    scheduler.schedule_after(linger, 0, args=(sys.argv[1],))
    time.sleep(60)
"""


def hang() -> None:
    """Backtrack for ever in the regular expression engine, which is C and holds the interpreter."""
    re.match(r"(a+)+$", "a" * 64 + "!")


def stamp(path: str) -> None:
    """Write the steady time into a file, again and again: the last one is when this process died."""
    with open(path, "r+b", buffering=0) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, struct.pack("d", time.monotonic()), 0)
        while True:
            os.pwrite(descriptor, struct.pack("d", time.monotonic()), 8)


def linger(pid_file: str) -> None:
    """Start a daemon and stay."""
    demo_jobs.start_daemon(pid_file)
    signal.pause()


class Runs:
    """The probes that share one scheduler. Close it with `close`."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.scratch = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="procsched-doctor-"))
        )
        self._scheduler: Scheduler | None = None
        self._broken = False

    def close(self) -> None:
        """End the scheduler and remove the files."""
        self._stack.close()

    def run(
        self, action: Callable[..., object], *args: object, timeout: float | None = None, grace: float = 0.0
    ) -> ExecutionRecord:
        """Run one action now and return its record."""
        if self._scheduler is None:
            from procsched import ProcessPool, Scheduler

            pool = ProcessPool(2, preload=[__name__])
            self._scheduler = self._stack.enter_context(Scheduler(pool=pool))
        self.need_runs()
        task = self._scheduler.schedule_after(action, 0, args=args, timeout=timeout, grace=grace)
        try:
            return self._scheduler.wait(task, timeout=WAIT)
        except TimeoutError as error:
            self._broken = True
            self._scheduler.shutdown(drain=False, timeout=1.0)
            raise MissingError(f"no end within {WAIT:g} s: {error}")

    def need_runs(self) -> None:
        """Raise `MissingError` where no run can start or end: the other probes would only wait."""
        if self._broken:
            raise MissingError("not tried: see the first that failed")

    def try_start(self) -> str:
        """Start the helper and a worker, and get a first result."""
        begun = time.monotonic()
        record = self.run(os.getpid)
        if record.result == os.getpid() or not record.ok:
            self._broken = True
            raise MissingError(f"the first run ended {record.outcome.value}: {record.error}")
        first = milliseconds(begun)
        begun = time.monotonic()
        self.run(os.getpid)
        return f"the first result after {first}, the next after {milliseconds(begun)}"

    def try_kill(self) -> str:
        """Let a loop in C run into its deadline."""
        record = self.run(hang, timeout=TIMEOUT)
        if not record.timed_out or record.signal != "SIGKILL":
            raise MissingError(f"it ended {record.outcome.value}: {record.error}")
        return f"a hung loop in C was dead {(record.duration - TIMEOUT) * 1e3:.1f} ms after its deadline"

    def try_stack(self) -> str:
        """Look where it hung; and where some records do not say, whether a grace helps."""
        named = self._count_stacks(0.0)
        if named == TRIES:
            return f"{named} of {TRIES} records name the function that hung"
        asked = self._count_stacks(GRACE)
        if not asked and not named:
            raise MissingError(f"none of {2 * TRIES} records says where its run hung")
        return Partly(
            f"{named} of {TRIES} records name the function that hung, for this system is busy; "
            f"{asked} of {TRIES} with grace={GRACE}"
        )

    def _count_stacks(self, grace: float) -> int:
        records = [self.run(hang, timeout=TIMEOUT / 2, grace=grace) for _ in range(TRIES)]
        return sum("in hang" in (record.stack or "") for record in records)

    def try_usage(self) -> str:
        """Look what an attempt has used."""
        record = self.run(sum, range(3_000_000))
        if record.cpu_seconds is None or record.peak_rss is None:
            raise MissingError(f"CPU {record.cpu_seconds}, peak memory {record.peak_rss}")
        return f"{record.cpu_seconds * 1e3:.1f} ms of CPU, {record.peak_rss / 1e6:.1f} MB at most"

    def try_tree(self) -> str:
        """Let a run return that has left a daemon behind."""
        pid_file = self.scratch / "daemon"
        record = self.run(demo_jobs.start_daemon, str(pid_file))
        if not record.ok:
            raise MissingError(f"the run ended {record.outcome.value}: {record.error}")
        begun = time.monotonic()
        alive = wait_ended([int(pid_file.read_text(encoding="ascii"))], GONE)
        if alive:
            end_survivors(alive)
            raise MissingError("the daemon lives on")
        return f"a daemon that a run had left behind was gone {milliseconds(begun)} after the record"

    def try_backstop(self) -> str:
        """Sit in one C call that holds the interpreter, while the deadline of a run passes."""
        import ctypes

        path = self.scratch / "stamps"
        path.write_bytes(bytes(16))
        self.run(os.getpid)  # a worker is ready: the next run starts at once
        assert self._scheduler is not None
        task = self._scheduler.schedule_after(stamp, 0, args=(str(path),), timeout=TIMEOUT)
        end = time.monotonic() + WAIT
        while not path.read_bytes()[8:].strip(b"\0") and time.monotonic() < end:
            time.sleep(0.001)
        ctypes.PyDLL(None).usleep(int(STUCK * 1e6))
        record = self._scheduler.wait(task, timeout=WAIT)
        if not record.timed_out:
            raise MissingError(f"it ended {record.outcome.value}: {record.error}")
        first, last = struct.unpack("dd", path.read_bytes())
        late = last - first - TIMEOUT
        if late > BACKSTOP:
            raise MissingError(f"the run went on until {late * 1e3:.0f} ms after its deadline")
        return f"with this process stuck for {STUCK:g} s, a run ended {max(0.0, late) * 1e3:.1f} ms after its deadline"

    def try_abandoned(self) -> str:
        """Kill a program that has a scheduler, a worker and a daemon below it."""
        self.need_runs()
        pid_file = self.scratch / "abandoned"
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}
        program = subprocess.Popen([sys.executable, "-c", _PARENT, str(pid_file)], env=environ)
        try:
            end = time.monotonic() + WAIT
            while not pid_file.exists() and program.poll() is None and time.monotonic() < end:
                time.sleep(0.001)
            below = {child.pid for child in psutil.Process(program.pid).children(recursive=True)}
            below.add(int(pid_file.read_text(encoding="ascii")))
        finally:
            program.kill()
            begun = time.monotonic()
            program.wait()
        alive = wait_ended(below, GONE)
        if alive:
            end_survivors(alive)
            raise MissingError(f"{len(alive)} of {len(below)} processes lived on")
        return f"{len(below)} processes were gone {milliseconds(begun)} after SIGKILL to their parent"

    def try_idle(self) -> str:
        """Count how often this process and those below it wake up while there is nothing to do."""
        self.run(os.getpid)
        me = psutil.Process()
        pids = [me.pid, *(child.pid for child in me.children(recursive=True))]
        time.sleep(WATCHED / 2)  # what the run left to do is done by then
        before = switches(pids)
        time.sleep(WATCHED)
        woken = switches(pids) - before - 1  # one is this very sleep
        if woken > 0:
            raise MissingError(f"{woken} wake-ups in {WATCHED:g} s in {len(pids)} processes")
        return f"no wake-up in {WATCHED:g} s in {len(pids)} processes"

    def probes(self) -> tuple[Probe, ...]:
        """Return the probes in the order in which they are to be tried."""
        return (
            Probe("start", "a worker is ready before it is needed", "no run can start", self.try_start),
            Probe(
                "idle",
                "nothing to do costs nothing: no wake-up in any process",
                "an idle scheduler wakes up now and then",
                self.try_idle,
            ),
            Probe(
                "kill at the deadline",
                "a run is ended at its deadline, whatever it does",
                "a hung run keeps its worker",
                self.try_kill,
            ),
            Probe(
                "stack of what hung",
                "record.stack says where the code was when its time ran out",
                "record.stack is None after a timeout",
                self.try_stack,
            ),
            Probe(
                "usage of an attempt",
                "record.cpu_seconds and record.peak_rss",
                "one of the two is None",
                self.try_usage,
            ),
            Probe(
                "kill of the tree",
                "what a run started ends with the run, however it ended",
                "daemons may outlive the run that started them",
                self.try_tree,
            ),
            Probe(
                "backstop",
                "a run ends within 50 ms of its deadline also while the parent is stuck",
                "while the parent is stuck or stopped, its deadlines wait for it",
                self.try_backstop,
            ),
            Probe(
                "death of the parent",
                "one second after kill -9 of your program nothing of it is left",
                "workers, or what they started, may live on",
                self.try_abandoned,
            ),
        )


def switches(pids: list[int]) -> int:
    """Return how often all threads of these processes have been given a CPU, as far as the kernel counts it."""
    total = 0
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            for line in status.read_text(encoding="ascii", errors="replace").splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
    return total
