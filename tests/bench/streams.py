"""The pools with one face for the cases that count calls: submit, take the result, map, close."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from tests.bench.actions import noop, pid_after

PATIENCE = 120.0  # seconds that a result may take; only a hang comes near


class Stream:
    """A pool of two workers. `submit` gives a token, `take` its result."""

    limits = True  # whether a call can have a time limit

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        """Start a call."""
        raise NotImplementedError

    def limited(self, seconds: float) -> Callable[..., Any]:
        """Return a `submit` whose calls have a time limit."""
        raise NotImplementedError

    def take(self, token: Any) -> Any:
        """Return a result."""
        return token.result()

    def map(self, function: Callable[[Any], Any], values: Iterable[Any], chunk: int) -> list[Any]:
        """Return the results for `values`."""
        raise NotImplementedError

    def close(self) -> None:
        """End the pool."""

    def warm(self) -> None:
        """Have every worker up, and what is imported or built at the first calls done."""
        for token in [self.submit(pid_after, 0.05) for _ in range(4 * self.workers)]:
            self.take(token)
        for token in [self.submit(noop) for _ in range(200)]:
            self.take(token)


class Futures(Stream):
    """Those with `submit` and `map` of `concurrent.futures`."""

    pool: Any

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.pool.submit(function, *args)

    def map(self, function: Callable[[Any], Any], values: Iterable[Any], chunk: int) -> list[Any]:
        return list(self.pool.map(function, values, chunksize=chunk))

    def close(self) -> None:
        self.pool.shutdown()


class Procsched(Futures):
    """`procsched.ProcessExecutor`; with `spin` in its optional mode for callers that wait beside a busy thread."""

    def __init__(self, workers: int, *, spin: bool = False) -> None:
        from procsched import ProcessExecutor

        super().__init__(workers)
        self.pool = ProcessExecutor(workers, spin=200e-6 if spin else 0.0)

    def limited(self, seconds: float) -> Callable[..., Any]:
        submit: Callable[..., Any] = self.pool.options(timeout=seconds).submit
        return submit


class Ppe(Futures):
    """`concurrent.futures.ProcessPoolExecutor`, by fork."""

    limits = False

    def __init__(self, workers: int) -> None:
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        super().__init__(workers)
        self.pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"))


class Loky(Futures):
    """`loky.get_reusable_executor`."""

    limits = False

    def __init__(self, workers: int) -> None:
        import loky

        super().__init__(workers)
        self.pool = loky.get_reusable_executor(max_workers=workers, timeout=None)


class Deadpool(Futures):
    """`deadpool.Deadpool`, by forkserver as is its default."""

    def __init__(self, workers: int) -> None:
        import deadpool

        super().__init__(workers)
        self.pool = deadpool.Deadpool(max_workers=workers)

    def limited(self, seconds: float) -> Callable[..., Any]:
        return functools.partial(self.pool.submit, deadpool_timeout=seconds)

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)


class Pebble(Futures):
    """`pebble.ProcessPool`, by fork."""

    def __init__(self, workers: int) -> None:
        import pebble

        super().__init__(workers)
        self.pool = pebble.ProcessPool(max_workers=workers)

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.pool.schedule(function, args=args)

    def limited(self, seconds: float) -> Callable[..., Any]:
        return lambda function, *args: self.pool.schedule(function, args=args, timeout=seconds)

    def map(self, function: Callable[[Any], Any], values: Iterable[Any], chunk: int) -> list[Any]:
        return list(self.pool.map(function, values, chunksize=chunk).result())

    def close(self) -> None:
        self.pool.stop()
        self.pool.join()


class MpPool(Stream):
    """`multiprocessing.Pool`, by fork."""

    limits = False

    def __init__(self, workers: int) -> None:
        import multiprocessing

        super().__init__(workers)
        self.pool: Any = multiprocessing.get_context("fork").Pool(workers)

    def submit(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.pool.apply_async(function, args)

    def take(self, token: Any) -> Any:
        return token.get(PATIENCE)

    def map(self, function: Callable[[Any], Any], values: Iterable[Any], chunk: int) -> list[Any]:
        return list(self.pool.map(function, values, chunksize=chunk))

    def close(self) -> None:
        self.pool.terminate()
        self.pool.join()


class Billiard(MpPool):
    """`billiard.Pool`, which counts limits in whole seconds."""

    limits = True

    def __init__(self, workers: int) -> None:
        import billiard

        Stream.__init__(self, workers)
        self.pool = billiard.Pool(workers)

    def limited(self, seconds: float) -> Callable[..., Any]:
        return lambda function, *args: self.pool.apply_async(function, args, timeout=seconds)


class Mpire(MpPool):
    """`mpire.WorkerPool`, whose limits raise in the task and end no process."""

    limits = True

    def __init__(self, workers: int) -> None:
        import mpire

        Stream.__init__(self, workers)
        self.pool = mpire.WorkerPool(workers)

    def limited(self, seconds: float) -> Callable[..., Any]:
        return lambda function, *args: self.pool.apply_async(function, args, task_timeout=seconds)

    def map(self, function: Callable[[Any], Any], values: Iterable[Any], chunk: int) -> list[Any]:
        return list(self.pool.map(function, values, chunk_size=chunk))


STREAMS: dict[str, Callable[[int], Stream]] = {
    "procsched": Procsched,
    "billiard": Billiard,
    "mp.Pool": MpPool,
    "pebble": Pebble,
    "ppe": Ppe,
    "deadpool": Deadpool,
    "loky": Loky,
    "mpire": Mpire,
    "procsched-spin": functools.partial(Procsched, spin=True),
}
PEERS = ("billiard", "mp.Pool", "pebble", "ppe", "deadpool", "loky", "mpire")
