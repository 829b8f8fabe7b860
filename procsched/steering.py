"""Looking at a store, and steering the scheduler that has it, from another process.

reading     --> the database, read-only: always
a request   --> the live scheduler: by the socket beside a SQLite file, or a row and NOTIFY in PostgreSQL
            --> nobody lives: the store itself, as its owner for that moment
"""

from __future__ import annotations

import os
import socket
import time

from procsched import errors
from procsched._core import options
from procsched._core.checks import (
    check_flag,
    check_text,
    member_of,
    waiting_seconds,
)
from procsched._core.models import DEFAULT_RETRY, MisfirePolicy, Outcome, Priority, Task
from procsched._core.names import check_names
from procsched._core.planning import check_schedule
from procsched.clock import SystemClock, real_seconds
from procsched.errors import ProcschedError, StoreError, StoreInUseError, TaskNotFoundError, ValidationError
from procsched.stores.database import Database
from procsched.stores.sql import SqlTaskStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime, timedelta
    from typing import Any, Final, Never, Self

    from procsched._core.limits import Limits
    from procsched._core.models import ExecutionRecord, RetryPolicy, ScheduledTask
    from procsched.protocols import Schedule

VERSION: Final = 1  # of the form of requests, as in `scheduler/serving.py`
VARIABLE: Final = "PROCSCHED_STORE"
_FIRST_PAUSE, _LAST_PAUSE = 0.02, 0.5  # seconds, while an owner is there that does not listen (yet)
# Errors of the scheduler's that come back as what they are.
_KINDS: Final = {
    kind.__name__: kind
    for kind in (
        errors.ValidationError, errors.ScheduleError, errors.TaskNotFoundError, errors.SchedulerStateError, StoreError,
    )
}  # fmt: skip


def connect(
    url: str | None = None,
    *,
    timeout: float | timedelta = 15.0,
    allow_shared_file: bool = False,
    **unknown: Never,
) -> StoreClient:
    """Return what looks at a store and steers the scheduler that has it, in whatever process that is.

    Args:
        url: as for `SqlTaskStore`; by default that in the environment variable PROCSCHED_STORE.
        timeout: seconds for which an answer is waited for.
        allow_shared_file: as for `SqlTaskStore`.
    Raises:
        ValidationError: naming the parameter. StoreError: there is no such store, or SQLAlchemy or psycopg is missing.
    """
    if unknown:
        check_names(unknown, ("url", "timeout", "allow_shared_file"), of="connect")
    if url is None:
        url = os.environ.get(VARIABLE)
        if not url:
            raise ValidationError(f"url must be given, or in the environment variable {VARIABLE}")
    return StoreClient(url, waiting_seconds("timeout", timeout, above=True), allow_shared_file)


class StoreClient:
    """Looks at a store, and steers the scheduler that has it. Made by `connect`.

    What it reads is what is on the disk, which is a moment behind what the scheduler knows. A request returns when the
    scheduler has obeyed and that is stored; where no scheduler lives, when it is stored.

    Thread safety: call from anywhere.
    """

    def __init__(self, url: str, timeout: float, allow_shared_file: bool) -> None:
        self._timeout = timeout
        self._database = Database(url, allow_shared_file)
        self._store = self._make_store()
        self._check()

    def __repr__(self) -> str:
        return f"<StoreClient {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        return

    @property
    def url(self) -> str:
        """The store, without password."""
        return self._database.url

    def _make_store(self) -> SqlTaskStore:
        return SqlTaskStore(self._database)  # type: ignore[arg-type]

    def _check(self) -> None:
        from procsched.stores import migrating

        with self._database.speaking(), self._database.reader() as connection, connection.begin():
            revision = migrating.revision_of(connection)
        if revision is None:
            raise StoreError(
                f"{self.url} is no store of procsched's, or no scheduler has used it yet: see the URL, and in "
                "PostgreSQL the search path"
            )
        migrating.refuse_newer(revision, self.url)
        if revision != migrating.newest():
            raise StoreError(
                f"{self.url} has the tables of an earlier version of procsched (schema {revision}): "
                "run `procsched db upgrade --store URL`, or start its scheduler with this version"
            )

    # --- looking ---------------------------------------------------------------------------------------

    def tasks(self) -> list[ScheduledTask]:
        """Return all tasks that are kept, in order of registration, each with its newest record: a picture, not live.

        The class of a schedule of your own is imported.
        """
        return self._store.load_all()

    def task(self, id: str) -> ScheduledTask:  # noqa: A002 - as `Scheduler.task`
        """Return a picture of the task with this id.

        Raises:
            TaskNotFoundError: there is none.
        """
        for each in self.tasks():
            if each.task.id == id:
                return each
        raise TaskNotFoundError(f"no task has the id {id!r} in {self.url}{self._meant_by(id)}")

    def rows(self, task: str | None = None) -> list[dict[str, Any]]:
        """Return the tasks as plain data, by the names of the table's columns, with `outcome` and `error` of the newest
        record. Nothing of yours is imported.

        Args:
            task: the one with this id only.
        """
        from procsched.stores.codec import writable
        from procsched.stores.reading import select_overview

        if task is not None and writable(task) != task:
            return []  # nothing can be kept under that name
        with self._database.speaking(), self._database.reader() as connection, connection.begin():
            return [dict(row) for row in connection.execute(select_overview(task)).mappings()]

    def history(
        self,
        task: ScheduledTask | str | None = None,
        outcome: Outcome | str | None = None,
        since: float | datetime | timedelta | None = None,
        limit: int = 100,
    ) -> list[ExecutionRecord]:
        """Return records of attempts, the newest first. As `Scheduler.history`."""
        kind, start = options.checked_search(outcome, since, limit, SystemClock().now)
        return self._store.history(None if task is None else _id_of(task), kind, start, limit)

    def owner(self) -> dict[str, Any] | None:
        """Return who has the store, or had it last, by the names of the table `owner`; None where nobody ever had."""
        from procsched.stores.statements import Statements

        with self._database.speaking(), self._database.reader() as connection, connection.begin():
            found = connection.execute(Statements(connection.dialect).owner).mappings().first()
            return None if found is None else dict(found)

    # --- steering --------------------------------------------------------------------------------------

    def cancel(self, task: ScheduledTask | str, *, kill: bool = False) -> bool:
        """Withdraw a task; with `kill` end its run, too. As `Scheduler.cancel`."""
        check_flag("kill", kill)
        return self._changed("cancel", task, kill=kill)

    def kill(self, task: ScheduledTask | str) -> bool:
        """End the live run of a task. As `Scheduler.kill`."""
        return self._changed("kill", task)

    def pause(self, task: ScheduledTask | str) -> bool:
        """Start no further run of a task until `resume`. As `Scheduler.pause`."""
        return self._changed("pause", task)

    def resume(self, task: ScheduledTask | str) -> bool:
        """Let a paused task go on. As `Scheduler.resume`."""
        return self._changed("resume", task)

    def revive(self, task: ScheduledTask | str) -> bool:
        """Give a FAILED task a new start. As `Scheduler.revive`."""
        return self._changed("revive", task)

    def schedule(
        self,
        name: str,
        action: Callable[..., Any],
        schedule: Schedule,
        priority: Priority | int = Priority.NORMAL,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout: float | timedelta | None = None,
        *,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        soft_timeout: float | timedelta | None = None,
        grace: float | timedelta = 0.0,
        misfire: MisfirePolicy = MisfirePolicy.RUN_ONCE,
        max_catch_up: int = 100,
        on_exhausted: str = "dead_letter",
        limits: Limits | None = None,
        capture_output: bool = False,
        key: str | None = None,
        replace: bool = False,
        **unknown: Never,
    ) -> str:
        """Schedule `action` with the scheduler that has the store, and return the task's id.

        Arguments are those of `Scheduler.schedule`. An importable function must be importable there; any other is sent
        as a pickle, which the same version of Python must open.

        Raises:
            ValidationError: naming the parameter. TaskSerializationError: it cannot be pickled.
            StoreError: it is not stored.
        """
        from procsched.stores import codec
        from procsched.stores.payloads import store_call
        from procsched.stores.sending import sent_call

        if unknown:
            options.refuse_unknown(unknown, options.TASK_OPTIONS, "schedule")
        check_text("name", name)
        options.check_action(action)
        check_schedule(schedule)
        named = {} if kwargs is None else options.checked_kwargs(kwargs)
        hard, soft, seconds = options.checked_times(timeout, soft_timeout, grace)
        options.check_rest(retry, on_exhausted, max_catch_up, limits, capture_output)
        check_flag("replace", replace)
        if key is not None:
            check_text("key", key)
        codec.check_storable(schedule, (name, key or ""))
        settings = Task(
            "", name, action, options.checked_priority(priority), retry, hard, soft_timeout=soft, grace=seconds,
            misfire=member_of(MisfirePolicy, "misfire", misfire), max_catch_up=max_catch_up, on_exhausted=on_exhausted,
            limits=limits, capture_output=capture_output,
        )  # fmt: skip
        request = {
            "v": VERSION,
            "what": "schedule",
            "name": name,
            "key": key,
            "replace": replace,
            "schedule": codec.schedule_text(schedule),
            "settings": codec.settings_text(settings),
            "call": sent_call(store_call(action, options.checked_args(args), named)),
        }
        return str(self._send(request)["task"])

    def _changed(self, what: str, task: ScheduledTask | str, **more: Any) -> bool:
        return bool(self._request(what, task, **more)["changed"])

    def _request(self, what: str, task: ScheduledTask | str, **more: Any) -> dict[str, Any]:
        """Have something done to a task, and return the answer: whether that changed it, and its status then."""
        task_id = _id_of(task)
        try:
            return self._send({"v": VERSION, "what": what, "task": task_id, **more})
        except TaskNotFoundError as error:
            meant = self._meant_by(task_id)
            if not meant:
                raise
            raise TaskNotFoundError(f"no task has the id {task_id!r}{meant}") from error

    def _meant_by(self, word: str) -> str:
        """Return what is to be said of a text that is no id, where it is the key or the name of some task."""
        rows = self.rows()
        for column in ("key", "name"):
            ids = [str(row["id"]) for row in rows if row[column] == word]
            if ids:
                return f"; it is the {column} of {', '.join(ids[-5:])}: give the id"
        return ""

    def _send(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a request obeyed: by the scheduler that lives, or by ourselves.

        A scheduler that has just taken the store may not listen yet, and one that ends may not any more; so who finds
        nobody there and the store taken looks again for a while.
        """
        end = real_seconds() + self._timeout
        pause = _FIRST_PAUSE
        while True:
            answer = None if self._database.path is None else self._ask(request, end)
            if answer is not None and "again" not in answer:
                return _opened(answer)
            try:
                return _opened(self._visit(request))
            except StoreInUseError as error:
                if self._database.path is not None and not hasattr(socket, "AF_UNIX"):
                    raise  # Windows: nobody can ask it
                answer = self._ask(request, end) if self._database.path is None else answer
                if answer is not None and "again" not in answer:
                    return _opened(answer)
                if real_seconds() + pause >= end:
                    if answer is not None:
                        return _opened(answer)
                    text = f"{error.args[0].partition(', and one')[0]}, which did not answer within {self._timeout:g} s"
                    raise StoreInUseError(text, pid=error.pid, host=error.host) from None
            time.sleep(pause)
            pause = min(2.0 * pause, _LAST_PAUSE)

    def _ask(self, request: dict[str, Any], end: float) -> dict[str, Any] | None:
        """Ask the scheduler that lives; None where none takes the request."""
        seconds = max(0.1, end - real_seconds())
        if self._database.path is not None:
            from procsched.stores import door

            return door.ask(os.path.realpath(self._database.path), request, seconds)
        from procsched.stores import lease

        with self._database.speaking():
            return lease.ask(self._database, request, seconds)

    def _visit(self, request: dict[str, Any]) -> dict[str, Any]:
        """Obey a request ourselves, as the owner of the store for that moment; nothing is run."""
        from procsched.scheduler import Scheduler
        from procsched.workers.local import InlinePool

        store = self._make_store()
        store.visit()
        scheduler = Scheduler(pool=InlinePool(), store=store)
        try:
            scheduler.tasks()
            return scheduler.obey(request, "this process")
        finally:
            scheduler.shutdown(drain=False)


def _id_of(task: ScheduledTask | str) -> str:
    task_id = task if isinstance(task, str) else getattr(getattr(task, "task", None), "id", None)
    if not isinstance(task_id, str):
        raise ValidationError(f"task must be a ScheduledTask or its id, not {task!r}")
    return task_id


def _opened(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that says what was done.

    Raises:
        ProcschedError: it says why not.
    """
    if "error" not in answer:
        return answer
    kind: type[ProcschedError] = _KINDS.get(str(answer.get("kind")), StoreError)
    raise kind(str(answer["error"]))
