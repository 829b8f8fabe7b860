"""The steady line: one time scale for rates and delays that no step of the wall clock can bend. Pure.

A point on the line is the wall time at its creation plus the steady seconds since. As long as nobody sets
the clock, line and wall are the same; after that they differ by `offset`.
"""

from __future__ import annotations

STEP_SECONDS = 0.1  # a smaller change is the slewing of NTP, or the time between two readings
SLEEP_SECONDS = 0.5  # a smaller gap is the time between two readings


class Timeline:
    """Wall time at creation plus steady seconds since, and what has happened to the clocks meanwhile.

    Args:
        wall, steady, awake: the three readings of the clock, taken together, in seconds; `awake` is
            `steady` where it is not given.
    Attributes:
        offset: wall minus line, in seconds; exactly 0.0 until a step is noticed.
    Thread safety: none of its own.
    """

    __slots__ = ("_gap", "_steady", "_wall", "offset")

    def __init__(self, wall: float, steady: float, awake: float | None = None) -> None:
        self._wall = wall
        self._steady = steady
        self._gap = 0.0 if awake is None else steady - awake
        self.offset = 0.0

    def line(self, steady: float) -> float:
        """Return the point of the line at the steady time `steady`."""
        return self._wall + (steady - self._steady)

    def notice(self, now: float, steady: float) -> float | None:
        """Compare the clocks. Return the size of a step of the wall clock in seconds, or None.

        Args:
            now: wall time, UNIX seconds.
            steady: steady seconds of the same moment.
        Returns:
            How far the wall clock was set, positive for forward, where it is more than `STEP_SECONDS`;
            `offset` has taken it up.
        """
        offset = now - self.line(steady)
        step = offset - self.offset
        if abs(step) <= STEP_SECONDS:
            return None
        self.offset = offset
        return step

    def asleep(self, steady: float, awake: float) -> float:
        """Return how many seconds the system slept since the last look; 0.0 for up to `SLEEP_SECONDS`.

        Args:
            steady: steady seconds, which count time asleep.
            awake: those that do not, of the same moment.
        """
        slept = (steady - awake) - self._gap
        if slept <= SLEEP_SECONDS:
            return 0.0
        self._gap += slept
        return slept
