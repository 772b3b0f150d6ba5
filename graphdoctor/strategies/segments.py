"""Runs a step with its models cut by Dynamo and FX, and the safe parts in CUDA graphs."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from graphdoctor.estimate import Calls, Regions, launches
from graphdoctor.graphs.segments import Forecast, forecast
from graphdoctor.graphs.segments import Segments as SegmentsBackend
from graphdoctor.graphs.segments.backend import settings
from graphdoctor.graphs.segments.split import SegmentsPlan
from graphdoctor.record.scopes import outermost_modules
from graphdoctor.record.session import Session
from graphdoctor.strategies.compilers.compiler import (
    CompiledModels,
    Function,
    check_device,
    compiled_models,
    dynamo_errors,
    forget_compiled,
    models_of,
    reason_against_dynamo,
    warmed_up,
)
from graphdoctor.strategies.strategy import CannotBuild, Captured, Known, Strategy

_CODE = """\
import graphdoctor

{lines}
# call it as before; the first calls trace and capture
"""

_OTHER_SHAPES = "the models work on other shapes in other iterations, and a CUDA graph holds one"


class Segments(Strategy):
    """Dynamo finds graphs, and keeps the Python between them; FX cuts each at what cannot be captured.

    Eager's own kernels run, so that a result is eager's. The models among the target's roots are
    compiled, as `Compiler` does it; loss and optimizer stay in Python.
    """

    name = "segments"
    title = "the safe parts of each graph that Dynamo finds, as CUDA graphs"
    compiles = True

    def reason_against(self, known: Known) -> str:
        if reason := reason_against_dynamo(known.roots):
            return reason
        foreseen = _foreseen(known)
        if not foreseen.regions and foreseen.has_varying:
            return _OTHER_SHAPES
        if not foreseen.regions:
            return f"no part of a graph has enough launches to pay: {foreseen.plan.summary}"
        return ""

    def regions(self, known: Known) -> Regions | None:
        return _foreseen(known).regions

    def calls(self, known: Known) -> Calls:
        foreseen = _foreseen(known)
        return _calls(foreseen.plan, known)

    def plan(self, known: Known) -> str:
        """The graphs and their parts, foreseen from the recording: one line each."""
        return _foreseen(known).plan.text

    def build(self, session: Session, known: Known) -> CompiledModels:
        """Trace, warm up and capture. `note` says what came of the plan."""
        check_device(session)
        forget_compiled()
        for whole in (False, True):
            backend = SegmentsBackend()
            built = self._called(session, backend, whole=whole)
            if backend.plan.graphs:
                break
            built.release()
        if not backend.is_captured:
            built.release()
            reason = "; ".join(backend.reasons) or backend.plan.summary
            raise CannotBuild(f"nothing could be captured: {reason}")
        built.in_graphs = _captured(backend, known)
        return built

    def code(self, known: Known) -> str:
        compiled = list(models_of(known.roots)) or ["step"]
        lines = (
            f"{path} = torch.compile({path}, backend=graphdoctor.Segments())" for path in compiled
        )
        return _CODE.format(lines="\n".join(lines))

    def _called(self, session: Session, backend: SegmentsBackend, *, whole: bool) -> CompiledModels:
        def compiler(function: Function) -> Function:
            compiled: Function = torch.compile(function, backend=backend)
            return compiled

        built = compiled_models(session, compiler, whole=whole)
        built.at_release(forget_compiled)
        built.at_release(backend.release)
        try:
            with settings(), dynamo_errors():
                warmed_up(session, built)
        except BaseException:
            built.release()
            raise
        built.note = "; ".join((backend.plan.summary, *backend.reasons))
        return built


def _captured(backend: SegmentsBackend, known: Known) -> Captured:
    """The parts foreseen, in order, as far as the launches go that really are in graphs.

    Dynamo's graph has nodes of its own, which no recorded operator can be named for.
    """
    left = sum(graph.captured_launches for graph in backend.plan.graphs)
    regions: list[tuple[int, ...]] = []
    ops = {op.index: op for op in known.iteration.ops}
    for region in _foreseen(known).regions:
        taken: list[int] = []
        for index in region:
            if left <= 0:
                break
            taken.append(index)
            left -= launches(ops[index])
        if taken:
            regions.append(tuple(taken))
    return Captured(tuple(regions), _calls(backend.plan, known))


def _calls(plan: SegmentsPlan, known: Known) -> Calls:
    """What Dynamo's code calls: its graphs, whatever their parts, and what goes on behind a break.

    It guards modules, parameters and buffers; that of a step that trains also looks after gradients.
    """
    graphs = len(plan.graphs) + len(plan.breaks)
    models = models_of(known.roots).values()
    parameters = {p for model in models for p in model.parameters()}
    if known.mode == "inference":
        buffers = {buffer for model in models for buffer in model.buffers()}
        return Calls(
            segment=graphs,
            segment_tensor=len(parameters) + len(buffers),
            segment_module=len({module for model in models for module in model.modules()}),
        )
    trained = sum(parameter.requires_grad for parameter in parameters)
    return Calls(trained_segment=graphs, segment_parameter=trained)


# Whether it fits, what it takes, what that costs and the plan are asked one after the other.
_FORECASTS: WeakKeyDictionary[Known, Forecast] = WeakKeyDictionary()


def _foreseen(known: Known) -> Forecast:
    found = _FORECASTS.get(known)
    if found is None:
        tops, models = outermost_modules(known.roots), models_of(known.roots)
        found = forecast(
            known.iteration,
            left_out=tops.keys() - models.keys(),
            varying=known.varying.ops,
            by_inputs=known.varying.by_inputs,
        )
        _FORECASTS[known] = found
    return found
