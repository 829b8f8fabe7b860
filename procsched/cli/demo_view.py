"""How the demo shows itself: with `rich` on a terminal, in plain lines otherwise."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Final

LINE_EVERY: Final = 1.0  # seconds between two lines of progress without a terminal
COLUMNS: Final = ("task", "attempts", "outcome", "duration", "CPU", "peak memory", "")
NUMBERS: Final = frozenset({1, 3, 4, 5})  # the columns that are aligned to the right
WIDE: Final = 120  # characters in a line from which on the remarks have room beside the numbers


class Row(NamedTuple):
    """One row of the final table, as text."""

    task: str
    attempts: str
    outcome: str
    duration: str
    cpu: str
    memory: str
    remark: str


class View(Protocol):
    """Where the demo writes."""

    def say(self, text: str) -> None:
        """Write a line."""

    def progress(self, done: int, total: int, text: str) -> None:
        """Show how far the analysis is; may be called as often as one likes."""

    def table(self, rows: Sequence[Row]) -> None:
        """Write the final table."""

    def close(self) -> None:
        """End what moves; `say` and `table` still work."""


class PlainView:
    """Lines on standard output, of progress at most one a second."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._next = self._begun + LINE_EVERY

    def say(self, text: str) -> None:
        """Write a line at once, also where standard output is a pipe."""
        print(text, flush=True)

    def progress(self, done: int, total: int, text: str) -> None:
        """Write a line, if the last one is a second old."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LINE_EVERY
        self.say(f"{now - self._begun:5.1f} s  {done:>{len(str(total))}}/{total} files  {text}")

    def table(self, rows: Sequence[Row]) -> None:
        """Write the rows in aligned columns."""
        table = [COLUMNS, *rows]
        widths = [max(len(row[column]) for row in table) for column in range(len(COLUMNS))]
        for row in table:
            cells = [
                text.rjust(width) if column in NUMBERS else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
            self.say("  ".join(cells).rstrip())

    def close(self) -> None:
        """Do nothing: no line moves."""


class RichView:
    """A moving bar with the news above it, and a table with lines around it."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TimeElapsedColumn(),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("files  {task.description}", markup=False),
        )
        self._task = self._bar.add_task("", total=None)
        self._moving = False

    def say(self, text: str) -> None:
        """Write a line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)

    def progress(self, done: int, total: int, text: str) -> None:
        """Move the bar; it is drawn ten times a second, however often it is moved."""
        if not self._moving:
            self._moving = True
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total, description=text)

    def table(self, rows: Sequence[Row]) -> None:
        """Write the rows as a table; on a narrow terminal with the remarks below it, where they can be read."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        wide = self._bar.console.width >= WIDE
        shown = len(COLUMNS) if wide else len(COLUMNS) - 1
        table: Any = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for column, name in enumerate(COLUMNS[:shown]):
            number = column in NUMBERS
            table.add_column(
                name.replace(" ", "\n"), justify="right" if number else "left", no_wrap=number or column == 0
            )
        for row in rows:
            table.add_row(*map(Text, row[:shown]))
        self._bar.console.print(table)
        if not wide:
            for row in rows:
                if row.remark:
                    self.say(f"  {row.task.strip()}: {row.remark}")

    def close(self) -> None:
        """Let the bar stand still and end its thread."""
        self._bar.stop()


def open_view(*, plain: bool) -> View:
    """Return the view that fits: `RichView` where `rich` is installed and standard output is a terminal."""
    if not plain and sys.stdout.isatty():
        try:
            return RichView()
        except ImportError:
            pass
    return PlainView()


def seconds(value: float | None) -> str:
    """Return a duration for a person; empty where it is not known."""
    if value is None:
        return ""
    return f"{value * 1e3:.1f} ms" if abs(value) < 1.0 else f"{value:.2f} s"


def megabytes(value: int | None) -> str:
    """Return a size for a person; empty where it is not known."""
    return "" if not value else f"{value / 1e6:.1f} MB"
