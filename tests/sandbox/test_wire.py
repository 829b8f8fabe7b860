"""Jobs that write what they like into their connection, and deaths that pretend to be something else."""

from __future__ import annotations

import base64
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.sandbox import hosts
from tests.sandbox.conftest import Sandboxed

pytestmark = pytest.mark.leaks(
    "the hosts outlive a test; what they leave is looked for at the end of the session"
)
PUT = """
import json, os, signal, sys, time, threading
def put(frame):
    body = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
    data = len(body).to_bytes(4, "big") + body
    while data:
        data = data[os.write(4, data):]
def done(value, number=1):
    put({"kind": "done", "id": number, "value": value})
"""


class Evil:
    """Makes a file where its pickle is opened."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return (open, (self.path, "w"))


def source_of(case: str, told: dict[str, Any]) -> str:
    """Return the source of a job, with the path of the file that only code of its own in another process can make."""
    path: str = told["executed"]
    pickled = base64.b64encode(pickle.dumps(Evil(path))).decode()
    body = WRITTEN[case][0].replace("<executed>", path).replace("<pickled>", pickled)
    return f"{PUT}\ndef attack(*_):\n    {body}"


# body of the job -> outcome, words of the error, result
WRITTEN = {
    "random bytes": ("os.write(4, bytes(range(200, 256)) * 10)", "crashed", "protocol violation", None),
    "a frame and a half": ("done(1); os.write(4, b'\\0\\0\\0')", "succeeded", "", 1),
    "half a frame and the end": (
        "os.write(4, b'\\0\\0\\0\\x64{'); os._exit(0)",
        "crashed",
        "exit code 0",
        None,
    ),
    "a length": ("os.write(4, b'\\xff\\xff\\xff\\xf0')", "crashed", "announced a frame of 4294967280", None),
    "a length of none": ("os.write(4, bytes(4))", "crashed", "announced a frame of 0", None),
    "another id": ("done(1, 2)", "crashed", "it was not sent", None),
    "two outcomes": ("done(1); done(2)", "succeeded", "", 1),
    "an outcome and a failure": ("done(1); raise ValueError", "succeeded", "", 1),
    "a failure and an outcome": (
        "put({'kind': 'raised', 'id': 1, 'type': 'E', 'message': 'm', 'traceback': ''}); done(1)",
        "failed",
        "the job says: E: m",
        None,
    ),
    "ready again": (
        "put({'kind': 'ready', 'layers': {}, 'cpu': 0.0})",
        "crashed",
        "'ready' while it was running",
        None,
    ),
    "refused": ("put({'kind': 'refused', 'step': 'x', 'error': 'y'})", "crashed", "'refused' while", None),
    "no kind": ("put({'kind': 'shutdown'})", "crashed", "no known kind", None),
    "a pickle": ("import base64; put(base64.b64decode('<pickled>'))", "crashed", "protocol violation", None),
    "a large pickle": (
        "import base64; put(base64.b64decode('<pickled>') + bytes(100_000))",
        "crashed",
        "protocol violation",
        None,
    ),
    "a pickle as a result": ("import base64; return base64.b64decode('<pickled>')", "succeeded", "", ...),
    "keys that make objects": (
        "done({'__reduce__': 1, '__class__': 'x', 'py/object': 'y'})",
        "succeeded",
        "",
        {"__reduce__": 1, "__class__": "x", "py/object": "y"},
    ),
    "unknown tags": (
        'done({"$eval": "open(\\"<executed>\\", \\"w\\")"})',
        "crashed",
        "$eval",
        None,
    ),
    "a result that is too large": ("return 'x' * 2_000_000", "limit_exceeded", "result=1048576", None),
    "a large result by hand": ("done('x' * 1_100_000)", "crashed", "announced a frame", None),
    "many values": ("return [0] * 200_000", "failed", "one value too many", None),
    "many values by hand": (
        'put(b\'{"kind":"done","id":1,"value":[\' + b\'[],\' * 340_000 + b\'[]]}\')',
        "crashed",
        "values",
        None,
    ),
    "depth": ("x = []\n    for _ in range(10**5): x = [x]\n    return x", "failed", "deeper than 64", None),
    "depth by hand": ("put(b'[' * 500_000)", "crashed", "protocol violation", None),
    "not a number": ('put(b\'{"kind":"done","id":1,"value":NaN}\')', "crashed", "NaN", None),
    "beyond a float": ('put(b\'{"kind":"done","id":1,"value":1e999}\')', "crashed", "float", None),
    "a long number": (
        'put(b\'{"kind":"done","id":1,"value":\' + b\'9\' * 5000 + b\'}\')',
        "crashed",
        "digits",
        None,
    ),
    "half a pair": ('put(b\'{"kind":"done","id":1,"value":"\\\\ud800"}\')', "crashed", "surrogate", None),
    "a key twice": ('put(b\'{"kind":"done","id":1,"value":{"a":1,"a":2}}\')', "crashed", "twice", None),
    "a thread that answers": (
        "threading.Thread(target=lambda: [done(3) for _ in range(1000)]).start() if 0 else done(3)",
        "succeeded",
        "",
        3,
    ),
    "a closed connection": (
        "os.close(4); time.sleep(100)",
        "crashed",
        "worker closed its connection",
        None,
    ),
    "exit 0": ("os._exit(0)", "crashed", "exit code 0", None),
    "exit 77": ("os._exit(77)", "crashed", "exit code 77", None),
    "SystemExit": ("sys.exit(3)", "failed", "the job says: SystemExit: 3", None),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt", None),
    "a crash": ("import ctypes; ctypes.string_at(0)", "crashed", "SIGSEGV", None),
    "abort": ("os.abort()", "crashed", "SIGABRT", None),
    "a limit that was none": (
        "os.kill(os.getpid(), signal.SIGXCPU); time.sleep(9)",
        "failed",
        "PermissionError",
        None,
    ),
    "a kill that was none": (
        "os.kill(os.getpid(), signal.SIGKILL); time.sleep(9)",
        "failed",
        "PermissionError",
        None,
    ),
    "an exit like a kill": ("os._exit(137)", "crashed", "exit code 137", None),
    "a text that raises": (
        "class E(Exception):\n        def __str__(self): raise self\n    raise E",
        "failed",
        "its text cannot be had",
        None,
    ),
    "a type without a name": (
        "class M(type):\n        __name__ = property(lambda self: 1 / 0)\n    class E(Exception, metaclass=M): pass\n    raise E",
        "failed",
        "exception",
        None,
    ),
    "a text that is no end": (
        "raise ValueError('x' * 10**7)",
        "failed",
        "the job says: ValueError: xxx",
        None,
    ),
    "endless recursion": ("f = lambda: f()\n    f()", "failed", "RecursionError", None),
    "streams of its own": (
        "class S:\n        def flush(self): raise SystemExit\n        def write(self, x): pass\n"
        "    sys.stdout = sys.stderr = S()\n    return 5",
        "succeeded",
        "",
        5,
    ),
    "json of its own": (
        "import json as j; j.dumps = None; j.JSONEncoder = None; return 6",
        "succeeded",
        "",
        6,
    ),
}


def test_what_would_be_executed(tmp_path: Path) -> None:
    """Whoever opens the pickle that the jobs send makes the file."""
    path = tmp_path / "executed"
    data = pickle.dumps(Evil(str(path)))
    assert not path.exists()
    pickle.loads(data).close()
    assert path.exists()


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case.replace(" ", "-"))
def test_whatever_is_written_is_an_outcome(sandboxed: Sandboxed, case: str) -> None:
    """Each ends as one outcome of this run alone, with nothing executed (see `Canaries.executed`) and nobody hurt."""
    _body, outcome, words, result = WRITTEN[case]
    answer = sandboxed.run(source_of(case, sandboxed.arguments), timeout=20.0)
    assert answer["outcome"] == outcome, answer
    assert words in (answer["error"] or ""), answer["error"]
    assert result is ... or answer["result"] == result
    assert outcome == "limit_exceeded" or answer["limit"] is None


def test_the_reader_is_not_moved_by_floods(sandboxed: Sandboxed) -> None:
    """Progress without end is read at the reader's pace, and a byte now and then buys no time."""
    flood = "    while True: put({'kind': 'progress', 'done': 1, 'total': None, 'note': 'x' * 400})"
    source = f"{PUT}\ndef attack():\n{flood}"
    sandboxed.host("start", policy=sandboxed.policy(), source=source, name="attack", timeout=500.0)
    assert sandboxed.host("progress") == [1, None, "x" * 400]
    sandboxed.host("close")
    assert sandboxed.run(source, timeout=0.5)["outcome"] == "timed_out"
    slow = "    for byte in b'\\0\\0\\0\\x64' + b' ' * 100: os.write(4, bytes((byte,))); time.sleep(0.1)"
    assert sandboxed.run(f"{PUT}\ndef attack():\n{slow}", timeout=0.5)["outcome"] == "timed_out"


def test_what_is_large_is_looked_into_by_another_process(sandboxed: Sandboxed) -> None:
    """Which is nobody of importance; and no outcome depends on it."""
    source = "def attack():\n    print('\\x1b' * 9000)\n    return {'a': 'b' * 100_000}"
    sandboxed.host("close")  # each pool has one
    for least in (1, 0):  # after a failure there is none for a while
        answer = sandboxed.run(source)
        assert answer["result"] == {"a": "b" * 100_000}
        assert answer["output"] == "\\x1b" * 9000 + "\n"
        below = [each for each in sandboxed.host("below") if "sandbox.examining" in "".join(each[2])]
        assert least <= len(below) <= 1
        for pid, uid, _command in below:
            assert uid > 0
            os.kill(pid, signal.SIGKILL)
            assert support.process_gone(pid)


def test_a_hostile_run_harms_no_other(sandboxed: Sandboxed) -> None:
    """Among attackers every harmless job has its own outcome and no attacker has another's."""
    evil = [source_of(case, sandboxed.arguments) for case in list(WRITTEN)[:8]]
    good = "def attack(x):\n    return x"
    texts = [text for each in evil for text in (each, good)]
    jobs = [[text, "attack", [n]] for n, text in enumerate(texts)]
    found = sandboxed.host("at_once", policy=sandboxed.policy(), jobs=jobs, timeout=20.0)
    assert [outcome for outcome, _error in found[1::2]] == ["succeeded"] * 8
    expected = [WRITTEN[case][1] for case in list(WRITTEN)[:8]]
    assert [outcome for outcome, _error in found[::2]] == expected


def test_nothing_grows(sandboxed: Sandboxed) -> None:
    """Hostile runs leave neither memory nor descriptors nor threads in the host. Longer with PROCSCHED_LONG."""
    rounds = 1000 if os.environ.get("PROCSCHED_LONG") else 12
    cases = ["random bytes", "a length", "a result that is too large", "many values by hand", "exit 77"]
    jobs = [[source_of(case, sandboxed.arguments), "attack", []] for case in cases]
    for _ in range(2):
        sandboxed.host("at_once", policy=sandboxed.policy(), jobs=jobs, timeout=20.0)
    before = sandboxed.host("usage")
    for _ in range(max(1, rounds // len(jobs))):
        sandboxed.host("at_once", policy=sandboxed.policy(), jobs=jobs, timeout=20.0)
    after = sandboxed.host("usage")
    assert after["fds"] <= before["fds"] + 6  # a spare more or less
    assert after["threads"] <= before["threads"]
    assert after["rss"] - before["rss"] < 10 << 20


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_jobs_die_with_the_host(
    sandboxed: Sandboxed, how: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A job that ignores all signals is gone when its host is, killed or not."""
    source = (
        "import signal, time\nfrom procsched import current_run\ndef attack():\n"
        "    for n in range(1, 64):\n        try: signal.signal(n, signal.SIG_IGN)\n        except (OSError, ValueError): pass\n"
        "    current_run().progress(1)\n    time.sleep(1000)"
    )
    with hosts.own_host(sandboxed.user, tmp_path_factory.mktemp("host")) as host:
        (pid,) = host("start", policy=sandboxed.policy(), source=source, name="attack", timeout=500.0)
        sibling = host("arguments")["sibling"]  # is the program's own affair
        below = [each[0] for each in host("below") if each[0] != sibling]
        assert pid in below
        if how == "killed":
            host.kill()
        else:
            host("close")
        for each in below:
            assert support.process_gone(each)
