"""Regions of steps whose memory differs from iteration to iteration, and of steps that launch nothing."""

from __future__ import annotations

import pytest
import torch

import graphdoctor
from graphdoctor.values.errors import UsageError


def test_a_region_that_reads_memory_of_another_size_is_not_verified_and_no_crash() -> None:
    """The first of the rows found is a view of equal shape, into memory of another size each time."""
    weights = torch.randn(32, 8)

    def step(x: torch.Tensor) -> torch.Tensor:
        found = torch.nonzero(x[:, 0] > 0.3)
        first = found[0] * 2
        for _ in range(12):
            first = (first + 1) % 32
        return weights.to(x.device)[first].sum()

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(32, 4, generator=generator)
    report = graphdoctor.analyze(step, x, device="emulated", strategies=())

    assert {finding.rule for finding in report.findings} >= {"GD106"}
    reasons = [c.verification.reason for c in report.captures if c.verification is not None]
    assert "its tensors lie in memory of another size in other iterations" in reasons


def test_a_step_of_views_only_is_said_to_launch_nothing() -> None:
    with pytest.raises(UsageError, match="launches nothing on the CUDA device"):
        graphdoctor.analyze(
            lambda x: x.view(-1), torch.randn(4, 4), device="emulated", strategies=()
        )
