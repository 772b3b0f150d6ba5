"""A recording -> the places where code takes another path because it is being captured, to another result."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.parting import partings
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule
from graphdoctor.values.recording import Recording


class CaptureDependentResult(RecordingRule):
    """The step computes something else while it is captured.

    Code may ask whether it is being captured or traced (`torch.cuda.is_current_stream_capturing()`,
    `torch.compiler.is_compiling()`) and take another path then. Usually that only skips a check or
    a synchronisation. Here the other path leads to other results: from the same state and the same
    inputs an output differs by more than rounding. The graph holds the path of the capture, so its
    replays are not what eager computes.

    Nothing is said of outputs that random numbers reach which the two paths draw differently: they drop
    other elements, and no value tells whether they compute the same function. The verdict is then unknown.
    Dropout of attention is an exception. Where its mask is another one while it is captured, as models of
    Transformers keep a mask that hides nothing, CUDA takes the kernel that fits the mask, and each uses random
    numbers in an order of its own. Replays are then held against eager on the path of the capture, and eager's
    two paths against each other with attention by one kernel, which draws the same on both. Where all agree the
    step is safe: it trains as validly as in eager, and a remark says that its numbers are others.

    It is a false alarm where nobody minds which of the two results is used.

    Compute the same on both paths; or ask for the path of the capture in eager as well, so that the
    model is tested as it is replayed.
    """

    id = "GD214"
    name = "capture-dependent-result"
    effect = "replay-is-wrong"
    evidence = MEASURED
    fix = (
        "Compute the same whether the step is captured or not, or take the path of the capture in "
        "eager too."
    )

    def check(self, recording: Recording) -> Iterator[Hit]:
        yield from partings(recording)

    @staticmethod
    def bad() -> object:
        import torch

        def step(x):
            if torch.cuda.is_current_stream_capturing():  # <- GD214
                return x / 4
            return x / x.abs().amax()

        return step, (torch.randn(8, 16, device="cuda"),)

    @staticmethod
    def good() -> object:
        import torch

        def step(x):
            return x / x.abs().amax()

        return step, (torch.randn(8, 16, device="cuda"),)
