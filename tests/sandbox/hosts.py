"""Starting hosts, and attackers without a sandbox: every one in a mount namespace of its own, none with our rights.

As root, an interpreter, its packages and this repository are mounted below /mnt of that namespace, where any user can
read them, wherever they are installed. Without root there is one host: under this user's own uid.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import select
import shutil
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import support

ROOT = Path(__file__).resolve().parents[2]
USER = 741_000  # an unprivileged user that nobody is
IS_ROOT = os.geteuid() == 0
MEASURED = os.environ.get(
    "PROCSCHED_TEST_MEASURED", ""
)  # where `tests.coverage` wants to find what a host has seen
LIMIT = 90.0  # seconds for an answer: only a hang takes so long
_SHELL = """
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=0755 tmpfs /mnt
mkdir /mnt/python /mnt/code /mnt/scratch
mount --bind "$1" /mnt/python
mount --bind "$2" /mnt/python/lib/python{version}/site-packages
mount --bind "$3" /mnt/code
chmod 0755 /mnt/scratch
chown {uid} /mnt/scratch
if [ -n "$4" ]; then mkdir /mnt/measured; mount --bind "$4" /mnt/measured; fi
for place in /tmp /var/tmp /dev/shm; do mount -t tmpfs -o mode=1777,size=64m tmpfs $place; done
if [ -n "$4" ]; then mkdir -p "$4"; mount --move /mnt/measured "$4"; fi
shift 4
cd /
exec "$@"
"""

needs_root = pytest.mark.skipif(not IS_ROOT, reason="needs root: private uids, mounts and a user to become")


@functools.cache
def why_not(user: str, layers: str) -> str:
    """Return why a layer set cannot be tested here under a user; "" where it can. The library is not asked."""
    if user == "root" and not IS_ROOT:
        return "needs root: private uids"
    if layers != "namespaces":
        return ""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "bubblewrap is not installed, so there are no namespaces to test"
    identity: dict[str, Any] = {"user": USER, "group": USER, "extra_groups": []} if IS_ROOT else {}
    command = [bwrap, "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "/bin/true"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=LIMIT, **identity)
    return f"bubblewrap makes no namespaces here: {done.stderr.strip()}" if done.returncode else ""


def mounted(uid: int, *arguments: str, flags: tuple[str, ...] = ()) -> list[str]:
    """Return the command that runs the interpreter in a mount namespace in which everybody can read it."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = next(path for path in site.getsitepackages() if os.path.isdir(path))
    return [
        *("unshare", "-m", *flags, "sh", "-c", _SHELL.format(version=version, uid=uid), "sh"),
        *(sys.base_prefix, packages, str(ROOT), MEASURED),
        *("/mnt/python/bin/python3", "-B", "-P", *arguments),
    ]


class HostProcess:
    """A host that answers one order at a time.

    Args:
        user: "root", or "user" for one without rights.
        wrapper: a command that the host's interpreter is started by, such as an emulator of an old kernel.
    """

    def __init__(self, user: str, directory: Path, wrapper: tuple[str, ...] = ()) -> None:
        self.user = user
        environ = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": "/mnt/code" if IS_ROOT else str(ROOT),
            "LANG": "C.UTF-8",
        }
        environ[support.RUN_MARK] = os.environ[
            support.RUN_MARK
        ]  # so that nothing of it is overlooked at the end
        if MEASURED:
            environ["COVERAGE_PROCESS_CONFIG"] = os.environ["COVERAGE_PROCESS_CONFIG"]
        arguments = ["-m", "tests.sandbox.host"]
        uid = USER if user == "user" and IS_ROOT else 0
        if wrapper:
            arguments = [*wrapper]
        if IS_ROOT:
            command = mounted(uid, *arguments, "/mnt/scratch", str(uid))
        else:
            command = [sys.executable, "-P", *arguments, str(directory), "0"]
        self.process = subprocess.Popen(
            command,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        support.servers.add(self.process.pid)
        self.errors = b""
        assert self._answer() == "ready"

    def __call__(self, do: str, **order: Any) -> Any:
        """Give an order, and return the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        end = time.monotonic() + LIMIT
        line = b""
        out, err = self.process.stdout.fileno(), self.process.stderr.fileno()
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([out, err], [], [], max(0.0, end - time.monotonic()))
            if err in ready:
                self.errors += os.read(err, 1 << 16)
            data = os.read(out, 1 << 16) if out in ready else b""
            if not ready or (out in ready and not data):
                self.close()
                words = self.errors.decode("utf-8", "replace")[-3000:]
                pytest.fail(f"the host is {'silent' if not ready else 'dead'}: {words}")
            line += data
        answer = json.loads(line)
        if "failed" in answer:
            raise AssertionError(answer["failed"])
        return answer["answer"]

    def kill(self) -> None:
        """End it at once, as the kernel would for want of memory."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        support.servers.discard(self.process.pid)

    def close(self) -> None:
        """Let it end, with what it has started beside its pools."""
        for stream in (self.process.stdin,):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        support.servers.discard(self.process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


PORTABLE = {"give_up": ["names"]}
NAMESPACES: dict[str, Any] = {}
USERS = ("root", "user")
LAYERS = {"portable": PORTABLE, "namespaces": NAMESPACES}
SETTINGS = list(itertools.product(USERS, LAYERS))


def chosen(turn: int, number: int) -> list[tuple[str, str]]:
    """Return so many of the settings that can be tested here, by turns; two have as little in common as there are."""
    possible = [setting for setting in SETTINGS if not why_not(*setting)]
    first = possible[turn % len(possible)]
    others = [setting for setting in possible if setting != first]
    others.sort(key=lambda setting: len({*setting, *first}), reverse=True)
    return [first, *others][:number]


_hosts: dict[str, HostProcess] = {}


def shared_host(user: str, directory: Path) -> HostProcess:
    """Return the host of a user, started once for all tests."""
    if user not in _hosts or _hosts[user].process.poll() is not None:
        _hosts[user] = HostProcess(user, directory)
    return _hosts[user]


def close_all() -> None:
    """End every shared host."""
    for host in _hosts.values():
        host.close()
    _hosts.clear()


def strays() -> list[int]:
    """Return the pids of sandboxed processes of this repository that have lost the pool they belong to.

    They carry no mark of the run, for their environment is exact; and who their parent is now is nothing of ours.
    """
    found: set[int] = set()
    for _ in support.looks(support.LEAK_GRACE):  # one that is being tried out has no helper above it either
        seen = {pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is_stray(pid)}
        found = found & seen if found else seen
        if not found:
            break
    return sorted(found)


def _is_stray(pid: int) -> bool:
    home = b"/mnt/code" if IS_ROOT else os.fsencode(ROOT)
    words = _command(pid)
    if not _confined(words) or words[-2:-1] != [home]:
        return False
    while _confined(words) and pid > 1:
        try:
            status = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return False  # gone meanwhile
        pid = int(status.rpartition(b") ")[2].split()[1])
        words = _command(pid)
    return not any(b"procsched.child.guard" in word for word in words)


def _confined(words: list[bytes]) -> bool:
    return any(b"procsched.sandbox.inside" in word for word in words)


def _command(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")  # empty for a zombie
    except OSError:
        return []


@contextlib.contextmanager
def own_host(user: str, directory: Path, wrapper: tuple[str, ...] = ()) -> Iterator[HostProcess]:
    """Return a host of one's own."""
    host = HostProcess(user, directory, wrapper)
    try:
        yield host
    finally:
        host.close()
