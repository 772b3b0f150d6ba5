"""A recording -> the backward passes that leave the step."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule, event_hits
from graphdoctor.values.recording import HostEvent, Recording

_LET_GO = (
    "Before the first step, put its detach() in its place: the step makes it anew. What "
    "torch.nn.utils.parametrizations has for it, such as weight_norm, keeps no such tensor."
)


class BackwardBeyondStep(RecordingRule):
    """A backward pass reaches operations from before the step.

    Autograd runs the backward of an operation on the stream that the operation ran on. One from
    before the capture ran on another stream, most often the default one, and CUDA refuses to make
    that stream wait for a capture: "operation would make the legacy stream depend on a capturing
    blocking stream".

    So does the accumulation of a parameter's gradient: autograd keeps it as long as any tensor hangs on
    it, such as a weight that `torch.nn.utils.prune` computed when the model was made.

    It is a false alarm where the earlier operation ran on the very stream that will capture.

    Compute inside the step what the gradient must reach, or cut the tensor off with `detach()`: for a
    weight that was computed with the model, `layer.weight = layer.weight.detach()` before the first step.
    """

    id = "GD117"
    name = "backward-beyond-step"
    effect = "capture-fails"
    evidence = MEASURED
    fix = "Compute it inside the step, or give the step tensor.detach()."

    def check(self, recording: Recording) -> Iterator[Hit]:
        for hit in event_hits(recording, "earlier-graph", _message):
            yield replace(hit, fix=_LET_GO) if "kept alive by" in hit.operator else hit

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


def _message(event: HostEvent) -> str:
    return f"The backward pass reaches {event.name}, whose forward ran before the step."
