"""Graphs cut at what cannot be captured compute, call for call, what the uncut graph computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from graphdoctor.emulator import EmulatedDevice
from graphdoctor.segments.graph import SegmentedGraph, Shared
from graphdoctor.segments.split import split

aten = torch.ops.aten
CUDA = torch.device("cuda", 0)
Body = Callable[..., Any]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def traced(body: Body, *shapes: tuple[int, ...]) -> fx.GraphModule:
    """The graph of a function of tensors on a GPU, traced on tensors without memory."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(shape, device="cuda") for shape in shapes]
        return make_fx(body)(*inputs)


def segmented(graph_module: fx.GraphModule, owned: int | None = None) -> SegmentedGraph:
    shared = Shared(side=torch.cuda.Stream(), lent=[], guarded=False)
    return SegmentedGraph(graph_module, split(graph_module.graph), shared, owned)


def to_host_and_back(x: torch.Tensor) -> torch.Tensor:
    there = aten._to_copy(x, device=torch.device("cpu"))
    return aten._to_copy(aten.sin(there), device=CUDA)


def long(x: torch.Tensor, scale: float = 0.5) -> torch.Tensor:
    for _ in range(6):
        x = torch.tanh(x) * scale + 1
    return x


def cut_in_the_middle(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = long(x @ w)
    return long(to_host_and_back(y) + y), y


def with_views(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = long(x @ w)
    return y, y.view(-1), aten.select(y, 0, 0), x, x.t(), w.t()


def writing(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    y = long(x)
    aten.add_(state, y.sum(0))
    z = to_host_and_back(state)
    aten.mul_(aten.select(state, 0, 0), 2.0)
    return long(y + z + state)


def writing_an_intermediate(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = to_host_and_back(x)
    aten.add_(y.view(-1), 1.0)
    z = long(y @ w)
    aten.mul_(y, z)
    return to_host_and_back(y) + y


def drawing(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return long(torch.rand_like(x) + x) @ w


BODIES = (cut_in_the_middle, with_views, writing, writing_an_intermediate, drawing)
SHAPES = {writing: ((4, 8), (8,))}


def states(graph_module: fx.GraphModule, function: Body, calls: int) -> list[Any]:
    """All results and both arguments after each of some calls with new values."""
    first, second = (node.meta["val"].shape for node in placeholders(graph_module))
    torch.manual_seed(0)
    fixed = torch.nn.Parameter(torch.randn(second, device="cuda"), requires_grad=False)
    seen, held = [], []
    for _ in range(calls):
        x = torch.randn(first, device="cuda")
        results = function(x, fixed)
        results = results if isinstance(results, (tuple, list)) else (results,)
        held.append((results, x))  # results of earlier calls belong to the caller
        seen.append(fixed.clone())
    return [*seen, *((*results, x) for results, x in held)]


def placeholders(graph_module: fx.GraphModule) -> list[fx.Node]:
    return [node for node in graph_module.graph.nodes if node.op == "placeholder"]


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.stride() == right.stride() and torch.equal(left, right)
    return len(left) == len(right) and all(map(same, left, right))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_a_segmented_graph_computes_what_the_graph_computes(body: Body) -> None:
    graph_module = traced(body, *SHAPES.get(body, ((4, 4), (4, 4))))
    with EmulatedDevice():
        eager = states(graph_module, graph_module, 5)
        made = segmented(graph_module)
        assert same(states(graph_module, made, 5), eager)
        assert made.replays == 4
        assert made.captured_parts
        assert all(part.is_captured for part in made.captured_parts)
