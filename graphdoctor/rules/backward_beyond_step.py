"""A recording -> the backward passes that leave the step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from os.path import basename

from msgspec.structs import replace

from graphdoctor.rules.causes.source import read_after_loop
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event
from graphdoctor.values.host_events import EarlierGraph
from graphdoctor.values.locations import Location
from graphdoctor.values.recording import Recording

_LET_GO = (
    "Before the warmup of the capture, replace {what} with {its} detach(); each step recomputes {it}. If "
    "torch.nn.utils.weight_norm stored {it}, use torch.nn.utils.parametrizations.weight_norm, which stores no "
    "such tensor."
)

# What an earlier step of a program has left in its variables: `loss` (train.py:12).
_VARIABLE = re.compile(r"`(\w+)` \(")
_FREE = "Add {what} as the last line of the loop body, or capture before the first step."


class BackwardBeyondStep(RecordingRule):
    """A backward pass reaches operations from before the step.

    Autograd runs each backward node on the stream that created the node. A node from before the capture
    usually belongs to the default stream. CUDA rejects it: "operation would make the legacy stream
    depend on a capturing blocking stream".

    An AccumulateGrad node, which accumulates a parameter's gradient, lives as long as any tensor
    references it. `torch.nn.utils.prune` and the older `torch.nn.utils.weight_norm` store such a tensor
    when they compute a weight. A loop variable is another one: in `loss = criterion(model(x), y)`, the
    previous loss keeps the nodes of the first step alive, and a capture in that loop fails.

    False alarm: the earlier operation ran on the stream that captures.

    Compute inside the step what the gradient must reach, or cut the graph with `detach()`. For a weight
    that was computed with the model, set `layer.weight = layer.weight.detach()` in each such layer before
    the warmup of the capture.
    In a loop, `del` the variables at the end of the loop body, or capture before the first step. With torch
    2.13 or newer, `torch.autograd.graph.set_override_stale_capture_stream(True)` also works.
    """

    id = "GD117"
    name = "backward-beyond-step"
    effect = "capture-fails"
    evidence = MEASURED
    fix = "Compute the tensor inside the step and keep none from before, or pass tensor.detach() to the step."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for iteration in recording.captured:
            for event in iteration.events_of(EarlierGraph):
                hit = at_event(iteration.index, event, _message(event))
                frames = () if event.location is None else (event.location, *event.stack)
                yield replace(hit, fix=_fix(event.kept_by, frames)) if event.kept_by else hit

    @staticmethod
    def bad() -> object:
        import torch

        first = torch.nn.Linear(16, 16, device="cuda")
        second = torch.nn.Linear(16, 4, device="cuda")
        features = first(torch.ones(8, 16, device="cuda"))

        def step(x):
            loss = (second(features) * x).sum()
            loss.backward(retain_graph=True)  # <- GD117
            return loss.detach()

        return step, (torch.randn(8, 4, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        first = torch.nn.Linear(16, 16, device="cuda")
        second = torch.nn.Linear(16, 4, device="cuda")
        data = torch.ones(8, 16, device="cuda")

        def step(x):
            loss = (second(first(data)) * x).sum()
            loss.backward()
            return loss.detach()

        return step, (torch.randn(8, 4, device="cuda"),)


def _fix(holder: str, frames: tuple[Location, ...]) -> str:
    """How to release the AccumulateGrad node that `holder` references: variables, or a tensor of the model."""
    if variables := _VARIABLE.findall(holder):
        return _FREE.format(what=_letting_go(variables, _holding(holder, frames)))
    its, it = ("its", "it") if holder.count("`") == 2 else ("their", "them")
    return (
        _LET_GO.format(what=holder, its=its, it=it)
        if holder.startswith("`")
        else _FREE.format(what="`del` of every tensor that references the node")
    )


def _holding(holder: str, frames: tuple[Location, ...]) -> Location | None:
    """The frame in the file of the variables: the backward pass may be called in a library, as Accelerate does."""
    return next((each for each in frames if f"({basename(each.file)}:" in holder), None)


def _letting_go(variables: list[str], place: Location | None) -> str:
    """`del` of the variables; `detach()` of those that are read after the loop."""
    lines = read_after_loop(place, frozenset(variables)) if place is not None else {}
    gone = [name for name in variables if name not in lines]
    parts = [f"`del {', '.join(gone)}`"] if gone else []
    parts += [f"`{n} = {n}.detach()`, because line {at} reads it," for n, at in lines.items()]
    return " and ".join(parts)


def _message(event: EarlierGraph) -> str:
    if not event.kept_by:
        return f"The backward pass reaches {event.name}, whose forward ran before the step."
    kept_by = event.kept_by[0].upper() + event.kept_by[1:]
    references = "reference" if " and " in kept_by else "references"
    return (
        "`backward()` uses an AccumulateGrad node of an earlier step."
        f" {kept_by} still {references} that node, whose stream a capture cannot use."
    )
