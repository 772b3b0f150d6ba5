"""A training step -> Inductor's kernels for its models, in the graphs of a split step."""

from __future__ import annotations

from graphdoctor.estimate import Calls
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.in_graph import InOurGraph, SplitOfModels, step_with
from graphdoctor.strategies.split_step import SplitStep, split
from graphdoctor.strategies.strategy import Known


class CompiledSplit(InOurGraph):
    """Forward and backward, compiled, as one graph, the optimizer as another; the glue runs between."""

    name = "compiled-split"
    title = "split-step's graphs, with the models compiled by Inductor"
    in_eager = SplitStep()
    with_eager_kernels = SplitStep.name

    def calls(self, known: Known) -> Calls:
        return self.in_eager.calls(known)

    def build(self, session: Session, known: Known) -> SplitOfModels:
        """Compile and warm up, then run one step that is captured piece by piece."""
        models = self.compiled(session)
        try:
            return SplitOfModels(split(session, known, step_with(models)), models)
        except BaseException:
            models.release()
            raise
