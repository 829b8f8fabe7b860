"""A wall clock that can be stepped in one program and its children: a small library, preloaded.

It adds an offset to what the C library says of the wall clock; the offset stands in a file that all of them map. The
kernel knows nothing of it, so its timer descriptor cannot tell of a step as it does when the clock is set.
"""

from __future__ import annotations

import struct
from pathlib import Path

from tests import preloaded

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *seconds;  /* shared by all processes that load this */

__attribute__((constructor)) static void open_offset(void) {
    const char *path = getenv("SHIM_OFFSET");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(0, sizeof *seconds, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) seconds = map;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int failed = syscall(SYS_clock_gettime, clock, at);
    if (!failed && seconds && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *seconds;
    return failed;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def build(directory: Path) -> dict[str, str]:
    """Build it, with an offset of zero, and return the environment variables of programs that are to see it.

    Raises:
        preloaded.Unavailable: there is no C compiler, or it fails.
    """
    offset = directory / "offset"
    library = preloaded.build(SOURCE, directory)
    offset.write_bytes(bytes(8))
    return {"SHIM_OFFSET": str(offset), "LD_PRELOAD": library}


def step(offset: str, seconds: int) -> None:
    """Have programs that see it be off by so many seconds from now on.

    Args:
        offset: the file named by `SHIM_OFFSET`.
    """
    with open(offset, "r+b") as file:
        file.write(struct.pack("q", seconds))
