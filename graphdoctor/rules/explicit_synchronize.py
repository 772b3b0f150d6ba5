"""A recording -> the explicit synchronisations inside the step."""

from __future__ import annotations

from graphdoctor.rules.rule import MEASURED, EventRule
from graphdoctor.values.host_events import Sync


class ExplicitSynchronize(EventRule):
    """The step synchronises with the device.

    `torch.cuda.synchronize()`, `stream.synchronize()`, `event.synchronize()` and `elapsed_time()`
    make the host wait until the device is done. While a graph is recorded the device has nothing to
    do, and CUDA refuses the call.

    It is a false alarm only where the call is not made in production, such as a timer for
    debugging.

    Synchronise, and take times, around the step. To order work on two streams use
    `stream.wait_stream(other)`, which waits on the device and can be captured.
    """

    id = "GD108"
    name = "explicit-synchronize"
    effect = "capture-fails"
    makes_host_wait = True
    evidence = MEASURED
    fix = "Move it outside the step; between streams use wait_stream, which can be captured."
    event = Sync
    says = " makes the host wait for the device."

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
