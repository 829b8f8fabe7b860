"""A sacrificial host program: runs jobs of attackers in sandboxes, and watches its own state meanwhile.

    pytest --one JSON line per order--> host --ProcessExecutor(sandbox=...)--> the job
           <--one JSON line per answer--

It is started by `hosts.py`, as root or as an unprivileged user, with an interpreter that everybody can read.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from typing import Any

SECRET = "canary-" + "f00d" * 8
UIDS = range(740_000, 740_512)  # also enough for a pool with as many workers as there are processors
KEPT = 3  # executors
START_SECONDS = 60  # until a job tells of progress: only a hang takes so long
KEYCTL = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
KEYCTL_DESCRIBE, KEYCTL_READ = 6, 11


def drop(uid: int) -> None:
    """Become an unprivileged user for good."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # dumpable again, so that its /proc is its own


class Canaries:
    """What an attack could hurt, and how it was at the beginning."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.sibling = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(100000)"])
        self.file = os.path.join(directory, "canary")
        with open(self.file, "w", encoding="ascii") as file:
            file.write(SECRET)
        os.chmod(self.file, 0o600)
        os.utime(self.file, (1e9, 1e9))
        self.heap = SECRET.encode() * 3
        os.environ["CANARY_SECRET"] = SECRET
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall(KEYCTL, 1, b"canary")  # KEYCTL_JOIN_SESSION_KEYRING
        number = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
        self.key = libc.syscall(number, b"user", b"canary", SECRET.encode(), len(SECRET), -3)
        # What is executed in the host, or in a process that serves it, can make this file: see `test_wire.py`.
        self.executed = f"/tmp/executed-{os.getpid()}"
        self.path = os.path.join(directory, "socket")
        self.sockets = []
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            (socket.AF_UNIX, socket.SOCK_STREAM, self.path + "-stream"),
            (socket.AF_UNIX, socket.SOCK_DGRAM, self.path),
            (socket.AF_UNIX, socket.SOCK_DGRAM, f"\0canary-{os.getpid()}"),
        ):
            made = socket.socket(family, kind)
            made.bind(address)
            if kind == socket.SOCK_STREAM:
                made.listen()
            self.sockets.append(made)
        for name in (self.path, self.path + "-stream"):
            os.chmod(name, 0o777)
        self.begun = self.state()

    def arguments(self) -> dict[str, Any]:
        """Return what an attacker is told: everything that it might want to hurt."""
        return {
            "parent": os.getpid(),
            "sibling": self.sibling.pid,
            "file": self.file,
            "directory": self.directory,
            "tcp": self.sockets[0].getsockname()[1],
            "udp": self.sockets[1].getsockname()[1],
            "path": self.path,
            "abstract": f"canary-{os.getpid()}",
            "secret": SECRET,
            "key": self.key,
            "executed": self.executed,
        }

    def state(self) -> dict[str, Any]:
        """Return everything that must not change."""
        found: dict[str, Any] = {}
        for name, pid in (("parent", 0), ("sibling", self.sibling.pid)):
            if pid and self.sibling.poll() is not None:
                found[name] = "dead"
                continue
            found[name] = {
                "limits": [resource.prlimit(pid, which) for which in range(16)],
                "priority": os.getpriority(os.PRIO_PROCESS, pid),
                "processors": sorted(os.sched_getaffinity(pid)),
                "scheduler": os.sched_getscheduler(pid),
                "io": ctypes.CDLL(None).syscall({"x86_64": 252, "aarch64": 31}[os.uname().machine], 1, pid),
            }
        try:
            status = os.stat(self.file)
            mode = stat.S_IMODE(status.st_mode)
            found["file"] = [status.st_mtime, mode, status.st_uid, status.st_nlink, status.st_size]
            found["xattr"] = os.listxattr(self.file)
        except OSError as error:
            found["file"] = str(error)
        found["directory"] = sorted(os.listdir(self.directory))
        found["executed"] = os.path.lexists(self.executed)
        found["key"] = [key_part(KEYCTL_DESCRIBE, self.key), key_part(KEYCTL_READ, self.key)]
        found["heard"] = [bool(select.select([each], [], [], 0)[0]) for each in self.sockets]
        with open("/proc/sysvipc/shm", encoding="ascii") as file:
            found["shm"] = len([line for line in file if str(os.getuid()) in line.split()[7:8]])
        return found

    def hurt(self) -> list[str]:
        """Return what has changed."""
        now = self.state()
        if now["executed"]:
            os.unlink(self.executed)
        return [f"{name}: {self.begun[name]} -> {now[name]}" for name in now if now[name] != self.begun[name]]


def key_part(operation: int, key: int) -> str:
    """Return the description of a key, or what it holds; or why that cannot be had."""
    room = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    size = libc.syscall(KEYCTL, operation, key, room, ctypes.c_size_t(len(room)))
    return os.strerror(ctypes.get_errno()) if size < 0 else room.raw[:size].decode("ascii", "replace")


class Host:
    """Carries out orders."""

    def __init__(self, directory: str, root: bool) -> None:
        self.root = root
        self.canaries = Canaries(directory)
        self.executors: dict[str, Any] = {}
        self.started: Any = None  # future of the job that was started last

    def sandbox(self, policy: dict[str, Any]) -> Any:
        """Return the sandbox of a policy, with what this user needs."""
        from procsched import Sandbox

        fields = dict(policy)
        fields["give_up"] = frozenset(fields.get("give_up", ()))
        if self.root:
            fields["run_as"] = UIDS
        return Sandbox(**fields)

    def executor(self, policy: dict[str, Any]) -> Any:
        """Return an executor with this policy; the last few are kept, for each takes a while to be made."""
        from procsched import ProcessExecutor

        key = json.dumps(policy, sort_keys=True)
        executor = self.executors.pop(key, None)
        if executor is None:
            executor = ProcessExecutor(1, timeout=10.0, sandbox=self.sandbox(policy))
        self.executors[key] = executor
        while len(self.executors) > KEPT:
            self.executors.pop(next(iter(self.executors))).shutdown()
        return executor

    def do_arguments(self) -> Any:
        return self.canaries.arguments()

    def do_report(self, policy: dict[str, Any]) -> Any:
        """Return what keeps which promise, or the error."""
        from procsched import ProcschedError

        try:
            report = self.executor(policy).sandbox_report()
        except ProcschedError as error:
            return {
                "error": type(error).__name__,
                "promise": getattr(error, "promise", ""),
                "text": str(error),
            }
        return {
            "kept": report.kept,
            "given_up": report.given_up,
            "layers": report.layers,
            "nice": report.nice,
            "text": str(report),
        }

    def do_landlock(self, version: int) -> Any:
        """Take the kernel's Landlock for an older one from now on, in sandboxes that are made here."""
        from procsched.sandbox import kernel

        kernel.landlock_version = lambda: version

    def do_run(
        self,
        policy: dict[str, Any],
        source: str,
        name: str,
        args: list[Any],
        timeout: float,
        mark: str = "",
    ) -> Any:
        """Run one job, look for what it has left, look at the canaries, and run a harmless one.

        Args:
            mark: what the processes of the job call themselves, where it has several.
        """
        from procsched import Source

        executor = self.executor(policy)
        progress = 0
        begun = time.monotonic()
        job = Source(source, name) if source else _function(name)
        future = executor.options(timeout=timeout).submit(job, *args)
        record = future.wait_record(timeout + 30)
        left = [record.pid] if alive(record.pid) else []
        if mark:
            left += called(mark)
        answer: dict[str, Any] = {
            "seconds": time.monotonic() - begun,
            "duration": record.duration,
            "outcome": str(record.outcome),
            "error": record.error,
            "limit": record.limit,
            "output": record.output,
            "truncated": record.output_truncated,
            "given_up": list(record.given_up),
            "cpu": record.cpu_seconds,
            "rss": record.peak_rss,
            "traceback": record.traceback,
            "exit_code": record.exit_code,
            "signal": record.signal,
            "progress": progress or future.progress,
            "result": _shown(record.result) if record.ok else None,
            "exception": type(future.exception()).__name__ if not record.ok else None,
            "alive": left,
        }
        harmless = executor.options(timeout=20).submit(Source("def f():\n return sum(range(10))", "f"))
        answer["harmless"] = harmless.result()
        answer["hurt"] = self.canaries.hurt()
        text = json.dumps([answer["output"], answer["result"], answer["error"], answer["traceback"]])
        answer["leaked"] = SECRET in text
        return answer

    def do_run_shared(self, policy: dict[str, Any], source: str, name: str, calls: list[list[Any]]) -> Any:
        """Call a job by `run`, each time with an argument and a timeout; return each result, or the error."""
        from procsched import ProcschedError, Source, run, shutdown_shared

        answers = []
        try:
            for argument, timeout in calls:
                try:
                    result = run(
                        Source(source, name), argument, timeout=timeout, sandbox=self.sandbox(policy)
                    )
                    answers.append(["result", result])
                except ProcschedError as error:
                    answers.append([type(error).__name__, str(error)])
        finally:
            shutdown_shared()
        return {"answers": answers, "hurt": self.canaries.hurt()}

    def do_scheduler(self, policy: dict[str, Any], source: str, name: str, tasks: list[list[Any]]) -> Any:
        """Have a scheduler run a job for each argument; with how many attempts, None for what is usual there.

        Returns:
            For each task a line for each of its attempts.
        """
        from procsched import EventLog, OneTime, ProcessPool, RetryPolicy, Scheduler, Source

        log = EventLog()
        with Scheduler(pool=ProcessPool(1, sandbox=self.sandbox(policy)), listeners=[log]) as scheduler:
            made = []
            for argument, attempts in tasks:
                options = {} if attempts is None else {"retry": RetryPolicy(attempts, initial_backoff=0.0)}
                job = Source(source, name)
                made.append(
                    scheduler.schedule("job", job, OneTime(0), args=(argument,), timeout=20.0, **options)
                )
            for task in made:
                scheduler.wait(task, 60)
        records = [event.record for event in log.events if event.record is not None]
        answers = [
            [
                [
                    record.attempt,
                    str(record.outcome),
                    record.result if record.ok else record.error,
                    record.given_up,
                ]
                for record in records
                if record.task_id == task.id
            ]
            for task in made
        ]
        return {"answers": answers, "hurt": self.canaries.hurt()}

    def do_niceness(self, policy: dict[str, Any], given: list[dict[str, int]]) -> Any:
        """Return, for each way to run a job, what it has of the processors.

        By how much its niceness is above this program's, what the report says of that, and which of the processors of
        this program it may not use.

        Args:
            given: what executors are given beside the sandbox.
        """
        from procsched import OneTime, ProcessExecutor, ProcessPool, Scheduler, Source, run, shutdown_shared

        sandbox = self.sandbox(policy)
        own, all_of_them = os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0)
        look = (
            "import os\ndef f(): return [os.getpriority(os.PRIO_PROCESS, 0), list(os.sched_getaffinity(0))]"
        )
        job = Source(look, "f")
        found = {}
        for options in given:
            with ProcessExecutor(1, timeout=20.0, sandbox=sandbox, **options) as executor:
                report = executor.sandbox_report()
                assert report is not None
                found[json.dumps(options)] = [executor.submit(job).result(), report.nice]
        with Scheduler(pool=ProcessPool(1, sandbox=sandbox)) as scheduler:
            task = scheduler.schedule("job", job, OneTime(0), timeout=20.0)
            scheduler.wait(task, 60)
            record = task.last_run()
            assert record is not None
            found["scheduler"] = [record.result, None]
        try:
            found["run"] = [run(job, timeout=20.0, sandbox=sandbox), None]
        finally:
            shutdown_shared()
        with ProcessExecutor(1) as trusted:
            nice = trusted.submit(os.getpriority, os.PRIO_PROCESS, 0).result()
            found["trusted"] = [[nice, trusted.submit(os.sched_getaffinity, 0).result()], None]
        return {
            way: [nice - own, said, sorted(all_of_them.difference(processors))]
            for way, ((nice, processors), said) in found.items()
        }

    def do_at_once(self, policy: dict[str, Any], jobs: list[list[Any]], timeout: float) -> Any:
        """Run several jobs one after another and return their outcomes."""
        from procsched import Source

        executor = self.executor(policy)
        futures = [
            executor.options(timeout=timeout).submit(Source(source, name), *args)
            for source, name, args in jobs
        ]
        return [[str(each.wait_record(60).outcome), each.wait_record(60).error] for each in futures]

    def do_usage(self) -> Any:
        """Return what grows when something leaks."""
        with open("/proc/self/statm", encoding="ascii") as file:
            rss = int(file.read().split()[1]) * 4096
        return {
            "rss": rss,
            "fds": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
        }

    def do_below(self) -> Any:
        """Return the command lines of everything below this process."""
        import psutil

        found = []
        for each in psutil.Process().children(recursive=True):
            try:
                found.append([each.pid, each.uids().real, each.cmdline()])
            except psutil.Error:
                continue
        return found

    def do_called(self, mark: str) -> Any:
        """Return the processes of this system that call themselves so."""
        return called(mark)

    def do_start(
        self, policy: dict[str, Any], source: str, name: str, timeout: float, args: tuple[Any, ...] = ()
    ) -> Any:
        """Start a job and do not wait for it; return the pid of its worker once it has told of progress."""
        from procsched import Source

        future = self.executor(policy).options(timeout=timeout).submit(Source(source, name), *args)
        end = time.monotonic() + START_SECONDS
        while future.progress is None:
            if future.done() or time.monotonic() > end:
                raise RuntimeError(f"the job told of no progress: {future.wait_record(0)}")
            time.sleep(0.01)
        self.started = future
        stats = self.executor(policy).stats()
        return [worker.pid for worker in stats.workers if worker.state == "busy"]

    def do_progress(self) -> Any:
        """Return what the job that was started last has told."""
        return self.started.progress

    def do_close(self) -> Any:
        """End all executors."""
        for each in self.executors.values():
            each.kill_workers()
            each.shutdown()
        self.executors.clear()


def _function(name: str) -> Any:
    import importlib

    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def _shown(value: Any) -> Any:
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value


def called(mark: str) -> list[int]:
    """Return the processes that call themselves so, whosever children they are by now. A name has 15 letters at most."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                name = file.read()
        except OSError:
            continue  # gone meanwhile
        if name == mark + "\n" and alive(int(pid)):
            found.append(int(pid))
    return found


def alive(pid: int | None) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in (b"Z", b"X")
    except OSError:
        return False


def main() -> None:
    directory, uid = sys.argv[1], int(sys.argv[2])
    if uid:
        drop(uid)
    os.chdir("/usr")  # nowhere near the directory that jobs may write to
    host = Host(directory, root=os.getuid() == 0)
    print(json.dumps({"answer": "ready"}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        method = getattr(host, "do_" + order.pop("do"))
        try:
            answer = {"answer": method(**order)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    for each in host.executors.values():
        each.shutdown()
    host.canaries.sibling.kill()


if __name__ == "__main__":
    main()
