"""What runs of the simulation are to cover: a kind that never happens is not tested."""

from __future__ import annotations

from collections import Counter

KINDS = (
    # What children, the helper and the guard do.
    *(f"{kind} at the deadline" for kind in ("return", "raise", "signal", "hang", "answering")),
    *(
        "answers in two pieces",
        "asked to stop",
        "backstop",
        "dies before it begins",
        "dies when it has answered",
    ),
    *("dumps its stack", "eof", "half", "garbage", "soft timeout raised", "killed while it runs"),
    *("fork fails", "no guard", "helper dies", "helper hangs", "helper lost"),
    # What the pool does.
    *("handed over", "sent ahead", "taken back", "begins ahead of the scheduler", "overtaken for a moment"),
    "out of time before it is begun",
    *(f"pool: {each}_workers" for each in ("left", "killed", "crashed", "lost")),
    *(
        f"pool: {each}"
        for each in ("recycled", "respawned", "start_failures", "helper_restarts", "late_results")
    ),
    "pool: unkillable",
    # What the scheduler says.
    *(f"outcome {each}" for each in ("succeeded", "failed", "timed_out", "crashed", "killed", "lost")),
    *(
        f"to {each}"
        for each in ("scheduled", "running", "succeeded", "retrying", "failed", "paused", "cancelled")
    ),
    *(f"event {each}" for each in ("status", "progress", "missed", "clock", "store", "health")),
    *(
        f"scheduler: {each}"
        for each in ("missed", "skipped", "returned", "retried", "late_results", "schedule_errors")
    ),
    # What users do.
    *(f"schedule {each}" for each in ("once", "after", "rate", "delay", "cron", "foreign")),
    *(
        "cancel",
        "cancel and kill",
        "kill",
        "a kill that ends a run",
        "pause",
        "resume",
        "revive",
        "burst",
        "resume an urgent one",
        "wake",
    ),
    *(
        "set the clock",
        "suspend",
        "wait",
        "wait until idle",
        "look at the figures",
        "shutdown",
        "shutdown joined",
    ),
    *("a listener raises", "a listener shuts down", "events lost by a listener", "the store raises"),
    "a schedule is slow",
)


def never(seen: Counter[str]) -> list[str]:
    """Return the kinds that have not happened."""
    return [kind for kind in KINDS if not seen[kind]]
