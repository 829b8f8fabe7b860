"""Benchmarks: procsched beside its peers, in the same run.

    pip install '.[bench]'
    python -m tests.bench                                 # everything; about 50 minutes
    python -m tests.bench --only deadline --rounds 3      # the cases whose name begins with this
    python -m tests.bench --quick --only import           # seconds: shows that the script works, measures nothing
    python -m tests.bench --json out.json --plot out.png  # --plot needs '.[plot]'

**How it measures.** Every (case, peer, round) is a fresh process. Peers are interleaved and their order rotates by
round, so that a busy neighbour hits all of them alike. A figure is the median over the rounds (min-max); a ratio is
taken within each round, then the median. OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE are unset. `*` marks a peer of which
a round was taken while more than 15 % of the machine was busy with something else. A peer that is not installed is
reported and left out.

**How to read it.** One table per case: a line per peer, a column per figure. At the end one line per bar of the
issues: what is asked, the figure of procsched, what it is held against, the ratio, and whether it holds. Where a bar
has a ratio, the ratio decides. Times of a kill are held against a *bare loop* (timer descriptor, SIGKILL, pid
descriptor readable, on a small forked child that hangs in the same way), which is what this machine can do at that
moment. Absolute figures differ between machines, and on a virtual one between two minutes; no test looks at them.

**Files.** `kills.py`, `storms.py`, `idling.py`, `dates.py`, `starting.py`, `throughput.py`, `latency.py`,
`footprint.py`, `payloads.py`, `stores.py` and `sandbox.py` hold the cases; `peers.py` and `streams.py` give the pools
one face, `actions.py` what they run; `framework.py`, `child.py`, `report.py` and `__main__.py` run and print.
"""
