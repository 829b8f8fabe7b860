"""The memory that a pool shares with its workers: a page for each. `child/protocol.py` says what is in one."""

from __future__ import annotations

import mmap
import os

from procsched import _system
from procsched.child.protocol import PAGE_SIZE, PAGE_WORDS


class Pages:
    """Pages of shared memory. On the I/O thread.

    Attributes:
        fd: the descriptor of all of them, for the helper.
    Raises:
        OSError: no descriptor or no memory is left.
    """

    def __init__(self, count: int) -> None:
        self.fd = _memory_file(count * PAGE_SIZE)
        try:
            self._map = _map(self.fd, count * PAGE_SIZE)
        except BaseException:
            os.close(self.fd)
            raise
        self._words = memoryview(self._map).cast("Q")
        self._floats = memoryview(self._map).cast("d")
        self._free = list(range(count))

    def take(self) -> int:
        """Return the index of a page that nobody has.

        Raises:
            OSError: there is none.
        """
        if not self._free:
            raise OSError("too many workers that cannot be ended")
        return self._free.pop()

    def give_back(self, index: int) -> None:
        """Let somebody else have the page; its worker is gone."""
        self._free.append(index)

    def views(self, index: int) -> tuple[memoryview[int], memoryview[float]]:
        """Return the page as words of eight bytes, and the same memory as floats. To be released by the caller."""
        words = slice(index * PAGE_WORDS, (index + 1) * PAGE_WORDS)
        return self._words[words], self._floats[words]

    def close(self) -> None:
        """Let go of the memory. All views have been released."""
        self._words.release()
        self._floats.release()
        self._map.close()
        os.close(self.fd)


def _map(fd: int, size: int) -> mmap.mmap:
    """Return the memory of a descriptor. Where a standard one is closed, without the duplicate that Python keeps."""
    probe = os.dup(fd)
    os.close(probe)
    if probe <= 2:  # the number that the duplicate would get: see `_system.lift`
        memory = mmap.mmap(-1, size)
        if _system.map_over(memory, fd, mmap.PROT_READ | mmap.PROT_WRITE, shared=True):
            return memory
    return mmap.mmap(fd, size)


def _memory_file(size: int) -> int:
    """Return a descriptor of `size` zero bytes that nobody else can find and that goes with its users."""
    fd = _system.memory_file("procsched", sealable=True)
    sealable = fd is not None
    if fd is None:
        import tempfile

        fd, path = tempfile.mkstemp(prefix="procsched-")
        os.unlink(path)
        fd = _system.lift(fd)
    try:
        os.ftruncate(fd, size)
        if sealable:
            _system.seal(fd, contents=False)  # memory that is gone ends whoever looks at it
    except BaseException:
        os.close(fd)
        raise
    return fd
