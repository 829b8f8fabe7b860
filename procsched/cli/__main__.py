"""``procsched COMMAND``: reads the command line and loads the one command that it names.

Each command is a module with `add_parser(subparsers)` and `run(arguments) -> int`. Only the module of the command in
question is imported, so that ``procsched cron`` does not pay for what ``procsched demo`` needs.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import procsched

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final, TextIO

# The command did what it was asked to do, and what it found is as it should be.
EXIT_OK: Final = 0
# The command ran to its end, and something is not as it should be; it says what.
EXIT_FINDING: Final = 1
# The command line makes no sense; the reason is on standard error. argparse uses the same code.
EXIT_USAGE: Final = 2
# Interrupted from the terminal (128 + SIGINT, as shells count); nothing is left running.
EXIT_INTERRUPTED: Final = 128 + signal.SIGINT
# Nobody reads the output any more (128 + SIGPIPE), as in ``procsched doctor | head -1``.
EXIT_NO_READER: Final = 128 + getattr(signal, "SIGPIPE", 13)

_STEERING: Final = "procsched.cli.steering"

# Command -> the module that has it, and the line that the list of commands shows.
COMMANDS: Final = {
    "demo": ("procsched.cli.demo", "analyse Python's standard library, with troublemakers among the jobs"),
    "cron": ("procsched.cli.cron", "list the next due times of a cron expression"),
    "ps": (_STEERING, "list the tasks of a store"),
    "history": (_STEERING, "list the records of attempts, the newest first"),
    "show": (_STEERING, "show all about one task, and its last attempts"),
    "cancel": (_STEERING, "withdraw tasks; runs in flight finish, or are ended with --kill"),
    "kill": (_STEERING, "end the live runs of tasks, and leave their schedules"),
    "pause": (_STEERING, "start no further run of tasks, until resume"),
    "resume": (_STEERING, "let paused tasks go on"),
    "revive": (_STEERING, "give failed tasks a new start"),
    "db": ("procsched.cli.database", "bring the tables of a store up to date"),
    "doctor": ("procsched.cli.doctor", "try out what this system offers, and say what is degraded without"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after the program's name; those of this process by default.
    Returns:
        an exit code, one of those above.
    Raises:
        SystemExit: with EXIT_USAGE for a wrong option, with EXIT_OK after ``--help`` and ``--version``.
    """
    if argv is None:
        _take_any_text(sys.stdout)
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        command = next((word for word in words if not word.startswith("-")), None)
        parser, subparsers = build_parser(command)
        arguments, unknown = parser.parse_known_args(words)
        if unknown:  # `parse_args` would show the usage of the program, not of the command
            subparsers.get(arguments.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
        if arguments.command is None:
            parser.print_help(sys.stderr)
            return EXIT_USAGE
        code = int(arguments.run(arguments))
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("procsched: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has nowhere to go; without this the interpreter would complain at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_NO_READER
    return code


def _take_any_text(stream: TextIO | None) -> None:
    """Have a stream show what its encoding lacks as codes, as standard error does: names of tasks are any text."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
        stream.reconfigure(errors="backslashreplace")


def build_parser(
    command: str | None,
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser, with the options of `command` and the names of all others, and the commands' own."""
    parser = argparse.ArgumentParser(
        prog="procsched",
        description="A scheduler and an executor that run jobs in child processes they can really stop.",
        epilog="Try: procsched demo",
    )
    parser.add_argument("--version", action="version", version=f"procsched {procsched.__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (module, summary) in COMMANDS.items():
        if name == command:
            loaded: Any = import_module(module)
            if module == _STEERING:
                loaded.add_parser(subparsers, name)
            else:
                loaded.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    return parser, dict(subparsers.choices)


if __name__ == "__main__":
    sys.exit(main())
