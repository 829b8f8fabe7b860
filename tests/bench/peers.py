"""The pools with one face, for the cases that end calls: submit with a limit, wait for the end, close."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.bench.actions import SLOT_BYTES, noop

OK, TIMED_OUT, CRASHED, FAILED = "ok", "timed out", "crashed", "failed"
PATIENCE = 60.0  # seconds that a call may take to end; only a hang of the peer comes near


class Peer:
    """What a case needs of a pool.

    `wait` returns how the call ended, its value, and when its limit began to count: steady seconds, or None where
    the peer does not say.
    """

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        """Start a call; return its token."""
        raise NotImplementedError

    def wait(self, token: Any) -> tuple[str, Any, float | None]:
        """Wait for the end of a call."""
        raise NotImplementedError

    def close(self) -> None:
        """End the pool."""

    def warm(self, calls: int) -> None:
        """Have as many calls done as it takes for every worker to be up."""
        for token in [self.submit(time.sleep, 0.02) for _ in range(calls)] + [self.submit(noop)]:
            self.wait(token)


class Executor(Peer):
    """`procsched.ProcessExecutor`."""

    def __init__(self, workers: int) -> None:
        from procsched import ProcessExecutor

        self.executor = ProcessExecutor(workers)
        self.views: dict[float | None, Any] = {}

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        view = self.views.get(timeout)
        if view is None:
            view = self.views[timeout] = self.executor.options(timeout=timeout)
        return view.submit(function, *args)

    def wait(self, token: Any) -> tuple[str, Any, float | None]:
        return from_record(token.wait_record(PATIENCE))

    def close(self) -> None:
        self.executor.shutdown()


class Scheduled(Peer):
    """`procsched.Scheduler`: each call is a task that is due at once, its end what `wait` returns."""

    def __init__(self, workers: int) -> None:
        from procsched import Scheduler

        self.scheduler = Scheduler(workers)
        self.scheduler.start()

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        return self.scheduler.schedule_after(function, 0.0, args=args, timeout=timeout)

    def wait(self, token: Any) -> tuple[str, Any, float | None]:
        return from_record(self.scheduler.wait(token, PATIENCE))

    def close(self) -> None:
        self.scheduler.shutdown(drain=False, timeout=5.0)


def from_record(record: Any) -> tuple[str, Any, float | None]:
    """Return what `Peer.wait` returns. The record is read after the moment that is measured."""
    how = {"succeeded": OK, "timed_out": TIMED_OUT, "crashed": CRASHED}.get(record.outcome.value, FAILED)
    began = record.started_at - time.time() + time.monotonic()
    return how, record.result if how == OK else None, began


class Futures(Peer):
    """Pools that give `concurrent.futures.Future`s."""

    timeouts: tuple[type[BaseException], ...] = (TimeoutError,)
    crashes: tuple[type[BaseException], ...] = ()

    def wait(self, token: Any) -> tuple[str, Any, float | None]:
        error = token.exception(PATIENCE)
        if error is None:
            return OK, token.result(), None
        if isinstance(error, self.crashes):
            return CRASHED, None, None
        return (TIMED_OUT if isinstance(error, self.timeouts) else FAILED), None, None


class Pebble(Futures):
    """`pebble.ProcessPool`, by fork; with `poll` in place of the 100 ms at which it looks."""

    def __init__(self, workers: int, poll: float | None = None) -> None:
        import pebble

        if poll is not None:
            pebble.CONSTS.sleep_unit = poll
        self.crashes = (pebble.ProcessExpired,)
        self.pool = pebble.ProcessPool(max_workers=workers)

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        return self.pool.schedule(function, args=args, timeout=timeout)

    def close(self) -> None:
        self.pool.stop()
        self.pool.join()


class Deadpool(Futures):
    """`deadpool.Deadpool`, by forkserver as is its default."""

    def __init__(self, workers: int) -> None:
        import deadpool

        self.timeouts = (deadpool.TimeoutError, TimeoutError)
        self.crashes = (deadpool.ProcessError,)
        self.pool = deadpool.Deadpool(max_workers=workers)

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        return self.pool.submit(function, *args, deadpool_timeout=timeout)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


class ByHand(Futures):
    """As people write it: a thread for each slot that forks a process for each call, polls its pipe, and kills it."""

    class Crash(Exception):
        """The process ended without an answer."""

    crashes = (Crash,)

    def __init__(self, workers: int) -> None:
        self.calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.threads = [threading.Thread(target=self.serve, daemon=True) for _ in range(workers)]
        for thread in self.threads:
            thread.start()

    def submit(self, function: Callable[..., Any], *args: Any, timeout: float | None = None) -> Any:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.calls.put((future, function, args, timeout))
        return future

    def serve(self) -> None:
        """Be the thread of a slot."""
        import multiprocessing

        context = multiprocessing.get_context("fork")
        while (call := self.calls.get()) is not None:
            future, function, args, timeout = call
            reader, writer = context.Pipe(duplex=False)
            process = context.Process(target=_answer, args=(writer, function, args), daemon=True)
            process.start()
            future.began = time.monotonic()  # type: ignore[attr-defined]
            writer.close()
            try:
                if not reader.poll(timeout):
                    process.kill()
                    process.join()
                    future.set_exception(TimeoutError())
                else:
                    value = reader.recv()
                    process.join()
                    future.set_result(value)
            except EOFError:
                process.join()
                future.set_exception(self.Crash(process.exitcode))
            reader.close()

    def wait(self, token: Any) -> tuple[str, Any, float | None]:
        how, value, _ = super().wait(token)
        return how, value, token.began

    def close(self) -> None:
        for _ in self.threads:
            self.calls.put(None)


def _answer(writer: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    writer.send(function(*args))


POOLS: dict[str, Callable[[int], Peer]] = {
    "procsched": Executor,
    "procsched-scheduler": Scheduled,
    "pebble": Pebble,
    "pebble-2ms": functools.partial(Pebble, poll=0.002),
    "deadpool": Deadpool,
    "by hand": ByHand,
}


class Board:
    """A file in memory into which each job writes its pid and when it began: `actions.note`."""

    def __init__(self, slots: int) -> None:
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.file = tempfile.NamedTemporaryFile(dir=folder, prefix="bench-")  # noqa: SIM115
        self.file.truncate(slots * SLOT_BYTES)
        self.path = self.file.name

    def read(self, slot: int) -> tuple[int, float] | None:
        """Return pid and steady time of a job, or None while it has not begun."""
        line = os.pread(self.file.fileno(), SLOT_BYTES, slot * SLOT_BYTES).split()
        return (int(line[0]), float(line[1])) if len(line) == 2 and line[0].isdigit() else None

    def wait(self, slot: int, seconds: float) -> tuple[int, float] | None:
        """Wait until a job has begun; None when it has not within `seconds`."""
        end = time.monotonic() + seconds
        while (found := self.read(slot)) is None and time.monotonic() < end:
            time.sleep(0.001)
        return found
