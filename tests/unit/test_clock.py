"""Clocks: the system's with its watch, what is made of a user's, and the fake one."""

from __future__ import annotations

import datetime
import errno
import math
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from procsched import _timerfd
from procsched.clock import AdaptedClock, SystemClock, adapt_clock
from procsched.errors import ValidationError
from procsched.testing import FakeClock
from tests import support
from tests.support import TIMEOUT

needs_timerfd = pytest.mark.skipif(not _timerfd.available(), reason="no timer descriptors here")


def started(target: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def finish(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(TIMEOUT)
        assert not thread.is_alive()


def clock_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "procsched-clock"]


# --- the system's clock --------------------------------------------------------------------------------


def test_system_clock_reads_the_systems_clocks() -> None:
    """Wall time is UNIX time; both steady times go forward."""
    clock = SystemClock()
    assert abs(clock.now() - time.time()) < 60.0
    assert clock.monotonic() <= clock.monotonic()
    assert clock.awake() <= clock.awake()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="no such clock here")
def test_steady_time_counts_sleep_where_the_system_can() -> None:
    """It is the time since the machine started, and never behind the time awake."""
    clock = SystemClock()
    awake = clock.awake()
    assert awake <= clock.monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_system_wait_is_the_conditions_own() -> None:
    """It ends with a notification or with the seconds, and takes any number of them."""
    clock, condition, ready = SystemClock(), threading.Condition(), threading.Event()

    def wait() -> None:
        with condition:
            ready.set()
            clock.wait(condition, 1e300)

    waiter = started(wait)
    assert ready.wait(TIMEOUT)
    with condition:
        condition.notify_all()
    finish(waiter)
    with condition:
        clock.wait(condition, 0.0)


# --- the watch for steps -------------------------------------------------------------------------------


class FakeTimer:
    """Stands in for the timer descriptor, so that a test can say that the clock was set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read, self._write = os.pipe()
        self.armed = threading.Semaphore(0)
        self.arm_errors: list[int] = []
        monkeypatch.setattr(_timerfd, "available", lambda: True)
        monkeypatch.setattr(_timerfd, "timerfd_create", lambda clock: os.dup(self.read))
        monkeypatch.setattr(_timerfd, "timerfd_arm", self._arm)
        monkeypatch.setattr(_timerfd, "timerfd_read", self._canceled)

    def _arm(self, fd: int, at: float, *, absolute: bool = True, cancel_on_set: bool = False) -> None:
        assert cancel_on_set
        assert absolute
        assert at > time.time()
        self.armed.release()
        if self.arm_errors:
            raise OSError(self.arm_errors.pop(), "arm")

    @staticmethod
    def _canceled(fd: int) -> int:
        if os.read(fd, 1) == b"e":
            return 1
        raise OSError(errno.ECANCELED, "the clock was set")

    def expire(self) -> None:
        os.write(self._write, b"e")

    def set_clock(self) -> None:
        os.write(self._write, b"x")

    def close(self) -> None:
        os.close(self.read)
        os.close(self._write)


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTimer]:
    if not hasattr(select, "poll") or sys.platform != "linux":
        pytest.skip("the watch is for Linux")
    fake = FakeTimer(monkeypatch)
    yield fake
    fake.close()


@needs_timerfd
def test_watchers_share_one_thread_which_ends_with_the_last() -> None:
    """The thread is there exactly while somebody watches, and a closer may be called twice."""
    clock = SystemClock()
    assert clock.watches_steps
    first = clock.watch(lambda: None)
    second = SystemClock().watch(lambda: None)
    assert len(clock_threads()) == 1
    first()
    first()
    assert len(clock_threads()) == 1
    second()
    assert clock_threads() == []
    clock.watch(lambda: None)()
    assert clock_threads() == []


def test_a_set_clock_is_told_each_time(timer: FakeTimer) -> None:
    """Every watcher hears of every step, and the timer is armed again."""
    heard = threading.Semaphore(0), threading.Semaphore(0)
    closers = [SystemClock().watch(semaphore.release) for semaphore in heard]
    for _ in range(3):
        timer.set_clock()
        assert all(semaphore.acquire(timeout=TIMEOUT) for semaphore in heard)
    for _ in range(4):
        assert timer.armed.acquire(timeout=TIMEOUT)
    for close in closers:
        close()
    assert clock_threads() == []


def test_a_step_just_before_the_timer_is_armed_again_is_told(timer: FakeTimer) -> None:
    """The kernel says so when it is asked to arm the timer, which it does all the same."""
    heard = threading.Semaphore(0)
    close = SystemClock().watch(heard.release)
    timer.arm_errors.append(errno.ECANCELED)
    timer.expire()
    assert heard.acquire(timeout=TIMEOUT)
    timer.set_clock()
    assert heard.acquire(timeout=TIMEOUT)
    close()


def test_a_watcher_that_raises_harms_nobody(timer: FakeTimer, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged; the others hear, and the thread goes on."""
    heard = threading.Semaphore(0)

    def fail() -> None:
        raise RuntimeError("boom")

    closers = [SystemClock().watch(fail), SystemClock().watch(heard.release)]
    for _ in range(2):
        timer.set_clock()
        assert heard.acquire(timeout=TIMEOUT)
    for close in closers:
        close()
    assert "a watcher of the clock failed" in caplog.text


def test_a_callback_may_end_its_own_watch(timer: FakeTimer) -> None:
    """The thread does not wait for itself."""
    done = threading.Event()
    closers: list[Callable[[], None]] = []

    def callback() -> None:
        closers[0]()
        done.set()

    closers.append(SystemClock().watch(callback))
    (thread,) = clock_threads()
    timer.set_clock()
    assert done.wait(TIMEOUT)
    finish(thread)


def test_a_timer_that_breaks_is_told_and_replaced(timer: FakeTimer, caplog: pytest.LogCaptureFixture) -> None:
    """The thread ends with a message; the next watch starts another."""
    close = SystemClock().watch(lambda: None)
    (thread,) = clock_threads()
    timer.arm_errors.append(errno.EIO)
    timer.set_clock()
    finish(thread)
    assert "no longer noticed" in caplog.text
    heard = threading.Event()
    close_other = SystemClock().watch(heard.set)
    timer.set_clock()
    assert heard.wait(TIMEOUT)
    close_other()
    close()


def test_without_timer_descriptors_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock says so, and the closer does nothing."""
    monkeypatch.setenv("PROCSCHED_WITHOUT", "pidfd,timerfd")
    clock = SystemClock()
    assert not clock.watches_steps
    close = clock.watch(lambda: None)
    assert clock_threads() == []
    close()


FORK = """
import os, threading
from procsched.clock import SystemClock
clock = SystemClock()
close = clock.watch(lambda: None)
before = len(os.listdir("/proc/self/fd"))
pid = os.fork()
if pid == 0:
    left = before - len(os.listdir("/proc/self/fd"))  # the timer and the two ends of the pipe
    close()
    other = clock.watch(lambda: None)
    alive = [thread.name for thread in threading.enumerate()]
    other()
    os._exit(0 if left == 3 and alive.count("procsched-clock") == 1 and threading.active_count() == 1 else 3)
_, status = os.waitpid(pid, 0)
close()
print(os.waitstatus_to_exitcode(status), threading.active_count())
"""


@needs_timerfd
@pytest.mark.slow
def test_a_fork_has_no_watch_and_may_start_its_own() -> None:
    """The child drops the parent's descriptors, and its closers do not touch the parent."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["0", "1"], "")


@needs_timerfd
def test_the_kernel_is_asked_to_tell_when_the_clock_is_set() -> None:
    """The watch is a timer on the wall clock that is cancelled when that is set, and does not expire meanwhile."""
    before = support.timers(os.getpid())
    close = SystemClock().watch(lambda: None)
    (timer,) = (timer for fd, timer in support.timers(os.getpid()).items() if fd not in before)
    close()
    assert (timer.clock, timer.ticks) == (time.CLOCK_REALTIME, 0)
    assert timer.flags == 3  # TFD_TIMER_ABSTIME and TFD_TIMER_CANCEL_ON_SET (linux/timerfd.h)
    assert timer.left > 100 * 365 * 86_400
    assert support.timers(os.getpid()).keys() == before.keys()


@needs_timerfd
@pytest.mark.skipif(
    os.environ.get("PROCSCHED_TEST_SET_CLOCK") != "1",
    reason="PROCSCHED_TEST_SET_CLOCK=1 lets it set the clock",
)
def test_the_kernel_tells_when_the_clock_is_set() -> None:
    """Setting the wall clock, here to what it is, reaches the watcher."""
    heard = threading.Event()
    close = SystemClock().watch(heard.set)
    time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))
    assert heard.wait(TIMEOUT)
    close()


# --- timer descriptors ---------------------------------------------------------------------------------


@pytest.fixture
def descriptor() -> Iterator[int]:
    if not _timerfd.available():
        pytest.skip("no timer descriptors here")
    fd = _timerfd.timerfd_create(time.CLOCK_MONOTONIC)
    yield fd
    os.close(fd)


def readable(fd: int, seconds: float) -> bool:
    return bool(select.select([fd], [], [], seconds)[0])


@pytest.mark.parametrize("at", [1.0, 0.0, -5.0, 1e-12])
def test_a_time_that_has_passed_is_readable_at_once(descriptor: int, at: float) -> None:
    """That holds for zero and below as well, which would disarm it in the system's own terms."""
    assert _timerfd.timerfd_read(descriptor) == 0
    _timerfd.timerfd_arm(descriptor, at)
    assert readable(descriptor, TIMEOUT)
    assert _timerfd.timerfd_read(descriptor) == 1
    assert _timerfd.timerfd_read(descriptor) == 0


def test_arming_replaces_and_disarming_ends(descriptor: int) -> None:
    """Only the last time counts, and a descriptor is not inherited."""
    _timerfd.timerfd_arm(descriptor, time.monotonic() + 0.001)
    _timerfd.timerfd_arm(descriptor, time.monotonic() + 1e6)
    assert not readable(descriptor, 0.0)
    _timerfd.timerfd_arm(descriptor, 0.001, absolute=False)
    assert readable(descriptor, TIMEOUT)
    _timerfd.timerfd_disarm(descriptor)
    assert not readable(descriptor, 0.0)
    assert not os.get_inheritable(descriptor)


def test_errors_carry_the_number() -> None:
    """A bad descriptor is refused as the system does it."""
    if not _timerfd.available():
        pytest.skip("no timer descriptors here")
    with pytest.raises(OSError) as caught:
        _timerfd.timerfd_arm(-1, 1.0)
    assert caught.value.errno == errno.EBADF


# --- a user's clock ------------------------------------------------------------------------------------


class OnlyNow:
    def __init__(self, value: Any = 50.0) -> None:
        self.value = value

    def now(self) -> Any:
        return self.value


class Whole(OnlyNow):
    def monotonic(self) -> float:
        return 7.0

    def wait(self, condition: threading.Condition, seconds: float | None) -> None:
        raise NotImplementedError


def test_none_is_the_system_clock_and_whole_clocks_stay_themselves() -> None:
    """A clock that lacks nothing is not wrapped."""
    assert type(adapt_clock(None)) is SystemClock
    for clock in (SystemClock(), FakeClock(5.0), AdaptedClock(time.time)):
        assert adapt_clock(clock) is clock


def test_what_is_optional_is_completed() -> None:
    """Awake time is steady time, and nobody is told of steps."""
    source = Whole()
    clock = adapt_clock(source)
    assert (clock.now(), clock.monotonic(), clock.awake()) == (50.0, 7.0, 7.0)
    assert clock.wait == source.wait
    assert not clock.watches_steps
    clock.watch(lambda: None)()


def test_an_own_awake_and_watch_are_used() -> None:
    """Optional methods that are there are taken."""

    class Rich(Whole):
        def awake(self) -> float:
            return 3.0

        def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
            callback()
            return lambda: None

    told: list[int] = []
    clock = adapt_clock(Rich())
    assert clock.awake() == 3.0
    assert clock.watches_steps
    clock.watch(lambda: told.append(1))()
    assert told == [1]


@pytest.mark.parametrize("source", [OnlyNow(), lambda: 50.0, OnlyNow().now, OnlyNow(50)])
def test_now_alone_is_enough(source: Any) -> None:
    """All three times are that one; a wait is a real one that a notification ends."""
    clock = adapt_clock(source)
    assert clock.now() == clock.monotonic() == clock.awake() == 50.0
    condition, ready = threading.Condition(), threading.Event()

    def wait() -> None:
        with condition:
            ready.set()
            clock.wait(condition, None)

    waiter = started(wait)
    assert ready.wait(TIMEOUT)
    with condition:
        condition.notify_all()
        clock.wait(condition, 0.0)
    finish(waiter)


def test_time_time_is_a_clock() -> None:
    """The commonest callable works."""
    assert abs(adapt_clock(time.time).now() - time.time()) < 60.0


def raising() -> float:
    raise LookupError("no time today")


@pytest.mark.parametrize(
    ("clock", "says"),
    [
        (5.0, "float 5.0"),
        ("now", "str 'now'"),
        (object(), "object"),
        (SystemClock, "call it first"),
        (datetime.datetime.now, "finite"),
        (lambda: None, "finite"),
        (lambda: math.nan, "nan"),
        (lambda: math.inf, "inf"),
        (lambda: True, "True"),
        (OnlyNow("5"), "'5'"),
        (raising, "LookupError: no time today"),
    ],
)
def test_what_is_no_clock_is_refused_by_name(clock: Any, says: str) -> None:
    """The message names the parameter and says what is wrong."""
    with pytest.raises(ValidationError, match="clock") as caught:
        adapt_clock(clock)
    assert says in str(caught.value)


# --- the fake clock ------------------------------------------------------------------------------------


def times(clock: FakeClock) -> tuple[float, float, float]:
    return clock.now(), clock.monotonic(), clock.awake()


def test_fake_time_moves_as_it_is_told() -> None:
    """Three movements, three different effects."""
    clock = FakeClock(100.0)
    assert times(clock) == (100.0, 0.0, 0.0)
    clock.advance(5)
    assert times(clock) == (105.0, 5.0, 5.0)
    clock.step_wall(-50.0)
    assert times(clock) == (55.0, 5.0, 5.0)
    clock.suspend(datetime.timedelta(hours=1))
    assert times(clock) == (3655.0, 3605.0, 5.0)
    clock.advance(0)
    assert times(clock) == (3655.0, 3605.0, 5.0)


def test_fake_time_starts_at_an_aware_datetime() -> None:
    """Its UNIX seconds are the wall time; a naive one is refused."""
    start = datetime.datetime(2024, 3, 31, 1, 0, tzinfo=datetime.UTC)
    assert FakeClock(start).now() == start.timestamp()
    with pytest.raises(ValidationError, match="start is a naive datetime"):
        FakeClock(datetime.datetime(2024, 3, 31, 1, 0))


def test_fake_time_adds_up_exactly() -> None:
    """Ten tenths are a second, and a million of them no less than their sum."""
    clock = FakeClock()
    for _ in range(10):
        clock.advance(0.1)
    assert times(clock) == (1.0, 1.0, 1.0)
    for _ in range(9_990):
        clock.advance(0.1)
    assert clock.monotonic() == 1_000.0


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, math.inf, "5", None, True])
def test_fake_time_does_not_go_back(seconds: Any) -> None:
    """What is no amount of time is refused by name, and nothing moves."""
    clock = FakeClock(9.0)
    for move in (clock.advance, clock.suspend):
        with pytest.raises(ValidationError, match="seconds"):
            move(seconds)
    if not isinstance(seconds, (int, float)) or not math.isfinite(seconds):
        with pytest.raises(ValidationError, match="seconds"):
            clock.step_wall(seconds)
    assert times(clock) == (9.0, 0.0, 0.0)


def wait_until(clock: FakeClock, condition: threading.Condition, at: float) -> None:
    """Wait as every user of a clock does: look, compute, wait, look again."""
    with condition:
        while (left := at - clock.monotonic()) > 0.0:
            clock.wait(condition, left)


def test_the_wait_for_waiters_gives_up_at_its_timeout() -> None:
    """Which may be a timedelta, and is refused by name where it is neither that nor a number."""
    clock = FakeClock()
    assert not clock.wait_for_waiters(1, 0.001)
    assert not clock.wait_for_waiters(1, datetime.timedelta(milliseconds=1))
    with pytest.raises(ValidationError, match="timeout must be a number of seconds or a timedelta"):
        clock.wait_for_waiters(1, "1")  # type: ignore[arg-type]


@pytest.mark.parametrize("lock", [threading.Lock, threading.RLock])
def test_advance_wakes_whose_time_has_come(lock: Callable[[], Any]) -> None:
    """Others stay parked, whatever lock their condition has."""
    clock = FakeClock(1_700_000_000.0)
    conditions = [threading.Condition(lock()) for _ in range(3)]
    waiters = [
        started(lambda condition=condition, at=at: wait_until(clock, condition, at))
        for condition, at in zip(conditions, (5.0, 10.0, 10.0), strict=True)
    ]
    assert clock.wait_for_waiters(3, TIMEOUT)
    clock.advance(5.0)
    finish(waiters[0])
    assert clock.waiters == 2
    clock.advance(4.999)
    assert clock.waiters == 2
    clock.suspend(0.001)
    finish(*waiters)
    assert clock.waiters == 0


def test_a_condition_held_twice_is_given_back_twice() -> None:
    """Waiting with a reentrant lock held in depth lets others have it."""
    clock, condition = FakeClock(), threading.Condition(threading.RLock())

    def wait() -> None:
        with condition:
            wait_until(clock, condition, 1.0)

    waiter = started(wait)
    assert clock.wait_for_waiters(1, TIMEOUT)
    clock.advance(1.0)
    finish(waiter)


def test_a_notification_ends_a_fake_wait() -> None:
    """As on any clock; time need not move."""
    clock, condition = FakeClock(), threading.Condition()

    def wait() -> None:
        with condition:
            clock.wait(condition, None)

    waiter = started(wait)
    assert clock.wait_for_waiters(1, TIMEOUT)
    clock.advance(1e9)
    assert clock.waiters == 1
    with condition:
        condition.notify_all()
    finish(waiter)
    assert clock.waiters == 0


def test_a_move_between_looking_and_waiting_is_not_missed() -> None:
    """The seconds count from the caller's last look at the clock."""
    clock, condition = FakeClock(), threading.Condition()
    for move in (lambda: clock.advance(5.0), lambda: clock.suspend(5.0), lambda: clock.step_wall(-1.0)):
        with condition:
            left = clock.monotonic() + 5.0 - clock.monotonic()
            finish(started(move))
            clock.wait(condition, left)  # would never return
    assert clock.waiters == 0


def test_part_of_a_wait_that_has_passed_before_it_counts() -> None:
    """A wait of five seconds that begins two late ends after three more."""
    clock, condition, looked, moved = FakeClock(), threading.Condition(), threading.Event(), threading.Event()

    def wait() -> None:
        with condition:
            clock.now()
            looked.set()
            moved.wait(TIMEOUT)
            clock.wait(condition, 5.0)

    waiter = started(wait)
    assert looked.wait(TIMEOUT)
    clock.advance(2.0)
    moved.set()
    assert clock.wait_for_waiters(1, TIMEOUT)
    clock.advance(3.0)
    finish(waiter)


def test_a_time_that_has_passed_is_not_waited_for() -> None:
    """Zero and negative seconds return at once, and an unheld condition is an error."""
    clock, condition = FakeClock(), threading.Condition()
    with condition:
        clock.wait(condition, 0.0)
        clock.wait(condition, -1.0)
    with pytest.raises(RuntimeError):
        clock.wait(condition, 0.0)
    with pytest.raises(RuntimeError):
        clock.wait(condition, 1.0)
    assert clock.waiters == 0


def test_a_step_of_the_wall_wakes_everybody() -> None:
    """Who waits for a wall time may look at it again."""
    clock, condition, woken = FakeClock(), threading.Condition(), threading.Event()

    def wait() -> None:
        with condition:
            while clock.now() < 3600.0:
                clock.wait(condition, 3600.0 - clock.now())
        woken.set()

    waiter = started(wait)
    assert clock.wait_for_waiters(1, TIMEOUT)
    clock.step_wall(7200.0)
    finish(waiter)
    assert woken.is_set()


def test_watchers_of_a_fake_clock_are_called_by_who_moves_it() -> None:
    """After the time has moved, with nothing held, until they are closed."""
    clock, condition = FakeClock(), threading.Condition()
    seen: list[tuple[float, int]] = []

    def callback() -> None:
        with condition:
            seen.append((clock.now(), threading.get_ident()))

    assert clock.watches_steps
    close = clock.watch(callback)
    clock.advance(1.0)
    clock.step_wall(10.0)
    clock.suspend(100.0)
    close()
    close()
    clock.advance(1.0)
    assert seen == [(now, threading.get_ident()) for now in (1.0, 11.0, 111.0)]


def test_wait_for_waiters_gives_up() -> None:
    """At its timeout in real seconds it says so."""
    assert not FakeClock().wait_for_waiters(1, 0.0)
    assert FakeClock().wait_for_waiters(0, 0.0)


def test_many_moves_and_waits_at_once_neither_deadlock_nor_get_lost() -> None:
    """Waiters that look at the clock under their lock, against moves and watchers that take it."""
    clock, condition = FakeClock(), threading.Condition(threading.RLock())

    def callback() -> None:
        with condition:
            clock.monotonic()
            condition.notify_all()

    def wait() -> None:
        for second in range(1, 201):
            wait_until(clock, condition, float(second))

    close = clock.watch(callback)
    waiters = [started(wait) for _ in range(4)]
    movers = [started(lambda: [clock.advance(1.0) for _ in range(100)]) for _ in range(2)]
    finish(*movers, *waiters)
    close()
    assert clock.monotonic() == 200.0
    assert clock.waiters == 0
