"""Comparisons that read nothing, checks on one line or two, and checks that a library can leave out."""

from __future__ import annotations

import torch
import torch.distributions as D

import graphdoctor
from graphdoctor.values.report import Report


def analyzed(step: object, *inputs: torch.Tensor) -> Report:
    return graphdoctor.analyze(step, *inputs, device="emulated", strategies=())


def rules(report: Report) -> set[str]:
    return {f.rule for f in report.findings if f.effect != "replay-is-slow"}


def test_a_tensor_compared_with_itself_is_not_read() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.equal(x, x.view(4, 4)) else x

    report = analyzed(step, torch.randn(4, 4))
    assert (report.verdict, rules(report)) == ("safe", set())


def test_two_rows_of_one_tensor_compared_are_read() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if torch.equal(x[0], x[1]) else x

    report = analyzed(step, torch.randn(4, 4))
    assert (report.verdict, rules(report)) == ("unsafe", {"GD107"})


def test_a_check_on_one_line_is_the_same_rule_as_on_two() -> None:
    def one(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if torch.isnan(y).any(): raise ValueError(f"{y} is wrong")  # noqa: E701  # fmt: skip
        return y

    def two(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if torch.isnan(y).any():
            raise ValueError(f"{y} is wrong")
        return y

    x = torch.randn(4, 4)
    assert rules(analyzed(one, x)) == rules(analyzed(two, x)) == {"GD107"}


def test_a_body_that_reads_on_the_line_of_a_plain_flag_is_no_branch_on_a_value() -> None:
    flag, seen = True, []

    def step(x: torch.Tensor) -> torch.Tensor:
        if flag: seen[:] = [x.sum().item()]  # noqa: E701  # fmt: skip
        return x * 2

    assert rules(analyzed(step, torch.randn(4, 4))) == {"GD101"}


def test_the_checks_of_distributions_are_told_the_argument_that_leaves_them_out() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        made = D.Categorical(logits=x)
        return made.log_prob(x.argmax(-1))

    found = [f for f in analyzed(step, torch.randn(4, 4)).findings if f.rule == "GD101"]
    assert len(found) == 2
    assert all("validate_args=False" in finding.fix for finding in found)


def test_without_its_checks_a_distribution_is_safe() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        made = D.Categorical(logits=x, validate_args=False)
        return made.log_prob(x.argmax(-1))

    assert analyzed(step, torch.randn(4, 4)).verdict == "safe"
