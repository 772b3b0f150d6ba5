"""A recording -> the places where code takes another path because it is being captured, to another result."""

from __future__ import annotations

from collections.abc import Iterator

from graphdoctor.rules.causes.parting import partings
from graphdoctor.rules.rule import MEASURED, Hit, RecordingRule
from graphdoctor.values.recording import Recording


class CaptureDependentResult(RecordingRule):
    """The step computes a different result during capture.

    Code can check whether it is being captured or traced (`torch.cuda.is_current_stream_capturing()`,
    `torch.compiler.is_compiling()`) and take another branch. Usually that branch only skips a check or
    a host sync. Here the branch changes the result: from the same state and inputs, an output differs
    by more than rounding. A replay always takes the captured branch, so replays do not match eager.

    Outputs that depend on different random draws in the two branches are not reported, because no value
    shows whether they are the same function. The verdict is then unknown. Attention dropout is an
    exception: a different attention mask during capture can select another kernel with another order of
    random numbers. Replays are then compared with eager on the captured branch, and the two eager
    branches are compared with the same attention kernel. If all agree, the step is safe, and a remark
    says that its random numbers differ from eager's.

    False alarm: both results are acceptable.

    Compute the same result in both branches. Or take the captured branch in eager too, so that tests
    run the code that replays run.
    """

    id = "GD214"
    name = "capture-dependent-result"
    effect = "replay-is-wrong"
    evidence = MEASURED
    fix = (
        "Compute the same result whether or not the step is captured, or take the captured "
        "branch in eager too."
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
