"""The troublemakers of the demo: how each is scheduled, and what is foretold of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from procsched import NO_RETRY, FixedRate, Outcome, Priority, RetryPolicy
from procsched.cli import demo_jobs

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Final

    from procsched import ExecutionRecord, ScheduledTask, Scheduler

TIMEOUT: Final = 1.5  # seconds that the two hanging jobs get
GRACE: Final = 0.25  # seconds between asking the stubborn one and killing it
BEATS: Final = 1.0  # seconds between two heartbeats
SWEEPS: Final = 0.5  # seconds between two runs of the job that is paused
CANCEL_AFTER: Final = 1.0  # seconds that the report may run before it is cancelled
LATE: Final = 1.0  # seconds beyond its deadline after which a kill is not as foretold


@dataclass
class Act:
    """One troublemaker: its task, what is foretold, and what became of it.

    Attributes:
        about: what it does, in a few words.
        expected: the outcomes of its attempts in order; the last may repeat where it `recurs`.
        signal: the signal that ends it, where that is foretold.
        records: one for each attempt so far.
        over: its last record has come.
        notes: what else is to be said of it.
        complaints: what else did not come out as foretold.
    """

    task: ScheduledTask
    about: str
    expected: tuple[Outcome, ...]
    recurs: bool = False
    signal: str | None = None
    records: list[ExecutionRecord] = field(default_factory=list)
    over: bool = False
    notes: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def lateness(self) -> float | None:
        """Return how many seconds after deadline and grace the run was over; None where it was not ended there."""
        timeout = self.task.task.timeout
        if timeout is None or not self.records or not self.records[-1].timed_out:
            return None
        return self.records[-1].duration - timeout - self.task.task.grace

    def verdict(self) -> list[str]:
        """Return what did not come out as foretold, one sentence each; nothing where all did."""
        name = self.task.name
        came = [record.outcome for record in self.records]
        wanted = list(self.expected)
        if self.recurs:
            wanted += wanted[-1:] * (len(came) - len(wanted))
        found = [f"{name}: {text}" for text in self.complaints]
        if came != wanted:
            found.append(f"{name}: foretold was {words(wanted)}, it came out {words(came)}")
        elif self.signal and self.records[-1].signal != self.signal:
            found.append(f"{name}: foretold was {self.signal}, it died by {self.records[-1].signal}")
        late = self.lateness()
        if late is not None and late > LATE:
            found.append(f"{name}: it was ended {late:.1f} s too late")
        return found


def words(outcomes: list[Outcome]) -> str:
    """Return outcomes for a person: ``failed, failed, succeeded``."""
    if len(outcomes) > 3 and len(set(outcomes)) == 1:
        return f"{len(outcomes):,} x {outcomes[0].value}"
    return ", ".join(outcome.value for outcome in outcomes) or "nothing"


def hire(scheduler: Scheduler, scratch: Path, tempting: tuple[str, int]) -> dict[str, Act]:
    """Schedule the troublemakers, one after another over the first seconds; return them by name.

    Args:
        scratch: a directory for what must outlive an attempt.
        tempting: file and line number on which the regular expression never ends.
    """
    after = scheduler.schedule_after
    retry = RetryPolicy(max_attempts=demo_jobs.FAILURES + 1, initial_backoff=0.3)
    acts = [
        Act(
            scheduler.schedule("heartbeat", demo_jobs.heartbeat, FixedRate(BEATS), Priority.HIGH, NO_RETRY),
            "every second, before everything else",
            (Outcome.SUCCEEDED,),
            recurs=True,
        ),
        Act(
            scheduler.schedule("paused", demo_jobs.sweep, FixedRate(SWEEPS), retry=NO_RETRY),
            "every half second; paused after its first run, resumed at the end",
            (Outcome.SUCCEEDED,),
            recurs=True,
        ),
        Act(
            after(demo_jobs.segfault, 0.5, name="segfault"),
            "reads the byte at address 0",
            (Outcome.CRASHED,),
            signal="SIGSEGV",
        ),
        Act(
            after(demo_jobs.flaky, 0.8, name="flaky", args=(str(scratch / "attempts"),), retry=retry),
            "fails twice, then succeeds",
            (Outcome.FAILED,) * demo_jobs.FAILURES + (Outcome.SUCCEEDED,),
        ),
        Act(
            after(demo_jobs.long_report, 1.0, name="cancelled", timeout=60.0),
            "would take an hour; cancelled while it runs",
            (Outcome.KILLED,),
        ),
        Act(
            after(demo_jobs.backtrack, 1.5, name="backtrack", args=tempting, timeout=TIMEOUT),
            "a regular expression that backtracks for ever, in C",
            (Outcome.TIMED_OUT,),
        ),
        Act(
            after(
                demo_jobs.stubborn,
                2.5,
                name="stubborn",
                args=(str(scratch / "daemon"),),
                timeout=TIMEOUT,
                grace=GRACE,
            ),
            "ignores every signal and leaves a daemon behind",
            (Outcome.TIMED_OUT,),
        ),
    ]
    return {act.task.name: act for act in acts}
