"""What a sandbox is to hold, as values: `Sandbox`, and `Source` for a job given as text. Pure.

Nothing here looks at the system: whether it can keep what a policy asks for is decided in `promises.py`.
"""

from __future__ import annotations

import os

from procsched._core.checks import LONGEST_WAIT, finite_seconds, whole_number
from procsched._core.frozen import frozen
from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from dataclasses import KW_ONLY
    from typing import Any, Final, NoReturn

# What a sandbox promises, in the order in which it is shown.
PROMISES: Final = (
    "secrets",
    "parent",
    "network",
    "files",
    "names",
    "tree",
    "orphan",
    "memory",
    "processes",
    "threads",
    "cpu",
    "scratch",
)
# Those without which there is a sandbox still, only a weaker one.
GIVEABLE: Final = frozenset({"names", "memory", "threads", "cpu", "scratch"})

LEAST_MEMORY: Final = 64 << 20  # bytes of address space that an interpreter with a few imports takes
LEAST_FILES: Final = 16  # descriptors: five are there from the start, and an import opens some
MOST: Final = (1 << 63) - 1
MOST_RESULT: Final = 256 << 20  # bytes; what is larger does not belong into a JSON text
# Added to the niceness of a job where its pool is given none. Less of it leaves others less of the processors; each
# step above takes a fifth of what a job gets beside others that compute, and a neighbour waits for a turn as often: it
# is the processor that jobs stay off that it need not wait for.
NICE: Final = 10
# Variables that change what the interpreter or the dynamic loader runs before anything is confined.
_LOADERS: Final = ("LD_", "PYTHON", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH", "MALLOC_")
# Directories that show other processes, devices or the kernel's settings.
_KERNEL: Final = ("/proc", "/sys", "/dev")


@frozen
class Sandbox:
    """The policy of a sandbox: what a run of untrusted code may use. Everything else is refused.

    A pool that has one starts a fresh interpreter for each run, which confines itself before it is sent the job; the
    job and its result are plain data (JSON and bytes). When the pool is built, each promise must be kept by some
    mechanism of this system, or `SandboxUnavailableError` says which is not.

    Jobs have a niceness of 10 above that of the program, and all processors that it may use but the first, where there
    are several: so others have most of the processors' time, and need not wait for it. Where these keep all processors
    busy jobs get little, and a timeout is of wall time: ``nice=0`` of the pool gives them an equal share of all.

    Args:
        memory: bytes of address space of each process. What would take more is a MemoryError in the job, which is
            FAILED then by its own account, or CRASHED where C code makes a death of it; `record.limit` is None.
        cpu_seconds: whole seconds of CPU time, or a timedelta of so many, all threads together. The start of the
            interpreter counts, and is not in the record: `record.cpu_seconds` of a run ended at 1 is 0.8 or 0.9.
        processes: how many there may be at once. More than one needs namespaces (bubblewrap).
        threads: how many there may be at once; more than one needs a private uid or namespaces. None, the default, for
            as many as can be counted here: 32, or one where threads cannot be counted. Stacks, and what malloc reserves
            for each thread, are address space, so `memory` may have room for fewer: some 13 with 128 MiB or 512 MiB.
        open_files: descriptors.
        file_size: bytes of each file that is written.
        scratch: bytes of a directory in memory that the job may write to, its working directory, gone with it; 0 for
            none. Needs namespaces.
        output: bytes of stdout and stderr that are kept, the first ones.
        result: bytes of the result as JSON.
        result_nodes: values in it, all lists, dictionaries, texts and numbers counted.
        readable: files and directories that may be read, beside the interpreter, its library and site-packages.
        writable: directories that may be written to as well. There is no limit to what is written there in all, so this
            asks for ``give_up={"scratch"}``.
        env: environment variables, beside a few harmless ones. Nothing is inherited.
        run_as: uids that belong to nobody else, as a range, and the gids of the same numbers: five more than the pool
            has workers, for those that wait, those that are just ending and what looks into what they write. Required
            where this process is root, refused where it is not. Whatever else runs under them is ended.
        give_up: promises that need not be kept where nothing here keeps them: ``names``, ``memory``, ``threads``,
            ``cpu``, ``scratch``. Shown in every report and record.
    Raises:
        ValidationError: naming the field.
    """

    _: KW_ONLY
    memory: int = 512 << 20
    cpu_seconds: int = 60
    processes: int = 1
    threads: int | None = None
    open_files: int = 64
    file_size: int = 64 << 20
    scratch: int = 0
    output: int = 64 << 10
    result: int = 1 << 20
    result_nodes: int = 100_000
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    env: Mapping[str, str] | None = None
    run_as: range | None = None
    give_up: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        # As plain numbers and texts, and not as members of an enumeration, say: the sandboxed process is told of them.
        put = object.__setattr__
        for name, least in _LEAST.items():
            put(self, name, _within_most(name, whole_number(name, getattr(self, name), least)))
        if self.result > MOST_RESULT:
            raise ValidationError(
                f"result must be at most {MOST_RESULT} bytes, not {self.result}: let the job write to a file "
                "under writable="
            )
        if self.threads is not None:
            put(self, "threads", _within_most("threads", whole_number("threads", self.threads)))
        seconds = finite_seconds("cpu_seconds", self.cpu_seconds, minimum=1.0)
        if not seconds.is_integer():
            raise ValidationError(
                f"cpu_seconds must be whole seconds, as the kernel counts them, not {seconds:g}"
            )
        put(self, "cpu_seconds", int(min(seconds, LONGEST_WAIT)))
        put(self, "readable", _paths("readable", self.readable))
        put(self, "writable", _paths("writable", self.writable))
        if self.env is not None:
            put(self, "env", _environment(self.env))
        _check_uids(self.run_as)
        put(self, "give_up", _given_up(self.give_up))

    def __hash__(self) -> int:
        env = () if self.env is None else tuple(sorted(self.env.items()))
        return hash(tuple(env if name == "env" else getattr(self, name) for name in _FIELDS))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(_FIELDS, state, strict=True):
            object.__setattr__(
                self, name, _environment(value) if name == "env" and value is not None else value
            )

    def __getstate__(self) -> tuple[Any, ...]:
        plain = None if self.env is None else dict(self.env)
        return tuple(plain if name == "env" else getattr(self, name) for name in _FIELDS)


_FIELDS: Final[tuple[str, ...]] = Sandbox.__slots__  # type: ignore[attr-defined]
_LEAST: Final = {
    "memory": LEAST_MEMORY,
    "processes": 1,
    "open_files": LEAST_FILES,
    "file_size": 0,
    "scratch": 0,
    "output": 0,
    "result": 1,
    "result_nodes": 1,
}


@frozen
class Source:
    """A job as text: a source, and the name of the function in it that is called.

    It is compiled and run inside the sandbox and nowhere else. Submit it in the place of a function.

    Args:
        text: Python source.
        name: the function.
    Raises:
        ValidationError: naming the field.
    """

    text: str
    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ValidationError(f"text must be a source text, not {type(self.text).__name__}")
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValidationError(f"name must be the name of a function in the text, not {self.name!r}")
        if not self.name.isascii():
            import unicodedata

            # As the compiler names the function.
            object.__setattr__(self, "name", unicodedata.normalize("NFKC", self.name))
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            raise ValidationError(f"text cannot be written as UTF-8: {error}") from None

    @property
    def __name__(self) -> str:
        """The function's name: that of its calls and tasks where they are given no other."""
        return self.name

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        """Refuse: it is run by a pool with a sandbox only."""
        raise ValidationError(
            f"Source(name={self.name!r}) is code that nobody trusts: it runs only where a sandbox is given, as in "
            "run(source, sandbox=Sandbox(), timeout=5)"
        )


def _within_most(name: str, value: int) -> int:
    if value > MOST:
        raise ValidationError(f"{name} must be at most {MOST}, not {value}")
    return int(value)


def _paths(field: str, paths: object) -> tuple[str, ...]:
    if isinstance(paths, (str, bytes, os.PathLike)) or not hasattr(paths, "__iter__"):
        raise ValidationError(f"{field} must be a sequence of paths, not {paths!r}: write (path,)")
    made = []
    given: Iterable[Any] = paths
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise ValidationError(f"{field} must hold paths, not {type(path).__name__} {path!r}")
        text = os.fspath(path)
        if isinstance(text, str):
            text = str.__str__(text)
        if not isinstance(text, str) or not text or "\0" in text:
            raise ValidationError(f"{field} must hold paths as texts, not {text!r}")
        try:
            text.encode()  # as the sandboxed process is told of it
        except UnicodeEncodeError:
            raise ValidationError(
                f"{field} must hold paths whose names are UTF-8, not {text!r}: give that another name"
            ) from None
        text = os.path.abspath(text)
        if text.startswith("//"):  # which that leaves as it is
            text = text[1:]
        refuse_kernel(field, text, text)
        made.append(text)
    return tuple(dict.fromkeys(made))


def refuse_kernel(field: str, path: str, place: str) -> None:
    """Refuse a path that leads to a place which shows other processes, devices or the kernel's settings.

    Raises:
        ValidationError: naming the path.
    """
    for kernel in _KERNEL:
        if place == kernel or place.startswith(kernel + "/") or place == "/":
            what = repr(path) if path == place else f"{path!r}, which leads to {place}"
            raise ValidationError(
                f"{field} must not hold {what}: {kernel} shows what belongs to other processes; name the "
                "directories that the job needs"
            )


def _environment(env: object) -> Mapping[str, str]:
    from types import MappingProxyType

    if not hasattr(env, "items"):
        raise ValidationError(f"env must be a mapping of texts to texts, or None, not {env!r}")
    made = dict(env.items())
    for name, value in made.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValidationError(f"env must map texts to texts, not {name!r} to {value!r}")
        if not name or "=" in name or "\0" in name + value:
            raise ValidationError(f"env has {name!r}, which can be no variable")
        try:
            os.fsencode(name + value)
        except UnicodeEncodeError as error:
            raise ValidationError(f"env has {name!r}, which the system cannot be given: {error}") from None
        if name.startswith(_LOADERS):
            raise ValidationError(
                f"env must not set {name!r}: it would change what runs before anything is confined"
            )
    return MappingProxyType({str.__str__(name): str.__str__(value) for name, value in made.items()})


def _check_uids(uids: object) -> None:
    if uids is None:
        return
    if not isinstance(uids, range) or uids.step != 1 or not uids:
        raise ValidationError(
            f"run_as must be a range of uids, such as range(700_000, 700_064), not {uids!r}"
        )
    if uids.start < 1 or uids.stop > 0xFFFF_FFFE:
        raise ValidationError(f"run_as must hold uids from 1 to {0xFFFF_FFFD}, not {uids!r}")


def _given_up(names: object) -> frozenset[str]:
    if isinstance(names, str) or not hasattr(names, "__iter__"):
        raise ValidationError(f"give_up must be a set of promises, not {names!r}: write {{{names!r}}}")
    made = frozenset(names)
    for name in made:
        if name not in PROMISES:
            raise ValidationError(
                f"give_up has {name!r}, which is no promise; promises are {', '.join(PROMISES)}"
            )
        if name not in GIVEABLE:
            raise ValidationError(
                f"give_up must not hold {name!r}: without it there is no sandbox; what can be given up is "
                f"{', '.join(sorted(GIVEABLE))}"
            )
    return made
