"""``procsched ps|history|show|cancel|kill|pause|resume|revive --store URL``: look at a store, steer its scheduler."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from procsched import (
    Outcome,
    ProcschedError,
    StoreError,
    TaskNotFoundError,
    TaskStatus,
    ValidationError,
    connect,
)
from procsched.cli.tables import escaped, print_pairs, print_table, when
from procsched.stores.holder import is_gone

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any, Final

    from procsched import ExecutionRecord, StoreClient

VARIABLE: Final = "PROCSCHED_STORE"
# It was done, or shown.
EXIT_OK: Final = 0
# There was nothing to change: the task is paused already, or has ended. Nothing was.
EXIT_UNCHANGED: Final = 1
# The command line makes no sense, or there is no such task; the reason is on stderr. argparse uses the same code.
EXIT_USAGE: Final = 2
# The store cannot be read, or its scheduler does not answer; the reason is on stderr.
EXIT_UNAVAILABLE: Final = 3

ACTIONS: Final = {
    "cancel": ("withdraw tasks; runs in flight finish, or are ended with --kill", "cancelled"),
    "kill": ("end the live runs of tasks, and leave their schedules", "killed"),
    "pause": ("start no further run of tasks, until resume", "paused"),
    "resume": ("let paused tasks go on", "resumed"),
    "revive": ("give failed tasks a new start", "revived"),
}
LOOKS: Final = {
    "ps": "list the tasks of a store",
    "history": "list the records of attempts, the newest first",
    "show": "show all about one task, and its last attempts",
}
# What is to be known beyond that.
NOTES: Final = {
    "cancel": "A program that schedules the task by its key at every start schedules it anew: `pause` is what stays.",
    "kill": "A task without a further slot is cancelled by that. A program that schedules it by its key at every start "
    "schedules it anew, and it runs: `pause` is what stays.",
}
SHOWN_RECORDS: Final = 5
SHOWN_TWINS: Final = 5  # tasks of one name
ENDED: Final = ("succeeded", "failed", "cancelled")
WHICH: Final = "its id, its key, or its name where no other has that"


def add_parser(subparsers: argparse._SubParsersAction[Any], name: str) -> argparse.ArgumentParser:
    """Add the command `name`; the parsed arguments carry `run` as ``arguments.run``."""
    summary = LOOKS.get(name) or ACTIONS[name][0]
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=summary, description=" ".join([_sentence(summary), *filter(None, [NOTES.get(name)])])
    )
    _add_common(parser)
    parser.set_defaults(run=run)
    if name == "ps":
        parser.add_argument("--all", action="store_true", help="tasks that have ended, too")
    elif name == "show":
        parser.add_argument("task", metavar="TASK", help=WHICH)
    elif name == "history":
        parser.add_argument("task", metavar="TASK", nargs="?", help=f"of this task only: {WHICH}")
        parser.add_argument(
            "--outcome",
            choices=[outcome.value for outcome in Outcome],
            metavar="OUTCOME",
            help=f"with this outcome only: {', '.join(outcome.value for outcome in Outcome)}",
        )
        parser.add_argument("--hours", type=float, metavar="H", help="that ended within the last H hours")
        parser.add_argument(
            "--limit", type=int, default=50, metavar="N", help="at most so many (default: 50)"
        )
    else:
        parser.add_argument("task", metavar="TASK", nargs="+", help=WHICH)
        if name == "cancel":
            parser.add_argument("--kill", action="store_true", help="end its run in flight, too")
    return parser


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="URL",
        help="sqlite:///jobs.db or postgresql+psycopg://user@host/name (default: $PROCSCHED_STORE)",
    )
    parser.add_argument(
        "--json", action="store_true", help="JSON on standard output, for scripts; times in UTC"
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what the command says. Return an exit code."""
    try:
        url = arguments.store or os.environ.get(VARIABLE)
        if not url:
            raise ValidationError(f"say which store: --store URL, or the environment variable {VARIABLE}")
        with connect(url) as client:
            if arguments.command in ACTIONS:
                return _steer(client, arguments)
            return _look(client, arguments)
    except (ValidationError, TaskNotFoundError) as error:
        return _refuse(arguments, error, EXIT_USAGE)
    except StoreError as error:
        return _refuse(arguments, error, EXIT_UNAVAILABLE)
    except ProcschedError as error:
        return _refuse(arguments, error, EXIT_UNCHANGED)


def _refuse(arguments: argparse.Namespace, error: Exception, code: int) -> int:
    print(f"procsched {arguments.command}: {escaped(str(error))}", file=sys.stderr)
    return code


# --- steering -------------------------------------------------------------------------------------------


def _steer(client: StoreClient, arguments: argparse.Namespace) -> int:
    """Ask for each task in turn; what is wrong with one keeps no other from being asked for."""
    rows = client.rows()
    code, answers = EXIT_OK, []
    for word in arguments.task:
        try:
            task_id = _find(rows, word)
            more = {"kill": True} if getattr(arguments, "kill", False) else {}
            # Not by the client's public methods: they say whether it was changed, and not what it is.
            answer = client._request(arguments.command, task_id, **more)
        except ProcschedError as error:
            if isinstance(error, StoreError):
                raise
            wrong = EXIT_USAGE if isinstance(error, TaskNotFoundError) else EXIT_UNCHANGED
            code = max(code, _refuse(arguments, error, wrong))
            answers.append({"task": word, "changed": False, "error": str(error)})
            continue
        changed, status = bool(answer["changed"]), answer.get("status")
        answers.append({"task": task_id, "changed": changed, "status": status})
        if not changed:
            code = max(code, EXIT_UNCHANGED)
        if not arguments.json:
            done = ACTIONS[arguments.command][1]
            print(f"{escaped(task_id)}: {done if changed else _why_nothing(status)}")
    if arguments.json:
        print(json.dumps(answers))
    return code


def _why_nothing(status: object) -> str:
    """Return in words why there was nothing to change, by the status of the task."""
    if status in (TaskStatus.SUCCEEDED, TaskStatus.FAILED):
        return f"nothing to change: it has ended ({status})"
    return f"nothing to change: it is {escaped(str(status))}"


def _find(rows: Sequence[dict[str, Any]], word: str) -> str:
    """Return the id of the task that a word names: its id, else its key (of the newest with that), else its name."""
    for column in ("id", "key"):
        found = [row["id"] for row in rows if row[column] == word]
        if found:
            return str(found[-1])
    named = [row for row in rows if row["name"] == word]
    found = [row["id"] for row in named]
    if len(found) > 1:
        # The last ones are shown, and one that has not ended is mostly what is meant.
        named.sort(key=lambda row: bool(row["live"]) or row["status"] not in ENDED)
        some = ", ".join(f"{row['id']}: {row['status']}" for row in named[-SHOWN_TWINS:])
        raise TaskNotFoundError(f"{len(found)} tasks have the name {word!r}: say which by its id ({some})")
    if not found:
        raise TaskNotFoundError(f"no task has the id, the key or the name {word!r}")
    return str(found[0])


# --- looking --------------------------------------------------------------------------------------------


def _look(client: StoreClient, arguments: argparse.Namespace) -> int:
    if arguments.command == "history":
        return _history(client, arguments)
    rows = client.rows()
    if arguments.command == "show":
        task_id = _find(rows, arguments.task)
        (row,) = (row for row in rows if row["id"] == task_id)
        return _show(client, row, arguments.json)
    ended = ("succeeded", "cancelled")
    listed = rows if arguments.all else [row for row in rows if row["live"] or row["status"] not in ended]
    if arguments.json:
        print(_json([_plain_task(row) for row in listed]))
        return EXIT_OK
    keyed = any(row["key"] not in (None, row["name"]) for row in listed)
    print_table(
        (
            "id",
            "name",
            *(("key",) if keyed else ()),
            "status",
            "next run",
            "attempt",
            "pid",
            "last",
            "schedule",
        ),
        [
            (
                row["id"],
                row["name"],
                *((row["key"] or "",) if keyed else ()),
                f"{row['status']}, unloadable" if row["unloadable"] else row["status"],
                when(row["next_run_at"]),
                row["attempt"] or "",
                row["pid"] if row["live"] and row["pid"] else "",
                row["outcome"] or "",
                _schedule(row["schedule"]),
            )
            for row in listed
        ],
    )
    hidden = len(rows) - len(listed)
    print(
        f"{len(listed)} tasks{f', and {hidden} that have ended (--all)' if hidden else ''}; {_owner(client)}"
    )
    return EXIT_OK


def _owner(client: StoreClient) -> str:
    owner = client.owner()
    if owner is None:
        return "no scheduler has had the store"
    whose = f"process {owner['pid']} on {escaped(owner['host'])}"
    if owner["closed_at"] is not None:
        return f"no scheduler has the store since {when(owner['closed_at'])}: the last was {whose}"
    if is_gone(owner):
        return f"no scheduler lives: {whose} has died, and was last seen {when(owner['seen_at'])}"
    return f"scheduler: {whose}, last seen {when(owner['seen_at'])}"


def _schedule(text: str) -> str:
    """Return a schedule in a few words."""
    try:
        value = json.loads(text)
        kind = value.get("type")
        words = {
            "one_time": lambda: f"at {when(value['at'])}",
            "after": lambda: f"{value['delay']:g} s later",
            "fixed_delay": lambda: f"{value['delay']:g} s after each",
            "fixed_rate": lambda: f"every {value['period']:g} s",
            "cron": lambda: f"{value['expression']} {value['tz']}",
        }
        return words[kind]() if kind in words else str(kind)
    except (ValueError, KeyError, TypeError, AttributeError):
        return "?"


def _show(client: StoreClient, row: dict[str, Any], as_json: bool) -> int:
    records = client.history(row["id"], limit=SHOWN_RECORDS)
    if as_json:
        print(_json({**_plain_task(row), "records": [_plain_record(each) for each in records]}))
        return EXIT_OK
    pairs: list[tuple[str, object]]
    pairs = [(name, row[name]) for name in ("id", "name", "key", "status", "unloadable", "action")]
    pairs.append(("schedule", _schedule(row["schedule"])))
    times = ("next_run_at", "retry_at", "started_at", "created_at")
    pairs += [(name.removesuffix("_at").replace("_", " "), when(row[name])) for name in times]
    pairs += [
        ("attempt", row["attempt"]),
        ("run", row["run"]),
        ("pid", row["pid"]),
        ("settings", row["settings"]),
    ]
    print_pairs([(name, value) for name, value in pairs if value not in (None, "")])
    if records:
        print()
        _print_records(records, named=False)
        last = records[0]
        for text in (last.traceback, last.stack, last.output):
            if text:
                print()
                print(escaped(text, keep="\n\t"))
    return EXIT_OK


def _history(client: StoreClient, arguments: argparse.Namespace) -> int:
    task = None if arguments.task is None else _find_recorded(client, arguments.task)
    try:
        since = None if arguments.hours is None else timedelta(hours=arguments.hours)
    except (ValueError, OverflowError):
        raise ValidationError(f"--hours must be a number of hours, not {arguments.hours:g}") from None
    records = client.history(task, arguments.outcome, since, arguments.limit)
    if arguments.json:
        print(_json([_plain_record(record) for record in records]))
        return EXIT_OK
    _print_records(records, named=True)
    return EXIT_OK


def _find_recorded(client: StoreClient, word: str) -> str:
    """Return the id of a task as `_find` does, or an id that is not there any more: a record outlives its task."""
    rows = client.rows()
    known = any(word in (row["id"], row["key"], row["name"]) for row in rows)
    if not known and client.history(word, limit=1):
        return word
    return _find(rows, word)


def _print_records(records: Sequence[ExecutionRecord], named: bool) -> None:
    heads: tuple[str, ...] = ("finished", "run", "attempt", "outcome", "seconds", "error")
    rows: list[tuple[object, ...]] = [
        (when(r.finished_at), r.run, r.attempt, r.outcome.value, f"{r.duration:.3f}", r.error or "")
        for r in records
    ]
    if named:
        heads = ("id", "name", *heads)
        rows = [(record.task_id, record.name, *row) for record, row in zip(records, rows, strict=True)]
    print_table(heads, rows)


def _json(found: Any) -> str:
    return json.dumps(found, indent=1, default=repr)


# --- for scripts ----------------------------------------------------------------------------------------


def _utc(at: Any) -> str | None:
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    except (
        ValueError,
        OverflowError,
        OSError,
        TypeError,
    ):  # a far future; or a store that somebody has changed
        return str(at)


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return text


def _plain_task(row: dict[str, Any]) -> dict[str, Any]:
    found = {
        name: row[name]
        for name in (
            "id",
            "name",
            "key",
            "status",
            "unloadable",
            "action",
            "attempt",
            "run",
            "outcome",
            "error",
        )
    }
    found["live"] = bool(row["live"])
    found["pid"] = row["pid"] if row["live"] else None
    for name in ("next_run_at", "retry_at", "started_at", "created_at"):
        found[name] = _utc(row[name])
    for name in ("schedule", "settings"):
        found[name] = _parsed(row[name])
    return found


def _plain_record(record: ExecutionRecord) -> dict[str, Any]:
    names = (
        "task_id name run attempt missed error timed_out traceback stack pid exit_code signal limit cpu_seconds "
        "peak_rss output output_truncated duration"
    )
    found = {name: getattr(record, name) for name in names.split()}
    found["outcome"] = record.outcome.value
    for name in ("due_at", "started_at", "finished_at"):
        found[name] = _utc(getattr(record, name))
    return found
