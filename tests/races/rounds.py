"""The races: one run at a time beside a run behind it, or several runs at once where the pool is shut down."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from procsched import Outcome, dump
from tests.races import actions
from tests.races.aim import POOL_SPREAD, SPREAD, Aim, Balance, winner_of
from tests.races.faces import ExecutorFace, SchedulerFace, signal_worker

FACES = {"executor": ExecutorFace, "scheduler": SchedulerFace}
LEAD = 0.003  # seconds from handing a call over to the instant: it has begun by then, on a machine that is not busy
OUTSIDE_LEAD = 0.01  # the same where its pid has to be asked for meanwhile
POOL_LEAD = 0.03  # the same where several are handed over at once
AT_ONCE = 6  # runs of one pool that is shut down
GRACE = 5.0  # seconds, longer than any of these runs needs to be asked
START = 0.06  # seconds for which each of several workers is kept busy, so that all of them are started


class Races:
    """Rounds of one pair in one face.

    Args:
        directory: where the actions tell what has begun.
        seed: decides everything but the scheduling of the processes.
    """

    def __init__(self, pair: tuple[str, str], face: str, directory: Path, seed: int) -> None:
        self.pair = pair
        self.dice = random.Random(f"{seed} {pair} {face}")
        self.aim = Aim(self.dice, POOL_SPREAD if "shutdown" in pair else SPREAD)
        self.balance = Balance(pair, face)
        self.log = directory / f"{face}-{'-'.join(pair)}"
        self.make = FACES[face]
        self.expected: Counter[str] = Counter()  # key -> attempts that have a record, since the last look
        self.recorded: Counter[str] = Counter()  # the same since the pool was made
        self.number = 0

    def run(self, rounds: int) -> Balance:
        """Run so many races, and check what began against what is recorded."""
        self.log.touch()
        if "shutdown" in self.pair:
            while self.balance.rounds < rounds:
                self.pool_round(min(AT_ONCE, rounds - self.balance.rounds))
        else:
            face = self.make(1)
            try:
                run = face.begin("warm", actions.follow, str(self.log), "warm")
                self.settle(face, "warm", run, only=Outcome.SUCCEEDED)
                while self.balance.rounds < rounds:
                    self.one_round(face)
                    self.check_starts(every=500)
            finally:
                face.shutdown()
            face.check_told(self.recorded)
        self.check_starts()
        return self.balance

    # -- one race ------------------------------------------------------------------------------------------

    def one_round(self, face: Any) -> None:
        """Aim two ends at one run, and see that the next run on that worker is not hit."""
        key = self.key()
        outside = "crash" in self.pair and "end" in self.pair
        at = time.monotonic() + (OUTSIDE_LEAD if outside else LEAD)
        times = dict(zip(self.pair, (at, at + self.aim.draw()), strict=True))
        run = self.begin(face, key, times)
        behind = []
        if not outside and self.dice.random() < 0.6:  # a kill from outside may strike whoever is there
            behind.append(self.follow(face))
        said = self.act(face, [run], times, outside=outside)
        behind.append(self.follow(face))
        if said is None:
            self.settle(face, key, run, only=Outcome.SUCCEEDED)
            self.balance.unstarted += 1
        elif winner := self.judge(face, key, run, cancelled=said[0]):
            self.aim.correct(self.pair.index(winner))
        for name, follower in behind:
            self.settle(face, name, follower, only=Outcome.SUCCEEDED)

    def begin(self, face: Any, key: str, times: dict[str, float]) -> Any:
        """Begin a run that ends by itself at the time that it is told, or never."""
        how, at = "hang", 0.0
        if "end" in times:
            how, at = "end", times["end"]
        elif "crash" in times:
            how, at = self.dice.choice(("exit", "kill")), times["crash"]
        options: dict[str, Any] = {}
        if self.dice.random() < 0.3 and "crash" not in times:
            options["grace"] = GRACE
        if "timeout" in times:
            limit = max(1e-4, times["timeout"] - time.monotonic())
            soft = self.dice.random() < 0.2 and "crash" not in times
            options["soft_timeout" if soft else "timeout"] = limit
        return face.begin(key, actions.race, str(self.log), key, at, how, **options)

    def follow(self, face: Any, seconds: float = 0.0) -> tuple[str, Any]:
        """Begin a run that must not be hit."""
        key = self.key()
        return key, face.begin(key, actions.follow, str(self.log), key, seconds)

    def act(self, face: Any, runs: list[Any], times: dict[str, float], *, outside: bool) -> list[bool] | None:
        """Do at its time what comes from this process.

        Returns:
            For each run whether its cancelling was promised; None where it came too late to aim at it.
        """
        said = [False] * len(runs)
        steps: list[tuple[float, Callable[[], None]]] = []
        if "cancel" in times:

            def cancel(place: int) -> None:
                said[place] = face.cancel(runs[place])

            steps += [(times["cancel"], lambda place=place: cancel(place)) for place in range(len(runs))]  # type: ignore[misc]
        if "shutdown" in times:
            steps.append((times["shutdown"], face.shutdown))
        if outside:
            pids = face.pids()
            while not pids and time.monotonic() < min(times.values()) - LEAD / 3:
                time.sleep(0.0002)  # the timer of a scheduler needs the interpreter
                pids = face.pids()
            if not pids:
                return None
            steps += [(times["crash"], signal_worker(pid)) for pid in pids]
        if "shutdown" in times and "cancel" in times:  # each waits for itself
            thread = threading.Thread(target=_at, args=(times["shutdown"], face.shutdown))
            thread.start()
            steps = [step for step in steps if step[1] != face.shutdown]
        else:
            thread = None
        for at, act in sorted(steps, key=lambda each: each[0]):
            _at(at, act)
        if thread is not None:
            thread.join()
        if "shutdown" not in times:
            _until(max(times.values()))
        return said

    # -- several races, one shutdown -------------------------------------------------------------------------

    def pool_round(self, runs: int) -> None:
        """Shut a pool down at the instant at which each of several runs ends otherwise; others wait for a worker."""
        face = self.make(runs)
        try:
            keys = [self.key() for _ in range(runs)]
            warm = [self.follow(face, START) for _ in range(runs)]
            for name, run in warm:
                self.settle(face, name, run, only=Outcome.SUCCEEDED)
            at = time.monotonic() + POOL_LEAD
            # All share the time of the shutdown; how much the others come later is drawn for each.
            first = self.pair[0]
            begun = [self.begin(face, key, {first: at - self.aim.draw(), "shutdown": at}) for key in keys]
            behind = [self.follow(face) for _ in range(2)]
            times = {"shutdown": at}
            if "cancel" in self.pair:
                times["cancel"] = at - self.aim.draw()
            said = self.act(face, begun, times, outside=False) or []
        finally:
            face.shutdown()
        self.balance.pools += 1
        won = Counter(
            self.judge(face, key, run, cancelled=promised)
            for key, run, promised in zip(keys, begun, said, strict=True)
        )
        for name, run in behind:
            self.settle(face, name, run)
        face.check_told(self.recorded)
        self.recorded.clear()
        if won[self.pair[0]] != won["shutdown"]:
            self.aim.correct(self.pair.index(max(self.pair, key=lambda event: won[event])))

    # -- what became of it -----------------------------------------------------------------------------------

    def judge(self, face: Any, key: str, run: Any, *, cancelled: bool) -> str:
        """Fail unless the run has one record, by one of the two; return who has won, or "" where it never began."""
        records = face.records(run)
        assert len(records) <= 1, records
        record = records[0] if records else None
        face.check(run, record, cancelled)
        if record is None:
            self.expected[key] = 0
            self.balance.unstarted += 1
            return ""
        self.expected[key] = self.recorded[key] = 1
        winner = winner_of(record.outcome, record.error)
        assert winner in self.pair, (self.pair, record)
        assert cancelled == (winner == "cancel"), (cancelled, record)
        self.balance.won[winner] += 1
        return winner

    def settle(self, face: Any, key: str, run: Any, *, only: Outcome | None = None) -> None:
        """Wait for the end of a run that was no target, and fail if it was hit."""
        try:
            records = face.records(run)
        except TimeoutError:
            dump()  # of a hang, or of a machine that is too busy
            raise
        self.expected[key] = self.recorded[key] = len(records)
        assert len(records) <= 1, records
        if only is not None:
            assert [record.outcome for record in records] == [only], records
        for record in records:
            allowed = {Outcome.SUCCEEDED} if only else {Outcome.SUCCEEDED, Outcome.KILLED}
            assert record.outcome in allowed, record
            face.check(run, record, False)

    def check_starts(self, every: int = 1) -> None:
        """Fail unless each attempt with a record has begun at most once, and none without one."""
        if self.balance.rounds % every:
            return
        counts = Counter(self.log.read_text(encoding="utf-8").split())
        for key, count in counts.items():
            assert count <= self.expected[key], (key, count, self.expected[key])
        self.log.write_text("")
        self.expected.clear()

    def key(self) -> str:
        """Return a name that nothing had before."""
        self.number += 1
        return f"{self.balance.face[0]}{self.number}"


def _until(at: float) -> None:
    left = at - time.monotonic() - 0.0003
    if left > 0:
        time.sleep(left)
    while time.monotonic() < at:
        pass


def _at(at: float, act: Callable[[], object]) -> None:
    _until(at)
    act()
