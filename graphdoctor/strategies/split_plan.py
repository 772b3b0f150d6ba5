"""What is known of a training step -> whether it can be split, where its graphs would be, the code for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from graphdoctor.estimate import Regions
from graphdoctor.graphs.split.glue import glue_objects, has_glue_call, has_reading_call
from graphdoctor.graphs.split.optimizer_step import has_number_as_rate, why_not_captured
from graphdoctor.record.session import warm_ups_for
from graphdoctor.rules import ALL_RULES
from graphdoctor.rules.frozen_learning_rate import FrozenLearningRate
from graphdoctor.strategies.strategy import Known
from graphdoctor.target.frames import Place
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location, in_place
from graphdoctor.values.recording import Iteration, Op, TensorUse

_RULES_OF_GLUE = frozenset(rule.id for rule in ALL_RULES if rule.is_glue)
_READS = frozenset({"_local_scalar_dense"})


def reason_against(known: Known) -> str:
    """Why it is not worth trying, in one sentence; the capture itself looks more closely."""
    if known.mode != "training":
        return "it splits training steps, and this step does not train"
    if not any(_optimizers(known)):
        return "it splits a step at its optimizer, and the step's state has none"
    for finding in _blocking(known.findings):
        if finding.rule not in _RULES_OF_GLUE and not _may_be_glue(finding):
            return (
                f"{finding.rule} {finding.name}{in_place(finding.location)} is none of the calls"
                " that run again between the graphs, where no other Python runs"
            )
    return ""


def _may_be_glue(finding: Finding) -> bool:
    return any(has_glue_call(place) or has_reading_call(place) for place in _lines_of(finding))


def first_outside(findings: Iterable[Finding], places: Iterable[Place]) -> Finding | None:
    """The first finding that was made in none of these calls."""
    lines = {(place.location.file, place.location.line) for place in places if place.location}
    for finding in _blocking(findings):
        if not any((at.file, at.line) in lines for at in _lines_of(finding)):
            return finding
    return None


def _blocking(findings: Iterable[Finding]) -> Iterator[Finding]:
    return (finding for finding in findings if finding.effect != "replay-is-slow")


def _lines_of(finding: Finding) -> Iterator[Location]:
    if finding.location is not None:
        yield finding.location
    yield from finding.stack


def _optimizers(known: Known) -> list[torch.optim.Optimizer]:
    objects = glue_objects(known.roots).values()
    return [value for value in objects if isinstance(value, torch.optim.Optimizer)]


def regions_of(known: Known) -> Regions | None:
    """The operators between the calls; those of the optimizers are a graph too where they may be."""
    as_graph = all(_has_graph(known, optimizer) for optimizer in _optimizers(known))
    regions: list[list[int]] = []
    before = ""
    for op in known.iteration.ops:
        kind = _kind(op)
        if kind == "graph" or (kind == "optimizer" and as_graph):
            if kind != before:
                regions.append([])
            regions[-1].append(op.index)
        before = kind
    launching = {op.index for op in known.iteration.ops if not op.is_view}
    return [region for region in regions if not launching.isdisjoint(region)]


def _kind(op: Op) -> str:
    if op.phase == "optimizer":
        return "optimizer"
    is_glue = op.base_name in _READS or (op.location is not None and has_glue_call(op.location))
    return "glue" if is_glue and op.phase != "backward" else "graph"


def _has_graph(known: Known, optimizer: torch.optim.Optimizer) -> bool:
    if rates_change(known) and has_number_as_rate(optimizer):
        return False
    return not why_not_captured(optimizer)


def rates_change(known: Known) -> bool:
    """Whether something sets learning rates: a schedule, or what a finding saw changing."""
    schedules = torch.optim.lr_scheduler.LRScheduler
    if any(isinstance(value, schedules) for value in glue_objects(known.roots).values()):
        return True
    return any(finding.rule == FrozenLearningRate.id for finding in known.findings)


_GRAPH = """\
static_inputs = tuple(tensor.clone() for tensor in examples)  # on the GPU

def forward_backward():  # your step up to its optimizer, on static_inputs
    optimizer.zero_grad(set_to_none=True)
    loss = {loss}
    {backward}
    return loss.detach()

side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range({warm_ups}):
        forward_backward()
torch.cuda.current_stream().wait_stream(side)
torch.cuda.synchronize()

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):  # the gradients are made in here, and stay where they are
    static_loss = forward_backward()

def fast_step(*data):
    for static, fresh in zip(static_inputs, data):
        static.copy_(fresh)  # same shapes and dtypes as the examples
    graph.replay()  # fills static_loss and every parameter's .grad; never set those to None
"""


_LOSS_OF_PAIR = "loss_function(model(static_inputs[0]), static_inputs[1])"
_LOSS = "loss_function(model, *static_inputs)"


def code_for(known: Known) -> str:
    """Lines that do it by hand: the graph of forward and backward, and the calls after it."""
    objects = list(glue_objects(known.roots).values())
    scaled = any(isinstance(value, torch.amp.GradScaler) for value in objects)
    backward = "scaler.scale(loss).backward()" if scaled else "loss.backward()"
    tensors = [leaf for leaf in known.iteration.inputs if isinstance(leaf.value, TensorUse)]
    loss = _LOSS_OF_PAIR if len(tensors) == 2 else _LOSS
    warm_ups = warm_ups_for(known.roots)
    lines = [_GRAPH.format(loss=loss, backward=backward, warm_ups=warm_ups)]
    several = len(_optimizers(known)) > 1
    if scaled:
        lines.append("    scaler.unscale_(optimizer)  # then clip here, if you clip\n")
        lines.append("    scaler.step(optimizer)  # reads whether a gradient overflowed\n")
        lines.append("    scaler.update()\n")
    elif several:
        lines.append("    optimizer.step()  # and the others, in the order of your step\n")
    else:
        lines.append("    optimizer.step()  # clip before it, if you clip\n")
    if any(isinstance(value, torch.optim.lr_scheduler.LRScheduler) for value in objects):
        lines.append("    scheduler.step()\n")
    if _goes_on(known.iteration):
        lines.append("    ...  # what your step does after it, as it stands there\n")
    lines.append("    return static_loss.clone()  # the next replay writes over static_loss\n")
    return "".join(lines)


def _goes_on(iteration: Iteration) -> bool:
    """Whether the step computes on the device after its optimizer, such as an average of weights."""
    last = max((op.index for op in iteration.ops if op.phase == "optimizer"), default=None)
    if last is None:
        return False
    return any(op.index > last and op.is_cuda and not op.is_view for op in iteration.ops)
