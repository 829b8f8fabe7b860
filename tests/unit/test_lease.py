"""The claim to a PostgreSQL store where something happens at the one moment at which it might be missed."""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from procsched.clock import real_seconds
from procsched.errors import SchedulerStateError
from procsched.stores import holder, lease
from procsched.stores.lease import LeaseClaim
from procsched.stores.sql import SqlTaskStore
from tests import postgres as pg
from tests import support

ASK = (
    "INSERT INTO requests (what, arguments, asked_at, asked_by) "
    "VALUES ('x', '{}', extract(epoch FROM now()), 'a test') RETURNING id"
)


@pytest.fixture
def url(postgres: pg.Server) -> str:
    return postgres.new_database()


@pytest.fixture
def other(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Give another session in the database of the store."""
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(url: str) -> Iterator[SqlTaskStore]:
    """Give a store that is open."""
    store = SqlTaskStore(url)
    store.open()
    yield store
    store.close()


def claim_of(store: SqlTaskStore) -> LeaseClaim:
    claim = store._claim
    assert isinstance(claim, LeaseClaim)
    return claim


def wait_readable(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(support.TIMEOUT * 1000)


def nothing(*_args: Any) -> None:
    return None


@pytest.mark.parametrize("when", ["renewal", "look"])
def test_a_request_that_comes_while_the_server_is_asked_is_seen(
    store: SqlTaskStore, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its NOTIFY is read with the answer then, and does not end the wait that follows."""
    monkeypatch.setattr(lease, "RENEW", 0.05)
    claim, over, seen = claim_of(store), threading.Event(), False
    send, renewals, looks = claim._ask, 0, 0

    def request(connection: Any) -> None:
        other.execute(ASK)
        other.execute("SELECT pg_notify('procsched_requests', '')")
        wait_readable(connection.fileno())

    def ask(connection: Any, statement: str, *args: Any) -> Any:
        nonlocal renewals, looks, seen
        renewals += statement == lease._RENEW
        looks += statement == lease._REQUESTS
        if statement == lease._RENEW and renewals == 3 and when == "renewal":
            request(connection)
        if statement == lease._FORGET and looks == 1 and when == "look":
            request(connection)
        found = send(connection, statement, *args)
        seen = seen or (statement == lease._REQUESTS and bool(found))
        if seen or renewals == 10:
            over.set()
        return found

    monkeypatch.setattr(claim, "_ask", ask)
    store.serve(lambda _request, _who: {}, nothing, nothing)
    assert over.wait(support.TIMEOUT)
    assert seen


def test_an_answer_that_comes_while_it_is_looked_for_is_seen(
    store: SqlTaskStore, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its NOTIFY is read with the answer that is not there yet."""
    database, looks = store._database, 0

    class Looking(psycopg.Connection[Any]):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            nonlocal looks
            found = super().execute(query, *args, **options)
            if str(query).startswith("SELECT answer"):
                looks += 1
                if looks == 1:
                    other.execute("UPDATE requests SET taken_at = 1, answer = '{\"changed\": true}'")
                    other.execute("SELECT pg_notify('procsched_answers', '1')")
                    wait_readable(self.fileno())
                    super().execute("SELECT 1")
            return found

    dsn = store._database._parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    monkeypatch.setattr(database, "session", lambda _options: Looking.connect(dsn, autocommit=True))
    began = real_seconds()
    assert lease.ask(database, {"what": "x"}, support.TIMEOUT) == {"changed": True}
    assert looks == 2
    assert real_seconds() - began < support.TIMEOUT / 2


def test_a_request_that_nobody_takes_is_withdrawn(
    store: SqlTaskStore, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before its time is up: whoever had the store may be gone."""
    store.close()
    monkeypatch.setattr(lease, "TAKE_SECONDS", 0.01)
    assert lease.ask(store._database, {"what": "x"}, 1e9) is None
    assert other.execute("SELECT count(*) FROM requests").fetchone() == (0,)


def test_a_request_of_the_dead_is_not_obeyed(
    store: SqlTaskStore, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is killed while it asks withdraws nothing: what it wanted is not done by a scheduler of days later."""
    insert = (
        "INSERT INTO requests (what, arguments, asked_at, asked_by) "
        "VALUES ('x', %s, extract(epoch FROM now()) - %s, 'y')"
    )
    other.execute(insert, ("1", 2 * lease.STALE_SECONDS))
    other.execute(insert, ("2", 0))
    obeyed: list[Any] = []

    def obey(request: Any, _who: str) -> dict[str, Any]:
        obeyed.append(request)
        return {}

    store.serve(obey, nothing, lambda: None)
    left = "SELECT arguments FROM requests WHERE answer IS NULL"
    support.eventually(
        lambda: other.execute(left).fetchall() == [], what="one is answered, and one is forgotten"
    )
    assert obeyed == [2]


def test_a_lease_that_runs_out_while_it_is_renewed_is_regained(
    store: SqlTaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not start meanwhile is told so by that renewal, and not by the next one."""
    monkeypatch.setattr(lease, "RENEW", 0.3)
    claim, over, told = claim_of(store), threading.Event(), threading.Event()
    send, renewals, ahead, in_time = claim._ask, 0, 0.0, False
    monkeypatch.setattr(lease, "real_seconds", lambda: real_seconds() + ahead)

    def ask(connection: Any, statement: str, *args: Any) -> Any:
        nonlocal renewals, ahead, in_time
        renewals += statement == lease._RENEW
        if renewals == 4:
            in_time = told.is_set()
            over.set()
        found = send(connection, statement, *args)
        if statement == lease._RENEW and renewals == 3:
            assert not told.is_set()
            ahead = claim._until - real_seconds()
            assert not claim.may_start()
        return found

    monkeypatch.setattr(claim, "_ask", ask)
    store.serve(lambda _request, _who: {}, nothing, told.set)
    assert over.wait(support.TIMEOUT)
    assert in_time


def test_a_request_that_leaves_is_answered(
    store: SqlTaskStore, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And makes room for the next one."""
    monkeypatch.setattr(lease, "MOST_REQUESTS", 1)

    def obey(_request: Any, _who: str) -> dict[str, Any]:
        sys.exit("off and away")

    store.serve(obey, nothing, nothing)
    for _ in range(2):
        answer = lease.ask(store._database, {"what": "x"}, support.TIMEOUT)
        assert answer is not None
        assert "off and away; look at the task" in answer["error"]
    assert claim_of(store)._obeying == 0
    assert "was broken off" in caplog.text


@pytest.mark.parametrize("where", ["in line", "in line, and not yet waiting", "lease"])
def test_a_standby_cannot_miss_that_it_is_stopped(
    store: SqlTaskStore, other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Not when that is between its last look and its wait; and its session does not stay in line."""
    claim = LeaseClaim(store._database)
    raised: list[BaseException] = []
    if where.startswith("in line"):
        refuse = claim._refuse_stopped
        if "not yet" in where:  # the server has nothing to cancel by then
            cancel = psycopg.Connection.cancel
            calls = iter(range(1000))
            early = lambda connection: next(calls) and cancel(connection)  # noqa: E731
            monkeypatch.setattr(psycopg.Connection, "cancel", early)

        def refuse_and_stop() -> None:
            refuse()
            claim.stop_waiting()

        monkeypatch.setattr(claim, "_refuse_stopped", refuse_and_stop)
    else:
        monkeypatch.setattr(lease, "MARGIN", 1e6)
        claim_of(store).release()
        other.execute(f"INSERT INTO meta (key, value) VALUES ('lease until', ({lease._NOW} + 1000)::text)")
        monkeypatch.setattr(holder, "is_gone", lambda _found: claim.stop_waiting())

    def take() -> None:
        try:
            claim.take(True)
        except SchedulerStateError as error:
            raised.append(error)

    database = "(SELECT oid FROM pg_database WHERE datname = current_database())"
    locks = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = {database}"
    others = 0 if where == "lease" else 1
    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(support.TIMEOUT)
    try:
        assert not thread.is_alive()
        assert "stood by" in str(raised[0])
        support.eventually(lambda: other.execute(locks).fetchone() == (others,), what="it is in line no more")
    finally:
        store.close()
        claim.stop_waiting()
        thread.join(support.TIMEOUT)
        claim.release()


def test_a_standby_stays_in_line_whatever_the_server_limits(
    postgres: pg.Server, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit for locks is meant for statements; that for the place in the line would be told again and again."""
    url = postgres.new_database()
    database = url.rpartition("/")[2]
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} SET lock_timeout = '1ms'")
    first, standby = SqlTaskStore(url), SqlTaskStore(url, standby=True)
    first.open()
    thread = threading.Thread(target=standby.open)
    thread.start()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        support.eventually(lambda: connection.execute(waiting).fetchone(), what="it is in line")
    first.close()
    thread.join(support.TIMEOUT)
    assert not thread.is_alive()
    standby.close()
    assert caplog.messages == []


def test_a_standby_says_why_it_has_no_connection(
    postgres: pg.Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the server's words, and ever more seldom."""
    store = SqlTaskStore(postgres.new_database().replace(pg.PASSWORD, "wrong-and-secret"), standby=True)
    claim = claim_of(store)
    tries = 0

    def sleep(*_args: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 5:
            store.stop_waiting()
        claim._refuse_stopped()

    monkeypatch.setattr(claim, "_sleep", sleep)
    with pytest.raises(SchedulerStateError):
        store.open()
    assert len(caplog.messages) == 3
    assert "password authentication failed" in caplog.text
    assert "wrong-and-secret" not in caplog.text
