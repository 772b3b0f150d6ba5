"""A draw on the host that can decide only one thing is no hazard; one that can decide two is."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.diagnosing import diagnosed, judged

Draw = Callable[[], torch.Tensor]


def layer_drop_at_rate(rate: float) -> object:
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)]).cuda()

    def step(x: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            if torch.rand([]) < rate:
                continue
            x = F.dropout(layer(x), 0.1)
        return x

    return SimpleNamespace(step=step, inputs=(torch.randn(4, 8, device="cuda"),), state=[layers])


def rules_of_branch_on(condition: Callable[[], torch.Tensor]) -> set[str]:
    def example() -> object:
        def step(x: torch.Tensor) -> torch.Tensor:
            return x * 2 if condition() else x.clone()

        return step, (torch.randn(8, device="cuda"),)

    return {finding.rule for finding in diagnosed(example).findings if finding.rule < "GD3"}


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_layers_that_are_dropped_at_a_rate_of_0_are_captured_as_they_are(rate: float) -> None:
    def example() -> object:
        return layer_drop_at_rate(rate)

    diagnosis, outcome = judged(example)
    assert {f.rule for f in diagnosis.findings if f.rule < "GD3"} == set()
    # The dropout's masks are those of eager, too.
    assert outcome.verification is not None and outcome.verification.status == "verified"


@pytest.mark.parametrize("rate", [0.1, 2.0**-24, 0.999])
def test_layers_that_may_be_dropped_are_found(rate: float) -> None:
    assert "GD209" in {f.rule for f in diagnosed(lambda: layer_drop_at_rate(rate)).findings}


@pytest.mark.parametrize(
    "condition",
    [
        lambda: torch.rand([]) < 0.0,
        lambda: torch.rand([]) >= 0,
        lambda: torch.rand([]) > 1.0,
        lambda: torch.rand([]) <= 1,
        lambda: torch.rand([]) == 2.0,
        lambda: (torch.rand(3) < 0.0).any(),
        lambda: torch.rand(3)[1] < 0.0,
        lambda: torch.rand((), dtype=torch.float16) >= 1.0,
        lambda: torch.rand_like(torch.zeros(())) < 0.0,
    ],
)
def test_a_comparison_that_ends_alike_for_every_draw_is_no_finding(condition: Draw) -> None:
    assert rules_of_branch_on(condition) == set()


@pytest.mark.parametrize(
    "condition",
    [
        lambda: torch.rand([]) <= 0.0,  # a draw may be 0
        lambda: torch.rand([]) > 0.0,
        lambda: torch.randn([]) < 0.0,
        lambda: torch.rand([]) - 0.5 < 0.0,
        lambda: torch.rand([]).sub_(0.5) < 0.0,
        lambda: torch.rand([]).double() < 0.0,  # a copy: what it holds is not followed
        lambda: torch.empty(()).uniform_(-1, 1) < 0.0,
        lambda: torch.rand([]) < torch.tensor(0.0),  # the bound is not seen
    ],
)
def test_a_draw_that_may_end_either_way_or_is_not_followed_is_found(condition: Draw) -> None:
    assert rules_of_branch_on(condition) == {"GD209"}


def test_a_draw_that_is_also_used_otherwise_is_found() -> None:
    def example() -> object:
        def step(x: torch.Tensor) -> torch.Tensor:
            draw = torch.rand([])
            return x * draw if draw >= 0.0 else x

        return step, (torch.randn(8, device="cuda"),)

    assert "GD209" in {finding.rule for finding in diagnosed(example).findings}
