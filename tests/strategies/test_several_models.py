"""The strategy `modules` on steps of several models, which have names, and none of which is the root."""

from __future__ import annotations

import pytest
import torch

import graphdoctor


def _layers(last: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, last))


@pytest.mark.parametrize("captures", [True, False])
def test_modules_gives_an_answer_on_an_actor_and_a_critic(captures: bool) -> None:
    actor, critic = _layers(4), _layers(1)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            value = critic(x)
            if not captures:
                value = value[value > 0]
            return actor(x).softmax(-1), value

    report = graphdoctor.analyze(
        step, torch.randn(4, 8), device="emulated", strategies=("modules",)
    )
    (row,) = (row for row in report.strategies if row.strategy == "modules")
    assert row.status != "failed", row.reason
