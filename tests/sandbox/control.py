"""An attacker without a sandbox, and its victims: what must work there, or the attack proves nothing.

    pytest --> unshare (mounts, pids, network) --> root, pid 1 of its namespace: watches
                 the victim: an unprivileged user, with canaries, which forks
                   the attacker: the same user

All of it is in namespaces of its own, under a uid of its own and with limits: nothing that works there reaches out.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
from typing import Any

SECONDS = 20


def main() -> None:
    """Run one attack after another; for each write a line that says what it found, or how its victim died."""
    directory, uid = sys.argv[1], int(sys.argv[2])
    sources: list[str] = json.load(sys.stdin)
    os.system("ip link set lo up 2>/dev/null")
    signal.signal(signal.SIGALRM, lambda *_: os.kill(-1, signal.SIGKILL))  # all but this: it is init here
    for source in sources:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            _be_victim(directory, uid, source)
        signal.alarm(SECONDS)
        _pid, status = os.waitpid(pid, 0)
        signal.alarm(0)
        if os.waitstatus_to_exitcode(status) != 0:
            print(json.dumps({"victim": os.waitstatus_to_exitcode(status)}), flush=True)
        _clean_up(directory)


def _clean_up(directory: str) -> None:
    """Leave nothing to the next attack: no process, no file."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _be_victim(directory: str, uid: int, source: str) -> None:
    from tests.sandbox.host import Canaries, drop

    for which, value in (
        (resource.RLIMIT_NPROC, 200),
        (resource.RLIMIT_AS, 4 << 30),
        (resource.RLIMIT_FSIZE, 1 << 20),
    ):
        resource.setrlimit(which, (value, value))
    drop(uid)
    canaries = Canaries(directory)
    told = canaries.arguments()  # of this process, not of the attacker
    reader, writer = os.pipe()
    attacker = os.fork()
    if attacker == 0:
        answer: Any
        names: dict[str, Any] = {}
        try:
            exec(compile(source, "<attack>", "exec"), names)
            answer = names["attack"](told)
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    data = b""
    while piece := os.read(reader, 1 << 16):
        data += piece
    os.waitpid(attacker, 0)
    hurt = canaries.hurt()
    print(json.dumps({"found": json.loads(data or b"null"), "hurt": hurt}), flush=True)
    canaries.sibling.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
