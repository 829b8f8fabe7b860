"""Actions that use more than they may, or less: for the tests of limits. Each is of a process of its own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from procsched import TaskTimeoutError
from tests import faults, support

MIB = 1 << 20
RLIMITS = (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
_kept: list[Any] = []
_SLEEP = "import time; time.sleep(600)"


def soft_limits() -> list[tuple[int, int]]:
    """Return what the kernel holds of this process."""
    return [resource.getrlimit(which) for which in RLIMITS]


def pid_and_limits() -> tuple[int, list[tuple[int, int]]]:
    return os.getpid(), soft_limits()


def touch(size: int) -> int:
    """Have so many bytes for a moment."""
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    return len(block)


def hold(size: int, path: str) -> None:
    """Have so many bytes, say so, and keep them."""
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    support.tell(path, os.getpid())
    time.sleep(600)


def eat_when_asked(size: int) -> None:
    """Wait to be asked to stop, and have so many bytes then."""
    try:
        time.sleep(600)
    except TaskTimeoutError:
        block = bytearray(size)
        block[::4096] = b"x" * len(block[::4096])
        time.sleep(600)


def keep(size: int) -> int:
    """Leave so many bytes in the worker."""
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    _kept.append(block)
    return os.getpid()


def reserve(size: int) -> int:
    """Ask for address space and touch nothing of it."""
    import mmap

    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as space:
        return len(space)


def share_with_forks(size: int, count: int, gate: str) -> int:
    """Have so many bytes, and forks that have the same pages, until the gate is opened."""
    block = bytearray(size)
    block[::4096] = b"x" * len(block[::4096])
    pids = []
    for _ in range(count):
        pid = os.fork()
        if not pid:
            time.sleep(600)
            os._exit(0)
        pids.append(pid)
    faults.wait_at_gate(gate)
    return len(pids)


def hold_below(size: int, path: str) -> None:
    """Have so many bytes in processes below, which leave the session, and wait."""
    code = (
        f"import os, time; from tests import support; b = bytearray({size}); b[::4096] = b'x' * len(b[::4096]); "
        f"support.tell({path!r}, os.getpid()); time.sleep(600)"
    )
    subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, env={**os.environ, "PYTHONPATH": os.getcwd()}
    )
    time.sleep(600)


def burn(seconds: float) -> float:
    """Use so much CPU time."""
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass
    return time.process_time() - start


def burn_below(seconds: float) -> int:
    """Use so much CPU time in a process below."""
    code = f"import time\nwhile time.process_time() < {seconds}: pass"
    return subprocess.run([sys.executable, "-c", code], check=False).returncode


def burn_without_answer() -> None:
    """Use CPU time where no Python code runs."""
    sum(range(10**11))


def start_many(count: int, path: str) -> None:
    """Have so many processes below, and wait."""
    pids = [subprocess.Popen([sys.executable, "-S", "-c", _SLEEP]).pid for _ in range(count)]
    support.tell(path, *pids)
    time.sleep(600)


def start_one_after_another(count: int) -> int:
    """Have at most one process below at a time."""
    return sum(subprocess.run(["/bin/true"], check=True).returncode == 0 for _ in range(count))


def open_files(count: int) -> int:
    files = [open(os.devnull) for _ in range(count)]  # noqa: SIM115
    return len(files)


def open_as_many_as_possible() -> int:
    """Open files until the kernel refuses one, and take that well."""
    files = []
    try:
        while True:
            files.append(open(os.devnull))  # noqa: SIM115
    except OSError:
        return len(files)


def write_file(size: int) -> int:
    with tempfile.TemporaryFile() as file:
        return file.write(b"x" * size)


def lower_for_good() -> None:
    """Lower a hard limit, so that nobody can put it back."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def speak(size: int, times: int = 1) -> None:
    for _ in range(times):
        print("x" * (size - 1))


def speak_twice(size: int) -> None:
    speak(size, 2)


def speak_and_fail(size: int) -> None:
    speak(size)
    raise ValueError("said enough")


def speak_and_die(size: int) -> None:
    speak(size)
    os._exit(3)


def speak_without_end() -> None:
    while True:
        os.write(1, b"x" * 1000)


def speak_below(size: int) -> None:
    subprocess.run([sys.executable, "-c", f"print('x' * {size})"], check=True)


def answer(size: int) -> bytes:
    return b"x" * size


async def answer_later(size: int) -> bytes:
    import asyncio  # not with this module, which many pools preload

    await asyncio.sleep(0)
    return b"x" * size


def ask_for_too_much() -> None:
    bytearray(1 << 62)
