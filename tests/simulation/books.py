"""The books of scheduler and pool, looked at from outside: after steps, where nothing moves, and at the end."""

from __future__ import annotations

import math
from typing import Any

from procsched import FixedRate, Outcome
from procsched._core.entries import READY, RETRYING, SCHEDULED, STEADY, WALL
from procsched.workers.sending import RUNNING_STATES, WorkerState
from tests.simulation.ledger import NEAR, Ledger

OFTEN = 3  # steps between two looks at the pool's
EVERY = 48  # steps between two looks at all the books


class Books(Ledger):
    """Looks at them."""

    def look(self) -> None:
        """Look at the books after a step."""
        pool, steps = self.pool, self.world.steps
        if pool._source is None or steps % OFTEN:
            return
        running = 0
        for worker in pool.fleet.workers.values():
            state = worker.state
            if state in RUNNING_STATES:
                running += 1
                if worker.call is None:
                    self.fail(f"worker {worker.number} is {state} with nothing")
            if (worker in pool.busy) != (state is WorkerState.BUSY):
                self.fail(f"worker {worker.number} is {state}, and the list of the busy says otherwise")
            if worker in pool.idle and not worker.may_be_idle_locked():
                self.fail(f"worker {worker.number} is {state}, and counts as free")
        if running != pool.running:
            self.fail(f"{running} workers run, and the pool counts {pool.running}")
        if running > pool.size:
            self.fail(f"{running} workers run, of {pool.size}")
        if steps % EVERY == 0:
            self.books()

    def books(self) -> None:
        """Look at everything."""
        try:
            self.engine.check()
        except AssertionError as error:
            self.fail(f"the engine's books are wrong: {error}")
        counters = self.engine.counters
        if counters["started"] != len(self.attempts):
            self.fail(f"{counters['started']} started, and {len(self.attempts)} were told")
        for outcome in Outcome:
            if counters[outcome.value] != self.outcomes[outcome]:
                self.fail(f"{counters[outcome.value]} {outcome}, and {self.outcomes[outcome]} were told")
        if counters["missed"] != self.missed:
            self.fail(f"{counters['missed']} missed, and {self.missed} were told")

    def at_rest(self, until: float) -> None:
        """Nothing happens until then: nothing may wait that could go on."""
        scheduler, engine, pool = self.scheduler, self.engine, self.pool
        if pool._source is None or scheduler._state != 2 or pool._closing or self.world.io.busy:
            return
        now = self.world.mono
        timer = scheduler._timer
        if not timer.busy and engine.due.is_due(self.line() - NEAR, self.world.wall() - 0.2):
            self.fail(f"something is due, and nobody looks before {until - now:.3f} s from now")
        workers = pool.fleet.workers.values()
        free = pool.running < pool.size
        if timer.busy and free and pool.idle:
            for name in self.of_a_pass:
                if self.entries[name].queued == READY:
                    self.fail(f"{name} is ready and a worker is free, and the timer asks a schedule")
        free = free and not timer.busy  # what others make ready meanwhile has to wait for it
        if free and (len(engine.ready) - engine.ready.lent or pool._returned):
            if pool.idle:
                self.fail("something is ready and a worker is free")
            starting = any(worker.state is WorkerState.STARTING for worker in workers)
            if not starting and pool.fleet.alarm == math.inf and not self._helper_is_busy():
                self.fail("something is ready, and no worker comes")
        asked = {question.entry for question in engine.open_questions}
        for entry in engine.running.values():
            call = entry.live
            if call.worker is None and call not in pool._returned and entry not in asked:
                self.fail(f"{self._key_of(call)} has begun, and no worker has it")
        earliest = min((alarm.alarm for alarm in pool.loop.alarms), default=math.inf)
        armed = self.world.timer_at
        if earliest < math.inf and (armed is None or armed > max(earliest, now) + 1e-6):
            self.fail("an alarm is set, and nobody wakes for it")
        for worker in workers:
            child = self.world.processes.by_pid.get(worker.pid)
            if child is None:
                continue
            if (
                worker.state is WorkerState.BUSY
                and worker.hard_at < now - 0.05
                and not self._helper_is_busy()
            ):
                self.fail(f"worker {worker.number} is {now - worker.hard_at:.3f} s over its deadline")
            idle = not child.dead and child.serving and child.run is None and not child.frames
            if worker.state is WorkerState.BUSY and worker.call and idle and not worker.decoder.in_frame:
                self.fail(f"worker {worker.number} is free, and counts as busy")
            if pool.idle and free and worker.waiting_since_locked() < now - 0.02:
                self.fail(f"a call waits behind another at worker {worker.number}, and a worker is free")

    def _index(self, entry: Any, slot: float) -> int | None:
        schedule = entry.handle.schedule
        if not isinstance(schedule, FixedRate):
            return None
        return round((slot - entry.anchor) / schedule.period)

    def slots(self) -> None:
        """Every slot of every grid was run, missed, skipped, passed over by a revival, or waits."""
        dealt = accounted = 0
        for name, entry in self.entries.items():
            last = self._index(entry, entry.dealt)
            if last is None:
                continue
            waits = entry.slot > self.last_slot.get(name, -math.inf)
            dealt += last + 1
            accounted += self.slots_run[name] + len(entry.backlog) + waits + self.bases.get(name, 0)
        counters = self.engine.counters
        accounted += self.missed_rates + counters["skipped"] - self.skipped_by_cron
        if dealt != accounted:
            self.fail(f"{dealt} slots passed, and {accounted} are accounted for")

    @property
    def missed_rates(self) -> int:
        """Slots of rates that were missed."""
        return self.missed - self.missed_others

    def finish(self, report: Any) -> None:
        """After the shutdown: nothing is left, and the report adds up."""
        self.books()
        for key, attempted in self.attempts.items():
            if attempted.record is None:
                self.fail(f"{key} has no record")
        for key, truth in self.begun.items():
            if key not in self.attempts:
                self.fail(f"{key} was begun and the scheduler never said so: {truth.how}")
        alive = self.world.processes.alive
        if alive:
            self.fail(f"workers {[child.number for child in alive]} are alive after the shutdown")
        for name, entry in self.entries.items():
            if entry.status is not self.status[name]:
                self.fail(f"{name} is {entry.status}, and was told to be {self.status[name]}")
            if entry.status in (SCHEDULED, RETRYING) and entry.queued not in (STEADY, WALL):
                self.fail(f"{name} is {entry.status}, and waits nowhere")
        if set(report.returned) != self.given_back:
            self.fail(f"{report.returned} were returned, and {self.given_back} were told")
        if self.engine.counters["returned"] != self.returned:
            self.fail(f"{self.engine.counters['returned']} were returned, and {self.returned} were told")
        for killed, names in ((False, report.finished), (True, report.killed)):
            if set(names) != self.ended_in_closing[killed]:
                self.fail(
                    f"{names} are reported, killed: {killed}, and really: {self.ended_in_closing[killed]}"
                )
        for name in report.killed:
            if self.last[name].record is None or self.last[name].record.outcome is not Outcome.KILLED:
                self.fail(f"{name} was killed by the shutdown, and its last record says otherwise")
