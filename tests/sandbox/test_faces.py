"""The faces of the sandbox: outcomes, records, what is refused before anything is started."""

from __future__ import annotations

import gc
import grp
import math
import os
import pwd
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from procsched import (
    InlinePool,
    ProcessExecutor,
    ProcessPool,
    Sandbox,
    SandboxUnavailableError,
    Scheduler,
    Source,
    SqlTaskStore,
    StoreError,
    ValidationError,
    killable,
    run,
)
from procsched.sandbox import prepare
from procsched.sandbox.paths import check_named
from procsched.sandbox.policy import NICE, PROMISES
from procsched.sandbox.promises import Facts
from procsched.stores.door import socket_path
from procsched.workers import pool as pool_module
from tests import support
from tests.sandbox import hosts
from tests.sandbox.conftest import Sandboxed

pytestmark = pytest.mark.leaks(
    "the hosts outlive a test; what they leave is looked for at the end of the session"
)


def test_a_job_runs_and_is_recorded(sandboxed: Sandboxed) -> None:
    """Result, output, CPU time and memory of a run that behaves."""
    source = "def attack(x):\n    print('hello')\n    return {'doubled': [2 * x], 'raw': b'ab'.hex()}"
    answer = sandboxed.run(source, 21)
    assert answer["outcome"] == "succeeded"
    assert answer["result"] == {"doubled": [42], "raw": "6162"}
    assert (answer["output"], answer["truncated"]) == ("hello\n", False)
    assert answer["cpu"] is not None
    assert answer["rss"] > 1 << 20
    assert answer["exit_code"] is answer["signal"] is answer["limit"] is None


def test_an_exception_is_a_claim(sandboxed: Sandboxed) -> None:
    """It is marked as what the job says, escaped, and comes out as a RemoteError, whatever class it names."""
    source = "class SystemExit(Exception): pass\ndef attack():\n    raise SystemExit('\\x1b[2J\\nERROR fake')"
    answer = sandboxed.run(source)
    assert answer["outcome"] == "failed"
    assert answer["error"] == "the job says: SystemExit: \\x1b[2J\\nERROR fake"
    assert answer["exception"] == "RemoteError"
    assert "line 3, in attack\n    raise SystemExit(" in answer["traceback"]
    assert "\x1b" not in answer["traceback"]
    assert "inside.py" not in answer["traceback"]  # it reads as that of a plain call


def test_a_job_may_be_larger_than_a_pipe_takes(sandboxed: Sandboxed) -> None:
    """It is written as the process reads it, and is whole."""
    answer = sandboxed.run("def attack(text): return [len(text), set(text) == {'x'}]", "x" * 500_000)
    assert (answer["outcome"], answer["result"]) == ("succeeded", [500_000, True])


def test_a_job_that_shows_a_traceback_shows_its_lines(sandboxed: Sandboxed) -> None:
    """By the library's module, which knows the source text."""
    source = (
        "import traceback\ndef attack():\n    try: return 1 / 0  # here\n"
        "    except ZeroDivisionError: traceback.print_exc()"
    )
    assert "line 3, in attack\n    try: return 1 / 0  # here" in sandboxed.run(source)["output"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def attack(): return {1, 2}", "the result is of type set"),
        ("def attack(): return [(1,)]", "the result[0] is of type tuple"),
        ("def attack(): return {1: 2}", "the result has the key 1"),
        (
            "def attack(): return float('nan')",
            "the result is nan, for which JSON has no word; make it a text, or None",
        ),
        (
            "def attack(): return [-1e999]",
            "the result[0] is -inf, for which JSON has no word; make it a text",
        ),
        ("def other(): pass", "the source defines no 'attack'"),
        ("def attack(: pass", "SyntaxError"),
        ("async def attack(): raise KeyError('x')", "KeyError"),
    ],
)
def test_what_cannot_be_returned_is_said(source: str, says: str, tmp_path_factory: Any) -> None:
    """Nothing is turned into something else in silence."""
    host = Sandboxed("user", "portable", hosts.shared_host("user", tmp_path_factory.mktemp("host")))
    answer = host.run(source)
    assert answer["outcome"] == "failed"
    assert says in answer["error"]


def test_trusted_functions_run_by_name(sandboxed: Sandboxed) -> None:
    """Functions of the library, and of a directory that is readable; others are refused when they are submitted."""
    order = {"policy": sandboxed.policy(), "source": "", "timeout": 20.0}
    assert sandboxed.host("run", **order, name="json.dumps", args=[{"a": 1}])["result"] == '{"a": 1}'
    assert sandboxed.host("run", **order, name="math.sqrt", args=[9])["result"] == 3.0
    with pytest.raises(AssertionError, match=r"the sandbox cannot read .*/tests, where tests.faults is"):
        sandboxed.host("run", **order, name="tests.faults.add", args=[1, 2])
    code = "/mnt/code" if hosts.IS_ROOT else str(hosts.ROOT)
    order["policy"] = sandboxed.policy(readable=[code])
    assert sandboxed.host("run", **order, name="tests.sandbox.trusted.add", args=[1, 2])["result"] == 3


def test_progress_is_passed_on(sandboxed: Sandboxed) -> None:
    """`current_run()` works inside: it knows the limit, and tells of progress."""
    source = (
        "from procsched import current_run\n"
        "def attack():\n"
        "    run = current_run()\n"
        "    run.progress(1, 2, 'half\\x1b')\n"
        "    return run.remaining() <= 20.0 and [run.name, run.attempt]"
    )
    answer = sandboxed.run(source)
    assert answer["result"] == ["attack", 1]
    assert answer["progress"] == [1, 2, "half\\x1b"]


@pytest.mark.parametrize(
    "body", ["return 1", "raise ValueError", "print('x' * 9000); while True: pass", "import os; os._exit(3)"]
)
def test_every_record_says_what_was_given_up(sandboxed: Sandboxed, body: str) -> None:
    """However the run has ended: the promises that nothing kept, and none that something did."""
    usual = sandboxed.policy().get("give_up", [])
    policy = sandboxed.policy(give_up=[*usual, "memory"])  # which is kept all the same
    source = "def attack():\n    " + body.replace("; ", "\n    ", 1)
    answer = sandboxed.run(source, policy=policy, timeout=1.0)
    assert answer["given_up"] == usual


def test_the_report_names_every_promise(sandboxed: Sandboxed) -> None:
    """What keeps it, or that it was given up; and the process itself says how it is confined."""
    report = sandboxed.host("report", policy=sandboxed.policy())
    assert {*report["kept"], *report["given_up"]} == set(PROMISES)
    assert set(report["given_up"]) == set(sandboxed.policy().get("give_up", ()))
    assert int(report["layers"]["tried"]) > 10
    assert int(report["layers"]["seccomp"]) > 300
    assert report["nice"] == NICE
    where = ", on all processors but one" if len(os.sched_getaffinity(0)) > 1 else ""
    assert f"niceness   +{NICE}{where}: a job has what others leave of the processors" in report["text"]


# What it leaves in its process, which no other run finds; and what it finds of the host's.
JOB_BY_FACES = """
import os
def attack(x):
    found = ["seen" in vars(os), "CANARY_SECRET" in os.environ]
    os.seen = True
    while x == 0:
        pass
    if x < 0:
        raise ValueError(x)
    return [2 * x, *found]
"""


def test_run_takes_a_sandbox(sandboxed: Sandboxed) -> None:
    """Each call has a process of its own, and comes back with the result, the job's claim or its end."""
    answer = sandboxed.host(
        "run_shared",
        policy=sandboxed.policy(),
        source=JOB_BY_FACES,
        name="attack",
        calls=[[1, 20.0], [-1, 20.0], [0, 0.4], [2, 20.0]],
    )
    first, failed, endless, last = answer["answers"]
    assert first == ["result", [2, False, False]]
    assert failed == ["RemoteError", "the job says: ValueError: -1"]
    assert endless[0] == "TaskTimeoutError"
    assert last == ["result", [4, False, False]]
    assert answer["hurt"] == []


def test_a_scheduler_takes_a_sandbox(sandboxed: Sandboxed) -> None:
    """Its records say what was given up. A task that fails is tried again only where a policy of its own says so."""
    answer = sandboxed.host(
        "scheduler",
        policy=sandboxed.policy(),
        source=JOB_BY_FACES,
        name="attack",
        tasks=[[1, None], [-1, None], [-2, 2], [2, None]],
    )
    given_up = sandboxed.policy().get("give_up", [])
    first, failed, tried_twice, last = answer["answers"]
    assert first == [[1, "succeeded", [2, False, False], given_up]]
    assert failed == [[1, "failed", "the job says: ValueError: -1", given_up]]
    assert [attempt[:2] for attempt in tried_twice] == [[1, "failed"], [2, "failed"]]
    assert last == [[1, "succeeded", [4, False, False], given_up]]
    assert answer["hurt"] == []


def test_jobs_have_what_others_leave_of_the_processors(sandboxed: Sandboxed) -> None:
    """Whatever runs them, unless their pool is given a number, 0 too. Trusted code has what the program has.

    One processor they leave to others altogether, where there are several: always the first.
    """
    found = sandboxed.host("niceness", policy=sandboxed.policy(), given=[{}, {"nice": 0}, {"nice": 3}])
    most = 19 - os.getpriority(os.PRIO_PROCESS, 0)  # whoever runs the tests may be nice itself
    own = sorted(os.sched_getaffinity(0))
    left = own[:1] if len(own) > 1 else []
    assert found == {
        "{}": [min(NICE, most), NICE, left],
        '{"nice": 0}': [0, 0, []],
        '{"nice": 3}': [min(3, most), 3, []],
        "scheduler": [min(NICE, most), None, left],
        "run": [min(NICE, most), None, left],
        "trusted": [0, None, []],
    }


# --- refusals, in this process ---------------------------------------------------------------------------

JOB = Source("def f(): pass", "f")


def refused(**options: Any) -> str:
    with pytest.raises(ValidationError) as raised:
        ProcessExecutor(1, **{"timeout": 1.0, "sandbox": Sandbox(), **options})
    return str(raised.value)


def test_what_makes_no_sense_with_a_sandbox_is_refused() -> None:
    """Each by name, before anything is asked of the system."""
    assert "timeout must be given" in refused(timeout=None)
    assert "grace cannot be given" in refused(grace=1.0)
    assert "initializer cannot be given" in refused(initializer=print)
    assert "preload cannot be given" in refused(preload=("json",))
    assert "max_runs_per_worker cannot be given" in refused(max_tasks_per_child=3)
    assert "max_rss_per_worker cannot be given" in refused(max_rss_per_worker=1 << 30)
    assert "Sandbox(env=...)" in refused(env={})
    assert "cwd cannot be given" in refused(cwd="/")
    assert "must be a Sandbox" in refused(sandbox={"memory": 1})
    with pytest.raises(ValidationError, match="belongs to the pool"):
        with ProcessExecutor(1) as executor:
            executor.options(sandbox=Sandbox())
    with pytest.raises(ValidationError, match="timeout must be given"):
        run(JOB, sandbox=Sandbox())
    with pytest.raises(ValidationError, match="killable takes no sandbox"):
        killable(timeout=1, sandbox=Sandbox())


def test_a_source_without_a_sandbox_is_not_run() -> None:
    """It fails where it would be called, and its text is not compiled."""
    with ProcessExecutor(1) as executor:
        with pytest.raises(ValidationError, match="runs only where a sandbox is given"):
            executor.submit(Source("def f(): return 1", "f")).result()
        assert executor.submit(Source("def f(): return 1", "f")).wait_record(support.TIMEOUT).name == "f"
    with Scheduler(pool=InlinePool()) as scheduler:
        task = scheduler.schedule_after(Source("def f(): return 1", "f"), 0)
        assert "runs only where a sandbox is given" in (scheduler.wait(task, 10).error or "")
        assert task.task.name == "f"


@pytest.mark.skipif(not hosts.IS_ROOT, reason="what root is refused")
def test_root_needs_uids() -> None:
    """A root program without uids of its own for the workers gets no sandbox."""
    for make in (
        lambda: ProcessPool(1, sandbox=Sandbox()),
        lambda: ProcessExecutor(1, timeout=1, sandbox=Sandbox()),
        lambda: run(JOB, timeout=1, sandbox=Sandbox()),
        lambda: Scheduler(pool=ProcessPool(sandbox=Sandbox())),
    ):
        with pytest.raises(SandboxUnavailableError) as raised:
            make()
        assert raised.value.promise == "parent"
        assert "five more than there are workers: Sandbox(run_as=" in raised.value.remedy


@pytest.mark.parametrize(
    ("changes", "promise"),
    [
        ({"system": "darwin"}, "parent"),
        ({"system": "win32"}, "parent"),
        ({"machine": "ppc64le"}, "parent"),
        ({"seccomp": "[Errno 1] Operation not permitted"}, "parent"),
        ({"landlock": 0}, "files"),
        ({"bwrap": "", "no_bwrap": "not there"}, "names"),
    ],
)
def test_other_systems_are_refused(changes: dict[str, Any], promise: str) -> None:
    """Nothing is started on a system that lacks what a promise needs, and the error names the promise."""
    usual = {
        "system": "linux",
        "machine": "x86_64",
        "uid": 1000,
        "seccomp": "",
        "landlock": 7,
        "bwrap": "/bin/bwrap",
    }
    with pytest.raises(SandboxUnavailableError) as raised:
        prepare.prepare(Sandbox(), Facts(**{**usual, **changes}))
    assert raised.value.promise == promise


@pytest.mark.parametrize("where", ["cwd", "sys.path", "prefix", "below", "above"])
def test_places_that_others_load_code_from_cannot_be_writable(
    where: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory, the import path, the interpreter; what is in them, and what holds them."""
    import sys

    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    named = place
    if where == "cwd":
        monkeypatch.chdir(place)
    elif where == "prefix":
        monkeypatch.setattr(sys, "prefix", str(place))
    elif where == "below":
        monkeypatch.syspath_prepend(str(place.parent))
    else:
        monkeypatch.syspath_prepend(str(place))
        named = place.parent if where == "above" else place
    facts = Facts("linux", "x86_64", 1000, "", 7, "/bin/bwrap")
    policy = Sandbox(writable=(str(named),), give_up={"scratch"})
    with pytest.raises(ValidationError, match="would be run by others"):
        prepare.prepare(policy, facts)


@pytest.mark.parametrize("where", ["there", "below", "above", "a socket"])
def test_the_place_of_a_store_cannot_be_writable(where: str, tmp_path: Any) -> None:
    """That of a store which this process has, and where the socket of any process's store is; each with the remedy."""
    place = tmp_path / "a" / "b"
    (place / "c").mkdir(parents=True)
    facts = Facts("linux", "x86_64", 1000, "", 7, "/bin/bwrap")
    named = {"below": place / "c", "above": tmp_path}.get(where, place)
    policy = Sandbox(writable=(str(named),), give_up={"scratch"})
    check_named(policy)
    if where == "a socket":
        with socket.socket(socket.AF_UNIX) as theirs:
            theirs.bind(socket_path(str(place / "jobs.db")))
        what: Any = str(place / "jobs.db-control")
    else:
        what = SqlTaskStore(f"sqlite:///{place / 'jobs.db'}")
    words = "name a directory of its own, or keep the store elsewhere"
    with pytest.raises(ValidationError, match=f"a durable store is there .*{words}"):
        prepare.prepare(policy, facts)
    if where != "a socket":
        del what
        gc.collect()
        check_named(policy)


def test_a_store_is_not_opened_where_jobs_may_write(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as there is a pool whose jobs may."""
    monkeypatch.setattr(pool_module, "_prepared", lambda _sandbox, _size, _nice: object())
    place = tmp_path / "jobs"
    place.mkdir()
    pool = ProcessPool(1, sandbox=Sandbox(writable=(str(tmp_path),), give_up={"scratch"}))
    store = SqlTaskStore(f"sqlite:///{place / 'jobs.db'}")
    with pytest.raises(
        StoreError, match=r"where sandboxed jobs of this process may write.* keep the store in"
    ):
        store.open()
    assert not list(place.iterdir())
    del pool
    gc.collect()
    store.open()
    store.close()


def test_paths_that_are_not_there_are_refused(tmp_path: Any) -> None:
    """A path that is missing when the pool is built is a slip, not a promise kept."""
    facts = Facts("linux", "x86_64", 1000, "", 7, "/bin/bwrap")
    for field, path in (("readable", tmp_path / "no"), ("writable", tmp_path / "no")):
        with pytest.raises(ValidationError, match="not there"):
            prepare.prepare(Sandbox(give_up={"scratch"}, **{field: (str(path),)}), facts)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ValidationError, match="no directory"):
        prepare.prepare(Sandbox(give_up={"scratch"}, writable=(file,)), facts)


@pytest.mark.parametrize("place", ["/", "/proc", "/sys", "/dev"])
def test_links_to_what_is_the_kernels_are_refused(place: str, tmp_path: Any) -> None:
    """A path is judged by where it leads: that is what the job could read."""
    link = tmp_path / "link"
    link.symlink_to(place)
    with pytest.raises(ValidationError, match=f"readable must not hold .*, which leads to {place}:"):
        check_named(Sandbox(readable=(link,)))


def test_a_limit_above_the_hard_one_is_told_as_such() -> None:
    """And not as too little memory."""
    error = prepare.trial.TrialError("limits", "PermissionError: [Errno 1] Operation not permitted")
    told = prepare._refusal(error, Sandbox(open_files=1 << 30))
    assert str(told).startswith(
        "open_files=1073741824, file_size=67108864 or another limit of the sandbox is above "
    )


def test_too_long_a_variable_is_told_as_such() -> None:
    """And not as a program that cannot be started."""
    policy = Sandbox(env={"SHORT": "x", "LONG": "x" * 200_000})
    words = ["/bin/true"]
    program: Any = SimpleNamespace(command=lambda *_: words, environment=dict(policy.env or {}), settings=b"")
    with pytest.raises(prepare.trial.TrialError) as caught:
        prepare.trial.attempt(program, None, 60)
    told = prepare._refusal(caught.value, policy)
    assert isinstance(told, ValidationError)
    assert str(told).startswith(
        "env ('LONG' is the longest in it, with 200000 bytes), readable and writable are more"
    )


def test_a_path_in_the_place_of_scratch_is_refused() -> None:
    """It would cover that; what is below it does not."""
    with pytest.raises(ValidationError, match="readable must not hold '/tmp' where scratch= is given"):
        check_named(Sandbox(scratch=1 << 20, readable=("/tmp",)))
    check_named(Sandbox(readable=("/tmp",)))


@pytest.mark.skipif(not hosts.IS_ROOT, reason="only root can give uids")
def test_uids_of_others_are_refused() -> None:
    """A range that holds a user of the system is not nobody's: what runs under it would be ended."""
    from procsched.sandbox.uids import Leases

    with pytest.raises(ValidationError, match="which is that of"):
        Leases(range(1, 10))
    users = {user.pw_uid for user in pwd.getpwall()}
    free = min(group.gr_gid for group in grp.getgrall() if group.gr_gid not in users)
    with pytest.raises(ValidationError, match=f"run_as has gid {free}, which is that of the group"):
        Leases(range(free, free + 1))


def test_lines_that_delegate_no_uids_are_passed_over(tmp_path: Any) -> None:
    """As who delegates them does."""
    from procsched.sandbox.uids import _delegated

    file = tmp_path / "subuid"
    file.write_text("# x\na:1:many\na:1:\nb:\u00b2:5\nc:7:5\n\nd:1:2:3\n", encoding="utf-8")
    assert _delegated(str(file)) == [("c", 7, 5)]


def test_a_pool_has_uids_for_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one of them would wait for the end of another."""
    monkeypatch.setattr(prepare, "prepare", lambda _sandbox, nice: object())
    with pytest.raises(ValidationError, match="run_as has 8 uids, and 4 workers need 9"):
        ProcessPool(4, sandbox=Sandbox(run_as=range(700_000, 700_008)))
    ProcessPool(4, sandbox=Sandbox(run_as=range(700_000, 700_009)))


@pytest.mark.skipif(not hosts.IS_ROOT, reason="only root can give uids")
def test_a_uid_is_given_once() -> None:
    """Two pools with the same range do not share a uid; one that was given back comes last."""
    from procsched.sandbox.uids import Leases

    first, second = Leases(range(742_000, 742_002)), Leases(range(742_000, 742_002))
    try:
        one, two = first.take(), second.take()
        assert {one, two} == {742_000, 742_001}
        assert first.take() is None
        assert two is not None
        second.give_back(two)
        assert first.take() == two
    finally:
        first.close()
        second.close()


def test_arguments_that_are_no_data_are_refused() -> None:
    """The call that is submitted with one fails alone, saying which; nothing is pickled."""
    from procsched.errors import TaskSerializationError
    from procsched.sandbox import packing

    prepared: Any = None
    for value in (object(), {1}, math.inf, (1,), {1: 2}):
        with pytest.raises(TaskSerializationError, match=r"args\[0\]"):
            packing.pack(prepared, JOB, (value,), {})
    with pytest.raises(TaskSerializationError, match="is nan, for which JSON has no word; make it a text"):
        packing.pack(prepared, JOB, ([1.0, math.nan],), {})
    with pytest.raises(TaskSerializationError, match="kwargs"):
        packing.pack(prepared, JOB, (), {"x": object()})
    for action in (lambda: 1, "json.dumps", [].append, test_a_uid_is_given_once.__call__, object()):
        with pytest.raises(ValidationError):
            packing.pack(prepared, action, (), {})
