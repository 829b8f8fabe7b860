"""The ten lines of the README: one job hangs in C and is killed, the others go on."""

import re

from procsched import Scheduler


def match(text):
    return re.match(r"(a+)+$", text)  # backtracks for hours, in C: no thread could stop it


with Scheduler(workers=2) as scheduler:
    hung = scheduler.schedule_after(match, 0, args=("a" * 40 + "!",), timeout=2)
    scheduler.schedule_every(print, 0.5, args=("the others go on",))
    print(scheduler.wait(hung).error)  # exceeded its 2.0 s budget
