"""Runs a training step as graphs of its forward, backward and optimizer, with real calls between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from graphdoctor.device.observe.patches import Patches
from graphdoctor.estimate import Calls, Regions
from graphdoctor.graphs.capture import device_usable_after_failure
from graphdoctor.graphs.cause import refusal_of
from graphdoctor.graphs.split.breakable import (
    BreakableCapture,
    BuiltSplit,
    Glue,
    Made,
    PythonChanges,
    holds_pending,
    trained_tensors,
)
from graphdoctor.graphs.split.glue import (
    StepRefused,
    glue_objects,
    has_glue_call,
    has_number_as_rate,
    has_reading_call,
    why_not_captured,
)
from graphdoctor.graphs.whole_step import detached, fresh_inputs, warm_up
from graphdoctor.record.session import WARM_UPS, Session, warm_ups_for
from graphdoctor.rules import ALL_RULES
from graphdoctor.rules.frozen_learning_rate import FrozenLearningRate
from graphdoctor.strategies.strategy import Built, CannotBuild, Known, Strategy
from graphdoctor.target import Snapshot, Target
from graphdoctor.target.frames import Place
from graphdoctor.target.state.snapshot import named_tensors
from graphdoctor.target.state.walk import Walk
from graphdoctor.values.finding import Finding
from graphdoctor.values.locations import Location, bracketed, in_place, with_place
from graphdoctor.values.recording import Iteration, Op, TensorUse


class BuiltSplitStep(BuiltSplit, Built):
    """The graphs of one split step."""


class SplitStep(Strategy):
    """A graph that ends at each call of the glue, and the next one behind it."""

    name = "split-step"
    title = "CUDA graphs between the optimizer, scheduler and scaler calls, which run eagerly"

    def reason_against(self, known: Known) -> str:
        """Why it is not worth trying, in one sentence; the capture itself looks more closely."""
        if known.mode != "training":
            return "it splits training steps, and this step does not train"
        if not any(_optimizers(known)):
            return "it splits a step at its optimizer, and the step's state has none"
        for finding in _blocking(known.findings):
            if finding.rule not in _RULES_OF_GLUE and not any(
                has_glue_call(place) or has_reading_call(place) for place in _lines_of(finding)
            ):
                return (
                    f"{finding.rule}{bracketed(finding.location)} would be inside a graph: split-step runs only"
                    " optimizer, scheduler and scaler calls between its graphs"
                )
        return ""

    def regions(self, known: Known) -> Regions | None:
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

    def calls(self, known: Known) -> Calls:
        return Calls(glue=len(glue_objects(known.roots)))

    def build(self, session: Session, known: Known) -> BuiltSplitStep:
        """Warm up, then run one step that is captured piece by piece."""
        return split(session, known)

    def code(self, known: Known) -> str:
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
            lines.append("    ...  # the rest of your step\n")
        lines.append("    return static_loss.clone()  # the next replay writes over static_loss\n")
        return "".join(lines)


def split(
    session: Session, known: Known, step: Callable[..., object] | None = None
) -> BuiltSplitStep:
    """The session's step, or `step` in its place, split. Raises `CannotBuild`.

    State is afterwards what it was before.
    """
    target = session.target if step is None else replace(session.target, step=step)
    with session.start.around():
        side: Any = torch.cuda.Stream()
        if session.device.kind != "emulated":
            warm_up(target, side, WARM_UPS)
            session.start.restore()
        return _Attempt(target, session.start, known, side).run()


class _Attempt:
    """One capture of one step."""

    def __init__(self, target: Target, start: Snapshot, known: Known, side: Any) -> None:
        self._target = target
        self._start = start
        self._known = known
        roots = self._target.roots
        self._objects = glue_objects(roots)
        trained = trained_tensors(named_tensors(roots))
        self._capture = BreakableCapture(side, PythonChanges(roots), trained)

    def run(self) -> BuiltSplitStep:
        static = fresh_inputs(self._target)
        try:
            with device_usable_after_failure(self._capture):
                outputs = self._outputs_of(static.args, static.kwargs)
        except StepRefused as refused:
            raise CannotBuild(str(refused)) from refused
        except CannotBuild:
            raise
        except BaseException as error:
            found = refusal_of(error)
            reason = self._capture.watch.reason or found.reason
            raise CannotBuild(with_place(reason, found.location)) from error
        made = Made(static, detached(outputs), self._capture.gradients_at_end(), self._start)
        return BuiltSplitStep(self._target.roots, self._capture, made)

    def _outputs_of(self, args: Any, kwargs: Any) -> object:
        capture = self._capture
        glue = Glue(capture, self._objects, rates_change=rates_change(self._known))
        try:
            with Patches() as patches:
                glue.stand_in(patches)
                capture.begin()
                outputs = self._target.step(*args, **kwargs)
                capture.end()
            self._check()
        finally:
            capture.watch.is_armed = False
        return outputs

    def _check(self) -> None:
        """Raises `CannotBuild` where the pieces could not stand for the step."""
        capture = self._capture
        if capture.watch.reason:
            raise CannotBuild(capture.watch.reason)
        if not capture.places:
            raise CannotBuild(
                "the step makes no call that has to run again in each step, "
                "so there is nothing to split it at"
            )
        if not capture.graphs:
            raise CannotBuild("the step runs nothing on the GPU, so there is nothing to capture")
        finding = first_outside(self._known.findings, capture.places)
        if finding is not None:
            raise CannotBuild(
                f"{finding.rule} {finding.name}{in_place(finding.location)} stays inside a graph: "
                "it is none of the calls that run again in each step"
            )
        capture.watch.is_armed = False
        kept = (v.path for v in Walk(self._target.roots) if holds_pending(v.value))
        if (path := next(kept, None)) is not None:
            raise CannotBuild(
                f"the step keeps a value that it read from the device in {path}, "
                "and Python that keeps it is not run again"
            )


_RULES_OF_GLUE = frozenset(rule.id for rule in ALL_RULES if rule.is_glue)
_READS = frozenset({"_local_scalar_dense"})


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
    # A shorter last batch does not fit, and one of size 1 is repeated: use drop_last=True.
    for static, fresh in zip(static_inputs, data):
        static.copy_(fresh)  # same shapes and dtypes as the examples
    graph.replay()  # fills static_loss and every parameter's .grad; never set those to None
"""


_LOSS_OF_PAIR = "loss_function(model(static_inputs[0]), static_inputs[1])"
_LOSS = "loss_function(model, *static_inputs)"


def _goes_on(iteration: Iteration) -> bool:
    """Whether the step computes on the device after its optimizer, such as an average of weights."""
    last = max((op.index for op in iteration.ops if op.phase == "optimizer"), default=None)
    if last is None:
        return False
    return any(op.index > last and op.is_cuda and not op.is_view for op in iteration.ops)
