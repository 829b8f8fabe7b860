"""What signal handlers need of us, step by step."""

from __future__ import annotations

import _thread
import gc
from collections.abc import Iterator

import pytest

from procsched._interrupts import Latch


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("thresholds")
def test_a_collection_does_not_keep_a_latch_from_being_set() -> None:
    """A finalizer may run in the midst of it, and another thread begin to wait meanwhile: all are let through."""

    class Waits:
        def __del__(self) -> None:  # as another thread would while this one runs
            latch._gates.append(_thread.allocate_lock())

    for number in range(300):
        latch = Latch()
        gates = [_thread.allocate_lock() for _ in range(40)]  # no memory is asked for to hold a few
        for gate in gates:
            gate.acquire()
        latch._gates.extend(gates)
        cycle = Waits()
        cycle.me = cycle  # type: ignore[attr-defined]
        del cycle
        gc.set_threshold(gc.get_count()[0] + number % 8)
        latch.set()
        gc.set_threshold(700)
        assert not any(gate.locked() for gate in gates)
