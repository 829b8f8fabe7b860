"""Kill a regular expression that hangs, and see where it hung.

The engine is C code that holds the interpreter while it looks for a match: no other thread even gets to run.
There is no ``if __name__ == "__main__":`` here, in none of these examples: workers never run this script again.
"""

import re

from procsched import Outcome, Scheduler


def match(text):
    return re.match(r"(a+)+$", text) is not None  # a match itself cannot travel back


with Scheduler(workers=1) as scheduler:
    hung = scheduler.schedule_after(match, 0, args=("a" * 40 + "!",), timeout=0.5)
    fine = scheduler.schedule_after(match, 0, args=("aaa",), timeout=0.5)

    record = scheduler.wait(hung)
    print(f"{record.outcome}: {record.error}; ended by {record.signal} after {record.duration:.4f} s")
    print(record.stack or "where it hung: the machine was too busy to say")
    assert record.outcome is Outcome.TIMED_OUT

    # The one worker was replaced, so the next job finds its place free.
    print("the next one:", scheduler.wait(fine).result)
