"""The options of a process pool, checked."""

from __future__ import annotations

import os

from procsched import _system
from procsched._core.checks import check_flag, waiting_seconds, whole_number
from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from procsched._core.limits import Limits


class PoolOptions:
    """What `ProcessPool` was given, in the form in which it is used. See there for the meaning."""

    __slots__ = (
        "capture_output",
        "cwd",
        "env",
        "initializer",
        "limits",
        "max_rss",
        "max_runs",
        "nice",
        "preload",
        "start_timeout",
    )

    def __init__(
        self,
        *,
        initializer: Callable[..., object] | None,
        initargs: Sequence[Any],
        preload: Sequence[str],
        max_runs_per_worker: int | None,
        max_rss_per_worker: int | None,
        env: Mapping[str, str] | None,
        cwd: str | os.PathLike[str] | None,
        nice: int | None,
        capture_output: bool,
        start_timeout: float,
        limits: Limits | None,
        confined: bool,
    ) -> None:
        if initializer is not None and not callable(initializer):
            kind = type(initializer).__name__
            raise ValidationError(
                f"initializer must be callable, not {kind} {initializer!r}: pass the function itself, without ()"
            )
        if not isinstance(initargs, (tuple, list)):
            kind = type(initargs).__name__
            raise ValidationError(
                f"initargs must be a tuple or a list, not {kind} {initargs!r}: write (value,)"
            )
        self.initializer = None
        if initializer is not None:
            from procsched.workers import managed  # here, as in `ProcessPool.pack`

            self.initializer = managed.pack(initializer, tuple(initargs), {}, apart=False)
        if not isinstance(preload, (tuple, list, set, frozenset)) or not all(
            isinstance(name, str) for name in preload
        ):
            raise ValidationError(f"preload must be a sequence of module names, not {preload!r}")
        # These as plain texts and numbers: the helper is told of them, and imports no enumeration of the user's.
        self.preload = tuple(map(str.__str__, preload))
        self.max_runs = _count("max_runs_per_worker", max_runs_per_worker)
        self.max_rss = _count("max_rss_per_worker", max_rss_per_worker)
        self.env = None if env is None else _environment(env)
        if cwd is not None and not isinstance(cwd, (str, os.PathLike)):
            raise ValidationError(f"cwd must be a path, not {type(cwd).__name__} {cwd!r}")
        self.cwd = None if cwd is None else os.path.abspath(os.fspath(cwd))
        if self.cwd is not None and not os.path.isdir(self.cwd):
            raise ValidationError(f"cwd must be a directory: {self.cwd!r} is none")
        self.nice = _niceness(nice, confined)
        check_flag("capture_output", capture_output)
        self.capture_output = capture_output
        self.start_timeout = waiting_seconds("start_timeout", start_timeout, above=True)
        if limits is not None:
            from procsched._core.limits import check_limits  # here, for most pools have none

            check_limits("limits", limits, trees_known=_system.offers("proc"))
        self.limits = limits

    def check_confined(self) -> None:
        """Refuse what a pool with a sandbox cannot have.

        Raises:
            ValidationError: naming the option.
        """
        for name, value, why in (
            ("initializer", self.initializer, "each run gets a fresh process, in which nothing else is run"),
            ("preload", self.preload or None, "each run gets a fresh process, into which nothing is forked"),
            ("max_runs_per_worker", self.max_runs, "a process runs one job and is never used again"),
            ("max_rss_per_worker", self.max_rss, "give Sandbox(memory=...)"),
            ("env", self.env, "give Sandbox(env=...)"),
            ("limits", self.limits, "a Sandbox has limits of its own: Sandbox(memory=..., cpu_seconds=...)"),
            ("cwd", self.cwd, "its working directory is its scratch directory, or /"),
        ):
            if value is not None:
                raise ValidationError(f"{name} cannot be given with sandbox=: {why}")


POOL_OPTIONS = (
    "initializer",
    "initargs",
    "preload",
    "max_runs_per_worker",
    "max_rss_per_worker",
    "env",
    "cwd",
    "nice",
    "capture_output",
    "start_timeout",
    "limits",
    "sandbox",
)


def _count(name: str, value: object) -> int | None:
    return None if value is None else whole_number(name, value)


def _niceness(nice: object, confined: bool) -> int:
    """Return what is added to the workers' niceness: what is given, or else what suits trusted or other code."""
    if nice is None:
        if not confined:
            return 0
        from procsched.sandbox.policy import NICE  # here, for most pools have no sandbox

        return NICE
    if isinstance(nice, bool) or not isinstance(nice, int) or not 0 <= nice <= 19:
        raise ValidationError(f"nice must be a whole number from 0 to 19, or None, not {nice!r}")
    return int(nice)


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    if not hasattr(env, "items"):
        raise ValidationError(
            f"env must be a mapping of texts to texts, or None, not {type(env).__name__} {env!r}"
        )
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ValidationError(f"env must map texts to texts, not {name!r} to {value!r}")
        if not name or "=" in name:
            raise ValidationError(f"a name in env must not be empty or have a '=' in it, not {name!r}")
        for text in (name, value):
            if "\0" in text:
                raise ValidationError(f"env must be without NUL characters: {name!r} is {value!r}")
            try:
                os.fsencode(text)
            except UnicodeEncodeError as error:
                raise ValidationError(
                    f"{text!r} in env cannot be put into an environment: {error}"
                ) from error
    return {str.__str__(name): str.__str__(value) for name, value in env.items()}
