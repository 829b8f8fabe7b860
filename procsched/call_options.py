"""The options of a call, checked: those of an executor, of a view of it, and of one `run`."""

from __future__ import annotations

from procsched._core.checks import check_flag
from procsched._core.models import NO_RETRY, Priority
from procsched._core.names import check_names
from procsched._core.options import check_confined, check_retry, checked_priority, checked_times
from procsched._jitter import draw
from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from procsched._core.limits import Limits


class _NotGiven:
    """The default of an option that may be None. It shows in signatures."""

    def __repr__(self) -> str:
        return "<not given>"


UNSET: Any = _NotGiven()


def refuse_sandbox(value: object) -> None:
    """Refuse a sandbox as an option of a call: it belongs to the pool."""
    if value is not None:
        raise ValidationError(
            "sandbox belongs to the pool, for what was run outside of it before could be in its way: "
            "ProcessExecutor(sandbox=...), run(..., sandbox=...)"
        )


class Options:
    """The settings of a call. Not changed once they are made: `replace` makes a changed copy."""

    __slots__ = (
        "capture_output",
        "confined",
        "grace",
        "limits",
        "name",
        "priority",
        "retry",
        "soft_timeout",
        "timeout",
    )

    def __init__(self) -> None:
        self.timeout: float | None = None
        self.soft_timeout: float | None = None
        self.grace = 0.0
        self.limits: Limits | None = None
        self.priority = Priority.NORMAL
        self.retry = NO_RETRY
        self.name = ""
        self.capture_output = False
        self.confined = False  # whether they are run in a sandbox: a property of the pool

    def replace(self, **changes: Any) -> Options:
        """Return a copy with `changes`; a value of `UNSET` changes nothing.

        Raises:
            ValidationError: naming the option.
        """
        made = Options()
        for name in Options.__slots__:
            setattr(made, name, getattr(self, name))
        for name, value in changes.items():
            if value is UNSET:
                continue
            if name in OPTIONS:
                setattr(made, name, value)
            elif name == "sandbox":
                refuse_sandbox(value)
            else:
                check_names((name,), OPTIONS)
        made._check()
        return made

    def in_sandbox(self) -> Options:
        """Return a copy for calls that are run in a sandbox.

        Raises:
            ValidationError: they have no timeout, or ask a job to stop.
        """
        made = self.replace()
        made.confined = True
        made._check()
        return made

    def _check(self) -> None:
        self.timeout, self.soft_timeout, self.grace = checked_times(
            self.timeout, self.soft_timeout, self.grace
        )
        self.priority = checked_priority(self.priority)
        check_retry(self.retry)
        if self.retry.jitter:
            draw()  # what it imports is there then: when a call has failed, no descriptor may be left
        if not isinstance(self.name, str):
            raise ValidationError(f"name must be a text, not {type(self.name).__name__} {self.name!r}")
        check_flag("capture_output", self.capture_output)
        if self.limits is not None:
            from procsched import _system  # here, for most calls have none
            from procsched._core.limits import check_limits

            check_limits("limits", self.limits, trees_known=_system.offers("proc"))
        if self.confined:
            check_confined(self.timeout, self.soft_timeout, self.grace, self.limits)

    @property
    def per_item(self) -> bool:
        """Whether each item of a `map` is an attempt of its own."""
        limited = self.timeout is not None or self.soft_timeout is not None or self.limits is not None
        return limited or self.retry.max_attempts > 1


OPTIONS = tuple(name for name in Options.__slots__ if name != "confined")
