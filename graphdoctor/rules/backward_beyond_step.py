"""Finds the backward passes that leave the step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from graphdoctor.rules.causes.edits import put_before
from graphdoctor.rules.causes.source import kept_until
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, at_event
from graphdoctor.values.figures import joined
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import EarlierGraph
from graphdoctor.values.locations import Lines
from graphdoctor.values.recording import Recording

_LET_GO = (
    "Before the warmup of the capture, replace {what} with {its} detach(); each step recomputes {it}. If "
    "torch.nn.utils.weight_norm stored {it}, use torch.nn.utils.parametrizations.weight_norm, which stores no "
    "such tensor."
)

# What an earlier step of a program has left in its variables: `loss` (train.py:12).
_HOLDERS_NAMED = 2
_VARIABLE = re.compile(r"`(\w+)` \(")


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
    In a loop, set `loss = None` before the lines of the step, which releases the node. `graphdoctor.capture`
    needs no such line: it renews these nodes itself. With torch 2.13 or newer,
    `torch.autograd.graph.set_override_stale_capture_stream(True)` also works.
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
                if event.kept_by:
                    hit = replace(hit, cure=_cure(event.kept_by, recording.lines))
                yield hit

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


def _cure(holders: Sequence[str], step: Lines | None) -> Cure:
    """How to release the AccumulateGrad node that `holders` reference: variables, or tensors of the model."""
    variables = [found[1] for each in holders if (found := _VARIABLE.match(each))]
    tensors = [each for each in holders if not _VARIABLE.match(each)]
    its, it = ("its", "it") if len(tensors) == 1 else ("their", "them")
    if step is not None and variables:
        cure = _release(variables, step)
        more = f"After line {step.last}, replace {joined(tensors)} with {its} detach()."
        return Cure(f"{cure.text} {more}") if tensors else cure
    if holders[0].startswith("`"):
        return Cure(_LET_GO.format(what=joined(tensors or holders), its=its, it=it))
    return Cure("Before each step, `del` every tensor that references the node.")


def _release(variables: list[str], step: Lines) -> Cure:
    """Rebind before the step what it computes again; `detach()` what it reads from the step before."""
    kept = kept_until(step, variables)
    renewed = " = ".join([*(name for name in variables if name not in kept), "None"])
    sentences = [f"Add `{renewed}` before line {step.first}."] if len(kept) < len(variables) else []
    sentences += [
        f"Add `{name} = {name}.detach()` after line {line}; detach each tensor if `{name}` holds several."
        for name, line in kept.items()
    ]
    edits = () if kept else put_before(step.file, step.first, renewed)
    return Cure(" ".join(sentences), edits=edits)


def _message(event: EarlierGraph) -> str:
    if not event.kept_by:
        return f"The backward pass reaches {event.name}, whose forward ran before the step."
    more = len(event.kept_by) - _HOLDERS_NAMED
    named = [*event.kept_by[:_HOLDERS_NAMED], *([f"{more} more"] if more > 0 else [])]
    kept_by = joined(named)
    kept_by = kept_by[0].upper() + kept_by[1:]
    references = "reference" if len(event.kept_by) > 1 else "references"
    return (
        f"{kept_by} still {references} an AccumulateGrad node of an earlier step, which `backward()` uses."
        " A capture cannot use the stream of that node."
    )
