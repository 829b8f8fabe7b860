"""`dump()`: all that schedulers and executors of this process are at, as text, with the stack of every thread.

It is for when something is wrong, so it relies on little. Of each lock of ours it gives up after a moment, says who has
it, and reads on without: under the GIL a copy of a list or a dictionary is whole, though what two of them say may not
fit together then. What cannot be read is said, and the rest is written.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import time

from procsched import _frames
from procsched._core.health import STUCK_AFTER
from procsched._parts import Inspection
from procsched.diagnosis import labelled, owners
from procsched.errors import SchedulerStateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, TextIO

    from procsched._core.entries import Entry
    from procsched.calls import Core
    from procsched.scheduler import Scheduler

LOCK_WAIT = 0.1  # seconds, for each lock
ENTRIES = 200  # of each kind that are shown (due, ready, waiting); how many were left out is said

_TASK_STATES = ("new", "starting", "running", "closing", "closed")


def dump(file: TextIO | None = None) -> None:
    """Write down everything: workers with their calls, what is due, waits or runs, deadlines, threads and their stacks.

    It waits for no lock of ours longer than a tenth of a second, and says which it could not have. Nothing that users
    gave is called: no clock, no schedule, no `__repr__` of an argument.

    Args:
        file: where to write; standard error by default. Writing may block, as it does anywhere.
    Thread safety: call from anywhere, also from a signal handler that has interrupted one of our own steps.
    """
    _write("\n".join(_lines()) + "\n", sys.stderr if file is None else file)


def dump_on_signal(signum: int, file: TextIO | None = None) -> Callable[[], None]:
    """Have `dump` called whenever this process is sent the signal `signum`, ``signal.SIGUSR1`` say.

    Nothing in procsched does so unless it is asked to. The handler that is there is replaced. Python runs handlers in
    the main thread, between two steps of it: where that sits in one long call of a C library, the dump comes when it
    returns. `faulthandler.register` of the standard library waits for nothing, and shows the stacks alone.

    Args:
        file: as for `dump`.
    Returns:
        What puts the former handler back; from the main thread too.
    Raises:
        SchedulerStateError: this is not the main thread, which alone may set handlers.
        ValueError, OSError: there is no such signal, or it cannot be caught.
    """
    import signal
    import traceback  # noqa: F401, now: a handler should not have to import

    if threading.current_thread() is not threading.main_thread():
        raise SchedulerStateError(
            "dump_on_signal must be called in the main thread: Python sets handlers there only"
        )

    def on_signal(_signum: int, _frame: object) -> None:
        dump(file)

    former = signal.signal(signum, on_signal)

    def restore() -> None:
        # None: it was not set from Python, and cannot be put back from here.
        if signal.getsignal(signum) is on_signal and former is not None:
            signal.signal(signum, former)

    return restore


def _write(text: str, file: TextIO | None) -> None:
    if file is None:
        return  # a process without standard error
    try:
        file.write(text)
        file.flush()
    except RuntimeError:
        # The signal handler that calls us has interrupted a write to the very same file (io, "reentrant call").
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(file.fileno(), data) :]


def _lines() -> Iterator[str]:
    found = labelled(owners())
    frames = sys._current_frames()
    yield f"=== procsched in process {os.getpid()}, {time.strftime('%Y-%m-%d %H:%M:%S %z')}"
    if not found:
        yield "no scheduler and no executor is running"
    for label, owner in found:
        yield ""
        yield f"--- {label}"
        inspection = Inspection(label, STUCK_AFTER, frames)
        yield from _guarded(_parts, owner, inspection)
        yield from _guarded(_scheduler if owner.kind == "scheduler" else _executor, owner)
        yield from _guarded(_workers, owner)
    yield ""
    yield f"--- {len(frames)} threads"
    yield from _frames.stacks()


def _guarded(section: Callable[..., Iterator[str]], *args: Any) -> Iterator[str]:
    """Yield the lines of a section; what was torn by whom we have interrupted must not hide the other sections."""
    try:
        yield from section(*args)
    except Exception as error:
        yield f"  (the rest of this part could not be read: {type(error).__name__}: {error})"


def _parts(owner: Any, inspection: Inspection) -> Iterator[str]:
    owner.inspect(inspection)
    for part in inspection.parts:
        yield f"  {str(part).removeprefix(f'{part.owner}, ')}"
    for text in owner.recent_problems():
        yield f"  lately: {text}"


def _read(lock: Any, name: str, read: Callable[[], Any]) -> tuple[Any, str]:
    """Return what `read` returns, if it can be with the lock held, and what is to be said of that."""
    if lock.acquire(timeout=LOCK_WAIT):
        try:
            return read(), ""
        finally:
            lock.release()
    ident = _frames.holder(lock)
    who = _frames.names().get(ident or 0, f"with ident {ident}")
    place = _frames.where(ident) or "a place that cannot be seen"
    return (
        read(),
        f"  (read without the lock of the {name}, which thread {who} holds in {place}: it may be torn)",
    )


# --- the pool --------------------------------------------------------------------------------------------------


def _workers(owner: Any) -> Iterator[str]:
    pool = owner.pool
    if not hasattr(pool, "fleet"):
        yield from _local(pool)
        return
    workers, torn = _read(pool.lock, "pool", lambda: list(pool.fleet.workers.values()))
    yield f"  workers: {len(workers)}, at most {pool.size} run at once"
    if torn:
        yield torn
    now = time.monotonic()
    for worker in workers:
        text = f"    pid {worker.pid}: {worker.state.value}, {now - worker.born_at:.1f} s old, {worker.runs} runs"
        call, ahead = worker.call, len(worker.ahead)
        if call is not None:
            text += f"; {_call(call)}, for {now - worker.turned_at:.1f} s{_deadline(worker, pool, now)}"
            if call.verdict is not None:
                text += f", to end as {call.verdict[0].value}: {call.verdict[1]}"
        if ahead:
            text += f", {ahead} sent ahead"
        yield text


def _call(call: Any) -> str:
    name = call.name or getattr(getattr(call, "future", None), "_name", "") or "a call"
    task = f"{call.task_id} ({name})" if call.task_id else name
    return f"{task}, run {call.run}, attempt {call.attempt}"


def _deadline(worker: Any, pool: Any, now: float) -> str:
    parts = []
    for word, at, fake in (
        ("soft limit", worker.soft_at, worker.fake_soft),
        ("deadline", worker.hard_at, worker.fake_hard),
    ):
        if pool.real_clock and at < math.inf:
            parts.append(f", {word} in {at - now:.1f} s")
        elif not pool.real_clock and fake < math.inf:
            parts.append(f", {word} when the clock's awake() says {fake:.1f}")
    return "".join(parts) or ", no deadline"


def _local(pool: Any) -> Iterator[str]:
    from procsched.workers.local import LocalPool

    if not isinstance(pool, LocalPool):
        yield f"  the pool is a {type(pool).__name__}, of which nothing is known here"
        return
    running, torn = _read(pool._lock, "pool", lambda: dict(pool._calls))
    yield f"  {type(pool).__name__}: {len(running)} of at most {pool.size} calls run"
    if torn:
        yield torn
    names = _frames.names()
    for ident, call in running.items():
        limit = (
            "no limit"
            if call.timeout is None
            else f"limit {call.timeout} s, which cannot be enforced in a thread"
        )
        yield f"    thread {names.get(ident, ident)}: {_call(call)}, {limit}"


# --- a scheduler -----------------------------------------------------------------------------------------------


def _scheduler(scheduler: Scheduler) -> Iterator[str]:
    engine = scheduler.engine

    def copy() -> tuple[Any, ...]:
        return (
            list(engine.due.steady.items),
            list(engine.due.wall.items),
            list(engine.ready.items),
            list(engine.running.values()),
            dict(engine.counters),
            len(engine.entries),
        )

    (steady, wall, ready, running, counters, tasks), torn = _read(scheduler._lock, "scheduler", copy)
    yield f"  {_TASK_STATES[scheduler._state]}, {tasks} tasks"
    if torn:
        yield torn
    yield f"  counters: {_counters(counters)}"
    yield f"  running: {len(running)}"
    for entry in running:
        yield f"    {_entry(entry)}, run {entry.run}, attempt {entry.attempt}"
    ready = [item for item in ready if item[3] == item[4].generation]
    yield f"  ready, waiting for a worker: {len(ready)}"
    yield from _first(ready, lambda item: f"{_entry(item[4])}, priority {int(item[0])}")
    last_line, last_wall = engine._last_line, engine._last_wall
    for line, items, now in (("steady", steady, last_line), ("wall", wall, last_wall)):
        items = [item for item in items if item[3] == item[4].generation]
        if items:
            # The clock is the user's, and may be what is stuck: so by its last reading.
            yield f"  due by the {line} clock: {len(items)}; seconds from when it was last looked at"
            yield from _first(items, functools.partial(_due, now))


def _due(now: float, item: Any) -> str:
    return f"{_entry(item[4])}, in {item[0] - now:.3f} s"


def _entry(entry: Entry) -> str:
    task = entry.handle.task
    return f"{task.id} ({task.name}), {entry.status.value}"


def _first(items: list[Any], text: Callable[[Any], str]) -> Iterator[str]:
    import heapq

    for item in heapq.nsmallest(ENTRIES, items, key=lambda item: item[:3]):
        yield f"    {text(item)}"
    if len(items) > ENTRIES:
        yield f"    and {len(items) - ENTRIES} more"


def _counters(counters: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counters.items() if count) or "all are 0"


# --- an executor -----------------------------------------------------------------------------------------------


def _executor(core: Core) -> Iterator[str]:
    def copy() -> tuple[Any, ...]:
        return [list(queue) for queue in core.queues], dict(core.counters), list(core.resting), core.attempts

    (queues, counters, resting, attempts), torn = _read(core.lock, "pool", copy)
    state = "ending" if core.finishing else "takes no more calls" if core.refused else "running"
    yield f"  {state}, {len(core.open)} calls open, {attempts} attempts started"
    if torn:
        yield torn
    yield f"  counters: {_counters(counters)}"
    for priority, queue in enumerate(queues):
        waiting = [item for item in queue if not item.cancelled]
        if waiting:
            yield f"  waiting with priority {priority}: {len(waiting)}"
            yield from (f"    {_call(item)}" for item in waiting[:ENTRIES])
            if len(waiting) > ENTRIES:
                yield f"    and {len(waiting) - ENTRIES} more"
    for item in resting:
        yield f"  waiting for its next attempt: {_call(item)}"
