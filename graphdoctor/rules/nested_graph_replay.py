"""Finds the replays of CUDA graphs inside the step."""

from __future__ import annotations

from graphdoctor.rules.rule import MEASURED, EventRule
from graphdoctor.values.host_events import GraphReplay


class NestedGraphReplay(EventRule):
    """The step replays a CUDA graph of its own code.

    A part of the step is captured already, by hand or with `torch.cuda.make_graphed_callables`. PyTorch
    rejects a replay during another capture.

    False alarm: you want to keep the step as it is. The existing graph is valid.

    To capture the whole step, call the original code instead of its graph.
    """

    id = "GD118"
    name = "nested-graph-replay"
    effect = "capture-fails"
    evidence = MEASURED
    fix = "Call the original code instead of its graph, and capture the whole step once."
    event = GraphReplay
    says = ": a graph cannot be replayed inside a capture."

    @staticmethod
    def bad() -> object:
        import torch

        static, graph = torch.zeros(8, 16, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = static.relu()

        def step(x):
            static.copy_(x)
            graph.replay()  # <- GD118
            return result + 1

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            return x.relu() + 1

        return step, (torch.randn(8, 16, device="cuda"),)
