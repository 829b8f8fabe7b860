"""Which files a sandboxed interpreter needs to read, and which a policy must not let it write. Asks the system."""

from __future__ import annotations

import os
import stat
import sys

from procsched import _places
from procsched._core.frozen import frozen
from procsched.errors import ValidationError
from procsched.sandbox import kernel
from procsched.sandbox.policy import refuse_kernel
from procsched.sandbox.promises import unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

    from procsched.sandbox.policy import Sandbox

HOME: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRATCH: Final = "/tmp"  # in a root of the sandbox's own
# Shared libraries, and what the C library and the standard library look up. Nothing here says anything about the host
# that a package list would not say.
_SYSTEM: Final = (
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
)
_DEVICES: Final = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
# Files by which the self-test sees that others cannot be read: whichever of them are there.
_OUTSIDE: Final = (
    "/etc/passwd",
    "/etc/hostname",
    "/proc/self/status",
    "/proc/1/status",
    "/dev/tty",
    "/root",
    "/home",
)


@frozen
class Interpreter:
    """How the interpreter of a sandbox is started, and what it reads.

    Args:
        python: its path.
        reads: files and directories.
        search: what is put on its `sys.path` beside its own library.
    """

    python: str
    reads: tuple[str, ...]
    search: tuple[str, ...]


def interpreter() -> Interpreter:
    """Return that of this process: not the one of a virtual environment, but the one that is based on."""
    python = getattr(sys, "_base_executable", "") or sys.executable
    if not python or not os.path.exists(python):
        raise unavailable(
            "",
            f"sys.executable is {sys.executable!r}, which is no Python interpreter to start afresh",
            "set sys.executable to one before the pool is made",
        )
    python = os.path.realpath(python)
    library = os.path.dirname(os.path.abspath(os.__file__))
    reads = [python, library, *(entry for entry in sys.path if entry.endswith("lib-dynload"))]
    for prefix in {sys.base_prefix, sys.base_exec_prefix}:
        # Where libpython and what it is linked with may be. Below /usr it is among the system's.
        reads += [os.path.join(prefix, name) for name in ("lib", "lib64") if prefix not in ("/", "/usr")]
    search = site_packages()
    there = [path for path in dict.fromkeys((*reads, *search, *_SYSTEM)) if os.path.exists(path)]
    return Interpreter(python, tuple(there), tuple(search))


def site_packages() -> list[str]:
    """Return the directories of installed packages that this process imports from."""
    import site

    found = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    on_path = {os.path.abspath(entry) for entry in sys.path}
    return [path for path in map(os.path.abspath, found) if path in on_path and os.path.isdir(path)]


def rules_of(policy: Sandbox, reads: Iterable[str], *, scratch: bool) -> list[tuple[str, int]]:
    """Return what Landlock allows, as paths with rights."""
    rules = [(path, kernel.READ) for path in (*reads, *policy.readable)]
    rules += [(path, kernel.DEVICE) for path in _DEVICES]
    rules += [(path, kernel.WRITE) for path in policy.writable]
    if scratch:
        rules.append((SCRATCH, kernel.WRITE))
    return rules


def outside_of(policy: Sandbox, reads: Iterable[str]) -> list[str]:
    """Return paths that are there and must not be readable inside."""
    inside = [os.path.realpath(path) for path in (*reads, *policy.readable, *policy.writable)]
    return [path for path in _OUTSIDE if os.path.exists(path) and not is_within(path, inside)]


def is_within(path: str, places: Iterable[str]) -> bool:
    """Return whether a path is one of those places, or below one."""
    real = os.path.realpath(path)
    return any(
        real == place or real.startswith(place.rstrip("/") + "/") for place in map(os.path.realpath, places)
    )


def check_named(policy: Sandbox) -> None:
    """Refuse paths of a policy that are not there, and places to write to from which others load code.

    Raises:
        ValidationError: naming the path.
    """
    for field in ("readable", "writable"):
        for path in getattr(policy, field):
            if not os.path.exists(path):
                raise ValidationError(f"{field} has {path!r}, which is not there")
            refuse_kernel(field, path, os.path.realpath(path))
            if policy.scratch and path == SCRATCH:
                raise ValidationError(
                    f"{field} must not hold {SCRATCH!r} where scratch= is given, whose directory is there: name what "
                    "is needed below it"
                )
    trusted = {
        "sys.path": [entry for entry in sys.path if entry],
        "the interpreter": [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix],
        "procsched itself": [os.path.join(HOME, "procsched")],
    }
    try:
        trusted["the working directory"] = [os.getcwd()]
    except OSError:  # it was removed
        trusted["the working directory"] = []
    for path in policy.writable:
        if not os.path.isdir(path):
            raise ValidationError(f"writable has {path!r}, which is no directory")
        for name, places in trusted.items():
            for place in places:
                if _places.overlap(path, place):
                    raise ValidationError(
                        f"writable has {path!r}, which holds or is in {name} ({place}): what a job writes there "
                        "would be run by others; name a directory of its own"
                    )
        store = _places.store_near(path)
        if store is not None:
            raise ValidationError(
                f"writable has {path!r}, and a durable store is there ({store}): what it holds is run as code, and its "
                "socket steers a scheduler; name a directory of its own, or keep the store elsewhere"
            )


def check_readable_by(uid: int, paths: Iterable[str]) -> None:
    """Refuse where a uid that owns nothing cannot read one of these, or not get there.

    Raises:
        SandboxUnavailableError: naming the directory.
    """
    for path in paths:
        current = "/"
        for part in os.path.realpath(path).strip("/").split("/"):
            current = os.path.join(current, part)
            mode = os.stat(current).st_mode
            wanted = stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
            if not mode & wanted:
                raise unavailable(
                    "",
                    f"uid {uid} of run_as cannot read {path}: {current} has mode {stat.S_IMODE(mode):04o}",
                    _remedy(current, os.path.realpath(path)),
                )


def _remedy(obstacle: str, path: str) -> str:
    """Return what to do about a directory in the way to a path, or about the path itself."""
    install = "use an interpreter, packages and directories that all may read, such as the system's or one below /opt"
    if is_within(obstacle, ["/root"]):
        # What root has there is nobody else's business.
        return f"{install}; or do not run the program as root"
    mode = "o+rx" if obstacle == path else "o+x"
    return f"{install}; or open this one to every user of the machine: chmod {mode} {obstacle}"
