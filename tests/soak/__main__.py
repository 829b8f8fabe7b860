"""`python -m tests.soak --minutes N --seed S`: torment a scheduler and an executor, and see that every promise holds.

Exits with 0 when nothing was lost, doubled or left, and the memory stayed flat; else with 1, and keeps its files.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests import clock_shim, preloaded
from tests.soak import checking, saboteur, users

ROOT = Path(__file__).resolve().parent.parent.parent
SMALL = "8m"  # of the file systems that are filled
FLAT = 10 << 20  # bytes by which the memory of the subject may differ from its level after the first minute
FIRST = 60.0  # seconds after which that level is taken, or at two fifths of a shorter soak
SPREAD = 8  # seconds over which a level is the median
NOT_ASKED = "not asked for"
FILL = ("fill /tmp", "fill /dev/shm")
STARVE = ("no processes for the helper", "no processes for the subject")
CLONE_NEWNS = 0x00020000  # linux/sched.h
MS_REC, MS_PRIVATE = 0x4000, 1 << 18  # linux/mount.h


def main() -> int:
    """Prepare, run, compare, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1, 1 << 30))
    parser.add_argument("--workers", type=int, default=8, help="half of them serve the scheduler")
    parser.add_argument("--keep", action="store_true", help="keep the files also when all is well")
    parser.add_argument(
        "--only", action="append", default=[], help="a sabotage, as often as you like; all by default"
    )
    options = parser.parse_args()
    if not set(options.only) <= saboteur.WEIGHTS.keys():
        parser.error(f"sabotages are {', '.join(saboteur.WEIGHTS)}")
    print("seed", options.seed, flush=True)
    place = Path(tempfile.mkdtemp(prefix="soak-"))
    config = prepare(place, options)
    for name, why in config["left_out"].items():
        if why != NOT_ASKED:
            print(f"left out: {name} ({why})", flush=True)
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            enter(config)
            found = saboteur.main(config["path"])
            Path(config["found"]).write_text(json.dumps(found), encoding="utf-8")
            code = 0
        finally:
            sys.stderr.flush()
            os._exit(code)
    _pid, status = os.waitpid(pid, 0)
    wrong = [] if status == 0 else [f"the saboteur ended with wait status {status}"]
    wrong += report(config)
    for text in wrong[: checking.MOST_TOLD]:
        print("WRONG:", text)
    if len(wrong) > checking.MOST_TOLD:
        print(f"WRONG: and {len(wrong) - checking.MOST_TOLD} more")
    if wrong or options.keep:
        print("files:", place)
    else:
        shutil.rmtree(place)
    print(f"{len(wrong)} promises broken" if wrong else "every promise was kept")
    return 1 if wrong else 0


# --- before -------------------------------------------------------------------------------------------------


def prepare(place: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Make the files and choose the user; return the configuration, which is in a file too."""
    place.chmod(0o755)
    left_out: dict[str, str] = {}
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        environment |= clock_shim.build(place)
    except preloaded.Unavailable as error:
        left_out["step the clock"] = str(error)
    uid = os.getuid()
    if uid == 0:
        uid = users.free_uid()
        if not users.limits_processes(uid):
            uid = 0
            left_out |= dict.fromkeys(STARVE, "the processes of a user cannot be limited here")
    if options.only:
        left_out |= {name: NOT_ASKED for name in saboteur.WEIGHTS if name not in options.only}
    for name in ("locks", "tmp", "shm"):
        (place / name).mkdir()
    if os.getuid() != 0:
        left_out |= dict.fromkeys(FILL, "only root can mount")
        places = [str(place / "tmp")]
    else:
        places = [str(place / "tmp"), "/dev/shm"]
    environment["TMPDIR"] = str(place / "tmp")
    names = ("ledger", "marks", "log", "stderr", "sabotage", "report", "found")
    config: dict[str, Any] = {name: str(place / name) for name in names}
    config |= {
        "path": str(place / "config"),
        "place": str(place),
        "locks": str(place / "locks"),
        "seed": options.seed,
        "seconds": options.minutes * 60,
        "workers": options.workers,
        "uid": uid,
        "left_out": left_out,
        "environment": environment,
        "places": places,
        "mounts": os.getuid() == 0,
    }
    Path(config["path"]).write_text(json.dumps(config), encoding="utf-8")
    for path in (place, *place.iterdir()):
        os.chown(path, uid, uid if os.getuid() == 0 else -1)
    return config


def enter(config: dict[str, Any]) -> None:
    """Have file systems of our own where they are to be filled, and become the soak's user."""
    os.chdir(ROOT)
    if config["mounts"]:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
            raise OSError(ctypes.get_errno(), "no mounts of our own")
        for place in config["places"]:
            options = f"size={SMALL},mode=1777".encode()
            if libc.mount(b"tmpfs", place.encode(), b"tmpfs", 0, options):
                raise OSError(ctypes.get_errno(), f"{place} cannot be mounted")
    if os.getuid() == 0 and config["uid"] != 0:
        users.become(config["uid"])


# --- after --------------------------------------------------------------------------------------------------


def report(config: dict[str, Any]) -> list[str]:
    """Print the table, and return what is wrong."""
    wrong: list[str] = []
    found, told = _read(config["found"]), _read(config["report"])
    if not found or not told:
        wrong.append("there is no report: see the files")
    wrong += found.get("wrong", []) + told.get("wrong", [])
    ledger, marks = Path(config["ledger"]), Path(config["marks"])
    if ledger.exists() and marks.exists():
        books = checking.Books(ledger, marks)
        wrong += books.check()
        _print("submitted", Counter(books.kinds.values()))
        _print("attempts", books.outcomes)
        begun = sum(books.begun.values())
        print(f"{'begun':14} {begun} attempts marked their begin, {sum(books.ended.values())} their end")
    _print("sabotages", Counter(found.get("sabotages", {})))
    _print("workers", {key: told.get("counters", {}).get(key, 0) for key in _RESPAWNS})
    _print("refused", told.get("refusals", {}))
    _print("store", told.get("store", {}))
    wrong += _memory(told.get("sizes", []), config["seconds"])
    return wrong


_RESPAWNS = (
    "spawned",
    "killed_workers",
    "recycled",
    "start_failures",
    "helper_restarts",
    "unkillable",
    "late_results",
)


def _memory(sizes: list[int], seconds: float) -> list[str]:
    first = int(min(FIRST, seconds * 0.4))
    if len(sizes) < first or first < SPREAD:
        print(f"{'memory':14} not judged: too short")
        return []
    at_first = statistics.median(sizes[first - SPREAD : first])
    at_end = statistics.median(sizes[-SPREAD:])
    print(
        f"{'memory':14} {at_first / 2**20:.1f} MiB after {first} s, {at_end / 2**20:.1f} MiB at the end, "
        f"{max(sizes) / 2**20:.1f} MiB at most"
    )
    if at_end - at_first > FLAT:
        return [f"the memory has grown by {(at_end - at_first) / 2**20:.1f} MiB since the first {first} s"]
    return []


def _print(title: str, counts: Any) -> None:
    shares = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))
    print(f"{title:14} {sum(counts.values()):7}: {shares}")


def _read(path: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


if __name__ == "__main__":
    began = time.monotonic()
    status = main()
    print(f"{time.monotonic() - began:.0f} s")
    sys.exit(status)
