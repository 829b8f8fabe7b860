"""What users do: schedule, cancel, kill, pause, resume, revive, wait, set the clock, shut down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from procsched import (
    CronSchedule,
    FixedDelay,
    FixedRate,
    MisfirePolicy,
    OneTime,
    OverrunPolicy,
    Priority,
    RetryPolicy,
    SchedulerStateError,
    TaskKilledError,
    TaskNotFoundError,
)
from procsched.schedules.once import After
from tests.simulation import jobs
from tests.simulation.world import Parked, Strand, Violation, World

_CRONS = (CronSchedule("* * * * * *"), CronSchedule("*/2 * * * * *"), CronSchedule("* * * * *"))
_MISFIRE = tuple(MisfirePolicy)
_PRIORITY = tuple(Priority)


class Ids:
    """Ids that say what a task is."""

    def __init__(self) -> None:
        self.word = "task"
        self.count = 0

    def next_id(self) -> str:
        self.count += 1
        return f"{self.word}-{self.count}"


class Users:
    """Draws and does what users do. See the module."""

    def __init__(self, world: World, scheduler: Any, clock: Any, settings: Any, ids: Ids) -> None:
        self.world = world
        self.rng = world.rng
        self.scheduler = scheduler
        self.clock = clock
        self.settings = settings
        self.ids = ids
        self.handles: list[Any] = []
        self.keyed: tuple[str, Any] | None = None  # kind and schedule of the task that had the key last
        self.left = settings.operations
        self.shutting = False
        self.main_busy = False
        brief = settings.theme == "brief"
        self.kinds: tuple[str, ...] = (
            ("once", "once", "once", "after", "rate", "delay")
            if brief
            else ("cron", "cron", "foreign", "once")
            if settings.theme == "slow"
            else ("once", "after", "rate", "rate", "delay", "cron", "foreign")
        )
        self.operations: tuple[tuple[str, Callable[[], object]], ...] = (
            ("schedule", self.schedule),
            ("schedule", self.schedule),
            ("schedule", self.schedule),
            ("cancel", self.cancel),
            ("cancel and kill", self.cancel_and_kill),
            ("kill", self.kill),
            ("kill", self.kill),
            ("pause", self.pause),
            ("pause", self.pause),
            ("resume", self.resume),
            ("resume", self.resume),
            ("revive", self.revive),
            ("set the clock", self.set_clock),
            ("suspend", self.suspend),
            ("wake", self.scheduler.wake),
            ("wait", self.wait),
            ("wait until idle", self.wait_idle),
            ("look at the figures", self.stats),
            ("burst", self.burst),
        )
        if brief:
            self.operations += (("resume an urgent one", self.overtake),)

    # -- when ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Schedule the first tasks, start, and go on now and then."""
        if self.settings.before_start:
            for _ in range(self.settings.tasks):
                self.schedule()
                self.world.run(self.world.mono + self.rng.choice((0.0, 0.1, 2.0)))
            if self.handles and self.rng.random() < 0.3:
                self.run_as_user("pause", self.pause)  # of one that is gone by now, it may be
                self.run_as_user("resume", self.resume)
        self.scheduler.start()
        for _ in range(self.settings.tasks):
            self.schedule()
        if self.settings.theme == "slow":  # which may be while a schedule does not answer
            self.world.later(self.settings.horizon * self.rng.random(), self.shut_down)
        self.plan()

    def plan(self) -> None:
        """Plan the next thing that a user does."""
        pause = self.settings.horizon / self.settings.operations
        seconds = self.rng.expovariate(1 / pause) if self.rng.random() < 0.8 else 1e-5
        self.world.later(seconds, self.act)

    def act(self) -> None:
        """Do something, as the main thread or another."""
        if self.left <= 0 or self.shutting:
            return
        if self.world.io is not None and self.world.io.busy:
            # Who waited now would keep the I/O thread, which is below it, from going on.
            self.world.later(1e-4, self.act)
            return
        self.left -= 1
        self.plan()
        if self.rng.random() < 0.03:
            self.shut_down()
            return
        name, operation = self.operations[int(self.rng.random() * len(self.operations))]
        self.run_as_user(name, operation)

    def run_as_user(self, name: str, operation: Callable[[], object]) -> None:
        """Do it in a strand of a user's."""
        world = self.world
        main = not self.main_busy and self.rng.random() < 0.5
        before = world.current
        world.current = world.main if main else Strand(world, None, "user")
        self.main_busy = self.main_busy or main
        answer: object = None
        try:
            answer = operation()
        except TaskNotFoundError as error:
            if "keep_finished" not in self.settings.options:
                raise Violation(f"{name}: {error}") from error
            answer = "forgotten"
        except SchedulerStateError as error:
            if not self.shutting and self.scheduler._state <= 2:
                raise Violation(f"{name} is refused: {error}") from error
            answer = "refused"
        finally:
            world.current = before
            if main:
                self.main_busy = False
        world.note(name, f"-> {answer}")

    # -- what ------------------------------------------------------------------------------------------------

    def schedule(self) -> str:
        """Schedule a task of any kind."""
        rng, world = self.rng, self.world
        kind = rng.choice(self.kinds)
        period = rng.choice((0.1, 0.25, 0.5, 1.0, 1.0, 3.0)) * self.settings.stretch
        start = rng.choice((0.0, 0.0, 0.1, 1.0))
        schedule: Any
        if kind == "once":
            schedule = OneTime(world.wall() + rng.choice((-5.0, 0.0, 0.0, 0.01, 0.5)))
        elif kind == "after":
            schedule = After(rng.choice((0.0, 0.05, 0.5)))
        elif kind == "rate":
            schedule = FixedRate(period, rng.choice((OverrunPolicy.SKIP, OverrunPolicy.CATCH_UP)), start)
        elif kind == "delay":
            schedule = FixedDelay(rng.choice((0.02 * self.settings.stretch, period)), start)
        elif kind == "cron":
            schedule = rng.choice(_CRONS)
        else:
            schedule = jobs.Foreign(world, 0.0 if self.settings.theme == "slow" else period, 0.1)
        brief = rng.random() < (0.9 if self.settings.theme == "brief" else 0.25)
        return self._schedule(kind, schedule, brief)

    def _schedule(self, kind: str, schedule: Any, brief: bool, priority: Priority | None = None) -> str:
        rng, world = self.rng, self.world
        action = (jobs.brief if rng.random() < 0.7 else jobs.other_brief) if brief else jobs.long
        timeout = None
        soft = None
        grace = 0.0
        if rng.random() < (0.9 if self.settings.theme == "deadline" else 0.3):
            timeout = rng.choice((0.002, 0.05, 0.3, 0.5))
            grace = rng.choice((0.0, 0.0, 0.02, 0.2))
        if rng.random() < 0.1:
            soft = rng.choice((0.001, 0.03, 0.2))
            if timeout is not None and soft >= timeout:
                soft = timeout / 2
        retry = RetryPolicy(
            rng.choice((1, 1, 2, 4)),
            rng.choice((0.0, 0.01, 0.2, 1.0)),
            rng.choice((1.0, 2.0)),
            rng.choice((0.3, 60.0)),
        )
        self.ids.word = f"brief-{kind}" if brief else kind
        name = f"{self.ids.word}-{self.ids.count + 1}"
        world.behave.limits[name] = timeout, grace
        settings = {
            "priority": rng.choice(_PRIORITY) if priority is None else priority,
            "misfire": rng.choice(_MISFIRE),
            "max_catch_up": rng.choice((1, 3, 100)),
            "on_exhausted": rng.choice(("dead_letter", "continue")),
            "capture_output": rng.random() < 0.05,
            "key": "key" if rng.random() < 0.05 else None,
            "replace": rng.random() < 0.5,
        }
        if settings["key"] is not None:
            if self.keyed is not None and self.ids.count % 2:
                kind, schedule = self.keyed  # the same as that of the task in whose place it comes
            self.keyed = kind, schedule
        handle = self.scheduler.schedule(
            kind, action, schedule, retry=retry, timeout=timeout, soft_timeout=soft, grace=grace, **settings
        )
        if handle.id == name:
            self.handles.append(handle)
        world.seen[f"schedule {kind}"] += 1
        return handle.id

    def burst(self) -> str:
        """Schedule many that are due at once."""
        count = (
            self.rng.choice((3, 6, 12)) if self.settings.theme != "brief" else self.rng.choice((4, 12, 30))
        )
        for _ in range(count):
            self._schedule("once", OneTime(self.world.wall() - 1.0), True)
        return str(count)

    def overtake(self) -> str:
        """Pause an urgent one, and resume it while many that are not are about to run."""
        now = self.world.wall() - 1.0
        task = self.scheduler.task(self._schedule("once", OneTime(now), True, Priority.HIGH))
        self.scheduler.pause(task)
        for _ in range(self.rng.choice((6, 20))):
            self._schedule("once", OneTime(now), True, Priority.LOW)

        self._resume_behind(task, 40)
        return task.id

    def _resume_behind(self, task: Any, looks: int) -> None:
        """Resume a task once others are sent ahead, from a thread of a user's."""
        if not self.scheduler.engine.ready.lent and looks:
            self.world.later(5e-5, lambda: self._resume_behind(task, looks - 1))
            return
        self.world.behave.lingers = True  # or else they are done before anybody could be overtaken
        main, self.main_busy = self.main_busy, True
        self.run_as_user("resume", lambda: self.scheduler.resume(task))
        self.main_busy = main

    def any(self) -> Any:
        """Return a task."""
        return self.rng.choice(self.handles) if self.handles else self.scheduler.task(self.schedule())

    def cancel(self) -> bool:
        """Cancel a task."""
        return self.scheduler.cancel(self.any())

    def cancel_and_kill(self) -> bool:
        """Cancel a task, and end its run."""
        return self._kill(self.any(), lambda task: self.scheduler.cancel(task, kill=True), cancels=True)

    def kill(self) -> bool:
        """End the run of a task: mostly of one that has one."""
        running = [handle for handle in self.handles if handle.id in self.scheduler.engine.running]
        task = self.rng.choice(running) if running and self.rng.random() < 0.8 else self.any()
        return self._kill(task, self.scheduler.kill, cancels=False)

    def _kill(self, task: Any, operation: Callable[[Any], bool], *, cancels: bool) -> bool:
        checker = self.world.checker
        asked_before = task.id in checker.killing
        checker.killing.add(task.id)
        key = checker.live_key(task.id)
        status = task.status
        answer = operation(task)
        if answer and key is not None and (not cancels or status.is_terminal):
            checker.kills[key] = True
        if not answer and not cancels and not asked_before:
            checker.killing.discard(task.id)
        self.world.seen["a kill that ends a run"] += bool(answer)
        return answer

    def pause(self) -> bool:
        """Pause a task."""
        return self.scheduler.pause(self.any())

    def resume(self) -> bool:
        """Resume a task: mostly one that is paused."""
        paused = [handle for handle in self.handles if handle.status.value == "paused"]
        return self.scheduler.resume(self.rng.choice(paused) if paused else self.any())

    def revive(self) -> bool:
        """Revive a task: mostly one that has failed."""
        failed = [handle for handle in self.handles if handle.status.value == "failed"]
        task = self.rng.choice(failed) if failed else self.any()
        try:
            return self.scheduler.revive(task)
        except SchedulerStateError as error:
            key = task.task.key
            later = self.handles[self.handles.index(task) + 1 :]
            if "has taken its place" not in str(error) or key not in [other.task.key for other in later]:
                raise
            return False
        except Exception as error:
            if type(error).__name__ != "ScheduleError":
                raise
            return False

    def set_clock(self) -> float:
        """Step the wall clock."""
        seconds = self.rng.choice((-3600.0, -2.5, -0.3, 0.05, 0.5, 7.0, 3600.0))
        self.clock.set_wall(seconds)
        return seconds

    def suspend(self) -> float:
        """Let the system sleep."""
        seconds = self.rng.choice((0.4, 1.0, 30.0))
        self.clock.suspend(seconds)
        return seconds

    def wait(self) -> str:
        """Wait for a run."""
        try:
            record = self.scheduler.wait(self.any(), timeout=self.rng.choice((0.0, 0.05, 1.0)))
        except TimeoutError:
            return "time is up"
        except TaskKilledError:
            return "no run"
        except SchedulerStateError:
            return "shut down"
        return record.outcome.value

    def wait_idle(self) -> bool:
        """Wait until nothing is due."""
        return self.scheduler.wait_idle(timeout=self.rng.choice((0.0, 0.05, 0.5)))

    def stats(self) -> int:
        """Look at the figures."""
        stats = self.scheduler.stats()
        started = stats.counters["started"]
        if started != len(self.world.checker.attempts):
            raise Violation(f"the figures say that {started} started")
        return started

    # -- the end ---------------------------------------------------------------------------------------------

    def shut_down(self, *, listener: bool = False) -> None:
        """Shut down, once or twice at once."""
        rng, world = self.rng, self.world
        drain, timeout = rng.random() < 0.6, rng.choice((0.0, 0.0, 0.1, 1.0, 3.0))
        self.shutting = True
        if self.scheduler._closing is not None:
            self.join_shutdown()
            return
        if rng.random() < 0.2:
            world.later(rng.choice((1e-4, 0.01, 0.2)), self.join_shutdown)
        began, slept = world.mono, world.slept
        before = world.current
        if not listener:
            main = not self.main_busy and world.depth <= 1
            world.current = world.main if main else Strand(world, None, "user")
        graces = [grace for _timeout, grace in world.behave.limits.values()]
        try:
            report = self.scheduler.shutdown(drain, timeout)
        finally:
            world.current = before
        closing = self.scheduler._closing
        if closing is None or closing.report is None:
            world.note("shutdown", "goes on elsewhere")
            return
        if report != closing.report:
            raise Violation(f"the shutdown reports {report}, and then {closing.report}")
        took = world.mono - began
        world.note("shutdown", f"drain={drain} timeout={timeout} took {took:.4f}")
        limit = timeout + max(graces, default=0.0) + 9.0 + world.slept - slept
        if took > limit:
            raise Violation(f"the shutdown took {took:.3f} s, and {limit:.3f} are the most")

    def join_shutdown(self) -> None:
        """Shut down while somebody does."""
        world = self.world
        strand = Strand(world, None, "user")
        strand.parks = True
        strand.alive = True

        def step() -> float | None:
            try:
                report = self.scheduler.shutdown(self.rng.random() < 0.5, self.rng.choice((0.0, 1.0)))
            except Parked:
                return None
            world.note("shutdown joined")
            strand.alive = False
            if self.scheduler._closing.report is not report:
                raise Violation("two shutdowns report differently")
            return None

        if self.scheduler._closing is not None and self.scheduler._closing.leader is not None:
            strand.step = step
            strand.wake()
