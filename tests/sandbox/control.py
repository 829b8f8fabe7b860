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
import signal
import sys
from typing import Any

SECONDS = 20


def main() -> None:
    directory, uid, source = sys.argv[1], int(sys.argv[2]), sys.stdin.read()
    os.system("ip link set lo up 2>/dev/null")
    pid = os.fork()
    if pid == 0:
        _be_victim(directory, uid, source)
    signal.alarm(SECONDS)
    _pid, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        print(json.dumps({"victim": os.waitstatus_to_exitcode(status)}), flush=True)


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
