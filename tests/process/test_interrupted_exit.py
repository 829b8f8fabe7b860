"""Ctrl-C and the end of a program: what an executor still waits for, and what not."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests import support
from tests.pools import Parent, told_pids

# The second argument is a comma-separated list of functions: each time the main thread waits below one of them it gets
# a SIGINT; with a `+` only where the function is about to end the calls by then. CPython does not hear a signal between
# its last look and the sleep of a lock (`PyThread_acquire_lock_timed`) before that sleep ends: another signal ends it.
BODY = """
import os, signal, sys, threading
from procsched import ProcessExecutor
from tests import faults, support

told, places = sys.argv[1], sys.argv[2].split(",")
main = threading.main_thread().ident

def waits_below(place):
    frame = sys._current_frames()[main]
    if frame.f_code.co_name != "wait":
        return False
    while frame is not None:
        if frame.f_code.co_name == place.strip("+") and ("+" not in place or frame.f_locals["kill"]):
            return True
        frame = frame.f_back
    return False

heard = []

def hear(number, frame):
    heard.append(number)
    signal.default_int_handler(number, frame)

def is_heard(count):
    if len(heard) < count:
        signal.pthread_kill(main, signal.SIGUSR1)
    return len(heard) >= count

def interrupt():
    support.wait_for_file(told)
    for count, place in enumerate(places, 1):
        support.eventually(lambda: waits_below(place))
        os.kill(os.getpid(), signal.SIGINT)
        support.eventually(lambda: is_heard(count))

signal.signal(signal.SIGINT, hear)
signal.signal(signal.SIGUSR1, lambda number, frame: None)
threading.Thread(target=interrupt, daemon=True).start()
"""

NO_BLOCK = """
executor = ProcessExecutor(2)
futures = [executor.submit(faults.ignore_signals, told) for _ in range(6)]
[future.result() for future in futures]
"""

AT_EXIT = """
executor = ProcessExecutor(2)
futures = [executor.submit(faults.ignore_signals, told) for _ in range(6)]
"""

BLOCK = """
with ProcessExecutor(2) as executor:
    for _ in range(6):
        executor.submit(faults.ignore_signals, told)
"""

WITH_GRACE = """
with ProcessExecutor(1, grace=25) as executor:
    executor.submit(faults.ignore_signals, told).result()
"""

AT_EXIT_WITH_GRACE = """
executor = ProcessExecutor(1, grace=25)
executor.submit(faults.ignore_signals, told)
"""

CASES = {
    "while it waits for a result": (NO_BLOCK, "result", True),
    "while it leaves the block": (BLOCK, "__exit__", True),
    "while it waits at exit": (AT_EXIT, "_at_exit", False),
    "and again, while the workers end, in the block": (WITH_GRACE, "result,leave+", True),
    "and again, while the workers end, at exit": (AT_EXIT_WITH_GRACE, "_at_exit,_at_exit+", False),
}


@pytest.mark.parametrize("case", CASES)
def test_an_interrupted_program_ends_at_once(tmp_path: Path, case: str) -> None:
    """Ctrl-C ends the calls instead of waiting for them, a second one what is left, and nothing of ours is printed."""
    source, places, raises = CASES[case]
    told = tmp_path / "told"
    with Parent(tmp_path, BODY + source, arguments=(str(told), places)) as parent:
        out, err = parent.process.communicate(timeout=20)
        assert parent.process.returncode == -signal.SIGINT, err
    assert out == ""
    assert "Exception ignored" not in err
    assert err.endswith("\nKeyboardInterrupt\n") if raises else not err
    support.assert_gone(*told_pids(told))
