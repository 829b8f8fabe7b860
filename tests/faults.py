"""Faults as importable functions: what an action, an argument, a result or an exception can do to a worker.

Actions that a test has to catch in the act take the path of a file and append a line to it (`support.tell`): their
pid first, then those of the processes that they left.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from procsched import TaskTimeoutError, _system
from procsched._core import wire
from procsched.child.surroundings import HIGH_FD
from tests import support

FOREVER = 3600.0
"""Seconds that a hang lasts. Every test ends it long before."""


# --- actions that behave ---------------------------------------------------------------------------------


def add(left: Any, right: Any) -> Any:
    return left + right


def identity(value: Any) -> Any:
    return value


def length(value: Any) -> int:
    return len(value)


def pid_and(value: Any) -> tuple[int, Any]:
    return os.getpid(), value


def tell_pid(path: str) -> int:
    support.tell(path, os.getpid())
    return os.getpid()


def wait_at_gate(gate: str, path: str = "", value: Any = "through") -> Any:
    """Wait until somebody opens the FIFO `gate` for writing; see `pools.open_gate`."""
    if path:
        support.tell(path, os.getpid())
    with open(gate, "rb") as file:
        file.read()
    return value


def leave_line(path: str, line: str, gate: str = "", ballast: bytes = b"") -> None:
    """Append a line to the file, and wait at the gate if there is one."""
    support.tell(path, line)
    if gate:
        wait_at_gate(gate)


def nap(seconds: float) -> str:
    """Sleep for so long and return."""
    time.sleep(seconds)
    return "napped"


def nap_and_tell(seconds: float, path: str) -> None:
    time.sleep(seconds)
    support.tell(path, os.getpid())


def use(size: int, seconds: float) -> int:
    """Use so much memory and CPU time."""
    data = bytearray(b"x") * size
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return len(data)


def use_in_zombie(seconds: float) -> None:
    """Have a child use so much CPU time, and return when it has ended, without reaping it."""
    child = os.fork()
    if child == 0:
        use(0, seconds)
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)


def use_in_child(size: int) -> None:
    """Use so much memory in a child that is reaped."""
    child = os.fork()
    if child == 0:
        use(size, 0.0)
        os._exit(0)
    os.waitpid(child, 0)


async def hang_in_closed_loop() -> None:
    """Have the event loop take for ever to end, once it is closed."""
    import asyncio

    loop: Any = asyncio.get_running_loop()
    close = loop.close

    def close_and_hang() -> None:
        close()
        time.sleep(FOREVER)

    loop.close = close_and_hang


def report_progress() -> tuple[str, int, float | None]:
    """Tell of three steps; return what is known of the run."""
    from procsched import current_run

    run = current_run()
    assert run is not None
    for step in range(1, 4):
        run.progress(step, 3, f"step {step}")
    return run.name, run.attempt, run.remaining()


class Sly(str):
    """A text that says at every turn that it is one of its own kind, and notes where it is loaded."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        return Sly(super().__getitem__(key))

    def __reduce__(self) -> Any:
        return pickle.loads, (b"no pickle",)


class SlyNumber(int):
    """A number of the same kind."""

    def __float__(self) -> float:
        raise ValueError("no number")

    __index__ = __int__ = __float__  # type: ignore[assignment]


class SlyNote:
    """Has such a text."""

    def __str__(self) -> str:
        return Sly("half way")


def report_slyly() -> None:
    """Tell of progress with a text and numbers that are none of the builtin kinds."""
    from procsched import current_run

    run = current_run()
    assert run is not None
    run.progress(SlyNumber(3), SlyNumber(7), SlyNote())  # type: ignore[arg-type]


def own_name() -> str:
    """Return what the run is called."""
    from procsched import current_run

    run = current_run()
    assert run is not None
    return run.name


def fail_until(path: str, attempt: int, how: str) -> int:
    """Fail until this attempt; the attempts are counted in a file."""
    support.tell(path, os.getpid())
    with open(path, encoding="utf-8") as file:
        count = len(file.readlines())
    if count < attempt:
        if how == "crash":
            os._exit(5)
        raise ValueError(f"attempt {count}")
    return count


def hang_at(value: int, bad: int, path: str) -> int:
    if value == bad:
        sleep(path)
    return value


def crash_at(value: int, bad: int) -> int:
    if value == bad:
        os._exit(5)
    return value


# --- actions that never end by themselves ----------------------------------------------------------------


def spin(path: str) -> NoReturn:
    """Loop in Python."""
    support.tell(path, os.getpid())
    while True:
        pass


def sleep(path: str) -> NoReturn:
    """Sleep, which releases the GIL."""
    support.tell(path, os.getpid())
    while True:
        time.sleep(FOREVER)


def hang_in_c(path: str) -> NoReturn:
    """Sit in a C call that holds the GIL."""
    support.tell(path, os.getpid())
    while True:
        support.hang_in_c(FOREVER)


def backtrack(path: str) -> object:
    """Let a regular expression backtrack for longer than anybody lives: pure C, which looks for signals."""
    import re

    support.tell(path, os.getpid())
    return re.match(r"(?:(?:a|a)+)+b", "a" * 60)


def swallow(path: str) -> NoReturn:
    """Catch whatever is raised and go on."""
    told = False
    while True:
        try:
            if not told:
                support.tell(path, os.getpid())
                told = True
            time.sleep(FOREVER)
        except BaseException:
            continue


def end_together(path: str, count: int) -> NoReturn:
    """Hang, and when asked to stop wait until so many have been asked. Each leaves a line at both."""
    try:
        support.tell(path, os.getpid())
        time.sleep(FOREVER)
    finally:
        support.tell(path, "asked")
        support.wait_for_file(path, FOREVER, lines=2 * count)
    raise AssertionError


def swallow_once() -> str:
    """Catch the first exception that comes, and return."""
    try:
        while True:
            time.sleep(FOREVER)
    except Exception:
        return "swallowed"


def ignore_signals(path: str) -> NoReturn:
    """Ignore every signal that can be ignored, and hang."""
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError):
            signal.signal(signum, signal.SIG_IGN)
    sleep(path)


def block_signals(path: str) -> NoReturn:
    """Block every signal that can be blocked, and hang."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    sleep(path)


def stop_itself(path: str) -> None:
    """Stop this process with SIGSTOP."""
    support.tell(path, os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)


def flood(path: str) -> NoReturn:
    """Flood the parent with progress from four threads, for ever."""
    from procsched import current_run

    run = current_run()
    assert run is not None

    def tell_all() -> None:
        while True:
            run.progress(1, 2, "x" * 1000)

    support.tell(path, os.getpid())
    for _ in range(3):
        threading.Thread(target=tell_all, daemon=True).start()
    tell_all()
    raise AssertionError


HANGS: tuple[Callable[[str], object], ...] = (
    spin,
    sleep,
    hang_in_c,
    backtrack,
    swallow,
    ignore_signals,
    block_signals,
    stop_itself,
    flood,
)


def sleep_if_told(path: str) -> None:
    """Sleep where there is a path."""
    if path:
        sleep(path)


def clean_up(path: str) -> NoReturn:
    """Hang, and tell what ended the hang and that there was time to clean up."""
    try:
        support.tell(path, "began")
        while True:
            time.sleep(FOREVER)
    except BaseException as error:
        support.tell(path, type(error).__name__)
        raise
    finally:
        support.tell(path, "cleaned")


async def clean_up_async(path: str) -> NoReturn:
    """The same as a coroutine."""
    import asyncio

    try:
        support.tell(path, "began")
        while True:
            await asyncio.sleep(FOREVER)
    except BaseException as error:
        support.tell(path, type(error).__name__)
        raise
    finally:
        support.tell(path, "cleaned")


def answer_that_nobody_reads(path: str) -> bytes:
    """Return more than a socket holds once the parent is stopped: then the writing is stuck. A memfd would hold it."""
    import psutil

    os.environ["PROCSCHED_WITHOUT"] = "memfd"
    ancestors = psutil.Process().parents()
    support.tell(path, os.getpid())
    support.eventually(lambda: any(process.status() == psutil.STATUS_STOPPED for process in ancestors))
    return b"x" * (20 << 20)


def answer_with(path: str, size: int) -> bytes:
    """Return so many bytes."""
    data = b"x" * size
    support.tell(path, os.getpid())
    return data


def start_multiprocessing(path: str) -> None:
    """Start processes with multiprocessing and return without waiting for them."""
    import multiprocessing

    for method in ("fork", "spawn"):
        process = multiprocessing.get_context(method).Process(target=_wait_for_death)
        process.start()
        support.tell(path, process.pid)


def nest(path: str) -> object:
    """Use an executor inside the action; hang in it where there is a path."""
    from procsched import ProcessExecutor

    with ProcessExecutor(1) as executor:
        if path:
            return executor.submit(leave, ["session_grandchild"], path, "hang").result()
        return executor.submit(add, 1, 2).result()


# --- actions that break their connection -----------------------------------------------------------------


def sockets() -> list[int]:
    """Return the descriptors above the standard three that are sockets."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) > 2 and stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                found.append(int(name))
    return found


def close_everything(path: str) -> NoReturn:
    """Close every descriptor but the standard three, and hang."""
    support.tell(path, os.getpid())
    os.closerange(3, 4096)
    while True:
        time.sleep(FOREVER)


def _write_to_parent(data: bytes) -> None:
    for fd in sockets():
        os.write(fd, data)


def write_garbage(path: str) -> NoReturn:
    """Write what is no frame into every socket, and hang."""
    support.tell(path, os.getpid())
    _write_to_parent(b"\x00garbage" * 100)
    while True:
        time.sleep(FOREVER)


def write_foreign_frame(path: str) -> NoReturn:
    """Write a whole frame of a kind that does not exist, and hang."""
    support.tell(path, os.getpid())
    _write_to_parent(b"".join(wire.encode(99, 1, b"what is this")))
    while True:
        time.sleep(FOREVER)


def write_huge_claim(path: str) -> NoReturn:
    """Announce a frame over the cap, and hang."""
    support.tell(path, os.getpid())
    head = wire.HEADER.pack(wire.MAGIC, wire.DONE, 0, 0, wire.CAP + 1, 1, 0.0, 0.0, 0)
    _write_to_parent(head)
    while True:
        time.sleep(FOREVER)


def write_no_pickle(path: str) -> NoReturn:
    """Write a well-formed progress frame, for whatever number, whose payload tells of none, and hang."""
    support.tell(path, os.getpid())
    for number in range(1, 20):
        _write_to_parent(b"".join(wire.encode(wire.PROGRESS, number, b"no pickle")))
    while True:
        time.sleep(FOREVER)


BREAKS: tuple[Callable[[str], object], ...] = (
    close_everything,
    write_garbage,
    write_foreign_frame,
    write_huge_claim,
    write_no_pickle,
)


def write_bytes(which: int, pieces: list[bytes], path: str, then: str) -> str:
    """Write anything into one of the descriptors of the worker's own, as the wire is made of, and go on somehow.

    Args:
        which: 0 its socket, 1 the pipe for output, 2 that of the tokens, 3 the socket for descriptors.
        then: "hang", "return" or "exit".
    """
    own = sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) >= HIGH_FD)
    fd = own[which]
    if which == 2:  # it has the reading end alone
        fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK)
    for piece in pieces:
        with contextlib.suppress(OSError):
            os.write(fd, piece)
    if which == 2:
        os.close(fd)
    support.tell(path, os.getpid())
    if then == "exit":
        os._exit(6)
    while then == "hang":
        time.sleep(FOREVER)
    return "returned"


def write_half_frame(path: str) -> NoReturn:
    """Write the beginning of a large frame, and hang."""
    whole = b"".join(wire.encode(wire.DONE, 1, b"x" * 300_000))
    _write_to_parent(whole[:100_000])
    sleep(path)


def write_half_header(path: str) -> NoReturn:
    """Write three bytes of a header, and hang."""
    _write_to_parent(b"".join(wire.encode(wire.DONE, 1, b"x"))[:3])
    sleep(path)


def write_half_frame_and_exit() -> NoReturn:
    """Write the beginning of a large frame, and end."""
    whole = b"".join(wire.encode(wire.DONE, 1, b"x" * 300_000))
    _write_to_parent(whole[:100_000])
    os._exit(7)


def write_half_frame_and_return() -> None:
    """Write the beginning of a large frame, and return: the answer goes where the rest of it belongs."""
    _write_to_parent(b"".join(wire.encode(wire.DONE, 1, b"x" * 300_000))[:100_000])


def write_half_header_and_return() -> None:
    """Write a header that announces more than will come, and return."""
    _write_to_parent(b"".join(wire.encode(wire.DONE, 1, b"x" * 60_000))[: wire.HEADER.size])


def answer_three_times() -> str:
    """Answer the first call of this worker twice beside the answer that the worker gives."""
    _write_to_parent(b"".join(wire.encode(wire.DONE, 1, pickle.dumps("early"))) * 2)
    return "late"


HALVES: tuple[Callable[[str], object], ...] = (write_half_frame, write_half_header)


def flood_frames(path: str) -> NoReturn:
    """Write whole frames into the connection, more quickly than anybody reads them, for ever."""
    import socket

    frames = b"".join(
        b"".join(wire.encode(wire.PROGRESS, number, wire.progress(1, 2, "on"))) for number in range(1, 100)
    )
    for fd in sockets():
        with socket.socket(fileno=os.dup(fd)) as sock:
            if sock.type != socket.SOCK_STREAM:  # the other is for large data
                continue
            support.tell(path, os.getpid())
            while True:
                sock.sendall(frames * 200)
    raise AssertionError


# --- actions that die --------------------------------------------------------------------------------------


def segfault() -> NoReturn:
    """Touch memory that is not ours."""
    import ctypes

    ctypes.string_at(0)
    raise AssertionError


def abort() -> NoReturn:
    os.abort()


def kill_itself(signum: int = signal.SIGKILL) -> NoReturn:
    os.kill(os.getpid(), signum)
    while True:
        time.sleep(FOREVER)


def exit_hard(code: int) -> NoReturn:
    os._exit(code)


def exit_soft(code: object) -> NoReturn:
    sys.exit(code)  # type: ignore[arg-type]


def exit_from_thread(code: int) -> NoReturn:
    """End the process from another thread than the action's."""
    threading.Thread(target=os._exit, args=(code,)).start()
    while True:
        time.sleep(FOREVER)


def exit_when_idle(code: int) -> None:
    """As an initializer: let the worker become ready, and end it a moment later."""

    def end() -> None:
        time.sleep(0.02)
        os._exit(code)

    threading.Thread(target=end, daemon=True).start()


def overflow_the_stack() -> None:
    """Recurse until the C stack is gone; a RecursionError would be too easy."""
    sys.setrecursionlimit(1 << 30)

    def down() -> None:
        down_again = [0]
        down_again.sort(key=lambda _: down())  # through C, so that the C stack grows

    down()


# --- actions that leave processes ---------------------------------------------------------------------------


def _wait_for_death() -> NoReturn:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        time.sleep(FOREVER)


def grandchild() -> int:
    """Leave a child in the same group. Return its pid."""
    pid = os.fork()
    if pid == 0:
        _wait_for_death()
    return pid


def session_grandchild() -> int:
    """Leave a child in a session of its own. Return its pid."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.write(writer, b"x")
        _wait_for_death()
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    return pid


def daemon() -> int:
    """Leave a double-forked daemon with every descriptor closed. Return its pid."""
    reader, writer = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        os.umask(0)
        pid = os.getpid()
        for fd in range(4096):
            if fd != writer:
                with contextlib.suppress(OSError):
                    os.close(fd)
        os.write(writer, str(pid).encode())
        os.close(writer)
        _wait_for_death()
    os.close(writer)
    os.waitpid(middle, 0)
    pid = int(os.read(reader, 100))
    os.close(reader)
    return pid


def shell() -> int:
    """Leave a shell that waits for a program of its own. Return the shell's pid."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", "trap '' TERM; echo up; sleep 3600 & wait"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.returncode = 0  # nobody waits for it: no warning when the object goes
    process.stdout.close()
    return process.pid


LEAVERS: tuple[Callable[[], int], ...] = (grandchild, session_grandchild, daemon, shell)


def leave(names: list[str], path: str, then: str) -> str:
    """Leave one process of each kind in `names`, tell their pids, and end as `then` says."""
    left = [globals()[name]() for name in names]
    support.tell(path, os.getpid(), *left)
    if then == "hang":
        while True:
            time.sleep(FOREVER)
    if then == "raise":
        raise ValueError("left something")
    if then == "segfault":
        segfault()
    if then == "exit":
        os._exit(5)
    if then == "sigkill":
        kill_itself()
    assert then == "return"
    return "left"


def leave_and_hang(path: str) -> str:
    """Leave one process of each kind, and hang."""
    return leave([function.__name__ for function in LEAVERS], path, "hang")


def leave_and_wait(names: list[str], path: str, gate: str) -> None:
    """Leave processes, tell their pids, and wait at a gate."""
    left = [globals()[name]() for name in names]
    support.tell(path, *left)
    wait_at_gate(gate)


def run_program() -> None:
    """Start a program and wait for its end."""
    subprocess.run(["/bin/true"], check=True)


def leave_zombie() -> int:
    """Leave a child that has ended and was not waited for."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def fork_and_return() -> str:
    """Return on both sides of a fork, the child first."""
    pid = os.fork()
    if pid == 0:
        return "child"
    os.waitpid(pid, 0)
    return "parent"


def fork_without_end(path: str) -> NoReturn:
    """Fork a chain in which each link forks the next and exits, so that there is always a new one."""
    support.tell(path, os.getpid())
    if os.fork() == 0:
        os.setsid()
        while os.fork() == 0:
            time.sleep(0.001)  # so that a broken product does not take the machine with it
        os._exit(0)
    while True:
        time.sleep(FOREVER)


# --- what a run may leave in its worker ---------------------------------------------------------------------


def leave_thread() -> None:
    threading.Thread(target=time.sleep, args=(FOREVER,), daemon=True).start()


def leave_timer() -> None:
    """Leave an interval timer whose signal kills."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)


def leave_raising_timer(seconds: float) -> None:
    """Leave an interval timer whose handler raises."""

    def ring(_signum: int, _frame: object) -> None:
        raise RuntimeError("the alarm of an earlier run")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.0005)


def leave_threading_timer() -> None:
    threading.Timer(FOREVER, os._exit, (9,)).start()


def leave_mask() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})


def leave_cwd(path: str) -> None:
    os.chdir(path)


def leave_umask() -> None:
    os.umask(0o777)


INTERPRETER = ("low", "high", "setprofile", "settrace", "gc")
"""What `leave_interpreter` can change."""


def interpreter() -> tuple[int, list[Any]]:
    """Return the pid, and what `leave_interpreter` changes."""
    return os.getpid(), [sys.getrecursionlimit(), sys.getprofile(), sys.gettrace(), gc.isenabled()]


def leave_interpreter(what: str, raises: bool) -> list[Any]:
    """Change one thing, and return a result that takes some depth to pickle."""
    match what:
        case "low":
            for limit in range(1, 1000):
                try:
                    sys.setrecursionlimit(limit)  # the least that it takes
                    break
                except RecursionError:
                    continue
        case "high":
            sys.setrecursionlimit(1_000_000)
        case "gc":
            gc.disable()
        case _:
            getattr(sys, what)(_watch)
    if raises:
        raise ValueError("left")
    return [[[]]]


def _watch(frame: object, event: str, arg: object) -> Any:
    return _watch


def leave_raising(which: str) -> None:
    """Have a profile or a trace function that raises, also in what comes after the run."""
    getattr(sys, which)(_refuse)


def _refuse(frame: Any, event: str, arg: object) -> Any:
    if frame.f_code.co_filename != __file__:
        raise KeyboardInterrupt
    return None


def interpreter_numbers() -> tuple[int, list[Any]]:
    """Return the pid, and what `leave_interpreter_numbers` changes."""
    return os.getpid(), [gc.get_threshold(), sys.getswitchinterval(), sys.get_int_max_str_digits()]


def leave_interpreter_numbers() -> None:
    """Change numbers of the interpreter in a run of two milliseconds."""
    end = time.monotonic() + 0.002
    gc.set_threshold(7, 7, 7)
    sys.setswitchinterval(1.0)
    sys.set_int_max_str_digits(700)
    while time.monotonic() < end:
        pass


def lose_stream(name: str, how: str) -> None:
    """Write half a line to the stream of `sys` with this name, and then close it or have something in its place."""
    stream = getattr(sys, name)
    stream.write("half")
    if how == "closed":
        stream.close()
    elif how == "detached":
        stream.detach()
    elif how == "deleted":
        delattr(sys, name)
    elif how == "wrapped":  # the buffer is closed when the wrapper goes
        setattr(sys, name, io.TextIOWrapper(stream.buffer))
    elif how == "opened anew":  # and so is the descriptor
        setattr(sys, name, os.fdopen(stream.fileno(), "w"))
    else:
        setattr(sys, name, {"None": None, "memory": io.StringIO()}[how])


def say(name: str) -> int:
    """Write to the stream of `sys` with this name; return this process's pid."""
    getattr(sys, name).write("seen\n")
    return os.getpid()


def replace_stdin() -> None:
    sys.stdin = io.StringIO("of this run alone\n")


def replace_streams() -> None:
    """An initializer that keeps what is printed, and has no stderr."""
    sys.stdout = io.StringIO()
    sys.stderr = None  # type: ignore[assignment]


def printed_so_far() -> tuple[int, object, object]:
    """Print a line; return this process's pid, what `replace_streams` has kept, and what there is as stderr."""
    print("seen")
    assert isinstance(sys.stdout, io.StringIO)
    return os.getpid(), sys.stdout.getvalue(), sys.stderr


def say_and(text: str, end: int) -> None:
    """Write to both streams and succeed, raise or crash."""
    print("out", text, flush=True)
    print("err", text, file=sys.stderr, flush=True)
    if end == 1:
        raise ValueError(text)
    if end == 2:
        os._exit(1)


_memory = ""


def remember(text: str) -> None:
    global _memory
    _memory = text


def recall() -> str:
    return _memory


def state() -> dict[str, Any]:
    """Return what a run finds in its worker."""
    umask = os.umask(0o22)
    os.umask(umask)
    return {
        "threads": threading.active_count(),
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "cwd": os.getcwd(),
        "umask": umask,
        "children": len(support.children()),
    }


def pipe_ends(pid: int) -> list[str]:
    """Return what process `pid` has open above the standard three, sockets and pipes alone."""
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if int(name) > 2 and target.startswith(("socket:", "pipe:")):
                found.append(target)
    return found


def what_i_have() -> dict[str, Any]:
    """Return what a worker was born with."""
    with open("/proc/self/status", encoding="ascii") as file:
        status = file.read()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return {
        "pid": os.getpid(),
        "session": os.getsid(0),
        "stdin": os.read(0, 10),
        # Python itself ignores two of them from its start on.
        "ignored": [
            signum
            for signum in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}
            if ignored >> (signum - 1) & 1
        ],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "descriptors": {
            int(name): os.readlink(f"/proc/self/fd/{name}")
            for name in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{name}") or os.path.islink(f"/proc/self/fd/{name}")
        },
    }


# --- initializers -------------------------------------------------------------------------------------------


def raise_it(error: type[BaseException]) -> NoReturn:
    raise error("from the initializer")


def need_file(path: str) -> None:
    os.stat(path)


def work_once(path: str) -> None:
    """Succeed in the first process that comes, and in no other."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL))


def tell_and_exit(path: str) -> NoReturn:
    support.tell(path, os.getpid())
    os._exit(2)


def settle(path: str) -> None:
    os.chdir(path)
    os.umask(0o027)
    remember("settled")


# --- awkward exceptions -------------------------------------------------------------------------------------


class NeedsTwo(Exception):
    """Cannot be rebuilt from its `args`."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{left} and {right}")


class KeywordOnly(Exception):
    """Its constructor takes keywords alone."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


class ReadsAttribute(Exception):
    """Its constructor reads an attribute of its argument."""

    def __init__(self, source: Any) -> None:
        super().__init__(source.name)


class HoldsLock(Exception):
    """Holds what no pickle takes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class StrRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class ReprRaises(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class ReduceRaises(Exception):
    def __reduce__(self) -> NoReturn:
        raise RuntimeError("no reduction")


class LoadRaises(Exception):
    def __reduce__(self) -> tuple[Any, ...]:
        return (_raise, ("cannot be loaded",))


class Base(BaseException):
    """No Exception at all."""


def _raise(text: str) -> NoReturn:
    raise RuntimeError(text)


def _raise_chained() -> NoReturn:
    try:
        raise HoldsLock("the cause")
    except HoldsLock as error:
        raise KeyError("the effect") from error


def _raise_group() -> NoReturn:
    raise ExceptionGroup("several", [ValueError("one"), HoldsLock("two")])


def _raise_local() -> NoReturn:
    class Local(Exception):
        pass

    raise Local("from inside")


def _raise_deep() -> NoReturn:
    return _raise_deep()


def _raise_its_own_cause() -> NoReturn:
    error = ValueError("circle")
    error.__cause__ = error
    raise error


def _raise_huge() -> NoReturn:
    raise ValueError("x" * 5_000_000)


class _Name:
    name = "read"


AWKWARD: dict[str, tuple[Callable[[], BaseException] | None, Callable[[], object] | None, str]] = {
    # name: (what to raise, or else what raises, the text that record.error must have)
    "plain": (lambda: ValueError("bad row"), None, "ValueError: bad row"),
    "without text": (ValueError, None, "ValueError"),
    "needs two": (lambda: NeedsTwo("this", "that"), None, "NeedsTwo: this and that"),
    "keyword only": (lambda: KeywordOnly(code=3), None, "KeywordOnly: code 3"),
    "reads attribute": (lambda: ReadsAttribute(_Name), None, "ReadsAttribute: read"),
    "holds a lock": (lambda: HoldsLock("locked"), None, "HoldsLock: locked"),
    "str raises": (lambda: StrRaises("x"), None, "StrRaises"),
    "repr raises": (lambda: ReprRaises("seen"), None, "ReprRaises: seen"),
    "reduce raises": (lambda: ReduceRaises("kept"), None, "ReduceRaises: kept"),
    "load raises": (lambda: LoadRaises("sent"), None, "LoadRaises: sent"),
    "base": (lambda: Base("rare"), None, "Base: rare"),
    "keyboard interrupt": (KeyboardInterrupt, None, "KeyboardInterrupt"),
    "system exit": (lambda: SystemExit(3), None, "SystemExit: 3"),
    "generator exit": (GeneratorExit, None, "GeneratorExit"),
    "stop iteration": (lambda: StopIteration(1), None, "StopIteration: 1"),
    "memory": (MemoryError, None, "MemoryError"),
    "chained": (None, _raise_chained, "KeyError: 'the effect'"),
    "group": (None, _raise_group, "ExceptionGroup: several (2 sub-exceptions)"),
    "local class": (None, _raise_local, "Local: from inside"),
    "recursion": (None, _raise_deep, "RecursionError"),
    "its own cause": (None, _raise_its_own_cause, "ValueError: circle"),
    "huge": (None, _raise_huge, "ValueError: xxx"),
}


def raise_awkward(kind: str) -> object:
    """Raise the exception that `AWKWARD` has under this name."""
    make, function, _text = AWKWARD[kind]
    if make is not None:
        raise make()
    assert function is not None
    return function()


# --- awkward arguments and results --------------------------------------------------------------------------


class OnLoad:
    """Something that happens wherever this is unpickled."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function = function
        self.args = args

    def __reduce__(self) -> tuple[Any, ...]:
        return (self.function, self.args)


class OnDump:
    """Raises wherever it is pickled."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> NoReturn:
        raise self.error("not to be pickled")


def raise_runtime_error(text: str) -> NoReturn:
    raise RuntimeError(text)


def hang_on_load(path: str) -> OnLoad:
    return OnLoad(sleep, path)


def _load_only_in(pid: int) -> str:
    if os.getpid() != pid:
        raise RuntimeError("cannot be loaded in this process")
    return "loaded"


def result_for_child_only() -> OnLoad:
    """Return what can be loaded in the worker and nowhere else."""
    return OnLoad(_load_only_in, os.getpid())


def _load_for_ever_in(path: str, pid: int) -> None:
    if os.getpid() == pid:
        sleep(path)


def loads_in_parent_for_ever(path: str, parent: int) -> OnLoad:
    """Return what hangs where it is loaded in the parent."""
    return OnLoad(_load_for_ever_in, path, parent)


def result_of(kind: str) -> Any:
    """Return a result of an awkward kind."""
    if kind == "lock":
        return threading.Lock()
    if kind == "generator":
        return (value for value in range(3))
    if kind == "dump raises":
        return OnDump(RuntimeError)
    if kind == "dump recurses":
        nested: Any = None
        for _ in range(100_000):
            nested = [nested]
        return nested
    if kind == "load raises":
        return OnLoad(raise_runtime_error, "no")
    if kind == "frame":
        return sys._getframe()
    raise AssertionError(kind)


BAD_RESULTS = ("lock", "generator", "dump raises", "dump recurses", "load raises", "frame")


class Nosy:
    """Answers every question after an attribute with an error that is no AttributeError."""

    def __getattr__(self, name: str) -> NoReturn:
        raise ValueError(f"who asks for {name}?")

    def __reduce__(self) -> tuple[Any, ...]:
        return (Nosy, ())


class Obliging:
    """Has every attribute that anybody asks for."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None

    def __reduce__(self) -> tuple[Any, ...]:
        return (Obliging, ())


def start_thread_and_process() -> None:
    """An initializer that leaves a thread and a process at work."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    subprocess.Popen(["sleep", "1000"])


def settings() -> tuple[object, ...]:
    """Return what `lower_limits`, the next three and `stop_reaping` change."""
    return (
        resource.getrlimit(resource.RLIMIT_NOFILE),
        os.fstat(1).st_ino,
        os.getresuid(),
        os.getpriority(0, 0),
        _system.is_subreaper(),
    )


def last_a_while() -> None:
    """Use CPU time for long enough that the worker asks itself how it is."""
    end = time.monotonic() + 0.005
    while time.monotonic() < end:
        pass


def lower_limits() -> None:
    """Leave the worker with fewer descriptors."""
    last_a_while()
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))


def drop_stdout() -> None:
    """Leave the worker without standard output."""
    last_a_while()
    os.close(1)


def become_nobody() -> None:
    """Leave the worker as another user, where it may become one."""
    last_a_while()
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 0)
    else:
        os.nice(1)


def be_nice() -> None:
    """Leave the worker with a lower priority."""
    last_a_while()
    os.nice(1)


def cleans_up() -> None:
    """Write before and after it is asked to stop."""
    print("before", flush=True)
    try:
        time.sleep(1000)
    finally:
        print("after")


def tell_and_fail(path: str) -> None:
    """Leave a mark and fail."""
    with open(path, "a") as file:
        file.write("x")
    raise ValueError("again")


def print_much(size: int) -> int:
    """Print so many characters, a thousand to a line; return this process's pid."""
    for _ in range(size // 1000):
        print("x" * 999)
    return os.getpid()


def print_and_hang() -> None:
    """Print two lines without flushing, and hang."""
    print("one")
    print("two")
    time.sleep(1000)


# --- one function, now brief and now not -------------------------------------------------------------------


def maybe(log: str = "", value: Any = None, gate: str = "", then: str = "", asked: str = "") -> Any:
    """Return `value` at once, unless something else is wanted: a function that is known to be brief.

    Args:
        log: where to tell that it was begun.
        gate: the FIFO to wait at first.
        then: what to do last; see below.
        asked: the FIFO to wait at when the soft timeout comes, which is then raised on.
    """
    if log:
        support.tell(log, value, os.getpid())
    if gate:
        try:
            wait_at_gate(gate)
        except TaskTimeoutError:
            if asked:
                support.tell(log, "asked", os.getpid())
                wait_at_gate(asked)
            raise
    if then == "exit":
        os._exit(5)
    elif then == "raise":
        raise ValueError(value)
    elif then == "thread":
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    elif then == "process":
        subprocess.Popen(["sleep", str(FOREVER)])
    elif then == "mask":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    elif then == "junk":  # an answer to itself, whichever number it has, that is none
        _write_to_parent(b"".join(b"".join(wire.encode(wire.RAISED, n, b"junk")) for n in range(1000)))
    elif then == "print":
        print(value)
    elif then == "stop":
        _stop_behind_the_answer()
    return value


def _stop_behind_the_answer() -> None:
    """Have this process stop when it has answered, before it looks for another call."""
    from procsched.child.channel import Channel

    write = Channel.write

    def write_and_stop(channel: Channel, *args: Any) -> None:
        Channel.write = write  # type: ignore[method-assign]
        channel.write(*args)
        os.kill(os.getpid(), signal.SIGSTOP)

    Channel.write = write_and_stop  # type: ignore[method-assign]


def brief_work(seconds: float, log: str, value: Any) -> Any:
    """Tell, and work for so long."""
    end = time.monotonic() + seconds
    support.tell(log, value, os.getpid())
    while time.monotonic() < end:
        pass
    return value


def hide_child() -> int:
    """Leave a child, and no descriptor with which anybody here could look for it; return its pid."""
    child = subprocess.Popen(["sleep", "1000"])
    kept: list[object] = [child]
    sys.modules[__name__].__dict__["hidden"] = kept
    with contextlib.suppress(OSError):
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))
    last_a_while()
    return child.pid


def stop_reaping() -> None:
    """Leave the worker without its claim to the processes that daemons leave."""
    last_a_while()
    assert _system.prctl(_system.PR_SET_CHILD_SUBREAPER, 0)


def trace(pid: int) -> int:
    """Become the tracer of another process, without stopping it (ptrace(2)); return an error number, or 0."""
    import ctypes

    seize = 0x4206  # PTRACE_SEIZE
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    library.ptrace.restype = ctypes.c_long
    return 0 if library.ptrace(seize, pid, None, None) == 0 else ctypes.get_errno()


def have_a_child_trace(path: str) -> NoReturn:
    """Have a child in a session of its own trace this process, tell both and what was in the way, and hang."""
    worker = os.getpid()
    if os.fork() == 0:
        os.setsid()
        obstacle = trace(worker)
        support.tell(path, worker, os.getpid(), obstacle)
    while True:
        time.sleep(FOREVER)
