"""The process that is tormented: a scheduler and an executor under a mixed load, and what they tell.

`python -m tests.soak.subject CONFIG`, started by the saboteur. It ends the load when that says so on its
standard input, waits until everything has ended, shuts both down, and writes what is left of it to the report.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import itertools
import json
import logging
import os
import random
import signal
import sys
import threading
import time
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from procsched import (
    NO_RETRY,
    CronSchedule,
    ExecutionRecord,
    FixedDelay,
    FixedRate,
    LimitExceededError,
    OneTime,
    OverrunPolicy,
    Priority,
    ProcessExecutor,
    RetryPolicy,
    ScheduledTask,
    Scheduler,
    TaskEvent,
    TaskKilledError,
    TaskLostError,
    TaskNotFoundError,
    TaskTimeoutError,
    WorkerCrashedError,
)
from procsched.future import ProcessFuture
from tests import support
from tests.soak import actions

MOST_OPEN = 40  # tasks, and calls, that have not ended
SETTLE = 90.0  # seconds in which everything has to end once nobody torments it any more
QUICK_RETRY = RetryPolicy(3, initial_backoff=0.01, max_backoff=0.05, jitter=0.5)
LARGE = (200 << 10, 4 << 20)  # bytes of an argument
MAPPED = 60  # items of one map
KINDS = {  # of tasks and calls, with their weights
    "brief": 30,
    "nap": 15,
    "file": 5,
    "print": 4,
    "progress": 3,
    "fail": 6,
    "crash": 5,
    "hang": 6,
    "soft": 2,
    "garble": 4,
    "leave": 4,
    "dirty": 2,
    "clean_up": 2,
    "leave_by": 2,
}


class Ledger:
    """What the subject was told, in a file that stays open. From any thread: a line is one write."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, *words: object) -> None:
        """Append a line."""
        os.write(self._fd, (" ".join(map(str, words)).replace("\n", " ")[:500] + "\n").encode())

    def record(self, key: str, record: ExecutionRecord) -> None:
        """Write down a record."""
        self.write("A", key, record.run, record.attempt, record.outcome.value, record.error or "")

    def close(self) -> None:
        os.close(self._fd)

    def on_task_event(self, event: TaskEvent) -> None:
        """Hear from the scheduler."""
        if event.record is not None:
            self.record(event.task_id, event.record)
        if event.kind == "status":
            self.write("T", event.task_id, event.status.value)


class TroubledStore:
    """A store whose calls take their time, or raise, in phases."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.calls = self.failures = 0

    def commit(self, changes: Sequence[tuple[ScheduledTask, ExecutionRecord | None]]) -> None:
        self.calls += 1
        if self.calls % 200 < 20:
            time.sleep(self.dice.uniform(0.0, 0.05))
            if self.dice.random() < 0.5:
                self.failures += 1
                raise OSError("the store is not at home")

    def save(self, task: ScheduledTask) -> None:
        self.commit([(task, None)])

    def delete(self, task_id: str) -> None:
        self.commit([])

    def load_all(self) -> Iterable[ScheduledTask]:
        return []


class Load:
    """Both faces, what is open on them, and the dice."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.dice = random.Random(config["seed"])
        self.marks = config["marks"]
        self.ledger = Ledger(config["ledger"])
        self.store = TroubledStore(config["seed"])
        half = max(1, config["workers"] // 2)
        options: dict[str, Any] = {"preload": ("tests.soak.actions",), "start_timeout": 10.0}
        self.executor = ProcessExecutor(config["workers"] - half or 1, **options)
        self.scheduler = Scheduler(
            half,
            listeners=[self.ledger],
            store=self.store,
            keep_finished=100,
            history_limit=5,
            dead_letter_limit=100,
            **options,
        )
        self.tasks: deque[ScheduledTask] = deque()
        self.recurring: list[ScheduledTask] = []
        self.calls: list[tuple[str, str, ProcessFuture[Any], Any]] = []
        self.numbers = itertools.count(1)
        self.refusals: Counter[str] = Counter()
        self.stop = threading.Event()
        self.mapper = threading.Thread(target=self.map_on, name="mapper", daemon=True)

    def run(self) -> None:
        """Keep the load up until it is to stop."""
        self.scheduler.start()
        self.start_recurring()
        self.mapper.start()
        while not self.stop.is_set():
            self.step()
            self.stop.wait(self.dice.expovariate(60.0))

    def step(self) -> None:
        """Submit or cancel something, and look at what has ended."""
        self.collect()
        lot = self.dice.random()
        try:
            if lot < 0.45:
                if sum(not task.status.is_terminal for task in self.tasks) < MOST_OPEN:
                    self.schedule_one()
            elif lot < 0.9:
                if len(self.calls) < MOST_OPEN:
                    self.submit_one()
            elif lot < 0.95:
                self.cancel_one()
            else:
                self.pause_one()
        except (
            OSError,
            RuntimeError,
            MemoryError,
            TaskNotFoundError,
        ) as error:  # the last: finished, and forgotten
            self.refusals[type(error).__name__] += 1

    # -- the scheduler ---------------------------------------------------------------------------------------

    def start_recurring(self) -> None:
        schedules = [
            FixedRate(0.25),
            FixedRate(0.1, OverrunPolicy.CATCH_UP),
            FixedDelay(0.2),
            FixedDelay(0.0),
            CronSchedule("* * * * * *"),
            CronSchedule("*/2 * * * * *", tz="Europe/Berlin"),
        ]
        for number, schedule in enumerate(schedules):
            self.recurring.append(
                self.schedule(
                    "any",
                    actions.act,
                    (self.marks, "any", 1, f"{self.config['locks']}/{number}"),
                    schedule=schedule,
                    retry=QUICK_RETRY,
                    on_exhausted="continue",
                    timeout=0.5,
                    grace=self.dice.choice((0.0, 0.05)),
                    max_catch_up=3,
                    priority=self.dice.choice(list(Priority)),
                )
            )

    def schedule(self, kind: str, action: Any, args: tuple[Any, ...], **options: Any) -> ScheduledTask:
        options.setdefault("schedule", OneTime(0.0))
        task = self.scheduler.schedule(kind, action, args=args, **options)
        self.ledger.write("S", task.id, kind)
        return task

    def schedule_one(self) -> None:
        kind, action, args, options = self.draw()
        if self.dice.random() < 0.3:
            options["schedule"] = OneTime(time.time() + self.dice.uniform(-1.0, 1.0))
        self.tasks.append(self.schedule(kind, action, args, **options))

    def draw(self) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]]:
        """Return a kind, an action, its arguments, and the options of the task or the call."""
        dice = self.dice
        kind = dice.choices(list(KINDS), list(KINDS.values()))[0]
        options: dict[str, Any] = {"priority": dice.choices(list(Priority), (1, 6, 1))[0], "retry": NO_RETRY}
        limit = dice.uniform(0.05, 0.6)
        grace = dice.choice((0.0, 0.0, 0.02, 0.2))
        if kind in ("fail", "crash", "brief", "nap") and dice.random() < 0.5:
            options["retry"] = QUICK_RETRY
        if kind in ("hang", "garble", "leave"):
            options |= {"timeout": limit, "grace": grace}
        elif kind == "clean_up":
            options |= {"timeout": limit, "grace": 0.2}
        elif kind == "soft":
            options["soft_timeout"] = limit
        elif dice.random() < 0.2:
            options["timeout"] = 30.0
        if kind == "print" or dice.random() < 0.05:
            options["capture_output"] = True
        if kind == "clean_up":
            return kind, actions.clean_up, (self.marks,), options
        if kind == "leave_by":
            how = dice.choice(("exit", "interrupt", "thread", "return"))
            return kind, actions.leave_by, (self.marks, how), options
        return kind, actions.act, (self.marks, kind, dice.choice((2, 3, 9))), options

    # -- the executor ----------------------------------------------------------------------------------------

    def submit_one(self) -> None:
        if self.dice.random() < 0.1:
            data = self.dice.randbytes(1000) * (self.dice.randrange(*LARGE) // 1000)
            self.submit(
                "echo", actions.echo, (self.marks, data), {}, (zlib.crc32(data), zlib.crc32(data[::-1]))
            )
            return
        kind, action, args, options = self.draw()
        if self.dice.random() < 0.2:  # by value
            known = action
            self.submit(kind, lambda: known(*args), (), options, None)
        else:
            self.submit(kind, action, args, options, None)

    def submit(
        self, kind: str, action: Any, args: tuple[Any, ...], options: dict[str, Any], expected: Any
    ) -> None:
        key = f"call-{next(self.numbers)}"
        self.ledger.write("S", key, kind)
        try:
            future = self.executor.options(name=key, **options).submit(action, *args)
        except BaseException:
            self.ledger.write("R", key)
            self.ledger.write("T", key, "done")
            raise
        self.calls.append((key, kind, future, expected))

    def map_on(self) -> None:
        """Map, again and again."""
        while not self.stop.is_set():
            key = f"map-{next(self.numbers)}"
            for number in range(MAPPED):
                self.ledger.write("S", f"{key}.{number}", "item")
            results: list[Any] = []
            try:
                view = self.executor.options(name=key, timeout=0.3)
                results += view.map(
                    actions.item,
                    itertools.repeat(self.marks),
                    range(MAPPED),
                    chunksize=5,
                    buffersize=4,
                    return_exceptions=True,
                )
            except (OSError, RuntimeError, MemoryError) as error:
                self.refusals[f"map: {type(error).__name__}"] += 1
            for number in range(MAPPED):
                self.close_item(f"{key}.{number}", number, results)

    def close_item(self, key: str, number: int, results: list[Any]) -> None:
        result = results[number] if number < len(results) else None
        if number >= len(results):
            self.ledger.write("R", key)  # of those that were on their way nobody is told
            self.ledger.write("A", key, 1, 1, "lost")
        else:
            outcome = outcome_of(result)
            if outcome == "succeeded" and result != number * number:
                self.ledger.write("V", f"{key} came back as {result!r}")
            self.ledger.write("A", key, 1, 1, outcome, "" if outcome == "succeeded" else repr(result))
        self.ledger.write("T", key, "done")

    # -- both --------------------------------------------------------------------------------------------------

    def collect(self) -> None:
        """Write down what has ended."""
        while self.tasks and self.tasks[0].status.is_terminal:
            self.tasks.popleft()
        still = []
        for call in self.calls:
            if call[2].done() and self.is_over(call[2]):
                self.close(*call)
            else:
                still.append(call)
        self.calls = still

    @staticmethod
    def is_over(future: ProcessFuture[Any]) -> bool:
        """Return whether the last record of a call is there: one that was cancelled is done before."""
        try:
            future.wait_record(0)
        except TimeoutError:
            return False
        except CancelledError:
            return True
        return True

    def close(self, key: str, kind: str, future: ProcessFuture[Any], expected: Any) -> None:
        for record in future.records:
            self.ledger.record(key, record)
        if not future.records and not future.cancelled():
            error = future.exception(0)  # it could not be sent
            if error is None:
                self.ledger.write("V", f"{key} has a result and no record")
        if expected is not None and not future.cancelled() and future.records and future.records[-1].ok:
            try:
                checksum, data = future.result(0)
                if (checksum, zlib.crc32(data)) != expected:
                    self.ledger.write("V", f"{key} came back garbled")
            except Exception as error:  # no descriptor for it, say
                self.refusals[f"result: {type(error).__name__}"] += 1
        self.ledger.write("T", key, "done")

    def cancel_one(self) -> None:
        dice = self.dice
        if self.tasks and dice.random() < 0.5:
            task = dice.choice(self.tasks)
            kill = dice.random() < 0.6
            if kill:
                self.ledger.write("K", task.id)
            self.scheduler.cancel(task, kill=kill)
        elif self.recurring and dice.random() < 0.3:
            task = dice.choice(self.recurring)
            self.ledger.write("K", task.id)
            self.scheduler.kill(task)
        elif self.calls:
            key, _kind, future, _expected = dice.choice(self.calls)
            self.ledger.write("K", key)
            future.cancel()

    def pause_one(self) -> None:
        task = self.dice.choice(self.recurring)
        if not self.scheduler.resume(task):
            self.scheduler.pause(task)

    # -- the end -----------------------------------------------------------------------------------------------

    def settle(self) -> list[str]:
        """Wait until all has ended, see that every worker serves, and shut down. Return what is wrong."""
        wrong = []
        self.scheduler.wake()  # the clock was stepped a last time
        for task in self.recurring:
            self.scheduler.resume(task)
            self.ledger.write("K", task.id)
            self.scheduler.cancel(task, kill=True)
        self.mapper.join(SETTLE)
        if self.mapper.is_alive():
            wrong.append("a map does not end")
        end = time.monotonic() + SETTLE
        while (
            self.calls or any(not task.status.is_terminal for task in self.tasks)
        ) and time.monotonic() < end:
            self.collect()
            time.sleep(0.02)
        wrong += [f"{key} ({kind}) does not end: {future}" for key, kind, future, _ in self.calls]
        wrong += [f"{task} does not end" for task in self.tasks if not task.status.is_terminal]
        if not self.scheduler.wait_idle(SETTLE):
            wrong.append("the scheduler is not idle")
        if not wrong:
            wrong += self.calm()
        stats = self.scheduler.stats()
        for name, value in stats.counters.items():
            self.ledger.write("C", name, value)
        self.counters = Counter(stats.counters) + Counter(self.executor._core.pool.stats()[1])
        try:
            self.scheduler.engine.check()
        except AssertionError as error:
            wrong.append(f"the engine's books: {error}")
        report = self.scheduler.shutdown(timeout=20)
        if report.killed or report.returned:
            wrong.append(f"the shutdown of an idle scheduler: {report}")
        self.executor.kill_workers() if wrong else self.executor.shutdown()
        return wrong

    def calm(self) -> list[str]:
        """Nobody torments us: every worker must serve."""
        wrong = []
        options = {"retry": NO_RETRY, "timeout": 30.0}
        for _ in range(30):
            self.submit("brief", actions.act, (self.marks, "nap"), options, None)
        tasks = [self.schedule("brief", actions.act, (self.marks, "nap"), **options) for _ in range(30)]
        for task in tasks:
            record = self.scheduler.wait(task, SETTLE)
            if not record.ok:
                wrong.append(f"a quiet task failed: {record}")
        for _, _, future, _ in self.calls:
            record = future.wait_record(SETTLE)
            if not record.ok:
                wrong.append(f"a quiet call failed: {record}")
        self.collect()
        return wrong


def outcome_of(result: Any) -> str:
    """Return the outcome of an item of a map."""
    if not isinstance(result, BaseException):
        return "succeeded"
    for kind, outcome in (
        (TaskTimeoutError, "timed_out"),
        (WorkerCrashedError, "crashed"),
        (TaskLostError, "lost"),
        (TaskKilledError, "killed"),
        (LimitExceededError, "limit_exceeded"),
    ):
        if isinstance(result, kind):
            return outcome
    return "failed"


class Alarms(logging.Handler):
    """Hears of errors in the library itself; that the store fails is none."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "the store" not in text and len(self.heard) < 20:
            self.heard.append(f"logged: {text}")
            if record.exc_info:
                self.heard[-1] += f": {record.exc_info[1]!r}"


class Gauge(threading.Thread):
    """Notes the resident size of this process each second."""

    def __init__(self, over: threading.Event) -> None:
        super().__init__(name="gauge", daemon=True)
        self.over = over
        self.sizes: list[int] = []
        self._fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def run(self) -> None:
        while not self.over.wait(1.0):
            self.sizes.append(int(os.pread(self._fd, 200, 0).split()[1]) * os.sysconf("SC_PAGESIZE"))
        os.close(self._fd)


def hear(load: Load) -> None:
    """Follow what the saboteur says: a step of the clock, of which the kernel did not tell; garbage; or the end."""
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "end":
            break
        with contextlib.suppress(Exception):
            if word == "wake":
                load.scheduler.wake()
            else:
                garble(load, random.Random(int(rest[0])))
    load.stop.set()


def garble(load: Load, dice: random.Random) -> None:
    """Write into the connection of a worker what is no message."""
    pool = dice.choice((load.executor._core.pool, load.scheduler.pool))
    with pool.lock:
        workers = list(pool.fleet.workers.values())
        if workers:
            dice.choice(workers).sock.send(dice.randbytes(dice.randrange(1, 3000)))


def main() -> int:
    """Be the subject. Returns 0 when nothing is wrong."""
    config = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    alarms = Alarms()
    logging.getLogger("procsched").addHandler(alarms)
    logging.basicConfig(
        filename=config["log"], level=logging.WARNING, format="%(asctime)s %(threadName)s %(message)s"
    )
    threading.excepthook = lambda args: logging.getLogger("soak").error(
        "a thread died", exc_info=(args.exc_type, args.exc_value or args.exc_type(), args.exc_traceback)
    )
    os.environ[support.RUN_MARK] = f"soak-{os.getpid()}"
    before = support.Snapshot()
    load = Load(config)
    over = threading.Event()
    gauge = Gauge(over)
    gauge.start()
    listener = threading.Thread(target=hear, args=(load,), name="hear", daemon=True)
    listener.start()
    load.run()
    listener.join()
    wrong = load.settle()
    over.set()
    gauge.join()
    load.ledger.close()
    refusals, counters, store = dict(load.refusals), dict(load.counters), load.store
    del load, listener
    gc.collect()
    wrong += before.wait_leaks(10.0)
    wrong += alarms.heard
    report = {
        "wrong": wrong,
        "sizes": gauge.sizes,
        "refusals": refusals,
        "counters": counters,
        "store": {"calls": store.calls, "failures": store.failures},
    }
    Path(config["report"]).write_text(json.dumps(report), encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
