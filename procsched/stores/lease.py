"""The claim to a PostgreSQL store: a session's lock, a lease for when the session is lost, and requests of others.

    "procsched-lease" thread --every 2 s, one statement: the lease--> a connection of its own, whose session has
                     <--NOTIFY: somebody asks for something--         pg_advisory_lock

The lock falls to a standby as soon as the session ends. That may be because this process has ended, or because the
server was restarted or the network is gone: then this process still runs. So whoever gets the lock waits until the
lease has run out, by the database's clock, and a margin; and whoever cannot renew its lease ends its runs when that is
over by its own clock, which started before the database's. A session that is lost is opened again meanwhile, and keeps
the store if nobody else has got it.

Renewing the lease is the one thing that an idle scheduler does from time to time.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import logging
import select
import threading

from procsched import _forks
from procsched._core.failures import describe
from procsched._logs import say
from procsched.clock import real_seconds
from procsched.errors import SchedulerStateError, StoreError, StoreInUseError
from procsched.stores import holder
from procsched.stores.claims import Losing, having
from procsched.stores.codec import writable
from procsched.stores.database import leave_to_parent
from procsched.stores.file_lock import Waker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Final

    from sqlalchemy import Connection

    from procsched.stores.claims import Lost, Obey, Regained
    from procsched.stores.database import Database

LEASE: Final = 6.0  # seconds, by which every promise of another owner holds back
RENEW: Final = 2.0  # seconds between renewals: two may be lost
MARGIN: Final = 3.0  # seconds: for ending runs, and for clocks that do not run alike
BUSY: Final = "1s"  # for which a visit of `procsched cancel` and the like is waited for
RECONNECT: Final = 0.25  # seconds between tries
SESSION: Final = {
    "connect_timeout": 2,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "tcp_user_timeout": 3000,
}
MOST_REQUESTS: Final = 32  # obeyed at once
CLOSE_SECONDS: Final = 1.0  # for those that are being obeyed when the store is closed
TAKE_SECONDS: Final = 2.0  # in which a scheduler that lives takes a request; else it may have gone meanwhile
STALE_SECONDS: Final = (
    10.0  # after which nobody waits any more for a request to be taken: who asked was killed
)
LONGEST_POLL: Final = 1e6  # seconds: poll(2) counts milliseconds in 31 bits
# How often a wait is cancelled, and milliseconds that its end is waited for each time.
CANCELS, CANCEL_WAIT = 40, 50
ANSWERED_SECONDS: Final = 3600  # for which answered requests are kept, for people

# One lock for each schema: that is a store.
_KEY: Final = "hashtextextended('procsched:' || current_schema(), 0)"
_TRY: Final = f"SELECT pg_try_advisory_lock({_KEY})"
_TRY_IN_TRANSACTION: Final = f"SELECT pg_try_advisory_xact_lock({_KEY.replace(':', chr(92) + ':')})"
_WAIT: Final = f"SELECT pg_advisory_lock({_KEY})"
_NOW: Final = "extract(epoch FROM clock_timestamp())"
_EXISTS: Final = "SELECT to_regclass('meta') IS NOT NULL AND to_regclass('owner') IS NOT NULL"
_LEFT: Final = f"SELECT value::float8 - {_NOW} FROM meta WHERE key = 'lease until'"
_RENEW: Final = (
    f"INSERT INTO meta (key, value) VALUES ('lease until', ({_NOW} + {LEASE})::text) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value"
)
_END: Final = "DELETE FROM meta WHERE key = 'lease until'"
_OWNER: Final = "SELECT pid, host, boot_id, process_started, closed_at FROM owner WHERE id = 1"
_REQUESTS: Final = f"""
    UPDATE requests SET taken_at = {_NOW} WHERE id IN
        (SELECT id FROM requests WHERE taken_at IS NULL AND asked_at > {_NOW} - {STALE_SECONDS}
        ORDER BY id LIMIT {MOST_REQUESTS})
    RETURNING id, arguments, asked_by"""
_ANSWER: Final = """
    WITH done AS (UPDATE requests SET answer = $1 WHERE id = $2::bigint)
    SELECT pg_notify('procsched_answers', $2::bigint::text)"""
_FORGET: Final = f"""
    DELETE FROM requests WHERE answer IS NOT NULL AND asked_at < {_NOW} - {ANSWERED_SECONDS}
        OR taken_at IS NULL AND asked_at <= {_NOW} - {STALE_SECONDS}"""


class _Taken(Exception):
    """Another session has the lock."""


class LeaseClaim(Losing):
    """The claim to the store in one schema of a database. See `claims.Claim`."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._connection: Any = None  # psycopg's; the keeper's while that runs
        self._taking: Any = None  # that in which the lock is tried, or waited for
        self._until = 0.0  # real steady seconds, to which the lease holds for certain; written by the keeper
        self._waker: Waker | None = None
        self._thread: threading.Thread | None = None
        self._obey: Obey | None = None
        self._regained: Regained | None = None
        self._answers: collections.deque[tuple[int, dict[str, Any]]] = collections.deque()
        self._obeying = 0  # threads; guarded by _saying
        self._notified = False  # a NOTIFY was read since it was last looked for requests; the keeper's
        self._stopped = False  # `take` is to wait no more
        self._closing = False
        _forks.note(self)

    @property
    def held(self) -> bool:
        """See `Claim`."""
        return self._thread is not None

    def may_start(self) -> bool:
        """See `Claim`. Between a lost session and the end of the lease too, but not a moment later."""
        return not self._is_lost and real_seconds() < self._until

    # --- taking it -------------------------------------------------------------------------------------

    def take(self, standby: bool) -> None:
        """See `Claim`."""
        if self._connection is not None:
            return
        try:
            self._take(standby)
        except BaseException:
            if self._thread is None:
                self._drop_waker()
            raise

    def _take(self, standby: bool) -> None:
        for tries in itertools.count(1):
            try:
                connection = self._taking = self._database.session(SESSION)
                try:
                    self._lock(connection, standby)
                    self._wait_out(connection)
                except BaseException:
                    self._taking = None
                    connection.close()
                    raise
                self._connection, self._taking = connection, None
                return
            except Exception as error:
                if standby:
                    self._refuse_stopped()
                if not standby or not self._database.is_broken(error):
                    raise
                if not tries & (tries - 1):  # told at the first, second, fourth, eighth time
                    why = self._database.scrubbed(str(getattr(error, "orig", None) or error))
                    text = "a standby of %s has no connection, and tries again: %s"
                    say(logging.WARNING, text, self._database.url, why)
            self._sleep(None, 1.0)

    def _lock(self, connection: Any, standby: bool) -> None:
        if self.visiting:  # who lives is asked instead
            if not connection.execute(_TRY).fetchone()[0]:
                raise self._in_use(self._holder(connection))
            return
        if not standby:
            import psycopg

            connection.execute(f"SET lock_timeout = '{BUSY}'")
            try:
                connection.execute(_WAIT)
            except psycopg.errors.LockNotAvailable:
                raise self._in_use(self._holder(connection)) from None
            connection.execute("SET lock_timeout = 0")
            return
        self._wait_in_line(connection)

    def _wait_in_line(self, connection: Any) -> None:
        """Wait until the lock is ours.

        The waker is waited for as well, as a cancel that is sent before the server has begun to wait hits nothing.
        """
        waker = self._own_waker()
        low = connection.pgconn
        low.send_query_params(_WAIT.encode(), [])
        poller = select.poll()
        poller.register(waker.reader, select.POLLIN)
        while (unsent := low.flush()) or low.is_busy():
            try:
                self._refuse_stopped()
            except SchedulerStateError:
                with contextlib.suppress(Exception):
                    _leave_line(connection)
                raise
            poller.register(connection.fileno(), select.POLLIN | (select.POLLOUT if unsent else 0))
            poller.poll()
            waker.drain()
            low.consume_input()
        self._results(connection)

    def _holder(self, connection: Any) -> dict[str, Any]:
        if not connection.execute(_EXISTS).fetchone()[0]:
            return {}
        found = connection.execute(_OWNER).fetchone()
        return (
            {}
            if found is None
            else dict(zip(("pid", "host", "boot_id", "process_started", "closed_at"), found, strict=True))
        )

    def _wait_out(self, connection: Any) -> None:
        """Wait until the lease of the one before is over, unless that is known to have ended."""
        if not connection.execute(_EXISTS).fetchone()[0]:
            return
        found = connection.execute(_LEFT).fetchone()
        if found is None or holder.is_gone(self._holder(connection)):
            return
        left = min(found[0], LEASE) + MARGIN
        end = real_seconds() + left
        while (left := end - real_seconds()) > 0.0:
            self._sleep(connection, left)
        connection.execute("SELECT 1")  # the lock is ours only as long as the session

    def _sleep(self, connection: Any, seconds: float) -> None:
        """Wait in `take`; what comes from the server is read, for that may be its end."""
        waker = self._own_waker()
        self._refuse_stopped()  # who stopped us before there was a waker has woken nobody
        poller = select.poll()
        poller.register(waker.reader, select.POLLIN)
        if connection is not None:
            poller.register(connection.fileno(), select.POLLIN)
        events = poller.poll(seconds * 1000)
        self._refuse_stopped()
        if connection is not None and any(each == connection.fileno() for each, _ in events):
            connection.execute("SELECT 1")

    def _own_waker(self) -> Waker:
        """Return what `stop_waiting` wakes from now on. Look after that whether it was called before."""
        with self._saying:
            if self._waker is None:
                self._waker = Waker()
            return self._waker

    def _drop_waker(self) -> None:
        with self._saying:
            waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    def _refuse_stopped(self) -> None:
        if self._stopped:
            raise SchedulerStateError("this scheduler was shut down while it stood by for its store")

    def stop_waiting(self) -> None:
        """See `Claim`."""
        self._stopped = True
        with self._saying:
            if self._waker is not None:
                self._waker.wake()

    def may_wait(self) -> None:
        """See `Claim`."""
        self._stopped = False

    # --- keeping it ------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Begin to renew the lease. The tables are there."""
        if self._thread is not None:
            return
        began = real_seconds()
        self._connection.execute("LISTEN procsched_requests")
        self._connection.execute(_RENEW)
        self._until = began + LEASE
        self._is_lost = self._closing = False
        if self._waker is None:
            self._waker = Waker()
        thread = threading.Thread(target=self._keep, name="procsched-lease", daemon=True)
        thread.start()
        self._thread = thread

    def serve(self, obey: Obey, lost: Lost, regained: Regained) -> None:
        """See `Claim`."""
        self._lost = lost
        self._regained = regained
        self._obey = obey
        assert self._waker is not None
        self._waker.wake()
        if self._is_lost:
            self.lose("the store was lost meanwhile")

    def release(self) -> None:
        """See `Claim`."""
        self._lost = self._obey = self._regained = None
        self._closing = True
        self._stopped = self._stopped and self._thread is None
        thread, self._thread = self._thread, None
        if thread is not None and self._waker is not None:
            self._waker.wake()
            if thread is not threading.current_thread():
                thread.join(max(0.0, self._until - real_seconds()) + RENEW)
        connection, self._connection = self._connection, None
        if connection is not None:
            if thread is not None and not self._is_lost:
                with contextlib.suppress(Exception):  # then who asked finds out by himself
                    self._answer_rest(connection)
                with contextlib.suppress(Exception):  # then the next one waits for its end
                    self._ask(connection, _END, (), real_seconds() + RENEW)
            connection.close()
        if thread is None or not thread.is_alive():
            self._drop_waker()
        self._until = 0.0

    def after_fork(self) -> None:
        """In a fork of the process: let go of the session's socket, so that it ends with the parent."""
        self._saying = threading.Lock()
        self._closing = self._is_lost = True
        self._thread = None
        connections = {self._connection, self._taking} - {None}
        self._connection = self._taking = None
        for connection in connections:
            leave_to_parent(connection)
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    @contextlib.contextmanager
    def briefly(self) -> Iterator[None]:
        """See `Claim`: that is done by `guard`."""
        yield

    def guard(self, connection: Connection) -> None:
        """See `Claim`."""
        from sqlalchemy import text

        if self._connection is None and not connection.execute(text(_TRY_IN_TRANSACTION)).scalar():
            there = connection.execute(text(_EXISTS)).scalar()
            found = connection.execute(text(_OWNER)).mappings().first() if there else None
            raise self._in_use({} if found is None else dict(found))

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """See `Claim`."""
        return having(self, self._connection is not None)

    def _in_use(self, found: dict[str, Any]) -> StoreInUseError:
        """Return the error for who finds the lock taken: by the owner that is written down, or by another one."""
        gone = found.get("closed_at") is not None or holder.is_gone(found)
        return holder.in_use(self._database.url, {} if gone else found)

    def _keep(self) -> None:
        fresh = True
        while not self._closing:
            began = real_seconds()
            try:
                if self._connection is None:
                    self._reconnect()
                    fresh = True
                # A process that was stopped, or got no processor, may be late: what counts is the session, which is
                # looked at then. Meanwhile nothing is started.
                was, regained = self._until, self._regained
                self._ask(self._connection, _RENEW, (), max(was, began + RENEW))
                self._until = began + LEASE
                # Looked at now: it may have run out while it was renewed, and somebody may have been told so.
                if real_seconds() >= was and regained is not None:
                    regained()
                fresh, self._notified = fresh or self._notified, False
                if self._obey is not None:
                    self._answer_and_take(fresh)
                    fresh = False
                # A NOTIFY that came meanwhile may be of a request that came too late for the look.
                fresh = self._wait(0.0 if self._notified else RENEW) or fresh
            except _Taken:
                self._say_lost("its session was lost, and another scheduler has the store now")
                return
            except Exception as error:
                connection, self._connection = self._connection, None
                if connection is not None:
                    say(logging.WARNING, "the session that holds %s is lost: %s", self._database.url,
                        self._database.scrubbed(str(error)))  # fmt: skip
                    connection.close()
                if real_seconds() >= self._until:
                    self._say_lost(f"its lease could not be renewed for {LEASE:g} s")
                    return
                self._wait(min(RECONNECT, self._until - real_seconds()))

    def _say_lost(self, why: str) -> None:
        if not self._closing:
            self.lose(f"{self._database.url}: {why}")

    def _wait(self, seconds: float) -> bool:
        """Wait. Return whether the server has sent something."""
        waker, connection = self._waker, self._connection
        assert waker is not None
        poller = select.poll()
        poller.register(waker.reader, select.POLLIN)
        if connection is not None:
            poller.register(connection.fileno(), select.POLLIN)
        events = [each for each, _event in poller.poll(max(0.0, seconds) * 1000)]
        waker.drain()
        return connection is not None and connection.fileno() in events

    def _reconnect(self) -> None:
        """Open the session anew, within what is left of the lease.

        Raises:
            _Taken: somebody else has the lock.
        """
        found: list[Any] = []
        lock = threading.Lock()
        late = False

        def connect() -> None:
            try:
                connection = self._database.session(SESSION)
            except Exception as error:
                found.append(error)
                return
            with lock:
                found.append(connection)
                unwanted = late
            if unwanted:
                connection.close()

        # In a thread of its own: looking up the server's name may take longer than the lease.
        thread = threading.Thread(target=connect, name="procsched-connect", daemon=True)
        thread.start()
        thread.join(max(0.0, self._until - real_seconds()))
        with lock:
            late = not found
        if late:
            raise TimeoutError("the database did not answer")
        if isinstance(found[0], Exception):
            raise found[0]
        connection = found[0]
        try:
            if self._ask(connection, _TRY, (), self._until) != [(b"t",)]:
                raise _Taken
            self._ask(connection, "LISTEN procsched_requests", (), self._until)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _ask(
        self, connection: Any, statement: str, values: Sequence[str | int], end: float
    ) -> list[tuple[Any, ...]]:
        """Run a statement, until `end` by the steady clock: a server that is silent has lost us as well.

        What the server sends besides is read with the answer, and ends no later wait: that sets `_notified`.

        Raises:
            Exception: psycopg's, or a TimeoutError.
        """
        low: Any = connection.pgconn
        low.send_query_params(statement.encode(), [str(value).encode() for value in values])
        poller = select.poll()
        poller.register(connection.fileno(), select.POLLIN)
        while (unsent := low.flush()) or low.is_busy():
            left = end - real_seconds()
            if left <= 0.0:
                raise TimeoutError("the database did not answer")
            poller.modify(connection.fileno(), select.POLLIN | (select.POLLOUT if unsent else 0))
            poller.poll(left * 1000)
            low.consume_input()
        return self._results(connection)

    def _results(self, connection: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement that the server is done with."""
        import psycopg

        low: Any = connection.pgconn
        rows: list[tuple[Any, ...]] = []
        failure = None
        while (result := low.get_result()) is not None:
            if result.status not in (psycopg.pq.ExecStatus.COMMAND_OK, psycopg.pq.ExecStatus.TUPLES_OK):
                failure = psycopg.OperationalError(result.error_message.decode(errors="replace"))
            rows += [
                tuple(result.get_value(row, column) for column in range(result.nfields))
                for row in range(result.ntuples)
            ]
        while low.notifies() is not None:
            self._notified = True  # no more than that: the requests are in their table
        if failure is not None:
            raise failure
        return rows

    # --- what others ask -------------------------------------------------------------------------------

    def _answer_and_take(self, look: bool) -> None:
        connection = self._connection
        while self._answers:
            number, answer = self._answers[0]
            self._ask(connection, _ANSWER, (json.dumps(answer), number), self._until)
            self._answers.popleft()  # now: after a lost session it is written again
            look = True  # there may be more than were taken
        if not look or self._obeying >= MOST_REQUESTS:
            return
        for number, arguments, asked_by in self._ask(connection, _REQUESTS, (), self._until):
            with self._saying:
                self._obeying += 1
            thread = threading.Thread(
                target=self._obey_one, args=(int(number), arguments, asked_by.decode()), name="procsched-request",
                daemon=True,
            )  # fmt: skip
            try:
                thread.start()
            except RuntimeError as error:
                with self._saying:
                    self._obeying -= 1
                self._answers.append((int(number), {"error": f"the scheduler has no thread left: {error}"}))
        self._ask(connection, _FORGET, (), self._until)

    def _answer_rest(self, connection: Any) -> None:
        """Let those whose requests were taken have their answers, for a moment. The keeper has ended."""
        assert self._waker is not None
        poller = select.poll()
        poller.register(self._waker.reader, select.POLLIN)
        end = real_seconds() + CLOSE_SECONDS
        while self._obeying and (left := end - real_seconds()) > 0.0:
            poller.poll(left * 1000)
            self._waker.drain()
        while self._answers:
            number, answer = self._answers.popleft()
            self._ask(connection, _ANSWER, (json.dumps(answer), number), real_seconds() + RENEW)

    def _obey_one(self, number: int, arguments: bytes, asked_by: str) -> None:
        obey = self._obey
        try:
            if obey is None:
                answer = {"error": "the scheduler is being shut down", "again": True}
            else:
                answer = obey(json.loads(arguments), asked_by)
        except (ValueError, RecursionError) as error:
            answer = {"error": f"the request cannot be read: {error}"}
        except BaseException as error:
            # A SystemExit, say, of what the user has there: who asked waits all the same.
            say(logging.ERROR, "a request of %s was broken off", asked_by, error=error)
            answer = {
                "error": f"the scheduler broke the request off: {describe(error)}; "
                "look at the task whether it has obeyed all the same"
            }
        with self._saying:
            self._answers.append((number, answer))
            self._obeying -= 1
            waker = self._waker
            if waker is not None:
                waker.wake()


def _leave_line(connection: Any) -> None:
    """Have the server end the wait for the lock; else the session stays in line, and hears that we are gone at its end.

    A cancel that is sent before the server has begun to wait hits nothing, and is sent again.
    """
    low = connection.pgconn
    poller = select.poll()
    poller.register(connection.fileno(), select.POLLIN)
    for _ in range(CANCELS):
        connection.cancel()
        if poller.poll(CANCEL_WAIT):
            low.consume_input()
            if not low.is_busy():
                return


def ask(database: Database, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    """Ask the scheduler of a store, and return its answer; None where none took the request.

    Args:
        seconds: for the answer.
    Raises:
        StoreError: it took it, and did not answer. psycopg.Error: the database.
    """
    this = holder.this_process()
    task_id = request.get("task")  # for people; what counts is in `arguments`
    connection = database.session({})
    heard: list[Any] = []
    connection.add_notify_handler(heard.append)
    try:
        connection.execute("LISTEN procsched_answers")
        (number,) = connection.execute(
            f"INSERT INTO requests (task_id, what, arguments, asked_at, asked_by) VALUES (%s, %s, %s, {_NOW}, %s) "
            "RETURNING id",
            (
                None if task_id is None else writable(task_id),
                request["what"],
                json.dumps(request),
                f"process {this['pid']} on {this['host']}",
            ),
        ).fetchone()
        connection.execute("SELECT pg_notify('procsched_requests', '')")
        poller = select.poll()
        poller.register(connection.fileno(), select.POLLIN)
        end = real_seconds() + seconds
        untaken_end = min(end, real_seconds() + TAKE_SECONDS)
        while True:
            heard.clear()
            answer, taken = connection.execute(
                "SELECT answer, taken_at IS NOT NULL FROM requests WHERE id = %s", (number,)
            ).fetchone() or (None, True)
            if answer is not None:
                found = json.loads(answer)
                return (
                    found if isinstance(found, dict) else {"error": "the scheduler's answer cannot be read"}
                )
            left = (end if taken else untaken_end) - real_seconds()
            if left <= 0.0:
                if taken:
                    raise StoreError(
                        f"the scheduler took the request, and did not answer within {seconds:g} s"
                    )
                withdrawn = connection.execute(
                    "DELETE FROM requests WHERE id = %s AND taken_at IS NULL", (number,)
                )
                if withdrawn.rowcount:
                    return None
                continue
            # A NOTIFY that was read together with what was asked for does not end the sleep. libpq may have it still.
            if connection.pgconn.notifies() is None and not heard:
                poller.poll(min(left, LONGEST_POLL) * 1000)
    finally:
        connection.close()
