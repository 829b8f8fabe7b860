"""Hear how far a job is while it runs, in its own process."""

import time

from procsched import Scheduler, current_run


class Printer:
    """A listener is anything with this method."""

    def on_task_event(self, event):
        """Called for every event, on a thread of its own."""
        if event.kind == "progress":
            done, total, note = event.progress
            print(f"{event.name}: {done:g} of {total:g}, {note}")


def resize(names):
    run = current_run()
    for number, name in enumerate(names, 1):
        time.sleep(0.1)  # the work
        run.progress(number, len(names), name)
        if run.remaining() < 0.5:  # seconds before the deadline
            return number
    return len(names)


with Scheduler(listeners=[Printer()]) as scheduler:
    task = scheduler.schedule_after(resize, 0, args=(["cat.png", "dog.png", "owl.png"],), timeout=10)
    print("resized:", scheduler.wait(task).result)
