"""Jobs that take all that they can get, or do not end: each is stopped at its limit, and nothing of it is left."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.sandbox.attacks import PRELUDE
from tests.sandbox.conftest import Sandboxed

pytestmark = pytest.mark.leaks(
    "the hosts outlive a test; what they leave is looked for at the end of the session"
)
MB = 1 << 20


def ended(answer: dict, outcome: str, words: str = "") -> None:
    assert answer["outcome"] == outcome, answer
    assert words in (answer["error"] or ""), answer["error"]


# --- processes and threads -------------------------------------------------------------------------------


def test_forks_are_refused_where_there_is_one_process(sandboxed: Sandboxed) -> None:
    """A fork bomb is a PermissionError at its first fork."""
    source = "import os\ndef attack():\n    for n in range(10**6):\n        os.fork()"
    ended(sandboxed.run(source), "failed", "PermissionError")


NAMED = """
import ctypes, os, time
from procsched import current_run

def call_oneself(mark):
    '''Have a name that can be seen from outside; forks inherit it.'''
    assert ctypes.CDLL(None).prctl(15, mark.encode()) == 0  # PR_SET_NAME
"""
BOMB = (
    NAMED
    + """
def attack(mark, seconds):
    call_oneself(mark)
    count = 0
    try:
        while True:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                time.sleep(1000)
            count += 1
    except OSError as error:
        left = [count, type(error).__name__]
    current_run().progress(count)
    time.sleep(seconds)
    return left
"""
)
DAEMON = (
    NAMED
    + """
def attack(mark, seconds):
    call_oneself(mark)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(0)
    status = os.wait()[1]
    current_run().progress(1)
    time.sleep(seconds)
    return status
"""
)
_marks = itertools.count()


def new_mark() -> str:
    """Return a name for processes that no others have, of another run of the tests neither."""
    return f"m{os.getpid()}-{next(_marks)}"


def several(sandboxed: Sandboxed, **changes: object) -> dict:
    """Return a policy with several processes, or skip where there are no namespaces for them."""
    if sandboxed.layers != "namespaces":
        report = sandboxed.host(
            "report", policy=sandboxed.policy(processes=4, give_up=["names", "memory", "cpu"])
        )
        if report.get("error"):
            assert report["promise"] == "tree"
            pytest.skip("several processes are refused here, and the refusal names the promise")
    return sandboxed.policy(**{"processes": 4, "give_up": ["memory", "cpu"], **changes})


@pytest.mark.parametrize(
    ("source", "number", "result"),
    [(BOMB, 4, [3, "BlockingIOError"]), (DAEMON, 2, 0)],
    ids=["bomb", "daemon"],
)
def test_all_processes_end_with_the_run(
    sandboxed: Sandboxed, source: str, number: int, result: object
) -> None:
    """So many as there may be, and no more; those that left session, group and parent are gone with the rest."""
    policy = several(sandboxed)
    mark = new_mark()
    sandboxed.host("start", policy=policy, source=source, name="attack", timeout=500.0, args=[mark, 1000])
    assert len(sandboxed.host("called", mark=mark)) == number  # so they can be seen
    sandboxed.host("close")
    assert sandboxed.host("called", mark=mark) == []
    mark = new_mark()
    assert sandboxed.run(source, mark, 0, policy=policy, mark=mark)["result"] == result
    ended(sandboxed.run(source, mark, 1000, policy=policy, timeout=1.0, mark=mark), "timed_out")


def test_threads_stop_at_the_limit(sandboxed: Sandboxed) -> None:
    """Threads with the smallest stacks, and those that are made by the bare system call."""
    source = """
import threading
def attack():
    threading.stack_size(32768)
    gate = threading.Event()
    count = 0
    try:
        while count < 5000:
            threading.Thread(target=gate.wait, daemon=True).start()
            count += 1
    except RuntimeError:
        pass
    return count
"""
    count = sandboxed.run(source)["result"]
    report = sandboxed.host("report", policy=sandboxed.policy())
    if "refuses threads" in report["kept"]["threads"]:
        assert count == 0
    else:
        assert count == 31, report["kept"]["threads"]
    assert sandboxed.run(source, policy=sandboxed.policy(threads=1))["result"] == 0


def test_programs_are_refused_with_several_processes_too(sandboxed: Sandboxed) -> None:
    """`os.fork` works then; of a program the error says that none can be executed, whatever the number."""
    policy = several(sandboxed)
    source = """
import os, subprocess, sys
def attack(program):
    if program:
        subprocess.run([sys.executable, "-c", ""])
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""
    assert sandboxed.run(source, False, policy=policy)["result"] == 7
    assert "no program can be executed in a sandbox" in sandboxed.run(source, True, policy=policy)["error"]


# --- memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "    x = []\n    while True:\n        x.append(bytearray(1 << 20))",
        "    x = 'a'\n    while True:\n        x += x",
        "    return 'x' * (10 << 30)",
        "    x = [mmap.mmap(-1, 100 << 20) for _ in range(10)]",
        "    x = [mmap.mmap(-1, 50 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000) for _ in range(20)]",
    ],
    ids=["bytearrays", "doubling", "at-once", "shared-maps", "unreserved-maps"],
)
def test_memory_is_limited(sandboxed: Sandboxed, body: str) -> None:
    """A MemoryError in the job, or the end of its process; the limit is named where the job could say so."""
    answer = sandboxed.run(f"import mmap\ndef attack():\n{body}", policy=sandboxed.policy(memory=200 * MB))
    assert answer["outcome"] in ("failed", "crashed")
    assert answer["rss"] < 230 * MB
    if "MemoryError" in answer["error"] or answer["outcome"] == "crashed":
        assert f"memory={200 * MB}" in answer["error"]
        assert "is its limit" in answer["error"]


@pytest.mark.parametrize(
    ("body", "hinted"),
    [("os._exit(0)", False), ("os._exit(7)", False), ("os.abort()", True)],
    ids=["exit-0", "exit-7", "abort"],
)
def test_memory_is_not_blamed_for_every_death(sandboxed: Sandboxed, body: str, hinted: bool) -> None:
    """It is named, as a possibility, only where a lack of it ends a process in that way."""
    answer = sandboxed.run(f"import os\ndef attack():\n    {body}")
    assert answer["outcome"] == "crashed"
    assert ("may have run out of memory" in answer["error"]) is hinted
    assert ("memory=" in answer["error"]) is hinted


HIDDEN = (
    PRELUDE
    + """
def attack():
    found = [
        tried("memfd", os.memfd_create, "x"),
        tried("memfd_secret", call, 447, 0),
        tried("shm", call, 29, 0, 1 << 20, 0o1600),
        tried("huge pages", lambda: mmap.mmap(-1, 1 << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)),
        tried("locked", lambda: mmap.mmap(-1, 1 << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x2000)),
    ]
    kept, written = [], 0
    try:
        while True:
            reader, writer = os.pipe()
            kept.append((reader, writer))
            os.set_blocking(writer, False)
            try:
                fcntl.fcntl(writer, 1031, 1 << 20)
            except PermissionError:
                pass
            written += os.write(writer, b"x" * (1 << 20))
    except OSError:
        pass
    pairs, sent = [], 0
    for reader, writer in kept[:20]:
        os.close(reader); os.close(writer)
    try:
        while True:
            ours, theirs = socket.socketpair()
            pairs.append((ours, theirs))
            ours.setblocking(False)
            try:
                while True:
                    sent += ours.send(b"x" * 65536)
            except BlockingIOError:
                pass
    except OSError:
        pass
    return [found, written, sent]
"""
)


def test_memory_cannot_hide_in_the_kernel(sandboxed: Sandboxed) -> None:
    """Memory that RLIMIT_AS does not count is refused, and what pipes and sockets hold is bounded by their number."""
    found, written, sent = sandboxed.run(HIDDEN)["result"]
    assert all(result != "worked" for _what, result in found), found
    assert written < 64 * (1 << 16)
    assert sent < 32 * MB


def test_scratch_has_a_quota(sandboxed: Sandboxed) -> None:
    """Bytes and files are limited in all; nothing is left after the run; elsewhere nothing can be written."""
    policy = sandboxed.policy(scratch=4 * MB)
    if sandboxed.layers != "namespaces" and "error" in sandboxed.host("report", policy=policy):
        pytest.skip("no namespaces, no scratch")
    source = """
import os, errno, tempfile
def attack():
    answer = [os.getcwd(), os.listdir(".")]
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write("x"); file.flush()
    count = 0
    try:
        while True:
            with open(f"{count}", "wb") as file:
                file.write(bytes(4096))
            count += 1
    except OSError as error:
        answer += [count, errno.errorcode[error.errno]]
    for name in os.listdir("."):
        os.unlink(name)
    empty = 0
    try:
        while True:
            open(f"{empty}", "wb").close()
            empty += 1
    except OSError as error:
        answer += [empty, errno.errorcode[error.errno]]
    os.chmod("0", 0o600)
    return answer
"""
    for _ in range(2):
        where, found, count, error, empty, error2 = sandboxed.run(source, policy=policy)["result"]
        assert (where, found) == ("/tmp", [])
        assert error == error2 == "ENOSPC"
        assert count <= 1024
        assert empty <= 4096


def test_files_have_a_size(sandboxed: Sandboxed) -> None:
    """RLIMIT_FSIZE is an OSError in the job, which lives on."""
    if sandboxed.layers != "namespaces":
        pytest.skip("nothing can be written without scratch space")
    source = """
import errno
def attack():
    try:
        with open("x", "wb", buffering=0) as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
    except OSError as error:
        return errno.errorcode[error.errno]
"""
    policy = sandboxed.policy(scratch=64 * MB, file_size=MB)
    assert sandboxed.run(source, policy=policy)["result"] == "EFBIG"


# --- time ------------------------------------------------------------------------------------------------

IGNORES = (
    "import signal\ndef attack():\n    for n in (1, 2, 15, 24):\n        signal.signal(n, signal.SIG_IGN)\n"
)


def test_cpu_time_of_brief_jobs_is_measured(sandboxed: Sandboxed) -> None:
    """What the job has used and nothing else has, also below a tick of the kernel's."""
    source = """
import time
def attack():
    began = time.process_time()
    while time.process_time() < began + 0.004:
        pass
    return time.process_time()
"""
    answers = [sandboxed.run(source) for _ in range(5)]
    # The rest of each is its way out, which takes longer where others compute. And where it has been reaped, and that
    # was not reported by the time of the kill, nobody knows.
    assert any(0.004 <= answer["cpu"] <= answer["result"] + 0.01 for answer in answers), answers


@pytest.mark.parametrize("ignores", [False, True])
def test_cpu_time_is_limited(sandboxed: Sandboxed, ignores: bool) -> None:
    """At the limit, a second later where the signal is ignored; the kernel's figure proves it."""
    source = (IGNORES if ignores else "def attack():\n") + "    while True: pass"
    answer = sandboxed.run(source, policy=sandboxed.policy(cpu_seconds=1), timeout=60.0)
    ended(answer, "limit_exceeded", "cpu_seconds=1")
    assert answer["limit"] == "cpu_seconds=1"
    assert answer["exception"] == "LimitExceededError"
    assert 0.2 <= answer["cpu"] - ignores <= 1.2  # the start is not the job's; the kernel looks at its ticks


def test_the_end_at_the_limit_of_cpu_time_cannot_be_feigned(sandboxed: Sandboxed) -> None:
    """By a limit that is lower, or by the signal with which a child tells of its end: both are refused."""
    lower = """
import resource
def attack():
    resource.setrlimit(resource.RLIMIT_CPU, (1, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    while True:
        pass
"""
    ended(sandboxed.run(lower), "failed", "ValueError")  # as Python has it
    child = (
        PRELUDE
        + """
def attack():
    found = []
    for name in ("SIGXCPU", "SIGKILL"):
        found.append(tried(name, call, 56, int(getattr(signal, name)), 0, 0, 0, 0))
        time.sleep(0.1)
    return found
"""
    )
    answer = sandboxed.run(child, policy=several(sandboxed))
    assert answer["outcome"] == "succeeded", answer
    assert {result for _signum, result in answer["result"]} <= {"EPERM", "ENOSYS"}


@pytest.mark.parametrize(
    "body",
    [
        "    while True: pass",
        "    time.sleep(1000)",
        "    os.kill(os.getpid(), signal.SIGSTOP); time.sleep(1000)",
        "    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); time.sleep(1000)",
        "    re.match('(a+)+b', 'a' * 60)",
        "    os.close(4); os.close(1); os.close(2); sys.stdout = sys.stderr = None; time.sleep(1000)",
        "    os.write(4, (100).to_bytes(4, 'big') + b'{'); time.sleep(1000)",
        "    threading.excepthook = None; sys.settrace(lambda *a: time.sleep(1000)); (lambda: 1)()",
    ],
    ids=["loop", "sleep", "stopped", "blocked", "regex", "closed", "half-a-frame", "trace"],
)
def test_time_is_limited(sandboxed: Sandboxed, body: str) -> None:
    """Whatever it does or ignores, a run ends at its timeout."""
    closes = "close(4)" in body  # it has nothing to say any more, and is ended at once
    source = f"import os, re, signal, sys, threading, time\ndef attack():\n{body}"
    ended(sandboxed.run(source, timeout=20.0 if closes else 0.4), "crashed" if closes else "timed_out")


# --- descriptors and output ------------------------------------------------------------------------------


def test_descriptors_are_limited(sandboxed: Sandboxed) -> None:
    """EMFILE at the limit, and the host has as many as before."""
    sandboxed.run("def attack(): return 0")  # the host has its pool from then on
    before = sandboxed.host("usage")["fds"]
    source = """
import errno, os
def attack():
    count = 0
    try:
        while True:
            os.dup(0)
            count += 1
    except OSError as error:
        return [count, errno.errorcode[error.errno]]
"""
    count, error = sandboxed.run(source)["result"]
    assert error == "EMFILE"
    assert count <= 64
    assert sandboxed.host("usage")["fds"] <= before + 8


@pytest.mark.parametrize(
    "body",
    [
        "    for _ in range(100_000): print('x' * 100)",
        "    while True: os.write(1, b'x' * 65536)",
        "    while True: os.write(2, b'x')",
    ],
    ids=["print", "write", "bytes"],
)
def test_output_is_capped(sandboxed: Sandboxed, body: str) -> None:
    """The first of it is kept and it is said that there was more; who prints is not disturbed, who floods gets EPIPE."""
    answer = sandboxed.run(f"import os\ndef attack():\n{body}", policy=sandboxed.policy(output=1000))
    assert answer["output"] == (("x" * 100 + "\n") * 9 + "x" * 91 if "print" in body else "x" * 1000)
    assert answer["truncated"]
    if "print" in body:
        ended(answer, "succeeded")
    else:
        ended(answer, "failed", "BrokenPipeError")


def test_output_is_escaped(sandboxed: Sandboxed) -> None:
    """What it writes cannot talk to a terminal."""
    answer = sandboxed.run("def attack():\n    print('a\\x1b]0;b\\x07\\u202e\\r\\tc')")
    assert answer["output"] == "a\\x1b]0;b\\x07\\u202e\\x0d\tc\n"
