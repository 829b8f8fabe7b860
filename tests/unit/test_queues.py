"""The heap of due times and the ready order, with their tombstones."""

from __future__ import annotations

import operator
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from procsched import Priority, QueueEntry
from procsched._core.queues import DueQueue, ReadyOrder


class Entry(SimpleNamespace):
    """As the registry's: each is equal to itself alone."""

    __hash__ = object.__hash__


def entry(name: str = "t") -> Any:
    return Entry(generation=0, handle=SimpleNamespace(task=SimpleNamespace(id=name)))


def test_pops_by_due_time_priority_and_arrival() -> None:
    """The earliest comes first; among equals the higher priority, then what was pushed first."""
    queue = DueQueue()
    entries = {name: entry(name) for name in "abcde"}
    for name, due, priority in (("a", 2, 1), ("b", 1, 2), ("c", 1, 0), ("d", 1, 2), ("e", 3, 1)):
        queue.push(True, due, priority, entries[name])
    popped = []
    while (item := queue.pop_due(True, 2)) is not None:
        popped.append(item[4].handle.task.id)
    assert popped == ["c", "b", "d", "a"]
    assert len(queue) == 1


def test_lines_do_not_mix() -> None:
    """Each line has its own now; what is due on one says nothing of the other."""
    queue = DueQueue()
    queue.push(True, 10.0, 1, entry())
    queue.push(False, 20.0, 1, entry())
    assert (queue.next_due(True), queue.next_due(False)) == (10.0, 20.0)
    assert queue.is_due(10.0, 0.0)
    assert queue.is_due(0.0, 20.0)
    assert not queue.is_due(9.0, 19.0)
    assert queue.pop_due(True, 9.0) is None


def test_push_tells_of_a_new_head() -> None:
    """The timer need only be told of what comes before all others."""
    queue = DueQueue()
    assert queue.push(True, 10.0, 1, entry())
    assert not queue.push(True, 11.0, 1, entry())
    assert queue.push(True, 9.0, 1, entry())
    assert queue.push(False, 50.0, 1, entry())


def test_a_due_time_within_rounding_is_due() -> None:
    """A clock moved exactly onto a slot may differ by the rounding of a float."""
    queue = DueQueue()
    queue.push(True, 1_700_000_000.1, 1, entry())
    assert queue.pop_due(True, 1_700_000_000.1 - 2.4e-7) is not None


def test_stale_entries_are_dropped_and_counted() -> None:
    """A withdrawn entry is never given out, also when it is pushed anew."""
    queue = DueQueue()
    one = entry("one")
    queue.push(True, 1.0, 1, one)
    queue.push(True, 9.0, 1, entry("other"))
    one.generation += 1
    queue.discard(True)
    queue.push(True, 2.0, 1, one)
    assert (len(queue), queue.tombstones) == (3, 1)
    queue.check()
    item = queue.pop_due(True, 5.0)
    assert item is not None
    assert (item[0], item[3]) == (2.0, 1)
    assert (len(queue), queue.tombstones) == (1, 0)


def test_tombstones_are_pruned_when_they_outnumber_the_live() -> None:
    """A million withdrawn entries do not stay in memory, nor do three; and passes over the heap stay rare."""
    for count in (3, 5000):
        queue = DueQueue()
        entries = [entry() for _ in range(count)]
        for number, one in enumerate(entries):
            queue.push(False, float(number), 1, one)
        walked = 0
        for live, one in reversed(list(enumerate(entries))):
            before = len(queue)
            one.generation += 1
            queue.discard(False)
            assert len(queue) - queue.tombstones == live
            assert queue.tombstones <= live
            walked += before if len(queue) < before else 0
        queue.check()
        assert len(queue) == 0
        assert walked <= 2 * count


class Compared(float):
    """A due time that counts how often any of its kind is compared."""

    count = 0

    def __eq__(self, other: object) -> bool:
        Compared.count += 1
        return float(self) == other

    __hash__ = float.__hash__


@pytest.mark.slow
def test_taking_one_of_many_costs_a_logarithm() -> None:
    """Of 100,000 that are due each is found by a few comparisons, in order; so is the place of one more."""
    count = 100_000
    most = 3 * count.bit_length()  # two for each level, and what is looked at before
    queue = DueQueue()
    times = list(range(count))
    random.Random(1).shuffle(times)
    for at in times:
        queue.push(True, Compared(at), 1, entry())
    for at in range(1000):
        Compared.count = 0
        item = queue.pop_due(True, float(count))
        assert item is not None
        assert item[0] == at
        assert Compared.count <= most
        Compared.count = 0
        queue.push(True, Compared(count + at), 1, entry())
        assert Compared.count <= most


def test_entries_for_a_person() -> None:
    """The heap can be listed as QueueEntry values."""
    queue = DueQueue()
    queue.push(True, 5.0, 0, entry("a"))
    assert queue.entries() == [QueueEntry(5.0, Priority.HIGH, 1, "a", 0)]


def test_ready_order() -> None:
    """Priority before due time before arrival; withdrawn entries are passed over."""
    ready = ReadyOrder()
    entries = {name: entry(name) for name in "abcd"}
    ready.push(1, 5.0, 1, entries["a"])
    ready.push(1, 4.0, 2, entries["b"])
    ready.push(0, 9.0, 3, entries["c"])
    ready.push(1, 4.0, 4, entries["d"])
    entries["b"].generation += 1
    ready.discard()
    ready.check()
    assert [one.handle.task.id for one in ready.live_entries()] == ["c", "d", "a"]
    assert len(ready) == 3
    assert [ready.pop().handle.task.id for _ in range(3)] == ["c", "d", "a"]  # type: ignore[union-attr]
    assert ready.pop() is None


def test_what_is_given_back_may_go_before_what_is_lent() -> None:
    """The same as for what comes anew: whoever lends is told."""
    ready = ReadyOrder()
    urgent, low = entry("urgent"), entry("low")
    ready.push(1, 5.0, 1, urgent)
    ready.push(2, 5.0, 2, low)
    assert (ready.lend(), ready.lend()) == (urgent, low)
    ready.give_back(low)
    assert not ready.outrun
    assert ready.lend() is low
    ready.give_back(urgent)
    assert ready.outrun


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 9), st.integers(0, 2)),
            st.tuples(st.just("discard"), st.integers(0, 30), st.just(0)),
            st.tuples(st.just("pop"), st.integers(0, 9), st.just(0)),
        )
    )
)
def test_against_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    """Any order of pushes, withdrawals and pops gives what a sorted list gives."""
    queue = DueQueue()
    model: list[tuple[int, int, int, Any]] = []
    count = 0
    for what, number, priority in steps:
        if what == "push":
            one = entry()
            count += 1
            queue.push(True, number, priority, one)
            model.append((number, priority, count, one))
        elif what == "discard" and model:
            victim = model.pop(number % len(model))[3]
            victim.generation += 1
            queue.discard(True)
        elif what == "pop":
            model.sort(key=lambda item: item[:3])
            item = queue.pop_due(True, number)
            if model and model[0][0] <= number:
                assert item is not None
                assert item[4] is model.pop(0)[3]
            else:
                assert item is None
        queue.check()
        assert len(queue) - queue.tombstones == len(model)


def test_entries_are_ordered_by_all_their_fields() -> None:
    """By due time, then priority, then sequence; with anything else they have no order."""
    first = QueueEntry(5.0, Priority.HIGH, 1, "a", 0)
    for later in (
        replace(first, due_at=6.0),
        replace(first, priority=Priority.LOW),
        replace(first, sequence=2),
        replace(first, task_id="b"),
        replace(first, generation=1),
    ):
        assert first < later
        assert first <= later
        assert later > first
        assert later >= first
        assert not first > later
        assert not first >= later
    assert first <= replace(first)
    assert not first < replace(first)
    for compare in (operator.lt, operator.gt, operator.le, operator.ge):
        with pytest.raises(TypeError):
            compare(first, (6.0,))
