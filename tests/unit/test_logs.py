"""A log handler that raises: no thread of ours ends by it, and it is told on standard error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from procsched import NO_RETRY, After, InMemoryTaskStore, OneTime, Scheduler, ThreadPool
from procsched._core.models import ScheduledTask, TaskEvent, TaskStatus
from procsched._logs import say
from procsched.listeners import EventDelivery
from procsched.workers.loop import Loop
from tests import support

LOGGER = logging.getLogger("procsched")


class _Raising(logging.Handler):
    """A handler whose `emit` lets out what a handler is to keep for itself."""

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__(logging.DEBUG)
        self.error = error
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        raise self.error(record.getMessage())


@pytest.fixture(params=[OSError, SystemExit], ids=lambda error: error.__name__)
def handler(request: pytest.FixtureRequest) -> Iterator[_Raising]:
    """Have every message of ours raise in the thread that logs it."""
    made = _Raising(request.param)
    LOGGER.addHandler(made)
    yield made
    LOGGER.removeHandler(made)


def fail() -> None:
    raise ZeroDivisionError("on purpose")


def test_what_a_handler_raises_goes_to_standard_error(
    handler: _Raising, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the error and the message that was to be logged."""
    thread = threading.Thread(target=say, args=(logging.ERROR, "the %s is down", "house"))
    thread.start()
    thread.join(support.TIMEOUT)
    told = capsys.readouterr().err
    assert f"{handler.error.__name__}: the house is down" in told
    assert "Message: 'the %s is down'" in told


def test_what_others_chose_begins_no_line(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the name of a task nor the text of an error can be taken for a message of its own."""

    def fail_with_lines() -> None:
        raise ValueError("no\nERROR forged\x1b[2J\rERROR forged\u2028ERROR forged")

    with Scheduler(pool=ThreadPool(1)) as scheduler:
        scheduler.schedule("a\nERROR forged", fail_with_lines, After(0), retry=NO_RETRY)
        assert scheduler.wait_idle(support.TIMEOUT)
    (said,) = (each.getMessage() for each in caplog.records if "ended as failed" in each.getMessage())
    assert "ValueError: no" in said
    assert said.count("ERROR forged") >= 4
    first, *others = said.splitlines()
    assert first.startswith("task ")
    assert others
    assert all(line.startswith("  ") for line in others)
    assert "\x1b" not in said


def test_an_interrupt_in_a_handler_gets_through_in_the_main_thread() -> None:
    """A signal handler has raised it while a message was logged: it is meant for the program."""
    handler = _Raising(KeyboardInterrupt)
    LOGGER.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            say(logging.ERROR, "interrupted")
    finally:
        LOGGER.removeHandler(handler)


def test_the_loop_goes_on(handler: _Raising) -> None:
    """Neither a callback that raises nor an owner who does ends the thread of the deadlines."""

    def report(error: BaseException) -> None:
        raise RuntimeError("no report") from error

    loop = Loop("loop", report)
    loop.start()
    later = threading.Event()
    try:
        loop.call_soon(fail)
        loop.call_soon(later.set)
        assert later.wait(support.TIMEOUT)
        assert handler.count == 2
    finally:
        loop.stop()
        loop.thread.join(support.TIMEOUT)


def test_a_loop_that_was_closed_before_its_thread_ran_ends() -> None:
    """It says nothing in the log, least of all without a pause."""
    errors: list[BaseException] = []
    loop = Loop("loop", errors.append)
    loop.close()
    loop.start()
    loop.thread.join(support.TIMEOUT)
    assert not loop.thread.is_alive()
    assert not errors


def test_a_listener_hears_on(handler: _Raising) -> None:
    """One that raises hears of the next event all the same."""
    heard: list[int] = []

    class Listener:
        def on_task_event(self, event: TaskEvent) -> None:
            heard.append(event.sequence)
            fail()

    delivery = EventDelivery([Listener()], 10, lambda _text: None)
    for number in (1, 2):
        delivery.publish(TaskEvent("task-1", "job", TaskStatus.RUNNING, sequence=number))
    assert delivery.close(support.TIMEOUT)
    assert heard == [1, 2]
    assert handler.count == 2


def test_a_store_is_written_on(handler: _Raising) -> None:
    """What failed is tried again, and written."""
    saved: list[str] = []

    class Store(InMemoryTaskStore):
        failures = 1

        def save(self, task: ScheduledTask) -> None:
            if self.failures:
                self.failures -= 1
                fail()
            saved.append(task.id)

    with Scheduler(pool=ThreadPool(1), store=Store()) as scheduler:
        scheduler.schedule("job", print, OneTime(4e9), kwargs={"end": ""}, retry=NO_RETRY)
    assert "task-1" in saved
    assert handler.count >= 2  # that it failed, and that it works again


def test_the_timer_goes_on(handler: _Raising, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure that nobody foresaw, what is due is run."""
    ran = threading.Event()
    scheduler = Scheduler(pool=ThreadPool(1))
    real = scheduler._pass

    def fail_once() -> bool:
        monkeypatch.setattr(scheduler, "_pass", real)
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(scheduler, "_pass", fail_once)
    with scheduler:
        scheduler.schedule_after(ran.set, 0.0)
        assert ran.wait(support.TIMEOUT)
    assert handler.count


def test_what_cannot_be_written_is_escaped(caplog: pytest.LogCaptureFixture) -> None:
    """Half a character, from the name of a file or a task, would make a handler fail that writes UTF-8."""
    say(logging.WARNING, "the task %s failed %d times", "\udc80 job", 2)
    assert caplog.messages == [r"the task \udc80 job failed 2 times"]
    assert caplog.text.encode()
