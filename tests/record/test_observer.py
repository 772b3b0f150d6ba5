"""Random numbers that the host draws, whoever holds the generator, and files that it opens."""

from __future__ import annotations

import functools
import gc
import logging
import random
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
import torch
from torch import nn

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.device.observe.interpreter import profiling
from graphdoctor.record.host.observer import HostObserver
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
    ("step", "looks"),
    [
        pytest.param(lambda x: LINEAR(x) * 2, 0, id="names no draw"),
        pytest.param(lambda x: LINEAR(x).uniform_(), 0, id="names an operator of torch"),
        pytest.param(lambda x: LINEAR(x) * cached().uniform(), 1, id="names a draw"),
    ],
)
def test_all_objects_are_searched_for_generators_only_if_the_step_names_a_draw(
    step: Callable[[torch.Tensor], torch.Tensor], looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    get_objects, counted = gc.get_objects, [0]

    def counting() -> list[object]:
        counted[0] += 1
        return get_objects()

    monkeypatch.setattr(gc, "get_objects", counting)
    recorded(lambda: (step, (cuda(4, 8),)))
    assert counted == [looks]


@torch.library.custom_op("graphdoctor_tests::scaled_by_chance", mutates_args=())
def scaled_by_chance(x: torch.Tensor) -> torch.Tensor:
    return x * PYTHONS.random()


def test_a_draw_in_an_operator_written_in_python_is_found() -> None:
    recording = recorded(lambda: (lambda x: scaled_by_chance(x) + 1, (cuda(4),)))
    assert "random.random()" in [event.name for event in recording.host]


def test_a_profile_function_sees_nothing_of_how_an_operator_runs() -> None:
    called: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    with EmulatedDevice() as device:
        x = torch.ones(4, device="cuda")
        with device.observed_by(HostObserver()), profiling(note):
            x.add_(1)
            device.table.info(x)
    assert called.count("info") == 1  # that of the test; a dispatch looks at each tensor
    assert "__torch_dispatch__" in called


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
