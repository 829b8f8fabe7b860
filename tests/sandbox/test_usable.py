"""What people bring along works inside under the default policy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from procsched import Sandbox
from procsched.sandbox import paths, prepare
from procsched.sandbox.programs import _bwrap
from tests.sandbox import hosts
from tests.sandbox.conftest import Sandboxed

pytestmark = pytest.mark.leaks(
    "the hosts outlive a test; what they leave is looked for at the end of the session"
)

NO_NAMESPACES = hosts.why_not("user", "namespaces")
JOBS = {
    "json": "import json\ndef attack():\n    return json.loads(json.dumps({'a': [1.5, None]}))['a'][0]",
    "re": "import re\ndef attack():\n    return re.sub(r'(\\w)\\1', r'<\\1>', 'aabb')",
    "sqlite3": (
        "import sqlite3\ndef attack():\n    db = sqlite3.connect(':memory:')\n"
        "    db.execute('create table t (x)'); db.executemany('insert into t values (?)', [(1,), (2,)])\n"
        "    return db.execute('select sum(x) from t').fetchone()[0]"
    ),
    "datetime": "import datetime\ndef attack():\n    return str(datetime.datetime.now().year > 2000)",
    "zoneinfo": (
        "import datetime, zoneinfo\ndef attack():\n"
        "    at = datetime.datetime(2026, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Paris'))\n    return at.isoformat()"
    ),
    "decimal": "import decimal\ndef attack():\n    return str(decimal.Decimal('0.1') + decimal.Decimal('0.2'))",
    "asyncio": (
        "import asyncio\nasync def attack():\n    async def one(n):\n        await asyncio.sleep(0.001)\n        return n\n"
        "    return await asyncio.gather(*map(one, range(5)))"
    ),
    "hashlib": "import hashlib\ndef attack():\n    return hashlib.sha256(b'x').hexdigest()[:8] + hashlib.md5(b'x').hexdigest()[:4]",
    "collections": (
        "import collections, dataclasses, enum, functools, heapq, itertools, math, random, statistics, string, typing\n"
        "import bisect, csv, fractions, io, operator, textwrap, uuid, base64, gzip, pickle, copy, contextlib, inspect\n"
        "def attack():\n    random.seed(1)\n    return [pickle.loads(pickle.dumps((1, 2)))[1], gzip.decompress(gzip.compress(b'x')).decode()]"
    ),
    "tempfile": "import tempfile\ndef attack():\n    with tempfile.SpooledTemporaryFile() as f:\n        f.write(b'x'); f.seek(0); return f.read().decode()",
    "input": "def attack():\n    try:\n        input()\n    except EOFError:\n        return 'no input'",
    "logging": "import logging, sys\ndef attack():\n    logging.basicConfig(stream=sys.stdout); logging.warning('w'); return 1",
    "subprocess": "import subprocess\ndef attack():\n    try:\n        subprocess.run(['true'])\n    except PermissionError:\n        return 'refused'",
    "classes": "class A:\n    def __init__(self, x): self.x = x\ndef attack():\n    import pickle\n    return pickle.loads(pickle.dumps(A(3))).x",
}
GIVES = {
    "json": 1.5,
    "re": "<a><b>",
    "sqlite3": 3,
    "datetime": "True",
    "zoneinfo": "2026-07-01T00:00:00+02:00",
    "decimal": "0.3",
    "asyncio": [0, 1, 2, 3, 4],
    "hashlib": "2d711642" + "9dd4",
    "collections": [2, "x"],
    "tempfile": "x",
    "input": "no input",
    "logging": 1,
    "subprocess": "refused",
    "classes": 3,
}


@pytest.mark.parametrize("job", JOBS)
def test_the_library_works(sandboxed: Sandboxed, job: str) -> None:
    """Each of these imports, runs and returns what it does anywhere."""
    answer = sandboxed.run(JOBS[job])
    assert answer["result"] == GIVES[job], answer


def test_numpy_works(sandboxed: Sandboxed) -> None:
    """With its linear algebra, whose library makes threads where it may."""
    pytest.importorskip("numpy")
    source = (
        "import numpy\ndef attack():\n    a = numpy.arange(10000.0).reshape(100, 100)\n"
        "    return [float((a @ a.T).trace()), float(numpy.linalg.norm(a)) > 0, numpy.fft.fft(a[0]).shape[0]]"
    )
    assert sandboxed.run(source)["result"][1:] == [True, 100]


def test_threads_work_where_they_are_counted(sandboxed: Sandboxed) -> None:
    """`asyncio.to_thread` and thread pools work, or fail with the error for too many threads."""
    source = "import asyncio\nasync def attack():\n    return await asyncio.to_thread(sum, [1, 2])"
    answer = sandboxed.run(source)
    report = sandboxed.host("report", policy=sandboxed.policy())
    if "refuses threads" in report["kept"]["threads"]:
        assert "can't start new thread" in answer["error"]
    else:
        assert answer["result"] == 3


def test_the_environment_is_what_the_policy_says(sandboxed: Sandboxed) -> None:
    """A few harmless variables and those of the policy; `sys.argv`, `sys.path` and the modules tell nothing of the host."""
    source = (
        "import os, sys\ndef attack():\n"
        "    return [dict(os.environ), sys.argv, sys.path, sorted(m for m in sys.modules if 'tests' in m), os.getcwd()]"
    )
    environ, argv, path, modules, where = sandboxed.run(source, policy=sandboxed.policy(env={"A": "b"}))[
        "result"
    ]
    assert environ.pop("A") == "b"
    assert set(environ) <= {
        *("LANG", "PATH", "HOME", "PWD", "LC_CTYPE"),
        *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    }
    assert argv == [""]
    assert modules == []
    assert not [entry for entry in path if entry.startswith(("/mnt/code", "/tmp"))]
    assert where == "/"


@pytest.mark.skipif(bool(NO_NAMESPACES), reason=NO_NAMESPACES or "there are namespaces")
def test_the_root_of_a_sandbox_has_what_is_named(tmp_path: Path) -> None:
    """Also what a link below another path leads to; what a job has removed is left out, and the next one starts."""
    for name in ("app", "data", "made", "jobs/given"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "text").write_text("x")
    for name in ("data", "made"):
        (tmp_path / "app" / name).symlink_to(tmp_path / name)
    policy = Sandbox(
        readable=[tmp_path / "app", tmp_path / "app" / "data", tmp_path / "jobs" / "given"],
        writable=[tmp_path / "jobs", tmp_path / "app" / "made"],
        give_up={"scratch"},
    )
    (tmp_path / "jobs" / "given").rmdir()
    found = paths.interpreter()
    text = "import os; print(open('app/data/text').read()); open('app/made/it', 'w'); os.mkdir('jobs/given')"
    command = [*_bwrap(policy, prepare.facts_of_system().bwrap, found), found.python, "-I", "-S", "-c"]
    said = subprocess.run(
        [*command, f"import os; os.chdir({str(tmp_path)!r}); {text}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.stdout, said.stderr) == ("x\n", "")
    assert (tmp_path / "made" / "it").exists()


def test_readable_and_writable_paths(sandboxed: Sandboxed) -> None:
    """What is named can be read, or written without traps; what is beside it cannot."""
    place = sandboxed.arguments["directory"]
    policy = sandboxed.policy(writable=[place], give_up=[*sandboxed.policy().get("give_up", ()), "scratch"])
    source = """
import os
def attack(place):
    path = os.path.join(place, "made")
    with open(path, "w") as file:
        file.write("x")
    found = [open(path).read(), "made" in os.listdir(place)]
    for attempt in (lambda: os.symlink("/etc/shadow", path + "-link"), lambda: os.mkfifo(path + "-fifo"),
                    lambda: os.link(path, path + "-hard"), lambda: os.chmod(path, 0o4777), lambda: open("/etc/passwd")):
        try:
            attempt()
            found.append("worked")
        except OSError as error:
            found.append(type(error).__name__)
    os.unlink(path)
    return found
"""
    if sandboxed.user == "root":
        pytest.skip("the directory belongs to root, and the private uids cannot write there")
    found = sandboxed.run(source, place, policy=policy)["result"]
    assert found[:2] == ["x", True]
    assert set(found[2:]) <= {"PermissionError", "FileNotFoundError"}
