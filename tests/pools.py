"""What the tests of the process pool share: an executor that counts endings, gates, scripts as parents.

`Bench` is an executor whose every attempt is counted: leaving it fails the test if one ended twice or never.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from procsched import ExecutionRecord, Outcome, ProcessExecutor, _system
from procsched.future import ProcessFuture
from procsched.workers.loop import Loop
from tests import faults, support

ROOT = Path(__file__).resolve().parent.parent


class Bench(support.Scratch):
    """A `ProcessExecutor` with helpers, for one test."""

    def __init__(self, directory: Path, workers: int = 2, **options: Any) -> None:
        super().__init__(directory)
        self.workers = workers
        options.setdefault("preload", ("tests.faults",))  # or else a short limit ends in their import
        self.executor = ProcessExecutor(workers, **options)
        self.core = self.executor._core
        self.endings: collections.Counter[tuple[int, int]] = collections.Counter()
        self._keep: list[Any] = []  # so that no id is used twice
        heard = self.core.on_ended

        def count(item: Any, ending: Any) -> None:
            self._keep.append(item)
            self.endings[id(item), item.attempt] += 1
            heard(item, ending)

        self.core.on_ended = count  # type: ignore[method-assign]

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.executor.kill_workers()
        self.executor.shutdown()
        if kind is None:
            assert set(self.endings.values()) <= {1}, "an attempt has ended more than once"
            assert not self.core.open, "a call has not ended, or has ended twice"
        self._keep.clear()  # `count` keeps this object, and the executor's finalizer keeps `count`

    def submit(self, function: Callable[..., Any], *args: Any, **options: Any) -> ProcessFuture:
        """Submit with options of the call given by keyword."""
        return self.executor.options(**options).submit(function, *args)

    def forget(self) -> None:
        """Keep nothing of the calls so far; none may be going on."""
        assert set(self.endings.values()) <= {1}, "an attempt has ended more than once"
        self.endings.clear()
        self._keep.clear()

    def counters(self) -> dict[str, int]:
        return self.core.pool.stats()[1]

    def pids(self) -> list[int]:
        """Return the pids of the workers."""
        return [worker.pid for worker in self.core.pool.stats()[0] if worker.pid is not None]

    def ready_pids(self, count: int = 1) -> list[int]:
        """Wait until `count` workers are idle; return the pids of all that are."""

        def idle() -> list[int]:
            workers = self.core.pool.stats()[0]
            if any(worker.state == "starting" for worker in workers):
                return []
            found = [worker.pid for worker in workers if worker.state == "idle" and worker.pid is not None]
            return found if len(found) >= count else []

        return support.eventually(idle, what=f"{count} workers are idle")

    def idle_pair(self) -> int:
        """Have two idle workers; return the pid of the one that has run something.

        A call at a time needs one worker only. The spare is started while that one is busy, and a short call may be
        over before.
        """
        gate, told = self.gate(), self.path()
        held = self.submit(faults.wait_at_gate, gate, told)
        pid = told_pids(told)[0]
        self.ready_pids(1)
        open_gate(gate)
        assert held.result(support.TIMEOUT) == "through"
        self.ready_pids(2)
        return pid

    @contextlib.contextmanager
    def deaf(self) -> Iterator[None]:
        """Keep the pool's I/O thread from hearing anything."""
        with deaf(self.core.pool.loop):
            yield

    @contextlib.contextmanager
    def hung_callback(self) -> Iterator[None]:
        """Keep the callback thread in a done-callback that does not return."""
        inside, go_on = threading.Event(), threading.Event()

        def hold(_future: object) -> None:
            inside.set()
            go_on.wait(support.TIMEOUT * 2)

        try:
            # Of a call that has ended already it would be this thread that calls it.
            self.submit(faults.wait_at_gate, gate := self.gate()).add_done_callback(hold)
            open_gate(gate)
            assert inside.wait(support.TIMEOUT)
            yield
        finally:
            go_on.set()

    @contextlib.contextmanager
    def innocent(self) -> Iterator[ProcessFuture]:
        """Have a call run beside whatever happens inside; it must come out unharmed."""
        gate, told = self.gate(), self.path("innocent")
        future = self.submit(faults.wait_at_gate, gate, told, "unharmed")
        support.wait_for_file(told)
        yield future
        assert not future.done(), future.record
        open_gate(gate)
        assert future.result(support.TIMEOUT) == "unharmed"
        assert [record.outcome for record in future.records] == [Outcome.SUCCEEDED]

    def assert_usable(self) -> None:
        """Show that every slot works: as many calls as there are workers run at the same time."""
        gates = [self.gate() for _ in range(self.workers)]
        told = self.path("usable")
        futures = [self.submit(faults.wait_at_gate, gate, told, gate) for gate in gates]
        support.wait_for_file(told, lines=self.workers)
        for gate in gates:
            open_gate(gate)
        assert [future.result(support.TIMEOUT) for future in futures] == gates


@contextlib.contextmanager
def deaf(loop: Loop) -> Iterator[None]:
    """Keep the I/O thread of a pool from hearing anything; fail where the block lasts until it hears again."""
    inside, go_on, hears = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        if not go_on.wait(support.TIMEOUT):
            hears.set()

    loop.call_soon(hold)
    assert inside.wait(support.TIMEOUT)
    try:
        yield
        assert not hears.is_set(), "this has waited for the I/O thread"
    finally:
        go_on.set()


def open_gate(gate: str) -> None:
    """Let one who waits at the FIFO through; fail if nobody comes."""
    for _ in support.looks(support.TIMEOUT):
        try:
            os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            return
        except OSError as error:
            if error.errno != errno.ENXIO:  # nobody waits there yet
                raise
    raise AssertionError(f"nobody waits at {gate}")


def _live_children(pid: int) -> list[int]:
    """Return them without the servers of the tests."""
    children = [child for child in _system.process_children(pid) if child not in support.servers]
    return [child for child in children if not support.process_gone(child, 0)]


def guard_pid(parent: int = 0) -> int:
    """Return the pid of the guard: the only live child of `parent`, or of this process, that has one itself."""
    return support.eventually(
        lambda: next((child for child in _live_children(parent or os.getpid()) if _live_children(child)), 0),
        what="there is a guard with its helper",
    )


def helper_pid(parent: int = 0) -> int:
    """Return the pid of the helper, the guard's only child. Looked for anew when the guard is just going."""

    def helper() -> int:
        guards = _live_children(parent or os.getpid())
        found = [child for guard in guards for child in _live_children(guard)]
        return found[0] if found else 0

    return support.eventually(helper, what="there is a helper")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def stop(pid: int) -> None:
    """Stop a process, and wait until it is."""
    os.kill(pid, signal.SIGSTOP)
    support.eventually(lambda: is_stopped(pid), what=f"process {pid} is stopped")


def only_record(future: ProcessFuture, outcome: Outcome) -> ExecutionRecord:
    """Return the record of a call that must have exactly one, with this outcome and a readable error."""
    record = future.wait_record(support.TIMEOUT)
    assert len(future.records) == 1
    assert record.outcome is outcome, record
    if outcome is Outcome.SUCCEEDED:
        assert record.error is None
    else:
        assert record.error
        assert len(record.error.splitlines()) == 1
    return record


def assert_reaped(pid: int | None) -> None:
    """Fail unless the process is gone this very moment, not even a zombie."""
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return
    raise AssertionError(f"still there: {support.describe_process(pid)}")


# --- parents that are processes of their own ----------------------------------------------------------------


class Parent:
    """A Python program that uses procsched and may be stopped or killed."""

    def __init__(
        self, directory: Path, source: str, *, arguments: tuple[str, ...] = (), **options: Any
    ) -> None:
        script = directory / "parent.py"
        script.write_text(source, encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def __enter__(self) -> Parent:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.process.kill()
        self.process.wait(support.TIMEOUT)
        for pipe in (self.process.stdout, self.process.stderr):  # what it left may hold the other ends
            if pipe is not None:
                pipe.close()

    def signal(self, signum: int) -> None:
        self.process.send_signal(signum)

    def kill(self) -> None:
        """Kill it with SIGKILL and reap it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(support.TIMEOUT)

    def output(self, timeout: float = 30.0) -> str:
        """Wait for its end, which must be a good one, and return what it printed."""
        out, err = self.process.communicate(timeout=timeout)
        assert self.process.returncode == 0, err
        assert not err, err
        return out


def told_pids(path: str | os.PathLike[str], *, lines: int = 1) -> list[int]:
    """Return the numbers that actions have told in a file, once it has so many lines."""
    return [int(word) for word in support.wait_for_file(path, lines=lines).split()]
