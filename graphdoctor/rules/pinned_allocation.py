"""A recording in, the places that allocate pinned host memory inside the step out."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.recording import Recording
from graphdoctor.rule import Hit, Rule
from graphdoctor.rules._events import event_hits


class PinnedAllocation(Rule):
    """Pinned host memory is allocated inside the step.

    `t.pin_memory()` and `torch.empty(..., pin_memory=True)` call cudaHostAlloc, or ask the device
    whether memory that was used before is free again. CUDA refuses both while a graph is recorded.

    It is a false alarm only where the allocation does not happen in production.

    Allocate pinned buffers once, before the step, and copy into them.
    """

    id = "GD113"
    name = "pinned-allocation"
    effect = "capture-fails"
    fix = "Allocate the pinned buffer once, before the step, and copy into it."

    def check(self, recording: Recording) -> Iterator[Hit]:
        yield from event_hits(
            recording,
            "pinned-allocation",
            lambda event: f"{event.name} allocates pinned host memory while the step runs.",
        )

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            staging = torch.empty(16, pin_memory=True)  # <- GD113
            return x * 2, staging.shape[0]

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        staging = torch.empty(16)

        def step(x):
            return x * 2, staging.shape[0]

        return step, (torch.randn(8, 16, device="cuda"),)
