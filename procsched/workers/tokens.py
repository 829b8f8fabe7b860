"""Tokens: who has a call that was sent ahead, decided by the kernel.

A worker that is busy may be sent calls in advance, so that it need not wait for the parent between them. Such a call
must still be cancelled, outrun by a more urgent one or given to somebody else, and must start at most once. So each
comes with a token, ten bytes in a pipe of which both sides hold both ends: the worker takes one before it starts
the call, the parent takes back all that are left. A byte in a pipe is read once (pipe(7)), and that decides.

The parent writes the tokens before the calls. A worker that has a call and finds no token for it knows that the call
was taken back.
"""

from __future__ import annotations

import os
from itertools import count as count_from
from itertools import repeat

from procsched import _system
from procsched._core.wire import TOKEN, TOKEN_MARK

_MOST = 512  # tokens that can be in a pipe: far fewer calls are sent to a worker ahead


class Tokens:
    """The parent's side. All methods with the pool's lock held; none blocks."""

    def __init__(self) -> None:
        """Make the pipe.

        Raises:
            OSError: no descriptors are left.
        """
        self.reader, self.writer = _system.pipe()
        os.set_blocking(self.reader, False)  # for the worker's end too: it is the same open file
        os.set_blocking(self.writer, False)
        # What was read last stays here, should a signal handler raise before the caller has seen it.
        self._read = bytearray(_MOST * TOKEN.size)
        # What came back is no row of whole tokens: something else has written into the pipe, or read from it.
        self.broken = False

    def grant(self, first: int, count: int) -> None:
        """Allow the worker to start the calls with `count` numbers from `first` on."""
        os.write(self.writer, b"".join(map(TOKEN.pack, repeat(TOKEN_MARK, count), count_from(first))))

    def take_back(self) -> set[int]:
        """Take back what the worker has not taken; return the numbers of those calls."""
        try:
            count = os.readv(self.reader, (self._read,))
        except BlockingIOError:
            return set()
        rest = count % TOKEN.size
        found = list(TOKEN.iter_unpack(self._read[: count - rest]))
        if rest or any(mark != TOKEN_MARK for mark, _number in found):
            self.broken = True
        return {number for mark, number in found if mark == TOKEN_MARK}

    def take_back_again(self) -> set[int]:
        """Do the same after it was interrupted. Numbers that were taken back before may be among them."""
        seen = {number for _mark, number in TOKEN.iter_unpack(self._read)}
        return seen | self.take_back()

    def close(self) -> None:
        """Close both ends."""
        os.close(self.reader)
        os.close(self.writer)
