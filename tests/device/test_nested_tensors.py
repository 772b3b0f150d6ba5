"""Nested tensors on the emulated device: an H200 refuses what copies or compares their sizes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import graphdoctor
from graphdoctor.graphs.footprint import footprint, gaps_between
from graphdoctor.proof.twins import digest
from graphdoctor.target.target import Inputs

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


def test_steps_that_return_one_are_compared_by_its_parts() -> None:
    def strided(*rows: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor(list(rows))

    def jagged(*rows: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged) * 2

    report = graphdoctor.analyze(strided, *ROWS, device="emulated", strategies=())
    verification = report.captures[0].verification
    assert report.verdict == "safe"
    assert verification is not None
    assert (verification.status, verification.tensors) == ("verified", 2 + len(ROWS))
    report = graphdoctor.analyze(jagged, *ROWS, device="emulated", strategies=())
    assert "GD105" in {finding.rule for finding in report.findings}


def test_another_split_of_the_same_values_is_a_difference() -> None:
    rows = torch.arange(6.0)
    one = torch.nested.as_nested_tensor([rows[:2], rows[2:]])
    other = torch.nested.as_nested_tensor([rows[:3], rows[3:]])
    seen, replayed = (footprint({}, Inputs((), {}), made) for made in (one, other))
    assert [gap.path for gap in gaps_between(seen, replayed)] == ["output.sizes"]
    assert digest(seen) != digest(replayed)
