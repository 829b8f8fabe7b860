"""Going on from a plain store, against a scheduler that was never ended."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from procsched import (
    After,
    CronSchedule,
    FakeClock,
    FixedDelay,
    FixedRate,
    InlinePool,
    InMemoryTaskStore,
    MisfirePolicy,
    OneTime,
    RetryPolicy,
    ScheduledTask,
    Scheduler,
)
from tests import stored
from tests.support import TIMEOUT
from tests.unit.scheduling import START

SCHEDULES = (
    OneTime(START + 7),
    After(12),
    FixedDelay(9, 5),
    FixedRate(10, start_delay=3),
    CronSchedule("* * * * * */15"),
)
NEW = st.tuples(
    st.just("schedule"),
    st.sampled_from(SCHEDULES),
    st.booleans(),
    st.sampled_from([RetryPolicy(1), RetryPolicy(3, 4.0)]),
    st.sampled_from(list(MisfirePolicy)),
    st.sampled_from(["dead_letter", "continue"]),
)
REQUEST = st.tuples(st.sampled_from(["pause", "resume", "cancel", "revive"]), st.integers(0, 2))
ADVANCE = st.tuples(st.just("advance"), st.sampled_from([1, 3, 8]))


def act(scheduler: Scheduler, clock: FakeClock, step: tuple[Any, ...]) -> None:
    what, *rest = step
    if what == "advance":
        for _ in range(rest[0]):
            clock.advance(1)
    elif what == "schedule":
        schedule, good, retry, misfire, exhausted = rest
        action = stored.nothing if good else stored.fail
        scheduler.schedule("t", action, schedule, retry=retry, misfire=misfire, on_exhausted=exhausted)
    else:
        tasks = scheduler.tasks()
        if rest[0] < len(tasks):
            getattr(scheduler, what)(tasks[rest[0]])


def state(task: ScheduledTask) -> tuple[Any, ...]:
    done = task.status.is_terminal
    return (
        task.id,
        task.status,
        None if done else task.next_run_at,
        task.attempt,
        [
            (record.run, record.attempt, record.due_at, record.outcome, record.missed)
            for record in task.history
        ],
    )


@settings(deadline=None, max_examples=300)
@given(
    st.lists(NEW, min_size=2, max_size=3),
    st.lists(st.one_of(ADVANCE, REQUEST), min_size=2, max_size=6),
    st.integers(0, 40),
    st.lists(st.one_of(REQUEST, NEW), max_size=3),
)
def test_a_restart_is_like_a_sleep(tasks: list[Any], before: list[Any], down: int, after: list[Any]) -> None:
    """A scheduler that goes on from a plain store does what one does that slept for so long."""
    found = []
    for restarts in (False, True):
        clock, store = FakeClock(START), InMemoryTaskStore()
        scheduler = Scheduler(clock=clock, pool=InlinePool(), store=store)
        scheduler.start()
        for step in (*tasks, *before):
            act(scheduler, clock, step)
        assert scheduler.wait_idle(TIMEOUT)  # what is due by now has run
        if restarts:
            scheduler.shutdown(drain=False)
            clock.advance(down)
            scheduler = Scheduler(clock=clock, pool=InlinePool(), store=store)
            scheduler.start()
        else:
            clock.suspend(down)
        assert scheduler.wait_idle(TIMEOUT)
        for step in (*after, ("advance", 20)):
            act(scheduler, clock, step)
        scheduler.engine.check()
        found.append([state(task) for task in scheduler.tasks()])
        scheduler.shutdown(drain=False)
    assert found[1] == found[0]
