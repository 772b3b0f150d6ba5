"""What only reaches a log is no doubt; what may reach the step stays one, however alike the code is."""

from __future__ import annotations

import itertools
import logging
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.diagnosing import reported

LINEAR = nn.Linear(8, 8)
LOG = logging.getLogger(__name__)
HERE = Path(__file__)
STOP = HERE.parent / "STOP"
NOWHERE = Path(os.devnull)
HITS: list[object] = []
GENERATOR = np.random.default_rng(0)
ORDER = [0, 1]
ONE, OTHER = torch.ones(8, device="cpu"), torch.zeros(8, device="cpu")


class Own:
    def info(self, text: str) -> None:
        HITS.append(text)


OWN = Own()


def stopped() -> bool:
    return STOP.exists()


def logs(x: torch.Tensor) -> torch.Tensor:
    if stopped():
        LOG.warning("stopped")
    return LINEAR(x)


def logs_what_it_reads(x: torch.Tensor) -> torch.Tensor:
    try:
        with open(HERE) as file:
            text = file.readline().strip()
    except OSError:
        text = ""
    LOG.info("read %s", text)
    return LINEAR(x)


def prints_by_chance(x: torch.Tensor) -> torch.Tensor:
    y = LINEAR(x)
    if random.random() < 0.01:
        print("mean", y.mean().item())
    drawn = GENERATOR.random()
    if drawn < 0.01:
        print("drawn", drawn)
    return y


def writes_what_it_reads(x: torch.Tensor) -> torch.Tensor:
    NOWHERE.write_text(HERE.read_text()[:10])
    return LINEAR(x)


def counts() -> Iterator[int]:
    k = 0
    while True:
        k += 1
        yield k


COUNTED, NUMBERS = counts(), itertools.count()


def logs_what_it_counts(x: torch.Tensor) -> torch.Tensor:
    k = next(COUNTED)
    if k % 50 == 0:
        LOG.info("now")
    LOG.debug("%d", next(NUMBERS))
    return LINEAR(x)


@pytest.mark.parametrize(
    "step",
    [logs, logs_what_it_reads, prints_by_chance, writes_what_it_reads, logs_what_it_counts],
)
def test_what_only_reaches_a_log_is_no_doubt(step: Callable[..., object]) -> None:
    report = reported(step)
    assert report.verdict == "safe", report.reason


def sets_a_factor(x: torch.Tensor) -> torch.Tensor:
    factor = 1.0
    if stopped():
        LOG.info("stopped")
        factor = 2.0
    return LINEAR(x) * factor


def does_more_where_it_is_not(x: torch.Tensor) -> torch.Tensor:
    y = LINEAR(x)
    if stopped():
        LOG.info("stopped")
    else:
        y = y * 2
    return y


def logs_by_its_own(x: torch.Tensor) -> torch.Tensor:
    if stopped():
        OWN.info("stopped")
    return LINEAR(x) * len(HITS)


def logs_what_it_changes(x: torch.Tensor) -> torch.Tensor:
    y = LINEAR(x)
    if stopped():
        LOG.info("%s", y.mul_(2))
    return y


def catches(x: torch.Tensor) -> torch.Tensor:
    y = LINEAR(x)
    try:
        LOG.info("%s", STOP.read_text())
    except OSError:
        y = y * 2
    return y


def adds_in_place(x: torch.Tensor) -> torch.Tensor:
    either = ONE if stopped() else OTHER
    either += 1
    return LINEAR(x)


def leaves_early(x: torch.Tensor) -> torch.Tensor:
    y = LINEAR(x)
    if stopped():
        LOG.info("stopped")
        return y
    return y * 2


def shuffles(x: torch.Tensor) -> torch.Tensor:
    random.shuffle(ORDER)
    return LINEAR(x)


def takes_two(x: torch.Tensor) -> torch.Tensor:
    LOG.info("%d", next(NUMBERS))
    k = next(NUMBERS)
    return LINEAR(x) * 2 if k == 99 else LINEAR(x)


@pytest.mark.parametrize(
    "step",
    [
        sets_a_factor,
        does_more_where_it_is_not,
        logs_by_its_own,
        logs_what_it_changes,
        catches,
        adds_in_place,
        leaves_early,
        shuffles,
        takes_two,
    ],
)
def test_what_may_reach_the_step_stays_a_doubt(step: Callable[..., object]) -> None:
    assert reported(step).verdict in ("unknown", "unsafe")


class Noting(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        HITS.append(record)


def test_a_handler_of_the_users_may_do_anything() -> None:
    handler = Noting()
    LOG.addHandler(handler)
    try:
        assert reported(logs).verdict == "unknown"
    finally:
        LOG.removeHandler(handler)
