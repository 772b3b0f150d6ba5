"""Nested tensors on the emulated device: an H200 refuses what copies or compares their sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import graphdoctor

ROWS = (torch.randn(3, 8), torch.randn(5, 8))
Step = Callable[..., torch.Tensor]


def padded(*rows: torch.Tensor) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows)).to_padded_tensor(0.0)


def through_a_layer(*rows: torch.Tensor) -> torch.Tensor:
    weight = torch.ones(8, 8, device=rows[0].device)
    made = torch.nn.functional.linear(torch.nested.as_nested_tensor(list(rows)), weight)
    return made.to_padded_tensor(0.0)


def times_a_dense_one(*rows: torch.Tensor) -> torch.Tensor:
    made = torch.nested.as_nested_tensor(list(rows))
    return (made * torch.ones(2, 1, 8, device=rows[0].device)).unbind()[0]


def product(*rows: torch.Tensor) -> torch.Tensor:
    made = torch.nested.as_nested_tensor(list(rows))
    return torch.matmul(made, made.transpose(1, 2)).unbind()[0]


@pytest.mark.parametrize("step", [padded, through_a_layer, product])
def test_what_copies_their_sizes_is_never_called_safe(step: Step) -> None:
    report = graphdoctor.analyze(step, *ROWS, device="emulated", strategies=())
    assert report.verdict != "safe"
    assert "GD114" in {finding.rule for finding in report.findings}
    assert report.captures[0].status == "refused"


def test_a_product_that_only_a_gpu_has_is_not_verified() -> None:
    report = graphdoctor.analyze(times_a_dense_one, *ROWS, device="emulated", strategies=())
    assert report.verdict == "unknown"
    assert "aten.mul.Tensor" in report.reason


def test_building_one_and_working_on_its_parts_is_captured() -> None:
    def step(*rows: torch.Tensor) -> torch.Tensor:
        made = torch.nested.as_nested_tensor(list(rows))
        return torch.nn.functional.relu(made * 2).unbind()[1]

    report = graphdoctor.analyze(step, *ROWS, device="emulated", strategies=())
    assert report.findings == () or {f.effect for f in report.findings} == {"replay-is-slow"}
    assert report.captures[0].status == "captured"


@pytest.fixture
def encoder() -> torch.nn.TransformerEncoder:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2).eval()


@pytest.fixture
def mask() -> torch.Tensor:
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[1, 5:] = mask[2, 3:] = True
    return mask


def test_an_encoder_with_a_padding_mask_is_told_the_option_that_avoids_them(
    encoder: torch.nn.TransformerEncoder, mask: torch.Tensor
) -> None:
    x = torch.randn(3, 7, 32)
    report = graphdoctor.analyze(
        encoder, x, src_key_padding_mask=mask, device="emulated", strategies=("modules",)
    )
    fixes = [finding.fix for finding in report.findings if finding.rule == "GD114"]
    assert fixes and all("enable_nested_tensor=False" in fix for fix in fixes)
    (row,) = (row for row in report.strategies if row.strategy == "modules")
    assert (row.status, "nested tensors" in row.reason) == ("unfit", True)


def test_the_option_is_the_fix(encoder: torch.nn.TransformerEncoder, mask: torch.Tensor) -> None:
    encoder.enable_nested_tensor = encoder.use_nested_tensor = False
    report = graphdoctor.analyze(
        encoder, torch.randn(3, 7, 32), src_key_padding_mask=mask, device="emulated", strategies=()
    )
    assert report.verdict == "safe"
