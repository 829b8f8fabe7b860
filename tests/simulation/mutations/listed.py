"""The breaks: each a small mistake that somebody could make, in one place of one module.

A break is a text that stands exactly once in its file, and what is put there. Where it no longer does, the break has to
be made anew: see `applied.py`.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutation(NamedTuple):
    """One break of the source.

    Attributes:
        name: what is wrong then.
        module: the file, below `procsched/`.
        before, after: what stands there, and what is put in its place.
    """

    name: str
    module: str
    before: str
    after: str


MUTATIONS = (
    Mutation(
        "the generation is not checked where a slow schedule's answer arrives",
        "_core/following.py",
        "        if entry.generation != question.generation:\n            return False\n",
        "",
    ),
    Mutation(
        "a rate's next slot counts from now, and drifts",
        "_core/planning.py",
        "        return Plan(schedule.aligned(slots.anchor, dealt + schedule.period))\n    if schedule.on_overrun",
        "        return Plan(now + schedule.period)\n    if schedule.on_overrun",
    ),
    Mutation(
        "the bound on catching up is ignored",
        "_core/planning.py",
        "        queue = queue[-limit:]\n"
        "        return Plan(queue[0], queue[-1], queue[1:], skipped=skipped)\n    if backlog",
        "        return Plan(queue[0], queue[-1], queue[1:], skipped=skipped)\n    if backlog",
    ),
    Mutation(
        "the backoff is not capped",
        "_core/models.py",
        "        if exponent >= (most - first) / growth:\n            return self.max_backoff\n        try:\n"
        "            wait = self.initial_backoff * self.multiplier**exponent\n",
        "        try:\n            return self.initial_backoff * self.multiplier**exponent\n",
    ),
    Mutation(
        "the priority does not count",
        "_core/queues.py",
        "self._push((priority, due_at, sequence, entry.generation, entry))\n",
        "self._push((1, due_at, sequence, entry.generation, entry))\n",
    ),
    Mutation(
        "a task that is paused keeps its place in the queue",
        "_core/requests.py",
        "        self.withdraw(entry)\n        self.move(entry, TaskChange.PAUSE, wall, None, text)\n",
        "        self.move(entry, TaskChange.PAUSE, wall, None, text)\n",
    ),
    Mutation(
        "the place of a worker that crashed is not given back",
        "workers/sending.py",
        "        pool.running += (state in RUNNING_STATES) - (was in RUNNING_STATES)\n",
        "        if state is not WorkerState.GONE:\n"
        "            pool.running += (state in RUNNING_STATES) - (was in RUNNING_STATES)\n",
    ),
    Mutation(
        "an answer that comes behind the deadline is taken, and the kill goes on",
        "workers/booking.py",
        "            if worker.state is not WorkerState.BUSY and not asked:\n                return None\n",
        "            asked = False\n",
    ),
    Mutation(
        "a call that no worker has begun is not put back",
        "workers/dispatch.py",
        "            self._returned.appendleft(call)\n",
        "            pass\n",
    ),
    Mutation(
        "the deadline counts from the slot",
        "workers/sending.py",
        "            self.hard_at = math.inf if timeout is None else now + timeout\n",
        "            late = time.time() - call.entry.due_wall\n"
        "            self.hard_at = math.inf if timeout is None else now + timeout - late\n",
    ),
    Mutation(
        "a worker begins calls that were taken back",
        "child/worker.py",
        "        return self.token == number\n",
        "        return True\n",
    ),
    Mutation(
        "what was sent ahead stays there when something more urgent comes",
        "scheduler/driver.py",
        "            if outrun:\n                self._recall()\n            if ready:\n",
        "            if ready:\n",
    ),
    Mutation(
        "the timer is not told of an earlier slot",
        "scheduler/driver.py",
        "            self._changed.notify()\n            self._timer_waits = False\n",
        "            self._timer_waits = False\n",
    ),
    Mutation(
        "slots that were missed are not counted",
        "_core/following.py",
        "                self.move(entry, TaskChange.SCHEDULE, wall, None, text)\n"
        "            self.count_missed(entry, answer.missed, wall)\n",
        "                self.move(entry, TaskChange.SCHEDULE, wall, None, text)\n",
    ),
    Mutation(
        "a retry counts as a new run",
        "_core/engine.py",
        "return (entry.attempt + 1, entry.run) if entry.status",
        "return (entry.attempt + 1, entry.run + 1) if entry.status",
    ),
    Mutation(
        "what was due at a shutdown is not returned",
        "_core/engine.py",
        "        for entry in self.ready.live_entries():\n",
        "        for entry in self.ready.live_entries()[1:]:\n",
    ),
    Mutation(
        "an answer is not read before the deadline is enforced",
        "workers/process.py",
        "            self.recall_locked()\n        self.read(thorough=True)\n        return self.call if",
        "            self.recall_locked()\n        return self.call if",
    ),
    Mutation(
        "the loop's timer is not armed for an earlier time",
        "workers/loop.py",
        "            self._armed = at\n            if self._timer_fd >= 0:\n"
        "                _timerfd.timerfd_arm(self._timer_fd, at)\n                return\n",
        "            self._armed = at\n            if self._timer_fd >= 0:\n                return\n",
    ),
    # What the simulation has found: each of these was so once.
    Mutation(
        "an answer that ends its worker is not known to have begun",
        "workers/booking.py",
        "                    worker.note_begun_locked(call, now - began)"
        "  # it may have come with the answer before it\n",
        "",
    ),
    Mutation(
        "a worker that does not get ready takes the place of a run",
        "workers/process.py",
        "self.enter_locked(WorkerState.DUMPING if self.ready else WorkerState.FAILING)",
        "self.enter_locked(WorkerState.DUMPING)",
    ),
    Mutation(
        "what is ready waits for slow schedules",
        "scheduler/driver.py",
        "            if ready:\n"
        "                self.pool.pump()  # first: what is ready does not wait for slow schedules\n"
        "            for question in questions:\n                self._answer(question)\n"
        "                self.pool.pump()  # for the same reason\n",
        "            for question in questions:\n                self._answer(question)\n"
        "            if ready or questions:\n                self.pool.pump()\n",
    ),
    Mutation(
        "a slot that a slow schedule is asked about is lost in a shutdown",
        "_core/engine.py",
        "            elif question.why == MISFIRE and entry.generation == question.generation:\n",
        "            elif False:\n",
    ),
    Mutation(
        "listeners are let go before the store is",
        "scheduler/closing.py",
        "        if self.writer is not None:  # first: the listeners hear of what it could not write\n",
        '        self._guarded("listeners", self.delivery.close, closing.left_beyond(since))\n'
        "        if self.writer is not None:\n",
    ),
    Mutation(
        "what nobody was told of is put back as if it had begun",
        "workers/sending.py",
        "            if call.told:\n                pool.put_back_locked(call)\n",
        "            pool.put_back_locked(call)\n            call.told = True\n",
    ),
    Mutation(
        "what a listener lost is counted twice",
        "listeners.py",
        "        if outlet not in self._outlets:\n            return 0  # its losses are counted\n",
        "",
    ),
    Mutation(
        "a schedule that hangs at a shutdown fails the tasks behind it",
        "_core/engine.py",
        "                if planning.is_computed(entry.handle.schedule):",
        "                if False:",
    ),
    Mutation(
        "what is revived or resumed does not go before what was sent ahead",
        "scheduler/driver.py",
        "            if outrun:\n                self._recall()\n            self.pool.pump()\n",
        "            self.pool.pump()\n",
    ),
)
