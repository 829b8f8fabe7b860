"""Code for a thread-based scheduler, moved: what it changes in the caller's memory becomes a result.

An action runs in another process, so it cannot append to this program's lists. It returns what it has, and whoever
wants it reads `record.result`. What cannot move yet stays on threads, behind the same interface.
"""

import threading

from procsched import FixedRate, Outcome, Priority, RetryPolicy, Scheduler, ThreadPool


def poll(sensor):
    return {"sensor": sensor, "value": len(sensor)}


# In processes, with the arguments in their classic places.
scheduler = Scheduler(2)
task = scheduler.schedule("poll", poll, FixedRate(0.2), Priority.NORMAL, RetryPolicy(), 2.0, args=("attic",))
scheduler.start()
readings = [scheduler.wait(task).result for _ in range(2)]
scheduler.shutdown(wait=True)
print(readings)
assert readings[0]["sensor"] == "attic"

# On threads: for what shares memory or cannot be pickled, here a lock and a list. A thread cannot be killed.
lock, seen = threading.Lock(), []


def remember(value):
    with lock:
        seen.append(value)


with Scheduler(pool=ThreadPool(2)) as scheduler:
    tasks = [scheduler.schedule_after(remember, 0, args=(value,), timeout=5) for value in range(3)]
    assert all(scheduler.wait(task).outcome is Outcome.SUCCEEDED for task in tasks)
print(sorted(seen))
