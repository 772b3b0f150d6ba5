"""Arguments whose elements share memory: expanded ones and sliding windows, copied to where a graph reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.graphed_twins import Side, data, linear, twins
from tests.support.graphed_twins import emulated as emulated

LAYOUTS: dict[str, Callable[[int], torch.Tensor]] = {
    "expanded rows": lambda seed: data(1, 8, seed=seed).expand(4, 8),
    "expanded columns": lambda seed: data(4, 1, seed=seed).expand(4, 8),
    "windows": lambda seed: data(20, seed=seed).as_strided((4, 8), (4, 1)),
    "windows within a row": lambda seed: data(20, seed=seed).as_strided((4, 8), (4, 1), 0)[1:],
}


class Rectified(nn.Module):
    """Its output lies as its input does, as far as that goes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * self.weight


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("make", [linear, Rectified])
@pytest.mark.parametrize("trains", [False, True], ids=["forward", "training"])
def test_overlapping_arguments_take_other_values(
    layout: Callable[[int], torch.Tensor], make: Callable[[], nn.Module], trains: bool
) -> None:
    def run(side: Side, seed: int = 0) -> Any:
        return side.train(layout(seed)) if trains else side.look(layout(seed))

    with twins(make, [run]) as pair:
        for seed in (1, 2):
            pair.both(lambda side, seed=seed: run(side, seed))
        assert pair.made.replays == 2 and not pair.reasons


def test_an_argument_that_wants_gradients_gets_one_for_each_of_its_elements() -> None:
    def run(side: Side, seed: int = 0) -> Any:
        base = data(1, 8, seed=seed).requires_grad_()
        side.model(base.expand(4, 8)).square().sum().backward()
        return base.grad

    with twins(linear, [run]) as pair:
        pair.both(lambda side: run(side, 1))
        assert pair.made.replays == 1 and not pair.reasons


def test_a_dense_argument_is_another_call() -> None:
    def run(side: Side, x: torch.Tensor) -> Any:
        return side.train(x)

    with twins(linear, [lambda side: run(side, data(1, 8).expand(4, 8))]) as pair:
        pair.both(lambda side: run(side, data(4, 8)))
        assert pair.made.replays == 0
        assert any("strides" in reason or "stride" in reason for reason in pair.reasons)
