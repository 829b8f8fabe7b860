"""How a sandboxed run ended, from what the kernel says and what the job claims. Pure."""

from __future__ import annotations

import pytest

from procsched import Sandbox
from procsched.sandbox.examining import findings_of
from procsched.sandbox.judging import Plain, failure_of, hint_of_memory, limit_of_death
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


@pytest.mark.parametrize(
    ("kind", "message", "named"),
    [
        ("MemoryError", "", True),
        ("KeyboardInterrupt", "", True),  # OpenBLAS, without memory for its threads
        ("ImportError", "x.so: failed to map segment from shared object", True),
        ("OSError", "[Errno 12] Cannot allocate memory", True),
        ("ImportError", "cannot import name 'x' from 'y'", False),
        ("ValueError", "bad row", False),
    ],
)
def test_the_memory_limit_is_named_where_memory_may_have_run_out(
    kind: str, message: str, named: bool
) -> None:
    """Also where a library makes something else of it than a MemoryError."""
    frame = {"kind": "raised", "type": kind, "message": message, "traceback": ""}
    text, _error = failure_of(findings_of(frame), POLICY)
    assert text.endswith(f" (memory={100 << 20} is its limit)") is named


@pytest.mark.parametrize(
    ("status", "hinted"),
    [
        (0, False),  # os._exit(0)
        (1 << 8, True),  # the interpreter, and C code that gives up
        (7 << 8, False),
        (120 << 8, True),  # the interpreter, when it cannot flush
        (255 << 8, True),
        (11, True),  # a null pointer
        (6, True),  # std::bad_alloc
        (6 | 0x80, True),  # ... with a core
        (9, False),  # who refuses memory kills nobody
        (15, False),
    ],
)
def test_memory_may_be_the_reason_of_a_death_only_where_it_can_be(status: int, hinted: bool) -> None:
    """It is told as a possibility, with the figure that speaks for or against it."""
    words = (
        f" (it may have run out of memory: memory={100 << 20} of address space is its limit; "
        "at most 9000000 bytes were resident)"
    )
    assert hint_of_memory(status, 9_000_000, POLICY) == (words if hinted else "")
    assert hint_of_memory(status, 0, POLICY).endswith("is its limit)") is hinted


@pytest.mark.parametrize(("line", "said"), [("in _execute_child", True), ("in open", False)])
def test_a_program_that_could_not_be_executed_is_explained(line: str, said: bool) -> None:
    """Who gives processes=4 may think that these can be programs."""
    trace = f'  File "subprocess.py", line 1955, {line}\n'
    frame = {"kind": "raised", "type": "PermissionError", "message": "[Errno 1] x", "traceback": trace}
    text, _error = failure_of(findings_of(frame), POLICY)
    assert ("no program can be executed in a sandbox" in text) is said


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
