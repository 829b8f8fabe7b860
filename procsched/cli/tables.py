"""Tables for people: by `rich` on a terminal where that is installed, else in plain columns.

What comes from tasks (names, errors, output) is escaped first: a control character in it could move the cursor, hide
lines, or make a terminal send something.
"""

from __future__ import annotations

import sys
import unicodedata
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

WIDEST: Final = 60  # characters of one cell in plain columns
NARROW: Final = 120  # columns of a terminal below which times go without their offset
TIMES: Final = ("next run", "finished")  # heads of columns with what `when` has made


def escaped(text: str, keep: str = "") -> str:
    """Return a text without control characters and what else has an effect of its own: they are shown as codes.

    Args:
        keep: characters that may stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        each
        if each in keep or not unicodedata.category(each).startswith(("C", "Z")) or each == " "
        else _code(each)
        for each in text
    )


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def when(at: Any) -> str:
    """Return a time on this machine's clock, to the second, with its offset; "" for None."""
    if at is None:
        return ""
    try:
        return datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):  # a far future
        return f"{at:g}"
    except TypeError:  # a store may hold anything
        return str(at)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table. Cells are escaped."""
    cells = [[escaped(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty() and _print_rich(heads, cells):
        return
    cells = [[cell if len(cell) <= WIDEST else f"{cell[: WIDEST - 3]}..." for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    for row in ([head.upper() for head in heads], *cells):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _print_rich(heads: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(box=None, header_style="bold", pad_edge=False)
    console = Console()
    for head in heads:
        table.add_column(head, overflow="ellipsis", no_wrap=head in ("id", "name", "status", *TIMES))
    for row in cells:
        if console.width < NARROW:
            size = len("2026-11-30 08:00:00")
            row = [cell[:size] if head in TIMES else cell for head, cell in zip(heads, row, strict=True)]
        table.add_row(*map(Text, row))  # as `Text` nothing in it is markup
    console.print(table)
    return True


def print_pairs(pairs: Sequence[tuple[str, object]]) -> None:
    """Print one line for each name and value. Values are escaped."""
    width = max((len(name) for name, _value in pairs), default=0)
    for name, value in pairs:
        print(f"{name.ljust(width)}  {escaped(str(value))}")
