"""Trying a sandbox out: the very program that a pool would start, until it says that it is ready. Blocks.

A version number does not tell whether a mechanism works: kernels have had features patched in and out, containers and
security modules refuse what the kernel could do, emulators answer calls that they do not carry out.
"""

from __future__ import annotations

import os
import select
import time

from procsched.sandbox.frames import Reader, ViolationError
from procsched.sandbox.values import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from procsched.sandbox.frames import Frame
    from procsched.sandbox.programs import Program

LONGEST_ERROR: Final = 2000  # characters of what it wrote to stderr


class TrialError(Exception):
    """The program did not get ready.

    Attributes:
        step: which step failed, "" where it did not come so far as to say.
    """

    def __init__(self, step: str, text: str) -> None:
        super().__init__(text)
        self.step = step


def attempt(program: Program, uid: int | None, seconds: float) -> dict[str, str]:
    """Start the program, and end it when it is ready; return what it says of its layers.

    Args:
        uid: under which it is to run, None for that of this process.
        seconds: that it may take.
    Raises:
        TrialError: it failed.
    """
    import subprocess

    task_read, task_write = os.pipe()
    answer_read, answer_write = os.pipe()
    output_read, output_write = os.pipe()
    ours = [task_write, answer_read, output_read]
    theirs = [task_read, answer_write, output_write]
    identity = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    try:
        command = program.command(task_read, answer_write, output_write, os.getpid())
        try:
            process = subprocess.Popen(
                command,
                env=program.environment,
                stdin=subprocess.DEVNULL,
                stdout=output_write,
                stderr=output_write,
                pass_fds=(task_read, answer_write, output_write),
                cwd="/",
                start_new_session=True,
                **identity,  # type: ignore[call-overload]
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise TrialError("exec", f"{command[0]} could not be started: {error}") from None
        for fd in theirs:
            os.close(fd)
        theirs.clear()
        try:
            os.set_blocking(task_write, False)
            frame = _talk(task_write, program.settings, answer_read, time.monotonic() + seconds)
            if frame is None:
                process.kill()
                text = (
                    os.read(output_read, 1 << 16).decode("utf-8", "replace")
                    if _readable(output_read, 0.5)
                    else ""
                )
                words = one_line(text.strip()[-LONGEST_ERROR:])
                raise TrialError("", words or f"it ended with status {process.wait()} and said nothing")
        finally:
            process.kill()
            process.wait()
    finally:
        for fd in (*ours, *theirs):
            os.close(fd)
    if frame["kind"] == "refused":
        raise TrialError(one_line(frame["step"]), one_line(frame["error"]))
    return {one_line(name): one_line(value) for name, value in frame["layers"].items()}


def _talk(task: int, settings: bytes, answer: int, until: float) -> Frame | None:
    """Send the settings, as the pipe takes them, and return the first frame, None where none comes."""
    reader = Reader(1, 64)
    left = memoryview(settings)
    poller = select.poll()  # and not select(2), which takes no descriptor above 1023
    poller.register(answer, select.POLLIN)
    poller.register(task, select.POLLOUT)
    while ready := dict(poller.poll(max(0.0, until - time.monotonic()) * 1000)):
        if task in ready:
            try:
                left = left[os.write(task, left) :]
            except BrokenPipeError:
                left = left[:0]  # it has died, and has said why
            except BlockingIOError:
                pass
            if not left:
                poller.unregister(task)
        if answer not in ready:
            continue
        data = os.read(answer, reader.room)
        if not data:
            return None
        try:
            frame = reader.feed(data)
        except ViolationError as error:
            raise TrialError("", str(error)) from None
        if frame is not None:
            return frame
    raise TrialError("", "it did not get ready in time")


def _readable(fd: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
