"""What the soak takes for a broken promise: each kind in books of a few lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.checking import Books

LEDGER = """
S task-1 nap
T task-1 scheduled
T task-1 running
A task-1 1 1 succeeded
T task-1 succeeded
S call-1 fail
A call-1 1 1 failed ValueError: as it was told
A call-1 1 2 succeeded
T call-1 done
S task-2 nap
T task-2 scheduled
K task-2
A task-2 1 1 killed killed by request
T task-2 cancelled
T task-2 cancelled
S call-2 nap
R call-2
T call-2 done
C started 2
"""
MARKS = """
B task-1 1 1
E task-1 1 1
B call-1 1 1
B call-1 1 2
E call-1 1 2
B task-2 1 1
"""


def violations(directory: Path, ledger: str, marks: str) -> list[str]:
    for name, text in (("ledger", ledger), ("marks", marks)):
        (directory / name).write_text(text.lstrip())
    return Books(directory / "ledger", directory / "marks").check()


def test_books_that_agree(tmp_path: Path) -> None:
    """Successes, retries, kills and refusals are no violation."""
    assert violations(tmp_path, LEDGER, MARKS) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("A task-1 1 1 succeeded\n", "", "was begun and has no record"),
        ("A task-1 1 1 succeeded\n", "A task-1 1 1 succeeded\n" * 2, "has two records"),
        ("T task-1 succeeded\n", "", "has no terminal state"),
        ("T task-1 succeeded\n", "T task-1 succeeded\nT task-1 failed\n", "more than one terminal state"),
        ("T task-1 succeeded\n", "T task-1 succeeded\nT task-1 running\n", "more than one terminal state"),
        ("T call-1 done\n", "", "has no terminal state"),
        ("K task-2\n", "", "ended as killed"),
        ("S call-1 fail\n", "S call-1 nap\n", "ended as failed"),
        ("S task-1 nap\n", "", "was never submitted"),
        ("S task-1 nap\n", "S task-1 nap\n" * 2, "was submitted twice"),
        ("C started 2\n", "C started 3\n", "counts 3 attempts"),
        ("C started 2\n", "C started 2\nV something else\n", "something else"),
        ("B task-1 1 1\n", "B task-1 1 1\n" * 2, "was begun 2 times"),
        ("B task-1 1 1\n", "", "ran 0 times"),
        ("E task-1 1 1\n", "", "to its end 0"),
        ("E task-1 1 1\n", "E task-1 1 1\nB call-2 1 1\n", "was begun and was refused"),
        ("E task-1 1 1\n", "E task-1 1 1\nO task-1 1 1\n", "overlapped"),
        ("E task-1 1 1\n", "E task-1 1 1\nB task-9 1 1\n", "was begun and has no record"),
    ],
)
def test_books_that_do_not(tmp_path: Path, old: str, new: str, found: str) -> None:
    """What is lost, doubled, made up or out of turn is told, each with its name."""
    assert (LEDGER + MARKS).count(old) >= 1
    told = violations(tmp_path, LEDGER.replace(old, new, 1), MARKS.replace(old, new, 1))
    assert any(found in text for text in told), told
