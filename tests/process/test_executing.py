"""What a fork of the helper does before it is another program, and what it says where that cannot be."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from procsched.child.executing import others_of
from tests import support
from tests.pools import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sandboxes")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a user to become")

UID = 800_000 + os.getpid() % 100_000  # a user that nobody is, nor another run of the tests at the same time
NOWHERE = "/nonexistent/program"
BECOME = (
    "import json, sys; from procsched.child.executing import become; "
    "program, fds = map(json.loads, sys.argv[1:]); become(program, fds, 4711)"
)


class Said(NamedTuple):
    """What came through the pipes of a process that was to become a program, and how it ended."""

    answer: bytes
    output: bytes
    code: int


def become(*arguments: str | None, **program: Any) -> Said:
    """Have a process become a program; return what it said."""
    program = {"arguments": arguments, "environment": {}, "nice": 0, "uid": None, **program}
    with contextlib.ExitStack() as stack:
        pipes = [tuple(map(stack.enter_context, _pipe())) for _ in range(3)]
        (task, _), (answer, their_answer), (output, their_output) = pipes
        theirs = [task.fileno(), their_answer.fileno(), their_output.fileno()]
        command = [sys.executable, "-c", BECOME, json.dumps(program), json.dumps(theirs)]
        process = subprocess.Popen(command, cwd=ROOT, pass_fds=theirs)
        their_answer.close()
        their_output.close()
        code = process.wait(support.TIMEOUT)
        return Said(answer.read(), output.read(), code)


def _pipe() -> list[Any]:
    reader, writer = os.pipe()
    return [open(reader, "rb"), open(writer, "wb")]


def refusal(said: Said) -> str:
    """Return why a program was not executed."""
    assert said.code == 127
    assert said.output == b""
    size, body = said.answer[:4], said.answer[4:]
    assert int.from_bytes(size, "big") == len(body)
    found = json.loads(body)
    assert (found.pop("kind"), found.pop("step")) == ("refused", "exec")
    return str(found.pop("error"))


def test_a_program_has_its_pipes_and_nothing_else() -> None:
    """Its input is 3, its answers 4, its output 1 and 2; it leads a session in the root directory."""
    shows = "echo $0 $HOME; pwd; ls /proc/self/fd; readlink /proc/self/fd/0; echo told >&4; nice >&2"
    said = become("/bin/sh", "-c", shows, None, environment={"HOME": "none", "PATH": os.defpath}, nice=3)
    assert (said.answer, said.code) == (b"told\n", 0)
    # `ls` has a descriptor of what it lists.
    assert said.output.decode().split() == ["4711", "none", "/", *"012345", os.devnull, "3"]


def test_signals_are_as_a_program_expects_them() -> None:
    """What was ignored has its default effect: `subprocess` and Python leave SIGPIPE ignored, for one."""
    said = become("/bin/sh", "-c", "grep SigIgn /proc/self/status")
    assert int(said.output.split()[1], 16) & ((1 << signal.SIGPIPE - 1) | (1 << signal.SIGXFSZ - 1)) == 0


def test_a_program_that_is_not_there_is_told() -> None:
    """With the error of the system, in what the parent reads as an answer."""
    assert refusal(become(NOWHERE)) == f"FileNotFoundError: [Errno 2] No such file or directory: '{NOWHERE}'"


def test_what_is_told_is_json_whatever_is_in_it() -> None:
    """Quotes, backslashes and what is not ASCII are taken out of the words of the error."""
    assert refusal(become('/no"where\\é\n')).endswith("'/no'where//?/n'")


def test_root_is_no_user_to_become() -> None:
    """A sandboxed program is never root."""
    assert refusal(become(NOWHERE, uid=0)) == "OSError: uid 0 is no user to become"


@needs_root
def test_a_user_has_its_own_group_and_no_others() -> None:
    """The program runs under the uid and a group of that number."""
    said = become("/bin/sh", "-c", "grep -E '^(Uid|Gid|Groups):' /proc/self/status", uid=UID)
    assert said.output.decode().split() == ["Uid:", *[str(UID)] * 4, "Gid:", *[str(UID)] * 4, "Groups:"]


@contextlib.contextmanager
def somebody() -> Iterator[subprocess.Popen[bytes]]:
    """Have a process of the user's."""
    process = subprocess.Popen(["/bin/sleep", "3600"], user=UID, group=UID, extra_groups=[], cwd="/")
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@needs_root
def test_what_the_user_had_running_is_gone_before() -> None:
    """Nothing that ran under the uid before is there any more, also where nobody has reaped it."""
    with somebody() as process:
        assert others_of(UID) == [process.pid]
        assert "FileNotFoundError" in refusal(become(NOWHERE, uid=UID))
        assert others_of(UID) == []  # a zombie is nobody
        assert process.wait() == -signal.SIGKILL
