"""Steps of random operators, recorded, and what their operators compute in another order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st

from graphdoctor.partition.fx import to_fx
from graphdoctor.values.recording import Iteration
from tests.support.mini_recorder import record

_MAKE: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a.t(),
    lambda a, b: a.add_(b.clone()),
    lambda a, b: a.flip(0),
    lambda a, b: b.detach(),
    lambda a, b: a.copy_(b.clone()),
    lambda a, b: torch.bernoulli(torch.sigmoid(a)),
    lambda a, b: torch.empty_like(a).copy_(b),
    lambda a, b: a * b,
    lambda a, b: a + float(b.sum()),
]
STEPS = st.lists(
    st.tuples(st.integers(0, len(_MAKE) - 1), st.integers(0, 6), st.integers(0, 6)),
    min_size=2,
    max_size=14,
)


def random_step(moves: list[tuple[int, int, int]]) -> Iteration:
    """The moves of STEPS, recorded from two matrices."""

    def step(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        values = [x, y]
        for kind, a, b in moves:
            values.append(_MAKE[kind](values[a % len(values)], values[b % len(values)]))
        return values[2:]

    torch.manual_seed(0)
    return record(step, [torch.rand(3, 3), torch.ones(3, 3)], device="cuda:0")


def results_in(step: Iteration, order: Sequence[int]) -> list[list[float]]:
    """What the operators return and leave in their inputs when they run in this order."""
    graph = to_fx(step, [step.ops[index] for index in order])
    torch.manual_seed(1)
    given = {"inputs[0]": torch.rand(3, 3), "inputs[1]": torch.ones(3, 3)}
    names = [node.meta["external"].name for node in graph.graph.nodes if node.op == "placeholder"]
    torch.manual_seed(2)
    results = graph(*(given[name] for name in names))
    return [each.flatten().tolist() for each in (*results, *given.values())]
