"""Torments the subject and what is below it, at random, and sees what outlives it.

Runs as the subject's parent, with the same user. Each sabotage has a name; most are undone after a while. What is
signalled is held by a pid descriptor that was opened before it was looked whose process it is.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from procsched import _system
from procsched._core import wire
from tests import clock_shim

MEAN_PAUSE = 0.35  # seconds between two sabotages
END_WAIT = 240.0  # seconds in which the subject has to come to its end once it is left alone
LEFT_WAIT = 2.0  # seconds after the subject's end at which nothing of it may be left
FARTHEST = 7200  # seconds by which the clock is off at most
SYS_PIDFD_GETFD = 438  # linux/unistd.h, on every machine but alpha

Undo = tuple[float, str, Callable[[], None]]

WEIGHTS = {
    "kill worker": 14,
    "stop worker": 10,
    "kill helper": 2,
    "stop helper": 2,
    "kill guard": 1.5,
    "stop guard": 1.5,
    "stop guard, kill helper": 1,
    "stop both": 1,
    "stop subject": 2,
    "garbage to the subject": 4,
    "garbage to a worker": 3,
    "half a frame to the subject": 2,
    "fill /tmp": 3,
    "fill /dev/shm": 3,
    "no descriptors": 4,
    "no processes for the helper": 3,
    "no processes for the subject": 3,
    "step the clock": 5,
}


class Victim:
    """A process that is certainly the one that was meant, as long as the descriptor is open."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.fd = os.pidfd_open(pid)

    def send(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.fd, signum)

    def close(self) -> None:
        os.close(self.fd)


class Saboteur:
    """One soak. See the module."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.dice = random.Random(config["seed"] ^ 0x5AB07)
        self.log: TextIO = Path(config["sabotage"]).open("w", encoding="utf-8", buffering=1)  # noqa: SIM115
        self.began = time.monotonic()
        self.counts: Counter[str] = Counter()
        self.undo: list[Undo] = []
        self.subject: subprocess.Popen[str]
        self.left_out = dict(config["left_out"])
        self.libc = ctypes.CDLL(None, use_errno=True)

    def run(self) -> dict[str, Any]:
        """Start the subject, torment it for its time, leave it alone, and return what became of it."""
        _system.become_subreaper()
        with Path(self.config["stderr"]).open("w", encoding="utf-8") as stderr:
            self.subject = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.subject", self.config["path"]],
                stdin=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **self.config["environment"]},
            )
        names = [name for name in WEIGHTS if name not in self.left_out]
        weights = [WEIGHTS[name] for name in names]
        end = self.began + self.config["seconds"]
        pause = self.began + min(3.0, self.config["seconds"] / 10)  # it has to start
        while (now := time.monotonic()) < end and self.subject.poll() is None:
            due = min([pause, end, *(at for at, _, _ in self.undo)])
            if due > now:
                time.sleep(due - now)
                continue
            self.undo_due(now)
            if now >= pause:
                self.sabotage(self.dice.choices(names, weights)[0])
                pause = time.monotonic() + self.dice.expovariate(1 / MEAN_PAUSE)
        return self.leave_alone()

    def leave_alone(self) -> dict[str, Any]:
        """Undo everything, let the subject come to its end, and look at what is left of it."""
        wrong = []
        self.undo_due(float("inf"))
        if "step the clock" not in self.left_out:
            # Beyond all that was scheduled by whatever clock, or it would wait for its hour.
            clock_shim.step(self.config["environment"]["SHIM_OFFSET"], 2 * FARTHEST)
        self.note("all is undone: the load is to end")
        self.tell("end")
        try:
            self.subject.wait(END_WAIT)
        except subprocess.TimeoutExpired:
            wrong.append(
                f"the subject has not ended after {END_WAIT:g} s; its stacks are in {self.config['stderr']}"
            )
            self.subject.send_signal(signal.SIGUSR2)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.subject.wait(3.0)
            self.subject.kill()
            self.subject.wait()
        if self.subject.returncode not in (0, 1):
            wrong.append(f"the subject ended with {self.subject.returncode}")
        wrong += [f"outlived the subject: {text}" for text in self.left_over()]
        self.note(f"the subject has ended with {self.subject.returncode}")
        return {"wrong": wrong, "sabotages": dict(self.counts), "left_out": self.left_out}

    def left_over(self) -> list[str]:
        """Return what has been re-parented to us and does not go, and files of the subject's."""
        end = time.monotonic() + LEFT_WAIT
        while True:
            try:
                pid, _status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pids: list[int] = []
                break
            if pid == 0:
                pids = _system.process_children(os.getpid())
                if time.monotonic() > end:
                    break
                time.sleep(0.01)
        found = [_describe(pid) for pid in pids]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)  # ours, and not reaped
        for place in self.config["places"]:
            found += [f"{place}/{name}" for name in os.listdir(place)]
        return found

    # -- its victims -----------------------------------------------------------------------------------------

    def below(self) -> dict[str, list[int]]:
        """Return the pids of guards, helpers and workers."""
        guards = [
            pid for pid in _system.process_children(self.subject.pid) if _has(pid, b"procsched.child.guard")
        ]
        helpers = [pid for guard in guards for pid in _system.process_children(guard)]
        workers = [pid for helper in helpers for pid in _system.process_children(helper)]
        return {"guard": guards, "helper": helpers, "worker": workers}

    def victim(self, role: str) -> Victim | None:
        """Return one of this role, if there is one."""
        if role == "subject":
            return Victim(self.subject.pid)
        pids = self.below()[role]
        if not pids:
            return None
        pid = self.dice.choice(pids)
        try:
            found = Victim(pid)
        except ProcessLookupError:
            return None
        if pid not in self.below()[role]:  # it had gone, and the pid may be anybody's
            found.close()
            return None
        return found

    # -- its deeds -------------------------------------------------------------------------------------------

    def sabotage(self, name: str) -> None:
        """Do one, and note it."""
        try:
            told = self.deed(name)
        except OSError as error:
            told = f"failed: {error}"
        if told is None:
            return
        self.counts[name] += 1
        self.note(f"{name}: {told}")

    def deed(self, name: str) -> str | None:
        """Do it; return what was done, or None where there was nobody to do it to."""
        verb, _, rest = name.partition(" ")
        if name == "stop guard, kill helper":
            return self.stop("guard", 3.0) and self.kill("helper")
        if name == "stop both":
            return self.stop("guard", 8.0) and self.stop("helper", 8.0)
        if verb == "kill":
            return self.kill(rest)
        if verb == "stop":
            return self.stop(rest, {"helper": 9.0, "guard": 9.0, "subject": 0.7}.get(rest, 3.0))
        if verb == "garbage" or verb == "half":
            return self.garble(name)
        if verb == "fill":
            return self.fill(self.config["places"][0 if rest == "/tmp" else 1])
        if name == "no descriptors":
            return self.no_descriptors()
        if verb == "no":
            return self.no_processes("helper" if "helper" in name else "subject")
        return self.step_clock()

    def kill(self, role: str) -> str | None:
        victim = self.victim(role)
        if victim is None:
            return None
        victim.send(signal.SIGKILL)
        victim.close()
        return str(victim.pid)

    def stop(self, role: str, longest: float) -> str | None:
        victim = self.victim(role)
        if victim is None:
            return None
        victim.send(signal.SIGSTOP)
        seconds = self.dice.uniform(0.05, longest)

        def go_on() -> None:
            victim.send(signal.SIGCONT)
            victim.close()

        self.later(seconds, f"{role} {victim.pid} goes on", go_on)
        return f"{victim.pid} for {seconds:.2f} s"

    def garble(self, name: str) -> str | None:
        """Write into the connection of a worker, in one direction or the other."""
        if name == "garbage to a worker":  # only the subject knows which of its sockets is whose
            self.tell(f"garble {self.dice.randrange(1 << 30)}")
            return "told the subject"
        victim = self.victim("worker")
        if victim is None:
            return None
        data = self.dice.randbytes(self.dice.randrange(1, 5000))
        if name.startswith("half"):
            data = b"".join(wire.encode(wire.DONE, self.dice.randrange(1, 50), bytes(60_000)))
            data = data[: self.dice.randrange(1, len(data))]
        try:
            for number in _sockets(victim.pid):
                with socket.socket(fileno=self.steal(victim.fd, number)) as sock:
                    if sock.type == socket.SOCK_STREAM:  # the other is for large data
                        return f"{_send(sock, data)} bytes from worker {victim.pid}"
        finally:
            victim.close()
        return None

    def steal(self, pidfd: int, fd: int) -> int:
        """Return a copy of a descriptor of another process (pidfd_getfd(2))."""
        copy = self.libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return int(copy)

    def fill(self, place: str) -> str:
        path = os.path.join(place, f"filling-{self.counts.total()}")
        size = 0
        with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                size += file.write(bytes(1 << 20))
        self.later(self.dice.uniform(0.2, 3.0), f"{path} is removed", lambda: os.unlink(path))
        return f"{size >> 20} MiB"

    def no_descriptors(self) -> str:
        """Leave the subject some descriptors, or none."""
        pid = self.subject.pid
        spare = self.dice.choice((0, 1, 2, 4, 8, 16))
        limit = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1 + spare
        if any("descriptors are back" in text for _, text, _ in self.undo):
            return "as before"
        self.limit(pid, resource.RLIMIT_NOFILE, limit, "descriptors are back", self.dice.uniform(0.1, 1.5))
        return f"{limit}"

    def no_processes(self, role: str) -> str | None:
        if any("processes are back" in text for _, text, _ in self.undo):
            return None
        victim = self.victim(role)
        if victim is None:
            return None
        victim.close()
        self.limit(
            victim.pid, resource.RLIMIT_NPROC, 1, f"{role}: processes are back", self.dice.uniform(0.1, 1.5)
        )
        return str(victim.pid)

    def limit(self, pid: int, which: int, value: int, text: str, seconds: float) -> None:
        """Lower a soft limit of a process for a while."""
        soft, hard = resource.prlimit(pid, which)
        resource.prlimit(pid, which, (value if hard < 0 else min(value, hard), hard))

        def undo() -> None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                resource.prlimit(pid, which, (soft, hard))

        self.later(seconds, text, undo)

    def step_clock(self) -> str:
        seconds = self.dice.choice((0, 1, -1, 60, -60, 3600, -3600, FARTHEST))
        clock_shim.step(self.config["environment"]["SHIM_OFFSET"], seconds)
        self.tell("wake")
        return f"{seconds:+d} s"

    # -- the rest ----------------------------------------------------------------------------------------------

    def later(self, seconds: float, text: str, undo: Callable[[], None]) -> None:
        self.undo.append((time.monotonic() + seconds, text, undo))

    def undo_due(self, now: float) -> None:
        for each in [each for each in self.undo if each[0] <= now]:
            self.undo.remove(each)
            with contextlib.suppress(FileNotFoundError):
                each[2]()
            self.note(each[1])

    def tell(self, line: str) -> None:
        """Say something to the subject."""
        assert self.subject.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.subject.stdin.write(line + "\n")
            self.subject.stdin.flush()

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:9.3f} {time.monotonic():.3f} {text}", file=self.log)


def _has(pid: int, words: bytes) -> bool:
    try:
        return words in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _describe(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return f"process {pid} ({state}): {command[:200]}"
    except OSError:
        return f"process {pid}"


def _sockets(pid: int) -> list[int]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                found.append(int(name))
    return sorted(found)


def _send(sock: socket.socket, data: bytes) -> int:
    """Send what goes without waiting; return how much that was."""
    try:
        return sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EPIPE, errno.ENOTCONN, errno.ECONNRESET):
            return 0
        raise


def main(path: str) -> dict[str, Any]:
    """Be the saboteur of the soak with this configuration."""
    return Saboteur(json.loads(Path(path).read_text(encoding="utf-8"))).run()
