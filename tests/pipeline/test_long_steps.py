"""A step twice as long is twice the work: recurrent layers and scans run their operators once for each place."""

from __future__ import annotations

import cProfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import pytest
import torch
from torch import nn

import graphdoctor

_OURS = str(Path(graphdoctor.__file__).parent)
_LEAST = 100  # fewer calls than this are no pass over the operators
Step = Callable[[torch.Tensor], torch.Tensor]


class Scan(nn.Module):
    """A state that is carried from place to place, as Mamba's without its own kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.zeros(4))
        self.out = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, seen = torch.zeros_like(x[0]), []
        for at in x:
            state = torch.exp(-self.decay.abs()) * state + at
            seen.append(self.out(state))
        return torch.stack(seen)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


def _trained(model: nn.Module) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _analysis(model: nn.Module, places: int) -> tuple[int, Counter[str]]:
    """How often the model ran, and how many calls each function of graphdoctor made."""
    step, x = _trained(model), torch.randn(places, 2, 4)
    with cProfile.Profile() as profile:
        graphdoctor.analyze(step, x, device="emulated", strategies=())
    calls: Counter[str] = Counter()
    runs = 0
    for entry in profile.getstats():
        if not isinstance(entry.code, CodeType):
            continue  # a function of C, which shows among the calls of its caller
        if entry.code is type(model).forward.__code__:
            runs += entry.callcount
        if entry.code.co_filename.startswith(_OURS):
            place = entry.code.co_filename.removeprefix(_OURS)
            made = sum(called.callcount for called in entry.calls or ())
            calls[f"{place} {entry.code.co_qualname}"] += made
    return runs, calls


@pytest.mark.parametrize("kind", [TwoLayers, Scan])
def test_twice_as_many_places_are_no_more_runs_and_twice_the_calls_of_each_pass(
    kind: type[nn.Module],
) -> None:
    """Counted, not timed: a pass over pairs of operators would make four times the calls."""
    short_runs, short = _analysis(kind(), 4)
    long_runs, long = _analysis(kind(), 8)
    assert long_runs == short_runs > 0
    grown = {name: calls / short[name] for name, calls in long.items() if short[name] >= _LEAST}
    assert len(grown) > 100
    assert {name: growth for name, growth in grown.items() if growth > 2.5} == {}
