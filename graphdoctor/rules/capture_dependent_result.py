"""A recording -> the places where code takes another path because it is being captured, to another result."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from graphdoctor.rules.causes.other_dropout import (
    FIX_OF_DROPOUT,
    WHY_OTHER_DROPOUT,
    other_dropouts,
)
from graphdoctor.rules.causes.parting import partings
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule
from graphdoctor.values.recording import Recording
from graphdoctor.values.report import Finding


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
    numbers in an order of its own. That is told with its line. Such a step trains as validly as in eager.

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
        yield from (one.hit() for one in other_dropouts(recording) if one.is_certain)

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


def other_dropout(recording: Recording) -> Finding | None:
    """That a GPU may draw other numbers for attention, where it is not known which kernels it takes."""
    found = [one for one in other_dropouts(recording) if not one.is_certain]
    if not found:
        return None
    first = [one for one in found if one.iteration == found[0].iteration]
    return structs.replace(
        CaptureDependentResult.finding(first[0].message, first[0].now.location),
        why=WHY_OTHER_DROPOUT,
        fix=FIX_OF_DROPOUT,
        stack=first[0].now.stack,
        count=len(first),
        certainty="unknown",
    )
