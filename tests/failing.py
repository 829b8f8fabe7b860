"""Actions that fail in every way that an error has to tell of: see tests/process/test_errors.py."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from tests import support


class Rich(Exception):
    """Has attributes, and an argument that is not in its `args`."""

    def __init__(self, text: str, *, code: int = 0) -> None:
        super().__init__(text)
        self.code = code


class Holds(Exception):
    """Holds what cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class Ours(ExceptionGroup[Exception]):
    """A group of a kind of one's own, made as its base is."""

    tag = ""


class Particular(ExceptionGroup[Exception]):
    """A group that is made in another way than its base."""

    def __new__(cls, code: int, members: list[Exception]) -> Particular:
        return super().__new__(cls, f"code {code}", members)

    def __init__(self, code: int, members: list[Exception]) -> None:
        self.code = int(code)


def add_up(values: list[Any]) -> int:
    return sum(value + 1 for value in values)  # the line that raises


def with_cause() -> NoReturn:
    try:
        add_up([1, "two"])
    except TypeError as error:
        error.add_note("while adding up")
        failure = Rich("no sum", code=7)
        failure.add_note("the first of two notes")
        failure.add_note("the second\nof two lines")
        raise failure from error


def with_context() -> NoReturn:
    try:
        add_up(["one"])
    except TypeError:
        raise KeyError("missing")


def with_suppressed_context() -> NoReturn:
    try:
        add_up(["one"])
    except TypeError:
        raise KeyError("missing") from None


def with_cause_that_stays() -> NoReturn:
    try:
        raise Holds("stays")
    except Holds as error:
        raise Rich("goes", code=3) from error


def caught(function: Any) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


def group() -> NoReturn:
    members = [
        caught(with_cause),
        caught(with_context),
        ExceptionGroup("inner", [Holds("stays"), OSError(2, "no")]),
    ]
    found = Ours("several", members)
    found.tag = "kept"
    found.add_note("a note on the group")
    raise found


def particular_group() -> NoReturn:
    raise Particular(3, [ValueError("one"), KeyError("two")])


def group_that_is_its_own_cause() -> NoReturn:
    member = ValueError("member")
    found = ExceptionGroup("circle", [member])
    member.__cause__ = found
    raise found


def long_chain(length: int) -> NoReturn:
    error: Exception = ValueError("link 0")
    for number in range(1, length):
        following = ValueError(f"link {number}")
        following.__cause__ = error
        error = following
    raise error


def wide_group(width: int) -> NoReturn:
    raise ExceptionGroup("wide", [ValueError(number) for number in range(width)])


def circle() -> NoReturn:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def descend() -> NoReturn:
    descend()


def ping(depth: int) -> NoReturn:
    pong(depth - 1) if depth else add_up(["x"])
    raise AssertionError


def pong(depth: int) -> NoReturn:
    ping(depth)


def huge(size: int, notes: int) -> NoReturn:
    error = ValueError("x" * size)
    for number in range(notes):
        error.add_note(f"{number}" + "y" * 20_000)
    raise error


async def from_coroutine() -> None:
    await asyncio.sleep(0)
    add_up(["x"])


def from_exec() -> None:
    exec(compile("def made():\n    raise ValueError('from no file')\nmade()", "<made up>", "exec"), {})


def with_odd_notes() -> NoReturn:
    error = ValueError("odd")
    error.__notes__ = ["a text", 3, object()]  # type: ignore[list-item]
    raise error


def nested() -> object:
    from procsched import ProcessExecutor

    with ProcessExecutor(1) as executor:
        return executor.submit(with_cause).result()


def say_and(end: str) -> None:
    print("to stdout", flush=True)
    os.write(2, b"to stderr\n")
    block = bytearray(50 << 20)
    block[::4096] = b"x" * len(block[::4096])
    if end == "hang":
        time.sleep(support.TIMEOUT * 100)
    if end == "abort":
        os.abort()
    if end == "exit":
        os._exit(5)
    if end == "kill":
        os.kill(os.getpid(), 9)


def flush_and_hang(size: int) -> NoReturn:
    sys.stdout.write("z" * size + "\nthe last words\n")
    sys.stdout.flush()
    time.sleep(support.TIMEOUT * 100)
    raise AssertionError


def numbers() -> Iterator[int]:
    yield 1


async def coroutine() -> int:
    return 3


class Unpicklable:
    """Has a method, and what cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def method(self) -> int:
        return 3
