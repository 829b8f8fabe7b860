"""A program that does nothing but run its schedules, until somebody tells it to stop.

Ctrl-C and SIGTERM (a service manager, ``kill``) end it in good order: what is due still runs, what runs may finish.
"""

import os
import signal
import threading

from procsched import FixedRate, Scheduler

STOP = {signal.SIGINT, signal.SIGTERM}
signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # first of all: the scheduler's threads inherit it


def poll():
    print("polled", flush=True)


# Only here, so that the example ends by itself: somebody says stop.
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()

scheduler = Scheduler(workers=2)
scheduler.schedule("poll", poll, FixedRate(0.3), timeout=4)
scheduler.start()

received = signal.sigwait(STOP)  # costs nothing while it waits
signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)  # from here on a second Ctrl-C ends it at once
print("stopping on", signal.Signals(received).name)
report = scheduler.shutdown(timeout=20)
print("killed:", report.killed, "returned:", report.returned)
