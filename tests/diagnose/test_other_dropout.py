"""Dropout of attention with another mask while it is captured: which kernel a GPU takes, and whether it draws alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from graphdoctor.device.emulated import functions
from graphdoctor.pipeline import analyze
from graphdoctor.values.report import Report

DATA = Path(__file__).parents[2] / "benchmarks/data/attention_dropout_h200_torch2.11.jsonl"


def is_capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


def analyzed(
    mask: tuple[int, ...],
    *,
    dropout: float = 0.1,
    dtype: torch.dtype = torch.float32,
    head_dim: int = 8,
) -> Report:
    """Of a step that has a mask while it is captured only, as models of Transformers do."""

    def step(q: torch.Tensor) -> torch.Tensor:
        given = None
        if is_capturing():
            given = torch.ones(mask, dtype=torch.bool, device="cuda").expand(4, 4)
        return scaled_dot_product_attention(q, q, q, attn_mask=given, dropout_p=dropout)

    given = torch.randn(1, 2, 4, head_dim, dtype=dtype)
    return analyze(step, given, device="emulated", strategies=(), iterations=2)


DENSE, ONE_NUMBER = (4, 4), ()


def told(report: Report) -> str:
    return "".join(limit for limit in report.limits if "Attention with dropout" in limit)


def test_a_mask_that_the_fused_kernels_take_draws_alike() -> None:
    report = analyzed(DENSE)
    assert (report.verdict, report.findings, told(report)) == ("safe", (), "")


def test_a_mask_of_one_number_is_safe_and_told_to_draw_other_numbers_with_its_line() -> None:
    report = analyzed(ONE_NUMBER)
    assert (report.verdict, report.findings) == ("safe", ())
    assert told(report).startswith("Attention with dropout (test_other_dropout.py:")
    assert "stride 0 in the last dimension while it is captured, and no mask in eager" in told(
        report
    )
    assert "takes math attention instead of efficient attention" in told(report)
    assert "contiguous()" in told(report)


def test_attention_that_drops_nothing_may_have_any_mask() -> None:
    report = analyzed(ONE_NUMBER, dropout=0.0)
    assert (report.verdict, told(report)) == ("safe", "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_that_drops_more_while_it_is_captured_is_not_safe(dtype: torch.dtype) -> None:
    def step(q: torch.Tensor) -> torch.Tensor:
        mask = torch.ones((), dtype=torch.bool, device="cuda").expand(4, 4)
        if is_capturing():
            return scaled_dot_product_attention(q, q, q, attn_mask=mask, dropout_p=0.5)
        return scaled_dot_product_attention(q, q, q, dropout_p=0.1)

    given = torch.randn(1, 2, 4, 8, dtype=dtype)
    assert analyze(step, given, device="emulated", strategies=()).verdict != "safe"


def test_half_precision_on_a_torch_that_was_not_measured_may_draw_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(functions, "torch_version", lambda: (2, 8))
    report = analyzed(DENSE, dtype=torch.bfloat16)
    assert (report.verdict, report.findings) == ("safe", ())
    assert "may take efficient attention instead of flash attention" in told(report)


def test_half_precision_draws_alike_by_cudnn_as_on_an_h200(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(functions, "torch_version", lambda: (2, 11))
    report = analyzed(DENSE, dtype=torch.bfloat16)
    assert (report.verdict, told(report)) == ("safe", "")


@pytest.mark.parametrize("head_dim", [20, 264])
def test_heads_of_a_size_that_cudnn_does_not_take_may_draw_otherwise_in_half_precision(
    head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "torch_version", lambda: (2, 11))
    report = analyzed(DENSE, dtype=torch.bfloat16, head_dim=head_dim)
    assert report.verdict == "safe"
    assert "may take" in told(report)


def test_the_kernels_are_those_that_an_h200_took() -> None:
    lines = [json.loads(line) for line in DATA.read_text().splitlines()]
    measured = [line for line in lines if "dtype" in line]
    assert len(measured) == 36 and not any(line["largest_difference"] for line in measured)
    for line in measured:
        assert line["with"] == line["without"]
        expected = "efficient" if line["dtype"] == "float32" else "cudnn"
        assert line["with"]["backend"] == expected
