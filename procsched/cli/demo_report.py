"""What the demo tells at its end: the table of tasks, the kills, and what the analysis found."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from procsched import Outcome
from procsched.cli.demo_cast import words
from procsched.cli.demo_view import Row, megabytes, seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Final

    from procsched import ExecutionRecord
    from procsched.cli.demo_cast import Act

SLOWEST: Final = 3  # files that get a row of their own
MOST: Final = 6  # entries of a list of most used things
TASK_WIDTH: Final = 24  # characters of a file's path in the table, so that its numbers fit into 80

# The record of a file, and its path for a person.
Analysed = tuple[str, "ExecutionRecord"]


def table_rows(files: Sequence[Analysed], acts: Mapping[str, Act]) -> list[Row]:
    """Return the rows of the final table: all files as one, the slowest few, then each troublemaker."""
    rows = [_row(f"{len(files):,} files", [record for _name, record in files], "one job each")]
    slowest = sorted(files, key=lambda item: item[1].duration, reverse=True)[:SLOWEST]
    rows += [
        _row(_shorten(f"  {name}", TASK_WIDTH), [record], "among the slowest") for name, record in slowest
    ]
    for act in acts.values():
        error = act.records[-1].error if act.records else None
        remarks = [error, *act.notes] if error else act.notes
        rows.append(_row(act.task.name, act.records, ", ".join(remarks)))
    return rows


def _row(task: str, records: Sequence[ExecutionRecord], remark: str) -> Row:
    """Sum up `records`: CPU is the sum, duration too unless each is of interest by itself, memory the peak."""
    spent = [record.cpu_seconds for record in records if record.cpu_seconds is not None]
    peaks = [record.peak_rss for record in records if record.peak_rss is not None]
    return Row(
        task,
        f"{len(records):,}",
        outcomes(records),
        seconds(sum(record.duration for record in records) if records else None),
        seconds(sum(spent) if spent else None),
        megabytes(max(peaks, default=None)),
        remark,
    )


def outcomes(records: Sequence[ExecutionRecord]) -> str:
    """Return how attempts ended: in order where they are few, counted where they are many."""
    came = [record.outcome for record in records]
    if len(came) <= 3 or len(set(came)) == 1:
        return words(came)
    counted = Counter(came).most_common()
    return ", ".join(f"{count:,} x {outcome.value}" for outcome, count in counted)


def kill_lines(acts: Mapping[str, Act], cancel_seconds: float | None, gone: str) -> list[str]:
    """Return what was killed and how late each kill was.

    Args:
        cancel_seconds: from the call of `cancel` to the record, or None where it has not come.
        gone: what became of the daemon, as a sentence.
    """
    lines = []
    for act in acts.values():
        late = act.lateness()
        if late is None:
            continue
        grace = act.task.task.grace
        of = f"its deadline and {grace:g} s of grace" if grace else "its deadline"
        lines.append(f"  {act.task.name:<10} its whole tree was dead {late * 1e3:.1f} ms after {of}")
    if cancel_seconds is not None:
        lines.append(
            f"  {'cancelled':<10} dead {cancel_seconds * 1e3:.1f} ms after the call that cancelled it"
        )
    lines.append(f"  {'daemon':<10} {gone}")
    return lines


def finding_lines(files: Iterable[Analysed]) -> list[str]:
    """Return what the analysis found in the files."""
    lines = functions = classes = markers = links = 0
    longest, longest_in = (0, ""), ""
    modules: Counter[str] = Counter()
    peps: Counter[str] = Counter()
    unparsed = []
    for name, record in files:
        report = record.result
        if record.outcome is not Outcome.SUCCEEDED or report is None:
            continue
        lines += report.lines
        functions += report.functions
        classes += report.classes
        markers += report.markers
        links += report.links
        modules.update(report.modules)
        peps.update(report.peps)
        if report.longest > longest:
            longest, longest_in = report.longest, name
        if not report.parsed:
            unparsed.append(name)
    found = [f"  {lines:,} lines, {functions:,} functions, {classes:,} classes"]
    if longest_in:
        found.append(f"  longest function: {longest[1]}, {longest[0]:,} lines, in {longest_in}")
    if modules:
        found.append("  most imported: " + _most(modules))
    if peps:
        found.append("  most mentioned: " + _most(peps, "PEP "))
    found.append(f"  {markers:,} marks such as FIXME, {links:,} links")
    if unparsed:
        found.append(f"  {len(unparsed):,} do not parse, such as {unparsed[0]}")
    return found


def _most(counter: Counter[str], prefix: str = "") -> str:
    return ", ".join(f"{prefix}{name} ({count:,})" for name, count in counter.most_common(MOST))


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[:2]}...{text[5 - width :]}"
