"""A capture of training runs the step no oftener than its proof needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import graphdoctor
from graphdoctor.captured import study
from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.calls.tally import WARMUP_CALLS
from graphdoctor.graphs.modules.call_graphs import Gradients
from tests.support.captured_models import on_device, rand
from tests.support.emulated import device as device

# 2 warm it up, 1 more as if it were captured; 1 with other inputs; 4 are recorded; 1 is watched for what the host
# does; 1 shows what the model is called with; 4 are calls whose replays are compared with those recorded.
RUNS = 13


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """One item for each run of the step."""
    found: list[object] = []
    make = study._forward_and_backward

    def counted(model: nn.Module) -> Callable[..., object]:
        step = make(model)

        def run(*args: object, **kwargs: object) -> object:
            found.append(None)
            return step(*args, **kwargs)

        return run

    monkeypatch.setattr(study, "_forward_and_backward", counted)
    return found


def training() -> nn.Module:
    return on_device(nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 8), nn.Tanh()))


def test_recorded_runs_are_what_replays_are_compared_with(
    device: EmulatedDevice, runs: list[object]
) -> None:
    fast = graphdoctor.capture(training(), rand(3, 4), mode="training")

    assert fast.coverage == 1.0
    assert len(runs) == RUNS
    fast.release()


def test_a_gradient_that_a_replay_gets_wrong_is_found_by_them(
    device: EmulatedDevice, runs: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Gradients.handed_out

    def wrong(self: Gradients, found: Any, came: Any) -> Any:
        return tuple(one if one is None else one * 2 for one in kept(self, found, came))

    monkeypatch.setattr(Gradients, "handed_out", wrong)

    fast = graphdoctor.capture(training(), rand(3, 4), mode="training")

    assert fast.coverage == 0.0
    assert "not shown to be right (wrong)" in fast.explain()
    assert len(runs) > RUNS  # eager runs beside the replays say how they differ


@pytest.mark.parametrize("kind", ["emulated", "cuda"])
def test_a_study_of_a_training_step_runs_it_nine_times(
    kind: str, tmp_path: Path, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warm as if captured, with other inputs, recorded twice, watched, captured; three calls are compared with eager.

    A file counts them: a study puts everything in memory back. The emulated device stands for a GPU.
    """
    log = os.open(tmp_path / "runs", os.O_CREAT | os.O_RDWR)
    model = on_device(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @graphdoctor.capture
    def step(x: torch.Tensor) -> torch.Tensor:
        os.write(log, b"+")
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    monkeypatch.setattr(EmulatedDevice, "kind", kind)
    try:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(WARMUP_CALLS + 2):
                step(rand(3, 4))
    finally:
        os.close(log)
    assert step.plan.how == "whole"
    assert len((tmp_path / "runs").read_bytes()) == WARMUP_CALLS + 9
