"""The socket beside a SQLite store, through which other processes ask its scheduler for something.

    client --connect--> jobs.db-control --"procsched-control" thread: accept--> a thread for this one request
           --one line of JSON-->                                   read, obey, answer, close
           <--one line of JSON--

It has a name in the directory of the store, mode 0600, and never one that lies outside the file system; besides, the
kernel says which user is at the other end. The thread that accepts sleeps while nobody comes. Each request has a thread
of its own, for it may wait for the disk, and a client that says nothing keeps nobody waiting but itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import select
import socket
import struct
import threading

from procsched import _forks, _places, _system
from procsched._logs import say
from procsched.clock import real_seconds
from procsched.errors import StoreError
from procsched.stores import remedies
from procsched.stores.file_lock import Waker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Final

REQUEST_BYTES: Final = 8 << 20  # of a request; one that schedules has the call in it
ANSWER_BYTES: Final = 1 << 20
CLIENT_SECONDS: Final = 5.0  # for a client to say what it wants, and to take the answer
MOST_CLIENTS: Final = 32  # at once; more wait in the queue of the kernel
BACKLOG: Final = 128
CLOSE_SECONDS: Final = 1.0  # for requests that are being answered when the store is closed
ADDRESS_BYTES: Final = 100  # a bit less than any system's limit (108 on Linux; unix(7))
_NAME_BYTES: Final = 60


def socket_path(store: str) -> str:
    """Return where the socket of a store is, whose path is a real one. A long name is replaced by its digest."""
    directory, name = os.path.split(store)
    if len(os.fsencode(name)) > _NAME_BYTES:
        name = f"procsched-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}"
    return os.path.join(directory, name + _places.CONTROL)


@contextlib.contextmanager
def _address(path: str) -> Iterator[str]:
    """Give what to bind or connect to: the path, or a short one that leads there.

    Raises:
        OSError: the path is too long, and this system has no short one.
    """
    if len(os.fsencode(path)) <= ADDRESS_BYTES:
        yield path
        return
    directory, name = os.path.split(path)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _system.path_below(descriptor, name)
    finally:
        os.close(descriptor)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user of the process at the other end, as the kernel knows them (unix(7)); -1 where it does not."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return -1, -1
    pid, user, _group = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, 12))
    return pid, user


def _read_line(connection: socket.socket, what: str, most: int, seconds: float) -> bytes:
    """Return one line, without its end.

    Args:
        what: it is: a request, or an answer.
    Raises:
        ValueError: it is too long, or does not end in time.
    """
    end = real_seconds() + seconds
    parts, size = [], 0
    while True:
        left = end - real_seconds()
        if left <= 0.0:
            raise ValueError(f"no whole {what} came within {seconds:g} s")
        connection.settimeout(left)
        try:
            part = connection.recv(65_536)
        except TimeoutError:
            continue
        size += len(part)
        if size > most:
            raise ValueError(f"the {what} is too long: it may have at most {most} bytes")
        parts.append(part)
        if not part or part.endswith(b"\n"):
            return b"".join(parts)


def _identity_of(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


class Door:
    """Where requests come in.

    Args:
        store: the real path of the store. Its lock is held: whatever lies at the socket's path is of a dead owner.
        obey: called with a request, plain data of whatever form, and `who` asks; returns the answer. In any thread.
    Raises:
        OSError: the socket cannot be made.
    """

    def __init__(self, store: str, obey: Callable[[Any, str], dict[str, Any]]) -> None:
        self.path = socket_path(store)
        self._obey = obey
        self._lock = threading.Lock()  # guards the next two, for a few instructions
        self._clients: dict[threading.Thread, socket.socket] = {}
        self._full = False  # no further client is accepted until one has gone
        self._closing = False
        self._listener = self._listen()
        try:
            self._waker = Waker()
            self._thread = threading.Thread(target=self._run, name="procsched-control", daemon=True)
            self._thread.start()
        except BaseException:
            self._listener.close()
            raise
        _forks.note(self)

    def _listen(self) -> socket.socket:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Before the bind, so that it is never anything else: on Linux the name gets the mode of the socket.
            with contextlib.suppress(OSError):
                os.fchmod(listener.fileno(), 0o600)
            with _address(self.path) as address:
                listener.bind(address)
            os.chmod(self.path, 0o600)
            self._identity = _identity_of(self.path)
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Let nobody in any more, and let those who are in have their answers, for a moment."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._waker.wake()
        self._thread.join()
        with contextlib.suppress(OSError):
            # Or else whoever has taken the store from us listens there.
            if _identity_of(self.path) == self._identity:
                os.unlink(self.path)
        with contextlib.suppress(OSError):
            while True:  # nobody else finds us, but these have
                self._let_in(self._listener.accept()[0])
        self._listener.close()
        self._waker.close()
        with self._lock:
            clients = dict(self._clients)
        end = real_seconds() + CLOSE_SECONDS
        for thread, connection in clients.items():
            if thread is threading.current_thread():
                continue
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)  # who still reads has nothing to wait for
            thread.join(max(0.0, end - real_seconds()))

    def after_fork(self) -> None:
        """In a fork of the process: let go of the descriptors, which are the parent's; their names stay."""
        self._lock = threading.Lock()
        if self._closing:
            return
        self._closing = True
        self._listener.close()
        self._waker.close()
        for connection in self._clients.values():
            connection.close()
        self._clients.clear()

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self._waker.reader, select.POLLIN)
        poller.register(self._listener, select.POLLIN)
        while True:
            for descriptor, _events in poller.poll():
                if descriptor == self._waker.reader:
                    self._waker.drain()
            with self._lock:
                if self._closing:
                    return
                self._full = len(self._clients) >= MOST_CLIENTS
                full = self._full
            if full:
                self._wait_for_waker()
                continue
            try:
                connection, _name = self._listener.accept()
            except OSError as error:  # it has gone again; or no descriptor is left
                if not isinstance(error, (BlockingIOError, ConnectionAbortedError)):
                    self._rest(error)
                continue
            self._let_in(connection)

    def _rest(self, error: OSError) -> None:
        """Wait a moment before the next try: the one who waits outside would wake us again at once."""
        say(logging.WARNING, "a request to the scheduler cannot be taken: %s; tried again in a second", error)
        self._wait_for_waker(1.0)

    def _wait_for_waker(self, seconds: float | None = None) -> None:
        poller = select.poll()  # and not select(2), which takes no descriptor above 1023
        poller.register(self._waker.reader, select.POLLIN)
        poller.poll(None if seconds is None else seconds * 1000)

    def _let_in(self, connection: socket.socket) -> None:
        thread = threading.Thread(
            target=self._serve, args=(connection,), name="procsched-request", daemon=True
        )
        with self._lock:
            self._clients[thread] = connection
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left: the client is told by the end of its connection
            self._leave(thread, connection)

    def _leave(self, thread: threading.Thread, connection: socket.socket) -> None:
        connection.close()
        with self._lock:
            self._clients.pop(thread, None)
            full = self._full
        if full:
            self._waker.wake()

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._answer(connection)
        except OSError:  # the client has gone, or takes no answer
            pass
        finally:
            self._leave(threading.current_thread(), connection)

    def _answer(self, connection: socket.socket) -> None:
        pid, user = _peer(connection)
        if user not in (-1, 0, os.geteuid()):
            say(
                logging.WARNING, "process %d of user %d asked the scheduler for something: refused", pid, user
            )
            answer = {"error": f"the scheduler obeys its own user only, not user {user}"}
        else:
            try:
                line = _read_line(connection, "request", REQUEST_BYTES, CLIENT_SECONDS)
                if not line:
                    return  # somebody who looks whether we are there
                request = json.loads(line)
            except (ValueError, RecursionError) as error:
                answer = {"error": f"the request cannot be read: {error}"}
            else:
                answer = self._obey(request, f"process {pid}")
        connection.settimeout(CLIENT_SECONDS)
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _unanswered(why: object) -> str:
    return f"the scheduler did not answer: {why}; look at the task whether it has obeyed all the same"


def _owner_of(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def ask(store: str, request: dict[str, Any], seconds: float) -> dict[str, Any] | None:
    """Ask the scheduler of a store, and return its answer; None where none listens, or none can.

    Args:
        store: the real path of the store.
        seconds: for the answer.
    Raises:
        StoreError: it did not answer, or somebody else listens.
    """
    if not hasattr(socket, "AF_UNIX"):
        return None
    path = socket_path(store)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        try:
            with _address(path) as address:
                connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError, BlockingIOError, TimeoutError):
            return None
        except PermissionError as error:
            raise StoreError(
                f"{path} belongs to another user: only the user of a scheduler, and root, can steer it"
            ) from error
        except OSError as error:
            raise StoreError(f"{path} cannot be used: {remedies.of_system(error)}") from error
        _pid, user = _peer(connection)
        if user not in (-1, 0, os.geteuid()) and user != _owner_of(store):
            raise StoreError(
                f"at {path} a process of user {user} listens, to whom the store does not belong: it is not told "
                "anything; see who may write that directory"
            )
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
        except OSError:  # it has not read the request to its end
            with contextlib.suppress(OSError, ValueError):  # it may have said why; else it has ended
                return _opened(_read_line(connection, "answer", ANSWER_BYTES, CLIENT_SECONDS))
            return None
        try:
            line = _read_line(connection, "answer", ANSWER_BYTES, seconds)
        except OSError as error:  # it was ended meanwhile
            raise StoreError(_unanswered(error.strerror or error)) from error
        except ValueError as error:
            raise StoreError(_unanswered(error)) from error
    try:
        return _opened(line)
    except ValueError:
        raise StoreError("the scheduler ended before it answered: look at the task for what it did") from None


def _opened(line: bytes) -> dict[str, Any]:
    answer = json.loads(line)
    if not isinstance(answer, dict):
        raise ValueError("it is no answer")
    return answer
