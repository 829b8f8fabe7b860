"""The policy of a sandbox, and which mechanism keeps which promise on which system. Pure."""

from __future__ import annotations

import enum
import functools
import pickle
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from procsched import Sandbox, SandboxUnavailableError, Source, ValidationError
from procsched._core.options import name_of
from procsched.sandbox import paths
from procsched.sandbox.policy import GIVEABLE, PROMISES
from procsched.sandbox.programs import _outermost
from procsched.sandbox.promises import WHAT, Facts, Plan, decide

UIDS = range(700_000, 700_064)


def facts(**changes: Any) -> Facts:
    """Return what an ordinary user has on a new kernel with bubblewrap, with changes."""
    usual = {
        "system": "linux",
        "machine": "x86_64",
        "uid": 1000,
        "seccomp": "",
        "landlock": 7,
        "bwrap": "/usr/bin/bwrap",
        "no_bwrap": "",
    }
    return Facts(**{**usual, **changes})


def without_bwrap(**changes: Any) -> Facts:
    return facts(bwrap="", no_bwrap="not installed", **changes)


def everything(plan: Plan) -> set[str]:
    """Return the promises that a plan says something about, each once."""
    names = [name for name, _how in (*plan.kept, *plan.given_up)]
    assert len(names) == len(set(names))
    return set(names)


# --- the source ------------------------------------------------------------------------------------------


def test_a_source_names_its_function_as_the_compiler_does() -> None:
    """Which writes a name in one way, of the several that an identifier may be written in."""
    names: dict[str, Any] = {}
    exec("def \ufb01nd(): pass", names)
    assert Source("def \ufb01nd(): pass", "\ufb01nd").name in names


# --- the policy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory", 1000),
        ("memory", "512M"),
        *(
            (name, 1 << 63)
            for name in ("memory", "processes", "threads", "open_files", "file_size", "scratch")
        ),
        ("cpu_seconds", 0),
        ("cpu_seconds", 1.5),
        ("cpu_seconds", timedelta(milliseconds=1500)),
        ("cpu_seconds", True),
        ("processes", 0),
        ("processes", True),
        ("threads", 0),
        ("open_files", 3),
        ("file_size", -1),
        ("scratch", -1),
        ("output", -1),
        ("result", 0),
        ("result", 1 << 40),
        ("result_nodes", 0),
        ("readable", "/srv"),
        ("readable", (1,)),
        ("readable", ("",)),
        ("readable", ("a\0b",)),
        ("readable", ("/srv/\udcff",)),
        ("writable", ("/srv/\udcff",)),
        ("readable", ("/",)),
        ("readable", ("/proc",)),
        ("readable", ("/proc/self",)),
        ("readable", ("//",)),
        ("readable", ("//proc",)),
        ("writable", ("/dev/shm",)),
        ("readable", ("/sys/..//proc/1",)),
        ("env", ["A=b"]),
        ("env", {"A": 1}),
        ("env", {"A=": "b"}),
        ("env", {"A": "\ud800"}),
        ("env", {"LD_PRELOAD": "/tmp/evil.so"}),
        ("env", {"PYTHONPATH": "/tmp"}),
        ("run_as", 1000),
        ("run_as", range(10)),
        ("run_as", range(10, 20, 2)),
        ("run_as", range(5, 5)),
        ("run_as", range(1 << 32, (1 << 32) + 5)),
        ("give_up", "names"),
        ("give_up", {"nmaes"}),
    ],
)
def test_wrong_values_are_refused_by_name(field: str, value: object) -> None:
    """What cannot be meant is refused where it is written, and the message names the field."""
    with pytest.raises(ValidationError, match=field):
        Sandbox(**{field: value})


def test_cpu_seconds_may_be_a_timedelta() -> None:
    """Of whole seconds, and is kept as their number."""
    policy = Sandbox(cpu_seconds=timedelta(minutes=1))  # type: ignore[arg-type]
    assert policy == Sandbox(cpu_seconds=60)
    assert type(policy.cpu_seconds) is int


def test_members_of_enumerations_are_kept_as_what_they_are() -> None:
    """Plain texts and numbers: nothing else can be told to a process."""

    class Text(enum.StrEnum):
        NAME = "A"
        PATH = "/srv"

    class Number(enum.IntEnum):
        MANY = 1 << 30

    made = Sandbox(env={Text.NAME: Text.PATH}, readable=(Text.PATH,), memory=Number.MANY, threads=Number.MANY)
    ((name, value),) = (made.env or {}).items()
    for kept, plain in ((name, "A"), (value, "/srv"), (made.readable[0], "/srv")):
        assert (type(kept), kept) == (str, plain)
    for number in (made.memory, made.threads):
        assert (type(number), number) == (int, 1 << 30)


@pytest.mark.parametrize("seconds", [9_000_000_000, sys.maxsize, 1 << 100])
def test_cpu_seconds_may_be_for_ever(seconds: int) -> None:
    """The kernel counts nanoseconds in 64 bits, and would make little of so many."""
    assert Sandbox(cpu_seconds=seconds).cpu_seconds * 10**9 < 1 << 63


@pytest.mark.parametrize("promise", sorted(set(PROMISES) - GIVEABLE))
def test_what_makes_a_sandbox_cannot_be_given_up(promise: str) -> None:
    """Some promises are no matter of taste."""
    with pytest.raises(ValidationError, match="there is no sandbox"):
        Sandbox(give_up={promise})


def test_unknown_fields_are_refused_with_the_nearest() -> None:
    """A slip of the pen in a policy does not go unnoticed."""
    with pytest.raises(ValidationError, match="did you mean 'readable'"):
        Sandbox(readble=("/srv",))


def test_policies_are_values() -> None:
    """They compare and hash by their fields, travel, and cannot be changed, the environment included."""
    made = Sandbox(env={"A": "b"}, readable=["/srv", "/srv"], give_up=["names"])
    assert made == Sandbox(env={"A": "b"}, readable=("/srv",), give_up=frozenset({"names"}))
    assert hash(made) == hash(Sandbox(env={"A": "b"}, readable=("/srv",), give_up={"names"}))
    assert made != Sandbox(env={"A": "c"}, readable=("/srv",), give_up={"names"})
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    with pytest.raises(TypeError):
        again.env["A"] = "c"
    with pytest.raises(AttributeError):
        made.memory = 1


def test_the_environment_is_copied() -> None:
    """A mapping that its owner changes afterwards is none of the policy's."""
    env = {"A": "b"}
    made = Sandbox(env=env)
    env["SECRET"] = "x"
    assert dict(made.env) == {"A": "b"}


@pytest.mark.parametrize(
    "arguments", [(b"def f(): pass", "f"), ("def f(): pass", ""), ("", "a.b"), ("\ud800", "f")]
)
def test_wrong_sources_are_refused(arguments: tuple[Any, Any]) -> None:
    """A source is a text that can be sent, with the name of a function."""
    with pytest.raises(ValidationError):
        Source(*arguments)


def test_a_task_of_a_source_has_the_name_of_its_function() -> None:
    """As one of a function has, where it is given none."""
    source = Source("def solve(): ...", "solve")
    assert name_of(source) == name_of(functools.partial(source, 1)) == "solve"
    assert pickle.loads(pickle.dumps(source)) == source
    assert Source.__name__ == "Source"


def test_a_source_is_not_run_here() -> None:
    """Calling it in this process raises, and nothing of its text is compiled."""
    with pytest.raises(ValidationError, match="nobody trusts"):
        Source("raise SystemExit(1)", "f")()


# --- promises --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "system"),
    [
        ({}, facts()),
        ({"give_up": {"names"}}, without_bwrap()),
        ({"processes": 4, "give_up": {"memory", "cpu"}}, facts()),
        ({"scratch": 1 << 20}, facts()),
        ({"threads": 4}, facts()),
        ({"run_as": UIDS, "give_up": {"names"}}, without_bwrap(uid=0)),
        ({"writable": ("/srv",), "give_up": {"scratch"}}, facts(machine="aarch64")),
        ({"give_up": GIVEABLE}, without_bwrap(landlock=1)),
    ],
)
def test_every_promise_is_kept_or_given_up(policy: dict[str, Any], system: Facts) -> None:
    """A plan says of each promise what keeps it, or that it was given up and why; given up is only what may be."""
    made = Sandbox(**policy)
    plan = decide(made, system)
    assert everything(plan) == set(PROMISES) == set(WHAT)
    assert {name for name, _why in plan.given_up} <= made.give_up


@pytest.mark.parametrize(
    ("promise", "policy", "system"),
    [
        ("parent", {}, facts(system="darwin")),
        ("parent", {}, facts(system="win32")),
        ("parent", {}, facts(machine="riscv64")),
        ("parent", {}, facts(machine="32 bits")),
        ("parent", {}, facts(seccomp="[Errno 38] Function not implemented")),
        ("files", {}, facts(landlock=0)),
        ("parent", {}, facts(uid=0)),
        ("parent", {"run_as": UIDS}, facts()),
        ("names", {}, without_bwrap()),
        ("tree", {"processes": 2}, without_bwrap()),
        ("tree", {"processes": 2, "give_up": GIVEABLE}, without_bwrap()),
        ("scratch", {"scratch": 1, "give_up": {"names"}}, without_bwrap()),
        ("threads", {"threads": 2, "give_up": {"names"}}, without_bwrap()),
        ("threads", {"threads": 2, "processes": 2, "give_up": {"memory", "cpu"}}, facts()),
        ("memory", {"processes": 2, "give_up": {"cpu"}}, facts()),
        ("cpu", {"processes": 2, "give_up": {"memory"}}, facts()),
        ("scratch", {"writable": ("/srv",)}, facts()),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(promise: str, policy: dict[str, Any], system: Facts) -> None:
    """A promise that nothing keeps is an error that names it, says what was tried and what to do."""
    with pytest.raises(SandboxUnavailableError) as raised:
        decide(Sandbox(**policy), system)
    error = raised.value
    assert error.promise == promise
    assert error.tried
    assert error.remedy
    assert repr(promise) in str(error)
    assert pickle.loads(pickle.dumps(error)).promise == promise


def test_the_error_reads_as_what_it_means() -> None:
    """What the promise is stands there as a promise, not as what goes wrong."""
    with pytest.raises(SandboxUnavailableError) as raised:
        decide(Sandbox(), facts(uid=0))
    assert str(raised.value).startswith(
        "nothing keeps the promise 'parent' here, that a job cannot signal, trace, slow down or limit another process: "
    )


def test_what_cannot_be_read_is_no_matter_of_a_promise(tmp_path: Path) -> None:
    """It is named, and so is the way out. That is to open a directory only where it is not root's home."""
    closed = tmp_path / "closed"
    closed.mkdir(0o700)
    with pytest.raises(SandboxUnavailableError) as raised:
        paths.check_readable_by(700_000, [str(closed)])
    error = raised.value
    assert error.promise == ""
    assert str(error).startswith(
        f"no sandbox can be started here: uid 700000 of run_as cannot read {closed}: "
    )
    assert "or one below /opt; or open this one to every user of the machine: chmod o+" in error.remedy
    assert "chmod" not in paths._remedy("/root", "/root/.pyenv/bin/python3")
    assert "not run the program as root" in paths._remedy("/root/x", "/root/x")


def test_one_given_up_promise_gives_up_no_other() -> None:
    """Giving up names where namespaces are missing does not give up the scratch directory that needs them as well.

    Nor does giving up its limit: without them there is none.
    """
    for given_up in ({"names"}, {"names", "threads"}, {"names", "scratch"}, GIVEABLE):
        with pytest.raises(SandboxUnavailableError) as raised:
            decide(Sandbox(scratch=1 << 20, give_up=given_up), without_bwrap())
        assert raised.value.promise == "scratch"


def test_namespaces_are_used_where_they_are_asked_for() -> None:
    """What bubblewrap is needed for uses it; what gives up its promises does without, though it is there."""
    assert decide(Sandbox(), facts()).namespaces
    assert decide(Sandbox(scratch=1, give_up={"names"}), facts()).namespaces
    assert not decide(Sandbox(give_up={"names"}), facts()).namespaces


@pytest.mark.parametrize(
    ("policy", "system", "threads", "tasks"),
    [
        ({}, facts(), 32, 32),
        ({"threads": 3}, facts(), 3, 3),
        ({"threads": 1}, facts(), 1, None),
        ({"give_up": {"names"}}, without_bwrap(), 1, None),
        ({"give_up": {"names"}, "run_as": UIDS}, without_bwrap(uid=0), 32, 32),
        ({"processes": 4, "give_up": {"memory", "cpu"}}, facts(), 1, 4),
        ({"give_up": {"names", "threads"}, "threads": 9}, without_bwrap(), 9, None),
    ],
)
def test_threads_are_counted_where_that_can_be(
    policy: dict[str, Any], system: Facts, threads: int, tasks: int | None
) -> None:
    """There are several threads only where the kernel counts those of this sandbox alone, or that was given up."""
    plan = decide(Sandbox(**policy), system)
    assert (plan.threads, plan.tasks) == (threads, tasks)
    if tasks == threads > 1:
        assert dict(plan.kept)["threads"].endswith(
            f": {threads}, or as many as memory={512 << 20} has room for"
        )


def test_what_is_below_another_path_is_not_mounted_again() -> None:
    """Paths and not texts: one name may begin like another."""
    wanted = [
        "/usr/lib/python3",
        "/usr/lib",
        "/usr/lib64",
        "/usr/library/a",
        "/etc/localtime",
        "/usr/lib/x/y",
    ]
    assert _outermost(wanted) == ["/etc/localtime", "/usr/lib", "/usr/lib64", "/usr/library/a"]
