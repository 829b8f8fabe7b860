"""Hear of every change: a listener of one's own, and the log that tests use.

Exactly one event per attempt carries its record. A listener that raises delays and harms nobody.
"""

from procsched import EventLog, OneTime, RetryPolicy, Scheduler


class Mailer:
    """Tell somebody when a task has failed for good."""

    def on_task_event(self, event):
        """Called once for each change, one after another."""
        if event.status == "failed":
            print(f"mail: {event.name} has failed: {event.record.error}")


class Faulty:
    """Every listener has its own thread."""

    def on_task_event(self, event):
        """What this raises goes to the log of the program, and no further."""
        raise ValueError("a bug in a listener")


def parse(text):
    return int(text)


log = EventLog()
with Scheduler(workers=2, listeners=[log, Mailer(), Faulty()]) as scheduler:
    policy = RetryPolicy(max_attempts=2, initial_backoff=0.1)
    scheduler.schedule("good", parse, OneTime(0), retry=policy, args=("42",))
    scheduler.schedule("bad", parse, OneTime(0), retry=policy, args=("forty-two",))
    assert log.wait_for(lambda events: len(log.runs()) == 3, timeout=10)

for event in log.events:
    outcome = event.record.outcome if event.record else ""
    print(f"{event.sequence:>2} {event.name:<5} {event.status:<10} {outcome}")
assert [event.record.ok for event in log.runs("bad")] == [False, False]
