"""What keeps a step from being one graph is named in full, and by rules that the report lists."""

from __future__ import annotations

import torch

import graphdoctor


def test_two_rules_on_one_line_are_both_named() -> None:
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        y = model(x)
        y = y[y > 0]; y.sum().backward(); optimizer.step()  # noqa: E702  # fmt: skip

    report = graphdoctor.analyze(step, torch.randn(4, 8), device="emulated", strategies=("whole",))
    assert {f.rule for f in report.findings if f.effect != "replay-is-slow"} == {"GD106", "GD111"}
    assert report.recommendation is not None
    text = report.recommendation.then
    assert text.startswith("Only GD106 and GD111 (test_what_stands_in_the_way.py:")
    assert "block whole-step capture" in text


def test_every_rule_that_bounds_a_region_is_listed() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6)))
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    report = graphdoctor.analyze(step, torch.randn(4, 8), device="emulated", strategies=())
    listed = {finding.rule for finding in report.findings}
    assert {rule for region in report.regions for rule in region.blocked_by} <= listed
    assert report.regions
