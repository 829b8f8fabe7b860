"""``procsched db upgrade --store URL``: bring the tables of a store up to date."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from procsched import SqlTaskStore, StoreError, ValidationError
from procsched.cli.steering import VARIABLE

if TYPE_CHECKING:
    import argparse
    from typing import Any, Final

# The tables are up to date.
EXIT_OK: Final = 0
# They are not, or nobody can say; the reason is on stderr.
EXIT_FAILED: Final = 1


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> argparse.ArgumentParser:
    """Add the command ``db``; the parsed arguments carry `run` as ``arguments.run``."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "db", help="bring the tables of a store up to date"
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    upgrade = actions.add_parser(
        "upgrade",
        help="bring the tables up to date",
        description="Bring the tables of a store up to date. Stop its scheduler first: while one has the store this is "
        "refused. SQLite files are copied before.",
    )
    upgrade.add_argument(
        "--store",
        metavar="URL",
        help="sqlite:///jobs.db or postgresql+psycopg://user@host/name (default: $PROCSCHED_STORE)",
    )
    upgrade.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Upgrade, and say from what to what."""
    try:
        url = arguments.store or os.environ.get(VARIABLE)
        if not url:
            raise ValidationError(f"say which store: --store URL, or the environment variable {VARIABLE}")
        before, after = SqlTaskStore(url).upgrade()
    except (StoreError, ValidationError) as error:
        print(f"procsched db: {error}", file=sys.stderr)
        return EXIT_FAILED
    if before == after:
        print(f"the schema is {after}: nothing to do")
    elif before is None:
        print(f"the tables were made: the schema is {after}")
    else:
        print(f"the schema was {before}, and is {after} now")
    return EXIT_OK
