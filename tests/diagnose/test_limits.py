"""A step with a path of its own for captures, which agrees with eager's on the inputs tried."""

from __future__ import annotations

import torch

from tests.support.diagnosing import reported


def test_other_operators_while_captured_are_told() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            return x.clamp(max=1e6)
        return x + 0

    report = reported(step)
    assert report.verdict == "safe"
    told = [one for one in report.limits if "issues other operators than in eager" in one]
    assert len(told) == 1
    assert "test_limits.py" in told[0]


def test_nothing_is_said_to_have_been_compared_where_nothing_can_be_captured() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        x = x + x.sum().item()
        return x.clamp(max=1e6) if torch.cuda.is_current_stream_capturing() else x + 0

    report = reported(step)
    assert report.verdict == "unsafe"
    (told,) = [one for one in report.limits if "issues other operators than in eager" in one]
    assert "were compared" not in told


def test_the_same_operators_need_no_word() -> None:
    report = reported(lambda x: x * 2)
    assert not any("other operators than in eager" in one for one in report.limits)
