"""Whole numbers that go together -> the same numbers in other places, still what somebody would pass."""

from __future__ import annotations

import torch

from graphdoctor.target.inputs.draw import rearranging_of


def drawn(values: torch.Tensor, *, times: int = 8) -> list[torch.Tensor]:
    draw = rearranging_of(values)
    assert draw is not None
    generator = torch.Generator().manual_seed(0)
    return [draw(generator) for _ in range(times)]


def test_marks_stay_and_words_change_places() -> None:
    ids = torch.tensor([[1, 17, 99, 99, 99, 5, 23, 0, 0], [1, 4, 31, 99, 99, 6, 42, 8, 0]])
    found = drawn(ids)
    for each in found:
        assert torch.equal(each == 99, ids == 99) and torch.equal(each == 0, ids == 0)
        assert torch.equal(each.flatten().sort().values, ids.flatten().sort().values)
    assert any(not torch.equal(each, ids) for each in found)


def test_records_stay_whole() -> None:
    grid = torch.tensor([[1, 4, 4], [1, 2, 8], [2, 2, 2]])
    rows = {tuple(row) for row in grid.tolist()}
    assert all({tuple(row) for row in each.tolist()} == rows for each in drawn(grid))


def test_padding_stays_on_its_side() -> None:
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]])
    assert all(bool((each.diff(dim=-1) <= 0).all()) for each in drawn(mask))


def test_what_has_an_order_or_a_single_place_stays() -> None:
    for values in ([0, 3, 9], [9, 4, 4, 1], [2, 0, 1], [7]):
        assert rearranging_of(torch.tensor(values)) is None
    assert rearranging_of(torch.tensor(5)) is None
    assert rearranging_of(torch.randn(4)) is None
    assert rearranging_of(torch.tensor([[1, 9, 9, 9, 9, 1]])) is None
