"""Actions that use executors, processes, threads and event loops of their own: see tests/process/test_nested.py.

Each kind is a generator function: it starts its workers, yields a function that has ``add(1, 2)`` computed by them and
one that has them hang, and ends in good order what it has started when it is left.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from procsched.child.protocol import SOFT_SIGNAL
from tests import support

FOREVER = 3600.0
ADD = "import sys; print(int(sys.argv[1]) + int(sys.argv[2]))"
HANG = "import time; print('up', flush=True); time.sleep(3600)"

Use = Callable[[], Any]
Kind = Callable[[], contextlib.AbstractContextManager[tuple[Use, Use]]]


def add(left: int, right: int) -> int:
    return left + right


def hang() -> None:
    time.sleep(FOREVER)


def add_and_tell(queue: Any) -> None:
    queue.put(add(1, 2))


def _of_executor(executor: Any) -> tuple[Use, Use]:
    return lambda: executor.submit(add, 1, 2).result(), lambda: executor.submit(hang)


@contextlib.contextmanager
def procsched_executor() -> Iterator[tuple[Use, Use]]:
    from procsched import ProcessExecutor

    with ProcessExecutor(2) as executor:
        yield _of_executor(executor)


@contextlib.contextmanager
def procsched_run() -> Iterator[tuple[Use, Use]]:
    from procsched import run, shutdown_shared

    yield (
        lambda: run(add, 1, 2, timeout=FOREVER),
        lambda: threading.Thread(target=run, args=(hang,), daemon=True).start(),
    )
    shutdown_shared()


@contextlib.contextmanager
def procsched_scheduler() -> Iterator[tuple[Use, Use]]:
    from procsched import Scheduler

    with Scheduler(2) as scheduler:
        yield (
            lambda: scheduler.wait(scheduler.schedule_after(add, 0, args=(1, 2))).result,
            lambda: scheduler.schedule_after(hang, 0),
        )


@contextlib.contextmanager
def _futures_processes(method: str) -> Iterator[tuple[Use, Use]]:
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        yield _of_executor(executor)


@contextlib.contextmanager
def futures_threads() -> Iterator[tuple[Use, Use]]:
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        yield _of_executor(executor)


@contextlib.contextmanager
def _processes(method: str) -> Iterator[tuple[Use, Use]]:
    context = multiprocessing.get_context(method)
    started = []

    def start(target: Any, *args: Any) -> Any:
        process = context.Process(target=target, args=args)
        process.start()
        started.append(process)
        return process

    def compute() -> int:
        queue = context.SimpleQueue()
        start(add_and_tell, queue).join()
        value: int = queue.get()
        return value

    yield compute, lambda: start(hang)


@contextlib.contextmanager
def _pool(method: str) -> Iterator[tuple[Use, Use]]:
    with multiprocessing.get_context(method).Pool(2) as pool:
        yield lambda: pool.apply(add, (1, 2)), lambda: pool.apply_async(hang)
        pool.terminate()
        pool.join()


@contextlib.contextmanager
def manager() -> Iterator[tuple[Use, Use]]:
    with multiprocessing.get_context("spawn").Manager() as made:
        values = made.list([1, 2])
        yield lambda: sum(values), lambda: None


@contextlib.contextmanager
def programs() -> Iterator[tuple[Use, Use]]:
    started: list[subprocess.Popen[str]] = []

    def start() -> None:
        process = subprocess.Popen([sys.executable, "-c", HANG], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"

    yield lambda: int(subprocess.check_output([sys.executable, "-c", ADD, "1", "2"])), start


@contextlib.contextmanager
def threads() -> Iterator[tuple[Use, Use]]:
    def compute() -> int:
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(add(1, 2)))
        thread.start()
        thread.join()
        return found[0]

    yield compute, lambda: threading.Thread(target=hang).start()


@contextlib.contextmanager
def event_loop() -> Iterator[tuple[Use, Use]]:
    """An event loop with its own programs, threads and timers."""

    async def compute() -> int:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ADD, "1", "2", stdout=asyncio.subprocess.PIPE
        )
        output, _nothing = await program.communicate()
        async with asyncio.timeout(support.TIMEOUT):
            in_thread = await asyncio.to_thread(add, 1, 2)
        assert int(output) == in_thread
        return in_thread

    up = threading.Event()

    async def stay() -> None:
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", HANG, stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        await program.stdout.readline()
        up.set()
        await asyncio.gather(program.wait(), asyncio.to_thread(hang))

    def start() -> None:
        threading.Thread(target=asyncio.run, args=(stay(),)).start()
        up.wait()

    yield lambda: asyncio.run(compute()), start


def _with_method(make: Any, method: str) -> Kind:
    return lambda: make(method)


KINDS: dict[str, Kind] = {
    "procsched.ProcessExecutor": procsched_executor,
    "procsched.run": procsched_run,
    "procsched.Scheduler": procsched_scheduler,
    "ThreadPoolExecutor": futures_threads,
    "threading": threads,
    "subprocess": programs,
    "asyncio": event_loop,
    "multiprocessing.Manager": manager,
    **{
        f"{name}, {method}": _with_method(make, method)
        for name, make in (
            ("ProcessPoolExecutor", _futures_processes),
            ("multiprocessing.Process", _processes),
            ("multiprocessing.Pool", _pool),
        )
        for method in ("fork", "spawn", "forkserver")
    },
}


def descendants() -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process().children(recursive=True)]


def use(kind: str, path: str, then: str) -> Any:
    """Use one kind; tell all pids below this process while it is up, and go on as `then` says.

    return: end it in good order and return what it computed; leave: return that and end nothing; hang: have it hang,
    and hang oneself.
    """
    manager = KINDS[kind]()
    compute, start_hanging = manager.__enter__()
    value = compute()
    if then != "return":
        start_hanging()
    support.tell(path, os.getpid(), *descendants())
    if then == "return":
        manager.__exit__(None, None, None)
    elif then == "hang":
        time.sleep(FOREVER)
    else:
        kept.append(manager)  # not even closed by losing the last reference
    return value


kept: list[Any] = []


async def use_in_coroutine(path: str, then: str) -> int:
    """An `async def` action that awaits programs, threads and an executor of ours."""
    from procsched import ProcessExecutor

    executor = ProcessExecutor(1)
    loop = asyncio.get_running_loop()
    program = await asyncio.create_subprocess_exec(sys.executable, "-c", HANG, stdout=asyncio.subprocess.PIPE)
    assert program.stdout is not None
    await program.stdout.readline()
    values = await asyncio.gather(
        loop.run_in_executor(executor, add, 1, 2),
        asyncio.to_thread(add, 3, 4),
        loop.run_in_executor(None, add, 5, 6),
    )
    support.tell(path, os.getpid(), *descendants())
    if then == "hang":
        await loop.run_in_executor(executor, hang)
    program.kill()
    await program.wait()
    await asyncio.to_thread(executor.shutdown)
    return sum(values)


def end_at_once(forks: int) -> int:
    """Fork this process so many times, and send each fork SIGTERM at once; return how many of them died by it."""
    ended = 0
    for _ in range(forks):
        pid = os.fork()
        if not pid:
            signal.alarm(int(support.TIMEOUT))  # it ends by something else then
            while True:
                signal.pause()
        os.kill(pid, signal.SIGTERM)
        ended += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    return ended


def handlers_of_a_fork(own: bool) -> list[bool]:
    """Return whether a fork of this process has default handlers for what a worker handles; with `own`, the run's."""
    signals = (signal.SIGTERM, SOFT_SIGNAL)
    if own:
        for signum in signals:
            signal.signal(signum, signal.SIG_IGN)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(writer, bytes(signal.getsignal(signum) is signal.SIG_DFL for signum in signals))
        os._exit(0)
    os.waitpid(pid, 0)
    try:
        return [bool(each) for each in os.read(reader, 2)]
    finally:
        os.close(reader)
        os.close(writer)
