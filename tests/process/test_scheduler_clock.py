"""Time and real children: a fake clock that really kills, twelve hours in no time, steps and suspends of the clock.

The last test steps the clock of a program for real (`tests/clock_shim.py`). The kernel does not tell of such a step:
the scheduler is told with `wake()`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from procsched import (
    CronSchedule,
    FakeClock,
    FixedDelay,
    FixedRate,
    MisfirePolicy,
    OneTime,
    Outcome,
    RetryPolicy,
    TaskStatus,
)
from procsched.workers.sending import BACKSTOP_MARGIN
from tests import clock_shim, faults, preloaded, support
from tests.pools import Parent, assert_reaped, open_gate, told_pids
from tests.schedulers import Rig, fail_by, hang_once
from tests.unit.scheduling import START

HOUR = 3600.0
TEN_YEARS = 10 * 365.25 * 24 * HOUR
NO_STORM = 8.0  # real seconds that only a storm of runs takes


class Simulated(Rig):
    """A rig on a fake clock."""

    def __init__(self, directory: Path, workers: int = 2, **options: object) -> None:
        self.clock = FakeClock(START)
        super().__init__(directory, workers, clock=self.clock, **options)

    def pass_time(self, seconds: float) -> None:
        """Move the clock, and wait until what that made due has run."""
        self.clock.advance(seconds)
        self.settle()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Simulated]:
    with Simulated(tmp_path) as it:
        yield it


def slots(rig: Rig, name: str) -> list[float]:
    """Return the slots of the runs of a task in seconds since the start."""
    records = [event.record for event in rig.log.runs(name)]
    return [record.due_at - START for record in records if record is not None and record.due_at is not None]


# --- deadlines ----------------------------------------------------------------------------------------------


def test_moving_the_clock_past_a_deadline_kills_the_child(rig: Simulated) -> None:
    """The child of a run with an hour's limit is gone as soon as the clock has passed that hour, and not before."""
    told = rig.path()
    task = rig.at_once(faults.ignore_signals, told, timeout=HOUR)
    pid = told_pids(told)[0]
    rig.clock.advance(HOUR - 1)
    assert task.status is TaskStatus.RUNNING
    assert not support.process_gone(pid, 0)
    rig.clock.advance(1)
    record = rig.wait(task)
    assert_reaped(pid)
    assert (record.outcome, record.duration) == (Outcome.TIMED_OUT, HOUR)
    assert record.error == "exceeded its 3600.0 s budget"


def outlast(told: str, seconds: float, gate: str) -> None:
    """Let real time pass, say so, and wait at the gate."""
    time.sleep(seconds)
    faults.wait_at_gate(gate, told)


def test_nothing_is_killed_by_the_real_time(rig: Simulated) -> None:
    """Real seconds beyond a limit by an injected clock, and beyond the backstop that it would have, end no run."""
    limit = 0.05
    told, gate = rig.path(), rig.gate()
    task = rig.at_once(outlast, told, limit + 4 * BACKSTOP_MARGIN, gate, timeout=limit)
    (pid,) = told_pids(told)
    assert not support.process_gone(pid, 0)
    assert task.status is TaskStatus.RUNNING
    open_gate(gate)
    record = rig.wait(task)
    assert (record.outcome, record.duration, record.pid) == (Outcome.SUCCEEDED, 0.0, pid)


def test_a_grace_is_of_the_real_world(rig: Simulated) -> None:
    """After a deadline of the fake clock the run is asked, and has real time to clean up."""
    told = rig.path()
    task = rig.at_once(faults.clean_up, told, timeout=HOUR, grace=8.0)
    support.wait_for_file(told)
    rig.clock.advance(HOUR)
    assert rig.wait(task).outcome is Outcome.TIMED_OUT
    assert support.wait_for_file(told, lines=3).split() == ["began", "TaskTimeoutError", "cleaned"]


def test_a_soft_timeout_follows_the_fake_clock(rig: Simulated) -> None:
    """The soft limit is reached when the clock says so; the run that leaves by it is TIMED_OUT."""
    told = rig.path()
    task = rig.at_once(faults.sleep, told, soft_timeout=60, timeout=HOUR)
    support.wait_for_file(told)
    rig.clock.advance(60)
    record = rig.wait(task)
    assert (record.outcome, record.error) == (Outcome.TIMED_OUT, "exceeded its 60.0 s soft limit")


def test_time_asleep_is_not_time_of_the_run(rig: Simulated) -> None:
    """A suspend of an hour does not use up a limit of a minute; a minute awake does."""
    told = rig.path()
    task = rig.at_once(faults.sleep, told, timeout=60)
    pid = told_pids(told)[0]
    rig.clock.suspend(HOUR)
    rig.clock.advance(59)
    assert not support.process_gone(pid, 0)
    rig.clock.advance(1)
    assert rig.wait(task).outcome is Outcome.TIMED_OUT
    assert_reaped(pid)


def test_a_step_of_the_wall_clock_neither_kills_nor_spares(rig: Simulated) -> None:
    """Deadlines and durations do not follow the wall clock, whichever way it is set."""
    told = rig.path()
    task = rig.at_once(faults.sleep, told, timeout=60)
    pid = told_pids(told)[0]
    rig.clock.step_wall(2 * HOUR)
    rig.clock.step_wall(-4 * HOUR)
    rig.clock.advance(59)
    assert not support.process_gone(pid, 0)
    rig.clock.advance(1)
    record = rig.wait(task)
    assert (record.outcome, record.duration) == (Outcome.TIMED_OUT, 60.0)


def test_backoff_follows_the_fake_clock(rig: Simulated) -> None:
    """Retries after crashes wait for the clock, and come exactly then."""
    told = rig.path()
    task = rig.at_once(fail_by, told, 3, "crash", retry=RetryPolicy(3, 20.0))
    rig.settle()
    assert (task.status, task.next_run_at) == (TaskStatus.RETRYING, START + 20)
    rig.pass_time(19.5)
    assert len(task.history) == 1
    rig.pass_time(0.5)
    rig.pass_time(40)
    assert [record.started_at - START for record in task.history] == [0, 20, 60]
    assert task.status is TaskStatus.SUCCEEDED


# --- long times ---------------------------------------------------------------------------------------------


def test_twelve_hours_pass_in_no_time(rig: Simulated) -> None:
    """Hourly runs, a nightly one and a one-shot, each in a child and each at its slot, without waiting for any."""
    began = time.monotonic()
    scheduler = rig.scheduler
    scheduler.schedule("hourly", faults.add, FixedRate(HOUR, start_delay=HOUR), args=(1, 1))
    scheduler.schedule("nightly", faults.add, CronSchedule("0 3 * * *", tz="Europe/Berlin"), args=(1, 1))
    once = scheduler.schedule("once", faults.add, OneTime(START + 12 * HOUR), args=(20, 22))
    for _ in range(12):
        rig.pass_time(HOUR)
    assert time.monotonic() - began < NO_STORM
    assert slots(rig, "hourly") == [k * HOUR for k in range(1, 13)]
    assert slots(rig, "nightly") == [1_700_013_600.0 - START]  # 2023-11-15T03:00+01:00
    assert once.history[0].result == 42
    assert all(event.record.ok for event in rig.log.runs() if event.record is not None)


@pytest.mark.parametrize(
    ("move", "misfire"),
    [
        ("step_wall", MisfirePolicy.RUN_ONCE),
        ("step_wall", MisfirePolicy.CATCH_UP),
        ("step_wall", MisfirePolicy.SKIP),
        ("suspend", MisfirePolicy.RUN_ONCE),
        ("suspend", MisfirePolicy.CATCH_UP),
        ("suspend", MisfirePolicy.SKIP),
        ("advance", MisfirePolicy.RUN_ONCE),  # time that just passes is no misfire: the policy has no say
    ],
)
def test_ten_years_forward_make_no_storm(rig: Simulated, move: str, misfire: MisfirePolicy) -> None:
    """A cron of every second and ten years at once: a few runs, the rest counted, and the next second is kept."""
    began = time.monotonic()
    task = rig.scheduler.schedule(
        "t", faults.add, CronSchedule("* * * * * *"), args=(1, 1), misfire=misfire, max_catch_up=3
    )
    rate = rig.scheduler.schedule(
        "rate", faults.add, FixedRate(1.0), args=(1, 1), misfire=misfire, max_catch_up=3
    )
    rig.pass_time(1)
    before = len(rig.log.runs("t"))
    assert before == 1
    getattr(rig.clock, move)(TEN_YEARS)
    rig.settle()
    assert len(rig.log.runs("t")) - before <= 4
    assert len(rig.log.runs("rate")) <= 2 + 4
    rig.pass_time(1)
    assert slots(rig, "t")[-1] == TEN_YEARS + 2
    assert time.monotonic() - began < NO_STORM
    counters = rig.scheduler.stats().counters
    lost = counters["missed"] + counters["skipped"]
    assert lost + len(rig.log.runs("t")) >= TEN_YEARS
    assert (task.is_active, rate.is_active) == (True, True)


# --- steps and suspends -------------------------------------------------------------------------------------


def test_two_hours_forward_and_back(rig: Simulated) -> None:
    """Cron and one-time tasks follow the wall clock at once, rates and delays do not move, no slot runs twice."""
    scheduler = rig.scheduler
    hour = START - START % HOUR + HOUR  # the next full hour
    scheduler.schedule("cron", faults.add, CronSchedule("0 * * * *"), args=(1, 1))
    once = scheduler.schedule("once", faults.add, OneTime(START + HOUR), args=(1, 1))
    scheduler.schedule("rate", faults.add, FixedRate(600.0, start_delay=600.0), args=(1, 1))
    delay = scheduler.schedule("delay", faults.add, FixedDelay(900.0, start_delay=900.0), args=(1, 1))
    rig.clock.step_wall(2 * HOUR)
    rig.settle()
    assert once.status is TaskStatus.SUCCEEDED
    assert len(rig.log.runs("cron")) == 1
    assert rig.log.runs("rate") == rig.log.runs("delay") == ()
    assert delay.next_run_at == START + 2 * HOUR + 900
    rig.clock.step_wall(-2 * HOUR)
    rig.settle()
    assert delay.next_run_at == START + 900
    assert len(rig.log.runs("cron")) == 1
    for _ in range(18):  # three hours
        rig.pass_time(600)
    assert len(rig.log.runs("once")) == 1
    assert slots(rig, "rate") == [600.0 * k for k in range(1, 19)]
    cron = [START + slot for slot in slots(rig, "cron")]
    assert len(cron) == len(set(cron)), "a slot ran twice"
    assert cron[1:] == [
        slot for slot in (hour + k * HOUR for k in range(4)) if cron[0] < slot <= START + 3 * HOUR
    ]


def test_an_hour_asleep(rig: Simulated) -> None:
    """After a suspend a rate runs once for what it slept through, and goes on with its grid."""
    task = rig.scheduler.schedule("t", faults.add, FixedRate(5.0, start_delay=5.0), args=(1, 1))
    rig.clock.suspend(HOUR + 2)
    rig.settle()
    assert slots(rig, "t") == [HOUR]
    assert [record.missed for record in task.history] == [719]
    rig.pass_time(3)
    assert slots(rig, "t") == [HOUR, HOUR + 5]


def test_a_run_that_outlasts_a_step(rig: Simulated) -> None:
    """The clock is set while a run is alive: one record, its duration right, and one run for the next slot."""
    told = rig.path()
    task = rig.scheduler.schedule("t", hang_once, FixedRate(60.0), args=(told, rig.path()), timeout=30)
    pid = told_pids(told)[0]
    rig.clock.step_wall(-2 * HOUR)
    rig.clock.advance(30)
    support.assert_gone(pid)
    rig.settle()
    record = task.history[0]
    assert (record.outcome, record.duration) == (Outcome.TIMED_OUT, 30.0)
    assert record.started_at == START


# --- for real -----------------------------------------------------------------------------------------------

STEPPED = """
import mmap, struct, sys, time
from procsched import *
from tests import faults, support

HOUR = 3600
with open(sys.argv[1], "r+b") as file:
    offset = mmap.mmap(file.fileno(), 8)

def set_clock(seconds):
    before = time.time()
    offset[:8] = struct.pack("q", seconds)
    return time.time() - before

log = EventLog()
scheduler = Scheduler(2, listeners=[log], preload=("tests.schedulers",))
scheduler.start()
start = time.time()
warm = scheduler.schedule("warm", time.time, OneTime(0))
assert abs(scheduler.wait(warm, 30).result - start) < 60

# The full minute half an hour from now, and each hour from there.
minute = int(start // 60 + 30) % 60
once = scheduler.schedule("once", time.time, OneTime(start + HOUR))
cron = scheduler.schedule("cron", time.time, CronSchedule(f"{minute} * * * *"))
slow = scheduler.schedule("slow", time.time, FixedRate(HOUR / 2, start_delay=HOUR / 2))
after = scheduler.schedule_after(time.time, 2 * HOUR, name="after")
planned = slow.next_run_at
assert scheduler.wait_idle(30)
assert not log.runs("once") and not log.runs("cron")

assert set_clock(2 * HOUR) > 2 * HOUR - 60
scheduler.wake()
record = scheduler.wait(once, 30)
assert record.ok and record.result > start + 2 * HOUR - 60, record  # its child sees the new time as well
assert record.due_at == start + HOUR and record.started_at >= start + 2 * HOUR
assert log.wait_for(lambda _: log.runs("cron"), 30)
assert scheduler.wait_idle(30)
assert cron.history[0].missed == 1, cron.history
assert not log.runs("slow") and not log.runs("after")
assert abs(slow.next_run_at - planned - 2 * HOUR) < 1, slow
assert any(event.kind == "clock" and "forward" in event.progress for event in log.events)

set_clock(0)
scheduler.wake()
assert log.wait_for(lambda _: any(e.kind == "clock" and "back" in e.progress for e in log.events), 30)
assert scheduler.wait_idle(30)
assert len(log.runs("once")) == len(log.runs("cron")) == 1, log.runs()
assert not log.runs("slow") and not log.runs("after")
assert abs(slow.next_run_at - planned) < 1, slow
assert once.status is TaskStatus.SUCCEEDED

# A rate that is quick enough to be seen goes on through three steps, on its grid and with no slot twice.
quick = scheduler.schedule("quick", time.monotonic, FixedRate(0.05))
for number, seconds in enumerate((2 * HOUR, -2 * HOUR, 0), 1):
    assert log.wait_for(lambda _: len(log.runs("quick")) >= 3 * number, 30)
    set_clock(seconds)
    scheduler.wake()
assert log.wait_for(lambda _: len(log.runs("quick")) >= 12, 30)
scheduler.cancel(quick)
assert scheduler.wait_idle(30)
records = [event.record for event in log.runs("quick")]
starts = [record.result for record in records]
assert starts == sorted(starts)
grid = []
for record in records:
    moved = round((record.due_at - start) / HOUR) * HOUR  # the clock at its start was off by this
    grid.append((record.due_at - moved - records[0].due_at) / 0.05)
assert all(abs(step - round(step)) < 0.02 for step in grid), grid
assert len({round(step) for step in grid}) == len(grid), grid
assert all(later - first > 0.05 * (b - a) - 0.05 for first, later, a, b in zip(starts, starts[1:], grid, grid[1:]))
assert len(log.runs("once")) == 1
cron_slots = [event.record.due_at for event in log.runs("cron")]
assert len(set(cron_slots)) == len(cron_slots), [slot - start for slot in cron_slots]

# A limit is no matter of the wall clock either.
told = sys.argv[2]
hung = scheduler.schedule("hung", faults.sleep, OneTime(0), args=(told,), retry=NO_RETRY, timeout=2.0)
support.wait_for_file(told)
set_clock(2 * HOUR)
scheduler.wake()
assert scheduler.wait_idle(30)
record = hung.history[0]
assert record.timed_out and 1.9 < record.duration < 60, record
scheduler.engine.check()
scheduler.shutdown()
print("done")
"""


@pytest.fixture
def stepped_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have programs that are started see a wall clock that is off by what a file says; return the file."""
    try:
        variables = clock_shim.build(tmp_path)
    except preloaded.Unavailable as error:
        pytest.skip(str(error))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Path(variables["SHIM_OFFSET"])


@pytest.mark.slow
def test_a_wall_clock_that_is_really_stepped(tmp_path: Path, stepped_clock: Path) -> None:
    """Two hours forward and back in a live program: the one-time task runs at once and once, rates do not move."""
    with Parent(tmp_path, STEPPED, arguments=(str(stepped_clock), str(tmp_path / "told"))) as parent:
        out, err = parent.process.communicate(timeout=60)
        assert (parent.process.returncode, out) == (0, "done\n"), err
