"""Mark what others have submitted: right, wrong, too slow, too hungry, evil. Nothing of it is trusted.

Run it where the sandbox has what it needs (`procsched doctor` says): as a user who is not root, on Linux. Without
bubblewrap it says what it gives up.
"""

from procsched import Outcome, ProcessExecutor, Sandbox, SandboxUnavailableError, Source

EXERCISE = "Return the n-th Fibonacci number."
TESTS = [(0, 0), (1, 1), (10, 55), (80, 23416728348467685)]

SUBMISSIONS = {
    "Ada": """
def solve(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
""",
    "Bob": """
def solve(n):
    return n * (n + 1) // 2
""",
    "Cleo": """
def solve(n):
    return n if n < 2 else solve(n - 1) + solve(n - 2)
""",
    "Dan": """
def solve(n):
    numbers = [0, 1] + [0] * 10**9
    return numbers[n]
""",
    "Eve": """
import os, socket
def solve(n):
    try:
        print(open("/etc/passwd").read())
    except OSError as error:
        print("no passwords:", error)
    os.kill(os.getppid(), 9)
""",
    "Fay": """
def solve(n):
    return {"n"} - {n}
""",
}


def mark(executor: ProcessExecutor, text: str) -> str:
    """Return what a submission deserves: it is right when it is so for every test."""
    futures = [(executor.submit(Source(text, "solve"), given), wanted) for given, wanted in TESTS]
    for future, wanted in futures:
        record = future.wait_record()
        if record.outcome is Outcome.TIMED_OUT:
            return "too slow"
        if record.outcome is Outcome.LIMIT_EXCEEDED:
            return f"over the limit {record.limit}"
        if record.outcome is Outcome.FAILED and "MemoryError" in (record.error or ""):
            return "too hungry"
        if not record.ok:
            return f"failed: {record.error}"
        if record.result != wanted:
            return f"wrong: {record.result!r:.20} is not {wanted}"
    return "right"


def open_judge() -> ProcessExecutor:
    """Return an executor with a sandbox: as strict as this system has it."""
    limits = {"memory": 256 << 20, "cpu_seconds": 5, "result": 10_000}
    try:
        return ProcessExecutor(2, timeout=1.0, sandbox=Sandbox(**limits))
    except SandboxUnavailableError as error:
        if error.promise != "names":
            raise
        print(f"given up: {error.promise} ({error.tried})")
        return ProcessExecutor(2, timeout=1.0, sandbox=Sandbox(**limits, give_up={"names"}))


def main() -> None:
    try:
        judge = open_judge()
    except SandboxUnavailableError as error:
        print(f"no sandbox here: {error}")
        return
    with judge:
        print(EXERCISE)
        for name, text in SUBMISSIONS.items():
            print(f"{name:<5} {mark(judge, text)}")


main()
