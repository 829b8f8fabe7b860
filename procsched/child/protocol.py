"""What the parent and a worker agree on beside the frames: the words of the shared page, and the signals."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import mmap

PAGE_SIZE = mmap.PAGESIZE
PAGE_WORDS = PAGE_SIZE // 8  # words of eight bytes

# Written by the parent before it sends the signal.
ASK_NUMBER = 0  # the run that is asked to stop
ASK_REASON = 1  # why: one of the three below
STARTED = 2  # written by the worker before it unpickles a call: the number of the last run that it began
STARTED_AT = 3  # written before that: when, as a float of steady seconds
ANSWERED = 4  # written by the worker when it has written an answer whole: the number of the run
# Written by the worker when it has asked for its usage: all the seconds of CPU time that it has used until then, with
# those of children that it has reaped, as a float. What it uses later is of the run that goes on, or comes next.
USED_BEFORE = 5
RESIDENT_BEFORE = 6  # written by the worker before a run with limits begins: bytes of memory that it has
# Written by the worker with `USED_BEFORE`: the peak bytes of the largest child that it has reaped until then, which the
# kernel counts into the peak of a worker that has ended.
CHILD_PEAK_BEFORE = 7
REASON_DEADLINE = 1
REASON_KILL = 2
REASON_SOFT = 3

# Real-time signals from the top, where nobody else looks; SIGALRM, SIGUSR1, SIGUSR2 and SIGINT stay the user's.
SOFT_SIGNAL = int(getattr(signal, "SIGRTMAX", 64)) - 1
DUMP_SIGNAL = int(getattr(signal, "SIGRTMAX", 64)) - 2
