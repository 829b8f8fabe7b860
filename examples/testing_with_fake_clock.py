"""A test of twelve hours that takes milliseconds, and a deadline that really kills, by a clock moved by hand."""

import time

from procsched import FakeClock, FixedRate, InlinePool, Outcome, Scheduler


def test_polls_every_minute():
    runs = []
    clock = FakeClock(0.0)
    # InlinePool runs each action in the thread that waits: it may append to our list, and nothing is left to chance.
    with Scheduler(clock=clock, pool=InlinePool()) as scheduler:
        scheduler.schedule("poll", lambda: runs.append(clock.now()), FixedRate(60.0))
        scheduler.wait_idle()
        for _ in range(12 * 60):
            clock.advance(60.0)
            scheduler.wait_idle()
    assert runs == [minute * 60.0 for minute in range(12 * 60 + 1)]


def test_hanging_job_is_killed_after_an_hour():
    clock = FakeClock(0.0)
    # The default pool: a real child, whose deadline follows the clock that is injected.
    with Scheduler(workers=1, clock=clock) as scheduler:
        task = scheduler.schedule_after(time.sleep, 0, args=(86400,), timeout=3600)
        while task.status != "running":
            time.sleep(0.001)
        clock.advance(3600)
        record = scheduler.wait(task, timeout=10)
    assert record.outcome is Outcome.TIMED_OUT
    print("killed after", record.duration, "seconds by the fake clock, and", record.error)


begun = time.perf_counter()
test_polls_every_minute()
print(f"twelve hours in {time.perf_counter() - begun:.3f} s")
test_hanging_job_is_killed_after_an_hour()
