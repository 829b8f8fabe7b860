"""Who is stuck, for how long and where: here a listener that waits for a mail server which does not answer."""

import threading

from procsched import OneTime, Scheduler, TaskEvent, health


class Mail:
    """Sends a mail for each event, or would."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.answer = threading.Event()

    def on_task_event(self, event: TaskEvent) -> None:
        """Wait for an answer that does not come."""
        self.called.set()
        self.answer.wait(30)


mail = Mail()
with Scheduler(workers=1, listeners=[mail]) as scheduler:
    task = scheduler.schedule("add", sum, OneTime(0.0), args=([1, 2],))
    mail.called.wait(30)
    # The work goes on: a listener delays nobody but itself.
    print("the run:", scheduler.wait(task).result)
    found = health(stuck_after=0.0)  # 1.0 by default; by then somebody waits for this to be printed
    for part in found.troubled:
        if part.name.startswith("listener"):
            print(part.name, part.state, "in", (part.where or "").partition(" (")[0])
    mail.answer.set()

print("afterwards:", health())
