"""``procsched demo [PATH]``: a scheduler at real work, with troublemakers among the jobs.

One job for each Python file, low priority, and around them the acts of `demo_cast`. The main thread does all the
deciding: a listener puts every event into a queue, and `Demo.play` takes them out until all acts are over.
"""

from __future__ import annotations

import argparse
import os
import queue
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from procsched import Priority, ProcessPool, Scheduler, TaskStatus
from procsched.cli import demo_cast, demo_jobs, demo_report
from procsched.cli.demo_view import open_view, seconds
from procsched.cli.processes import end_survivors, wait_ended
from procsched.cli.quiet import only_errors_logged

if TYPE_CHECKING:
    from typing import Any, Final

    from procsched import TaskEvent
    from procsched.cli.demo_view import View

# Everything came out as foretold.
EXIT_AS_FORETOLD: Final = 0
# Something did not, or the time was up before all files were done; the last lines say what.
EXIT_OTHERWISE: Final = 1
# PATH cannot be read or holds no Python file; the reason is on standard output.
EXIT_USAGE: Final = 2

FILE_TIMEOUT: Final = 30.0  # seconds for the analysis of one file; the longest take a third of one
TIME_LIMIT: Final = 55.0  # seconds for all, so that the demo ends within a minute on any machine
LOOK_EVERY: Final = 0.2  # seconds between two updates of the progress
DAEMON_WAIT: Final = 2.0  # seconds in which a daemon that was sent SIGKILL has to be gone
MOST_WORKERS: Final = 8  # by default; with more the acts would be over before one can read them

NEXT: Final = """\
Try next:
  procsched doctor                       what this system offers, tried out
  procsched cron "30 2 * * MON-FRI"      when a cron expression is due
  procsched demo PATH                    the same on files of yours
  python3 -m pydoc procsched.Scheduler   how to use it in your program"""


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the command ``demo``; the parsed arguments carry `run` as ``arguments.run``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "demo",
        help="analyse Python's standard library, with troublemakers among the jobs",
        description="Analyse every Python file of the standard library in child processes, one job each, with "
        "troublemakers among the jobs: some hang, crash, fail, leave a daemon behind, are paused or cancelled. "
        "At the end a table says what happened to each. Takes less than a minute, and leaves nothing behind.",
    )
    parser.add_argument("path", nargs="?", metavar="PATH", help="analyse this file or directory instead")
    parser.add_argument(
        "--workers",
        type=_positive(int),
        default=max(2, min(MOST_WORKERS, os.cpu_count() or 2)),
        metavar="N",
        help=f"how many jobs run at once (default: one for each CPU, from 2 to {MOST_WORKERS})",
    )
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        default=TIME_LIMIT,
        metavar="LIMIT",
        help="withdraw what has not been done by then (default: %(default)g)",
    )
    parser.add_argument("--plain", action="store_true", help="plain lines, also on a terminal")
    parser.set_defaults(run=run)
    return parser


def _positive(kind: type[int] | type[float]) -> Any:
    def parse(text: str) -> int | float:
        value = kind(text)
        if not 0 < value < 1e6:
            raise ValueError(text)
        return value

    parse.__name__ = "positive number"  # what argparse calls it in its message
    return parse


def run(arguments: argparse.Namespace) -> int:
    """Give the demo. Return an exit code."""
    with only_errors_logged():
        return _perform(arguments)


def _perform(arguments: argparse.Namespace) -> int:
    root = Path(arguments.path or sysconfig.get_paths()["stdlib"]).absolute()
    paths = python_files(root)
    view = open_view(plain=arguments.plain)
    if not paths:
        view.say(f"procsched demo: no Python file in {root}")
        return EXIT_USAGE
    view.say(
        f"{len(paths):,} Python files in {root}: one job each, on {arguments.workers} workers. Among them:"
    )
    with tempfile.TemporaryDirectory(prefix="procsched-demo-") as scratch:
        demo = Demo(view, root, paths, Path(scratch), arguments.workers, arguments.seconds)
        try:
            demo.play()
        finally:
            view.close()
    demo.check_left_behind()
    return demo.tell()


def python_files(root: Path) -> list[Path]:
    """Return the Python files in `root`, sorted; without installed packages, which are not the standard library."""
    if root.is_file():
        return [root]
    found = []
    for directory, names, files in os.walk(root):
        names[:] = sorted(
            name for name in names if name not in ("site-packages", "dist-packages", "__pycache__")
        )
        found += [Path(directory, name) for name in sorted(files) if name.endswith(".py")]
    return [path for path in found if path.is_file()]


class Demo:
    """One performance."""

    def __init__(
        self, view: View, root: Path, paths: list[Path], scratch: Path, workers: int, limit: float
    ) -> None:
        self.view = view
        self.root = root
        self.paths = paths
        self.scratch = scratch
        self.workers = workers
        self.begun = time.monotonic()
        self.until = self.begun + limit
        self.events: queue.SimpleQueue[TaskEvent] = queue.SimpleQueue()
        self.files: list[demo_report.Analysed] = []
        self.acts: dict[str, demo_cast.Act] = {}
        self.cancel_at: float | None = None  # steady time
        self.cancelled_at: float | None = None  # steady time
        self.cancel_seconds: float | None = None
        self.resumed = False
        self.beat_late = 0.0  # seconds, of the latest heartbeat
        self.daemon_fate = "never started"
        self.cut_short = ""  # why not everything was to be seen, and what
        self.complaints: list[str] = []

    def on_task_event(self, event: TaskEvent) -> None:
        """Hear of an event, on the listener's thread: the main thread looks at it."""
        self.events.put(event)

    # -- the play ------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Schedule everything, and follow it until all is over or the time is up."""
        pool = ProcessPool(self.workers, preload=["procsched.cli.demo_jobs"])
        with Scheduler(pool=pool, listeners=[self], keep_finished=len(self.paths) + 100) as scheduler:
            tempting = demo_jobs.find_tempting_line([str(path) for path in self.paths])
            self.acts = demo_cast.hire(scheduler, self.scratch, tempting)
            self.acts["backtrack"].notes.append(
                f"the text to match was line {tempting[1]} of {self.name(Path(tempting[0]))}"
            )
            for name, act in self.acts.items():
                self.view.say(f"  {name:<10} {act.about}")
            self.view.say("")
            for path in self.paths:
                scheduler.schedule_after(
                    demo_jobs.analyse,
                    0,
                    name=self.name(path),
                    args=(str(path),),
                    priority=Priority.LOW,
                    timeout=FILE_TIMEOUT,
                )
            while not self.acts["paused"].over:
                if time.monotonic() >= self.until:
                    scheduler.shutdown(drain=False, timeout=0.0)
                    self.cut_short = f"the time was up after {self.elapsed():.0f} s: {self.unfinished()}"
                    return
                self.direct(scheduler)
                try:
                    self.hear(scheduler, self.events.get(timeout=LOOK_EVERY))
                except queue.Empty:
                    pass
                beats = len(self.acts["heartbeat"].records)
                self.view.progress(
                    len(self.files), len(self.paths), f"heartbeat {beats}, {seconds(self.beat_late)} late"
                )
            scheduler.cancel(self.acts["paused"].task)
            scheduler.cancel(self.acts["heartbeat"].task)
            if len(self.files) < len(self.paths):
                # The one that is paused has failed, and there is no end to wait for.
                scheduler.shutdown(drain=False, timeout=0.0)
                self.complaints.append(f"it ended early: {self.unfinished()}")

    def direct(self, scheduler: Scheduler) -> None:
        """Do what is to be done at this moment: cancel one, and at the end resume the one that is paused."""
        if self.cancel_at is not None and time.monotonic() >= self.cancel_at:
            self.cancel_at = None
            self.cancelled_at = time.monotonic()
            scheduler.cancel(self.acts["cancelled"].task, kill=True)
        if self.resumed or len(self.files) < len(self.paths) or not self.acts["paused"].records:
            return
        if all(act.over for act in self.acts.values() if not act.recurs):
            self.resumed = scheduler.resume(self.acts["paused"].task)

    def hear(self, scheduler: Scheduler, event: TaskEvent) -> None:
        """Take note of one event."""
        act = self.acts.get(event.name)
        if act is None or event.task_id != act.task.id:
            if event.record is not None:
                self.files.append((event.name, event.record))
            return
        if event.status is TaskStatus.RUNNING and event.name == "cancelled":
            self.cancel_at = time.monotonic() + demo_cast.CANCEL_AFTER
        record = event.record
        if record is None:
            return
        act.records.append(record)
        act.over = event.status is not None and event.status.is_terminal
        if event.name == "heartbeat":
            self.beat_late = record.started_at - (record.due_at or record.started_at)
            return
        if event.name == "paused":
            self.follow_paused(scheduler, act)
        elif event.name == "cancelled" and self.cancelled_at is not None:
            self.cancel_seconds = time.monotonic() - self.cancelled_at
        elif event.name == "stubborn":
            self.look_for_daemon(act)
        self.view.say(f"{self.elapsed():5.1f} s  {event.name}: {record.error or record.outcome.value}")

    def follow_paused(self, scheduler: Scheduler, act: demo_cast.Act) -> None:
        """Pause it after its first run; its last one stands for all that it missed."""
        if not self.resumed:
            scheduler.pause(act.task)
            return
        act.over = True
        missed = act.records[-1].missed
        act.notes.append(f"the last run stands for {missed} missed")
        if not missed:
            act.complaints.append("it missed no run while it was paused")

    def look_for_daemon(self, act: demo_cast.Act) -> None:
        """The run of the stubborn one is over: what it left behind must be gone with it."""
        looked = time.monotonic()
        try:
            pid = int((self.scratch / "daemon").read_text(encoding="ascii"))
        except FileNotFoundError:
            act.complaints.append("it came to its end before it had started its daemon")
            return
        if wait_ended([pid], DAEMON_WAIT):
            end_survivors([pid])
            self.daemon_fate = f"process {pid} was still alive {DAEMON_WAIT:g} s later"
            act.complaints.append(f"its daemon, process {pid}, lived on")
            return
        self.daemon_fate = (
            f"process {pid}, in a session of its own, gone {seconds(time.monotonic() - looked)} later"
        )

    # -- afterwards ----------------------------------------------------------------------------------------

    def check_left_behind(self) -> None:
        """The scheduler is closed: look for processes and files that are still there."""
        for child in psutil.Process().children(recursive=True):
            self.complaints.append(f"left behind: process {child.pid}")
        if self.scratch.exists():
            self.complaints.append(f"left behind: {self.scratch}")

    def tell(self) -> int:
        """Write what happened. Return an exit code."""
        say = self.view.say
        say("")
        self.view.table(demo_report.table_rows(self.files, self.acts))
        say("\nKilled, and how late:")
        for line in demo_report.kill_lines(self.acts, self.cancel_seconds, self.daemon_fate):
            say(line)
        say("\nFound in the files:")
        for line in demo_report.finding_lines(self.files):
            say(line)
        # What was withdrawn when the time was up had no chance to come out as foretold.
        judged = [act for act in self.acts.values() if act.over or not self.cut_short]
        complaints = [*self.complaints, *(text for act in judged for text in act.verdict())]
        failed = [f"{name}: {record.error}" for name, record in self.files if not record.ok]
        if failed:
            complaints.append(f"{len(failed)} files were not analysed, such as {failed[0]}")
        say(f"\n{NEXT}\n")
        if self.cut_short:
            say(f"Cut short: {self.cut_short}.")
            if not complaints:
                say("What came to its end until then did so as foretold, and nothing is left behind.")
                return EXIT_OTHERWISE
        elif not complaints:
            say(f"Everything came out as foretold, in {self.elapsed():.1f} s, and nothing is left behind.")
            return EXIT_AS_FORETOLD
        say("NOT as foretold:")
        for text in complaints:
            say(f"  {text}")
        return EXIT_OTHERWISE

    def elapsed(self) -> float:
        """Return the seconds since the beginning."""
        return time.monotonic() - self.begun

    def unfinished(self) -> str:
        """Return what is not over, for a person."""
        files = len(self.paths) - len(self.files)
        names = [name for name, act in self.acts.items() if not act.over and not act.recurs]
        return ", ".join([f"{files:,} files were withdrawn", *names])

    def name(self, path: Path) -> str:
        """Return a path for a person: below the root where it is there."""
        return (
            str(path.relative_to(self.root))
            if path != self.root and path.is_relative_to(self.root)
            else str(path)
        )
