"""Whole numbers for other values of which the step does something else: no alarm over garbage, none hidden."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import graphdoctor
from graphdoctor.values.report import Report

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def analyzed(step: Step, values: list[object], *, device: str = "cpu") -> Report:
    """On inputs that their author placed: numbers on the CPU are read without waiting."""

    def make() -> object:
        x = torch.randn(6, 4, device="cuda")
        return step, (x, torch.tensor(values, device=device))

    return graphdoctor.analyze(make, device="emulated", strategies=(), iterations=3)


def longest(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x[: max(lengths.tolist())] * 2


def parts_of(x: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    """As packed images are taken apart: by sizes that have to add up."""
    return torch.cat([part.sum(0) for part in x.split(sizes.tolist())])


def blocking(report: Report) -> list[str]:
    return [found.rule for found in report.findings if found.effect != "replay-is-slow"]


def test_a_path_for_drawn_numbers_only_is_no_finding_and_not_safe_either() -> None:
    report = analyzed(longest, [5, 2, 4])
    assert (report.verdict, blocking(report)) == ("unknown", [])
    assert "Other values take a different branch" in report.reason
    (limit,) = report.limits
    assert "another path for other values of `inputs[1]` (test_other_paths.py:" in limit


def test_a_path_for_the_given_numbers_in_another_order_is_a_finding() -> None:
    report = analyzed(parts_of, [3, 1, 2])
    assert (report.verdict, blocking(report)) == ("unsafe", ["GD202"])
    assert any("the given numbers in other places only" in note for note in report.target.notes)


@pytest.mark.parametrize("values", [[2, 2, 2], [5, 4, 2], [4]])
def test_numbers_that_are_never_others_are_named_in_the_verdict(values: list[object]) -> None:
    report = analyzed(longest, values)
    assert report.verdict == "safe"
    assert report.reason.endswith("on fresh inputs with `inputs[1]` as given.")


def test_a_wait_for_numbers_on_the_device_is_found_and_the_other_path_is_told() -> None:
    report = analyzed(longest, [5, 2, 4], device="cuda")
    assert (report.verdict, blocking(report)[:1]) == ("unsafe", ["GD101"])
    assert any("inputs[1]: the step takes another path" in note for note in report.target.notes)


def test_a_path_that_measured_values_decide_is_found_as_before() -> None:
    def step(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * 2 if float(scale[0]) > 0 else x + 1

    report = analyzed(step, [0.5, -2.0, 1.0, -0.1])
    assert (report.verdict, blocking(report)) == ("unsafe", ["GD201"])


def test_ids_that_only_index_vary_freely() -> None:
    model, ids = torch.nn.Embedding(50, 4), torch.randint(0, 50, (2, 9))
    report = graphdoctor.analyze(model, ids, device="emulated", strategies=(), iterations=2)
    assert report.reason.endswith("on fresh inputs matched eager.")
    assert not report.limits


def test_with_all_values_alike_nothing_is_fresh() -> None:
    report = graphdoctor.analyze(
        torch.relu, torch.ones(4), device="emulated", strategies=(), iterations=2
    )
    assert report.reason.endswith("matched eager, on the given inputs only.")
