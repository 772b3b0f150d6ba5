"""What a run is taken to leave behind: values that the step computed, and nothing else that hangs on them."""

from __future__ import annotations

import torch
from torch import nn

from graphdoctor.pipeline import analyze


def test_gradients_and_hooks_of_a_returned_parameter_are_no_output() -> None:
    def build() -> object:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = [0]
        model.weight.register_hook(lambda gradient, name="weight": seen.append(len(seen)))

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            return model.weight

        return step, (torch.randn(8, 4, device="cuda"),)

    report = analyze(build, device="emulated", strategies=())
    assert (report.verdict, report.findings) == ("safe", ()), report.reason


def test_a_state_of_the_host_s_generator_that_the_step_keeps_is_not_compared() -> None:
    """As reversible layers do, to draw again what they drew. Each run of a comparison is seeded anew."""

    class Reversible(nn.Module):
        state: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state = torch.get_rng_state()
            return nn.functional.dropout(x)

    def build() -> object:
        return Reversible(), (torch.randn(8, 4, device="cuda"),)

    report = analyze(build, device="emulated", strategies=())
    assert report.verdict == "safe", report.reason
