"""Random numbers that the host draws: found whoever holds the generator."""

from __future__ import annotations

import _random
import functools
import logging
import operator
import os
import random
from collections.abc import Callable

import numpy as np
import pytest
from torch import nn

from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
LOG = logging.getLogger(__name__)
SYSTEM = random.SystemRandom()
BITS = np.random.PCG64(1)
PYTHONS = random.Random(1)
BARE = _random.Random(1)


@functools.cache
def cached() -> np.random.Generator:
    return np.random.default_rng(1)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: SYSTEM.random() < 1e-9,
        lambda: BITS.random_raw() == 1,
        lambda: cached().random() < 1e-9,
        lambda: BARE.random() < 1e-9,
        # What C calls no profiler is told of.
        lambda: functools.partial(random.random)() < 1e-9,
        lambda: next(iter(PYTHONS.random, None)) < 1e-9,
        lambda: next(map(operator.methodcaller("random"), [PYTHONS])) < 1e-9,
        pytest.param(
            lambda: os.getrandom(8) == b"\0" * 8,
            marks=pytest.mark.skipif(not hasattr(os, "getrandom"), reason="Linux has it"),
        ),
    ],
)
def test_a_number_that_hardly_ever_decides_is_found(draw: Callable[[], bool]) -> None:
    report = reported(lambda x: LINEAR(x) * 2 if draw() else LINEAR(x))
    assert "GD207" in [found.rule for found in report.findings]
