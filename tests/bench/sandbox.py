"""What a sandbox costs, and what attackers cost a neighbour.

Measured by a host program of an unprivileged user (and of root, with private uids), because that is who has a sandbox.
The measured process starts it in a mount namespace in which everybody can read the interpreter, as the escape suite
does.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from tests.bench.framework import Bar, Figures, case, percentile

HELLO = "def f():\n    return 1"
FLOODS = {
    "frames": """
import json, os
def f():
    body = json.dumps({"kind": "progress", "done": 1, "total": None, "note": "x" * 400}).encode()
    while True:
        os.write(4, len(body).to_bytes(4, "big") + body)
""",
    "output": """
import os
def f():
    try:
        while True:
            os.write(1, b"x" * 65536)
    except OSError:
        while True:
            pass
""",
    "results": "def f():\n    return [[n] for n in range(30_000)]",
    "escapes": """
import os
def f():
    os.write(1, b"\\x1b" * 65536)
    raise ValueError("\\x1b" * 10_000)
""",
}
SHORT = ("results", "escapes")  # these end by themselves, and come again and again
HELLOS, CALLS = 40, 300
WAIT = 250.0  # seconds for a host


def bare(quick: bool) -> Figures:
    """Start an interpreter that does nothing, again and again."""
    taken = []
    for _ in range(5 if quick else HELLOS):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
        taken.append((time.monotonic() - begun) * 1000)
    return {"p50": statistics.median(taken), "in_a_row": statistics.fmean(taken)}


def hello(layers: str, quick: bool) -> Figures:
    """One call after another with a process that waits for it; and many at once, which have to wait for one each."""
    from procsched import ProcessExecutor, Sandbox, Source

    job = Source(HELLO, "f")
    waited, between = [], []
    with ProcessExecutor(1, timeout=20, sandbox=Sandbox(**_policy(layers))) as executor:
        executor.submit(job).result()
        for _ in range(5 if quick else HELLOS):
            while not any(worker.state == "idle" for worker in executor.stats().workers):
                time.sleep(0.002)
            begun = time.monotonic()
            executor.submit(job).result()
            waited.append((time.monotonic() - begun) * 1000)
        futures = [executor.submit(job) for _ in range(5 if quick else HELLOS)]
        last = time.monotonic()
        for future in futures:
            future.result()
            now = time.monotonic()
            between.append((now - last) * 1000)
            last = now
    return {"p50": statistics.median(waited), "in_a_row": statistics.fmean(between)}


def neighbour(flood: str, quick: bool) -> Figures:
    """Return what trusted calls take beside ten attackers, beside ten processes that only compute, or alone.

    Most attackers compute as well. What ten loops cost is the kernel's doing; what more an attacker costs is ours. The
    attackers have what others leave of the processors, and not the first, as all sandboxed jobs; the loops have an
    equal share of all.
    """
    from procsched import ProcessExecutor, Sandbox, Source

    policy = Sandbox(**_policy("portable"))
    loops = []
    with (
        ProcessExecutor(1) as trusted,
        ProcessExecutor(10, timeout=200, sandbox=policy) as sandboxed,
    ):
        trusted.submit(abs, -1).result()
        if flood == "loops":
            code = "while True: pass"
            loops = [subprocess.Popen([sys.executable, "-I", "-S", "-c", code]) for _ in range(10)]
        elif flood:
            for _ in range(2000 if flood in SHORT else 10):
                sandboxed.submit(Source(FLOODS[flood], "f"))
            enough = 2 if flood in SHORT else 10
            while sum(worker.state == "busy" for worker in sandboxed.stats().workers) < enough:
                time.sleep(0.01)
        taken = []
        for _ in range(30 if quick else CALLS):
            begun = time.monotonic()
            trusted.submit(abs, -1).result()
            taken.append((time.monotonic() - begun) * 1000)
            time.sleep(0.005)
        for process in loops:
            process.kill()
            process.wait()
        sandboxed.shutdown(wait=False, cancel_futures=True)
        sandboxed.kill_workers()
    return {"p50": percentile(taken, 0.5), "p99": percentile(taken, 0.99)}


def _policy(layers: str) -> dict[str, Any]:
    from tests.sandbox.host import UIDS

    policy: dict[str, Any] = {"run_as": UIDS} if os.getuid() == 0 else {}
    return policy | ({"give_up": frozenset({"names"})} if layers == "portable" else {})


def by_host(name: str, of_root: bool, quick: bool) -> Figures:
    """Measure in a host program of another user, or of this one where this is not root."""
    from tests.sandbox import hosts

    if of_root and not hosts.IS_ROOT:
        raise ImportError("root, with private uids")
    uid = 0 if of_root or not hosts.IS_ROOT else hosts.USER
    words = ("-m", "tests.bench.sandbox", name, str(uid), "quick" if quick else "full")
    command = hosts.mounted(uid, *words) if hosts.IS_ROOT else [sys.executable, *words]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    environ["PYTHONPATH"] = "/mnt/code" if hosts.IS_ROOT else str(hosts.ROOT)
    done = subprocess.run(
        command, env=environ, stdout=subprocess.PIPE, text=True, timeout=WAIT, check=True, cwd="/"
    )
    found: Figures = json.loads(done.stdout)
    return found


MEASURES = {"bare": bare} | {
    **{layers: functools.partial(hello, layers) for layers in ("portable", "namespaces")},
    **{flood: functools.partial(neighbour, flood) for flood in ("", "loops", *FLOODS)},
}


def _measured(name: str, *, of_root: bool = False) -> Any:
    return functools.partial(by_host, name, of_root)


case(
    "sandbox-hello",
    "a sandboxed call that does nothing, beside the start of a bare interpreter",
    peers={
        "bare": _measured("bare"),
        "procsched": _measured("portable"),
        "procsched-namespaces": _measured("namespaces"),
        "procsched-root": _measured("portable", of_root=True),
        "procsched-root-namespaces": _measured("namespaces", of_root=True),
    },
    units={"p50": "ms", "in_a_row": "ms"},
    bars=tuple(
        Bar(what, figure, limit, "bare", ours)
        for what, figure in (("a call, p50", "p50"), ("calls without a pause, each", "in_a_row"))
        for ours, limit in (
            *(("procsched", 3), ("procsched-namespaces", 4)),
            *(("procsched-root", 3), ("procsched-root-namespaces", 4)),
        )
    ),
)
case(
    "sandbox-neighbour",
    "a call of a pool of trusted code, beside ten sandboxed jobs that flood the parent",
    peers={"quiet": _measured(""), "ten loops": _measured("loops")}
    | {f"procsched-{flood}": _measured(flood) for flood in FLOODS},
    units={"p50": "ms", "p99": "ms"},
    bars=tuple(
        Bar(f"beside a flood of {flood}, p99", "p99", 2, "quiet", f"procsched-{flood}") for flood in FLOODS
    ),
)


if __name__ == "__main__":
    from tests.sandbox.host import drop

    if int(sys.argv[2]):
        drop(int(sys.argv[2]))
    print(json.dumps(MEASURES[sys.argv[1]](sys.argv[3] == "quick")))
