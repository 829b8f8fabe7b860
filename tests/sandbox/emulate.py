"""A host on a kernel that has less, or lies: a seccomp filter answers some calls before the kernel does.

    python -m tests.sandbox.emulate landlock_create_ruleset=38,unshare=1 DIRECTORY UID

Each call is answered with that error; 0 means that it says it did what it did not do. ``clone-user`` stands for a clone
that asks for a user namespace.
"""

from __future__ import annotations

import os
import sys

from procsched.sandbox import filters, kernel
from procsched.sandbox.syscalls import MACHINES

NEW_USER = 0x10000000


def make(spec: str) -> bytes:
    """Return the filter for a list of calls with their answers."""
    numbers, _architecture = MACHINES[os.uname().machine]
    code: list[filters.Instruction] = [(filters.LOAD, 0, 0, 0)]
    for word in spec.split(","):
        name, _, answer = word.partition("=")
        error = (filters.RETURN, 0, 0, filters.ERRNO | int(answer))
        if name == "clone-user":
            code += [
                (filters.JUMP_EQUAL, 0, 4, numbers["clone"]),
                (filters.LOAD, 0, 0, 16),
                (filters.AND, 0, 0, NEW_USER),
                (filters.JUMP_EQUAL, 0, 1, NEW_USER),
                error,
                (filters.LOAD, 0, 0, 0),
            ]
        else:
            code += [(filters.JUMP_EQUAL, 0, 1, numbers[name]), error]
    code.append((filters.RETURN, 0, 0, filters.ALLOW))
    return filters.pack(code)[0]


if __name__ == "__main__":
    spec = sys.argv.pop(1)
    if os.geteuid():
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.seccomp(make(spec))
    from tests.sandbox.host import main

    main()
