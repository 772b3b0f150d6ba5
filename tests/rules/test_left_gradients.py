"""Gradients that one step leaves and the next one adds to, as in GANs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from graphdoctor.pipeline import analyze


def adversarial(*, zero_first: bool = False, to_none: bool = True) -> Any:
    def build() -> object:
        makes, judges = nn.Linear(4, 4).cuda(), nn.Linear(4, 1).cuda()
        first = torch.optim.SGD(makes.parameters(), lr=0.1)
        second = torch.optim.SGD(judges.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> None:
            first.zero_grad()
            if zero_first:
                second.zero_grad()
            made = makes(x)
            judges(made).mean().backward()
            first.step()
            second.zero_grad(set_to_none=to_none)
            (judges(x).mean() - judges(made.detach()).mean()).backward()
            second.step()

        return step, (torch.randn(8, 4, device="cuda"),)

    return analyze(build, device="emulated", strategies=())


def test_the_backward_pass_that_finds_them_is_named_with_what_to_zero() -> None:
    (finding,) = [one for one in adversarial().findings if one.effect == "replay-is-wrong"]
    assert finding.rule == "GD205"
    assert (
        "accumulates into the gradient of judges.bias left by the previous step" in finding.message
    )
    assert "before this backward pass" in finding.fix
    with open(__file__) as file:
        assert "judges(made).mean().backward()" in file.readlines()[finding.location.line - 1]


@pytest.mark.parametrize("how", [{"zero_first": True}, {"to_none": False}])
def test_either_half_of_the_fix_is_enough(how: dict[str, bool]) -> None:
    report = adversarial(**how)
    assert report.verdict == "safe", report.reason
