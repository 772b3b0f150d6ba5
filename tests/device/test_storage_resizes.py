"""A storage that is freed and filled again inside of a capture, as sharded parameters are."""

from __future__ import annotations

from types import SimpleNamespace

import torch

import graphdoctor


def test_a_parameter_that_is_freed_and_gathered_in_the_step_is_captured() -> None:
    def target() -> object:
        full, shard = torch.zeros(64, device="cuda"), torch.randn(64, device="cuda")
        size = full.untyped_storage().size()

        def step(x: torch.Tensor) -> torch.Tensor:
            full.untyped_storage().resize_(0)
            full.untyped_storage().resize_(size)
            full.copy_(shard)
            return (x * full).sum()

        inputs = (torch.randn(64, device="cuda"),)
        return SimpleNamespace(step=step, inputs=inputs, state=[full, shard])

    report = graphdoctor.analyze(target, device="emulated", strategies=())
    assert [(found.scope, found.status) for found in report.captures] == [
        ("whole step", "captured")
    ]
    assert report.verdict == "safe"
    assert not report.findings
