"""A step -> the same step with its models in TorchScript, all of it as one CUDA graph."""

from __future__ import annotations

from typing import Any

from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.whole_step import capture_from_start
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.models import CompiledModels
from graphdoctor.strategies.compilers.scripted import scripted_step
from graphdoctor.strategies.script import script_lines
from graphdoctor.strategies.strategy import CannotBuild, Known, Regions
from graphdoctor.strategies.whole import BuiltWhole, Whole
from graphdoctor.target import Inputs
from graphdoctor.values.locations import with_place


class BuiltScriptGraph(BuiltWhole):
    """One graph, and the scripts whose memory it reads. `note` says how they were made."""

    def __init__(self, built: BuiltWhole, scripted: CompiledModels) -> None:
        super().__init__(built.captured)
        self._scripted = scripted
        self.note = scripted.note

    def release(self) -> None:
        super().release()
        self._scripted.release()


class ScriptGraph:
    """What TorchScript fuses, without launches between: to compare with, as published figures do."""

    name = "script-graph"
    title = "TorchScript in one CUDA graph"
    compiles = False
    is_ours = False

    def reason_against(self, known: Known) -> str:
        return Whole().reason_against(known)

    def regions(self, known: Known) -> Regions | None:
        """Other kernels than the recorded ones may run, so that nothing is predicted from those."""
        return None

    def build(self, session: Session, known: Known) -> BuiltScriptGraph:
        """Script and warm up, then capture the whole step."""
        scripted = scripted_step(session)
        try:
            return BuiltScriptGraph(_captured(session, scripted), scripted)
        except BaseException:
            scripted.release()
            raise

    def code(self, known: Known) -> str:
        return script_lines(known) + "\n" + Whole().code(known)


def _captured(session: Session, scripted: CompiledModels) -> BuiltWhole:
    def step(*args: Any, **kwargs: Any) -> object:
        return scripted.call(Inputs(args, kwargs))

    made = capture_from_start(session, step)
    if isinstance(made, Refusal):
        raise CannotBuild(with_place(made.reason, made.location))
    return BuiltWhole(made)
