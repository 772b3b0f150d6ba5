"""Random numbers that the host draws, whoever holds the generator, and files that it opens."""

from __future__ import annotations

import functools
import logging
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from graphdoctor.values.host_events import OutsideQuery
from tests.support.diagnosing import cuda, recorded, reported

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


@pytest.mark.parametrize(
    ("mode", "is_query"),
    [
        ("r", True),
        ("r+", True),
        ("w+", True),
        ("w", False),
        ("a", False),
        ("rb", True),
        ("ab", False),
    ],
)
def test_a_file_that_the_step_opens_is_a_query_if_it_may_read_there(
    mode: str, is_query: bool, tmp_path: Path
) -> None:
    path = tmp_path / "schedule"
    path.write_text("0.5")

    def step(x: torch.Tensor) -> torch.Tensor:
        with open(path, mode):
            return x * 2

    events = recorded(lambda: (step, (cuda(4),))).host
    found = [event.name for event in events if isinstance(event, OutsideQuery)]
    assert found == ["open of 'schedule'"] * is_query


def test_what_the_host_did_stands_before_the_operator_that_comes_next() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        twice = x * 2
        return (twice + 1) * PYTHONS.random()

    (event,) = (
        one for one in recorded(lambda: (step, (cuda(4),))).host if one.name.startswith("random")
    )
    assert event.op_index == 2
