"""A training step -> Inductor's kernels for its models, in the graphs of a split step."""

from __future__ import annotations

from graphdoctor.estimate import Calls
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.in_graph import InOurGraph, SplitOfModels, step_with
from graphdoctor.strategies.split_step import SplitStep, split
from graphdoctor.strategies.strategy import Known, Regions


class CompiledSplit(InOurGraph):
    """Forward and backward, compiled, as one graph, the optimizer as another; the glue runs between."""

    name = "compiled-split"
    title = "split-step's graphs, with the models compiled by Inductor"
    with_eager_kernels = SplitStep.name

    def reason_against(self, known: Known) -> str:
        return SplitStep().reason_against(known) or super().reason_against(known)

    def regions(self, known: Known) -> Regions | None:
        return SplitStep().regions(known)

    def calls(self, known: Known) -> Calls:
        return SplitStep().calls(known)

    def build(self, session: Session, known: Known) -> SplitOfModels:
        """Compile and warm up, then run one step that is captured piece by piece."""
        models = self.compiled(session)
        try:
            return SplitOfModels(split(session, known, step_with(models)), models)
        except BaseException:
            models.release()
            raise

    def code(self, known: Known) -> str:
        return super().code(known) + "\n" + SplitStep().code(known)
