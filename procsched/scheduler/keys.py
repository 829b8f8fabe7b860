"""Scheduling again under a key that is there: what is the same, and what the program gives otherwise by now.

With no lock held: what is compared may be the user's.
"""

from __future__ import annotations

from procsched.child.stored import REFERENCE
from procsched.errors import TaskSerializationError
from procsched.scheduler.serving import SentCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from procsched._core.models import ScheduledTask
    from procsched.protocols import Schedule
    from procsched.stores.payloads import StoredCall


def is_same_schedule(old: Schedule, new: Schedule, *, stored: bool) -> bool:
    """Return whether two schedules are the same, as far as they tell.

    Args:
        stored: whether there is a durable store, which knows them as texts.
    """
    if type(old) is not type(new):
        return False
    try:
        if old == new:
            return True
        if not stored:
            return False
        from procsched.stores.codec import schedule_text

        return schedule_text(old) == schedule_text(new)
    except Exception:
        return False  # what is wrong with the new one is said where it is stored


def changed_settings(
    kept: ScheduledTask,
    given: Mapping[str, Any],
    action: Any,
    args: tuple[Any, ...],
    named: dict[str, Any] | None,
) -> list[str]:
    """Return the names of what is given otherwise than the task has it that is kept.

    Args:
        given: by its names in `Task`.
        action, args, named: the call. It is compared where the task is one from the store.
    """
    task = kept.task
    changed = [name for name, value in given.items() if getattr(task, name) != value]
    call = _comparable(kept, action, args, named)
    if call is None:
        return changed
    stored: StoredCall | None = getattr(task.action, "call", None)  # None where it never runs again
    if call.describe() != task.action:
        changed.append("action")
    elif stored is not None and not call.is_like(stored):
        changed.append("args or kwargs" if call.kind == REFERENCE else "code or arguments")
    return changed


def _comparable(
    kept: ScheduledTask, action: Any, args: tuple[Any, ...], named: dict[str, Any] | None
) -> StoredCall | None:
    """Return the stored form of a call, where a task from the store can be compared with that."""
    if callable(kept.task.action):
        return None
    if type(action) is SentCall:
        return action.call
    from procsched.stores.payloads import store_call

    try:
        return store_call(action, args, named or {})
    except TaskSerializationError:
        return None  # this call changes nothing
