"""Unchanged Hugging Face models get the diagnosis that their source gives on a GPU."""

from __future__ import annotations

import linecache
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import graphdoctor
from graphdoctor.values.finding import Finding
from graphdoctor.values.report import Report
from tests.models.huggingface import BUILDERS

# What stops a capture, from reading the models' source as it runs on "cuda" in float32, with
# is_current_stream_capturing() true: the masks' `.all()` reads are then skipped.
# Mixtral: grouped_mm copies its offsets to the host unless all is bfloat16 (GroupedMMUtils.h).
# DETR: each encoder layer asks `if not torch.isfinite(hidden_states).all()` while training.
BLOCKERS = {
    ("mixtral", "inference"): {"GD114"},
    ("mixtral", "training"): {"GD114"},
    ("detr", "training"): {"GD107"},
}

# Training runs the forward pass of the others, too, but not what these do without gradients.
IN_INFERENCE = ("detr", "llama", "mixtral", "resnet")
# A model's tests run one after the other, so that one process analyses it, and once.
every_model = pytest.mark.parametrize(
    ("name", "mode"),
    [(name, "training") for name in BUILDERS] + [(name, "inference") for name in IN_INFERENCE],
    scope="module",
)


def training_target(name: str) -> SimpleNamespace:
    """Forward and backward; the loss is the model's own where it has one."""
    model, arguments, keywords = BUILDERS[name]()
    model.train().to("cuda")
    assert not arguments

    def step(*values: Any) -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        output = model(**dict(zip(keywords, values, strict=True)))
        loss = output.logits.square().mean() if output.loss is None else output.loss
        loss.backward()
        return loss.detach()

    inputs = tuple(value.to("cuda") for value in keywords.values())
    return SimpleNamespace(step=step, inputs=inputs, state={"model": model})


@cache
def report_of(name: str, mode: str) -> Report:
    build = BUILDERS[name] if mode == "inference" else lambda: training_target(name)
    return graphdoctor.analyze(build, device="emulated", strategies=())


def hazards(report: Report) -> list[Finding]:
    """The findings that say unsafe: GD3xx only say that a graph would not pay."""
    return [finding for finding in report.findings if not finding.rule.startswith("GD3")]


@every_model
def test_the_step_is_recorded_in_the_right_mode(name: str, mode: str) -> None:
    report = report_of(name, mode)
    assert report.operators > 0
    assert report.target.mode == mode


@every_model
def test_hazards_are_those_of_the_source(name: str, mode: str) -> None:
    report = report_of(name, mode)
    blockers = BLOCKERS.get((name, mode), set())
    assert {finding.rule for finding in hazards(report)} == blockers, report.findings
    assert report.verdict == ("partly-safe" if blockers else "safe"), report.reason


@every_model
def test_every_finding_points_at_a_line_that_exists(name: str, mode: str) -> None:
    for finding in report_of(name, mode).findings:
        if finding.location is None:
            assert finding.phase == "backward" or finding.rule.startswith("GD3"), finding
            continue
        assert Path(finding.location.file).is_file()
        assert linecache.getline(finding.location.file, finding.location.line).strip()
