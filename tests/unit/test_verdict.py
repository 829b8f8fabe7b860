"""What an end was, from the facts."""

from __future__ import annotations

import faulthandler
import signal
import sys
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsched import Outcome
from procsched.workers import verdict

KILLED = (Outcome.KILLED, "killed: cancelled")
MUTE = (Outcome.CRASHED, "worker closed its connection")
LATE = verdict.timed_out(5)
INF = float("inf")


def exited(code: int) -> int:
    return code << 8


@pytest.mark.parametrize(
    ("status", "words", "code", "name"),
    [
        (exited(0), "exit code 0", 0, None),
        (exited(5), "exit code 5", 5, None),
        (exited(255), "exit code 255", 255, None),
        (signal.SIGSEGV, "SIGSEGV", None, "SIGSEGV"),
        (signal.SIGSEGV | 0x80, "SIGSEGV", None, "SIGSEGV"),  # with a core dump
        (signal.SIGKILL, "SIGKILL", None, "SIGKILL"),
        (signal.SIGRTMIN + 3, f"SIG{signal.SIGRTMIN + 3}", None, f"SIG{signal.SIGRTMIN + 3}"),
    ],
)
def test_a_wait_status_in_words(status: int, words: str, code: int | None, name: str | None) -> None:
    """A wait status becomes an exit code or a signal's name, also where the signal has no name."""
    assert verdict.exit_words(int(status)) == (words, code, name)


@pytest.mark.parametrize(
    ("decided", "status", "died_at", "hard_at", "timeout", "expected"),
    [
        # nothing was decided: the death speaks
        (None, exited(5), 1.0, INF, None, (Outcome.CRASHED, "worker died: exit code 5")),
        (None, exited(0), 1.0, INF, None, (Outcome.CRASHED, "worker died: exit code 0")),
        (None, signal.SIGSEGV, 1.0, 9.0, 5.0, (Outcome.CRASHED, "worker died: SIGSEGV")),
        (None, signal.SIGKILL, 1.0, INF, None, (Outcome.CRASHED, "worker died: SIGKILL")),
        # the backstop strikes after the deadline; a stranger's SIGKILL before it is a crash
        (None, signal.SIGKILL, 9.02, 9.0, 5.0, (Outcome.TIMED_OUT, "exceeded its 5.0 s budget")),
        (None, signal.SIGKILL, 8.99, 9.0, 5.0, (Outcome.CRASHED, "worker died: SIGKILL")),
        # any other death after the deadline is not the backstop's
        (None, signal.SIGSEGV, 9.02, 9.0, 5.0, (Outcome.CRASHED, "worker died: SIGSEGV")),
        (None, exited(1), 9.02, 9.0, 5.0, (Outcome.CRASHED, "worker died: exit code 1")),
        # what was decided stands, however it died then
        (LATE, signal.SIGKILL, 5.0, 5.0, 5.0, LATE),
        (LATE, exited(0), 5.0, 5.0, 5.0, LATE),
        (KILLED, signal.SIGKILL, 1.0, INF, None, KILLED),
        (KILLED, signal.SIGKILL, 9.02, 9.0, 5.0, KILLED),
        (KILLED, signal.SIGTERM, 1.0, INF, None, KILLED),
        # a broken pipe is a decision only where nothing better is known
        (MUTE, signal.SIGKILL, 1.0, INF, None, MUTE),
        (MUTE, signal.SIGSEGV, 1.0, INF, None, (Outcome.CRASHED, "worker died: SIGSEGV")),
        (MUTE, exited(3), 1.0, INF, None, (Outcome.CRASHED, "worker died: exit code 3")),
    ],
)
def test_a_death_without_an_answer(
    decided: tuple[Outcome, str] | None,
    status: int,
    died_at: float,
    hard_at: float,
    timeout: float | None,
    expected: tuple[Outcome, str],
) -> None:
    """Outcome and error of a run whose worker died follow from what was decided, the status and the times."""
    assert verdict.decide_death(decided, int(status), died_at, hard_at, timeout) == expected


@given(
    st.sampled_from([None, LATE, KILLED, MUTE]),
    st.integers(0, 255).map(exited) | st.integers(1, 64),
    st.floats(0, 100),
    st.floats(0, 100) | st.just(INF),
    st.none() | st.floats(0.1, 100),
)
def test_every_death_has_an_outcome_and_an_error(
    decided: tuple[Outcome, str] | None,
    status: int,
    died_at: float,
    hard_at: float,
    timeout: float | None,
) -> None:
    """No facts, however odd, leave a run without an outcome and a line of error, and no death is a success."""
    outcome, error = verdict.decide_death(decided, status, died_at, hard_at, timeout)
    assert outcome in (Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.KILLED)
    assert error
    assert "\n" not in error
    if decided in (LATE, KILLED):
        assert (outcome, error) == decided


def test_limits_are_told_in_seconds() -> None:
    """Whole numbers read like any other limit."""
    assert verdict.timed_out(5) == (Outcome.TIMED_OUT, "exceeded its 5.0 s budget")
    assert verdict.soft_timed_out(0.25) == (Outcome.TIMED_OUT, "exceeded its 0.25 s soft limit")


def test_what_could_not_be_ended_is_noted() -> None:
    """Processes that could not be ended are named, also on a success."""
    assert verdict.note_stuck("ValueError: x", ()) == "ValueError: x"
    assert verdict.note_stuck(None, ()) is None
    assert verdict.note_stuck("ValueError: x", (12, 34)) == (
        "ValueError: x; could not end process 12, 34 of this run"
    )
    assert verdict.note_stuck(None, (12,)) == "could not end process 12 of this run"


def dumped() -> bytes:
    """Return what faulthandler writes here and now."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=False)
        file.seek(0)
        return file.read()


def test_a_stack_is_cut_off_the_output() -> None:
    """Faulthandler's own text of this interpreter is found at the end of the output and cut off."""
    output, stack = verdict.split_stack(b"said before\n" + dumped())
    assert output == b"said before\n"
    assert stack is not None
    assert "test_a_stack_is_cut_off_the_output" in stack
    assert "dumped" in stack


@pytest.mark.parametrize("output", [b"", b"only output\n", b"Stack is a word\n", "Grüße\n".encode()])
def test_output_without_a_stack_stays(output: bytes) -> None:
    """Output in which no stack is found comes back as it was."""
    assert verdict.split_stack(output) == (output, None)


@pytest.mark.parametrize(
    "output",
    [
        b"one\nStack (most recent call first):\n",
        b"the log says: Fatal Python error: out of patience\nand goes on\n",
        b'Stack (most recent call first):\n  File "x.py", line 1 in f\nthe run went on after that\n',
        b"Current thread 0x1 is all there is\n",
    ],
)
def test_output_that_looks_like_a_stack_is_not_lost(output: bytes) -> None:
    """What only quotes a stack, or goes on behind one, is output and nothing else."""
    assert verdict.split_stack(output) == (output, None)


def test_a_crash_is_cut_off_with_its_cause() -> None:
    """What faulthandler writes at a SIGSEGV is one stack, from its first line to its last."""
    text = (
        b"Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f0a (most recent call first):\n"
        b'  File "/usr/lib/ctypes/__init__.py", line 519 in string_at\n  File "/x/job.py", line 3 in work\n'
        b'  File "/x/procsched/child/worker.py", line 277 in attempt\n\n'
        b"Extension modules: numpy.core (total: 1)\n"
    )
    output, stack = verdict.split_stack(b"before\n" + text)
    assert output == b"before\n"
    assert stack is not None
    assert stack.startswith("Fatal Python error: Segmentation fault")
    assert "line 3 in work" in stack
    assert "worker.py" not in stack


@given(st.binary(max_size=300))
def test_any_output_can_be_split(data: bytes) -> None:
    """Bytes of any kind are output, a stack, or both; nothing is raised."""
    output, stack = verdict.split_stack(data)
    assert data.startswith(output)
    assert stack is None or isinstance(stack, str)


def test_a_stack_is_complete_when_its_last_line_is() -> None:
    """The end of a dump is known by its text, so that nobody waits longer than needed."""
    if sys.platform != "linux":
        pytest.skip("the text below is that of one thread on Linux")
    head = b"Stack (most recent call first):\n"
    frame = b'  File "/x/job.py", line 3 in work\n'
    last = b'  File "<string>", line 1 in <module>\n'
    assert verdict.stack_is_complete(head + frame + last)
    assert verdict.stack_is_complete(b"output\n" + head + frame * 99 + b"  ...\n")
    assert not verdict.stack_is_complete(head + frame)
    assert not verdict.stack_is_complete(head + frame + last[:-1])
    assert not verdict.stack_is_complete(b"output\n" + last)
