"""What the gradient scaler reads, and what a program reads on the same line."""

from __future__ import annotations

from types import SimpleNamespace

import torch

import graphdoctor


def test_a_read_on_the_line_of_the_scalers_step_is_a_finding_of_its_own() -> None:
    def target() -> object:
        model = torch.nn.Linear(4, 2, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cuda")

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            # fmt: off
            scaler.step(optimizer); loss.item()  # noqa: E702
            # fmt: on
            scaler.update()
            return loss

        inputs = (torch.randn(8, 4, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[model, optimizer, scaler])

    report = graphdoctor.analyze(target, device="emulated", strategies=())
    hard = [found for found in report.findings if found.rule in ("GD101", "GD112")]
    assert {found.rule for found in hard} == {"GD101", "GD112"}
    assert len({found.location.line for found in hard if found.location is not None}) == 1
