"""Refusing names of options that nobody has, with the nearest that somebody has, and names in such errors. Pure."""

from __future__ import annotations

from types import FunctionType

from procsched.errors import UnknownOptionError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# What the same is called elsewhere: in the standard library, in other pools, in another part of procsched.
_SYNONYMS = (
    ("max_workers", "workers", "processes", "n_workers", "n_jobs", "num_workers"),
    ("max_tasks_per_child", "max_runs_per_worker", "maxtasksperchild", "max_tasks", "worker_lifespan"),
    ("max_attempts", "attempts", "tries", "retries", "max_retries"),
    ("retry", "retries", "max_retries", "max_attempts"),
    ("timeout", "time_limit", "task_timeout", "max_seconds"),
    ("period", "interval", "seconds", "every"),
    ("delay", "seconds", "pause"),
    ("tz", "timezone", "time_zone", "zone"),
    ("at", "run_at", "run_date", "when"),
    ("key", "id", "job_id"),
    ("misfire", "misfire_grace_time", "coalesce"),
    ("initial_backoff", "backoff", "wait"),
)
_ADVICE = {
    "mp_context": "leave it out: workers always come from a clean process of procsched's own; ",
    "context": "leave it out: workers always come from a clean process of procsched's own; ",
    "max_instances": "leave it out: a task never overlaps itself; ",
}
# Those of a task, where somebody asks a scheduler or a pool for them.
_OF_A_TASK = frozenset({"timeout", "soft_timeout", "grace", "retry", "retries", "priority"})


def name_after(public: type) -> None:
    """Name the methods that a public class has from its layers after it: Python names them in errors of a wrong call.

    Their module too, so that a function is found under its name.
    """
    for layer in public.__mro__[1:]:
        if not layer.__module__.startswith("procsched."):
            continue
        for name, method in vars(layer).items():
            if isinstance(method, FunctionType) and not name.startswith("_"):
                method.__qualname__ = f"{public.__qualname__}.{name}"
                method.__module__ = public.__module__


def check_names(given: Iterable[str], known: Sequence[str], *, of: str = "", hint: str = "") -> None:
    """Refuse options that nobody has, with the nearest that somebody has.

    Args:
        of: the function that was called, where that is not plain.
        hint: what else may have been meant.
    Raises:
        UnknownOptionError: naming the option.
    """
    for name in given:
        if name not in known:
            raise UnknownOptionError(
                f"unknown option {name!r}{of and ' of '}{of}; {_advice(name, known)}{hint}"
                f"known are {', '.join(sorted(known))}"
            )


def _advice(name: str, known: Sequence[str]) -> str:
    if name in _ADVICE:
        return _ADVICE[name]
    same = [each for names in _SYNONYMS if name in names for each in names if each in known]
    if not same and name in _OF_A_TASK and "clock" in known:  # those of a scheduler
        return "it belongs to a task: give it to schedule(...); "
    if not same:
        import difflib

        same = difflib.get_close_matches(name, known, 1)
    return f"did you mean {same[0]!r}? " if same else ""
