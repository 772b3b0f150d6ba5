"""Steps that count their calls on the device are not called more often than was verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from graphdoctor.device.emulated import EmulatedDevice
from graphdoctor.graphs.whole_step import CapturedStep, capture_whole_step
from graphdoctor.measure.wall_clock import Blocks, blocks_for
from graphdoctor.target.target import Inputs, Target


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)], autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "cuda":
        yield
    else:
        with EmulatedDevice():
            yield


def captured(step: Callable[..., object]) -> CapturedStep:
    def make() -> Inputs:
        return Inputs((torch.randn(8, device="cuda"),))

    target = Target("step", __file__, "test", "inference", step, make, {"step": step})
    result = capture_whole_step(target)
    assert isinstance(result, CapturedStep)
    return result


def test_a_position_that_advances_limits_the_calls() -> None:
    cache = torch.zeros(16, 8, device="cuda")
    position = torch.zeros(1, dtype=torch.int64, device="cuda")

    def step(data: torch.Tensor) -> None:
        cache.index_copy_(0, position, data[None])
        position.add_(1)

    graph = captured(step)

    blocks = blocks_for(graph, verified_calls=3)

    assert blocks.most_calls == 3
    assert position.item() == 3  # where the capture started, after three warm-ups
    graph.replay()
    assert position.item() == 4
    blocks.prepare()
    assert position.item() == 3


def test_a_step_that_counts_nothing_may_be_called_at_will() -> None:
    average = torch.zeros(8, device="cuda")
    table = torch.arange(8, device="cuda")

    graph = captured(lambda data: average.mul_(0.9).add_(data[table]))

    assert blocks_for(graph, verified_calls=3) == Blocks()
