"""`map` of an executor: which items go together, how far ahead they are sent, and in what order they come back.

    items --zip--> send() --submit--> Core ... worker
                     ^                  |
                     | one for each     v
    consumer <-- results() <-- sent: futures in the order of their items
                     |
                     '-- Tally: ends in whatever order they come --> progress(done, total)

All of it runs in the threads that call `map` and its iterator; there is no thread here.
"""

from __future__ import annotations

import collections
import functools
import itertools
import queue
import sys
import time
from concurrent.futures import CancelledError

from procsched._core.checks import waiting_seconds, whole_number
from procsched.child.chunks import apply_each, apply_each_star
from procsched.errors import ValidationError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from procsched.call_options import Options
    from procsched.calls import Core
    from procsched.future import ProcessFuture

    Report = Callable[[int, int | None], object]


def start(
    core: Core,
    options: Options,
    fn: Callable[..., Any],
    iterables: tuple[Iterable[Any], ...],
    owner: object,
    *,
    timeout: float | None,
    chunksize: int,
    buffersize: int | None,
    return_exceptions: bool,
    progress: bool | Report | None,
) -> Iterator[Any]:
    """Send what may be sent now, and return the iterator over the results: see `ProcessExecutor.map`.

    Args:
        owner: kept as long as there is more to send, since the calls would be refused after it is gone. An iterator
            that has sent everything keeps no executor alive, as the library's does not.
    """
    chunksize = min(whole_number("chunksize", chunksize), sys.maxsize)
    if buffersize is not None:
        whole_number("buffersize", buffersize)
    end = None if timeout is None else time.monotonic() + waiting_seconds("timeout", timeout)
    tally = _tally(progress, iterables)
    core.check_open()
    # With a limit or an outcome of its own each item is an attempt; how many go in one packet is the pool's business.
    each = chunksize == 1 or return_exceptions or options.per_item or core.pool.options.limits is not None
    # One for the whole map: what is known of its pace hangs on it.
    run_chunk = functools.partial(apply_each if len(iterables) == 1 else apply_each_star, fn)
    if each:
        items = zip(*iterables, strict=False)
    else:
        chunks = _chunks(iterables, chunksize)
    sent: collections.deque[ProcessFuture[Any]] = collections.deque()

    def send() -> bool:
        if each:
            for args in items:
                sent.append(core.submit(fn, args, {}, options))
                break
            else:
                return False
            count = 1
        else:
            chunk = next(chunks)
            if not chunk:
                return False
            sent.append(core.submit(run_chunk, (chunk,), {}, options))
            count = len(chunk)
        if tally is not None:
            tally.expect(sent[-1], count)
        return True

    if buffersize is None:
        while send():
            pass
        if tally is not None:
            tally.all_sent()
        return _results(sent, None, None, end, tally, chunked=not each, return_exceptions=return_exceptions)
    window = buffersize * chunksize if each else buffersize
    while len(sent) < window and send():
        pass
    return _results(sent, send, owner, end, tally, chunked=not each, return_exceptions=return_exceptions)


def _chunks(iterables: tuple[Iterable[Any], ...], size: int) -> Iterator[Sequence[Any]]:
    """Yield so many items at a time for ever: where there are no more, an empty chunk."""
    if len(iterables) != 1:
        items: Iterator[Any] = zip(*iterables, strict=False)
    elif type(iterables[0]) is range:
        # As ranges, which are a few bytes however long they are.
        span = iterables[0]
        yield from (span[start : start + size] for start in itertools.count(0, size))
    else:
        items = iter(iterables[0])  # bare: a tuple around each costs more than the rest
    while True:
        yield list(itertools.islice(items, size))


def _results(
    sent: collections.deque[ProcessFuture[Any]],
    send: Callable[[], bool] | None,
    owner: object,
    end: float | None,
    tally: Tally | None,
    *,
    chunked: bool,
    return_exceptions: bool,
) -> Iterator[Any]:
    """Yield results in order, sending one chunk for each that was taken; cancel the rest when left early.

    A result that was yielded is not referred to any more.
    """
    try:
        while sent:
            if tally is not None:
                tally.wait(sent[0], end)
            # In a list, from which it is taken when it is yielded: a name would keep it. The future stays where it is
            # until then, so that it is cancelled with the others.
            values = [_outcome(sent[0], end, return_exceptions=return_exceptions)]
            sent.popleft()
            if send is not None and not send():
                send = owner = None  # noqa: F841  # the executor may go
                if tally is not None:
                    tally.all_sent()
            if chunked:
                values = values.pop()
                values.reverse()
            while values:
                yield values.pop()
    finally:
        for future in reversed(sent):  # those that wait first: no room is made for them
            future.cancel()
        if tally is not None:
            tally.close()


def _outcome(future: ProcessFuture[Any], end: float | None, *, return_exceptions: bool) -> Any:
    left = None if end is None else end - time.monotonic()
    if return_exceptions:
        try:
            error = future.exception(left)
        except CancelledError as cancelled:  # by a shutdown: what has ended is not lost by that
            return cancelled.with_traceback(None)
        if error is not None:
            return error
    value = future.result(left)
    future._let_go()
    return value


# --- progress -------------------------------------------------------------------------------------------------


def _tally(progress: bool | Report | None, iterables: tuple[Iterable[Any], ...]) -> Tally | None:
    if progress is None or progress is False:
        return None
    total = _length(iterables)
    if progress is True:
        from procsched.progress import bar

        drawn = bar()
        return Tally(drawn, total, drawn.close)
    if not callable(progress):
        raise ValidationError(
            f"progress must be a callable that takes (done, total), or True for a bar, not {progress!r}"
        )
    return Tally(progress, total)


def _length(iterables: tuple[Iterable[Any], ...]) -> int | None:
    """Return how many items there are, or None where an iterable cannot say."""
    try:
        return min((len(iterable) for iterable in iterables), default=0)  # type: ignore[arg-type]
    except Exception:  # it has no length, or its class raises something of its own
        return None


class Tally:
    """Counts the items that have ended, in whatever order, and tells who wants to know, in the consumer's thread.

    Attributes:
        expected: items sent so far.
        total: items there are, None while nobody knows.
    """

    def __init__(self, report: Report, total: int | None, close: Callable[[], object] | None = None) -> None:
        self.report = report
        self.total = total
        self.close = close or (lambda: None)
        self.expected = 0
        self.done = 0
        self._counts: dict[ProcessFuture[Any], int] = {}  # of those sent and not counted yet
        # Filled by whoever ends a call, the I/O thread in most cases, with the future's condition held.
        self._ended: queue.SimpleQueue[ProcessFuture[Any]] = queue.SimpleQueue()
        # A future tells its waiters in the step that ends it; done-callbacks come later, behind those of others.
        self.add_result = self.add_exception = self.add_cancelled = self._ended.put

    def expect(self, future: ProcessFuture[Any], count: int) -> None:
        """Hear of a call that was sent, for so many items."""
        self.expected += count
        self._counts[future] = count
        with future._condition:
            if not future.done():
                future._waiters.append(self)
                return
        self._ended.put(future)

    def all_sent(self) -> None:
        """Hear that there are no more items than those expected so far."""
        known, self.total = self.total, self.expected
        if known is None and self.done == self.total and self.done:
            self.report(self.done, self.total)  # the last that was told came without the total

    def wait(self, future: ProcessFuture[Any], end: float | None) -> None:
        """Wait until this one has ended, and tell of all that end meanwhile.

        Args:
            end: steady time after which to raise TimeoutError, or None.
        Raises:
            Exception: what the callable raises.
        """
        while True:
            over = future.done()
            while not self._ended.empty():
                self._count(self._ended.get())
            # It may have ended while others were told of, and be counted among them.
            if over or future not in self._counts:
                self._count(future)  # should its place in the queue be taken a moment later
                return
            future._owner.refuse_wait()  # as `result` does, where nobody would ever end it
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                self._count(self._ended.get(timeout=left))
            except queue.Empty:
                raise TimeoutError from None

    def _count(self, future: ProcessFuture[Any]) -> None:
        count = self._counts.pop(future, 0)
        if count:
            self.done += count
            self.report(self.done, self.total)
