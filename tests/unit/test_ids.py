"""Ids: unique, also across threads and restarts."""

from __future__ import annotations

import threading

import pytest

from procsched.errors import ValidationError
from procsched.ids import SequentialIdGenerator


def test_counts_from_one() -> None:
    """The first ids are task-1 and task-2, or begin with the prefix that is given."""
    ids = SequentialIdGenerator()
    assert [ids.next_id(), ids.next_id()] == ["task-1", "task-2"]
    assert SequentialIdGenerator("job").next_id() == "job-1"


def test_never_gives_an_id_that_a_store_knows() -> None:
    """Counting goes on after the highest known number, whatever else the store holds."""
    ids = SequentialIdGenerator()
    known = [
        "task-3",
        "task-12",
        "task-007",
        "other-99",
        "task-",
        "task-x",
        "task--5",
        "task-²",
        "task-" + "9" * 40,
    ]
    ids.continue_after(iter(known))
    assert ids.next_id() == "task-13"


def test_never_goes_back() -> None:
    """Known ids below those that were given already change nothing."""
    ids = SequentialIdGenerator()
    ids.continue_after(["task-5"])
    ids.continue_after(["task-2"])
    ids.continue_after([])
    assert ids.next_id() == "task-6"


def test_prefixes_do_not_mix() -> None:
    """`task-1` of another prefix that ends alike is not counted."""
    ids = SequentialIdGenerator("a")
    ids.continue_after(["b-a-7", "aa-7"])
    assert ids.next_id() == "a-1"


def test_threads_get_different_ids() -> None:
    """Two threads never get the same id."""
    ids = SequentialIdGenerator()
    given: list[list[str]] = [[], []]
    threads = [
        threading.Thread(target=lambda mine=mine: mine.extend(ids.next_id() for _ in range(2_000)))
        for mine in given
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*given[0], *given[1]}) == 4_000


@pytest.mark.parametrize("prefix", ["", None, 5, b"task"])
def test_refuses_what_is_no_prefix(prefix: object) -> None:
    """The message names the parameter."""
    with pytest.raises(ValidationError, match="prefix"):
        SequentialIdGenerator(prefix)  # type: ignore[arg-type]
