"""The asyncio face of the executor: `await executor.run(...)`, `async with`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from pathlib import Path
from typing import Any

import pytest

import procsched.future
from procsched import (
    ProcessExecutor,
    SchedulerStateError,
    TaskSerializationError,
    TaskTimeoutError,
    ValidationError,
    WorkerCrashedError,
)
from tests import faults, support
from tests.pools import open_gate, told_pids

TIMEOUT = support.TIMEOUT


async def told(path: Path) -> int:
    """Wait, in another thread, until an action has told its pid; return it."""
    return (await asyncio.to_thread(told_pids, path))[0]


def gate_at(path: Path) -> str:
    os.mkfifo(path)
    return str(path)


def test_run_returns_what_the_function_returns() -> None:
    """run() passes arguments and keywords, and returns the result from another process."""

    async def main() -> None:
        async with ProcessExecutor(2) as executor:
            assert await executor.run(faults.add, 1, right=2) == 3
            assert await executor.run(os.getpid) != os.getpid()
            assert await executor.run(dict, fn=1, self=2) == {"fn": 1, "self": 2}
            found = await asyncio.gather(*(executor.run(faults.identity, n) for n in range(100)))
            assert found == list(range(100))

    asyncio.run(main())


def test_run_raises_what_the_function_raises() -> None:
    """run() raises the function's own exception, and the others of its kind where it was no exception."""

    async def main() -> None:
        async with ProcessExecutor(2) as executor:
            with pytest.raises(ValueError, match="bad row"):
                await executor.run(faults.raise_awkward, "plain")
            with pytest.raises(WorkerCrashedError, match="exit code 5"):
                await executor.run(faults.exit_hard, 5)
            with pytest.raises(TaskSerializationError):
                await executor.run(faults.identity, threading.Lock())
            with pytest.raises(SystemExit):
                await executor.run(faults.exit_soft, 3)
            with pytest.raises(ValidationError, match="timeout"):
                await executor.run(abs, 1, timeout=-1)

    asyncio.run(main())


def test_a_timeout_of_one_call(tmp_path: Path) -> None:
    """`timeout` is that of this call; None lifts that of the executor; options() gives others."""

    async def main() -> None:
        async with ProcessExecutor(1, timeout=0.3) as executor:
            with pytest.raises(TaskTimeoutError):
                await executor.run(faults.sleep, os.devnull)
            assert await executor.run(faults.nap, 0.5, timeout=None) == "napped"
            with pytest.raises(TaskTimeoutError, match=r"0\.2 s"):
                await executor.run(faults.sleep, os.devnull, timeout=0.2)
            view = executor.options(timeout=None, name="counting")
            assert (await view.run(faults.report_progress))[0] == "counting"
            with pytest.raises(TaskTimeoutError, match=r"0\.2 s"):
                await view.run(faults.sleep, os.devnull, timeout=0.2)

    asyncio.run(main())


def test_cancelling_the_task_ends_the_run(tmp_path: Path) -> None:
    """Cancellation of the awaiting task kills the process, and its worker's place is free again."""

    async def main() -> None:
        async with ProcessExecutor(1) as executor:
            task = asyncio.create_task(executor.run(faults.ignore_signals, str(tmp_path / "told")))
            pid = await told(tmp_path / "told")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await executor.run(faults.add, 1, 1) == 2
            await asyncio.to_thread(support.assert_gone, pid)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(executor.run(faults.ignore_signals, str(tmp_path / "again")), 0.3)
            assert await executor.run(faults.add, 1, 1) == 2

    asyncio.run(main())


def test_a_call_whose_task_is_cancelled_while_it_waits_never_starts(tmp_path: Path) -> None:
    """A waiting call is withdrawn with the task that awaits it."""

    async def main() -> None:
        gate = gate_at(tmp_path / "gate")
        async with ProcessExecutor(1) as executor:
            held = asyncio.create_task(executor.run(faults.wait_at_gate, gate, str(tmp_path / "told")))
            await told(tmp_path / "told")
            waiting = asyncio.create_task(executor.run(support.tell, str(tmp_path / "ran"), 1))
            await asyncio.sleep(0)  # so that it has submitted
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(open_gate, gate)
            assert await held == "through"

    asyncio.run(main())
    assert not (tmp_path / "ran").exists()


def test_no_thread_waits_for_a_call(tmp_path: Path) -> None:
    """However many calls are awaited, there are as many threads as for one."""

    async def main() -> None:
        gate = gate_at(tmp_path / "gate")
        async with ProcessExecutor(1) as executor:
            held = asyncio.create_task(executor.run(faults.wait_at_gate, gate, str(tmp_path / "told")))
            await told(tmp_path / "told")
            threads = threading.active_count()
            tasks = [asyncio.create_task(executor.run(faults.identity, n)) for n in range(200)]
            await asyncio.sleep(0)
            assert len(executor._core.open) == 201
            assert threading.active_count() == threads
            await asyncio.to_thread(open_gate, gate)
            assert await held == "through"
            assert await asyncio.gather(*tasks) == list(range(200))

    asyncio.run(main())


class Tattler:
    """Tells in which thread it was loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _thread_name, ()


def _thread_name() -> str:
    return threading.current_thread().name


def test_a_result_is_not_loaded_by_the_event_loop() -> None:
    """A large result would hold it up; it is loaded before the loop is told."""
    assert asyncio.run(_load()) == "procsched-callbacks"


async def _load() -> object:
    async with ProcessExecutor(1) as executor:
        return await executor.run(Tattler)


def test_leaving_goes_on_beside_the_event_loop(tmp_path: Path) -> None:
    """Leaving `async with` waits for what runs, while the event loop does what lets it end."""

    async def main() -> None:
        gate = gate_at(tmp_path / "gate")

        async def let_go() -> None:
            await leaving.wait()
            await asyncio.to_thread(open_gate, gate)

        leaving = asyncio.Event()
        helper = asyncio.create_task(let_go())
        async with ProcessExecutor(1) as executor:
            held = executor.submit(faults.wait_at_gate, gate)
            waiting = executor.submit(faults.add, 1, 1)
            leaving.set()
        await helper
        assert held.result(0) == "through"
        assert waiting.result(0) == 2
        assert not support.children()
        with pytest.raises(SchedulerStateError):
            await executor.run(abs, 1)

    asyncio.run(main())


def test_leaving_by_cancellation_ends_what_runs(tmp_path: Path) -> None:
    """Leaving by CancelledError kills what runs and withdraws what waits, and by then nothing is left."""

    async def use() -> None:
        async with ProcessExecutor(1) as executor:
            futures.append(executor.submit(faults.add, 1, 1))
            await executor.run(faults.ignore_signals, str(tmp_path / "told"))

    futures: list[concurrent.futures.Future[int]] = []

    async def main() -> None:
        task = asyncio.create_task(use())
        pid = await told(tmp_path / "told")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not support.children()
        support.assert_gone(pid)

    asyncio.run(main())


def test_leaving_by_an_exception_waits() -> None:
    """Leaving by an ordinary exception finishes what was submitted, and the exception goes on."""

    async def main() -> None:
        with pytest.raises(ValueError, match="ordinary"):
            async with ProcessExecutor(1) as executor:
                future = executor.submit(faults.nap, 0.05)
                raise ValueError("ordinary")
        assert future.result(0) == "napped"

    asyncio.run(main())


def test_leaving_may_be_cancelled(tmp_path: Path) -> None:
    """A task that is cancelled while it leaves goes on at once, and what ran is killed behind it."""

    async def use() -> None:
        async with ProcessExecutor(1) as executor:
            executor.submit(faults.ignore_signals, str(tmp_path / "told"))
            executor.submit(faults.add, 1, 1)

    async def main() -> None:
        task = asyncio.create_task(use())
        pid = await told(tmp_path / "told")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(support.assert_gone, pid)

    asyncio.run(main())
    support.eventually(lambda: not support.children())


def test_killing_the_workers_ends_those_who_wait(tmp_path: Path) -> None:
    """kill_workers() is an error for all who await a call, not a cancellation of their tasks."""

    async def main() -> None:
        async with ProcessExecutor(1) as executor:
            running = asyncio.create_task(executor.run(faults.sleep, str(tmp_path / "told")))
            await told(tmp_path / "told")
            waiting = asyncio.create_task(executor.run(faults.add, 1, 1))
            await asyncio.sleep(0)
            executor.kill_workers()
            found = await asyncio.gather(running, waiting, return_exceptions=True)
            assert type(found[0]).__name__ == "TaskKilledError"
            assert isinstance(found[1], concurrent.futures.CancelledError)
            assert not isinstance(found[1], asyncio.CancelledError)

    asyncio.run(main())


def test_an_event_loop_that_is_closed_first(tmp_path: Path) -> None:
    """Where the loop goes before the call ends, the executor goes on."""
    gate = gate_at(tmp_path / "gate")
    with ProcessExecutor(1) as executor:
        loop = asyncio.new_event_loop()
        coroutine = executor.run(faults.wait_at_gate, gate, str(tmp_path / "told"))
        task = loop.create_task(coroutine)
        loop.run_until_complete(told(tmp_path / "told"))
        future = executor._core.pool.running_calls()[0].future  # type: ignore[attr-defined]
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        open_gate(gate)
        assert future.result(TIMEOUT) == "through"
        assert executor.submit(faults.add, 1, 1).result(TIMEOUT) == 2
        with pytest.raises(RuntimeError, match="closed"):
            loop.run_until_complete(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_wrap_future_and_run_in_executor() -> None:
    """The library's own ways work with the executor."""

    async def main() -> None:
        with ProcessExecutor(2) as executor:
            loop = asyncio.get_running_loop()
            assert await asyncio.wrap_future(executor.submit(faults.add, 1, 1)) == 2
            assert await loop.run_in_executor(executor, faults.add, 2, 2) == 4
            with pytest.raises(ValueError, match="bad row"):
                await loop.run_in_executor(executor, faults.raise_awkward, "plain")
            wrapped = [asyncio.wrap_future(executor.submit(abs, -n)) for n in range(20)]
            found = [await next_done for next_done in asyncio.as_completed(wrapped)]
            assert sorted(found) == list(range(20))

    asyncio.run(main())


def test_run_hears_of_an_end_whose_result_is_not_loaded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends the loading on the callback thread does not keep the coroutine from loading it."""
    opened = procsched.future.open_ending
    stopped: list[str] = []

    def stop_once(*args: Any) -> Any:
        if not stopped:
            stopped.append(threading.current_thread().name)
            raise SystemExit
        return opened(*args)

    monkeypatch.setattr(procsched.future, "open_ending", stop_once)

    async def main() -> None:
        async with ProcessExecutor(1) as executor:
            assert await asyncio.wait_for(executor.run(faults.add, 1, 2), TIMEOUT) == 3

    asyncio.run(main())
    assert stopped == ["procsched-callbacks"]


def test_run_tries_again_where_no_thread_is_left_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback thread is started a moment later, though no other call ends."""
    start, refused = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "procsched-callbacks" and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    gate = gate_at(tmp_path / "gate")

    async def main() -> None:
        call = asyncio.ensure_future(executor.run(faults.wait_at_gate, gate))
        await asyncio.sleep(0)  # it is submitted
        await asyncio.to_thread(open_gate, gate)
        assert await asyncio.wait_for(asyncio.shield(call), TIMEOUT) == "through"

    with ProcessExecutor(1) as executor:
        asyncio.run(main())
    assert len(refused) == 3
