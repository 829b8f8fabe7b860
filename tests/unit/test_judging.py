"""How a sandboxed run ended, from what the kernel says and what the job claims. Pure."""

from __future__ import annotations

import pytest

from procsched import Sandbox
from procsched.sandbox.examining import findings_of
from procsched.sandbox.judging import Plain, failure_of, limit_of_death
from procsched.sandbox.reports import open_report, pack_report

POLICY = Sandbox(cpu_seconds=10, memory=100 << 20)


@pytest.mark.parametrize(
    ("status", "cpu", "limit"),
    [
        (24, 0.0, "cpu_seconds=10"),  # SIGXCPU: nobody else can send it
        (9, 11.0, "cpu_seconds=10"),
        (9, 1.0, None),
        (11, 20.0, None),
        (0, 20.0, None),
        ((128 + 24) << 8, 20.0, None),  # an exit code that looks like it
        ((128 + 9) << 8, 20.0, None),
    ],
)
def test_a_limit_is_what_the_kernel_says(status: int, cpu: float, limit: str | None) -> None:
    """The signal of the limit, or SIGKILL with the CPU time used up; never an exit code."""
    assert limit_of_death(status, cpu, POLICY) == limit


def test_a_failure_is_marked_and_escaped() -> None:
    """One line that begins with whose words it is; the memory limit is named where memory ran out."""
    frame = {"kind": "raised", "type": "E\x1b", "message": "a\nb\u202e", "traceback": "t\x07\n"}
    text, error = failure_of(findings_of(frame), POLICY)
    assert text == "the job says: E\\x1b: a\\nb\\u202e"
    assert (error.type_name, error.message, error.traceback) == ("E\\x1b", "a\nb\\u202e", "t\\x07\n")
    text, _error = failure_of(findings_of({**frame, "type": "MemoryError", "message": ""}), POLICY)
    assert text == f"the job says: MemoryError (memory={100 << 20} is its limit)"


def test_a_result_is_made_anew_each_time() -> None:
    """Who changes what it was given changes nothing for the next one who asks."""
    plain = Plain(b'{"kind":"done","id":1,"value":[1]}', 10)
    plain.load().append(2)
    assert plain.load() == [1]


@pytest.mark.parametrize(
    "data",
    [b"", b"x" * 24, b"x" * 25, pack_report(-1, 1.0, 1), pack_report(0, -1.0, 1), pack_report(0, 1.0, -1)],
)
def test_what_is_no_report_is_none(data: bytes) -> None:
    """Only a whole report with figures that can be."""
    assert open_report(data) is None


def test_reports_survive() -> None:
    """What was packed is opened."""
    assert open_report(pack_report(9, 1.5, 1 << 20)) == (9, 1.5, 1 << 20)
