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
    "Before the first step, put its detach() in its place: the step makes it anew. What "
    "torch.nn.utils.parametrizations has for it, such as weight_norm, keeps no such tensor."
)

# What an earlier step of a program has left in its variables: `loss` (train.py:12).
_VARIABLE = re.compile(r"`(\w+)` \(")
_FREE = (
    "Write {what} at the end of each step, or capture before the first one. From torch 2.13 on,"
    " torch.autograd.graph.set_override_stale_capture_stream(True) lets the capture go on."
)


class BackwardBeyondStep(RecordingRule):
    """A backward pass reaches operations from before the step.

    Autograd runs the backward of an operation on the stream that the operation ran on. One from
    before the capture ran on another stream, most often the default one, and CUDA refuses to make
    that stream wait for a capture: "operation would make the legacy stream depend on a capturing
    blocking stream".

    So does the accumulation of a parameter's gradient: autograd keeps it as long as any tensor hangs on
    it, such as a weight that `torch.nn.utils.prune` computed when the model was made. A loop's variables
    do so, too: in `loss = criterion(model(x), y)` the loss of the step before is there until the new one is,
    and so the accumulations of the first step are used for ever. A capture in that loop is refused.

    It is a false alarm where the earlier operation ran on the very stream that will capture.

    Compute inside the step what the gradient must reach, or cut the tensor off with `detach()`: for a
    weight that was computed with the model, `layer.weight = layer.weight.detach()` before the first step. Where a loop
    holds it, `del` the variables at the end of each step from the first one on, capture before the first step, or
    let torch 2.13 and newer take the capture's stream for all of it, by
    `torch.autograd.graph.set_override_stale_capture_stream(True)`.
    """

    id = "GD117"
    name = "backward-beyond-step"
    effect = "capture-fails"
    evidence = MEASURED
    fix = "Compute it inside the step, or give the step tensor.detach()."

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
    """What lets go of an accumulation: of a program's variables, or of a tensor of the model."""
    if variables := _VARIABLE.findall(holder):
        return _FREE.format(what=_letting_go(variables, _holding(holder, frames)))
    return (
        _LET_GO if holder.startswith("`") else _FREE.format(what="`del` for all that hangs on it")
    )


def _holding(holder: str, frames: tuple[Location, ...]) -> Location | None:
    """The frame in the file of the variables: the backward pass may be called in a library, as Accelerate does."""
    return next((each for each in frames if f"({basename(each.file)}:" in holder), None)


def _letting_go(variables: list[str], place: Location | None) -> str:
    """`del` for the variables, but for those that are still read when the loop has ended."""
    lines = read_after_loop(place, frozenset(variables)) if place is not None else {}
    gone = [name for name in variables if name not in lines]
    parts = [f"`del {', '.join(gone)}`"] if gone else []
    parts += [f"`{n} = {n}.detach()`, since line {at} reads it later," for n, at in lines.items()]
    return " and ".join(parts)


def _message(event: EarlierGraph) -> str:
    return f"The backward pass reaches {event.name}, whose forward ran before the step."
