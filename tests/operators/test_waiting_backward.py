"""Backward formulas that wait on a GPU, and take another way while anything records them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import graphdoctor
from graphdoctor.values.report import Report

Product = Callable[[torch.Tensor], torch.Tensor]


def report_of(product: Product) -> Report:
    def build() -> object:
        weight = torch.full((4, 8), 0.5, device="cuda", requires_grad=True)

        def step(data: torch.Tensor) -> torch.Tensor:
            weight.grad = None
            result = product(torch.sigmoid(data * weight))
            result.sum().backward()
            return result.detach()

        return step, (torch.rand(4, 8, device="cuda"),)

    return graphdoctor.analyze(build, device="emulated", strategies=())


@pytest.mark.parametrize(
    "product",
    [
        lambda x: torch.cumprod(x, dim=-1),  # waits
        lambda x: torch.prod(x, dim=-1),  # waits
        lambda x: x.prod(),  # waits
    ],
)
def test_the_backward_of_a_product_stops_a_capture_at_its_forward_line(product: Product) -> None:
    report = report_of(product)
    (finding,) = [f for f in report.findings if f.effect == "capture-fails"]
    assert finding.rule == "GD114" and "backward" in finding.message
    assert finding.location is not None
    with open(__file__) as source:
        assert "# waits" in source.readlines()[finding.location.line - 1]
    whole = report.captures[0]
    assert (whole.scope, whole.status) == ("whole step", "refused")
    assert report.verdict != "safe"


def test_a_sum_of_logarithms_is_safe() -> None:
    assert report_of(lambda x: x.log().cumsum(dim=-1).exp()).verdict == "safe"


def test_a_product_without_backward_is_safe() -> None:
    def build() -> object:
        return (lambda data: data.cumprod(dim=-1)), (torch.rand(4, 8, device="cuda"),)

    assert graphdoctor.analyze(build, device="emulated", strategies=()).verdict == "safe"
