"""What the tests of `map` apply to items. Apart from them, so that a worker need not import pytest within a limit."""

from __future__ import annotations

import os

from tests import faults, support


class Made:
    """An object that can be referred to weakly."""


def make(_item: object) -> Made:
    return Made()


def at_gate(gate: str, value: int) -> int:
    """Wait at the gate where there is one."""
    if gate:
        faults.wait_at_gate(gate)
    return value


def fall_at(value: int, how: str) -> int:
    """End as `how` says at three."""
    if value == 3:
        if how == "hang":
            faults.sleep(os.devnull)
        if how == "crash":
            os._exit(5)
        raise ValueError("bad row 3")
    return value


def first_then_hang(value: int, gate: str, told: str, ran: str) -> int:
    """Wait at the gate for the first item, hang in the next two, and tell of any other."""
    if value == 0:
        return int(faults.wait_at_gate(gate, "", 0))
    if value > 2:
        support.tell(ran, value)
    return faults.ignore_signals(told)
