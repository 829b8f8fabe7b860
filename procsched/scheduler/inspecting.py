"""How the threads of a scheduler are, for `health()`. Reads what they write down, without a lock."""

from __future__ import annotations

from procsched.scheduler.driver import NEW
from procsched.scheduler.timing import TimedDriver

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._parts import Inspection


class InspectedDriver(TimedDriver):
    """The driver with what `diagnosis.py` and `dumping.py` ask of it."""

    kind = "scheduler"

    def inspect(self, inspection: Inspection) -> None:
        """Say how the threads and processes are. Takes no lock."""
        if self._forked or self._state == NEW:
            return
        inspection.add_thread(
            "timer", self._timer, self._timer_since, self._timer_failing, self._timer_failing_since
        )
        for part in (self.pool, self.delivery, self.writer):
            inspect = getattr(part, "inspect", None)  # a pool of the user's, and a store in memory, have none
            if inspect is not None:
                inspect(inspection)
        locks = [
            ("scheduler", self._lock),
            ("listeners", self.delivery.lock),
            ("pool", getattr(self.pool, "lock", None)),
        ]
        inspection.add_locks(locks)

    def recent_problems(self) -> tuple[str, ...]:
        """Return what went wrong lately, in words."""
        return tuple(self._problems)
