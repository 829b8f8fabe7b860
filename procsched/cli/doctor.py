"""``procsched doctor``: say what this system offers, found out by doing it, and what is degraded without.

First the probes of the operating system, which fork, then those that run procsched itself.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from typing import TYPE_CHECKING, NamedTuple

import procsched
from procsched import _system
from procsched.cli.doctor_limits import examine_limits, print_limits
from procsched.cli.doctor_probes import SYSTEM_PROBES, MissingError, Partly, Probe
from procsched.cli.doctor_runs import Runs
from procsched.cli.quiet import only_errors_logged

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from typing import Any, Final

# Everything works, if only in part.
EXIT_OK: Final = 0
# Something is missing; each such row says which promise is weaker for it.
EXIT_DEGRADED: Final = 1
# The environment asks for something that there is not; the reason is on stderr. argparse uses the same code.
EXIT_USAGE: Final = 2


# Where the doctor is root: nobody's, as far as can be known.
SANDBOX_UIDS: Final = range(700_000, 700_064)


class Finding(NamedTuple):
    """What came of one probe."""

    probe: Probe
    works: bool
    found: str

    @property
    def is_partly(self) -> bool:
        """Return whether it worked, but not each time."""
        return isinstance(self.found, Partly)

    def as_data(self) -> dict[str, Any]:
        """Return it for ``--json``."""
        return {
            "name": self.probe.name,
            "works": self.works,
            "partly": self.is_partly,
            "found": self.found,
            "gives": self.probe.gives,
            "degraded": None if self.works else self.probe.degraded,
        }


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the command ``doctor``; the parsed arguments carry `run` as ``arguments.run``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "doctor",
        help="try out what this system offers, and say what is degraded without",
        description="Try out, one by one, what procsched uses of this system, and say what is degraded where "
        "something is missing. The exit code is 1 when something is missing, and 0 otherwise; what works in part does "
        "not count, nor does a sandbox whose default policy is refused, for not every program needs one.",
        epilog="PROCSCHED_WITHOUT=NAME,... in the environment switches features off, to see what is left: "
        f"{', '.join(_system.FEATURES)}.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Examine the system and print what was found. Return an exit code."""
    without = [name for name in os.environ.get("PROCSCHED_WITHOUT", "").split(",") if name]
    unknown = [name for name in without if name not in _system.FEATURES]
    if unknown:
        print(
            f"procsched doctor: PROCSCHED_WITHOUT names {', '.join(map(repr, unknown))}, which is no feature and "
            f"switches nothing off; write names from {', '.join(_system.FEATURES)}, with commas between",
            file=sys.stderr,
        )
        return EXIT_USAGE
    show: Callable[[Finding], None] = _hide if arguments.json else _print_finding
    about = {
        "procsched": procsched.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "without": without,
    }
    if not arguments.json:
        print(f"procsched {about['procsched']}, Python {about['python']}, {about['system']}\n", flush=True)
    with only_errors_logged():
        findings = examine(show)
        sandbox = examine_sandbox()
        limits = examine_limits()
    degraded = [finding for finding in findings if not finding.works]
    if arguments.json:
        rows = [finding.as_data() for finding in findings]
        names = [row.probe.name for row in degraded]
        print(
            json.dumps(
                {**about, "probes": rows, "degraded": names, "limits": limits, "sandbox": sandbox}, indent=2
            )
        )
        return EXIT_DEGRADED if degraded else EXIT_OK
    print_limits(limits)
    _print_sandbox(sandbox)
    if degraded:
        print("\nDegraded:")
        for finding in degraded:
            print(f"  without {finding.probe.name}: {finding.probe.degraded}")
    else:
        print(f"\n{conclusion(findings, sandbox)}")
    return EXIT_DEGRADED if degraded else EXIT_OK


def conclusion(findings: list[Finding], sandbox: dict[str, Any]) -> str:
    """Return the last line where nothing is missing: what it all comes to."""
    but = [finding.probe.name for finding in findings if finding.is_partly]
    if sandbox["refused"]:
        but.append("the sandbox with its default policy")
    if but:
        return f"Everything works but what is said above of {' and of '.join(but)}."
    return "Everything works: the promises hold here in full."


def examine(show: Callable[[Finding], None]) -> list[Finding]:
    """Try every probe, and call `show` with each finding as it comes."""
    findings: list[Finding] = []
    runs = Runs()
    try:
        for probe in (*SYSTEM_PROBES, *runs.probes()):
            try:
                finding = Finding(probe, True, probe.attempt())
            except MissingError as missing:
                finding = Finding(probe, False, str(missing))
            except Exception as error:  # whatever a strange system does is a finding
                finding = Finding(probe, False, f"{type(error).__name__}: {error}")
            show(finding)
            findings.append(finding)
    finally:
        runs.close()
    return findings


def examine_sandbox() -> dict[str, Any]:
    """Try out the sandbox with the default policy, and with what that may have to give up; return what keeps what."""
    from procsched.sandbox.policy import GIVEABLE, Sandbox
    from procsched.sandbox.prepare import prepare

    uids = SANDBOX_UIDS if hasattr(os, "geteuid") and os.geteuid() == 0 else None
    refused: dict[str, str] = {}
    for given_up in (frozenset(), frozenset({"names"}), GIVEABLE):
        try:
            report = prepare(Sandbox(run_as=uids, give_up=given_up)).report
        except procsched.SandboxUnavailableError as error:
            refused = refused or {"promise": error.promise, "tried": error.tried, "remedy": error.remedy}
        except (procsched.ProcschedError, OSError) as error:
            refused = refused or {"promise": "", "tried": str(error), "remedy": ""}
        else:
            return {
                "kept": report.kept,
                "given_up": report.given_up,
                "refused": refused or None,
                "nice": report.nice,
                "leaves_one": report.leaves_one,
            }
    return {"kept": {}, "given_up": {}, "refused": refused, "nice": None, "leaves_one": None}


def _print_sandbox(sandbox: dict[str, Any]) -> None:
    from procsched.sandbox.prepare import nice_in_words
    from procsched.sandbox.promises import WHAT

    print("\nSandbox, for code that nobody trusts:")
    for promise, how in sandbox["kept"].items():
        print(f"  kept     {promise:<10} {WHAT[promise]}\n{'':<22}{how}")
    for promise, why in sandbox["given_up"].items():
        print(f"  GIVEN UP {promise:<10} {WHAT[promise]}\n{'':<22}{why}")
    if sandbox["nice"] is not None:
        print(f"  niceness {nice_in_words(sandbox['nice'], sandbox['leaves_one'])}")
    refused = sandbox["refused"]
    if refused:
        for_promise = f", for its promise {refused['promise']!r}" if refused["promise"] else ""
        print(f"  The default policy is refused here{for_promise}: {refused['tried']}")
        print(f"  What to do: {refused['remedy']}")


def _print_finding(finding: Finding) -> None:
    word = "MISSING" if not finding.works else "in part" if finding.is_partly else "works"
    print(f"{word:<8} {finding.probe.name:<22} {finding.found}", flush=True)
    print(f"{'':<31} {finding.probe.gives}", flush=True)


def _hide(_finding: Finding) -> None:
    """Wait for the end."""
