"""Inductor's kernels in graphs of ours, whole or split: how models are compiled, what holds graph and code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from graphdoctor.estimate import Calls, Regions
from graphdoctor.estimate.fusion import fused
from graphdoctor.graphs.cause import Refusal
from graphdoctor.graphs.footprint import Footprint
from graphdoctor.graphs.split.breakable import BuiltSplit
from graphdoctor.graphs.whole_step import capture_from_start
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.compiler import CompiledModels, Compiler
from graphdoctor.strategies.split_step import SplitStep, split
from graphdoctor.strategies.strategy import Built, CannotBuild, Known, Strategy
from graphdoctor.strategies.whole import BuiltWhole, Whole
from graphdoctor.target import Inputs
from graphdoctor.values.figures import count_text
from graphdoctor.values.locations import with_place

# torch makes no graphs of its own in here, whatever the environment says. Random numbers are eager's:
# only so can the answers of a step that draws some be proved.
_OPTIONS = {"triton.cudagraphs": False, "fallback_random": True}


class InOurGraph(Compiler):
    """Inductor compiles the models, forward and backward; loss, optimizer and Python stay the user's.

    What is compiled is warmed up and then captured as eager's kernels would be, so that a call runs
    neither Dynamo's guards nor AOTAutograd's wrappers.
    """

    is_ours = True
    options: Mapping[str, bool] = _OPTIONS
    in_eager: Strategy  # which makes the same graphs, of eager's own kernels

    def reason_against(self, known: Known) -> str:
        return self.in_eager.reason_against(known) or super().reason_against(known)

    def regions(self, known: Known) -> Regions | None:
        return self.in_eager.regions(known)

    def code(self, known: Known) -> str:
        return super().code(known) + "\n" + self.in_eager.code(known)

    def plan(self, known: Known) -> str:
        """One line: how many kernels are foreseen in the place of how many."""
        found = fused(known.iteration)
        return (
            f"about {count_text(found.launches, 'kernel')} instead of {found.launches_before}, if"
            " Inductor fuses everything between two matrix products"
        )


class GraphOfModels(BuiltWhole):
    """One graph of the whole step, and the code of its models, whose memory it reads."""

    def __init__(self, built: BuiltWhole, models: CompiledModels) -> None:
        super().__init__(built.captured)
        self._models = models
        self.note = models.note

    def release(self) -> None:
        super().release()
        self._models.release()


class SplitOfModels(Built):
    """The graphs of a split step, and the code of its models, whose memory they read."""

    def __init__(self, built: BuiltSplit, models: CompiledModels) -> None:
        self._built = built
        self._models = models
        self.note = models.note

    def call(self, inputs: Inputs) -> object:
        return self._built.call(inputs)

    def left_behind(self, inputs: Inputs, outputs: object) -> Footprint:
        return self._built.left_behind(inputs, outputs)

    def release(self) -> None:
        self._built.release()
        self._models.release()


def step_with(models: CompiledModels) -> Callable[..., object]:
    """The session's step, called as itself, with other code in its models."""

    def step(*args: Any, **kwargs: Any) -> object:
        return models.call(Inputs(args, kwargs))

    return step


def whole_graph_of(session: Session, models: CompiledModels) -> GraphOfModels:
    """The whole step as one graph; whatever is raised, the models are given back.

    Raises `CannotBuild` where the capture is refused.
    """
    try:
        made = capture_from_start(session, step_with(models))
        if isinstance(made, Refusal):
            raise CannotBuild(with_place(made.reason, made.location))
        return GraphOfModels(BuiltWhole(made), models)
    except BaseException:
        models.release()
        raise


class CompiledWhole(InOurGraph):
    """What Inductor fuses, with nothing launched between: `whole`, with fewer and larger kernels."""

    name = "compiled-whole"
    title = "the whole step as one CUDA graph, its models compiled by Inductor"
    in_eager = Whole()
    with_eager_kernels = Whole.name

    def build(self, session: Session, known: Known) -> GraphOfModels:
        """Compile and warm up, then capture the whole step."""
        return whole_graph_of(session, self.compiled(session))


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
