"""What of a queue must still be written, when a store has failed for a while. Pure."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from procsched.stores.changes import Change


def thin_out(changes: Sequence[Change], most_records: int) -> tuple[list[Change], int]:
    """Return what has to be written of `changes`, in their order, and how many records were dropped.

    Of a task only the last state counts, with every record, what it runs, and its end: a task whose end were dropped
    would come back at the next start. Beyond `most_records` the oldest records go; of the attempts themselves nothing
    is lost by that.

    Args:
        changes: the oldest first. Those that come back are the same ones; their records may be gone.
        most_records: how many of them may have one.
    """
    excess = sum(change.record is not None for change in changes) - most_records
    dropped = 0
    for change in changes:
        if dropped >= excess:
            break
        if change.record is not None:
            change.record = None
            dropped += 1
    kept: list[Change] = []
    seen: set[str] = set()  # tasks of which a later change is kept
    ended: set[str] = set()  # whose end is among the later ones
    for change in reversed(changes):
        name = change.task_id
        if change.snapshot is None:
            ended.add(name)
        elif name in seen and change.record is None and (change.call is None or name in ended):
            continue
        seen.add(name)
        kept.append(change)
    kept.reverse()
    return kept, dropped
