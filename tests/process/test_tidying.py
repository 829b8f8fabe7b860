"""What a worker finds out about what a run has left, each alone: who leaves something is ended by SIGKILL after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import support
from tests.pools import ROOT

HEAD = """
import os, resource, signal, subprocess, sys, tempfile, threading
sys.path.insert(0, sys.argv[1])
from procsched.child.surroundings import Surroundings, copy_of, out_of_the_way
LONG = 1.0  # seconds that a run took which may have done anything
def note(**options): return Surroundings(**{"started": False, **options})
"""

CASES = {
    "nothing": "assert note().tidy(LONG) == []",
    "threads": """
noted, go_on = note(), threading.Event()
thread = threading.Thread(target=go_on.wait)
thread.start()
assert noted.tidy(LONG) == ["threads"]
go_on.set()
thread.join()
assert noted.tidy(LONG) == []
""",
    "threads in the place of others": """
go_on, others = threading.Event(), threading.Event()
thread = threading.Thread(target=go_on.wait)
thread.start()
noted = note(started=True)
go_on.set()
thread.join()
assert noted.tidy(LONG) == []
thread = threading.Thread(target=others.wait)
thread.start()
assert noted.tidy(LONG) == ["threads"]
others.set()
thread.join()
""",
    "processes": """
noted = note()
child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
assert noted.tidy(LONG) == ["processes"]
assert noted.tidy(0.0) == []  # so short that it can have started none
child.communicate()
assert noted.tidy(LONG) == []
""",
    "processes that were there before": """
child = subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE)
assert note(started=True).tidy(LONG) == []
child.communicate()
""",
    "signal mask": """
noted = note()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
assert noted.tidy(LONG) == ["signal mask"]
""",
    "what is put back": """
here, umask = os.getcwd(), os.umask(0o022)
noted = note()
os.chdir("/"), os.umask(0o077)
assert noted.tidy(LONG) == []
assert (os.getcwd(), os.umask(0)) == (here, 0o022)
""",
    "a directory that is gone": """
os.chdir(gone := tempfile.mkdtemp())
os.rmdir(gone)
os.chdir("..")
os.chmod(gone := tempfile.mkdtemp(), 0o700)
os.chdir(gone)
noted = note()
os.close(noted._directory)
assert noted.tidy(LONG) == ["working directory"]
""",
    "a stream that is closed": """
noted = note()
assert not noted.have_changed()
sys.stdin.close()
assert noted.have_changed()
""",
    "a stream that is detached": """
noted = note()
sys.stdin.detach()
assert noted.have_changed()
""",
    "a descriptor that is closed": """
noted = note()
os.close(0)
assert noted.have_changed()
""",
    "a timer of C code": """
import ctypes
noted, libc, made = note(), ctypes.CDLL(None), ctypes.c_void_p()
if os.path.exists("/proc/self/timers") and hasattr(libc, "timer_create"):
    assert not noted.have_changed()
    assert libc.timer_create(1, None, ctypes.byref(made)) == 0
    assert noted.have_changed()
    assert libc.timer_delete(made) == 0
    assert not noted.have_changed()
""",
    "a policy of scheduling": """
noted = note()
if hasattr(os, "sched_setscheduler"):
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    assert noted.have_changed()
""",
    "groups, for which one has to be root": """
noted = note()
if os.geteuid() == 0:
    os.setgroups([*os.getgroups(), 1 << 20])
    assert noted.have_changed()
""",
    "another root, likewise": """
noted = note()
if os.geteuid() == 0:
    os.chroot(tempfile.gettempdir())
    assert noted.have_changed()
""",
    "a peak that can be reset no more": """
noted = note()
assert noted.usage()[1] > 1 << 20
os.close(noted._peak_fd)
assert noted.usage()[1] > 1 << 20  # this once it is still that of the run
assert noted.usage()[1] == 0
""",
    "no descriptor left": """
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
noted = note()
assert copy_of(1) == -1
assert out_of_the_way(1) == 1
resource.setrlimit(resource.RLIMIT_NOFILE, limit)
assert noted.usage()[1] == 0
assert "working directory" in noted.tidy(LONG)
""",
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_run_has_left_is_found(case: str, tmp_path: Path) -> None:
    """It is put back, or named, and nothing else is."""
    done = subprocess.run(
        [sys.executable, "-c", HEAD + CASES[case], str(ROOT)],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=support.TIMEOUT,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
