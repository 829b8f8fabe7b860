"""How the thread and the processes of a pool are, for `health()`. Reads what their owners write, without a lock."""

from __future__ import annotations

from procsched import _system
from procsched._core.backoff import MOST_EARLY_DEATHS
from procsched._core.health import decide_state
from procsched.workers.sending import WorkerState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from procsched._parts import Inspection
    from procsched.workers.fleet import Fleet
    from procsched.workers.launcher import Launcher
    from procsched.workers.pool import ProcessPool

# What the kernel says of a process that does nothing for anybody (proc(5), state).
_HELD = {"T": "stopped by a signal", "t": "held by a debugger", "D": "waiting in the kernel", "Z": "dead"}


def inspect(pool: ProcessPool, inspection: Inspection) -> None:
    """Say how the I/O thread, helper, guard and workers of a pool are."""
    inspection.add_thread("I/O thread", pool.loop.thread, pool.loop.busy_since)
    fleet = pool.fleet
    launcher = fleet.launcher
    if launcher is not None:
        _inspect_helper(launcher, inspection)
    _inspect_starts(fleet, inspection)
    for worker in list(fleet.workers.values()):
        if worker.state is WorkerState.DYING and worker.killed_at:
            seconds = inspection.now - worker.killed_at
            if seconds >= inspection.stuck_after:
                inspection.add(f"worker {worker.pid}", "stuck", seconds, None, "not gone since its SIGKILL")


def _inspect_helper(launcher: Launcher, inspection: Inspection) -> None:
    since = min(list(launcher.unanswered.values()), default=0.0)
    for name, pid in (("guard", launcher.guard_pid), ("helper", launcher.helper_pid)):
        if pid is None:
            seconds = inspection.now - launcher.started_at
            inspection.add(name, "starting", seconds, None, "it imports what preload= names")
            continue
        held = _HELD.get(_system.state_of(pid), "")
        if held:
            seen = launcher.held_since.setdefault(pid, inspection.now)
            if name == "helper" and since:
                seen = min(seen, since)
            # At the first look nobody knows since when.
            inspection.add(name, "stuck", inspection.now - seen, None, f"process {pid} is {held}")
            continue
        launcher.held_since.pop(pid, None)
        if name == "guard":
            inspection.add(name, "idle")
            continue
        state, seconds = decide_state(since, inspection.now, inspection.stuck_after)
        detail = f"process {pid} does not answer" if state == "stuck" else ""
        inspection.add(name, state, seconds, None, detail)


def _inspect_starts(fleet: Fleet, inspection: Inspection) -> None:
    backoff = fleet.backoff
    failures, deaths = backoff.failures, backoff.early_deaths
    if deaths >= MOST_EARLY_DEATHS and any(worker.runs for worker in list(fleet.workers.values())):
        deaths = 0
    if failures or deaths >= MOST_EARLY_DEATHS:
        wait = max(0.0, backoff.not_before - inspection.now)
        inspection.add(
            "worker starts",
            "failing",
            inspection.now - backoff.since,
            None,
            f"{failures or deaths} in a row, the next in {wait:.1f} s at the earliest: {backoff.last}",
        )
