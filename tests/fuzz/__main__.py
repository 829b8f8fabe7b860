"""Fuzz the wire: ``python -m tests.fuzz --minutes 10``.

Each target runs in a process of its own for its part of the time. With atheris installed inputs are found by coverage,
else they are made up and changed blindly. What fails is printed with its bytes, and `--replay` runs them again.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import resource
import subprocess
import sys
import tempfile
import time

MEMORY = 4 << 30  # bytes of address space: what a pickle announces must not take the machine's
NAMES = (
    "decoder",
    "answers",
    "parcel",
    "side",
    "tokens",
    "helper",
    "child",
    "untrusted",
    "outcome",
    "plain",
)  # atheris has to import the rest itself
HANG = 60  # seconds that one input may take
LONGEST = 4096  # bytes of an input


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--target", choices=NAMES, action="append", help="one of them; all by default")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--plain", action="store_true", help="without atheris")
    parser.add_argument("--replay", metavar="HEX", help="run one input, given in hexadecimal digits")
    parser.add_argument("--one", choices=NAMES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    names = arguments.target or NAMES
    if arguments.replay is not None:
        from tests.fuzz.targets import TARGETS

        for name in names:
            TARGETS[name](bytes.fromhex(arguments.replay))
        return 0
    seconds = arguments.minutes * 60 / len(names)
    if arguments.one:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        logging.getLogger("procsched").setLevel(
            logging.CRITICAL
        )  # each failed start of a worker is told there
        return (blind if arguments.plain else guided)(arguments.one, arguments.minutes * 60, arguments.seed)
    plain = arguments.plain or not _has_atheris()
    print(f"seed {arguments.seed}, {'blindly' if plain else 'by atheris'}, {seconds:.0f} s each", flush=True)
    failed = []
    for name in names:
        command = [sys.executable, "-m", "tests.fuzz", "--one", name, "--minutes", str(seconds / 60)]
        command += ["--seed", str(arguments.seed), *(["--plain"] if plain else [])]
        print(f"=== {name}", flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed) or 'none'}")
    return int(bool(failed))


def _has_atheris() -> bool:
    try:
        import atheris  # noqa: F401
    except ImportError:
        print("atheris is not installed here")
        return False
    return True


def guided(name: str, seconds: float, seed: int) -> int:
    """Let atheris look for inputs. It ends the process itself."""
    import atheris

    with atheris.instrument_imports(include=["procsched", "tests.fuzz"]):
        from tests.fuzz.targets import TARGETS

    corpus = tempfile.mkdtemp(prefix="procsched-fuzz-")
    for index, data in enumerate(seeds(seed)):
        with open(os.path.join(corpus, str(index)), "wb") as file:
            file.write(data)
    options = [
        f"-max_total_time={int(seconds)}",
        f"-seed={seed}",
        f"-max_len={LONGEST}",
        "-print_final_stats=1",
    ]
    atheris.Setup(
        [sys.argv[0], *options, "-rss_limit_mb=0", f"-timeout={HANG}", "-verbosity=0", corpus], TARGETS[name]
    )
    atheris.Fuzz()
    return 0


def seeds(seed: int) -> list[bytes]:
    """Return inputs to begin with."""
    draw = random.Random(seed)
    return [draw.randbytes(draw.randrange(1, 200)) for _ in range(200)]


def blind(name: str, seconds: float, seed: int) -> int:
    """Make inputs up, and change them, without looking at what they reach."""
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    draw = random.Random(seed)
    pool = seeds(seed)
    end = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < end:
        data = bytearray(draw.choice(pool))
        for _ in range(draw.randrange(4)):
            at = draw.randrange(len(data) + 1)
            if draw.random() < 0.5:
                data[at : at + draw.randrange(4)] = draw.randbytes(draw.randrange(4))
            else:
                data[at:at] = draw.choice(pool)[: draw.randrange(100)]
        if draw.random() < 0.01:
            pool[draw.randrange(len(pool))] = bytes(data[:LONGEST]) or b"\0"
        try:
            target(bytes(data[:LONGEST]))
        except BaseException:
            print(
                f"{name} fails: python -m tests.fuzz --target {name} --replay {bytes(data[:LONGEST]).hex()}"
            )
            raise
        runs += 1
    print(f"{name}: {runs} inputs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
