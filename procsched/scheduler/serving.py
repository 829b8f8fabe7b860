"""What other processes ask of a scheduler through its store, and what it does when the store is not its own any more.

the store's threads --obey--> cancel, pause, ... as any thread of the program would call them
                    --lost--> a thread that ends all runs at once
"""

from __future__ import annotations

import logging
import threading
import weakref

from procsched._core.failures import describe
from procsched._logs import say
from procsched.errors import ProcschedError, SchedulerStateError, ValidationError
from procsched.scheduler.control import Control
from procsched.scheduler.driver import RUNNING
from procsched.scheduler.restarting import reason_against

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from procsched._core.models import ScheduledTask
    from procsched.stores.payloads import StoredCall

VERSION = 1  # of the form of requests


class Served(Control):
    """The scheduler as other processes see it."""

    def _serve_others(self) -> None:
        assert self._durable is not None
        # Weakly: a scheduler that was never started goes when nobody refers to it.
        self._durable.serve(_Weak(self.obey), _Weak(self._dispossess), _Weak(self._on_settled))

    def obey(self, request: Any, who: str) -> dict[str, Any]:
        """Do what a request says, and return the answer. In a thread of the store's; raises nothing."""
        try:
            answer = self._do(request)
        except ProcschedError as error:
            answer = {"error": str(error), "kind": type(error).__name__}
            if self._visiting and self._state > RUNNING and isinstance(error, SchedulerStateError):
                answer["again"] = True  # nothing was done: who asks looks who has the store then
        except Exception as error:  # a schedule of the user's, or a clock
            answer = {"error": describe(error)}
        what = request.get("what") if isinstance(request, dict) else None
        said = answer.get("error") or ("done" if answer.get("changed") else "nothing to change")
        say(logging.INFO, "%s asked for %.20r: %s", who, what, said)
        return answer

    def _do(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict) or request.get("v") != VERSION:
            raise ValidationError(
                f"the request is not of the form {VERSION}: use the same version of procsched on both sides"
            )
        what, task_id = request.get("what"), request.get("task")
        if what == "schedule":
            return {"changed": True, **_state_of(self._schedule_for_other(request))}
        if not isinstance(task_id, str):
            raise ValidationError("task must be the id of a task")
        actions: dict[Any, Callable[[], bool]] = {
            "cancel": lambda: self.cancel(task_id, kill=request.get("kill") is True),
            "kill": lambda: self.kill(task_id),
            "pause": lambda: self.pause(task_id),
            "resume": lambda: self.resume(task_id),
            "revive": lambda: self.revive(task_id),
        }
        if what not in actions:
            raise ValidationError(
                f"there is no request {what!r}; there are {', '.join(actions)} and schedule"
            )
        changed = actions[what]()
        return {"changed": changed, **_state_of(self.task(task_id))}

    def _schedule_for_other(self, request: dict[str, Any]) -> ScheduledTask:
        """Schedule what another process has sent: a call in the form in which it is stored."""
        from procsched.stores import codec
        from procsched.stores.sending import read_call

        try:
            name, key = request["name"], request.get("key")
            schedule = codec.read_schedule(request["schedule"])
            settings = codec.read_settings(request["settings"])
            call = read_call(request["call"])
            replace = request.get("replace") is True
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValidationError(f"what is to be scheduled cannot be read: {describe(error)}") from error
        reason = reason_against(call)
        if isinstance(schedule, codec.UnreadableSchedule):
            reason = schedule.reason
        if reason is not None:
            raise ValidationError(f"the scheduler could not run it: {reason}")
        action = SentCall(call)
        found: ScheduledTask = self.schedule(name, action, schedule, key=key, replace=replace, **settings)  # type: ignore[attr-defined]
        return found

    def _dispossess(self, why: str) -> None:
        """End all runs at once, and the scheduler: the store is another's, or may be in a moment."""
        text = f"this scheduler ends, with all its runs: {why}"
        say(logging.ERROR, "%s", text)
        try:
            self._report("store", text)
            with self._lock:
                for entry in self.engine.running.values():
                    if entry.live is not None and hasattr(entry.live, "grace"):
                        entry.live.grace = 0.0  # it may not last longer than the lease
            thread = threading.Thread(
                target=self.close, args=(False, 0.0), name="procsched-shutdown", daemon=True
            )
            thread.start()
        except Exception as error:  # no thread is left, say
            say(logging.ERROR, "it is ended in the store's own thread", error=error)
            self.close(False, 0.0)


class SentCall:
    """Stands for an action that another process has sent. It is opened in a worker, as what a store keeps is.

    Attributes:
        call: in the form in which it is stored.
    """

    __slots__ = ("call",)

    def __init__(self, call: StoredCall) -> None:
        self.call = call

    def described(self) -> tuple[Any, tuple[Any, ...], dict[str, Any] | None]:
        """Return what stands for action and arguments, as after a restart."""
        args, kwargs = self.call.arguments()
        return self.call.action(), args, kwargs or None

    def __call__(self) -> None:
        """Refuse: it is run in a worker."""
        raise SchedulerStateError("a call that another process has sent is not run here")


class _Weak:
    """Calls a method of an object as long as that lives."""

    __slots__ = ("_method",)

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = weakref.WeakMethod(method)

    def __call__(self, *args: Any) -> Any:
        method = self._method()
        if method is None:
            return {"error": "the scheduler is gone", "kind": SchedulerStateError.__name__, "again": True}
        return method(*args)


def _state_of(handle: ScheduledTask) -> dict[str, Any]:
    return {
        "task": handle.task.id,
        "name": handle.task.name,
        "status": handle.status.value,
        "next_run_at": handle.next_run_at,
    }
