"""`health()` and `dump()`: who is stuck is told by name, for how long and where, and whoever asks is not."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import procsched
from procsched import (
    FakeClock,
    FixedRate,
    Health,
    InMemoryTaskStore,
    OneTime,
    PartHealth,
    Scheduler,
    SchedulerStateError,
    SystemClock,
    ThreadPool,
    ValidationError,
    _frames,
    dumping,
)
from procsched._core.health import decide_state
from tests import support
from tests.unit.scheduling import Held, simulated


class Block:
    """Where somebody is held: it tells when that has come, and lets it go at the end of the test."""

    def __init__(self) -> None:
        self.inside = threading.Event()
        self.go_on = threading.Event()

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.go_on.set()

    def hold(self, *_values: object) -> None:
        self.inside.set()
        assert self.go_on.wait(support.TIMEOUT)

    def wait(self) -> None:
        assert self.inside.wait(support.TIMEOUT)


def stuck_part(name: str, look: Callable[..., Health] = procsched.health) -> PartHealth:
    """Return what is said of a part that is stuck, and fail unless its time grows from look to look."""

    def find(longer_than: float = 0.0) -> PartHealth | None:
        found = [part for part in look(0.01).troubled if part.name == name]
        return found[0] if found and found[0].seconds > longer_than else None

    first = support.eventually(find, what=f"{name} is stuck")
    second = support.eventually(lambda: find(first.seconds), what=f"{name} is stuck for longer")
    assert second.state == "stuck"
    assert not look(0.01).ok
    assert f"{name}: stuck for " in str(look(0.01))
    return second


@contextmanager
def on_threads(**options: Any) -> Iterator[Scheduler]:
    """Give a scheduler on threads, whose end waits for nobody who is stuck."""
    scheduler = Scheduler(pool=ThreadPool(1), **options)
    scheduler.start()
    try:
        yield scheduler
    finally:
        scheduler.shutdown(drain=False, timeout=0)


def test_states_follow_from_since_when() -> None:
    """Waiting is idle, work is busy, and stuck from the given time on."""
    assert decide_state(0.0, 100.0, 1.0) == ("idle", 0.0)
    assert decide_state(99.5, 100.0, 1.0) == ("busy", 0.5)
    assert decide_state(99.0, 100.0, 1.0) == ("stuck", 1.0)
    assert decide_state(100.5, 100.0, 1.0) == ("idle", 0.0)  # it waits until then


def test_values_read_as_sentences() -> None:
    """What is wrong comes first, with all that is known; an empty one says so."""
    good = PartHealth("scheduler", "timer", "idle")
    bad = PartHealth("scheduler", "store S", "stuck", 2.25, "S.save (s.py, line 3)", "detail")
    health = Health((good, bad), ("lately this",))
    assert (health.ok, health.troubled) == (False, (bad,))
    assert str(health).splitlines() == [
        "1 of 2 parts in trouble",
        "scheduler, store S: stuck for 2.2 s in S.save (s.py, line 3); detail",
        "scheduler, timer: idle",
        "lately: lately this",
    ]
    assert str(Health((good,))).splitlines()[0] == "all is well"
    assert Health().ok
    assert "no scheduler and no executor" in str(Health())


def test_all_are_named_and_numbered_and_well() -> None:
    """Several schedulers have numbers; one that was not started, or is shut down, is not there."""
    assert procsched.health() == Health()
    with on_threads() as first:
        assert {part.owner for part in procsched.health().parts} == {"scheduler"}
        with on_threads():
            Scheduler(pool=ThreadPool(1)).shutdown()
            health = procsched.health()
            assert health.ok
            assert {part.owner for part in health.parts} == {"scheduler 1", "scheduler 2"}
            assert [part.name for part in first.health().parts] == ["timer"]
    assert procsched.health() == Health()
    with pytest.raises(ValidationError, match="stuck_after"):
        procsched.health("1 s")  # type: ignore[arg-type]


def test_a_stuck_listener_is_told() -> None:
    """By its class, and the line of its code where it is."""

    class Slow:
        def on_task_event(self, event: object) -> None:
            block.hold()

    with Block() as block, on_threads(listeners=[Slow()]) as scheduler:
        scheduler.schedule_every(len, 100, args=("",))
        block.wait()
        part = stuck_part("listener test_a_stuck_listener_is_told.<locals>.Slow")
        assert "Block.hold" in (part.where or "")
        assert scheduler.health(100.0).ok


def test_a_stuck_store_is_told() -> None:
    """Whose call does not return."""

    class Store(InMemoryTaskStore):
        def save(self, task: Any) -> None:
            block.hold()

    with Block() as block, on_threads(store=Store()) as scheduler:
        scheduler.schedule_every(len, 100, args=("",))
        block.wait()
        assert "Block.hold" in (stuck_part("store Store", scheduler.health).where or "")


def test_a_store_that_fails_is_told_until_it_works() -> None:
    """It is not stuck, it fails, and for how long."""

    class Store(InMemoryTaskStore):
        broken = True

        def save(self, task: Any) -> None:
            if self.broken:
                raise OSError("disk full")

    store = Store()
    with on_threads(store=store) as scheduler:
        scheduler.schedule_every(len, 100, args=("",))
        part = support.eventually(lambda: scheduler.health().troubled)[0]
        assert (part.name, part.state) == ("store Store", "failing")
        assert "disk full" in part.detail
        support.eventually(lambda: scheduler.health().troubled[0].seconds > part.seconds)
        store.broken = False
        support.eventually(lambda: scheduler.health().ok)


class Clock(SystemClock):
    """The system's, until a test holds it or has it raise, in the timer thread or in another."""

    def __init__(self) -> None:
        self.trap: Callable[[], object] | None = None
        self.thread = "procsched-timer"

    def now(self) -> float:
        if self.trap is not None and threading.current_thread().name == self.thread:
            self.trap()
        return super().now()


def test_a_clock_that_hangs_the_timer_is_told() -> None:
    """Though the timer holds the scheduler's lock then, for which everything else waits."""
    clock = Clock()
    with Block() as block, on_threads(clock=clock) as scheduler:
        clock.trap = block.hold
        scheduler.wake()
        block.wait()
        part = stuck_part("timer")
        assert "Block.hold" in (part.where or "")
        locks = [part for part in scheduler.health(0.0).troubled if part.name == "lock of the scheduler"]
        assert [(part.state, part.detail) for part in locks] == [("held", "by thread procsched-timer")]
        text = io.StringIO()
        procsched.dump(text)
        assert (
            "read without the lock of the scheduler, which thread procsched-timer holds in" in text.getvalue()
        )
        clock.trap = None
        block.go_on.set()
        support.eventually(lambda: scheduler.health().ok)


def test_a_timer_that_waits_for_a_caller_names_who_has_the_lock() -> None:
    """Somebody's request hangs in the clock while a run gets due: who has the lock is told, and where."""
    clock = Clock()
    clock.thread = "caller"
    with Block() as block, on_threads(clock=clock) as scheduler:
        task = scheduler.schedule_every(len, 0.05, args=("",))
        clock.trap = block.hold
        caller = threading.Thread(target=scheduler.cancel, args=(task,), name="caller")
        caller.start()
        block.wait()
        stuck_part("timer")
        held = next(part for part in scheduler.health(0.0).parts if part.state == "held")
        assert (held.name, held.detail) == ("lock of the scheduler", "by thread caller")
        assert "Block.hold" in (held.where or "")
        block.go_on.set()
        caller.join(support.TIMEOUT)


def test_a_clock_that_does_not_come_back_is_told() -> None:
    """Its `wait` was notified and goes on all the same."""

    class Deaf(FakeClock):
        def wait(self, condition: threading.Condition, seconds: float | None) -> None:
            condition.release()
            try:
                block.hold()
            finally:
                condition.acquire()

    with Block() as block, on_threads(clock=Deaf(0.0)) as scheduler:
        block.wait()
        assert procsched.health(0.0).ok
        scheduler.wake()
        assert "Block.hold" in (stuck_part("timer").where or "")


def test_a_timer_that_fails_is_told_until_it_works() -> None:
    """A clock that raises is the timer's failure, with the reason."""
    clock = Clock()

    def fail() -> None:
        raise ValueError("no time")

    with on_threads(clock=clock) as scheduler:
        clock.trap = fail
        scheduler.wake()
        part = support.eventually(lambda: scheduler.health().troubled)[0]
        assert (part.name, part.state) == ("timer", "failing")
        assert "no time" in part.detail
        clock.trap = None
        support.eventually(lambda: scheduler.health().ok)


def test_a_thread_that_has_ended_is_told() -> None:
    """Nothing of ours ends one; should it happen, health says so."""
    with on_threads() as scheduler:
        timer = scheduler._timer
        over = threading.Thread(target=int)
        over.start()
        over.join()
        scheduler._timer = over
        try:
            assert [part.state for part in scheduler.health().troubled] == ["gone"]
        finally:
            scheduler._timer = timer


def test_no_timer_no_part() -> None:
    """A scheduler that runs in the thread which moves its clock has nothing that could be stuck."""
    with simulated() as (scheduler, _clock, _log):
        assert [part.name for part in scheduler.health().parts if "listener" not in part.name] == []


# --- the dump -------------------------------------------------------------------------------------------------


def dumped() -> str:
    """Return what a dump writes."""
    file = io.StringIO()
    procsched.dump(file)
    return file.getvalue()


def test_a_dump_shows_tasks_runs_due_times_and_threads() -> None:
    """All of it in one text, in the order of the due times; the stack of the run is there."""
    held = Held()
    assert "no scheduler and no executor is running" in dumped()
    with on_threads() as scheduler:
        running = scheduler.schedule("held", held, OneTime(0.0), timeout=60)
        assert held.started.wait(support.TIMEOUT)
        later = [
            scheduler.schedule(f"later {n}", len, FixedRate(n, start_delay=n), args=("",)) for n in (900, 500)
        ]
        waiting = scheduler.schedule("waits", len, OneTime(1.0), args=("",))
        wall = scheduler.schedule_at(len, scheduler.clock.now() + 1e6, args=("",))
        support.eventually(lambda: scheduler.stats().ready == 1)
        text = dumped()
        held.release.set()
    for part in (
        "--- scheduler",
        "timer: idle",
        "running, 5 tasks",
        "counters: started 1",
        f"{running.id} (held), running, run 1, attempt 1",
        f"{waiting.id} (waits), scheduled, priority 1",
        "due by the steady clock: 2",
        f"{later[1].id} (later 500), scheduled, in ",
        f"{later[0].id} (later 900), scheduled, in ",
        "due by the wall clock: 1",
        f"{wall.id} (len), scheduled, in ",
        "ThreadPool: 1 of at most 1 calls run",
        "procsched-worker-1: task-1 (held), run 1, attempt 1, limit 60.0 s, which cannot be enforced in a thread",
        "thread procsched-worker-1",
        "in __call__",
        "thread MainThread",
        "which writes this",
    ):
        assert part in text, f"{part!r} is not in\n{text}"
    assert text.index("later 500") < text.index("later 900")


def test_a_dump_says_what_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million entries are not for a person: the first are shown, the rest is counted."""
    monkeypatch.setattr(dumping, "ENTRIES", 2)
    with on_threads() as scheduler:
        for n in range(5):
            scheduler.schedule_every(len, 100 + n, args=("",))
        text = dumped()
    assert "task-2 (len)" in text
    assert "task-3 (len)" not in text
    assert "and 3 more" in text


def test_a_dump_goes_on_behind_what_cannot_be_read() -> None:
    """What a step that was interrupted has torn hides nothing but itself."""
    with on_threads() as scheduler:
        entries, scheduler.engine.entries = scheduler.engine.entries, None  # type: ignore[assignment]
        try:
            text = dumped()
        finally:
            scheduler.engine.entries = entries
    assert "could not be read: TypeError" in text
    assert "ThreadPool: 0 of at most 1 calls run" in text


class Pool:
    """A pool of a user's own, of which nothing is known but what `WorkerPool` says."""

    def __init__(self) -> None:
        inner = ThreadPool(1)
        self.size = inner.size
        for name in ("pack", "start", "pump", "kill", "poke", "next_deadline", "stats", "shutdown"):
            setattr(self, name, getattr(inner, name))


def test_a_dump_of_an_unknown_pool_says_so() -> None:
    """A `WorkerPool` need not be one of ours."""
    with Scheduler(pool=Pool()) as scheduler:  # type: ignore[arg-type]
        assert "the pool is a Pool, of which nothing is known here" in dumped()
        assert scheduler.health().ok


@pytest.fixture
def usr1() -> Iterator[int]:
    """Give a signal whose handler is put back."""
    former = signal.getsignal(signal.SIGUSR1)
    yield signal.SIGUSR1
    assert signal.getsignal(signal.SIGUSR1) == former


def test_a_signal_dumps_and_the_former_handler_comes_back(usr1: int) -> None:
    """Also where the signal interrupts the holder of the scheduler's own lock: nothing is waited for."""
    file = io.StringIO()
    restore = procsched.dump_on_signal(usr1, file)
    try:
        with on_threads() as scheduler:
            scheduler.schedule_every(len, 100, args=("",))
            with scheduler._lock:
                signal.raise_signal(usr1)
                text = file.getvalue()
    finally:
        restore()
    assert "task-1 (len), scheduled, in " in text
    assert "in test_a_signal_dumps" in text
    restore()  # twice is once


def test_a_handler_that_somebody_else_has_set_meanwhile_stays(usr1: int) -> None:
    """To put the former one back would take theirs away."""
    restore = procsched.dump_on_signal(usr1, io.StringIO())
    former = signal.signal(usr1, signal.SIG_IGN)
    restore()
    assert signal.getsignal(usr1) == signal.SIG_IGN
    signal.signal(usr1, former)
    restore()


def test_only_the_main_thread_sets_handlers() -> None:
    """Elsewhere it is refused with a word on why."""
    errors: list[BaseException] = []

    def install() -> None:
        try:
            procsched.dump_on_signal(signal.SIGUSR1)
        except SchedulerStateError as error:
            errors.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_a_dump_into_a_file_that_is_just_written_to(tmp_path: Any) -> None:
    """A handler that interrupts a write to the same file is refused by `io`; the dump goes past it."""
    with open(tmp_path / "dump", "w+", encoding="utf-8") as real:

        class Reentrant(io.StringIO):
            def write(self, text: str) -> int:
                raise RuntimeError("reentrant call inside")

            def fileno(self) -> int:
                return real.fileno()

        procsched.dump(Reentrant())
        real.seek(0)
        assert real.read().startswith(f"=== procsched in process {os.getpid()}")


def test_a_dump_without_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By default it goes there; a process without one dumps nothing, and raises nothing."""
    procsched.dump()
    assert "=== procsched in process" in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr", None)
    procsched.dump()


# --- frames ----------------------------------------------------------------------------------------------------


def test_where_a_thread_is() -> None:
    """Somebody else's function first, and what it waits in; nothing for a thread that is gone."""
    with Block() as block:
        thread = threading.Thread(target=block.hold)
        thread.start()
        block.wait()
        place = support.eventually(
            lambda: "there in" in (_frames.where(thread.ident) or "") and _frames.where(thread.ident)
        )
        assert place.startswith("Block.hold (")
        assert "Condition.wait (" in place
        block.go_on.set()
        thread.join()
    assert _frames.where(thread.ident) is None
    assert _frames.where(None) is None


def test_who_holds_a_lock() -> None:
    """A reentrant lock says it by itself, and is not taken for that."""
    lock = threading.RLock()
    assert _frames.holder(lock) is None
    with lock:
        assert _frames.holder(lock) == threading.get_ident()
    assert _frames.holder(object()) is None
