"""A PostgreSQL server for the tests: one for the whole run, on loopback, in a directory of its own.

A run that is killed takes its server with it: the kernel sends that a SIGQUIT (prctl(2), PR_SET_PDEATHSIG). The
directory that stays is removed by the next run, which can tell that its owner is gone.

Where `initdb` and `postgres` cannot be found the tests that want it are skipped, saying so; with
PROCSCHED_TEST_POSTGRES=required that is a failure.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from procsched.stores import holder
from tests import support

PASSWORD = "s3cret-of-the-tests"
PREFIX = "procsched-pg-"
OWNER = "owner"
PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin")
MISSING = "PostgreSQL's initdb and postgres are not there: on Debian, apt-get install postgresql"


def binaries() -> Path | None:
    """Return the directory with the newest server's programs, or None."""
    found = shutil.which("initdb")
    if found is not None and shutil.which("postgres"):
        return Path(found).parent
    places = sorted(place for pattern in PLACES for place in glob.glob(pattern))
    return next((Path(place) for place in reversed(places) if os.path.exists(f"{place}/initdb")), None)


class Server:
    """A server that can be stopped and started again."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self._programs = programs
        self._data = directory / "data"
        self._sockets = directory / "sockets"
        self._log = directory / "log"
        # It refuses to run as root.
        self._user = {"user": "postgres", "group": "postgres", "extra_groups": ()} if os.getuid() == 0 else {}
        self._sockets.mkdir()
        if self._user:
            for path in (directory, self._sockets):
                shutil.chown(path, "postgres", "postgres")
        password = directory / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._run(
            "initdb",
            "-D",
            self._data,
            "-U",
            "tests",
            "-A",
            "scram-sha-256",
            "--pwfile",
            password,
            "-N",
            "-E",
            "UTF8",
        )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._databases = 0

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [str(self._programs / program), *map(str, arguments)],
            env=self._environment(),
            capture_output=True,
            text=True,
            cwd="/",
            **self._user,  # type: ignore[call-overload]
        )
        assert done.returncode == 0, done.stderr

    @staticmethod
    def _environment() -> dict[str, str]:
        # Without the mark of this run: its processes come and go while tests look for what they left.
        return {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}

    def start(self) -> None:
        """Start, and return when it takes connections."""
        settings = [
            "listen_addresses=127.0.0.1", f"port={self.port}", f"unix_socket_directories={self._sockets}", "fsync=off",
            "autovacuum=off", "max_connections=50", "shared_buffers=16MB",
        ]  # fmt: skip
        command = [str(self._programs / "postgres"), "-D", str(self._data)]
        for setting in settings:
            command += ["-c", setting]
        user = self._user
        if shutil.which("setpriv"):
            # It changes the user as well, for with that the kernel forgets about the signal.
            words = ["--reuid=postgres", "--regid=postgres", "--clear-groups"] if user else []
            command = ["setpriv", *words, "--pdeathsig=QUIT", *command]
            user = {}
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/",
                start_new_session=True, **user,  # type: ignore[call-overload]
            )  # fmt: skip
        support.servers.add(self._process.pid)
        support.eventually(self._answers, 60.0, "the server takes connections")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        import psycopg

        try:
            psycopg.connect(self._dsn("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop: SIGINT breaks every connection, SIGQUIT without a word."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            support.servers.discard(self._process.pid)
            self._process = None

    def _dsn(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=tests password={PASSWORD} dbname={database}"

    def new_database(self) -> str:
        """Make an empty database, and return the URL of a store in it."""
        import psycopg

        self._databases += 1
        name = f"d{self._databases}"
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql+psycopg://tests:{PASSWORD}@127.0.0.1:{self.port}/{name}"


@contextmanager
def directory() -> Iterator[Path]:
    """Give a directory of this process's; before, remove those of processes that were killed."""
    for old in glob.glob(f"{tempfile.gettempdir()}/{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError):  # it has gone meanwhile
            if holder.is_gone(holder.read_holder(Path(old).read_bytes())):
                shutil.rmtree(Path(old).parent)
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        path = Path(name)
        path.chmod(0o755)
        (path / OWNER).write_text(json.dumps(holder.this_process()))
        yield path


@contextmanager
def server() -> Iterator[Server]:
    """Give a server that runs, or skip."""
    programs = binaries()
    if programs is None:
        if os.environ.get("PROCSCHED_TEST_POSTGRES") == "required":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    with directory() as place:
        one = Server(programs, place)
        one.start()
        try:
            yield one
        finally:
            one.stop()
