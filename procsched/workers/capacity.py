"""How many workers this process has the processors and the descriptors for."""

from __future__ import annotations

import errno

from procsched import _system

# Descriptors of this process: of the pool itself, with those that a start needs for a moment; and of each worker, with
# that of a thread which waits for it.
POOL_DESCRIPTORS, WORKER_DESCRIPTORS = 14, 7


def check_descriptors(size: int) -> None:
    """Refuse a pool for which this process has no descriptors: else it would be found out in the midst of the work.

    Raises:
        OSError: EMFILE, with the figures and what to do.
    """
    limit, used = _system.descriptor_limit(), _system.open_descriptors()
    needed = POOL_DESCRIPTORS + WORKER_DESCRIPTORS * (size + 1)  # with a spare
    if used + needed > limit:
        raise OSError(
            errno.EMFILE,
            f"a pool of {size} workers needs up to {needed} descriptors, and this process has {used} open of the "
            f"{limit} that it may have (RLIMIT_NOFILE): raise the limit (ulimit -n), close some, or use fewer workers",
        )


def default_size() -> int:
    """Return the number of CPUs, or fewer where half of the descriptors would not do for so many workers."""
    most = (_system.descriptor_limit() // 2 - POOL_DESCRIPTORS) // WORKER_DESCRIPTORS - 1
    return max(1, min(_system.cpus(), most))
