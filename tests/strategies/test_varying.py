"""Shapes that vary between iterations: no strategy is predicted to pay by graphs that hold one shape."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from types import SimpleNamespace

import torch
from torch import nn

from graphdoctor.pipeline import analyze
from graphdoctor.values.speed import StrategyOutcome


class Long(nn.Module):
    """Enough launches for a graph to pay."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.tanh(x) + 1
        return x


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.picture = Long(), Long()

    def forward(self, words: torch.Tensor, picture: torch.Tensor) -> torch.Tensor:
        said = self.words(words).mean(dim=0)
        return said if float(said.sum()) > 1e9 else self.picture(picture) + said


class Growing(nn.Module):
    """What it has seen grows by each call, and its layers by themselves never change."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = Long(), Long()
        self.seen = torch.zeros(1, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(x)
        self.seen = torch.cat([self.seen.to(x.device), x.mean(dim=0, keepdim=True)])
        return self.after(x + self.seen.sum(dim=0))


def stepping(model: nn.Module, inputs: Callable[[], tuple[torch.Tensor, ...]]) -> object:
    def step(*tensors: torch.Tensor) -> object:
        with torch.no_grad():
            return model(*tensors)

    return SimpleNamespace(step=step, inputs=inputs, state={"model": model.eval()})


def rows_of(target: object) -> dict[str, StrategyOutcome]:
    found = analyze(target, device="emulated", strategies=("modules", "segments"))
    return {row.strategy: row for row in found.strategies}


def test_inputs_of_varying_shape_leave_neither_modules_nor_segments() -> None:
    lengths = cycle((5, 9, 7))

    def inputs() -> tuple[torch.Tensor, ...]:
        return (torch.randn(next(lengths), 8),)

    rows = rows_of(stepping(nn.Sequential(Long(), Long()), inputs))
    for row in rows.values():
        assert row.status == "unfit"
        assert row.predicted is None
        assert "other shapes in other iterations" in row.reason


def test_what_has_the_same_shape_in_each_iteration_stays_in_graphs() -> None:
    lengths = cycle((5, 9, 7))

    def inputs() -> tuple[torch.Tensor, ...]:
        return torch.randn(next(lengths), 8), torch.randn(4, 8)

    rows = rows_of(stepping(Two(), inputs))
    assert (rows["modules"].status, rows["segments"].status) == ("verified", "planned")
    assert "model.picture" in rows["modules"].code
    assert "model.words" not in rows["modules"].code
    assert all(0.4 < row.captured_share < 0.6 for row in rows.values() if row.captured_share)


def test_dynamo_makes_a_graph_anew_where_state_grows_and_modules_keep_theirs() -> None:
    rows = rows_of((Growing(), (torch.randn(4, 8),)))
    assert rows["segments"].status == "unfit"
    assert "other shapes in other iterations" in rows["segments"].reason
    assert rows["modules"].status == "verified"
