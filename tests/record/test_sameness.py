"""Two runs with the same operators are not the same step where they take, or return, other tensors or numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)


class Later:
    """Gives the first of two things for a thousand steps, by no line that compares."""

    def __init__(self) -> None:
        self.calls = 0

    def of(self, now: object, then: object) -> object:
        self.calls += 1
        return (now, then)[min(self.calls // 1000, 1)]


def takes_another(x: torch.Tensor, later: Later) -> object:
    a = LINEAR(x)
    b = torch.relu(a)
    return later.of(a, b) * 2  # type: ignore[operator]


def returns_another(x: torch.Tensor, later: Later) -> object:
    a = LINEAR(x)
    return later.of(a, torch.relu(a))


def returns_another_number(x: torch.Tensor, later: Later) -> object:
    return LINEAR(x), later.of(False, True)


@pytest.mark.parametrize("step", [takes_another, returns_another, returns_another_number])
def test_another_tensor_or_number_is_another_step(step: Callable[..., object]) -> None:
    later = Later()
    report = reported(lambda x: step(x, later))
    assert report.verdict == "unknown" and "does something else" in report.reason


def test_an_object_that_is_returned_anew_is_no_other_step() -> None:
    later = Later()
    report = reported(lambda x: (LINEAR(x), later.of(Later, Later)))
    assert report.verdict == "safe", report.reason
