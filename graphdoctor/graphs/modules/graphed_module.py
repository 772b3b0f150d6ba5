"""A module and its captured calls -> a forward that replays them, and runs the original for any other call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from graphdoctor.graphs.modules.arguments import Flat, distinct, flat_call, signature_of
from graphdoctor.graphs.modules.captured_call import Graph
from graphdoctor.graphs.modules.contexts import unusual_context
from graphdoctor.graphs.modules.guard import Guard
from graphdoctor.graphs.modules.mismatch import explain
from graphdoctor.graphs.modules.observe import Signature
from graphdoctor.target.state.tree import input_leaves
from graphdoctor.target.target import Inputs

_BUSY = "an earlier call still waits for its backward pass"


class GraphedModule:
    """Called in place of a module's forward.

    `replays` counts the calls that a graph served, `fallbacks` the others by their reason.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        forward: Callable[..., Any],
        guard: Guard,
        graphs: Mapping[Signature, Sequence[Graph]],
    ) -> None:
        self.module = module
        self.forward = forward
        self.replays = 0
        self.fallbacks: Counter[str] = Counter()
        self._guard = guard
        self._graphs = dict(graphs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat = flat_call(args, kwargs)
        grad = torch.is_grad_enabled()
        signature = signature_of(flat, grad)
        graphs = self._graphs.get(signature)
        if (
            graphs is not None
            and self._guard.holds(grad)
            and not unusual_context()
            and not torch.cuda.is_current_stream_capturing()
        ):
            for graph in graphs:
                if graph.is_free:
                    self.replays += 1
                    # A tensor that is given twice has one place in the graph.
                    return graph(distinct(flat.tensors) if signature[-1] else flat.tensors)
        self.fallbacks[self._why(flat, signature, Inputs(args, kwargs))] += 1
        return self.forward(*args, **kwargs)

    def _why(self, flat: Flat, signature: Signature, given: Inputs) -> str:
        if flat.unknown:
            return f"an argument is of type {flat.unknown}, whose content a graph cannot watch"
        if signature not in self._graphs:
            leaves = input_leaves(given).items()
            names = [path for path, leaf in leaves if isinstance(leaf, torch.Tensor)]
            return explain(list(self._graphs), signature, dict(enumerate(names)))
        grad = bool(signature[0])
        if not self._guard.holds(grad):
            return self._guard.change(grad)
        if unusual_context():
            return "it is called inside activation checkpointing, a trace or a transform"
        if torch.cuda.is_current_stream_capturing():
            return "another graph is being captured"
        return _BUSY

    @property
    def graphs(self) -> int:
        """How many graphs there are."""
        return sum(map(len, self._graphs.values()))

    def release(self) -> None:
        """Give the graphs back; calls run the original forward from now on."""
        for graphs in self._graphs.values():
            for graph in graphs:
                graph.release()
        self._graphs.clear()
