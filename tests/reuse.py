"""A program for a pid namespace of its own: workers of a pool die, beside somebody who takes each number that is free.

    unshare --pid --fork --mount-proc python -m tests.reuse DIRECTORY

What takes a number has a session, and so a group, of the same number, and waits. Prints how many there were, and those
that a signal has ended or stopped. The kernel gives out the number behind the one in `ns_last_pid` (pid_namespaces(7)).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from procsched import _system
from tests import faults, support
from tests.pools import Bench

ROUNDS = 12
MOST = 400  # strangers


class Strangers:
    """Takes the numbers of processes that were there and are not any more. A process of its own."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self.found: set[int] = set()
        self.last = os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY)

    def serve(self, stop: int) -> NoReturn:
        """Go on until `stop` can be read; write down what was found there, and end."""
        os.set_blocking(stop, False)
        while not self.is_over(stop):
            there = {int(name) for name in os.listdir("/proc") if name.isdigit()}
            for pid in self.seen - there:
                if len(self.found) < MOST:
                    self.take(pid)
            self.seen = (self.seen | there) - self.found - {os.getpid(), 1}
        hit = [pid for pid in self.found if os.waitpid(pid, os.WNOHANG | os.WUNTRACED)[0]]
        print(len(self.found), *hit, flush=True)
        for pid in self.found:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)

    @staticmethod
    def is_over(stop: int) -> bool:
        try:
            os.read(stop, 1)
        except BlockingIOError:
            return False
        return True

    def take(self, wanted: int) -> None:
        """Have a process with this number, if it is still free."""
        os.lseek(self.last, 0, os.SEEK_SET)
        os.write(self.last, str(wanted - 1).encode())
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.write(writer, b"x")
            while True:
                signal.pause()
        os.close(writer)
        os.read(reader, 1)  # it has its group, or has been hit
        os.close(reader)
        if pid == wanted:
            self.found.add(pid)
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main(directory: str) -> None:
    stop, go_on = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(go_on)
        Strangers().serve(stop)
    if not _system.offers("subreaper"):  # orphans come to us, and would keep the numbers of their groups
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with Bench(Path(directory), 2) as bench:
        for _ in range(ROUNDS):
            asked = bench.submit(faults.clean_up, bench.path(), timeout=0.05, grace=support.TIMEOUT)
            crashed = bench.submit(faults.leave, ["grandchild"], bench.path(), "exit")
            returned = bench.submit(faults.leave, ["grandchild"], bench.path(), "return")
            cancelled = bench.submit(faults.leave, ["session_grandchild"], told := bench.path(), "hang")
            support.wait_for_file(told)
            cancelled.cancel()
            for future in (asked, crashed, returned, cancelled):
                future.wait_record(support.TIMEOUT)
    os.close(go_on)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1])
