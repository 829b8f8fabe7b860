"""The life of a task, as one table: (status, event) -> status.

    SCHEDULED --start--> RUNNING --next--> SCHEDULED            a further slot is planned
    RETRYING ---start--> RUNNING --finish--> SUCCEEDED          there is none, and the run went well
                         RUNNING --retry--> RETRYING            it failed, attempts remain
                         RUNNING --fail--> FAILED               it failed, none remain
    SCHEDULED, RUNNING, RETRYING --pause--> PAUSED              a live run goes on
    PAUSED --schedule, rejoin, retry, finish, fail, cancel-->   what follows is decided at the resume
    all but the terminal --cancel--> CANCELLED
    FAILED --revive--> SCHEDULED

An attempt that ends while its task is PAUSED or CANCELLED is recorded and moves nothing (`record`).
"""

from __future__ import annotations

from enum import StrEnum

from procsched._core.models import TaskStatus
from procsched.errors import SchedulerStateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final


class TaskChange(StrEnum):
    """What can happen to a task."""

    START = "start"  # an attempt was given to a worker
    NEXT = "next"  # the run is over, a further slot is planned
    FINISH = "finish"  # the run is over and no slot is left
    RETRY = "retry"  # the attempt failed, another one is planned
    FAIL = "fail"  # the attempts are exhausted, or the schedule itself failed
    RECORD = "record"  # an attempt ended, and nothing follows from it now
    PAUSE = "pause"
    SCHEDULE = "schedule"  # resumed: waits for its slot
    REJOIN = "rejoin"  # resumed: its run is still alive
    CANCEL = "cancel"  # withdrawn by request, or nothing is left to run
    REVIVE = "revive"


_S = TaskStatus
_C = TaskChange

TRANSITIONS: Final[Mapping[TaskStatus, Mapping[TaskChange, TaskStatus]]] = {
    _S.SCHEDULED: {
        _C.START: _S.RUNNING,
        _C.FAIL: _S.FAILED,
        _C.PAUSE: _S.PAUSED,
        _C.CANCEL: _S.CANCELLED,
        _C.SCHEDULE: _S.SCHEDULED,  # slots were missed, or given back by a shutdown
        _C.FINISH: _S.SUCCEEDED,  # the last slots were missed, earlier ones ran
    },
    _S.RUNNING: {
        _C.NEXT: _S.SCHEDULED,
        _C.FINISH: _S.SUCCEEDED,
        _C.RETRY: _S.RETRYING,
        _C.FAIL: _S.FAILED,
        _C.PAUSE: _S.PAUSED,
        _C.CANCEL: _S.CANCELLED,
    },
    _S.RETRYING: {
        _C.START: _S.RUNNING,
        _C.PAUSE: _S.PAUSED,
        _C.CANCEL: _S.CANCELLED,
    },
    _S.PAUSED: {
        _C.SCHEDULE: _S.SCHEDULED,
        _C.REJOIN: _S.RUNNING,
        _C.RETRY: _S.RETRYING,
        _C.FINISH: _S.SUCCEEDED,
        _C.FAIL: _S.FAILED,
        _C.CANCEL: _S.CANCELLED,
        _C.RECORD: _S.PAUSED,
    },
    _S.SUCCEEDED: {},
    _S.FAILED: {_C.REVIVE: _S.SCHEDULED},
    _S.CANCELLED: {_C.RECORD: _S.CANCELLED},
}


def next_status(status: TaskStatus, change: TaskChange) -> TaskStatus:
    """Return the status that follows from `change`.

    Raises:
        SchedulerStateError: the table has no such transition; nothing was changed.
    """
    try:
        return TRANSITIONS[status][change]
    except KeyError:
        raise SchedulerStateError(
            f"a task that is {status.value} cannot {change.value!r}: the table of transitions has no such row"
        ) from None
