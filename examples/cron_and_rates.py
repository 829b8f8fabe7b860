"""Cron, a fixed rate and a fixed delay side by side: two days in a moment, by a clock that is moved by hand."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from procsched import CronSchedule, FakeClock, FixedDelay, FixedRate, InlinePool, Scheduler

BERLIN = ZoneInfo("Europe/Berlin")
clock = FakeClock(datetime(2026, 3, 28, 0, 0, tzinfo=BERLIN))  # the next night has no 02:30


def nothing():
    pass


with Scheduler(clock=clock, pool=InlinePool()) as scheduler:
    nightly = scheduler.schedule("nightly", nothing, CronSchedule("30 2 * * *", tz="Europe/Berlin"))
    hourly = scheduler.schedule("hourly", nothing, FixedRate(timedelta(hours=1)))
    sweep = scheduler.schedule("sweep", nothing, FixedDelay(6 * 3600.0))

    for _ in range(48):
        scheduler.wait_idle()
        clock.advance(timedelta(hours=1))
    scheduler.wait_idle()

    for task in (nightly, hourly, sweep):
        print(f"{task.name:<8} {len(task.history)} runs")
    for record in nightly.history:
        print("  ", datetime.fromtimestamp(record.due_at, UTC).astimezone(BERLIN))
    hours = [datetime.fromtimestamp(record.due_at, BERLIN).hour for record in nightly.history]
    assert hours == [2, 3]  # 02:30 fell into the gap, so it ran at the gap's end

# The next due times of an expression, without any scheduler.
schedule = CronSchedule("0 9 * * MON-FRI", tz="Europe/Berlin")
due = clock.now()
for _ in range(3):
    due = schedule.next_after(due)
    print(datetime.fromtimestamp(due, BERLIN))
