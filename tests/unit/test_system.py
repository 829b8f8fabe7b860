"""What only some systems have stands behind one module, and importing procsched needs none of it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import procsched
from procsched import _system

PACKAGE = Path(procsched.__file__).parent
BEHIND = {"_system.py", "_timerfd.py"}
"""The modules that may name anything."""

ONLY_LINUX = {
    "pidfd_open", "pidfd_send_signal", "P_PIDFD", "prctl", "memfd_create", "MFD_CLOEXEC", "eventfd", "EFD_CLOEXEC",
    "epoll", "timerfd_settime", "signalfd", "sched_getaffinity", "getresuid", "O_PATH", "F_ADD_SEALS", "SCHED_IDLE",
    "unshare", "setns", "close_range", "SO_PEERCRED",
}  # fmt: skip

# Who else names what, and why it stands there.
LISTED: dict[str, tuple[set[str], str]] = {
    "stores/files.py": ({"/proc/"}, "warns of network file systems, where the system tells"),
    "workers/loop.py": ({"epoll"}, "asks for it first; selectors otherwise"),
    "child/surroundings.py": (
        {"/proc/", "getresuid", "sched_getaffinity"},
        "asks for each first; then it is not looked at, and no peak is measured",
    ),
    "child/executing.py": ({"/proc/", "getresuid"}, "becomes a sandboxed program, which only Linux can hold"),
    "sandbox/inside.py": (
        {"prctl", "sched_getaffinity"},
        "a sandbox: refused by name where the kernel cannot keep its promises",
    ),
    "sandbox/kernel.py": ({"O_PATH"}, "likewise"),
    "sandbox/paths.py": ({"/proc/"}, "likewise"),
    "child/limiting.py": ({"/proc/"}, "limits that need it are refused by name elsewhere"),
    "cli/doctor_probes.py": (
        {"/proc/", "pidfd_open", "pidfd_send_signal", "memfd_create", "MFD_CLOEXEC", "eventfd", "EFD_CLOEXEC"},
        "tries each of them, for that is what it is for",
    ),
    "cli/doctor_runs.py": ({"/proc/"}, "shows processes"),
}  # fmt: skip


def names_in(path: Path) -> set[str]:
    """Return what a module names that only Linux has: attributes, and texts that are paths below /proc."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ONLY_LINUX:
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and str(node.value).startswith("/proc/") and node not in prose:
            found.add("/proc/")
    return found


def test_what_only_linux_has_stands_in_one_place() -> None:
    """No other module names it, save those that are listed with what they do where it is missing."""
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if str(path.relative_to(PACKAGE)) not in BEHIND and (names := names_in(path))
    }
    listed = {module: names for module, (names, _reason) in LISTED.items()}
    strangers = {module: names - listed.get(module, set()) for module, names in found.items()}
    assert not {module: names for module, names in strangers.items() if names}
    assert not {module: names - found.get(module, set()) for module, names in listed.items()
                if names - found.get(module, set())}, "listed and not there"  # fmt: skip


@pytest.mark.parametrize("feature", _system.FEATURES)
def test_every_feature_can_be_switched_off(feature: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PROCSCHED_WITHOUT is believed, alone and among others."""
    monkeypatch.setenv("PROCSCHED_WITHOUT", feature)
    assert not _system.offers(feature)
    monkeypatch.setenv("PROCSCHED_WITHOUT", f"nothing,{feature}")
    assert not _system.offers(feature)


# --- a system that has none of it ----------------------------------------------------------------------------------

BARE = """
import os, select, signal, socket, sys, types, _signal, _socket

class Missing:
    names = {names!r}
    def find_spec(self, name, path=None, target=None):
        if name in self.names: raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
for name in Missing.names: sys.modules.pop(name, None)
gone = {{
    os: ("fork register_at_fork posix_spawn pidfd_open memfd_create eventfd waitid sched_getaffinity killpg setsid "
         "getresuid wait4 mkfifo P_PIDFD getuid geteuid" ).split(),
    signal: "pthread_sigmask SIGKILL SIGSTOP SIGCHLD SIGCONT SIGRTMIN setitimer pidfd_send_signal".split(),
    select: ["epoll", "poll"],
    socket: ["AF_UNIX", "SCM_RIGHTS"],
}}
gone[_signal], gone[_socket] = gone[signal], gone[socket]
for module, names in gone.items():
    for name in names:
        if hasattr(module, name): delattr(module, name)
sys.platform = {platform!r}
"""

MODULES = ("fcntl", "resource", "termios", "pwd", "grp", "tty", "pty", "_posixshmem")

USE_BARE = """
import procsched
for name in procsched.__all__: getattr(procsched, name)
from procsched import *
assert CronSchedule("0 0 * * *")
log = EventLog()
with Scheduler(pool=ThreadPool(1), listeners=[log]) as scheduler:
    assert scheduler.wait(scheduler.schedule("t", abs, OneTime(0), args=(-1,)), 10).result == 1
clock = FakeClock(0.0)
with Scheduler(pool=InlinePool(), clock=clock) as scheduler:
    task = scheduler.schedule("t", abs, OneTime(5), args=(-1,))
    clock.advance(5)
    assert scheduler.wait(task, 10).result == 1
executor = ProcessExecutor(1)
try: error = executor.submit(abs, -1).exception(20)
except Exception as refused: error = refused
assert "posix_spawn" in str(error) and "ThreadPool" in str(error), repr(error)
executor.shutdown()
scheduler = Scheduler(1)
scheduler.start()
try: record = scheduler.wait(scheduler.schedule("t", abs, OneTime(0), args=(-1,), retry=NO_RETRY), 20)
finally: scheduler.shutdown()
assert "posix_spawn" in record.error, record
"""


def test_a_system_without_any_of_it() -> None:
    """As on Windows: all is imported, threads work, and the process pool says what it lacks and what to use."""
    source = BARE.format(names=MODULES, platform="win32") + "import logging; logging.disable()\n" + USE_BARE
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


# Windows has the lock, and not these.
WINDOWS_STORE = """
import errno, fcntl, os, select, socket, subprocess, sys, tempfile, types
import alembic.command, alembic.config, sqlalchemy.dialects.sqlite  # they look where they are
msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_NBLCK, msvcrt.LK_UNLCK = 2, 0
def locking(descriptor, mode, count, flock=fcntl.flock, how={2: fcntl.LOCK_EX | fcntl.LOCK_NB, 0: fcntl.LOCK_UN}):
    try: flock(descriptor, how[mode])
    except BlockingIOError: raise PermissionError(errno.EACCES, "Permission denied")
msvcrt.locking = locking
sys.modules["msvcrt"] = msvcrt
for name in "pwrite O_CLOEXEC O_NOFOLLOW O_DIRECTORY fchmod uname".split(): delattr(os, name)
"""

USE_STORE = """
from procsched import *
place = tempfile.mkdtemp()
url = f"sqlite:///{place}/jobs.db"
with Scheduler(pool=ThreadPool(1), store=SqlTaskStore(url)) as scheduler:
    task = scheduler.schedule("t", print, OneTime(0), args=("run",), key="t")
    assert scheduler.wait(task, 10).ok
    try: Scheduler(pool=InlinePool(), store=SqlTaskStore(url)).start()
    except StoreInUseError as error: assert error.pid == os.getpid(), error
    try: connect(url, timeout=1).pause("task-1")
    except StoreInUseError as error: assert error.pid == os.getpid(), error
with Scheduler(pool=ThreadPool(1), store=SqlTaskStore(url)) as scheduler:
    assert [each.outcome for each in scheduler.history()] == ["succeeded"]
assert connect(url).cancel("task-1") is False
import shutil; shutil.rmtree(place)
"""


def test_a_store_on_a_system_without_any_of_it() -> None:
    """As on Windows: a SQLite store has its lock, goes on after a restart, and can be changed while nobody has it."""
    source = (
        WINDOWS_STORE
        + BARE.format(names=MODULES, platform="win32")
        + "import logging; logging.disable()\n"
        + USE_STORE
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "run\n", "")


def test_macos_starts_by_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    """There nothing is forked: its libraries fail in a fork. (Not run there: by its documentation.)"""
    assert _system.offers("fork")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not _system.offers("fork")
    assert not _system.offers("subreaper")
    assert not _system.offers("kernel_timer")
    assert not _system.become_subreaper()
    _system.sharpen_timers()
