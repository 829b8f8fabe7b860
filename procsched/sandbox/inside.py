"""What runs in the sandboxed process: it confines itself, tries whether it is confined, and only then takes the job.

    parent --settings--> read, limit, confine, try --ready--> parent --job--> run --done | raised | large--> parent

The order of the steps is that in which each still can be done: what needs a right comes before it is given up, and the
filter comes last. Any step that fails ends the process before it was sent the job; nothing is ever left out instead.

Nothing is imported that a start can do without: each module, and each library even more, is on the way to every run.

The rest of the process belongs to the job once it runs. What is written after that is a claim of the job's, also where
this module writes it: nothing here protects the parent, which reads it with `frames.py`.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import errno
import io
import os
import sys
import time

from procsched.child import current
from procsched.sandbox import kernel
from procsched.sandbox.plain import PlainError, dump, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType, ModuleType, TracebackType
    from typing import Any, NoReturn

# As in `frames.py`, which this process has no use for.
LONGEST_NAME, LONGEST_MESSAGE, LONGEST_TRACEBACK, LONGEST_NOTE = 200, 10_000, 16 << 10, 500
PROGRESS_PAUSE = 0.05  # seconds: the parent takes no more
# Bytes that are let go when memory has run out, so that there is some to say so: with the modules that takes.
BALLAST = 4 << 20
SOURCE_FILE = "source.py"  # there is none of that name
NOWHERE = "/procsched-nowhere"
# What a refusal looks like; anything else means that it was tried.
REFUSALS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EAGAIN)


class Confiner:
    """Confines this process, step by step. `step` names the one that is being done."""

    def __init__(self, settings: dict[str, Any], parent: int) -> None:
        self.settings = settings
        self.parent = parent
        self.step = "start"
        self.layers: dict[str, str] = {}

    def confine(self) -> None:
        """Do all of it. An exception says what could not be done, `step` where."""
        settings = self.settings
        self.step = "parent-death signal"
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        if self.parent and os.getppid() != self.parent:
            raise OSError("the parent is gone")
        self.step = "scratch"
        if settings["scratch"]:
            kernel.limit_scratch(*settings["scratch"])
        os.chdir(settings["cwd"])
        os.umask(0o077)
        if settings["leaves_one"] and leave_one_processor():
            self.layers["processors"] = "all but one"
        self.step = "limits"
        self.limit()
        self.step = "capabilities"
        if settings["drop"]:
            kernel.drop_capabilities()
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        self.step = "no new privileges"
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        self.step = "landlock"
        kernel.landlock(settings["landlock"], settings["rules"])
        self.layers["landlock"] = str(settings["landlock"])
        self.step = "seccomp"
        program = bytearray.fromhex(settings["filter"])
        for place in settings["pids"]:
            program[place : place + 4] = os.getpid().to_bytes(4, sys.byteorder)
        kernel.seccomp(bytes(program))
        self.layers["seccomp"] = str(len(program) // 8)
        self.step = "self-test"
        self.layers["tried"] = str(self.try_out())

    def limit(self) -> None:
        """Set the limits of the kernel, that of memory last."""
        settings = self.settings
        both = {
            kernel.RLIMIT_CORE: 0,
            kernel.RLIMIT_NOFILE: settings["open_files"],
            kernel.RLIMIT_FSIZE: settings["file_size"],
            kernel.RLIMIT_MEMLOCK: 0,
            kernel.RLIMIT_MSGQUEUE: 0,
            kernel.RLIMIT_NICE: 0,
            kernel.RLIMIT_RTPRIO: 0,
        }
        if settings["tasks"] is not None:
            both[kernel.RLIMIT_NPROC] = settings["tasks"]
        for which, value in both.items():
            kernel.set_limit(which, value)
        cpu = settings["cpu_seconds"]
        used = int(time.process_time())  # whole seconds, where the start was that slow
        kernel.set_limit(kernel.RLIMIT_CPU, cpu + used, cpu + used + 1)
        kernel.set_limit(kernel.RLIMIT_AS, settings["memory"])

    def try_out(self) -> int:
        """Try what must not work; return how much was tried.

        Raises:
            OSError: something worked: a kernel, or something that stands in for one, does not do what it says.
        """
        parent = os.getppid()
        settings = self.settings
        # What is never meant to happen does no harm should it happen: signal 0, a limit that is set to what it was.
        attempts: list[tuple[str, Callable[[], object]]] = [
            ("make a socket", lambda: kernel.call("socket", kernel.AF_INET, kernel.SOCK_DGRAM, 0)),
            ("make a pair of datagram sockets", lambda: kernel.make_pair(kernel.AF_UNIX, kernel.SOCK_DGRAM)),
            # Of what is not there: whether it is refused or only not found is the question.
            ("execute a program", lambda: os.execv(NOWHERE, [NOWHERE])),
            ("give a file away", lambda: os.chown(NOWHERE, -1, -1)),
            (
                "have the owner of a descriptor signalled",
                lambda: kernel.call("fcntl", 0, kernel.F_SETOWN, os.getpid()),
            ),
            ("outlive the parent", lambda: kernel.prctl(kernel.PR_SET_PDEATHSIG, 0)),
            ("send a signal to the parent", lambda: os.kill(parent, 0)),
            ("signal all that can be", lambda: os.kill(-1, 0)),
            ("see the parent's limits", lambda: kernel.see_limit(parent, kernel.RLIMIT_CPU)),
            ("see the parent's priority", lambda: os.getpriority(os.PRIO_PROCESS, parent)),
            ("list the root directory", lambda: os.listdir("/")),
        ]
        if settings["alone"]:
            attempts.append(("fork", _fork))
        else:  # in a pid namespace, whose init it may signal, in vain
            attempts = [each for each in attempts if "signal" not in each[0] or "owner" in each[0]]
        hidden = not self.parent  # in a root of its own there may be no such name
        for path in settings["outside"]:
            attempts.append((f"open {path}", lambda path=path: _open(path, hidden)))  # type: ignore[misc]
        for what, attempt in attempts:
            try:
                attempt()
            except OSError as error:
                if error.errno in REFUSALS:
                    continue
                raise OSError(f"not confined: when it tried to {what}, the answer was {error}") from None
            raise OSError(f"not confined: it could {what}")
        return len(attempts)


def leave_one_processor() -> bool:
    """Use all processors that this process may use but the first, where there are several. Return whether it does.

    The same one for all: a neighbour that wakes up finds it without a job on it. No promise hangs on that, and where
    the kernel refuses it the job has all of them.
    """
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) == 1:
        return False
    try:
        os.sched_setaffinity(0, mine[1:])
    except OSError:
        return False
    return True


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _open(path: str, hidden: bool) -> None:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except FileNotFoundError:
        if hidden:
            raise PermissionError(errno.EACCES, "hidden") from None
        raise


class Answer:
    """The pipe to the parent."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def send(self, body: bytes) -> None:
        """Write one frame, whole."""
        view = memoryview(len(body).to_bytes(4, "big") + body)
        while view:
            view = view[os.write(self.fd, view) :]


class Output(io.RawIOBase):
    """stdout or stderr: passes on what the parent keeps, and takes the rest without complaint."""

    left = 0  # bytes, of both together

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.fd = fd

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor, for those who write to it by themselves."""
        return self.fd

    def write(self, data: Any) -> int:
        """Write what there is room for, and one byte more, by which the parent knows that there was more."""
        view = memoryview(data).cast("B")
        room = max(0, Output.left + 1)
        try:
            part = view[:room]
            while part:
                written = os.write(self.fd, part)
                Output.left -= written
                part = part[written:]
        except OSError:  # the parent has enough
            Output.left = -1
        return len(view)


def main() -> NoReturn:
    """Be the sandboxed process: descriptors and the parent's pid are arguments."""
    task_fd, answer_fd, parent, report_fd = map(int, sys.argv[1:5])
    sys.argv[:] = [""]
    kernel.close_all_from(max(task_fd, answer_fd, report_fd) + 1)
    answer = Answer(answer_fd)
    settings = _read(task_fd)
    if settings is None:
        os._exit(0)
    if report_fd >= 0:
        _split(settings, (task_fd, answer_fd), report_fd)
    confiner = Confiner(settings, parent)
    try:
        confiner.confine()
    except BaseException as error:
        answer.send(_refusal(confiner, error))
        os._exit(1)
    answer.send(dump({"kind": "ready", "layers": confiner.layers, "cpu": time.process_time()}, 100))
    sys.path[:] = settings["path"]
    Output.left = settings["output"]
    for name, fd in (("stdout", 1), ("stderr", 2)):
        stream = io.TextIOWrapper(
            io.BufferedWriter(Output(fd)), "utf-8", "backslashreplace", line_buffering=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    order = _read(task_fd)
    if order is None:
        os._exit(0)  # not needed any more
    os.close(task_fd)
    _answer(answer, order, settings)
    os._exit(0)


def _refusal(confiner: Confiner, error: BaseException) -> bytes:
    """Return the frame which says that this process could not be confined."""
    text = f"{type(error).__name__}: {error}"
    return dump({"kind": "refused", "step": confiner.step, "error": text[:LONGEST_MESSAGE]}, 10)


def _split(settings: dict[str, Any], wire: tuple[int, int], report_fd: int) -> None:
    """Have a process between this one and the init of its namespace, which reports on its death to the parent.

    Init and bubblewrap hide the wait status and the CPU time. Returns in the process that is to run the job, which has
    no way to the report.
    """
    from procsched.sandbox.reports import pack_report

    # The job may send it any but SIGKILL and SIGSTOP where Landlock scopes no signals (before Linux 6.12).
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = os.fork()
    if pid == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(report_fd)
        return
    try:
        confiner = Confiner(settings, 0)
        try:
            confiner.confine()
        except BaseException as error:
            Answer(wire[1]).send(_refusal(confiner, error))
            os.kill(pid, signal.SIGKILL)
        for fd in (*wire, 1, 2):
            os.close(fd)
        _pid, status, usage = os.wait4(pid, 0)
        report = pack_report(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)
        os.write(report_fd, report)
    finally:
        os._exit(0)


def _read(fd: int) -> Any:
    """Read one frame of the parent's; None where there will be none."""
    data = bytearray()
    size = 4
    while len(data) < size:
        piece = os.read(fd, min(1 << 20, size - len(data)))
        if not piece:
            return None
        data += piece
        if len(data) == 4 == size:
            size += int.from_bytes(data, "big")
    return read(data[4:].decode())


def _answer(answer: Answer, order: dict[str, Any], settings: dict[str, Any]) -> None:
    """Run the job and say how it ended. Whatever happens is an answer."""
    number = order["id"]
    ballast: bytes | None = bytes(BALLAST)  # as zeros that nobody reads, which take no memory yet
    try:
        Job(answer, order).begin()
        result = _call(order)
        current._end()
        _flush()
        body = dump(result, settings["nodes"], "the result")
        if len(body) > settings["result"]:
            body = b'{"kind":"large","id":%d,"size":%d}' % (number, len(body))
        else:
            body = b'{"kind":"done","id":%d,"value":%s}' % (number, body)
    except BaseException as error:
        ballast = None
        _flush()
        body = _describe(number, error)
    del ballast
    answer.send(body)


class Job:
    """What `current_run()` knows in here."""

    def __init__(self, answer: Answer, order: dict[str, Any]) -> None:
        self.answer = answer
        self.facts = order["facts"]
        self.called = order["name"]
        self.began = time.monotonic()
        self.told = 0.0

    def begin(self) -> None:
        """The job begins."""
        current._begin(self.describe)

    def describe(self) -> current.CurrentRun:
        """Return what `current_run()` answers."""
        task_id, name, attempt, run, timeout = self.facts
        return current.CurrentRun(task_id, name or self.called, attempt, run, timeout, self.began, self.tell)

    def tell(self, done: float, total: float | None, note: str) -> None:
        """Send progress, as often as the parent takes it."""
        now = time.monotonic()
        if now - self.told < PROGRESS_PAUSE and done != total:
            return
        self.told = now
        frame = {"kind": "progress", "done": done, "total": total, "note": str(note)[:LONGEST_NOTE]}
        self.answer.send(dump(frame, 10))


def _call(order: dict[str, Any]) -> Any:
    function: Any
    name = order["name"]
    if "source" in order:
        text = order["source"]
        function = vars(_module_of(text)).get(name)
        if function is None:
            raise NameError(f"the source defines no {name!r}")
    else:
        if order["path"]:
            sys.path.insert(0, order["path"])
        function = __import__(order["module"], fromlist=["*"])
        for part in name.split("."):
            function = getattr(function, part)
    result = function(*order["args"], **order["kwargs"])
    if hasattr(type(result), "__await__"):
        import asyncio

        result = asyncio.run(_awaited(result))
    return result


async def _awaited(result: Any) -> Any:
    return await result


class Lines:
    """Knows the source text, for who shows its lines in a traceback (linecache, PEP 302)."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, _name: str) -> str:
        """Return it."""
        return self.text


def _module_of(text: str) -> ModuleType:
    """Compile and run a source text as a module that is not the main one."""
    module: ModuleType = type(sys)("source")
    module.__file__ = SOURCE_FILE
    module.__loader__ = Lines(text)  # type: ignore[assignment]
    sys.modules["source"] = module
    code: CodeType = compile(text, SOURCE_FILE, "exec", dont_inherit=True)
    exec(code, vars(module))
    return module


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # the job may have put anything in their place
            continue


def _describe(number: int, error: BaseException) -> bytes:
    """Return the frame that tells of an exception, whatever that raises when it is asked about itself."""
    name = _text(lambda: type(error).__name__, "exception")[:LONGEST_NAME]
    message = _text(lambda: str(error), "its text cannot be had")[:LONGEST_MESSAGE]
    if isinstance(error, PlainError):
        trace = ""
    else:
        trace = _text(lambda: _traceback_of(error), "its traceback cannot be had")
    if len(trace) > LONGEST_TRACEBACK:
        trace = trace[: LONGEST_TRACEBACK // 4] + "\n...\n" + trace[-LONGEST_TRACEBACK // 2 :]
    try:
        frame = {"kind": "raised", "id": number, "type": name, "message": message, "traceback": trace}
        return dump(frame, 10)
    except BaseException:  # no memory is left, or the job has put something into the way
        words = (
            b'"MemoryError","message":"no memory is left"'
            if isinstance(error, MemoryError)
            else b'"exception","message":"it cannot be told"'
        )
        return b'{"kind":"raised","id":%d,"type":%s,"traceback":""}' % (number, words)


def _traceback_of(error: BaseException) -> str:
    import traceback  # half of all that would be imported before the start

    # Without our own frames, so that it reads as that of a plain call.
    kept: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_globals is not globals():
            kept.append(entry)
        entry = entry.tb_next
    for entry, following in zip(kept, (*kept[1:], None), strict=True):
        entry.tb_next = following
    error.__traceback__ = kept[0] if kept else None
    return "".join(traceback.format_exception(error))


def _text(make: Callable[[], object], otherwise: str) -> str:
    try:
        made = make()
        if isinstance(made, str):
            return str(made).encode("utf-8", "backslashreplace").decode()
    except BaseException:  # a user's `__str__`, a metaclass, the recursion limit
        pass
    return otherwise
