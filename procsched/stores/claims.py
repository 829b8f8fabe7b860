"""Being the one scheduler of a store: taking it, being asked by others, losing it.

`FileClaim` is for SQLite, which one machine uses: nothing can take the lock from who has it. For PostgreSQL there is
`lease.LeaseClaim`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading

from procsched._logs import say
from procsched.errors import StoreError
from procsched.stores.door import Door
from procsched.stores.file_lock import FileLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any, Protocol

    from sqlalchemy import Connection

    from procsched.stores.database import Database

    Obey = Callable[[Any, str], dict[str, Any]]
    Lost = Callable[[str], None]
    Regained = Callable[[], None]

    class Claim(Protocol):
        """Thread safety: `take`, `serve` and `release` by one thread at a time; the others from any.

        Attributes:
            visiting: the store is taken for a moment only, to change something in it.
        """

        visiting: bool

        @property
        def held(self) -> bool:
            """Whether the store is ours."""

        def take(self, standby: bool) -> None:
            """Make the store ours.

            Raises:
                StoreInUseError: it is another's. SchedulerStateError: `stop_waiting` was called.
            """

        def hold(self) -> None:
            """Begin to keep it, now that the tables are there."""

        def serve(self, obey: Obey, lost: Lost, regained: Regained) -> None:
            """Have others' requests answered from now on, and hear once that the store is not ours any more.

            Args:
                regained: hears that `may_start` says so again, after a while in which it did not.
            """

        def may_start(self) -> bool:
            """Return whether the store is ours for certain. Cheap, and takes no lock."""

        def lose(self, why: str) -> None:
            """Hear that a later owner was found: the store is not ours any more."""

        def stop_waiting(self) -> None:
            """End a `take` that waits, also one that is to come."""

        def may_wait(self) -> None:
            """Forget `stop_waiting`: it was meant for an earlier user of this object."""

        def release(self) -> None:
            """Let go of the store."""

        def briefly(self) -> contextlib.AbstractContextManager[None]:
            """Have the store in a block, for who writes to it without scheduling from it."""

        def guard(self, connection: Connection) -> None:
            """Do the same for the transaction that goes on, where `briefly` does not."""

        def alone(self) -> contextlib.AbstractContextManager[None]:
            """Have the store in a block in which its tables are changed: nobody schedules from it meanwhile.

            Raises:
                StoreInUseError: somebody has it.
            """


class Losing:
    """What the claims share: it is said once that the store is lost, and then nothing is started any more."""

    def __init__(self) -> None:
        self.visiting = False
        self._lost: Lost | None = None
        self._is_lost = False
        self._saying = threading.Lock()  # guards the two above, for a few instructions

    def may_start(self) -> bool:
        """See `Claim`."""
        return not self._is_lost

    def lose(self, why: str) -> None:
        """See `Claim`."""
        with self._saying:
            self._is_lost = True
            lost, self._lost = self._lost, None
        if lost is not None:
            lost(why)


@contextlib.contextmanager
def having(claim: Claim, is_taken: bool) -> Iterator[None]:
    """Have a store in a block: taken for that, unless it is ours before and afterwards."""
    if is_taken:
        yield
        return
    claim.take(False)
    try:
        yield
    finally:
        claim.release()


class FileClaim(Losing):
    """The claim to a SQLite store: a lock and a socket beside it."""

    def __init__(self, path: Path, url: str) -> None:
        super().__init__()
        self._store = os.path.realpath(path)
        self._lock = FileLock(path, url)
        self._door: Door | None = None

    @property
    def held(self) -> bool:
        """See `Claim`."""
        return self._lock.held

    def take(self, standby: bool) -> None:
        """See `Claim`."""
        if not self._lock.held:
            self._lock.visiting = self.visiting
            self._lock.take(standby)
            self._is_lost = False

    def hold(self) -> None:
        """See `Claim`: nothing is to be done."""

    def serve(self, obey: Obey, lost: Lost, regained: Regained) -> None:
        """See `Claim`. Where there can be no socket, a scheduler does without."""
        self._lost = lost
        try:
            self._door = Door(self._store, obey)
        except (AttributeError, OSError, RuntimeError) as error:
            say(logging.WARNING, "this scheduler cannot be steered by other processes: %s", error)

    def stop_waiting(self) -> None:
        """See `Claim`."""
        self._lock.stop_waiting()

    def may_wait(self) -> None:
        """See `Claim`."""
        self._lock.may_wait()

    def release(self) -> None:
        """See `Claim`."""
        self._lost = None
        door, self._door = self._door, None
        if door is not None:
            door.close()
        self._lock.release()

    def guard(self, connection: Connection) -> None:
        """See `Claim`."""

    def briefly(self) -> contextlib.AbstractContextManager[None]:
        """See `Claim`."""
        return having(self, self._lock.held)

    alone = briefly


def claim_of(database: Database) -> Claim:
    """Return the claim to the store in a database; nothing is taken yet."""
    if database.path is not None:
        return FileClaim(database.path, database.url)
    if not hasattr(select, "poll"):
        raise StoreError(
            "a store on PostgreSQL needs poll(2), which this system does not have: use a SQLite file, or another system"
        )
    # Here and not above: who has a file does without.
    from procsched.stores.lease import LeaseClaim

    return LeaseClaim(database)
