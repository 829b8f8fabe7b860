"""Compares what the subject was told with what really ran.

The ledger, a line each (by the subject):
    S key kind              submitted
    R key                   refused by an exception of `submit` or `schedule`
    A key run attempt outcome error      a record
    T key status            the status of a task after a change; a call has one, at its end
    C counter number        a counter of the scheduler at its end
The marks (by the actions): B, E or O, and "key run attempt": begun, ended without an exception, overlapping.
"""

from __future__ import annotations

import collections
from collections import Counter
from pathlib import Path

TERMINAL = ("succeeded", "failed", "cancelled", "done")
MOST_TOLD = 40  # violations that are printed

# What may come of a kind beside what sabotage may do to any.
ALLOWED = {
    "fail": {"failed"},
    "leave": {"failed", "timed_out"},
    "leave_by": {"failed"},
    "hang": {"timed_out"},
    "soft": {"timed_out"},
    "garble": {"timed_out"},
    "clean_up": {"timed_out"},
    "item": {"failed", "timed_out"},
    "any": {"failed", "timed_out"},
}
# A shortage of descriptors, processes or memory reaches the action's own calls as one of these.
SHORTAGES = (
    "OSError",
    "BlockingIOError",
    "PermissionError",
    "RuntimeError: can't start new thread",
    "MemoryError",
)
SABOTAGED = {"succeeded", "crashed", "lost"}


class Books:
    """Both files, read to their ends."""

    def __init__(self, ledger: Path, marks: Path) -> None:
        self.kinds: dict[str, str] = {}
        self.refused: set[str] = set()
        self.records: dict[str, str] = {}  # "key run attempt" -> outcome
        self.statuses: dict[str, list[str]] = collections.defaultdict(list)
        self.counters: dict[str, int] = {}
        self.begun: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.killed: set[str] = set()  # keys of runs that somebody asked to end
        self.violations: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self._read_ledger(ledger)
        self._read_marks(marks)

    def say(self, text: str) -> None:
        """Note a violation."""
        self.violations.append(text)

    def _read_ledger(self, path: Path) -> None:
        errors: list[tuple[str, str, str]] = []
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                word, *rest = line.rstrip("\n").split(" ", 5)
                if word == "S":
                    if rest[0] in self.kinds:
                        self.say(f"{rest[0]} was submitted twice: two tasks have one id")
                    self.kinds[rest[0]] = rest[1]
                elif word == "R":
                    self.refused.add(rest[0])
                elif word == "K":
                    self.killed.add(rest[0])
                elif word == "T":
                    seen = self.statuses[rest[0]]
                    if not seen or seen[-1] != rest[1]:
                        seen.append(rest[1])
                elif word == "C":
                    self.counters[rest[0]] = int(rest[1])
                elif word == "A":
                    tag = " ".join(rest[:3])
                    if tag in self.records:
                        self.say(f"attempt {tag} has two records: {self.records[tag]} and {rest[3]}")
                    self.records[tag] = rest[3]
                    self.outcomes[rest[3]] += 1
                    errors.append((tag, rest[3], rest[4] if len(rest) > 4 else ""))
                elif word == "V":
                    self.say(" ".join(rest))
                else:
                    self.say(f"a line of the ledger is none: {line!r}")
        for tag, outcome, error in errors:
            self._check_outcome(tag, outcome, error)

    def _check_outcome(self, tag: str, outcome: str, error: str) -> None:
        key = tag.split(" ", 1)[0]
        kind = self.kinds.get(key)
        if kind is None:
            self.say(f"{tag} has a record and was never submitted")
            return
        allowed = SABOTAGED | ALLOWED.get(kind, set())
        if outcome == "failed" and error.startswith(SHORTAGES):
            return
        if outcome == "killed" and key in self.killed:
            return
        if outcome not in allowed:
            self.say(f"{tag} ({kind}) ended as {outcome}: {error}")

    def _read_marks(self, path: Path) -> None:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                word, tag = line.rstrip("\n").split(" ", 1)
                if word == "B":
                    self.begun[tag] += 1
                elif word == "E":
                    self.ended[tag] += 1
                else:
                    self.say(f"attempt {tag} overlapped another of its task")

    def check(self) -> list[str]:
        """Return what is wrong, a line each."""
        for key in self.kinds:
            seen = self.statuses.get(key, [])
            ends = [status for status in seen if status in TERMINAL]
            if not ends:
                self.say(f"{key} ({self.kinds[key]}) has no terminal state: {seen[-3:]}")
            elif len(ends) > 1 or seen[-1] != ends[0]:
                self.say(f"{key} has more than one terminal state: {seen[-5:]}")
        for tag, count in self.begun.items():
            key = tag.split(" ", 1)[0]
            if count > 1:
                self.say(f"attempt {tag} was begun {count} times")
            if tag not in self.records:
                what = "was refused" if key in self.refused else "has no record"
                self.say(f"attempt {tag} was begun and {what} ({self.kinds.get(key)})")
        for tag, outcome in self.records.items():
            if outcome == "succeeded" and (not self.begun[tag] or self.ended[tag] != 1):
                self.say(
                    f"attempt {tag} succeeded and ran {self.begun[tag]} times, to its end {self.ended[tag]}"
                )
        started = self.counters.get("started")
        told = sum(tag.startswith("task-") for tag in self.records)
        if started != told:
            self.say(f"the scheduler counts {started} attempts that were started, and told of {told} records")
        return self.violations
