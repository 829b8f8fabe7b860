"""What a sandbox costs, and what attackers cost a neighbour: ``python -m tests.bench.sandbox``.

Measured by a host program of an unprivileged user (and of root, with private uids), because that is who has a sandbox.
Every figure stands beside one of the same run: a bare interpreter that is started and ends, or a quiet pool.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

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
}
ROUNDS, LATENCIES = 40, 300


def bare(rounds: int) -> float:
    """Return the median seconds of starting an interpreter that does nothing."""
    taken = []
    for _ in range(rounds):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-I", "-c", "pass"], check=True)
        taken.append(time.monotonic() - begun)
    return statistics.median(taken)


def hello(policy: dict[str, Any], rounds: int) -> tuple[float, float]:
    """Return the median seconds of a call where a process waits for it, and where none does."""
    from procsched import ProcessExecutor, Sandbox, Source

    job = Source(HELLO, "f")
    with ProcessExecutor(1, timeout=20, sandbox=Sandbox(**policy)) as executor:
        executor.submit(job).result()
        warm, one_by_one = [], []
        for _ in range(rounds):
            _wait_idle(executor)
            begun = time.monotonic()
            executor.submit(job).result()
            warm.append(time.monotonic() - begun)
        begun = time.monotonic()
        for future in [executor.submit(job) for _ in range(rounds)]:
            future.result()
        one_by_one.append((time.monotonic() - begun) / rounds)
    return statistics.median(warm), one_by_one[0]


def _wait_idle(executor: Any) -> None:
    while not any(worker.state == "idle" for worker in executor.stats().workers):
        time.sleep(0.002)


def neighbour(policy: dict[str, Any], flood: str | None) -> tuple[float, float]:
    """Return median and p99 of the seconds of trusted calls beside ten attackers, or none."""
    from procsched import ProcessExecutor, Sandbox, Source

    with (
        ProcessExecutor(1) as trusted,
        ProcessExecutor(10, timeout=60, sandbox=Sandbox(**policy)) as sandboxed,
    ):
        trusted.submit(abs, -1).result()
        futures = []
        if flood is not None:
            futures = [
                sandboxed.submit(Source(FLOODS[flood], "f")) for _ in range(10 if flood != "results" else 100)
            ]
            while sum(worker.state == "busy" for worker in sandboxed.stats().workers) < 2:
                time.sleep(0.01)
        taken = []
        for _ in range(LATENCIES):
            begun = time.monotonic()
            trusted.submit(abs, -1).result()
            taken.append(time.monotonic() - begun)
            time.sleep(0.005)
        sandboxed.kill_workers()
        del futures
    taken.sort()
    return taken[len(taken) // 2], taken[int(len(taken) * 0.99)]


def busy(count: int) -> list[subprocess.Popen[bytes]]:
    """Start processes that only compute: what ten attackers cost where they do nothing else."""
    code = "while True: pass"
    return [subprocess.Popen([sys.executable, "-I", "-S", "-c", code]) for _ in range(count)]


def measure(uid: int) -> None:
    """Measure as this user, and print one JSON object."""
    import os

    from tests.sandbox.host import UIDS, drop

    if uid:
        drop(uid)
    own: dict[str, Any] = {"run_as": UIDS} if os.getuid() == 0 else {}
    portable = {**own, "give_up": frozenset({"names"})}
    found: dict[str, Any] = {"bare": bare(ROUNDS)}
    found["portable"] = hello(portable, ROUNDS)
    found["namespaces"] = hello(own, ROUNDS)
    found["bare again"] = bare(ROUNDS)
    found["quiet"] = neighbour(portable, None)
    loops = busy(10)
    found["beside ten loops"] = neighbour(portable, None)
    for process in loops:
        process.kill()
        process.wait()
    for flood in FLOODS:
        found[f"flood of {flood}"] = neighbour(portable, flood)
    print(json.dumps(found))


def main() -> None:
    """Start a host for each user and print what it has measured."""
    from tests.sandbox import hosts

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--uid", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.uid is not None:
        measure(arguments.uid)
        return
    for uid in (hosts.USER, 0) if hosts.IS_ROOT else (0,):
        words = ("-m", "tests.bench.sandbox", "--uid", str(uid))
        command = hosts.mounted(uid, *words) if hosts.IS_ROOT else [sys.executable, *words]
        environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/mnt/code" if hosts.IS_ROOT else str(hosts.ROOT)}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        base = statistics.mean((found["bare"], found["bare again"]))
        print(
            f"\n{'an unprivileged user' if uid else 'root, with private uids' if hosts.IS_ROOT else 'this user'}"
        )
        print(f"  a bare interpreter               {base * 1e3:8.1f} ms")
        for name in ("portable", "namespaces"):
            warm, cold = found[name]
            print(f"  hello, {name:<12} one waits    {warm * 1e3:8.1f} ms   {warm / base:5.2f} x")
            print(f"  hello, {name:<12} in a row     {cold * 1e3:8.1f} ms   {cold / base:5.2f} x")
        for name, value in found.items():
            if name.startswith(("quiet", "beside", "flood")):
                ratio = value[1] / found["quiet"][1]
                figures = f"p50 {value[0] * 1e3:6.2f} ms, p99 {value[1] * 1e3:6.2f} ms"
                print(f"  neighbour, {name:<20} {figures}   {ratio:5.2f} x")


if __name__ == "__main__":
    main()
