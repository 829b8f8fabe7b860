"""`ProcessFuture` at the moment of its end, step by step: what the standard library's functions rely on."""

from __future__ import annotations

import concurrent.futures
import pickle
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import pytest

import procsched.future
from procsched import Outcome, RemoteError, ValidationError
from procsched._core.models import Sealed
from procsched.future import ProcessFuture
from procsched.workers.base import Ending
from tests import support


class Owner:
    """In the place of an executor's core: runs callbacks where they are told of."""

    def run_callbacks(self, run: Callable[[], None]) -> None:
        run()

    def refuse_fork(self) -> None:
        return

    def refuse_wait(self) -> None:
        return

    def listen(self, future: ProcessFuture, latch: object, most: float) -> None:
        return

    def heed(self, future: ProcessFuture) -> None:
        return


def make(owner: Any = None) -> ProcessFuture:
    return ProcessFuture(owner or Owner(), "test", None)


def succeeded(value: object = None) -> Ending:
    ending = Ending(Outcome.SUCCEEDED)
    ending.result = Sealed(pickle.dumps(value))
    return ending


def start(function: Callable[..., object], *args: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def test_a_timeout_that_is_no_number_is_refused() -> None:
    """`result` and `exception` name the parameter; a timedelta will do, as elsewhere."""
    future = make()
    for ask in (future.result, future.exception):
        with pytest.raises(
            ValidationError, match="timeout must be a number of seconds or a timedelta, not str 'x'"
        ):
            ask("x")  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            ask(timedelta(seconds=0.001))  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            ask(-1)  # as in the standard library


def test_the_wait_for_a_record_takes_a_timedelta() -> None:
    """What is neither that nor a number is refused by name."""
    future = make()
    future._item = object()  # an executor has it
    with pytest.raises(TimeoutError, match=r"no record after 0\.001 s"):
        future.wait_record(timedelta(seconds=0.001))
    with pytest.raises(ValidationError, match="timeout must be a number of seconds or a timedelta"):
        future.wait_record("x")  # type: ignore[arg-type]


def test_a_future_does_not_end_while_its_condition_is_held() -> None:
    """`wait` and `as_completed` look at the state twice with the condition held: it must be the same both times."""
    future = make()
    with future._condition:
        thread = start(future._settle, succeeded(1))
        thread.join(0.05)
        assert thread.is_alive()
        assert future._state == "PENDING"
    thread.join(support.TIMEOUT)
    assert future.result(0) == 1


@pytest.mark.parametrize("how", ["ends", "is cancelled"])
def test_a_condition_that_is_kept_for_good_holds_nobody_up(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `concurrent.futures.wait` leaves it, where a signal handler raises in the midst of it."""
    monkeypatch.setattr(procsched.future, "_patience", 0.01)
    future = make()
    future._condition.acquire()
    called: list[Any] = []
    thread = start(future._settle, succeeded(1)) if how == "ends" else start(future._mark_cancelled)
    thread.join(support.TIMEOUT)
    assert future.done()
    assert future.cancelled() == (how == "is cancelled")
    future._condition.release()
    future.add_done_callback(called.append)
    assert called == [future]


def test_whoever_finds_the_mark_of_the_end_finds_the_end() -> None:
    """Between the two steps of an end that nobody waits for, the future is finished for everybody who looks."""
    future = make()
    future._ending = succeeded(2)
    mark = make()
    mark._settle(succeeded())
    future.__dict__["_lazy_condition"] = mark.__dict__["_lazy_condition"]  # and the thread stops here
    assert future.done()
    called: list[Any] = []
    future.add_done_callback(called.append)
    assert called == [future]
    assert concurrent.futures.wait([future], 0).done == {future}
    assert future.result(0) == 2


@pytest.mark.parametrize("when", [concurrent.futures.ALL_COMPLETED, concurrent.futures.FIRST_COMPLETED])
def test_waiting_threads_see_each_end_once(when: str) -> None:
    """However an end and the beginning of a wait meet, no future counts twice and none is missed."""
    least = 3 if when == concurrent.futures.ALL_COMPLETED else 1
    for round_ in range(300):
        futures = [make() for _ in range(3)]
        barrier = threading.Barrier(3)
        waited: list[int] = []
        collected: list[int] = []

        def wait_all(
            futures: list[ProcessFuture] = futures,
            barrier: threading.Barrier = barrier,
            waited: list[int] = waited,
        ) -> None:
            barrier.wait()
            waited.append(len(concurrent.futures.wait(futures, support.TIMEOUT, when).done))

        def collect(
            futures: list[ProcessFuture] = futures,
            barrier: threading.Barrier = barrier,
            collected: list[int] = collected,
        ) -> None:
            barrier.wait()
            collected.append(len(list(concurrent.futures.as_completed(futures, support.TIMEOUT))))

        threads = [start(wait_all), start(collect)]
        barrier.wait()
        if not round_ % 10:  # both wait already, which chance brings about too seldom
            support.eventually(lambda: all(len(f.__dict__.get("_lazy_waiters", ())) == 2 for f in futures))  # noqa: B023
        for future in futures:
            future._settle(succeeded())
        for thread in threads:
            thread.join(support.TIMEOUT)
        assert collected == [3]
        assert waited[0] >= least


def test_a_wait_for_the_first_exception_ends_with_it() -> None:
    """What ended otherwise than with a result counts as an exception also before it is loaded."""
    good, bad, open_ = make(), make(), make()
    found: list[Any] = []
    waiter = start(
        lambda: found.append(
            concurrent.futures.wait([good, bad, open_], support.TIMEOUT, concurrent.futures.FIRST_EXCEPTION)
        )
    )
    support.eventually(lambda: all(f.__dict__.get("_lazy_waiters") for f in (good, bad, open_)))
    good._settle(succeeded())
    bad._settle(Ending(Outcome.CRASHED, "worker died: exit code 1"))
    waiter.join(support.TIMEOUT)
    assert found[0].done == {good, bad}
    open_._settle(succeeded())


def test_a_result_that_cannot_be_loaded_is_the_exception_of_the_call() -> None:
    """`exception` returns the RemoteError: who copies a future, asyncio for one, has nothing else to go by."""
    future = make()
    future._settle(succeeded(Spoiled()))
    error = future.exception(0)
    assert isinstance(error, RemoteError)
    with pytest.raises(RemoteError, match="spoiled"):
        future.result(0)


def _spoil() -> NoReturn:
    raise RuntimeError("spoiled")


class Spoiled:
    def __reduce__(self) -> tuple[object, ...]:
        return _spoil, ()


def test_two_threads_may_ask_for_the_result_at_once() -> None:
    """Both get the same object, whoever loads it."""
    for _ in range(200):
        future = make()
        future._settle(succeeded([1]))
        barrier = threading.Barrier(2)
        found: list[object] = []

        def ask(future: ProcessFuture = future, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            found.append(future.result(0))  # noqa: B023

        threads = [start(ask), start(ask)]
        for thread in threads:
            thread.join(support.TIMEOUT)
        assert found[0] is found[1]


def test_a_second_cancel_returns_when_the_callbacks_are_on_their_way() -> None:
    """The I/O thread may close the executor behind a cancelled call: no callback may come after that."""
    in_callbacks, go_on = threading.Event(), threading.Event()

    class Slow(Owner):
        def run_callbacks(self, run: Callable[[], None]) -> None:
            in_callbacks.set()
            go_on.wait(support.TIMEOUT)
            run()

    future = make(Slow())
    called: list[Any] = []
    future.add_done_callback(called.append)
    first = start(future._mark_cancelled)
    assert in_callbacks.wait(support.TIMEOUT)
    second = start(lambda: called.append(future._mark_cancelled()))
    second.join(0.05)
    assert second.is_alive()
    go_on.set()
    for thread in (first, second):
        thread.join(support.TIMEOUT)
    assert called == [future, True]


def test_an_exception_that_cannot_be_put_together_has_a_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of its class runs in that, and may raise what it likes: it is still the exception of the call."""

    def put_together(_ending: Ending, _timeout: float | None) -> NoReturn:
        raise ValueError("no such attribute")

    monkeypatch.setattr(procsched.future, "open_ending", put_together)
    future = make()
    future._settle(Ending(Outcome.FAILED, "Awkward: words"))
    error = future.exception(0)
    assert isinstance(error, RemoteError)
    assert (error.type_name, error.message) == ("Awkward", "words")
    assert "no such attribute" in error.__notes__[0]
