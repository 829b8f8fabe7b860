"""Wrong input is refused at the call, with the parameter named, and nothing is registered."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from procsched import (
    DEFAULT_RETRY,
    NO_RETRY,
    EventLog,
    FakeClock,
    FixedRate,
    InlinePool,
    MisfirePolicy,
    OneTime,
    Priority,
    RetryPolicy,
    Scheduler,
    SchedulerStateError,
    TaskNotFoundError,
    ThreadPool,
    ValidationError,
)
from tests.unit.scheduling import START, simulated

NAN, INF = float("nan"), float("inf")


def _nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", ""),
        ("name", None),
        ("name", 7),
        ("action", None),
        ("action", "module:function"),
        ("schedule", 60),
        ("schedule", OneTime),
        ("schedule", object()),
        ("priority", 3),
        ("priority", -1),
        ("priority", True),
        ("priority", "high"),
        ("priority", 1.0),
        ("retry", 3),
        ("retry", None),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", NAN),
        ("timeout", INF),
        ("timeout", "5"),
        ("timeout", True),
        ("timeout", 10**400),
        ("soft_timeout", 0),
        ("soft_timeout", NAN),
        ("grace", -0.1),
        ("grace", NAN),
        ("grace", None),
        ("args", "text"),
        ("args", 5),
        ("kwargs", [1]),
        ("kwargs", {1: 2}),
        ("misfire", "sometimes"),
        ("misfire", None),
        ("max_catch_up", 0),
        ("max_catch_up", 1.5),
        ("max_catch_up", True),
        ("on_exhausted", "ignore"),
        ("limits", object()),
        ("capture_output", 1),
        ("key", ""),
        ("key", 5),
        ("replace", 1),
    ],
)
def test_schedule_refuses(name: str, value: object) -> None:
    """Each parameter of schedule says what is wrong with it; the next task gets the first id."""
    good: dict[str, Any] = {"name": "t", "action": _nothing, "schedule": OneTime(START + 5)}
    with simulated() as (scheduler, _, _log):
        with pytest.raises(ValidationError, match=rf"\b{name}\b"):
            scheduler.schedule(**{**good, name: value})
        assert scheduler.tasks() == []
        assert scheduler.schedule(**good).id == "task-1"


def test_soft_timeout_must_be_less_than_timeout() -> None:
    """The soft limit comes first or makes no sense."""
    with simulated() as (scheduler, _, _log), pytest.raises(ValidationError, match="soft_timeout"):
        scheduler.schedule("t", _nothing, OneTime(START), timeout=5, soft_timeout=5)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda s: s.schedule_at(_nothing, datetime(2026, 1, 1)), "run_at"),
        (lambda s: s.schedule_at(_nothing, NAN), "run_at"),
        (lambda s: s.schedule_at(_nothing, "tomorrow"), "run_at"),
        (lambda s: s.schedule_after(_nothing, -1), "delay"),
        (lambda s: s.schedule_after(_nothing, INF), "delay"),
        (lambda s: s.schedule_every(_nothing, 0), "interval"),
        (lambda s: s.schedule_every(_nothing, -5), "interval"),
        (lambda s: s.schedule_every(_nothing, 5, on_overrun="never"), "on_overrun"),
        (lambda s: s.schedule_at(_nothing, START, retries=-1), "retries"),
        (lambda s: s.schedule_at(_nothing, START, retries=1, retry=NO_RETRY), "retries"),
        (lambda s: s.schedule_at(_nothing, START, name=""), "name"),
        (lambda s: s.schedule_at(None, START), "action"),
        (lambda s: s.shutdown(timeout=-1), "timeout"),
        (lambda s: s.shutdown(timeout=NAN), "timeout"),
        (lambda s: s.shutdown(drain=1), "drain"),
        (lambda s: s.shutdown(wait="no"), "wait"),
        (lambda s: s.wait_idle(-1), "timeout"),
        (lambda s: s.wait("task-1", "5"), "timeout"),
        (lambda s: s.cancel(5), "task"),
        (lambda s: s.cancel("task-1", kill=1), "kill"),
        (lambda s: s.add_listener(print), "listeners"),
    ],
)
def test_other_calls_refuse(call: Any, name: str) -> None:
    """The convenience calls and the others name their parameters, too (a naive datetime: rq-scheduler 246)."""
    with simulated() as (scheduler, _, _log):
        with pytest.raises(ValidationError, match=rf"\b{name}\b"):
            call(scheduler)
        assert scheduler.tasks() == []
        assert scheduler.schedule_at(_nothing, START).id == "task-1"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": True}, "workers"),
        ({"workers": 2.0}, "workers"),
        ({"clock": 5}, "clock"),
        ({"clock": FakeClock}, "clock"),
        ({"ids": object()}, "ids"),
        ({"store": object()}, "store"),
        ({"listeners": [print]}, "listeners"),
        ({"listeners": 5}, "listeners"),
        ({"listeners": EventLog()}, "listeners"),
        ({"history_limit": 0}, "history_limit"),
        ({"keep_finished": -1}, "keep_finished"),
        ({"dead_letter_limit": 1.5}, "dead_letter_limit"),
        ({"event_limit": 0}, "event_limit"),
        ({"result_limit": -1}, "result_limit"),
        ({"pool": object()}, "pool"),
        ({"pool": InlinePool}, "pool"),
        ({"pool": ThreadPool(2), "workers": 3}, "workers"),
        ({"pool": ThreadPool(2), "workers": 4}, "workers"),
        ({"pool": ThreadPool(2), "nice": 3}, "nice"),
    ],
)
def test_constructor_refuses(options: dict[str, Any], name: str) -> None:
    """Each parameter of the constructor says what is wrong with it."""
    with pytest.raises(ValidationError, match=rf"\b{name}\b"):
        Scheduler(**options)


def test_a_pool_with_its_own_size_is_taken() -> None:
    """With pool= its size counts; workers may be left out, or say the same."""
    Scheduler(pool=ThreadPool(2)).shutdown()
    Scheduler(2, pool=ThreadPool(2)).shutdown()


def test_aware_datetime_and_timedelta_are_taken() -> None:
    """What datetime gives is converted at the border."""
    with simulated() as (scheduler, _, _log):
        at = datetime.fromtimestamp(START + 60, UTC)
        task = scheduler.schedule_at(_nothing, at, timeout=timedelta(seconds=5), grace=timedelta(seconds=1))
        assert task.next_run_at == START + 60
        assert (task.task.timeout, task.task.grace) == (5.0, 1.0)
        assert scheduler.schedule_after(_nothing, timedelta(minutes=1)).next_run_at == START + 60
        assert scheduler.schedule_every(_nothing, timedelta(minutes=1)).next_run_at == START + 60


def test_positional_order_and_words_are_taken() -> None:
    """Parameters may be given by position; a priority by number, a policy by its word."""
    with simulated() as (scheduler, _, _log):
        task = scheduler.schedule(
            "t",
            _nothing,
            FixedRate(5),
            0,
            RetryPolicy(1),
            3,
            args=[1],
            kwargs={"a": 2},
            misfire="skip",  # type: ignore[arg-type]
        )
        assert task.task.priority is Priority.HIGH
        assert (task.task.args, task.task.kwargs) == ((1,), {"a": 2})
        assert task.task.misfire is MisfirePolicy.SKIP
        assert scheduler.schedule("u", _nothing, OneTime(START)).task.retry is DEFAULT_RETRY


def test_unknown_option_of_a_convenience_call_is_a_type_error() -> None:
    """A misspelt option is not swallowed."""
    with simulated() as (scheduler, _, _log), pytest.raises(TypeError, match="timeuot"):
        scheduler.schedule_at(_nothing, START, timeuot=5)


@pytest.mark.parametrize("method", ["task", "cancel", "kill", "pause", "resume", "revive", "wait"])
def test_unknown_ids_are_not_found(method: str) -> None:
    """Every call that takes an id says which one it does not know, in plain text."""
    with simulated() as (scheduler, _, _log):
        with pytest.raises(TaskNotFoundError) as caught:
            getattr(scheduler, method)("task-77")
        assert "'task-77'" in str(caught.value)
        assert isinstance(caught.value, KeyError)


def test_ids_must_be_new_texts() -> None:
    """An id generator that repeats itself, or gives no text, is told so; nothing is registered."""

    class Same:
        given: object = "x"

        def next_id(self) -> Any:
            return self.given

    ids = Same()
    with simulated(ids=ids) as (scheduler, _, _log):
        scheduler.schedule("t", _nothing, OneTime(START + 5))
        with pytest.raises(SchedulerStateError, match="'x'"):
            scheduler.schedule("t", _nothing, OneTime(START + 5))
        ids.given = 7
        with pytest.raises(ValidationError, match="next_id"):
            scheduler.schedule("t", _nothing, OneTime(START + 5))
        assert len(scheduler.tasks()) == 1
