"""A part of a graph -> the same part as one CUDA graph, captured when it first runs and replayed from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from graphdoctor.device.observe.operators import facts_of
from graphdoctor.graphs.capture import Pool, record_graph
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.generator import generator_state, set_generator_state
from graphdoctor.graphs.graphed_callable import GraphedCallable
from graphdoctor.graphs.segments.memory import clones, copy_all
from graphdoctor.graphs.segments.nodes import memory_of_value, written_nodes

WARM_UPS = 3  # as torch asks for before a capture


class CapturedPart(torch.nn.Module):
    """Stands for a part in the split graph, and returns what the part returns, in memory of its own.

    `is_fixed` says of an argument that it lies where it is in every call: it is read there, and
    every other one is copied to where the graph reads. `refused` is why the part runs eagerly
    after all, in words, or "".
    """

    part: fx.GraphModule

    def __init__(
        self, part: fx.GraphModule, pool: Pool, side: Any, is_fixed: Callable[[torch.Tensor], bool]
    ) -> None:
        super().__init__()
        # Not registered as submodules: whoever walks the modules has no business in here.
        object.__setattr__(self, "part", part)
        self._pool, self._side, self._is_fixed = pool, side, is_fixed
        self._written = frozenset(written_arguments(part.graph))
        self._graphed: GraphedCallable | None = None
        self._copied: tuple[int, ...] = ()
        self._copies: list[torch.Tensor] = []
        self._outputs: Any = None
        self.refused = ""

    @property
    def own(self) -> list[torch.Tensor]:
        """The tensors that replays fill: copies of arguments, and results."""
        results = self._outputs if isinstance(self._outputs, (tuple, list)) else [self._outputs]
        return [tensor for tensor in (*self._copies, *results) if isinstance(tensor, torch.Tensor)]

    @property
    def is_captured(self) -> bool:
        return self._graphed is not None

    def forward(self, *args: Any) -> Any:
        graphed = self._graphed
        if graphed is None:
            graphed = self._graphed = None if self.refused else self._capture(args)
            if graphed is None:
                return self.part(*args)
            graphed.replay()  # on these arguments, which were copied for the capture
        else:
            graphed([args[place] for place in self._copied])
        for place, copy in zip(self._copied, self._copies, strict=True):
            if place in self._written:
                args[place].copy_(copy)
        return self._outputs

    def release(self) -> None:
        """Give the graph and its memory back; the next call captures anew."""
        if self._graphed is not None:
            self._graphed.release()
        self._graphed = self._outputs = None
        self._copies, self._copied = [], ()

    def _capture(self, args: tuple[Any, ...]) -> GraphedCallable | None:
        """Capture on these arguments; afterwards state and random numbers are as before."""
        tensors = [place for place, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
        copied = tuple(place for place in tensors if not self._is_fixed(args[place]))
        copies, static = clones([args[place] for place in copied]), list(args)
        for place, copy in zip(copied, copies, strict=True):
            static[place] = copy
        made = record_graph(
            lambda: self.part(*static),
            self._side,
            pool=self._pool,
            warm_up=lambda: self._warm_up(static),
        )
        if isinstance(made, Refusal):
            self.refused = made.reason
            return None
        self._outputs, self._copied, self._copies = made.result, copied, copies
        return GraphedCallable(made.graph, copies, lambda given: self._outputs)

    def _warm_up(self, static: list[Any]) -> None:
        """Let lazy initialisation happen, and undo what it writes."""
        written = [static[place] for place in self._written]
        tensors = [tensor for tensor in written if isinstance(tensor, torch.Tensor)]
        before, drawn = clones(tensors), generator_state()
        try:
            for _ in range(WARM_UPS):
                self.part(*static)
        finally:
            copy_all(tensors, before)
            set_generator_state(drawn)


def written_arguments(graph: fx.Graph) -> Iterator[int]:
    """The positions of the arguments that a graph writes into, itself or through a view."""
    written = set()
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            for into in written_nodes(node, facts_of(node.target)):
                value = into.meta.get("val")
                written.add(memory_of_value(value) if isinstance(value, torch.Tensor) else into)
    for position, node in enumerate(node for node in graph.nodes if node.op == "placeholder"):
        value = node.meta.get("val")
        key = memory_of_value(value) if isinstance(value, torch.Tensor) else node
        if key in written:
            yield position
