"""A step -> the same step with its models in TorchScript."""

from __future__ import annotations

from graphdoctor.estimate import Regions
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.models import CompiledModels, models_of
from graphdoctor.strategies.compilers.scripted import scripted_step
from graphdoctor.strategies.strategy import Known, Strategy


class Script(Strategy):
    """TorchScript runs the model without Python, and fuses what it can on a GPU. To compare with."""

    name = "script"
    title = "TorchScript"
    is_ours = False

    def reason_against(self, known: Known) -> str:
        return ""

    def regions(self, known: Known) -> Regions | None:
        """It saves Python, and no launch: there are no graphs to predict from."""
        return None

    def build(self, session: Session, known: Known) -> CompiledModels:
        """Scripted, or traced on a call of the step where it cannot be. `note` says which."""
        return scripted_step(session)

    def code(self, known: Known) -> str:
        return script_lines(known)


def script_lines(known: Known) -> str:
    """What a person pastes; it falls back to nothing: tracing takes example inputs of theirs."""
    paths = list(models_of(known.roots)) or ["step"]
    return "".join(f"{path} = torch.jit.script({path})\n" for path in paths)
