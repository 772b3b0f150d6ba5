"""A recording -> the replays of CUDA graphs inside the step."""

from __future__ import annotations

from graphdoctor.rules.rule import MEASURED, EventRule
from graphdoctor.values.host_events import GraphReplay


class NestedGraphReplay(EventRule):
    """The step replays a CUDA graph of its own.

    Part of the step is captured already, by hand or by `torch.cuda.make_graphed_callables`. A graph
    cannot be replayed while another one is recorded: torch refuses it.

    It is a false alarm where the step is to stay as it is: nothing is wrong with the graph that it
    has.

    To capture the whole step, call the code itself in it instead of its graph.
    """

    id = "GD118"
    name = "nested-graph-replay"
    effect = "capture-fails"
    evidence = MEASURED
    fix = "Call the code itself instead of its graph, and capture the whole step once."
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
