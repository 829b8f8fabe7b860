"""Wrong input is refused at the call, with the parameter named, and nothing is registered."""

from __future__ import annotations

import enum
import inspect
import pickle
import re
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from procsched import (
    DEFAULT_RETRY,
    NO_RETRY,
    CronSchedule,
    EventLog,
    FakeClock,
    FixedRate,
    InlinePool,
    MisfirePolicy,
    OneTime,
    Priority,
    ProcessExecutor,
    ProcessPool,
    RetryPolicy,
    Scheduler,
    SchedulerStateError,
    SqlTaskStore,
    TaskEvent,
    TaskNotFoundError,
    TaskStatus,
    ThreadPool,
    UnknownOptionError,
    ValidationError,
    connect,
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
    for workers in ((), (2,)):
        with Scheduler(*workers, pool=ThreadPool(2)) as scheduler:
            assert scheduler.pool.size == 2


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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda s: s.schedule_at(_nothing, START, timeuot=5),
            "'timeuot' of schedule_at; did you mean 'timeout'?",
        ),
        (
            lambda s: s.schedule_after(_nothing, 0, x=5),
            "'x' of schedule_after; an argument of the function goes into",
        ),
        (lambda s: s.schedule_after(_nothing, 0, x=5), "args=(...,) or kwargs={'x': ...}"),
        (lambda s: s.schedule_every(_nothing, 1, id="a"), "'id' of schedule_every; did you mean 'key'?"),
        (
            lambda s: s.schedule_every(_nothing, 1, max_instances=1),
            "leave it out: a task never overlaps itself",
        ),
        (
            lambda s: s.schedule("n", _nothing, OneTime(START), arg=1),
            "'arg' of schedule; did you mean 'args'?",
        ),
        (lambda _: RetryPolicy(attempts=3), "'attempts' of RetryPolicy; did you mean 'max_attempts'?"),
        (lambda _: FixedRate(1, interval=2), "'interval' of FixedRate; did you mean 'period'?"),
        (
            lambda _: CronSchedule("* * * * *", timezone="UTC"),
            "'timezone' of CronSchedule; did you mean 'tz'?",
        ),
        (
            lambda _: SqlTaskStore("sqlite:///x", auto_migrat=True),
            "'auto_migrat' of SqlTaskStore; did you mean 'auto_migrate'?",
        ),
        (lambda _: connect("sqlite:///x", time=1), "'time' of connect; did you mean 'timeout'?"),
        (lambda _: ProcessExecutor(1).map(len, [], progres=1), "'progres' of map; did you mean 'progress'?"),
        (
            lambda _: ProcessExecutor(1).map(len, [], retry=NO_RETRY),
            "'retry' of map; as an option of each item it is options(retry=...).map(fn, ...)",
        ),
        (lambda _: Scheduler(timeout=2), "'timeout'; it belongs to a task: give it to schedule(...)"),
    ],
)
def test_an_unknown_option_is_named_with_what_was_meant(call: Callable[[Scheduler], Any], words: str) -> None:
    """A misspelt option is not swallowed: the error names the call, and the nearest option or other remedy."""
    with simulated() as (scheduler, _, _log):
        with pytest.raises(UnknownOptionError, match=re.escape(words)) as caught:
            call(scheduler)
        assert isinstance(caught.value, TypeError)  # as any unknown keyword
        assert isinstance(caught.value, ValidationError)
        assert scheduler.tasks() == []


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda s: s.tasks(status=1), "Scheduler.tasks()"),
        (lambda s: s.cancel(), "Scheduler.cancel()"),
        (lambda s: s.wait_idle(1, 2), "Scheduler.wait_idle()"),
        (lambda _: ProcessExecutor(1).map(), "ProcessExecutor.map()"),
        (lambda _: ProcessExecutor(1).submit(), "ProcessExecutor.submit()"),
    ],
)
def test_an_error_of_a_wrong_call_names_the_public_class(call: Callable[[Scheduler], Any], name: str) -> None:
    """That a class is made in layers is no business of its users."""
    with simulated() as (scheduler, _, _log):
        with pytest.raises(TypeError, match=re.escape(name)):
            call(scheduler)
    assert pickle.loads(pickle.dumps(Scheduler.tasks)) is Scheduler.tasks


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.schedule_at(_nothing, START, "x"), "schedule_at takes no 'x' there"),
        (lambda s: s.schedule_after(_nothing, 0, 5, 6), "arguments of the function go into args=(5, ...)"),
        (lambda s: s.schedule_every(_nothing, 1, "x"), "schedule_every takes no 'x' there"),
        (lambda _: CronSchedule("* * * * *", "Europe/Berlin"), "the zone by name: tz='Europe/Berlin'"),
        (lambda s: s.schedule("n", _nothing, "*/5 * * * *"), "use CronSchedule('*/5 * * * *')"),
        (lambda s: s.history(since="1h"), "UNIX seconds, a timedelta back from now or an aware datetime"),
    ],
)
def test_a_usual_mistake_is_explained(call: Callable[[Scheduler], Any], words: str) -> None:
    """What was given by position and has no place there, or as a text, is shown with what was meant."""
    with simulated() as (scheduler, _, _log):
        with pytest.raises(ValidationError, match=re.escape(words)):
            call(scheduler)
        assert scheduler.tasks() == []


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (START * 1e3, "these are milliseconds"),
        (int(START * 1e3), "these are milliseconds"),
        (START * 1e9, "these are micro- or nanoseconds"),
        (datetime(9999, 1, 1, tzinfo=UTC), r"year 5138, not datetime\.datetime\(9999.*\)$"),
    ],
)
def test_an_instant_in_another_unit_is_refused(at: Any, words: str) -> None:
    """A number that is no UNIX time says what it probably is, whatever the clock says."""
    for start in (0.0, START):
        with simulated(start=start) as (scheduler, _, _log):
            with pytest.raises(ValidationError, match=f"run_at must.*{words}"):
                scheduler.schedule_at(_nothing, at)
            with pytest.raises(ValidationError, match=f"at must.*{words}"):
                scheduler.schedule("n", _nothing, OneTime(at))
            assert scheduler.tasks() == []


@pytest.mark.parametrize("at", [10**400, -(10**400)], ids=["late", "early"])
def test_an_instant_that_no_float_holds_is_refused(at: int) -> None:
    """By name, as any other that is not finite."""
    with simulated() as (scheduler, _clock, _log):
        for call in (
            lambda: OneTime(at),
            lambda: scheduler.schedule_at(_nothing, at),
            lambda: scheduler.history(since=at),
            lambda: CronSchedule("* * * * *").next_after(at),
        ):
            with pytest.raises(ValidationError, match="must be finite"):
                call()


@pytest.mark.parametrize("seconds", [sys.maxsize, 1e300])
def test_who_waits_may_wait_for_ever(seconds: float) -> None:
    """With more seconds than any lock of the system takes, also where there is something to wait for."""
    log = EventLog()
    scheduler = Scheduler(pool=ThreadPool(1), listeners=[log])
    scheduler.start()
    task = scheduler.schedule_after(_nothing, 0)
    assert scheduler.wait(task, seconds).ok
    assert scheduler.wait_idle(seconds)
    event = TaskEvent("task-2", "late", TaskStatus.SCHEDULED, sequence=1000, at=0.0)

    def arrives(events: tuple[TaskEvent, ...]) -> bool:
        if event not in events:
            threading.Thread(target=log.on_task_event, args=(event,)).start()
        return event in events

    assert log.wait_for(arrives, seconds)
    assert scheduler.shutdown(timeout=seconds).killed == ()
    assert scheduler.stats().problems == ()


@pytest.mark.parametrize("start", [0.0, START])
def test_an_instant_may_be_far_from_now(start: float) -> None:
    """What is in the past runs at once, however long ago; what is in the next century is waited for."""
    with simulated(start=start) as (scheduler, _, _log):
        past = [scheduler.schedule_at(_nothing, at) for at in (-1e12, 0, start)]
        past += [scheduler.schedule("n", _nothing, OneTime(at)) for at in (-1e12, 0, start)]
        assert [len(task.history) for task in past] == [1] * 6
        for at in (START + 1, 9e10):
            assert scheduler.schedule_at(_nothing, at).next_run_at == at
            assert scheduler.schedule("n", _nothing, OneTime(at)).next_run_at == at


def test_signatures_are_readable() -> None:
    """No default shows as an object at an address, and a value class has its fields alone."""
    assert str(inspect.signature(RetryPolicy)).endswith("max_backoff=60.0, *, jitter=0.0)")
    shown = str(inspect.signature(ProcessExecutor.options))
    assert "= <not given>" in shown
    assert "object at" not in shown


def test_a_record_in_the_place_of_a_task_is_shown_in_short() -> None:
    """What is no task is named, and not printed over half a screen."""
    with simulated() as (scheduler, _, _log):
        record = scheduler.wait(scheduler.schedule("n", _nothing, OneTime(START)))
        with pytest.raises(
            ValidationError, match=r"not ExecutionRecord ExecutionRecord\(.*\.\.\.$"
        ) as caught:
            scheduler.wait(record)  # type: ignore[arg-type]
        assert len(str(caught.value)) < 200


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


def test_options_of_a_pool_are_kept_as_what_they_are() -> None:
    """A member of an enumeration is a text or a number; the helper that is told of it cannot import its class."""

    class Text(enum.StrEnum):
        NAME = "json"

    class Number(enum.IntEnum):
        TWO = 2

    options = ProcessPool(env={Text.NAME: Text.NAME}, nice=Number.TWO, preload=[Text.NAME]).options
    assert options.env is not None
    for kept in (*options.env, *options.env.values(), *options.preload):
        assert (type(kept), kept) == (str, "json")
    assert (type(options.nice), options.nice) == (int, 2)
