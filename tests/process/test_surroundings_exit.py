"""The end of the interpreter in whatever state a pool is: no traceback, no hang, nothing left.

More states are in `test_executor.AT_EXIT` and `test_scheduler_shutdown.EXITS`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import support
from tests.pools import Parent
from tests.process.test_surroundings import KINDS, cases
from tests.process.test_surroundings_forks import FORKS

pytestmark = pytest.mark.slow

USER = "user = started()\n"
HANG = USER + (
    "path = tempfile.mktemp()\n"
    "if KIND == 'executor': future = user.options(timeout=0.5).submit(faults.sleep, path)\n"
    "else: user.schedule('t', faults.sleep, OneTime(0), args=(path,))\n"
    "support.wait_for_file(path); os.unlink(path)\n"
)
BUSY = USER + (
    "def busy():\n"
    "    try:\n"
    "        while True: use_once(user)\n"
    "    except (SchedulerStateError, TaskKilledError): pass\n"
)

STATES = {
    "never started": "user = make()",
    "starting": "user = make(); user.submit(abs, 1) if KIND == 'executor' else user.start()",
    "running": USER,
    "stopping in another thread": USER + "threading.Thread(target=user.shutdown, daemon=True).start()",
    "shut down": USER + "user.shutdown()",
    "collected": USER + "del user; gc.collect()",
    "in a cycle that is collected at the end": USER
    + "class Node: pass\nnode = Node(); node.it = node; node.user = user",
    "a call is in flight": HANG,
    "sys.exit with a call in flight": HANG + "sys.exit(0)",
    "os._exit with a call in flight": HANG + "os._exit(0)",
    "sys.exit in a thread": USER + "thread = threading.Thread(target=sys.exit, args=(5,)); thread.start()",
    "a map is pending": USER
    + "results = user.map(faults.nap, [0.01] * 20) if KIND == 'executor' else None\nresults and next(results)",
    "a daemon thread goes on": BUSY + "threading.Thread(target=busy, daemon=True).start()",
    "a thread goes on": USER
    + "threading.Thread(target=lambda: KIND == 'executor' and [use_once(user) for _ in range(20)]).start()",
    "atexit uses it": USER
    + "import atexit\n@atexit.register\ndef use():\n    try: use_once(user)\n    except SchedulerStateError: pass",
    "atexit shuts it down": USER + "import atexit\natexit.register(user.shutdown)",
    "a finalizer shuts it down": USER
    + "import weakref\nclass Thing: pass\nthing = Thing(); weakref.finalize(thing, user.shutdown)",
    "a generator shuts it down": USER
    + "def generate():\n    try: yield\n    finally: user.shutdown()\ngenerator = generate(); next(generator)",
    "__del__ uses it": USER
    + (
        "class Late:\n"
        "    def __del__(self):\n"
        "        try: use_once(self.user)\n"
        "        except SchedulerStateError: pass\n"
        "import builtins\nbuiltins.late = late = Late(); late.user = user; late.late = late"
    ),
}


@pytest.mark.parametrize(("state", "kind"), cases(*STATES))
def test_the_interpreter_ends(tmp_path: Path, state: str, kind: str) -> None:
    """Whatever goes on, the program ends with the code that it would have without us.

    It prints nothing, except where the end of the program takes away work that a scheduler had begun: that is said.
    """
    with Parent(tmp_path, FORKS + STATES[state], arguments=(kind,)) as parent:
        out, err = parent.process.communicate(timeout=support.TIMEOUT * 4)
    assert (parent.process.returncode, out) == (0, "")
    lost = kind == "scheduler" and state == "a call is in flight"
    assert err == ("the shutdown at the interpreter's exit ended runs of tasks task-2\n" if lost else "")
    support.eventually(lambda: not support.orphans(), what="no process of the program is left")


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_that_nobody_handles(tmp_path: Path, kind: str) -> None:
    """The program ends with that one traceback, and its calls are ended or finished as at any exit."""
    with Parent(tmp_path, FORKS + HANG + "raise KeyError('mine')\n", arguments=(kind,)) as parent:
        out, err = parent.process.communicate(timeout=support.TIMEOUT * 4)
        assert (parent.process.returncode, out) == (1, "")
        lost = (
            "the shutdown at the interpreter's exit ended runs of tasks task-2\n"
            if kind == "scheduler"
            else ""
        )
        assert err.endswith("KeyError: 'mine'\n" + lost)
        assert err.count("Traceback") == 1
    support.eventually(lambda: not support.orphans())
