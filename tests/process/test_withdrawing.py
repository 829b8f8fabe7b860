"""What is withdrawn, or is to end, while somebody else is in the midst of it: everybody who waits hears of the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched.future import ProcessFuture
from tests import faults, support
from tests.pools import Bench, open_gate


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


def ends(bench: Bench, function: Callable[[], object]) -> bool:
    """Return whether `function` returns, in a thread of its own."""
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(support.TIMEOUT)
    if not thread.is_alive():
        return True
    bench.core.drained.set()  # so that a test that fails does not hang
    thread.join(support.TIMEOUT)
    return False


@pytest.mark.parametrize("how", ["cancel", "shutdown"])
def test_a_handler_shuts_down_before_it_is_told_who_was_withdrawn(
    bench: Bench, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who withdrew the calls, and is to tell, goes on only when the handler's shutdown has returned."""
    told = bench.path()
    held = bench.submit(faults.wait_at_gate, gate := bench.gate(), told)
    support.wait_for_file(told)
    waiting = [bench.submit(faults.identity, n) for n in range(3)]
    tell = bench.core._tell_withdrawn
    seen: list[ProcessFuture[Any]] = []
    interrupted = threading.local()

    def handler() -> None:
        open_gate(gate)
        bench.executor.shutdown(cancel_futures=True)
        seen.extend(future for future in waiting if future.done())

    def strike(item: Any) -> None:
        if getattr(interrupted, "next", False):
            interrupted.next = False
            handler()
        tell(item)

    monkeypatch.setattr(bench.core, "_tell_withdrawn", strike)

    def act() -> None:
        interrupted.next = True
        if how == "cancel":
            waiting[1].cancel()
        else:
            bench.executor.shutdown(cancel_futures=True)

    assert ends(bench, act)
    assert seen == waiting
    assert all(future.cancelled() for future in waiting)
    assert held.result(support.TIMEOUT) == "through"


def test_a_handler_shuts_down_in_the_midst_of_a_booking(bench: Bench) -> None:
    """The I/O thread, which would have to end the calls, waits for who books: the handler must not wait for it."""
    bench.submit(faults.identity, 0).result(support.TIMEOUT)
    future = bench.submit(faults.wait_at_gate, gate := bench.gate())

    def act() -> None:
        with bench.core.pool.reading:
            open_gate(gate)
            bench.executor.shutdown()

    assert ends(bench, act)
    bench.executor.shutdown()
    assert future.result(0) == "through"
