"""Drawn inputs keep what makes given ones valid; several batches are used in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.utils.data import DataLoader

from graphdoctor.target import Inputs, from_object
from graphdoctor.target.inputs.fresh import Redraw

Holds = Callable[[torch.Tensor], bool]


def is_positive_definite(x: torch.Tensor) -> bool:
    return torch.equal(x, x.mT) and bool((torch.linalg.eigvalsh(x) > 0).all())


def is_one_hot(x: torch.Tensor) -> bool:
    return bool((x.sum(-1) == 1).all()) and set(x.unique().tolist()) == {0.0, 1.0}


def sums_to_one(x: torch.Tensor) -> bool:
    return bool(((x.sum(-1) - 1).abs() < 1e-5).all()) and bool((x >= 0).all())


def is_of_length_one(x: torch.Tensor) -> bool:
    return bool(((x.norm(dim=-1) - 1).abs() < 1e-5).all())


GENERATOR = torch.Generator().manual_seed(3)
NORMAL = torch.randn(6, 6, generator=GENERATOR)


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        (NORMAL @ NORMAL.T + torch.eye(6), is_positive_definite),
        (torch.stack([NORMAL @ NORMAL.T + torch.eye(6)] * 3), is_positive_definite),
        (NORMAL + NORMAL.T, lambda x: torch.equal(x, x.mT)),
        (torch.eye(5)[[0, 3, 1, 1]], is_one_hot),
        (NORMAL.softmax(-1), sums_to_one),
        (torch.nn.functional.normalize(NORMAL, dim=-1), is_of_length_one),
        (NORMAL.sort(-1).values, lambda x: torch.equal(x, x.sort(-1).values)),
    ],
    ids=["definite", "batch", "symmetric", "one-hot", "sums", "directions", "sorted"],
)
def test_a_property_of_the_given_values_holds_for_the_drawn_ones(
    given: torch.Tensor, holds: Holds
) -> None:
    given = (given + given.mT) / 2 if holds is is_positive_definite else given
    assert holds(given)
    make = Redraw(Inputs((given,)))
    make()
    drawn = [make().args[0] for _ in range(5)]
    for each in drawn:
        assert isinstance(each, torch.Tensor) and holds(each)
    assert not all(torch.equal(given, each) for each in drawn)  # type: ignore[arg-type]


MODEL = torch.nn.Linear(2, 2)


def first_values(batches: object, count: int = 3) -> list[float]:
    target = from_object(lambda: (MODEL, batches))
    found = []
    for _ in range(count):
        inputs = target.fresh_inputs()
        leaf = next(iter((*inputs.args, *inputs.kwargs.values())))
        assert isinstance(leaf, torch.Tensor)
        found.append(float(leaf.flatten()[0]))
    return found


def rows(value: float) -> torch.Tensor:
    return torch.full((1, 2), value)


def test_a_list_an_iterator_or_a_loader_of_batches_is_used_in_turn() -> None:
    assert first_values([(rows(1.0),), (rows(2.0),)]) == [1.0, 2.0, 1.0]
    assert first_values([{"input": rows(1.0)}, {"input": rows(2.0)}]) == [1.0, 2.0, 1.0]
    assert first_values(iter([rows(1.0), rows(2.0), rows(3.0)])) == [1.0, 2.0, 3.0]
    assert first_values(DataLoader([rows(1.0)[0], rows(2.0)[0]])) == [1.0, 2.0, 1.0]


def test_a_list_of_tensors_is_still_one_calls_arguments() -> None:
    target = from_object(lambda: (torch.add, [rows(1.0), rows(2.0)]))
    assert len(target.fresh_inputs().args) == 2


def test_a_partial_makes_inputs_too() -> None:
    made = partial(torch.rand, 1, 2)
    found = first_values(made)
    assert len(set(found)) == 3
