"""What the demo runs in child processes: the analysis of one file, and the troublemakers.

Importable functions of plain arguments, so a worker finds them by name. Nothing here knows of procsched: any
function will do.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import time
import warnings
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Final

MARKER: Final = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
PEP: Final = re.compile(r"\bPEP[ -]?(\d{1,4})\b")
LINK: Final = re.compile(r"https?://[\w.-]+\.\w+")

# Written in good faith: "a line of words". On a line of words that ends in anything else, every way of cutting it
# into words is tried before the engine gives up, and their number doubles with each letter.
WORDS_ONLY: Final = re.compile(r"^\s*#?\s*(\w+\s?)*$")
# A line on which it never ends: this many letters in words with one space between, then something else. So ends
# the present line in case that nobody can find another one of the kind: here.
TEMPTING: Final = re.compile(r"^\s*#?\s*\w(?: ?\w){44,}[^\w\s]")

FAILURES: Final = 2  # how often `flaky` fails before it succeeds
DAEMON_LIFE: Final = 60  # seconds after which a daemon that nobody has ended ends by itself


class FileReport(NamedTuple):
    """What the analysis of one file found."""

    parsed: bool = False
    lines: int = 0
    functions: int = 0
    classes: int = 0
    longest: tuple[int, str] = (0, "")  # lines and name of the longest function
    modules: tuple[str, ...] = ()  # the top-level modules it imports
    markers: int = 0
    links: int = 0
    peps: tuple[str, ...] = ()


def analyse(path: str) -> FileReport:
    """Parse one file, count what is in it, and search it with regular expressions."""
    with open(path, "rb") as file:
        data = file.read()
    text = data.decode("utf-8", "replace")
    found = FileReport(
        lines=text.count("\n"),
        markers=len(MARKER.findall(text)),
        links=len(LINK.findall(text)),
        peps=tuple(PEP.findall(text)),
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an old way of writing a string is not what we look for
            tree = ast.parse(data, path)
    except (SyntaxError, ValueError):  # the standard library has some on purpose, for its own tests
        return found
    functions = classes = 0
    longest = (0, "")
    modules: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions += 1
            longest = max(longest, ((node.end_lineno or node.lineno) - node.lineno + 1, node.name))
        elif isinstance(node, ast.ClassDef):
            classes += 1
        elif isinstance(node, ast.Import):
            modules.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return found._replace(
        parsed=True, functions=functions, classes=classes, longest=longest, modules=tuple(sorted(modules))
    )


def find_tempting_line(paths: list[str]) -> tuple[str, int]:
    """Return file and line number of the first line on which `WORDS_ONLY` never ends.

    The search itself is harmless. Where none of the files has such a line, this module does, in a comment above.
    """
    for path in [*paths, __file__]:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    if TEMPTING.match(line):
                        return path, number
        except OSError:
            continue
    raise LookupError("no line of words that ends in something else")


def backtrack(path: str, number: int) -> bool:
    """Match one line of a file against `WORDS_ONLY`: a call in C that holds the interpreter and never ends."""
    with open(path, encoding="utf-8", errors="replace") as file:
        line = next(text for count, text in enumerate(file, 1) if count == number)
    return WORDS_ONLY.match(line) is not None


def segfault() -> None:
    """Read the byte at address 0."""
    import ctypes
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a demo leaves no core file behind
    ctypes.string_at(0)


def stubborn(pid_file: str) -> None:
    """Leave a daemon behind, ignore and block every signal, and never return."""
    start_daemon(pid_file)
    for signum in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        try:
            signal.signal(signum, signal.SIG_IGN)
        except (OSError, ValueError):  # the C library keeps some for itself
            continue
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        pass


def start_daemon(pid_file: str) -> None:
    """Leave a process behind the way daemons do: forked twice, in a session of its own, nothing open.

    When this returns, the file has its number.
    """
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    daemon = os.fork()
    if daemon:
        with open(pid_file + ".new", "w", encoding="ascii") as file:
            file.write(str(daemon))
        os.rename(pid_file + ".new", pid_file)  # whoever sees the file sees the whole number
        os._exit(0)
    signal.alarm(DAEMON_LIFE)
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))
    while True:
        signal.pause()


def flaky(attempts_file: str) -> str:
    """Fail twice, then succeed. Each attempt may be in another process, so the count is in a file."""
    with open(attempts_file, "ab") as file:
        file.write(b"x")
        attempt = file.tell()
    if attempt <= FAILURES:
        raise ConnectionError(f"no answer, try {attempt}")
    return f"answered at try {attempt}"


def heartbeat() -> tuple[float, float, float]:
    """Return the load of the system, as a monitor would every second."""
    return os.getloadavg()


def long_report() -> None:
    """Take far too long, politely: somebody will cancel it."""
    time.sleep(3600.0)


def sweep() -> int:
    """Stand for any small recurring job; return the process that did it."""
    return os.getpid()
