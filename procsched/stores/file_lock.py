"""The lock that says who schedules from a SQLite file: it dies with its holder.

    owner    flock --> jobs.db-owner <-- inotify, pidfd of the owner -- standby, asleep

The lock is flock(2), on Windows LockFileEx, on a file of its own beside the store: SQLite's locks on the store itself
would be dropped if any descriptor of that were closed. It belongs to the open file and not to the process, so a fork
gives its copy back at once (`after_fork`), and an exec does not get one. The file is never removed: whoever opened it
just before would lock what nobody else finds. Should somebody else remove it, the epoch stops the one that had it.
"""

from __future__ import annotations

import json
import os
import select
import threading
import time

from procsched import _forks, _libc, _system
from procsched.clock import real_seconds
from procsched.errors import SchedulerStateError, StoreError
from procsched.stores import holder, remedies
from procsched.stores.os_lock import try_lock, unlock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, Final

IN_MODIFY: Final = 0x2  # inotify(7); the same on every architecture
IN_CLOSE_WRITE: Final = 0x8
IN_DELETE_SELF: Final = 0x400
# Seconds between the tries after a sign that the owner may be gone. The kernel tells of a closed file a moment before
# it drops its lock; where the owner's pid cannot be watched there is no other sign.
RETRIES: Final = (0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5)
LOOK_SECONDS: Final = 1.0  # between tries where the system cannot tell of a change, as macOS and Windows
VISIT_SECONDS: Final = 5.0  # for which a visit is waited for, by looking again and again
VISIT_PAUSE: Final = 0.02
HOLDER_BYTES: Final = 4096


class Waker:
    """A pipe that ends the waits of a thread. Made at its first use; `close` when nobody waits any more."""

    def __init__(self) -> None:
        self.reader, self._writer = _system.pipe()
        os.set_blocking(self.reader, False)
        os.set_blocking(self._writer, False)

    def wake(self) -> None:
        """End the wait that goes on, or else the next one. From any thread."""
        try:
            os.write(self._writer, b"x")
        except OSError:  # it is full: there are wake-ups enough in it; or closed
            return

    def drain(self) -> None:
        """Forget the wake-ups so far."""
        try:
            while os.read(self.reader, 512):
                continue
        except BlockingIOError:
            return

    def close(self) -> None:
        """Close both ends, once."""
        reader, writer, self.reader, self._writer = self.reader, self._writer, -1, -1
        for descriptor in (reader, writer):
            if descriptor >= 0:
                os.close(descriptor)


class FileLock:
    """The lock of one store.

    Args:
        path: of the store.
        url: for errors.
    Attributes:
        visiting: it is taken for a moment only.
    Thread safety: `take` and `release` by one thread at a time; `stop_waiting` from any.
    """

    def __init__(self, path: Path, url: str) -> None:
        real = os.path.realpath(path)
        self._store = real
        self.path = f"{real}-owner"
        self._url = url
        self.visiting = False
        self._fd = -1
        self._taking = -1  # the descriptor that `take` tries, or waits, to lock
        self._lock = threading.Lock()  # guards the next two, for a few instructions
        self._waker: Waker | None = None
        self._stopped = False
        self._stop = threading.Event()  # the same, for systems without poll(2)
        _forks.note(self)

    @property
    def held(self) -> bool:
        """Whether this object has the lock."""
        return self._fd >= 0

    def take(self, standby: bool) -> None:
        """Take the lock.

        Args:
            standby: wait for it, as long as it takes.
        Raises:
            StoreInUseError: somebody else has it. SchedulerStateError: `stop_waiting` was called.
        """
        while True:
            descriptor = self._taking = self._open()
            try:
                if not try_lock(descriptor):
                    if standby:
                        self._wait(descriptor)
                    elif not self._outwait_visit(descriptor):
                        raise holder.in_use(self._url, self.read_holder())
                if self._is_current(descriptor):
                    os.ftruncate(descriptor, 0)
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    os.write(descriptor, json.dumps(holder.this_process(self.visiting)).encode() + b"\n")
                    self._fd = descriptor
                    self._taking = -1
                    return
            except BaseException as error:
                self._taking = -1
                os.close(descriptor)
                if isinstance(error, OSError):  # no space is left, or the file system knows no locks
                    raise self._refusal("taken", error) from error
                raise
            self._taking = -1
            os.close(descriptor)  # of a file that somebody has removed

    def release(self) -> None:
        """Give the lock back; nothing where it is not held."""
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            self.may_wait()
            unlock(descriptor)  # first: who waits is woken by the close
            os.close(descriptor)

    def stop_waiting(self) -> None:
        """End a `take` that waits, also one that is to come."""
        with self._lock:
            self._stopped = True
            self._stop.set()
            if self._waker is not None:
                self._waker.wake()

    def may_wait(self) -> None:
        """Forget `stop_waiting`."""
        self._stopped = False
        self._stop.clear()

    def after_fork(self) -> None:
        """In a fork of the process: the lock is the parent's, or will be. Closing this copy leaves it that."""
        self._lock = threading.Lock()
        self._stop = threading.Event()
        descriptors = {self._fd, self._taking} - {-1}
        self._fd = self._taking = -1
        for descriptor in descriptors:
            os.close(descriptor)
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    def read_holder(self) -> dict[str, Any]:
        """Return what the holder wrote down; that of the last one, where there is none."""
        try:
            with open(self.path, "rb") as file:
                return holder.read_holder(file.read(HOLDER_BYTES))
        except OSError:
            return {}

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise self._refusal("opened", error) from error
        try:
            # Whoever may write the store may be its owner: that is others only where it was allowed to be.
            mode = os.stat(self._store).st_mode & 0o666
            found = os.fstat(descriptor)
            if found.st_mode & 0o777 != mode and found.st_uid == os.geteuid():
                os.fchmod(descriptor, mode)
        except (AttributeError, OSError):  # Windows; or the store is only about to be made
            pass
        return descriptor

    def _refusal(self, what: str, error: OSError) -> StoreError:
        return StoreError(f"the lock {self.path} of the store cannot be {what}: {remedies.of_system(error)}")

    def _is_current(self, descriptor: int) -> bool:
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(descriptor))

    def _outwait_visit(self, descriptor: int) -> bool:
        """Take the lock when it is had for a moment only, by `procsched cancel` and the like. Return whether it is."""
        end = real_seconds() + VISIT_SECONDS
        while self.read_holder().get("visiting") and real_seconds() < end:
            time.sleep(VISIT_PAUSE)
            if try_lock(descriptor):
                return True
        return False

    def _wait(self, descriptor: int) -> None:
        if not hasattr(select, "poll"):  # Windows
            while not try_lock(descriptor):
                if self._stop.wait(LOOK_SECONDS):
                    raise _stopped()
            return
        with self._lock:
            if self._stopped:
                raise _stopped()
            waker = self._waker = Waker()
        watch = _watch(self.path)
        try:
            while True:
                if self._try_some(descriptor, waker) or not self._is_current(descriptor):
                    return
                self._sleep(watch, waker)
        finally:
            with self._lock:
                self._waker = None
            waker.close()
            if watch >= 0:
                os.close(watch)

    def _try_some(self, descriptor: int, waker: Waker) -> bool:
        for pause in RETRIES:
            self._pause(waker, pause)
            if try_lock(descriptor):
                return True
        return False

    def _pause(self, waker: Waker, seconds: float) -> None:
        poller = select.poll()
        poller.register(waker.reader, select.POLLIN)
        if poller.poll(seconds * 1000) or self._stopped:
            raise _stopped()

    def _sleep(self, watch: int, waker: Waker) -> None:
        """Wait until something happens to the file, or its holder dies. Looked at before: this loses no sign."""
        found = self.read_holder()
        pidfd: int | None = None
        if not holder.is_gone(found) and found.get("boot_id") == holder.this_process()["boot_id"]:
            try:
                pidfd = _system.open_process(found["pid"])
            except OSError:
                pidfd = None
        try:
            poller = select.poll()
            for each in (watch, -1 if pidfd is None else pidfd, waker.reader):
                if each >= 0:
                    poller.register(each, select.POLLIN)
            poller.poll(None if watch >= 0 else LOOK_SECONDS * 1000)
            if watch >= 0:
                _drain(watch)
        finally:
            if pidfd is not None:
                os.close(pidfd)


def _stopped() -> SchedulerStateError:
    return SchedulerStateError("this scheduler was shut down while it stood by for its store")


def _watch(path: str) -> int:
    """Return a descriptor of inotify(7) for a file; -1 where the system has none left, or knows no such thing."""
    try:
        library = _libc.libc()
        descriptor = int(library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    except (AttributeError, OSError):
        return -1
    if descriptor < 0:
        return -1
    if (
        library.inotify_add_watch(descriptor, os.fsencode(path), IN_MODIFY | IN_CLOSE_WRITE | IN_DELETE_SELF)
        < 0
    ):
        os.close(descriptor)
        return -1
    return descriptor


def _drain(watch: int) -> None:
    try:
        while os.read(watch, 4096):
            continue
    except BlockingIOError:
        return
