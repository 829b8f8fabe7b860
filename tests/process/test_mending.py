"""What raises while calls are handed out: nothing is lost or run twice, and the next call runs.

A signal handler may raise anywhere, which `test_signals_torn.py` tries line by line; here the source of the calls does,
where it is asked for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from procsched import Outcome
from tests import faults, support
from tests.pools import Bench, only_record, open_gate


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Bench(tmp_path, 1) as it:
        yield it


class Torn:
    """Raises in the place of a source's `next_call`, so often."""

    def __init__(self, bench: Bench, error: type[BaseException], times: int = 1) -> None:
        self.error = error
        self.left = times
        self.given = bench.core.next_call
        bench.core.next_call = self  # type: ignore[method-assign]

    def __call__(self, **options: Any) -> Any:
        if self.left == 0:
            return self.given(**options)
        self.left -= 1
        raise self.error("torn")


def idle(bench: Bench) -> None:
    """Have a worker that waits for a call, so that the next `submit` hands it out itself."""
    assert bench.submit(faults.identity, 0).result(support.TIMEOUT) == 0
    bench.ready_pids(1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_who_submits_hears_what_was_raised(bench: Bench, error: type[BaseException]) -> None:
    """Nobody has the future of that call, and it is not run; the next one is."""
    idle(bench)
    path = bench.path()
    torn = Torn(bench, error)
    with pytest.raises(error, match="torn"):
        bench.submit(support.tell, path, "first")
    assert torn.left == 0
    assert bench.submit(faults.identity, 1).result(support.TIMEOUT) == 1
    assert not Path(path).exists()  # there is one worker, which would have run it before
    assert not bench.core.open


def test_a_source_that_raises_on_the_io_thread_is_asked_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else would ask for the calls that wait; it is logged, once for each time."""
    gate, told = bench.gate(), bench.path()
    first = bench.submit(faults.wait_at_gate, gate, told)
    support.wait_for_file(told)
    second = bench.submit(faults.identity, 2)  # waits: there is one worker
    torn = Torn(bench, RuntimeError, 2)
    open_gate(gate)
    assert first.result(support.TIMEOUT) == "through"
    assert second.result(support.TIMEOUT) == 2
    assert torn.left == 0
    assert [record.message for record in caplog.records] == ["the I/O thread goes on after an error"] * 2
    only_record(second, Outcome.SUCCEEDED)


@pytest.mark.parametrize("asked", ["pump", "recall"])
def test_a_signal_handler_may_ask_while_the_lock_is_held(bench: Bench, asked: str) -> None:
    """What it asks for is done a moment later by the I/O thread, or at once where nothing is in the way."""
    idle(bench)
    pool = bench.core.pool
    ask: Callable[[], None] = getattr(pool, asked)
    with pool.lock:
        ask()
    assert bench.submit(faults.identity, 1).result(support.TIMEOUT) == 1
