"""Iterators that outlive a step: where they stand, and what takes from them."""

from __future__ import annotations

import builtins
import itertools
import queue
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from graphdoctor.record.host.observer import HostObserver
from graphdoctor.record.host.running import Running, position

NEXT: Any = builtins.next


def numbers() -> Iterator[int]:
    at = 0
    while True:
        at += 1
        yield at


def of_a_global() -> Iterator[object]:
    yield from (object(),)


MADE: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter([3, 1, 2]),
    "tuple": lambda: iter((3, 1, 2)),
    "range": lambda: iter(range(3)),
    "count": lambda: itertools.count(5),
    "zip": lambda: zip([1, 2], [3, 4], strict=True),
    "chain": lambda: itertools.chain([1, 2], [3]),
    "in a tuple": lambda: itertools.chain(itertools.repeat(1.0, 300), itertools.repeat(2.0)),
    "deep": lambda: enumerate(zip([1, 2], itertools.count(), strict=False)),
}


# Since Python 3.14 itertools do not say what is left, but for what is held by zip() and enumerate().
UNTOLD = () if hasattr(itertools.chain, "__setstate__") else ("chain", "in a tuple")


@pytest.mark.parametrize("name", MADE)
def test_one_that_was_moved_on_stands_elsewhere(name: str) -> None:
    held = MADE[name]()
    running = Running({"held": held})
    before = [position(held), object(), position(held)]
    assert before[0] == before[2]
    assert list(running.moved()) == (["held"] if name in UNTOLD else [])  # nobody knows
    NEXT(held)
    assert list(running.moved()) == ["held"]


def test_where_a_generator_stands_nobody_knows() -> None:
    held = numbers()
    running = Running({"held": held})
    NEXT(held)
    assert position(held) is None
    assert list(running.moved()) == []


def test_next_takes_from_those_of_which_nobody_knows_where_they_stand() -> None:
    round_and_round = itertools.cycle([1])
    assert Running({"a": iter([1]), "b": round_and_round}).taken_by_built_in(next) == "b"
    assert Running({"a": iter([1]), "b": numbers()}).taken_by_built_in(next) is None
    assert Running({"b": round_and_round}).taken_by_built_in(len) is None


def test_a_loader_s_iterator_has_moved_only_if_its_next_was_called() -> None:
    """Lightning's module leads to that of its loop, which takes the batches outside of the step."""
    batches = iter(torch.utils.data.DataLoader([1, 2, 3]))
    running = Running({"batches": batches})
    assert list(running.moved()) == []
    with HostObserver((), running) as observer:
        NEXT(batches)
    assert {event.name for event in observer.events} == {"batches"}


def test_a_weak_reference_that_stands_for_an_object_is_no_iterator() -> None:
    """Its class has each method, `__next__` too. A bar of tqdm's holds one of itself."""

    class Bar:
        pass

    bar = Bar()
    running = Running({"bar": weakref.proxy(bar)})
    assert running.taken_by_built_in(next) is None and not list(running.moved())


def test_queues_are_taken_from_by_their_methods() -> None:
    line, running = queue.SimpleQueue[int](), Running({})
    assert (
        running.taken_by_built_in(line.get)
        == running.taken_by_built_in(line.get_nowait)
        == "a queue"
    )
    assert running.taken_by_built_in(line.qsize) is None


def test_an_object_of_the_users_is_state_and_a_container_no_iterator() -> None:
    class Counting:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Counting:
            return self

        def __next__(self) -> int:
            self.at += 1
            return self.at

    held, own, items = iter([1]), Counting(), [1]
    running = Running({"held": held, "own": own, "list": items})
    assert [running.path(each) for each in (held, own, items)] == ["held", None, None]
