"""The I/O thread of a pool where memory is missing, or depth to call anything."""

from __future__ import annotations

import functools
import operator
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from procsched.workers.loop import Alarm, Loop
from tests import support

SHORTAGES = (MemoryError, RecursionError)


class Size:
    """Is more than there is memory for, when it is asked first."""

    def __init__(self) -> None:
        self.asked = 0

    def __index__(self) -> int:
        self.asked += 1
        return sys.maxsize if self.asked == 1 else 1


class Ringing(Alarm):
    """Tells that it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.rang = threading.Event()

    def on_alarm(self, now: float) -> None:
        self.alarm = float("inf")
        self.rang.set()


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop("loop", lambda error: None)
    yield loop
    if loop.thread.ident is None:
        loop.close()
        return
    loop.stop()
    loop.thread.join(support.TIMEOUT)
    assert not loop.thread.is_alive()


def failing(function: Callable[..., Any], error: type[BaseException], times: int) -> Callable[..., Any]:
    """Return a function that raises so often before it does anything."""
    left = [times]

    def fail(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return function(*args)

    return fail


@pytest.mark.parametrize("error", SHORTAGES)
@pytest.mark.parametrize("step", ["run", "note", "_once", "_on_wake", "_call_all", "_recover", "rearm"])
def test_no_step_that_fails_ends_it(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, step: str, error: type[BaseException]
) -> None:
    """Calls are made and alarms ring all the same, a moment later."""
    monkeypatch.setattr("procsched._system.sharpen_timers", failing(int, error, 1))
    monkeypatch.setattr(loop, step, failing(getattr(loop, step), error, 3))
    alarm = Ringing()
    loop.alarms.add(alarm)
    loop.start()
    called = threading.Event()
    loop.call_soon(failing(int, error, 1))
    loop.call_soon(called.set)
    assert called.wait(support.TIMEOUT)
    alarm.alarm = 0.0
    loop.hurry(0.0)
    assert alarm.rang.wait(support.TIMEOUT)


def test_a_call_that_has_not_begun_is_made_again(loop: Loop) -> None:
    """And one that has is not: no frame of it is in the traceback of the error."""
    size, begun = Size(), []
    done = threading.Event()

    def begin() -> None:
        begun.append(1)
        raise MemoryError

    loop.start()
    for function in (begin, functools.partial(operator.mul, [0], size), done.set):
        loop.call_soon(function)
    assert done.wait(support.TIMEOUT)
    support.eventually(lambda: size.asked == 2, what="it was made again")
    assert begun == [1]


@pytest.mark.parametrize("error", SHORTAGES)
def test_what_others_have_left_is_looked_for(loop: Loop, error: type[BaseException]) -> None:
    """After any shortage, also one that could be logged."""
    looked = threading.Event()
    loop.on_trouble = looked.set
    loop.start()
    loop.call_soon(failing(int, error, 1))
    assert looked.wait(support.TIMEOUT)


class Brittle(Loop):
    """Has an error come where nothing catches any, once."""

    left = 1

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_troubled" and value and self.left:
            Brittle.left -= 1
            raise MemoryError
        super().__setattr__(name, value)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was to be called is, by that one."""
    loop = Brittle("loop", lambda error: None)
    monkeypatch.setattr(loop, "_serve", failing(loop._serve, MemoryError, 1))
    first, called = loop.thread, threading.Event()
    loop.call_soon(called.set)
    loop.start()
    assert called.wait(support.TIMEOUT)
    first.join(support.TIMEOUT)
    assert loop.thread is not first
    loop.stop()
    loop.thread.join(support.TIMEOUT)
    assert not loop.thread.is_alive()
