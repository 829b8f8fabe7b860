"""What follows from a failed attempt: another one after a wait, or the end of the run. Pure."""

from __future__ import annotations

from procsched._core.models import Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

    from procsched._core.models import RetryPolicy

# KILLED is not among them: who ends a run by request does not want it again (a shutdown does: see below).
RETRIED: Final = frozenset(
    {Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CRASHED, Outcome.LIMIT_EXCEEDED, Outcome.LOST}
)


def decide_retry(
    policy: RetryPolicy, outcome: Outcome, attempt: int, draw: float, *, by_shutdown: bool = False
) -> float | None:
    """Return the seconds to wait before the next attempt, or None where the run is over.

    Args:
        policy: the task's.
        outcome: how attempt number `attempt` (from 1) ended.
        draw: a random number from 0 to 1, which the jitter is made of.
        by_shutdown: a KILLED attempt was ended by a shutdown; then it counts as failed, so that a restart
            goes on with the next attempt.
    """
    if outcome not in RETRIED and not (by_shutdown and outcome is Outcome.KILLED):
        return None
    if not policy.should_retry(attempt):
        return None
    return jittered(policy.backoff(attempt), policy.jitter, draw)


def jittered(seconds: float, jitter: float, draw: float) -> float:
    """Return `seconds`, lengthened or shortened by up to the part `jitter` of itself; never negative.

    A `draw` of 0.5 leaves it as it is, 0 gives the shortest wait and 1 the longest.
    """
    if jitter == 0.0:
        return seconds
    return max(0.0, seconds * (1.0 + jitter * (2.0 * draw - 1.0)))
