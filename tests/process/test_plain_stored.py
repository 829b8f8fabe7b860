"""A store of the user's own with real workers: what a kill of the parent leaves goes on in the next program."""

from __future__ import annotations

from pathlib import Path

from procsched import InMemoryTaskStore, OneTime, Outcome, Scheduler, TaskStatus
from tests import support
from tests.pools import Parent, told_pids
from tests.stored import FileStore

KILLED = """
import sys
from procsched import OneTime, RetryPolicy, Scheduler
from tests import faults, stored

directory, told = sys.argv[1:]
with Scheduler(1, store=stored.FileStore(directory)) as scheduler:
    again = RetryPolicy(2, 0.0)
    scheduler.schedule("cut off", stored.hang_once, OneTime(0), args=(told,), retry=again)
    scheduler.schedule("waits", faults.add, OneTime(0), args=(1, 2))
    scheduler.wait_idle()
"""


def test_the_next_program_goes_on_after_a_kill(tmp_path: Path) -> None:
    """The attempt that was cut off is LOST and tried again, and what had waited for the worker runs."""
    directory, told = tmp_path / "tasks", tmp_path / "told"
    directory.mkdir()
    store = FileStore(directory)
    with Parent(tmp_path, KILLED, arguments=(str(directory), str(told))) as parent:
        pids = told_pids(told)
        support.eventually(lambda: [task.status for task in store.load_all()][:1] == [TaskStatus.RUNNING])
        parent.kill()
        support.assert_gone(*pids)
    with Scheduler(1, store=store) as scheduler:
        cut_off, waits = scheduler.tasks()
        assert scheduler.wait(cut_off, support.TIMEOUT).ok
        assert scheduler.wait(waits, support.TIMEOUT).result == 3
        assert [record.outcome for record in cut_off.history] == [Outcome.LOST, Outcome.SUCCEEDED]
    assert [task.status for task in store.load_all()] == [TaskStatus.SUCCEEDED] * 2


def test_one_store_for_one_scheduler_after_the_other() -> None:
    """Also with what only this program can call: it is packed anew from the task."""
    store = InMemoryTaskStore()
    with Scheduler(1, store=store) as scheduler:
        later = scheduler.schedule("later", lambda: 42, OneTime(4e9))
    with Scheduler(1, store=store) as scheduler:
        task = scheduler.task(later.id)
        assert (
            scheduler.wait(scheduler.schedule("now", task.task.action, OneTime(0)), support.TIMEOUT).result
            == 42
        )
        scheduler.cancel(task)
        assert scheduler.schedule("next", lambda: 42, OneTime(4e9)).id == "task-3"
    assert len(store) == 3
