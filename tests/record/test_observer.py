"""Random numbers that the host draws: found whoever holds the generator."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable

import numpy as np
import pytest
from torch import nn

from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
LOG = logging.getLogger(__name__)
SYSTEM = random.SystemRandom()
PYTHONS = random.Random(1)


@functools.cache
def cached() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: SYSTEM.random() < 1e-9,
        lambda: PYTHONS.random() < 1e-9,
        lambda: cached().random() < 1e-9,
    ],
)
def test_a_number_that_hardly_ever_decides_is_found(draw: Callable[[], bool]) -> None:
    report = reported(lambda x: LINEAR(x) * 2 if draw() else LINEAR(x))
    assert "GD207" in [found.rule for found in report.findings]
