"""Finds the explicit synchronisations inside the step."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from graphdoctor.rules.causes.edits import removed
from graphdoctor.rules.rule import MEASURED, EventRule, Hit
from graphdoctor.values.finding import Cure
from graphdoctor.values.host_events import Sync
from graphdoctor.values.recording import Recording


class ExplicitSynchronize(EventRule):
    """The step synchronizes with the GPU.

    `torch.cuda.synchronize()`, `stream.synchronize()` and `event.synchronize()` make the CPU wait for
    the GPU. During capture the GPU runs nothing, and CUDA rejects the call.

    False alarm: the call does not run in production, for example in a debugging timer.

    Synchronize and measure time outside the step. To order work on two streams, use
    `stream.wait_stream(other)`, which waits on the GPU and can be captured.
    """

    id = "GD108"
    name = "explicit-synchronize"
    effect = "capture-fails"
    makes_host_wait = True
    evidence = MEASURED
    fix = "Move the call outside the step. Between streams use wait_stream, which can be captured."
    event = Sync
    says = " is a host sync."

    def check(self, recording: Recording) -> Iterator[Hit]:
        """The call becomes `pass`, if it is a whole statement."""
        for hit in super().check(recording):
            yield structs.replace(hit, cure=Cure(edits=removed(hit.location)))

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            y = x @ x.T
            torch.cuda.synchronize()  # <- GD108
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            y = x @ x.T
            return y.relu()

        return step, (torch.randn(8, 16, device="cuda"),)
