"""A step -> Inductor's kernels for its models, and all of the step, optimizer included, as one CUDA graph."""

from __future__ import annotations

from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.in_graph import GraphOfModels, InOurGraph, whole_graph_of
from graphdoctor.strategies.strategy import Known
from graphdoctor.strategies.whole import Whole


class CompiledWhole(InOurGraph):
    """What Inductor fuses, with nothing launched between: `whole`, with fewer and larger kernels."""

    name = "compiled-whole"
    title = "the whole step as one CUDA graph, its models compiled by Inductor"
    in_eager = Whole()
    with_eager_kernels = Whole.name

    def build(self, session: Session, known: Known) -> GraphOfModels:
        """Compile and warm up, then capture the whole step."""
        return whole_graph_of(session, self.compiled(session))
