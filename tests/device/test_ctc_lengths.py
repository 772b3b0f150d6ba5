"""torch.ctc_loss while it is watched: lengths on the host are the usual way to call it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.pipeline import analyze


def ctc_training() -> object:
    model = nn.Linear(8, 5).cuda()
    lengths = torch.tensor([12, 10]), torch.tensor([3, 2])
    targets = torch.randint(1, 5, (2, 3), device="cuda")
    loss = nn.CTCLoss()

    def step(data: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        value = loss(model(data).log_softmax(-1), targets, *lengths)
        value.backward()
        return value.detach()

    return step, (torch.randn(12, 2, 8, device="cuda"),)


def test_lengths_on_the_host_are_no_tensors_on_the_wrong_device() -> None:
    report = analyze(ctc_training, device="emulated", strategies=())
    assert [finding.rule for finding in report.findings if finding.effect == "capture-fails"] == [
        "GD114"
    ]
    assert report.limits == ()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_loss_is_the_one_that_nobody_watches(reduction: str) -> None:
    data = torch.randn(12, 2, 5).log_softmax(-1)
    targets = torch.randint(1, 5, (2, 3))
    loss = nn.CTCLoss(reduction=reduction)
    for lengths in (([12, 10], [3, 2]), (torch.tensor([12, 10]), torch.tensor([3, 2]))):
        expected = loss(data, targets, *lengths)
        with EmulatedDevice():
            found = loss(data.cuda(), targets.cuda(), *lengths)
            assert found.is_cuda
            assert found.cpu().tolist() == expected.tolist()
