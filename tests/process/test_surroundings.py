"""Whatever the program looks like in which a pool lives: options of its interpreter, closed streams, odd places."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import hosts, support
from tests.pools import ROOT

pytestmark = pytest.mark.slow

KINDS = ("executor", "scheduler")

ALL = os.environ.get("PROCSCHED_TEST_SURROUNDINGS") == "all"
"""Whether every case is tried with both kinds; else with one of them, by turns."""


def cases(*values: str) -> list[tuple[str, str]]:
    """Return pairs of a case and a kind of pool."""
    if ALL:
        return [(value, kind) for value in values for kind in KINDS]
    return [(value, KINDS[number % 2]) for number, value in enumerate(values)]


HEAD = """
import asyncio, gc, os, resource, signal, subprocess, sys, tempfile, threading, time
from procsched import *
from tests import faults, hosts, support

KIND = sys.argv[1]
"""


def host(
    source: str,
    kind: str,
    *,
    options: tuple[str, ...] = (),
    redirect: str = "",
    prefix: tuple[str, ...] = (),
    environ: dict[str, str] | None = None,
) -> str:
    """Run a program that hosts a pool of this kind; it must end well and say nothing on stderr. Return its output.

    Args:
        redirect: what a shell does to its streams first. Descriptor 9 is our pipe.
        prefix: a program that starts it.
    """
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **(environ or {})}
    if "-I" in options:
        source = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{source}"
    if "-S" in options:
        import procsched

        places = [path for path in sys.path if path.endswith("-packages")]
        source = (
            f"import sys; sys.path[:0] = {[str(Path(procsched.__file__).parent.parent), *places]!r}\n{source}"
        )
    command = [*prefix, sys.executable, *options, "-c", source, kind]
    if redirect:
        command = ["/bin/sh", "-c", f'exec 9>&1; exec "$0" "$@" {redirect}', *command]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=support.TIMEOUT * 6)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


USE = HEAD + "print(hosts.use(KIND))\nassert hosts.no_children()\n"

FLAGS = {
    "-O": ("-O",),
    "-OO": ("-OO",),
    "-W error": ("-W", "error", "-bb"),
    "-X dev": ("-X", "dev", "-W", "error"),
    "-I": ("-I",),
    "-S": ("-S",),
}


@pytest.mark.parametrize(("flags", "kind"), cases(*FLAGS, "PYTHONMALLOC"))
def test_options_of_the_interpreter(flags: str, kind: str) -> None:
    """Under every option of Python all goes as ever, without a warning."""
    environ = {"PYTHONMALLOC": "debug"} if flags == "PYTHONMALLOC" else None
    assert host(USE, kind, options=FLAGS.get(flags, ()), environ=environ) == hosts.USED


def test_children_have_the_options_of_the_interpreter(tmp_path: Path) -> None:
    """A run has the flags of the program, so that it behaves as a plain call does."""
    script = HEAD + (
        "flags = lambda: (tuple(sys.flags), sys.warnoptions, sys.pycache_prefix, sys._xoptions.get('dev'))\n"
        "with ProcessExecutor(1) as executor:\n"
        "    there, here = executor.submit(flags).result(30), flags()\n"
        "skip = [i for i, name in enumerate(n for n in dir(sys.flags) if not n.startswith('_')) if 0]\n"
        "names = [n for n in dir(sys.flags) if not n.startswith(('_', 'n_')) and n not in ('count', 'index')]\n"
        "given = lambda: {n: getattr(sys.flags, n) for n in names}\n"
        "with ProcessExecutor(1) as executor:\n"
        "    other = executor.submit(given).result(30)\n"
        "differ = {n for n, value in given().items() if other[n] != value} - {'safe_path', 'isolated'}\n"
        "assert not differ, (differ, other)\n"
        "assert there[1:] == here[1:], (there, here)\n"
    )
    options = ("-O", "-bb", "-s", "-E", "-W", "error", "-X", "dev", "-X", f"pycache_prefix={tmp_path}")
    source = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{script}"
    host(source, "executor", options=options)


CLOSED = {
    "stdin": "<&-",
    "stdout": ">&-",
    "stderr": "2>&-",
    "stdin and stdout": "<&- >&-",
    "all": "<&- >&- 2>&-",
}


@pytest.mark.parametrize(("closed", "kind"), cases(*CLOSED))
def test_streams_are_closed_at_the_start(closed: str, kind: str) -> None:
    """A program without standard streams: no descriptor of ours takes their place, and runs have streams."""
    script = HEAD + (
        "taken = lambda: [os.path.lexists(f'/proc/self/fd/{fd}') for fd in (0, 1, 2)]\n"
        "before = taken()\n"
        "if KIND == 'executor':\n"
        "    user = ProcessExecutor(1, capture_output=True)\n"
        "    record = lambda: user.submit(print, 'hello').wait_record(30)\n"
        "    user.submit(abs, 1).result(30)\n"
        "else:\n"
        "    user = Scheduler(pool=ProcessPool(1, capture_output=True))\n"
        "    user.start()\n"
        "    record = lambda: user.wait(user.schedule('t', print, OneTime(0), args=('hello',)), 30)\n"
        "assert record().output == 'hello\\n', record()\n"
        "support.eventually(lambda: taken() == before, what='no descriptor of ours is a standard one')\n"
        "devnull = os.open(os.devnull, os.O_RDWR)\n"
        "for fd in (0, 1, 2): os.dup2(devnull, fd)\n"  # as a daemon does
        "assert record().output == 'hello\\n', record()\n"
        "user.shutdown()\n"
        "os.write(9, hosts.use(KIND).encode())\n"
    )
    assert host(script, kind, redirect=CLOSED[closed]) == hosts.USED


@pytest.mark.parametrize("kind", KINDS)
def test_streams_are_closed_later(kind: str) -> None:
    """A program that closes its standard streams while a pool is alive, and opens others in their place."""
    script = HEAD + (
        "scheduler = Scheduler(2); scheduler.start()\n"
        "executor = ProcessExecutor(2); executor.submit(abs, 1).result(30)\n"
        "for fd in (0, 1, 2): os.close(fd)\n"
        "other = ProcessExecutor(1); other.submit(abs, 1).result(30)\n"
        "taken = lambda: [fd for fd in (0, 1, 2) if os.path.lexists(f'/proc/self/fd/{fd}')]\n"
        "support.eventually(lambda: not taken())\n"
        "assert scheduler.wait(scheduler.schedule('t', abs, OneTime(0), args=(-1,)), 30).result == 1\n"
        "other.shutdown(); scheduler.shutdown()\n"
        "os.write(9, (hosts.use_executor(executor) if KIND == 'executor' else hosts.use(KIND)).encode())\n"
    )
    assert host(script, kind, redirect="9>&1") == hosts.USED


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_working_directory(kind: str) -> None:
    """The directory is gone before the pool starts, or under a pool that must start further workers."""
    script = HEAD + (
        "def move():\n"
        "    os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())\n"
        "executor = ProcessExecutor(1); executor.submit(abs, 1).result(30)\n"
        "move()\n"
        "executor.submit(signal.raise_signal, 9).exception(30)\n"
        "assert executor.submit(abs, -1).result(30) == 1\n"
        "executor.shutdown()\n"
        "print(hosts.use(KIND))\n"
    )
    assert host(script, kind) == hosts.USED


@pytest.mark.parametrize("kind", KINDS)
def test_from_other_threads(kind: str) -> None:
    """Made in one thread, used and shut down in another, when the first has ended; the main one does nothing."""
    script = HEAD + (
        "made, said = [], []\n"
        "def make(): made.append(ProcessExecutor(2) if KIND == 'executor' else Scheduler(2))\n"
        "def begin(): KIND == 'executor' and made[0].submit(abs, 1).result(30)\n"
        "def use(): said.append(hosts.USES[KIND](made[0]))\n"
        "for step in (make, begin, use):\n"
        "    thread = threading.Thread(target=step); thread.start(); thread.join()\n"
        "print(*said)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    assert host(script, kind) == hosts.USED


@pytest.mark.parametrize(("method", "kind"), cases("fork", "spawn"))
def test_inside_a_daemonic_child_of_multiprocessing(kind: str, method: str) -> None:
    """Such a child may have no children of multiprocessing; it may have ours, and they end with it."""
    script = HEAD + (
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        f"    with multiprocessing.get_context({method!r}).Pool(2) as pool:\n"
        "        print(*set(pool.map(hosts.use, [KIND] * 2)))\n"
        "        pool.close(); pool.join()\n"
    )
    assert host(script, kind) == hosts.USED


# --- descriptors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_low_limit_of_descriptors_is_told_at_the_start(kind: str) -> None:
    """Too few for the workers that were asked for: an error that names the limit, and no leak; later it goes."""
    script = HEAD + (
        "hosts.use(KIND); gc.collect()\n"
        "count = lambda: len(os.listdir('/proc/self/fd'))\n"
        "before, (soft, hard) = count(), resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "user = ProcessExecutor(20) if KIND == 'executor' else Scheduler(20)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (50, hard))\n"
        "for _ in range(3):\n"
        "    try:\n"
        "        user.submit(abs, 1) if KIND == 'executor' else user.start()\n"
        "    except OSError as error:\n"
        "        for words in ('20 workers', '50', 'RLIMIT_NOFILE', 'ulimit -n'): assert words in str(error), error\n"
        "    else: raise AssertionError\n"
        "    assert count() == before and threading.active_count() == 1 and hosts.no_children()\n"
        "small = ProcessExecutor(); assert small._core.pool.size == 1\n"  # by default as many as go
        "if (os.cpu_count() or 1) > 1: small.submit(abs, 1).result(30)\n"
        "small.shutdown()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))\n"
        "print(hosts.USES[KIND](user))\n"
        "assert count() == before\n"
    )
    assert host(script, kind) == hosts.USED


def test_what_children_inherit_above_the_limit_is_closed() -> None:
    """A descriptor that is passed on, and lies above a limit that was lowered since, is none of a worker's."""
    script = HEAD + (
        "reader, writer = os.pipe()\n"
        "os.dup2(writer, 200), os.close(writer)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "with ProcessExecutor(1) as executor:\n"
        "    print(executor.submit(os.path.exists, '/proc/self/fd/200').result(30))\n"
        "    os.close(200)\n"
        "    assert os.read(reader, 1) == b''\n"  # nobody has it any more
    )
    assert host(script, "executor") == "False"


def test_a_shortage_in_the_midst_names_the_limit(tmp_path: Path) -> None:
    """Descriptors that run out after the start: who waits for a worker is told which limit it was."""
    script = HEAD + (
        "executor = ProcessExecutor(1)\n"
        "executor.submit(abs, 1).result(30)\n"
        "limits = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))\n"
        "errors = [executor.submit(signal.raise_signal, 9).exception(30) for _ in range(4)]\n"
        "text = str(errors[-1])\n"
        "assert 'RLIMIT_NOFILE' in text and '3 descriptors' in text, errors\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\n"
        "executor.shutdown()\n"
    )
    script = script.replace("executor = P", "import logging; logging.disable()\nexecutor = P")
    assert host(script, "executor") == ""
