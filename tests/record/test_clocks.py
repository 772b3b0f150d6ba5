"""A clock that a step keeps, and that only times it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)


class Timer:
    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock, self.total = clock, 0.0

    def __enter__(self) -> None:
        self.begun = self.clock()

    def __exit__(self, *exc_info: Any) -> None:
        self.total += self.clock() - self.begun


def test_a_clock_that_is_kept_and_only_times_is_none() -> None:
    timer = Timer()

    def step(x: torch.Tensor) -> torch.Tensor:
        with timer:
            return LINEAR(x)  # type: ignore[no-any-return]

    report = reported(step)
    assert report.verdict == "safe", report.reason
