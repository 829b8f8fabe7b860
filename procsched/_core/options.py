"""Checks of what users pass for a task: each names the parameter, the value and the remedy. Pure."""

from __future__ import annotations

from procsched._core.checks import (
    LONGEST_WAIT,
    check_flag,
    finite_seconds,
    member_of,
    unix_seconds,
    waiting_seconds,
    whole_number,
)
from procsched._core.models import Outcome, Priority, RetryPolicy
from procsched._core.names import check_names
from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Final

ON_EXHAUSTED: Final = ("dead_letter", "continue")
TASK_OPTIONS: Final = (
    "priority",
    "retry",
    "timeout",
    "args",
    "kwargs",
    "soft_timeout",
    "grace",
    "misfire",
    "max_catch_up",
    "on_exhausted",
    "limits",
    "capture_output",
    "key",
    "replace",
)
_SHORT: Final = frozenset({*TASK_OPTIONS, "name", "retries"})  # those of `schedule_at` and its kind
_PRIORITIES: Final = tuple(Priority)


class StoredArguments:
    """Stands for arguments that a store keeps as a pickle: they are opened where the task runs, and nowhere else."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<arguments in the store, which are opened in a worker only>"


def check_action(action: object) -> None:
    """Refuse what cannot be called."""
    if not callable(action):
        raise ValidationError(
            f"action must be callable, not {type(action).__name__} {action!r}: pass the function, without ()"
        )


def checked_priority(value: object) -> Priority:
    """Return a priority given as a member or as its number."""
    if type(value) is Priority:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2:
        raise ValidationError(f"priority must be Priority.HIGH, NORMAL or LOW (0, 1 or 2), not {value!r}")
    return _PRIORITIES[value]


def checked_args(args: object) -> tuple[Any, ...]:
    """Return positional arguments as a tuple."""
    if type(args) is tuple:
        return args
    if isinstance(args, (tuple, list)):
        return tuple(args)
    _refuse_stored("args", args)
    raise ValidationError(
        f"args must be a tuple or a list, not {type(args).__name__} {args!r}: write (value,)"
    )


def checked_kwargs(kwargs: object) -> dict[str, Any]:
    """Return a copy of keyword arguments; an empty one for None."""
    if kwargs is None:
        return {}
    _refuse_stored("kwargs", kwargs)
    keys = getattr(kwargs, "keys", None)
    if keys is None or not all(isinstance(key, str) for key in keys()):
        raise ValidationError(f"kwargs must be a mapping with names as keys, or None, not {kwargs!r}")
    return dict(kwargs)  # type: ignore[call-overload,no-any-return]


def _refuse_stored(name: str, value: object) -> None:
    if isinstance(value, StoredArguments):
        raise ValidationError(
            f"{name} are those of a task from the store, which keeps them as a pickle that is not opened here: give "
            "the values themselves, as your program gave them then"
        )


def check_retry(retry: object) -> None:
    """Refuse what is no retry policy."""
    if not isinstance(retry, RetryPolicy):
        raise ValidationError(
            f"retry must be a RetryPolicy, not {type(retry).__name__} {retry!r}: "
            "RetryPolicy(max_attempts=...), or NO_RETRY"
        )


def check_confined(
    timeout: float | None, soft_timeout: float | None, grace: float, limits: object = None
) -> None:
    """Refuse times and limits with which nothing can be run in a sandbox.

    Raises:
        ValidationError: naming the option.
    """
    if timeout is None:
        raise ValidationError(
            "timeout must be given for what is run in a sandbox: code that nobody trusts may never end"
        )
    for name, value in (("soft_timeout", soft_timeout), ("grace", grace or None)):
        if value is not None:
            raise ValidationError(
                f"{name} cannot be given for what is run in a sandbox: it would be asked to stop, and need not listen; "
                "it is ended at its timeout"
            )
    if limits is not None:
        raise ValidationError(
            "limits cannot be given for what is run in a sandbox, which has its own: Sandbox(memory=..., "
            "cpu_seconds=..., ...)"
        )


def check_unheld(soft_timeout: float | None, grace: float, capture_output: bool, pool: str) -> None:
    """Refuse what nothing would do for a run in a thread of this process.

    Args:
        pool: name of the pool's class.
    Raises:
        ValidationError: naming the option.
    """
    ask = "a thread can neither be asked to stop nor ended"
    for name, given, reason in (
        ("soft_timeout", soft_timeout is not None, ask),
        ("grace", grace > 0, ask),
        ("capture_output", capture_output, "what a thread writes goes where this process writes"),
    ):
        if given:
            raise ValidationError(
                f"{name} cannot be kept by a {pool}: {reason}; leave it out, or use Scheduler(pool=ProcessPool(...))"
            )


def check_rest(
    retry: object, on_exhausted: object, max_catch_up: object, limits: object, capture_output: object
) -> None:
    """Refuse wrong values of the options that are taken as they are."""
    if (
        type(retry) is RetryPolicy
        and on_exhausted == "dead_letter"
        and max_catch_up == 100
        and limits is None
        and capture_output is False
    ):
        return  # what nearly every call gives
    check_retry(retry)
    if on_exhausted not in ON_EXHAUSTED:
        raise ValidationError(f'on_exhausted must be "dead_letter" or "continue", not {on_exhausted!r}')
    whole_number("max_catch_up", max_catch_up)
    if limits is not None:
        from procsched._core.limits import check_limits  # here, for most programs never need it

        check_limits("limits", limits)
    check_flag("capture_output", capture_output)


def checked_times(
    timeout: object, soft_timeout: object, grace: object
) -> tuple[float | None, float | None, float]:
    """Return timeout, soft timeout and grace in seconds, at most `LONGEST_WAIT` each."""
    if timeout is None and soft_timeout is None and grace == 0.0 and type(grace) is float:
        return None, None, 0.0
    hard = None if timeout is None else finite_seconds("timeout", timeout, above=True)
    soft = None if soft_timeout is None else finite_seconds("soft_timeout", soft_timeout, above=True)
    if hard is not None and soft is not None and soft >= hard:
        raise ValidationError(
            f"soft_timeout must be less than timeout, not {soft:g} with a timeout of {hard:g} seconds: "
            "it is the earlier one, at which the task is asked to stop"
        )
    # What is longer no timer of the kernel takes.
    hard, soft = (None if each is None else min(each, LONGEST_WAIT) for each in (hard, soft))
    return hard, soft, waiting_seconds("grace", grace)


def name_of(action: Any) -> str:
    """Return the name of a function, of the function in a partial, or of an object's type."""
    check_action(action)
    while not hasattr(action, "__name__") and callable(getattr(action, "func", None)):
        action = action.func
    name = getattr(action, "__name__", None)
    return name if isinstance(name, str) and name else type(action).__name__


def refuse_unknown(unknown: Iterable[str], known: Iterable[str], method: str) -> None:
    """Refuse options of a task that there are not; they may have been meant for its function."""
    for name in unknown:
        hint = f"an argument of the function goes into args=(...,) or kwargs={{{name!r}: ...}}; "
        check_names((name,), tuple(known), of=method, hint=hint)


def refuse_positional(more: tuple[object, ...], method: str) -> None:
    """Refuse further positional arguments, which are mostly meant for the function."""
    raise ValidationError(
        f"{method} takes no {more[0]!r} there: arguments of the function go into args=({more[0]!r}, ...), "
        "and options are given by name"
    )


def take_convenience(options: dict[str, Any], action: Any, more: tuple[object, ...], method: str) -> str:
    """Turn options of `schedule_at` and its kind, which know `retries`, into those of `schedule`. Return the name."""
    if more:
        refuse_positional(more, method)
    if not options.keys() <= _SHORT:
        refuse_unknown(options, _SHORT, method)
    name = options.pop("name", None)
    retries = options.pop("retries", None)
    if retries is not None:
        if "retry" in options:
            raise ValidationError("give either retries=n or retry=RetryPolicy(...), not both")
        options["retry"] = RetryPolicy(whole_number("retries", retries, 0) + 1, 1.0, 1.0)
    else:
        options.setdefault("retry", _NO_RETRY)
    return name_of(action) if name is None else name


_NO_RETRY: Final = RetryPolicy(max_attempts=1)


def checked_search(
    outcome: object, since: Any, limit: int, now: Callable[[], float]
) -> tuple[Outcome | None, float | None]:
    """Return which records are asked for: with which outcome, and since when in UNIX seconds.

    Args:
        outcome: a member or its value; None for any.
        since: UNIX seconds, an aware datetime, or a timedelta back from `now`; None for any time.
        limit: at most so many.
    Raises:
        ValidationError: naming the parameter.
    """
    found = None if outcome is None else member_of(Outcome, "outcome", outcome)
    if since is not None:
        if hasattr(since, "total_seconds"):
            since = now() - finite_seconds("since", since)
        else:
            since = unix_seconds("since", since, ", a timedelta back from now")
    whole_number("limit", limit)
    return found, since
