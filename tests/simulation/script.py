"""What a seed makes of a run: how big, which faults, what the children do, and what users ask for."""

from __future__ import annotations

import random
from typing import Any

from procsched._core import wire
from procsched.workers.sending import BACKSTOP_MARGIN
from tests.simulation.children import Behaviour, Child, Truth
from tests.simulation.world import World


class Settings:
    """The size of a run and the faults in it, drawn from the seed."""

    def __init__(self, rng: random.Random) -> None:
        self.theme = rng.choice(
            ("grid", "brief", "brief", "crash", "deadline", "deadline", "start", "mixed", "mixed", "slow")
        )
        self.workers = rng.choice((1, 1, 2, 2, 3))
        self.tasks = rng.randint(1, 3)
        self.operations = rng.randint(3, 16)
        self.horizon = rng.choice((0.02, 0.1, 0.5, 2.0, 4.0)) if self.theme != "slow" else 4.0
        # Of periods: the longer the run, the fewer slots in a second.
        self.stretch = max(1.0, self.horizon)
        self.slow = rng.choice((0.0, 0.0, 0.02, 0.1))
        self.slowest = rng.choice((0.001, 0.01, 0.05))
        self.before_start = rng.random() < 0.15
        self.store = rng.choice((None, None, None, "memory", "raises", "commits"))
        self.listener = rng.choice((None, None, "raises", "shuts down"))
        # Some variable, for all that the environment is copied for each worker.
        self.options: dict[str, Any] = {"env": {"SEED": "1"}, "start_timeout": rng.choice((0.3, 2.0))}
        if rng.random() < 0.2:
            self.options["max_runs_per_worker"] = rng.randint(1, 4)
        if rng.random() < 0.1:
            self.options["capture_output"] = True
        if rng.random() < 0.1:
            self.options["max_rss_per_worker"] = 1 << 20
        if rng.random() < 0.15:  # so few that listeners lose some, or tasks are forgotten
            self.options["event_limit"] = rng.choice((1, 4))
        if rng.random() < 0.15:
            self.options["keep_finished"] = rng.choice((0, 1, 5))
            self.options["dead_letter_limit"] = rng.choice((0, 1, 5))
        if rng.random() < 0.3:
            self.options["history_limit"] = rng.choice((1, 2))
        faulty = rng.random() < 0.6
        self.chances = {
            "fork fails": rng.choice((0.0, 0.0, 0.2, 0.9)) if self.theme == "start" else 0.0,
            "start": rng.choice((0.2, 0.5)) if self.theme == "start" else (0.03 if faulty else 0.0),
            "helper": rng.choice((0.0, 0.3, 0.6)) if self.theme in ("start", "mixed") else 0.0,
            "guard": 0.1 if self.theme == "start" else 0.0,
            "crash": 0.5 if self.theme == "crash" else (0.08 if faulty else 0.0),
            "raise": rng.choice((0.0, 0.2, 0.5)),
            "hang": 0.1 if faulty else 0.0,
            "dirty": rng.choice((0.0, 0.1)),
            "split": rng.choice((0.0, 0.1)),
            "stuck": 0.05 if faulty else 0.0,
            "slow reap": rng.choice((0.0, 0.0, 0.1)),
        }


class Script:
    """Answers what children and helper do next. `World.behave`."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.rng = world.rng
        self.settings = settings
        self.chances = settings.chances
        self.calm = False  # no further faults: the run comes to its end
        self.lingers = False  # the next brief call is not
        self.limits: dict[str, tuple[float | None, float]] = {}  # timeout and grace by task

    def chance(self, name: str) -> bool:
        """Whether something happens now."""
        likely = self.chances[name]
        return bool(likely) and not self.calm and self.rng.random() < likely

    # -- processes -------------------------------------------------------------------------------------------

    def guard(self) -> None:
        """A guard is started."""
        if self.chance("guard"):
            self.world.note("no guard")
            raise OSError("no process")

    def helper(self) -> tuple[str, float]:
        """What becomes of a helper, and seconds until it serves."""
        seconds = 0.002 + 0.03 * self.rng.random()
        if self.chance("helper"):
            return self.rng.choice(("dies", "dies", "hangs", "never serves")), seconds
        return "serves", seconds

    def fork(self) -> tuple[str, float]:
        """Whether a fork goes, and seconds until the parent hears of it."""
        if self.chance("fork fails"):
            return "fails", 0.0
        return "forks", self.world.latency() * self.rng.choice((1, 1, 50))

    def start(self, child: Child) -> tuple[str, float]:
        """How a worker starts."""
        rng = self.rng
        child.hears = rng.random() < 0.9
        if self.chance("start"):
            kind = rng.choice(("never", "fails", "dies", "garbage", "ready"))
            return kind, rng.choice((0.0, 0.01, 0.2, 0.29, 0.3, 0.31))
        return "ready", 0.0005 + 0.004 * rng.random()

    def resident(self) -> int:
        """Bytes that a worker has in memory."""
        return self.rng.choice((1000, 1000, 1 << 21))

    def reap(self) -> float:
        """Seconds from a death until the parent hears of it."""
        if self.chance("slow reap"):
            return self.rng.choice((0.05, 0.3, 6.0)) * self.rng.random()
        return self.world.latency() + 5e-5

    # -- calls -----------------------------------------------------------------------------------------------

    def call(self, child: Child, truth: Truth, frame: wire.Frame) -> Behaviour:
        """What a child does with a call."""
        rng = self.rng
        timeout, grace = self.limits[truth.task_id]
        brief = truth.task_id.startswith("brief")
        if brief:
            seconds = rng.choice((2e-5, 5e-5, 1e-4, 3e-4))
            if rng.random() < 0.06 or self.lingers:
                seconds = 0.02 if self.lingers else rng.choice((0.002, 0.02))
                self.lingers = False
        else:
            seconds = rng.choice((0.0003, 0.005, 0.05, 0.05, 0.4, 1.5))
        kind = "raise" if self.chance("raise") else "return"
        if self.chance("crash"):
            kind = rng.choice(
                ("before", "exit", "signal", "signal", "eof", "half", "garbage", "answering", "answered")
            )
        if timeout is not None:
            hard = truth.began + timeout
            if frame.first and not truth.ahead:
                hard = frame.first - grace - BACKSTOP_MARGIN
            truth.hard = hard
            draw = rng.random()
            deadline = self.settings.theme == "deadline"
            if draw < (0.3 if deadline else 0.03):
                kind = rng.choice(("return", "return", "raise", "signal", "answering", "hang"))
                early = rng.choice((-6e-4, -5e-4, -1e-4, -3e-5, -1e-6, 0.0, 1e-6, 1e-5, 1e-4, 0.02, grace))
                seconds = max(0.0, hard + early - truth.began)
                self.world.seen[f"{kind} at the deadline"] += 1
            elif (draw < 0.45 and deadline) or self.chance("hang"):
                kind = "hang"
        elif self.chance("hang") and rng.random() < 0.2:
            kind = "hang"
        behaviour = Behaviour(kind, seconds)
        if rng.random() < 0.5:
            behaviour.heed = rng.choice((0.0, 0.0, 1e-4, 0.01, grace, grace + 1e-3, 1.0))
            behaviour.returns = rng.random() < 0.3
        behaviour.progress = rng.random() < 0.05
        behaviour.dirty = self.chance("dirty")
        if self.chance("split"):
            behaviour.split = rng.choice((1e-5, 0.001, 0.2))
        return behaviour
