"""A step -> Inductor's kernels for its models, and all of the step, optimizer included, as one CUDA graph."""

from __future__ import annotations

from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.in_graph import GraphOfModels, InOurGraph, whole_graph_of
from graphdoctor.strategies.strategy import Known, Regions
from graphdoctor.strategies.whole import Whole


class CompiledWhole(InOurGraph):
    """What Inductor fuses, with nothing launched between: `whole`, with fewer and larger kernels."""

    name = "compiled-whole"
    title = "the whole step as one CUDA graph, its models compiled by Inductor"
    with_eager_kernels = Whole.name

    def reason_against(self, known: Known) -> str:
        return Whole().reason_against(known) or super().reason_against(known)

    def regions(self, known: Known) -> Regions | None:
        return Whole().regions(known)

    def build(self, session: Session, known: Known) -> GraphOfModels:
        """Compile and warm up, then capture the whole step."""
        return whole_graph_of(session, self.compiled(session))

    def code(self, known: Known) -> str:
        return super().code(known) + "\n" + Whole().code(known)
