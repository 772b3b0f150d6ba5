"""A step -> the same step with its models in TorchScript, all of it as one CUDA graph."""

from __future__ import annotations

from graphdoctor.estimate import Regions
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.in_graph import GraphOfModels, whole_graph_of
from graphdoctor.strategies.compilers.scripted import scripted_step
from graphdoctor.strategies.script import script_lines
from graphdoctor.strategies.strategy import Known, Strategy
from graphdoctor.strategies.whole import Whole


class ScriptGraph(Strategy):
    """What TorchScript fuses, without launches between: to compare with, as published figures do."""

    name = "script-graph"
    title = "TorchScript in one CUDA graph"
    is_ours = False

    def reason_against(self, known: Known) -> str:
        return Whole().reason_against(known)

    def regions(self, known: Known) -> Regions | None:
        """Other kernels than the recorded ones may run, so that nothing is predicted from those."""
        return None

    def build(self, session: Session, known: Known) -> GraphOfModels:
        """Script and warm up, then capture the whole step."""
        return whole_graph_of(session, scripted_step(session))

    def code(self, known: Known) -> str:
        return script_lines(known) + "\n" + Whole().code(known)
